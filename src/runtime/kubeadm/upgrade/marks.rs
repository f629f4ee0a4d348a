//! Marks in a host's backup: what has been done to it since the backup was made.

use crate::runtime::kubeadm::upgrade::Target;

impl Target {
    /// The host is not what it was: the backup must not be made anew over it.
    pub(super) fn touched(&self) -> String {
        format!("{}/touched", self.backup)
    }

    /// `kubeadm upgrade` has ended well on it.
    pub(super) fn applied(&self) -> String {
        format!("{}/kubeadm-{}", self.backup, self.version.text)
    }

    /// The flags that `kubeadm upgrade` was started with, behind the attempt's name.
    pub(super) fn decided(&self) -> String {
        format!("{}/kubeadm-flags", self.backup)
    }

    /// When kubelet was last started by us, in the host's time: `2026-11-22T08:15:00`.
    pub(super) fn restarted(&self) -> String {
        format!("{}/kubelet-started", self.backup)
    }

    /// The members of etcd before this host was touched.
    pub(super) fn known_members(&self) -> String {
        format!("{}/etcd-members.json", self.backup)
    }
}
