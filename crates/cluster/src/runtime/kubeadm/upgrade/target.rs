//! What the actions of an upgrade know of their host, and the marks in its backup that record changes
//! since the backup was made.

use crate::runtime::kubeadm::version::Version;
use crate::runtime::upgrade::{Move, Place};
use imgctl_base::error::Result;

/// Data of a [`Move`] that actions keep.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) version: Version,
    /// Directory of the backup on the host.
    pub(super) backup: String,
    /// Directory of all cluster files on the host.
    pub(super) root: String,
    /// Path of the currently linked rootfs.
    pub(super) rootfs: String,
    /// Tree of the image that the host is upgraded to.
    pub(super) tree: String,
    pub(super) place: Place,
    pub(super) external_etcd: bool,
    pub(super) keeps_corefile: bool,
    pub(super) id: String,
}

impl Target {
    pub(super) fn of(step: &Move<'_>) -> Result<Self> {
        Ok(Self {
            version: Version::of(step.to)?,
            backup: step.backup(),
            root: step.to.paths.root(),
            rootfs: step.to.paths.rootfs(),
            tree: step.tree.clone(),
            place: step.place,
            external_etcd: step.external_etcd,
            keeps_corefile: step.keeps_corefile,
            id: step.id.to_owned(),
        })
    }

    pub(super) fn is_control_plane(&self) -> bool {
        self.place != Place::Worker
    }

    /// Reports whether this host runs a member of the cluster's etcd.
    pub(super) fn has_etcd(&self) -> bool {
        self.is_control_plane() && !self.external_etcd
    }

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
