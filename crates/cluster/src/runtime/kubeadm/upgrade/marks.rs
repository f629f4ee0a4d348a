//! Marks in a host's backup that record changes since the backup was made.

use crate::runtime::kubeadm::upgrade::Target;

impl Target {
    /// The host has been changed: the backup must not be recreated.
    pub(super) fn touched(&self) -> String {
        format!("{}/touched", self.backup)
    }

    /// `kubeadm upgrade` has succeeded on the host.
    pub(super) fn applied(&self) -> String {
        format!("{}/kubeadm-{}", self.backup, self.version.text)
    }

    /// Flags that `kubeadm upgrade` was started with, after the attempt's key.
    pub(super) fn decided(&self) -> String {
        format!("{}/kubeadm-flags", self.backup)
    }

    /// Time when imgctl last started the kubelet, in the host's time: `2026-11-22T08:15:00`.
    pub(super) fn restarted(&self) -> String {
        format!("{}/kubelet-started", self.backup)
    }

    /// etcd members before this host was changed.
    pub(super) fn known_members(&self) -> String {
        format!("{}/etcd-members.json", self.backup)
    }
}
