//! Information for the operator: hazards of the versions on the path, and what cannot be rolled
//! back.

use crate::document::{Document, KubeletSwap, Strategy};
use crate::preflight::{etcd::newer_etcd, look::Look};
use crate::{hazards, request::Target};
use imgctl_runtime::version::minor;

pub(super) fn of(look: &Look<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if look.is_kubernetes() && look.is_forward() {
        for minor in look.new_minors() {
            for hazard in hazards::of(minor) {
                notes.push(format!("v1.{minor}: {hazard}"));
            }
        }
    }
    notes.extend(way_back(look));
    if look.document.choices.strategy == Strategy::Replace {
        notes.push(
            "replaced hosts are cleaned up when they leave: a rollback joins them again".to_owned(),
        );
    }
    notes
}

/// Describes what `imgctl rollback` will be able to do, and what not.
fn way_back(look: &Look<'_>) -> Vec<String> {
    let document = look.document;
    let mut notes = Vec::new();
    let mut say = |text: &str| notes.push(text.to_owned());
    if !look.is_forward() {
        if document.choices.kubelet_swap == KubeletSwap::InPlace {
            say("kubelets are restored without a drain: containers restart as the plan predicts");
        }
        if look.is_kubernetes() && changes_minor(document) {
            say(
                "objects written in a storage version that the older release does not support stay in \
                 etcd, and it cannot read them",
            );
        }
        // Control planes out of scope remain unchanged.
        if look.is_kubeadm() && !document.control_planes.is_empty() {
            say("renewed certificates and RBAC are not changed");
            if look.request.to_snapshot {
                notes.push(
                    "the snapshot replaces all of the cluster's data: everything written since is \
                     lost, and the API is unavailable meanwhile"
                        .to_owned(),
                );
            } else if let Some(etcd) = newer_etcd(look) {
                notes.push(format!(
                    "etcd stays at {etcd}: an older one cannot read its data; only `imgctl \
                     rollback --from-snapshot` downgrades it, with the old data"
                ));
            }
        }
        return notes;
    }
    if !look.is_kubernetes() {
        let has = |label: &str| look.request.from.label(label).is_some();
        if !has("rollback") && !has("upgrade") {
            say("the current image has neither label rollback nor upgrade: `imgctl rollback` \
                 cannot return hosts to it");
        }
        if !has("backup") && look.target().is_none_or(|target| target.label("backup").is_none()) {
            say("neither image has the label backup: the data is not backed up and cannot be \
                 restored");
        }
        return notes;
    }
    say(
        "workers roll back before control planes: a kubelet must never be newer than an API server",
    );
    say("renewed certificates and RBAC are not rolled back");
    if changes_minor(document) {
        say("once the new version has written objects in new storage versions, only the etcd \
             snapshot can roll back the control planes: everything written after it is lost");
    }
    let raised = look.is_kubeadm() && look.new_minors().contains(&34);
    if raised || raises_etcd(look) {
        say("etcd changes its minor: once all members have it, only `imgctl rollback \
             --from-snapshot` can roll back the control planes");
    }
    if document.identity.external_etcd {
        say("etcd is external: take a snapshot of it yourself before you begin");
    }
    if look.new_minors().contains(&31) {
        say("a rollback also crosses v1.31: without a drain it restarts every container again");
    }
    notes
}

fn changes_minor(document: &Document) -> bool {
    minor(&document.from.version) != minor(&document.target().version)
}

fn raises_etcd(look: &Look<'_>) -> bool {
    let brings = look.target().and_then(Target::etcd);
    let to = brings.as_deref().and_then(minor);
    let (Some(to), Some(etcd)) = (to, &look.observation.etcd) else {
        return false;
    };
    etcd.members.iter().filter_map(|member| minor(member.version.as_deref()?)).any(|from| from < to)
}
