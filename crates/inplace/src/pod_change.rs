//! Changes and restores a single Pod: reads it, decides based on its state, and patches it with
//! tests.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::plan::{PodPlan, Verdict};
use crate::{completion::Changed, verdict::same};
use crate::{
    marks,
    marks::{Before, PodState, escaped},
};
use crate::{
    object,
    object::{Place, Pod, Resources, pod_path},
};
use imgctl_base::error::{Context as _, Error, IoContext, Result};
use imgctl_kube::api::{Api, PatchKind};

/// The readiness gate that other tools close for the same purpose.
pub(crate) const GATE: &str = "InPlaceUpdateReady";
/// Maximum number of attempts if the Pod changes between the read and the patch.
const ATTEMPTS: u32 = 5;
/// Timeout for a Pod to leave the EndpointSlices.
const OUT_OF_SERVICE: Duration = Duration::from_secs(30);

pub(crate) enum Started {
    Changed(Box<Changed>),
    /// The Pod already has the requested state, and not because of this run.
    Nothing,
    Gone,
    /// Another party has set a different image than the plan expected; contains the message.
    Edited(String),
}

/// Changes the Pod, or detects that the run `id` has already changed it.
pub(super) fn start(
    api: &dyn Api,
    plan: &PodPlan,
    id: &str,
    labels: &BTreeMap<String, String>,
) -> Result<Started> {
    let failed = || format!("cannot change Pod {}", plan.full_name());
    let path = pod_path(&plan.namespace, &plan.name);
    for _ in 0..ATTEMPTS {
        let Some(pod) = living(api, &path, &plan.uid).context(failed)? else {
            return Ok(Started::Gone);
        };
        let (mut images, mut sizes) = (BTreeMap::new(), BTreeMap::new());
        let ours = marks::state(&pod.metadata).filter(|state| state.id == id);
        for one in &plan.containers {
            let Some(place) = pod.spec.container(&one.name) else {
                return Ok(Started::Edited(format!("it has no container `{}`", one.name)));
            };
            let has = &place.spec.image;
            let stored = ours.as_ref().is_some_and(|state| {
                let before = state.containers.get(&one.name);
                before.is_some_and(|before| before.to == one.to && before.image != *has)
            });
            if *has == one.from && one.from != one.to {
                images.insert(one.name.clone(), one.to.clone());
            } else if *has != one.to && !stored {
                return Ok(Started::Edited(format!(
                    "another client set `{}` to {has}; the plan has {}",
                    one.name, one.from
                )));
            }
            if let Some(resize) = &one.resize
                && !same(&place.spec.resources, &resize.to)
            {
                if !same(&place.spec.resources, &resize.from) {
                    return Ok(Started::Edited(format!(
                        "another client changed the resources of `{}`",
                        one.name
                    )));
                }
                sizes.insert(one.name.clone(), resize.to.clone());
            }
        }
        let state = match (&ours, images.is_empty()) {
            (Some(state), true) => state.clone(),
            (None, true) if sizes.is_empty() => return Ok(Started::Nothing),
            _ => PodState {
                id: id.to_owned(),
                time: Timestamp::now(),
                containers: before(&pod, plan),
            },
        };
        if sizes.is_empty() && is_admitted(api, &pod, &images)? {
            return Ok(Started::Nothing);
        }
        let mut stored = pod.clone();
        if ours.is_none() || !images.is_empty() {
            let operations = images_patch(&pod, &images, Some(&state), labels)?;
            match api.patch(&path, PatchKind::Json, &operations) {
                Ok(value) => stored = object::read(&value, "Pod")?,
                // The Pod was changed concurrently: read it and decide again.
                Err(error) if error.is_conflict() => continue,
                Err(error) if error.is_not_found() => return Ok(Started::Gone),
                Err(error) => return Err(error).context(failed),
            }
        }
        if !sizes.is_empty() {
            let operations = resources_patch(&stored, &sizes)?;
            match api.patch(&format!("{path}/resize"), PatchKind::Json, &operations) {
                Ok(_) => {}
                Err(error) if error.code == 409 => continue,
                Err(error) => return Err(error).context(failed),
            }
        }
        return Ok(Started::Changed(Box::new(changed(plan, state, &stored))));
    }
    Err(Error::failed("another client keeps changing it")).context(failed)
}

/// Returns the Pod at `path`; `None` if it is gone, is going, or is another one of that name.
fn living(api: &dyn Api, path: &str, uid: &str) -> Result<Option<Pod>> {
    let Some(value) = api.get(path).found()? else { return Ok(None) };
    let pod: Pod = object::read(&value, "Pod")?;
    Ok((pod.metadata.uid == uid && !pod.is_going()).then_some(pod))
}

/// Returns whether the patch would store what the Pod already has: an earlier run requested the
/// same names, and admission rewrote them. Another patch would not restart anything.
fn is_admitted(api: &dyn Api, pod: &Pod, images: &BTreeMap<String, String>) -> Result<bool> {
    let state = marks::state(&pod.metadata);
    let has = |pod: &Pod, name: &String| {
        let place = pod.spec.container(name);
        place.map(|place| place.spec.image.clone())
    };
    let asked_before = images.iter().all(|(name, to)| {
        let before = state.as_ref().and_then(|state| state.containers.get(name));
        before
            .is_some_and(|before| before.to == *to && has(pod, name) != Some(before.image.clone()))
    });
    if images.is_empty() || !asked_before {
        return Ok(false);
    }
    let operations = images_patch(pod, images, state.as_ref(), &BTreeMap::new())?;
    let path = format!("{}?dryRun=All", pod.path());
    // An error of the dry run is reported by the actual patch.
    let Ok(value) = api.patch(&path, PatchKind::Json, &operations) else {
        return Ok(false);
    };
    let stored: Pod = object::read(&value, "Pod")?;
    Ok(images.keys().all(|name| has(&stored, name) == has(pod, name)))
}

fn before(pod: &Pod, plan: &PodPlan) -> BTreeMap<String, Before> {
    let mut all = BTreeMap::new();
    for one in &plan.containers {
        let status = pod.status_of(&one.name).cloned().unwrap_or_default();
        let image = pod.spec.container(&one.name).map(|place| place.spec.image.clone());
        let before = Before {
            image: image.unwrap_or_default(),
            image_id: status.image_id,
            container_id: status.container_id,
            restart_count: status.restart_count,
            waiting: status.state.waiting.map(|one| one.reason).unwrap_or_default(),
            to: one.to.clone(),
            resources: one.resize.as_ref().map(|resize| resize.from.clone()),
        };
        all.insert(one.name.clone(), before);
    }
    all
}

fn changed(plan: &PodPlan, state: PodState, stored: &Pod) -> Changed {
    let image = |name: &String| {
        let place = stored.spec.container(name)?;
        Some((name.clone(), place.spec.image.clone()))
    };
    Changed {
        uid: plan.uid.clone(),
        architecture: plan.architecture.clone(),
        stored: state.containers.keys().filter_map(image).collect(),
        // A resumed run may plan NOOP if the patch was already applied.
        verdicts: plan
            .containers
            .iter()
            .map(|one| {
                let before = state.containers.get(&one.name);
                let moved = before.is_some_and(|before| before.image != before.to);
                let verdict = match one.verdict {
                    Verdict::Noop if moved => Verdict::Change,
                    verdict => verdict,
                };
                (one.name.clone(), (verdict, one.role))
            })
            .collect(),
        state,
    }
}

/// Restores the former images and resources of the Pod; `false`: there is nothing to restore.
pub(crate) fn restore(api: &dyn Api, changed: &Changed, plan: &PodPlan) -> Result<bool> {
    let failed = || format!("cannot restore the previous image of Pod {}", plan.full_name());
    let path = pod_path(&plan.namespace, &plan.name);
    for _ in 0..ATTEMPTS {
        let Some(pod) = living(api, &path, &changed.uid).context(failed)? else {
            return Ok(false);
        };
        let (mut images, mut sizes) = (BTreeMap::new(), BTreeMap::new());
        for (name, before) in &changed.state.containers {
            let Some(place) = pod.spec.container(name) else {
                continue;
            };
            // Only restores images that this run has set.
            if changed.stored.get(name) == Some(&place.spec.image) {
                images.insert(name.clone(), before.image.clone());
            }
            if let Some(resources) = &before.resources {
                sizes.insert(name.clone(), resources.clone());
            }
        }
        let operations = images_patch(&pod, &images, None, &BTreeMap::new())?;
        let answer = api.patch(&path, PatchKind::Json, &operations);
        let answer = answer.and_then(|_| match resources_patch(&pod, &sizes) {
            Ok(operations) if !sizes.is_empty() => {
                api.patch(&format!("{path}/resize"), PatchKind::Json, &operations)
            }
            _ => Ok(Value::Null),
        });
        match answer {
            Ok(_) => return Ok(true),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error).context(failed),
        }
    }
    Err(Error::failed("another client keeps changing it")).context(failed)
}

/// Returns whether a Pod with restored images is ready.
pub(super) fn is_back(pod: &Pod, changed: &Changed) -> bool {
    let back = changed.state.containers.iter().all(|(name, before)| {
        pod.spec.container(name).is_some_and(|place| place.spec.image == before.image)
            && pod
                .status_of(name)
                .is_some_and(|status| status.ready && status.state.running.is_some())
    });
    back && pod.is_ready()
}

pub(crate) fn set_gate(api: &dyn Api, pod: &Pod, gate: &str, open: bool) -> Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = json!({
        "type": gate,
        "status": if open { "True" } else { "False" },
        "reason": if open { "Done" } else { "StartInPlaceUpdate" },
        "lastTransitionTime": now,
    });
    let document = json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {"conditions": [condition]},
    });
    let path = format!("{}/status", pod.path());
    api.patch(&path, PatchKind::Strategic, &document)
        .context(|| format!("cannot set {gate} of Pod {}", pod.full_name()))?;
    Ok(())
}

/// Waits until no EndpointSlice sends traffic to the Pod, up to a timeout.
pub(crate) fn wait_out_of_service(api: &dyn Api, pod: &Pod, poll: Duration) {
    let path =
        format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", pod.metadata.namespace);
    let until = Instant::now() + OUT_OF_SERVICE;
    while Instant::now() < until {
        let Ok(slices) = api.list(&path) else { return };
        let mut endpoints =
            slices.iter().filter_map(|slice| slice["endpoints"].as_array()).flatten();
        let serves = endpoints.any(|one| {
            one["targetRef"]["uid"] == pod.metadata.uid.as_str()
                && one["conditions"]["ready"] == true
        });
        if !serves {
            return;
        }
        std::thread::sleep(poll);
    }
}

/// Returns a patch that sets the images of `wanted`, the annotation with the previous state
/// (`None`: the annotation is removed), and labels, in one request.
pub(super) fn images_patch(
    pod: &Pod,
    wanted: &BTreeMap<String, String>,
    state: Option<&PodState>,
    labels: &BTreeMap<String, String>,
) -> Result<Value> {
    let mut operations = vec![test("/metadata/uid", &pod.metadata.uid)];
    for (name, to) in wanted {
        let place = place(pod, name)?;
        let at = format!("/spec/{}/{}", place.list, place.index);
        operations.push(test(&format!("{at}/name"), name));
        operations.push(test(&format!("{at}/image"), &place.spec.image));
        if place.spec.image != *to {
            operations.push(json!({"op": "replace", "path": format!("{at}/image"), "value": to}));
        }
    }
    match state {
        Some(state) => {
            let text = serde_json::to_string(state)
                .doing(|| "cannot write the Pod's state as JSON".to_owned())?;
            if pod.metadata.annotations.is_empty() {
                // Otherwise, a first annotation added concurrently would be lost.
                operations.push(test("/metadata/resourceVersion", &pod.metadata.resource_version));
                operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
            }
            operations.push(json!({"op": "add", "path": annotation(marks::STATE), "value": text}));
        }
        None if pod.metadata.annotations.contains_key(marks::STATE) => {
            operations.push(json!({"op": "remove", "path": annotation(marks::STATE)}));
        }
        None => {}
    }
    for (name, value) in labels {
        let path = format!("/metadata/labels/{}", escaped(name));
        operations.push(json!({"op": "add", "path": path, "value": value}));
    }
    Ok(Value::Array(operations))
}

/// Returns a patch of resources, for the `resize` subresource.
fn resources_patch(pod: &Pod, wanted: &BTreeMap<String, Resources>) -> Result<Value> {
    let mut operations = vec![test("/metadata/uid", &pod.metadata.uid)];
    for (name, to) in wanted {
        let place = place(pod, name)?;
        let at = format!("/spec/{}/{}", place.list, place.index);
        operations.push(test(&format!("{at}/name"), name));
        let from = &place.spec.resources;
        for (what, from, to) in
            [("requests", &from.requests, &to.requests), ("limits", &from.limits, &to.limits)]
        {
            for (resource, amount) in to {
                if from.get(resource) != Some(amount) {
                    let path = format!("{at}/resources/{what}/{}", escaped(resource));
                    operations.push(json!({"op": "replace", "path": path, "value": amount}));
                }
            }
        }
    }
    Ok(Value::Array(operations))
}

pub(super) fn test(path: &str, value: &str) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

/// Returns the JSON pointer to an annotation of an object.
pub(super) fn annotation(name: &str) -> String {
    format!("/metadata/annotations/{}", escaped(name))
}

fn place<'a>(pod: &'a Pod, name: &str) -> Result<Place<'a>> {
    pod.spec
        .container(name)
        .ok_or_else(|| Error::failed(format!("Pod {} has no container `{name}`", pod.full_name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_found_by_name_and_everything_is_tested() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "annotations": {"a": "b"}},
            "spec": {"containers": [{"name": "side", "image": "s:1"}, {"name": "app", "image": "a:1"}]},
        }))
        .unwrap();
        let wanted = BTreeMap::from([("app".to_owned(), "a:2".to_owned())]);
        let labels = BTreeMap::from([("controller-revision-hash".to_owned(), "x".to_owned())]);
        let patch = images_patch(&pod, &wanted, None, &labels).unwrap();
        assert_eq!(
            patch,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/spec/containers/1/name", "value": "app"},
                {"op": "test", "path": "/spec/containers/1/image", "value": "a:1"},
                {"op": "replace", "path": "/spec/containers/1/image", "value": "a:2"},
                {"op": "add", "path": "/metadata/labels/controller-revision-hash", "value": "x"},
            ])
        );
        assert!(
            images_patch(&pod, &BTreeMap::from([("no".into(), "x".into())]), None, &labels)
                .is_err()
        );
    }
}
