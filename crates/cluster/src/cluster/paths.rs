//! Locations of a cluster's files on its hosts (sealos.md 3.3).

/// Default of `SEALOS_DATA_ROOT`.
pub const DATA_ROOT: &str = "/var/lib/sealos";

/// Paths on every host. They are text because they belong to another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    data_root: String,
    cluster: String,
}

impl Paths {
    pub fn new(data_root: &str, cluster: &str) -> Self {
        Self { data_root: data_root.trim_end_matches('/').to_owned(), cluster: cluster.to_owned() }
    }

    /// Returns the directory of this cluster's files.
    pub fn root(&self) -> String {
        format!("{}/data/{}", self.data_root, self.cluster)
    }

    /// Returns the link to the current tree, with rootfs and patches.
    pub fn rootfs(&self) -> String {
        format!("{}/rootfs", self.root())
    }

    /// Returns the directory in which scripts run.
    pub fn scripts(&self) -> String {
        format!("{}/scripts", self.rootfs())
    }

    /// Returns the directory of this host's generated configuration.
    pub fn etc(&self) -> String {
        format!("{}/etc", self.root())
    }

    /// Returns the directory of the embedded registry's data; `rootfs/registry` is a link to it.
    pub fn registry(&self) -> String {
        format!("{}/registry", self.root())
    }

    /// Returns the tree of an application, relative to [`Paths::root`].
    pub fn application_tree(mount_name: &str) -> String {
        format!("applications/{mount_name}/workdir")
    }

    /// Returns the directory of logs and outcomes of commands.
    pub fn runs(&self) -> String {
        format!("{}/runs", self.root())
    }
}
