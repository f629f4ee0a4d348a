//! StatefulSet: a partition holds back all its Pods while its template gets the new image. Then a
//! label assigns the Pods to the new revision, and the strategy is restored.

use serde_json::{Value, json};

use super::{Change, Site, has, members, relabel, strategy};
use crate::inplace::marks::Restore;
use crate::inplace::world::{Known, World, asked};
use imgctl_base::error::{Error, Result};

/// A partition larger than the number of Pods of any StatefulSet.
const ALL: i64 = i32::MAX as i64;

pub(super) fn sync(
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
    if super::daemon_set::is_of(&value, change) {
        Ok(())
    } else {
        Err(Error::failed(format!("revision {revision} does not match the new template")))
    }
}
