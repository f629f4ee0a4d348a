//! Deployment: it is paused, its active ReplicaSet gets the new template, followed by the
//! Deployment itself, which is resumed once its controller recognizes that ReplicaSet as the one
//! for its template.
//!
//! The controller compares templates except for one label and chooses the oldest ReplicaSet that
//! matches: an empty one that already has the new template (the normal case of a rollback) is
//! removed first.

use serde_json::{Value, json};

use crate::request::WorkloadKind;
use crate::template::{Change, Site, has};
use crate::world::{Known, asked, workloads};
use crate::{marks, marks::Restore};
use crate::{object, object::Workload};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_kube::api::PatchKind;

pub(super) fn sync(
    site: &Site<'_>,
    known: &Known,
    change: &Change<'_>,
    held: Option<Restore>,
) -> Result<()> {
    let restore = site.begin(known, change, held, |_| paused(true))?;
    let Some(active) = active(site, known)? else {
        site.set_template(known, change)?;
        return finish(site, known, &restore);
    };
    remove_doubles(site, known, &active, change)?;
    site.set_template(&active, change)?;
    // The same watch cache serves both controllers: what one has observed, the other has as well.
    site.wait(&active, "its ReplicaSet has the new template", |_| Ok(true))?;
    site.set_template(known, change)?;
    let replicas = active.object.spec.replicas.unwrap_or(1);
    let seen =
        site.wait(known, "its ReplicaSet is recognized as that of the new template", |object| {
            // If it was scaled in the meantime, the replicas of the ReplicaSet count.
            let wanted = object.spec.replicas.unwrap_or(replicas);
            Ok(has(object, change) && object.status.updated_replicas >= wanted.min(replicas))
        });
    if let Err(error) = seen {
        return Err(error.hint("the Deployment stays paused: nothing is rolled out"));
    }
    finish(site, known, &restore)
}

fn finish(site: &Site<'_>, known: &Known, restore: &Restore) -> Result<()> {
    site.end(known, &paused(restore.paused))?;
    // The controller copies annotations to ReplicaSets, and `kubectl rollout undo` copies them
    // back.
    for set in replica_sets(site, known)? {
        let left = &set.object.metadata.annotations;
        if left.contains_key(marks::RESTORE) {
            let patch = json!({"metadata": {"annotations": {marks::RESTORE: null}}});
            site.patch(&set, PatchKind::Merge, &patch)?;
        }
    }
    Ok(())
}

fn paused(paused: bool) -> Value {
    json!({"op": "add", "path": "/spec/paused", "value": paused})
}

fn replica_sets(site: &Site<'_>, known: &Known) -> Result<Vec<Known>> {
    let uid = &known.object.metadata.uid;
    let all = workloads(site.api, &known.object.metadata.namespace)?;
    Ok(all
        .into_values()
        .filter(|one| one.kind == WorkloadKind::ReplicaSet)
        .filter(|one| {
            let owner = one.object.metadata.controller();
            owner.is_some_and(|owner| owner.uid == *uid)
        })
        .collect())
}

fn has_pods(set: &Known) -> bool {
    set.object.spec.replicas.unwrap_or(1) > 0 || set.object.status.replicas > 0
}

/// Returns the only ReplicaSet with Pods.
fn active(site: &Site<'_>, known: &Known) -> Result<Option<Known>> {
    let mut active: Vec<Known> = replica_sets(site, known)?.into_iter().filter(has_pods).collect();
    let last = active.pop();
    if active.is_empty() {
        Ok(last)
    } else {
        Err(Error::failed("a rollout has begun: several ReplicaSets have Pods")
            .hint("the Deployment stays paused; `kubectl rollout resume` continues the rollout"))
    }
}

/// Removes empty ReplicaSets whose template equals the future template of `active`.
fn remove_doubles(
    site: &Site<'_>,
    known: &Known,
    active: &Known,
    change: &Change<'_>,
) -> Result<()> {
    let path = active.path();
    let wanted = changed(&asked(site.api.get(&path), &path)?, &active.object, change);
    for set in replica_sets(site, known)? {
        let own = &set.object.metadata;
        if own.uid == active.object.metadata.uid || has_pods(&set) {
            continue;
        }
        let path = set.path();
        let value = asked(site.api.get(&path), &path)?;
        if bare(&value) != wanted {
            continue;
        }
        let options = json!({
            "preconditions": {"uid": own.uid, "resourceVersion": own.resource_version},
            "propagationPolicy": "Background",
        });
        let answer = site.api.delete(&path, &options);
        answer.found().context(|| format!("cannot remove the old {}", set.full_name()))?;
        // The controller would still find a ReplicaSet that is slow to disappear.
        if let Ok(left) = site.api.get(&path) {
            let left: Workload = object::read(&left, "ReplicaSet")?;
            if left.metadata.uid == own.uid {
                return Err(Error::failed(format!("{} was not removed", set.full_name())));
            }
        }
    }
    Ok(())
}

/// Returns a template without the label that distinguishes ReplicaSets.
fn bare(set: &Value) -> Value {
    let mut template = set["spec"]["template"].clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.shift_remove("pod-template-hash");
    }
    sorted(template)
}

/// Returns the template of `active` with the change applied.
fn changed(value: &Value, active: &Workload, change: &Change<'_>) -> Value {
    let mut template = bare(value);
    let spec = &active.spec.template.spec;
    for (name, image) in change.images {
        if let Some(place) = spec.container(name) {
            template["spec"][place.list][place.index]["image"] = json!(image);
        }
    }
    for (name, resources) in change.resources {
        if let Some(place) = spec.container(name) {
            let own = &mut template["spec"][place.list][place.index]["resources"];
            *own = json!(resources);
        }
    }
    sorted(template)
}

/// Removes `null`s, which are equivalent to missing members.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name, sorted(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        value => value,
    }
}
