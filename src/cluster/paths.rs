//! Locations of a cluster's files on its hosts (sealos.md 3.3).

/// Default of `SEALOS_DATA_ROOT`.
pub(crate) const DATA_ROOT: &str = "/var/lib/sealos";

/// Paths on every host. They are text because they belong to another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    data_root: String,
    cluster: String,
}

impl Paths {
    pub(crate) fn new(data_root: &str, cluster: &str) -> Self {
        Self {
            data_root: data_root.trim_end_matches('/').to_owned(),
            cluster: cluster.to_owned(),
        }
    }

    /// Returns the directory of this cluster's files.
    pub(crate) fn root(&self) -> String {
        format!("{}/data/{}", self.data_root, self.cluster)
    }

    /// Returns the link to the current tree, with rootfs and patches.
    pub(crate) fn rootfs(&self) -> String {
        format!("{}/rootfs", self.root())
    }

    /// Returns the directory in which scripts run.
    pub(crate) fn scripts(&self) -> String {
        format!("{}/scripts", self.rootfs())
    }

    /// Returns the directory of this host's generated configuration.
    pub(crate) fn etc(&self) -> String {
        format!("{}/etc", self.root())
    }

    /// Returns the directory of the embedded registry's data; `rootfs/registry` is a link to it.
    pub(crate) fn registry(&self) -> String {
        format!("{}/registry", self.root())
    }

    /// Returns the tree of an application, relative to [`Paths::root`].
    pub(crate) fn application_tree(mount_name: &str) -> String {
        format!("applications/{mount_name}/workdir")
    }

    /// Returns the directory of logs and outcomes of commands.
    pub(crate) fn runs(&self) -> String {
        format!("{}/runs", self.root())
    }
}
