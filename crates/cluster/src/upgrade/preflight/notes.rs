//! Information for the operator: hazards of the versions on the path, and what cannot be rolled
//! back.

use super::etcd::newer_etcd;
use super::look::Look;
use crate::runtime::version::minor;
use crate::upgrade::document::{KubeletSwap, Strategy};
use crate::upgrade::hazards;
use crate::upgrade::request::Target;

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
            "hosts that were replaced are cleaned when they leave: rollback joins them anew"
                .to_owned(),
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
            say("kubelets are put back without a drain: containers restart as the plan says");
        }
        say(
            "objects that were written in a form that the older version does not know stay in etcd and cannot be read by it",
        );
        // Control planes out of scope remain unchanged.
        if look.is_kubeadm() && !document.control_planes.is_empty() {
            say("certificates that were renewed and RBAC stay as they are");
            if look.request.to_snapshot {
                notes.push(
                    "all of the cluster's data becomes that of the snapshot: what was written since is lost, and there is no API meanwhile".to_owned(),
                );
            } else if let Some(etcd) = newer_etcd(look) {
                notes.push(format!(
                    "etcd stays {etcd}: an older one cannot read its data; only `imgctl rollback --from-snapshot` takes it back, with the data of then"
                ));
            }
        }
        return notes;
    }
    if !look.is_kubernetes() {
        let has = |label: &str| look.request.from.label(label).is_some();
        if !has("rollback") && !has("upgrade") {
            say(
                "the present image has neither label rollback nor upgrade: `imgctl rollback` cannot take hosts back to it",
            );
        }
        if !has("backup")
            && look
                .target()
                .is_none_or(|target| target.label("backup").is_none())
        {
            say(
                "neither image has the label backup: nothing is kept of the data, and nothing of it can be put back",
            );
        }
        return notes;
    }
    say("workers go back before control planes: a kubelet must never be newer than an API server");
    say("certificates that are renewed and RBAC are not taken back");
    let minors = minor(&document.from.version) != minor(&document.target().version);
    if minors {
        say(
            "once the new version has written objects in new storage versions, only the etcd snapshot takes the control planes back: what was written after it is lost",
        );
    }
    let raised = look.is_kubeadm() && look.new_minors().contains(&34);
    if raised || raises_etcd(look) {
        say(
            "etcd gets another minor: once all members have it, control planes go back by `imgctl rollback --from-snapshot` only",
        );
    }
    if document.identity.external_etcd {
        say("etcd is external: take a snapshot of it yourself before you begin");
    }
    if look.new_minors().contains(&31) {
        say("a rollback crosses v1.31, too: without a drain it restarts every container again");
    }
    notes
}

fn raises_etcd(look: &Look<'_>) -> bool {
    let brings = look.target().and_then(Target::etcd);
    let to = brings.as_deref().and_then(minor);
    let (Some(to), Some(etcd)) = (to, &look.observation.etcd) else {
        return false;
    };
    etcd.members
        .iter()
        .filter_map(|member| minor(member.version.as_deref()?))
        .any(|from| from < to)
}
