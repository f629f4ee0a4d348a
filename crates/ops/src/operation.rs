//! The operations on clusters, and what differs between them: each property is a match that a new
//! operation has to answer. Must not know how an operation is planned or carried out.

use Operation::{
    Add, AddSpare, Adopt, Apply, Backup, Cert, Delete, InPlace, InPlaceApply, InPlaceRollback,
    RegistryGc, RegistryPasswd, Renumber, Reset, Restore, Rollback, Run, Status, SupportBundle,
    Uninstall, Upgrade,
};
use imgctl_kube::lease::Outage;

macro_rules! operations {
    ($($(#[$doc:meta])* $operation:ident = $name:literal,)*) => {
        /// An operation on one cluster.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation {
            $($(#[$doc])* $operation,)*
        }

        impl Operation {
            /// All operations, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$operation,)*];

            /// Returns the name in locks, journals and plans: files of earlier versions have it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$operation => $name,)*
                }
            }
        }
    };
}

operations! {
    Run = "run",
    Apply = "apply",
    Add = "add",
    /// The part of an upgrade in which a spare host joins.
    AddSpare = "add",
    Adopt = "adopt",
    Delete = "delete",
    Renumber = "renumber",
    Uninstall = "uninstall",
    Reset = "reset",
    Upgrade = "upgrade",
    Rollback = "rollback",
    /// Looks at Pods that were changed in place, or plans such a change.
    InPlace = "inplace",
    InPlaceApply = "inplace apply",
    InPlaceRollback = "inplace rollback",
    Backup = "backup",
    Restore = "restore",
    Cert = "cert",
    RegistryPasswd = "registry-passwd",
    RegistryGc = "registry-gc",
    Status = "status",
    SupportBundle = "support-bundle",
}

/// Which login an operation uses for the hosts of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginFrom {
    /// The flags, where they are given; they are not recorded.
    Flags,
    /// The record: the flags are for new hosts.
    Record,
}

/// A change of a cluster that was begun and is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    Upgrade,
    AuthorityRotation,
    RegistryPassword,
}

impl Operation {
    /// Returns the operation of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|operation| operation.name() == name)
    }

    pub(crate) fn login(self) -> LoginFrom {
        match self {
            Run | Add => LoginFrom::Record,
            Apply | AddSpare | Adopt | Delete | Renumber | Uninstall | Reset | Upgrade
            | Rollback | InPlace | InPlaceApply | InPlaceRollback | Backup | Restore | Cert
            | RegistryPasswd | RegistryGc | Status | SupportBundle => LoginFrom::Flags,
        }
    }

    /// Whether this may run while `open` is not complete.
    pub(crate) fn may_run_beside(self, open: Open) -> bool {
        match self {
            Reset | InPlace | InPlaceApply | InPlaceRollback | Status | SupportBundle => true,
            Adopt | Upgrade | Rollback => open == Open::Upgrade,
            Cert => open == Open::AuthorityRotation,
            RegistryPasswd => open == Open::RegistryPassword,
            Run | Apply | Add | AddSpare | Delete | Renumber | Uninstall | Backup | Restore
            | RegistryGc => false,
        }
    }

    /// Whether it needs a recorded cluster; some operations work on any cluster through its kubeconfig.
    pub(crate) fn needs_cluster(self) -> bool {
        match self {
            Run | Apply | Adopt | Restore | Uninstall | InPlace | InPlaceApply
            | InPlaceRollback | Status | SupportBundle => false,
            Add | AddSpare | Delete | Renumber | Reset | Upgrade | Rollback | Backup | Cert
            | RegistryPasswd | RegistryGc => true,
        }
    }

    /// Returns what to do while no API server answers. `exists`: the cluster is complete.
    pub(crate) fn outage(self, exists: bool, is_forced: bool) -> Outage {
        match self {
            Adopt => Outage::Fail,
            _ if !exists => Outage::Expect,
            Add | AddSpare | InPlace | InPlaceApply | InPlaceRollback => Outage::Fail,
            Run | Apply | Delete if !is_forced => Outage::Fail,
            Run | Apply | Delete | Renumber | Uninstall | Reset | Upgrade | Rollback | Backup
            | Restore | Cert | RegistryPasswd | RegistryGc | Status | SupportBundle => Outage::Warn,
        }
    }

    /// Whether `--force` takes the cluster over from another controller. `run --force` repeats commands
    /// of images, `add --force` takes hosts of other clusters.
    pub(crate) fn takes_over_by_force(self) -> bool {
        match self {
            Apply | Delete | Reset => true,
            Run | Add | AddSpare | Adopt | Renumber | Uninstall | Upgrade | Rollback | InPlace
            | InPlaceApply | InPlaceRollback | Backup | Restore | Cert | RegistryPasswd
            | RegistryGc | Status | SupportBundle => false,
        }
    }

    /// Whether `--force` answers the question where nobody can be asked, as in scripts for sealos.
    pub(crate) fn is_confirmed_by_force(self) -> bool {
        match self {
            Delete | Reset => true,
            Run | Apply | Add | AddSpare | Adopt | Renumber | Uninstall | Upgrade | Rollback
            | InPlace | InPlaceApply | InPlaceRollback | Backup | Restore | Cert
            | RegistryPasswd | RegistryGc | Status | SupportBundle => false,
        }
    }

    /// Whether hosts have the files of an image already; `is_installed`: the cluster has the image.
    pub(crate) fn hosts_have(self, is_installed: bool) -> bool {
        match self {
            Renumber | Rollback => true,
            Run => is_installed,
            Apply | Add | AddSpare | Adopt | Delete | Uninstall | Reset | Upgrade | InPlace
            | InPlaceApply | InPlaceRollback | Backup | Restore | Cert | RegistryPasswd
            | RegistryGc | Status | SupportBundle => false,
        }
    }

    /// Whether the cluster has hosts and images afterwards that are worth telling.
    pub(crate) fn makes_members(self) -> bool {
        match self {
            Run | Apply | Add | Delete => true,
            AddSpare | Adopt | Renumber | Uninstall | Reset | Upgrade | Rollback | InPlace
            | InPlaceApply | InPlaceRollback | Backup | Restore | Cert | RegistryPasswd
            | RegistryGc | Status | SupportBundle => false,
        }
    }

    /// Whether this is repeated to complete the creation of a cluster.
    pub(crate) fn creates(self) -> bool {
        match self {
            Run | Apply => true,
            Add | AddSpare | Adopt | Delete | Renumber | Uninstall | Reset | Upgrade | Rollback
            | InPlace | InPlaceApply | InPlaceRollback | Backup | Restore | Cert
            | RegistryPasswd | RegistryGc | Status | SupportBundle => false,
        }
    }

    /// Returns what no command takes back, in sentences. Upgrades and changes of Pods have sentences of
    /// their own.
    pub(crate) fn irreversible(self) -> &'static [&'static str] {
        match self {
            Reset => &[
                "Everything that belongs to the cluster is removed from its hosts. Only a backup brings its data back.",
            ],
            Delete => &[
                "Everything that belongs to the cluster is removed from the hosts that leave, with the volumes that they hold.",
            ],
            Uninstall => &[
                "Objects of the applications are removed from the cluster, with the data of volumes whose reclaim policy is Delete.",
            ],
            Restore => &["Everything written to the cluster since the backup is lost."],
            Run | Apply | Add | AddSpare => {
                &["Commands of images run on the cluster; imgctl cannot undo what they do there."]
            }
            Adopt | Renumber | Upgrade | Rollback | InPlace | InPlaceApply | InPlaceRollback
            | Backup | Cert | RegistryPasswd | RegistryGc | Status | SupportBundle => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(wanted: impl Fn(Operation) -> bool) -> Vec<&'static str> {
        let chosen = Operation::ALL.iter().filter(|operation| wanted(**operation));
        chosen.map(|operation| operation.name()).collect()
    }

    #[test]
    fn only_operations_with_new_hosts_keep_flags_from_recorded_logins() {
        assert_eq!(Operation::ALL.len(), 21);
        assert_eq!(names(|one| one.login() == LoginFrom::Record), ["run", "add"]);
        // In an upgrade, a spare joins with the upgrade's own login.
        assert_eq!(AddSpare.login(), Upgrade.login());
    }

    #[test]
    fn an_open_change_admits_what_completes_or_ends_it() {
        let looks =
            ["inplace", "inplace apply", "inplace rollback", "status", "support-bundle", "reset"];
        for (open, own) in [
            (Open::Upgrade, &["adopt", "upgrade", "rollback"][..]),
            (Open::AuthorityRotation, &["cert"]),
            (Open::RegistryPassword, &["registry-passwd"]),
        ] {
            let mut expected = [&looks[..], own].concat();
            let mut admitted = names(|operation| operation.may_run_beside(open));
            expected.sort_unstable();
            admitted.sort_unstable();
            assert_eq!(admitted, expected, "{open:?}");
        }
    }

    #[test]
    fn names_in_records_lead_back_to_operations() {
        for operation in Operation::ALL {
            let found = Operation::of_name(operation.name()).unwrap();
            assert_eq!(found.name(), operation.name());
            assert_eq!(found == *operation, *operation != AddSpare, "{operation:?}");
        }
        assert_eq!(Operation::of_name("agent renew"), None);
    }
}
