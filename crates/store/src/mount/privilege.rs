//! What this process is allowed to do with mounts, owners and attributes.

use rustix::thread::{CapabilitySet, capabilities};

use imgctl_layer::unpack::{Form, Privilege};

/// Privileges of this process, determined once per command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privileges {
    /// Mounting is allowed (`CAP_SYS_ADMIN`), at least in the process's own user namespace.
    pub mount: bool,
    /// Any owner, device and mode can be set.
    pub owners: bool,
    /// `trusted.*` attributes can be set: `CAP_SYS_ADMIN` in the initial user namespace.
    pub(crate) trusted_xattrs: bool,
}

impl Privileges {
    /// Queries the kernel.
    pub fn current() -> Self {
        let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let initial = is_initial_user_namespace();
        let files = CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::FOWNER
            | CapabilitySet::FSETID
            | CapabilitySet::MKNOD;
        let mount = effective.contains(CapabilitySet::SYS_ADMIN);
        Self {
            mount,
            owners: initial && effective.contains(files),
            trusted_xattrs: initial && mount,
        }
    }

    /// Returns the form of snapshots made with these privileges.
    pub(crate) fn overlay_form(self) -> Form {
        Form::Overlay { user_xattrs: !self.trusted_xattrs }
    }

    /// Returns how to treat owners and devices when unpacking.
    pub fn unpacking(self) -> Privilege {
        if self.owners { Privilege::Root } else { Privilege::User }
    }
}

/// The initial namespace maps every ID to itself (user_namespaces(7)).
fn is_initial_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}
