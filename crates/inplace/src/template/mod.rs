//! Updates templates after their Pods, without a rollout, or records that a template is left
//! behind.
//!
//! An annotation of the workload contains the settings to restore, from before the first change
//! until the update is complete: any later run that finds it can finish the update. Every step
//! checks the current state first.

mod deployment;
mod revisions;

use std::{collections::BTreeMap, time::Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::journal::{Journal, Record, TemplatePhase};
use crate::pod_change::{annotation, test};
use crate::request::{Pace, WorkloadKind};
use crate::verdict::same;
use crate::world::{Known, World, asked};
use crate::{
    marks,
    marks::{Drift, Restore},
};
use crate::{
    object,
    object::{Resources, Workload},
};
use imgctl_base::error::{Context as _, Error, IoContext, Kind, Result};
use imgctl_journal::interrupt::Interrupt;
use imgctl_kube::api::{Api, PatchKind};

/// Maximum number of attempts if a workload changes between the read and the patch.
const ATTEMPTS: u32 = 10;

/// Requested state of the template, by container name.
pub(super) struct Change<'a> {
    pub(super) images: &'a BTreeMap<String, String>,
    pub(super) resources: &'a BTreeMap<String, Resources>,
}

pub(super) struct Site<'a> {
    pub(super) api: &'a dyn Api,
    pub(super) journal: &'a Journal,
    /// Runs whose annotations this run may take over.
    pub(super) ids: &'a [String],
    pub(super) pace: Pace,
    pub(super) interrupt: &'a Interrupt,
}

/// Updates the template after the Pods; returns a message, `None`: nothing to do.
pub(super) fn sync(
    site: &Site<'_>,
    world: &World,
    known: &Known,
    change: &Change<'_>,
) -> Result<Option<String>> {
    let (object, _) = site.read(known)?;
    let held = match marks::restore(&object.metadata) {
        None => None,
        Some(Ok(held)) if site.ids.contains(&held.id) => Some(held),
        Some(Ok(held)) => {
            return Err(Error::busy(format!(
                "run {} is changing the template of {}",
                held.id,
                known.full_name()
            )));
        }
        Some(Err(why)) => return Err(Error::failed(format!("{}: {why}", known.full_name()))),
    };
    let marked = object.metadata.annotations.contains_key(marks::DRIFT);
    if held.is_none() && has(&object, change) && !marked {
        return Ok(None);
    }
    let images = images_of(&object, change);
    site.record(known, TemplatePhase::Begin, &images)?;
    let done = match known.kind {
        _ if held.is_none() && has(&object, change) => Ok(()),
        WorkloadKind::Deployment => deployment::sync(site, known, change, held),
        WorkloadKind::StatefulSet => revisions::sync_stateful_set(site, world, known, change, held),
        WorkloadKind::DaemonSet => revisions::sync_daemon_set(site, world, known, change, held),
        WorkloadKind::ReplicaSet => site.set_template(known, change).map(|_| ()),
        WorkloadKind::Job => return Ok(None),
    };
    done.context(|| {
        format!("cannot update the template of {} to match its Pods", known.full_name())
    })?;
    site.forget(known, marks::DRIFT)?;
    site.record(known, TemplatePhase::Done, &BTreeMap::new())?;
    Ok(Some("the template is updated".to_owned()))
}

/// Records that the template is left behind.
pub(super) fn keep(site: &Site<'_>, known: &Known, change: &Change<'_>) -> Result<Option<String>> {
    let (object, _) = site.read(known)?;
    if has(&object, change) {
        site.forget(known, marks::DRIFT)?;
        return Ok(None);
    }
    let before = images_of(&object, change);
    let behind = change
        .images
        .iter()
        .filter(|(name, image)| before.get(*name).is_some_and(|own| own != *image))
        .map(|(name, image)| (name.clone(), image.clone()))
        .collect();
    let drift = Drift { id: site.journal.id().to_owned(), time: Timestamp::now(), images: behind };
    let text = written(&drift)?;
    let patch = json!({"metadata": {"annotations": {marks::DRIFT: text}}});
    site.patch(known, PatchKind::Merge, &patch)?;
    site.record(known, TemplatePhase::Kept, &before)?;
    Ok(Some(format!("the template is not updated; this is recorded in {}", marks::DRIFT)))
}

/// Returns whether the template already has the requested state.
fn has(object: &Workload, change: &Change<'_>) -> bool {
    let spec = &object.spec.template.spec;
    let images = change
        .images
        .iter()
        .all(|(name, image)| spec.container(name).is_none_or(|place| place.spec.image == *image));
    images
        && change.resources.iter().all(|(name, resources)| {
            spec.container(name).is_none_or(|place| same(&place.spec.resources, resources))
        })
}

fn images_of(object: &Workload, change: &Change<'_>) -> BTreeMap<String, String> {
    let spec = &object.spec.template.spec;
    let image = |name: &String| Some((name.clone(), spec.container(name)?.spec.image.clone()));
    change.images.keys().filter_map(image).collect()
}

/// Returns the operations that bring a template to the requested state, with tests.
fn operations(object: &Workload, change: &Change<'_>) -> Vec<Value> {
    let spec = &object.spec.template.spec;
    let mut operations = vec![test("/metadata/uid", &object.metadata.uid)];
    for (name, image) in change.images {
        if let Some(place) = spec.container(name) {
            let at = format!("/spec/template/spec/{}/{}", place.list, place.index);
            operations.push(test(&format!("{at}/name"), name));
            operations.push(test(&format!("{at}/image"), &place.spec.image));
            operations
                .push(json!({"op": "replace", "path": format!("{at}/image"), "value": image}));
        }
    }
    for (name, resources) in change.resources {
        if let Some(place) = spec.container(name) {
            let at = format!("/spec/template/spec/{}/{}", place.list, place.index);
            operations.push(test(&format!("{at}/name"), name));
            for (what, amounts) in
                [("requests", &resources.requests), ("limits", &resources.limits)]
            {
                if !amounts.is_empty() {
                    let path = format!("{at}/resources/{what}");
                    operations.push(json!({"op": "add", "path": path, "value": amounts}));
                }
            }
        }
    }
    operations
}

/// Returns the operation that sets the strategy of a StatefulSet or DaemonSet.
fn strategy(value: &Value) -> Value {
    json!({"op": "add", "path": "/spec/updateStrategy", "value": value})
}

fn written<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).doing(|| "cannot write an annotation as JSON".to_owned())
}

impl Site<'_> {
    fn read(&self, known: &Known) -> Result<(Workload, Value)> {
        let path = known.path();
        let value = asked(self.api.get(&path), &path)?;
        let object: Workload = object::read(&value, known.kind.as_str())?;
        if object.metadata.uid == known.object.metadata.uid {
            Ok((object, value))
        } else {
            Err(Error::failed(format!("{} was recreated meanwhile", known.full_name())))
        }
    }

    fn patch(&self, known: &Known, kind: PatchKind, patch: &Value) -> Result<Workload> {
        let answer = self.api.patch(&known.path(), kind, patch);
        let value = answer.context(|| format!("cannot change {}", known.full_name()))?;
        object::read(&value, known.kind.as_str())
    }

    /// Records the settings to restore and changes the strategy with `make`, in one request.
    fn hold(
        &self,
        known: &Known,
        change: &Change<'_>,
        make: impl Fn(&Restore) -> Value,
    ) -> Result<Restore> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let (object, value) = self.read(known)?;
            let restore = Restore {
                id: self.journal.id().to_owned(),
                paused: object.spec.paused,
                update_strategy: value["spec"]["updateStrategy"].clone(),
                images: images_of(&object, change),
            };
            let meta = &object.metadata;
            let mut operations = vec![
                test("/metadata/uid", &meta.uid),
                // Ensures that the recorded settings are the current ones.
                test("/metadata/resourceVersion", &meta.resource_version),
            ];
            if meta.annotations.is_empty() {
                operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
            }
            operations.push(
                json!({"op": "add", "path": annotation(marks::RESTORE), "value": written(&restore)?}),
            );
            operations.push(make(&restore));
            let patch = Value::Array(operations);
            match self.api.patch(&known.path(), PatchKind::Json, &patch) {
                Ok(_) => return Ok(restore),
                // The controller may write its status at any time.
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => {}
                Err(error) => {
                    return Err(error).context(|| format!("cannot change {}", known.full_name()));
                }
            }
        }
    }

    /// Returns the settings to restore that an earlier attempt recorded; otherwise, records the
    /// current ones. In both cases, applies the temporary strategy that `make` derives from them.
    /// Returns when the controller has observed it.
    fn begin(
        &self,
        known: &Known,
        change: &Change<'_>,
        held: Option<Restore>,
        make: impl Fn(&Restore) -> Value,
    ) -> Result<Restore> {
        let restore = match held {
            // The strategy may have been restored in the meantime; otherwise, this has no effect.
            Some(held) => {
                let uid = test("/metadata/uid", &known.object.metadata.uid);
                self.patch(known, PatchKind::Json, &json!([uid, make(&held)]))?;
                held
            }
            None => self.hold(known, change, make)?,
        };
        self.wait(known, "its Pods are held back", |_| Ok(true))?;
        Ok(restore)
    }

    /// Restores the strategy with `change`. Returns when the controller has observed it.
    fn end(&self, known: &Known, change: &Value) -> Result<()> {
        self.release(known, change)?;
        self.wait(known, "it has observed its strategy", |_| Ok(true))?;
        Ok(())
    }

    /// Restores the strategy and removes the annotation, in one request.
    fn release(&self, known: &Known, change: &Value) -> Result<()> {
        let operations = json!([
            test("/metadata/uid", &known.object.metadata.uid),
            change,
            {"op": "remove", "path": annotation(marks::RESTORE)},
        ]);
        self.patch(known, PatchKind::Json, &operations)?;
        Ok(())
    }

    fn set_template(&self, known: &Known, change: &Change<'_>) -> Result<Workload> {
        let (object, _) = self.read(known)?;
        if has(&object, change) {
            return Ok(object);
        }
        self.patch(known, PatchKind::Json, &Value::Array(operations(&object, change)))
    }

    fn forget(&self, known: &Known, name: &str) -> Result<()> {
        let (object, _) = self.read(known)?;
        if object.metadata.annotations.contains_key(name) {
            let patch = json!({"metadata": {"annotations": {name: null}}});
            self.patch(known, PatchKind::Merge, &patch)?;
        }
        Ok(())
    }

    /// Waits until `done` accepts the workload; `what` describes the condition.
    fn wait(
        &self,
        known: &Known,
        what: &str,
        done: impl Fn(&Workload) -> Result<bool>,
    ) -> Result<Workload> {
        let until = Instant::now() + self.pace.controllers;
        loop {
            let (object, _) = self.read(known)?;
            if object.status.observed_generation >= object.metadata.generation && done(&object)? {
                return Ok(object);
            }
            if self.interrupt.is_asked() {
                return Err(Error::new(Kind::Interrupted, "stopped while changing its template")
                    .hint(format!("resume it with `--id {}`", self.journal.id())));
            }
            if Instant::now() > until {
                return Err(Error::failed(format!(
                    "its controller did not report within {} s: {what}",
                    self.pace.controllers.as_secs()
                ))
                .hint(format!(
                    "nothing was rolled out, and the state to restore is in the annotation {}; \
                     check kube-controller-manager, then run the same command with --id {}",
                    marks::RESTORE,
                    self.journal.id()
                )));
            }
            std::thread::sleep(self.pace.poll);
        }
    }

    fn record(
        &self,
        known: &Known,
        phase: TemplatePhase,
        images: &BTreeMap<String, String>,
    ) -> Result<()> {
        self.journal.append(&Record::Template {
            time: Timestamp::now(),
            workload: known.full_name(),
            uid: known.object.metadata.uid.clone(),
            phase,
            images: images.clone(),
        })
    }
}

/// Returns the members of the workload from a fresh read.
fn members(site: &Site<'_>, world: &World, uid: &str) -> Result<Vec<object::Pod>> {
    let mut world = world.clone();
    world.refresh_all(site.api)?;
    Ok(world.members(uid).cloned().collect())
}

/// Assigns Pods with the new image to `revision`. Pods that were created in the meantime with the
/// former image get the new one in the same request; otherwise, their workload would recreate them.
fn relabel(
    site: &Site<'_>,
    world: &World,
    known: &Known,
    change: &Change<'_>,
    revision: &str,
) -> Result<usize> {
    let labels = BTreeMap::from([(marks::REVISION.to_owned(), revision.to_owned())]);
    let pods = members(site, world, &known.object.metadata.uid)?;
    for pod in &pods {
        if pod.metadata.labels.get(marks::REVISION).map(String::as_str) == Some(revision) {
            continue;
        }
        let wanted: BTreeMap<String, String> = change
            .images
            .iter()
            .filter(|(name, _)| pod.spec.container(name).is_some())
            .map(|(name, image)| (name.clone(), image.clone()))
            .collect();
        let state = marks::state(&pod.metadata);
        // If admission stored a different image than requested, that image is kept.
        let stored = |name: &String| {
            let before = state.as_ref()?.containers.get(name)?;
            let has = &pod.spec.container(name)?.spec.image;
            (before.to == *change.images.get(name)? && before.image != *has).then(|| has.clone())
        };
        let wanted: BTreeMap<String, String> = wanted
            .into_iter()
            .map(|(name, image)| (name.clone(), stored(&name).unwrap_or(image)))
            .collect();
        let operations = crate::pod_change::images_patch(pod, &wanted, state.as_ref(), &labels)?;
        let answer = site.api.patch(&pod.path(), PatchKind::Json, &operations);
        answer.found().context(|| format!("cannot label Pod {}", pod.full_name()))?;
    }
    Ok(pods.len())
}
