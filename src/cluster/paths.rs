//! Where a cluster's files lie on its hosts (sealos.md 3.3).

/// `SEALOS_DATA_ROOT` when it is not set.
pub(crate) const DATA_ROOT: &str = "/var/lib/sealos";

/// Paths on every host. Text, because they are another machine's.
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

    /// Everything of this cluster.
    pub(crate) fn root(&self) -> String {
        format!("{}/data/{}", self.data_root, self.cluster)
    }

    /// Rootfs and patches, a link to the current tree.
    pub(crate) fn rootfs(&self) -> String {
        format!("{}/rootfs", self.root())
    }

    /// Where scripts run.
    pub(crate) fn scripts(&self) -> String {
        format!("{}/scripts", self.rootfs())
    }

    /// Generated configuration of this host.
    pub(crate) fn etc(&self) -> String {
        format!("{}/etc", self.root())
    }

    /// The embedded registry's data; `rootfs/registry` is a link to it.
    pub(crate) fn registry(&self) -> String {
        format!("{}/registry", self.root())
    }

    /// The tree of an application, relative to [`Paths::root`].
    pub(crate) fn application_tree(mount_name: &str) -> String {
        format!("applications/{mount_name}/workdir")
    }

    /// Logs and outcomes of commands.
    pub(crate) fn runs(&self) -> String {
        format!("{}/runs", self.root())
    }
}
