//! StatefulSets and DaemonSets: their strategy holds back all Pods while the template gets the new
//! image. Then a label assigns the Pods to the new revision, and the strategy is restored.

use serde_json::{Value, json};

use crate::marks::{REVISION, Restore};
use crate::template::{Change, Site, has, members, relabel, strategy};
use crate::world::{Known, World, asked};
use imgctl_base::error::{Error, Result};

/// A partition larger than the number of Pods of any StatefulSet.
const ALL: i64 = i32::MAX as i64;

/// A partition holds back all Pods of a StatefulSet while its template gets the new image.
pub(super) fn sync_stateful_set(
    site: &Site<'_>,
    world: &World,
    known: &Known,
    change: &Change<'_>,
    held: Option<Restore>,
) -> Result<()> {
    let restore = site.begin(known, change, held, |restore| strategy(&held_back(restore)))?;
    site.set_template(known, change)?;
    let object = site.wait(known, "it has a revision of the new template", |object| {
        Ok(has(object, change) && !object.status.update_revision.is_empty())
    })?;
    let revision = object.status.update_revision.clone();
    check_revision(site, known, &revision, change)?;
    relabel(site, world, known, change, &revision)?;
    site.wait(known, "its Pods belong to the new revision", |object| {
        let pods = members(site, world, &known.object.metadata.uid)?;
        let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
        Ok(object.status.update_revision == revision && object.status.updated_replicas >= count)
    })?;
    site.end(known, &strategy(&restore.update_strategy))
}

/// Returns the strategy that applies while the template changes.
fn held_back(restore: &Restore) -> Value {
    let mut held = restore.update_strategy.clone();
    if held["type"] != "OnDelete" {
        held["type"] = json!("RollingUpdate");
        held["rollingUpdate"]["partition"] = json!(ALL);
    }
    held
}

/// Checks that the revision matches the new template, which its name alone does not guarantee.
fn check_revision(
    site: &Site<'_>,
    known: &Known,
    revision: &str,
    change: &Change<'_>,
) -> Result<()> {
    let namespace = &known.object.metadata.namespace;
    let path = format!("/apis/apps/v1/namespaces/{namespace}/controllerrevisions/{revision}");
    let value = asked(site.api.get(&path), &path)?;
    if is_of(&value, change) {
        Ok(())
    } else {
        Err(Error::failed(format!("revision {revision} does not match the new template")))
    }
}

/// `OnDelete` preserves the Pods of a DaemonSet while its template gets the new image.
pub(super) fn sync_daemon_set(
    site: &Site<'_>,
    world: &World,
    known: &Known,
    change: &Change<'_>,
    held: Option<Restore>,
) -> Result<()> {
    let restore = site.begin(known, change, held, |_| strategy(&json!({"type": "OnDelete"})))?;
    site.set_template(known, change)?;
    site.wait(known, "it has a revision of the new template", |object| {
        Ok(has(object, change) && revision(site, known, change)?.is_some())
    })?;
    let Some(revision) = revision(site, known, change)? else {
        return Err(Error::failed("its new revision has disappeared"));
    };
    relabel(site, world, known, change, &revision)?;
    site.wait(known, "its Pods belong to the new revision", |object| {
        let pods = members(site, world, &known.object.metadata.uid)?;
        let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
        let updated = object.status.updated_number_scheduled;
        Ok(updated >= count.min(object.status.desired_number_scheduled))
    })?;
    site.end(known, &strategy(&restore.update_strategy))
}

/// Returns the hash of the newest ControllerRevision, if it matches the new template.
fn revision(site: &Site<'_>, known: &Known, change: &Change<'_>) -> Result<Option<String>> {
    let meta = &known.object.metadata;
    let path = format!("/apis/apps/v1/namespaces/{}/controllerrevisions", meta.namespace);
    let all = asked(site.api.list(&path), &path)?;
    let owned = |one: &&Value| {
        let owners = one["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|all| all.iter().any(|owner| owner["uid"] == meta.uid.as_str()))
    };
    let newest = all.iter().filter(owned).max_by_key(|one| one["revision"].as_i64().unwrap_or(0));
    Ok(newest
        .filter(|one| is_of(one, change))
        .and_then(|one| one["metadata"]["labels"][REVISION].as_str())
        .map(str::to_owned))
}

/// Returns whether a ControllerRevision has the images of the new template.
fn is_of(revision: &Value, change: &Change<'_>) -> bool {
    let spec = &revision["data"]["spec"]["template"]["spec"];
    let containers = ["containers", "initContainers"]
        .into_iter()
        .filter_map(|list| spec[list].as_array())
        .flatten();
    containers.into_iter().all(|container| {
        let name = container["name"].as_str().unwrap_or_default();
        let wanted = change.images.get(name);
        wanted.is_none_or(|image| container["image"] == image.as_str())
    })
}
