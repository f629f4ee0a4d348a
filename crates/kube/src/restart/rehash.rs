//! Containers that would restart for no reason but another hash, and that keep running if the record
//! that kubelets compare is changed before the new kubelet starts.
//!
//! A container qualifies only if its present hash is exactly the one that the old kubelet computes of
//! the spec: only then is what runs what the spec says.

use crate::hash::{
    ContainerHash, Era, Pod, PodContainer, Resources, container_hash, has_unsettled_escape, json,
    json_hash,
};
use crate::restart::verdict::{Code, ContainerPrediction, Counts, HashChange, Verdict};
use crate::restart::{BothWays, KubeletChange, Prediction, RunningContainer};

impl BothWays {
    /// Predicts what happens if the records of containers whose hash alone would restart them are
    /// changed while no kubelet runs, and changed back before a rollback.
    pub fn rehash(&mut self, running: &[RunningContainer], pods: &[Pod], change: &KubeletChange) {
        for one in &mut self.forward.containers {
            let Some(container) = running.iter().find(|container| container.id == one.id) else {
                continue;
            };
            let Some(to) = new_hash(one, container, pods, change) else { continue };
            let from = container.hash_annotation.clone().unwrap_or_default();
            one.becomes_kept(format!("{}: its record is changed from {from} to {to}", one.reason));
            one.rehash = Some(HashChange { from: from.clone(), to: to.to_string() });
            let back = self.back.containers.iter_mut().find(|back| back.id == one.id);
            if let Some(back) = back.filter(|back| is_of_hash(back)) {
                back.becomes_kept(format!("its record is changed back from {to} to {from}"));
                back.rehash = Some(HashChange { from: to.to_string(), to: from });
            }
        }
        self.forward.count();
        self.back.count();
    }
}

impl ContainerPrediction {
    fn becomes_kept(&mut self, reason: String) {
        self.verdict = Verdict::Keep;
        self.code = Code::Rehashed;
        self.reason = reason;
    }
}

impl Prediction {
    pub(super) fn count(&mut self) {
        self.counts = Counts { ended: self.counts.ended, ..Counts::default() };
        for one in &self.containers {
            self.counts.count(one.verdict);
        }
    }

    /// Returns the containers whose records are changed, by id.
    pub fn rehashed(&self) -> impl Iterator<Item = (&str, &HashChange)> {
        self.containers.iter().filter_map(|one| Some((one.id.as_str(), one.rehash.as_ref()?)))
    }
}

/// Returns the hash that the new kubelet computes of a container that restarts for its hash alone.
fn new_hash(
    prediction: &ContainerPrediction,
    container: &RunningContainer,
    pods: &[Pod],
    change: &KubeletChange,
) -> Option<ContainerHash> {
    if !is_of_hash(prediction) || prediction.is_static {
        return None;
    }
    let pod = pods.iter().find(|pod| pod.uid == container.uid)?;
    let spec = pod.containers.iter().find(|spec| spec.name == container.container)?;
    let has: ContainerHash = container.hash_annotation.as_ref()?.parse().ok()?;
    if !is_of_spec(spec, has, change) || is_unsettled(spec, change) {
        return None;
    }
    let next = prediction.next_hash?;
    (next != has).then_some(next)
}

/// Whether nothing but another hash restarts a container, or may restart it: a sidecar that one kubelet
/// leaves alone keeps its old hash, and the next kubelet that compares sidecars would restart it.
fn is_of_hash(prediction: &ContainerPrediction) -> bool {
    match prediction.verdict {
        Verdict::Restart => matches!(prediction.code, Code::Formula131 | Code::Fields),
        Verdict::Unknown => prediction.code == Code::Sidecar,
        _ => false,
    }
}

/// Whether the old kubelet computes the present hash of the present spec: nobody has changed it since.
fn is_of_spec(spec: &PodContainer, has: ContainerHash, change: &KubeletChange) -> bool {
    let is_known = container_hash(&spec.spec, change.from).is_ok_and(|hash| hash == has);
    let is_json = change.from.era().is_ok_and(|era| era == Era::Json);
    is_known || (is_json && json_hash(spec.raw.get().as_bytes()) == has)
}

/// Whether the new hash is one of JSON that Go releases write differently.
fn is_unsettled(spec: &PodContainer, change: &KubeletChange) -> bool {
    match change.to.era() {
        Ok(Era::Json) => json(&spec.spec, change.to, Resources::Kept)
            .map_or(true, |json| has_unsettled_escape(&json)),
        Ok(Era::NameAndImage) => false,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::hash::Minor;
    use crate::restart::predict_both;
    use crate::restart::testing::{container, pod, started, static_pod, web};

    fn ways(pod: &Pod, running: &[RunningContainer], from: u32, to: u32) -> BothWays {
        let change = KubeletChange::new(Minor(from), Minor(to));
        let pods = std::slice::from_ref(pod);
        let mut ways = predict_both(running, pods, &change);
        ways.rehash(running, pods, &change);
        ways
    }

    #[test]
    fn another_formula_is_a_matter_of_the_record() {
        let pod = web(&container(&json!({"env": [{"name": "A", "value": "<b>"}]})));
        let running = started(&pod, 30);
        let told = ways(&pod, &running, 30, 31);
        let one = &told.forward.containers[0];
        assert_eq!((one.verdict, one.code), (Verdict::Keep, Code::Rehashed), "{one:?}");
        let next = started(&pod, 31)[0].hash_annotation.clone();
        let hash = one.rehash.as_ref().unwrap();
        assert_eq!(
            (Some(&hash.from), Some(&hash.to)),
            (running[0].hash_annotation.as_ref(), next.as_ref())
        );
        assert!(one.reason.contains(&hash.from) && one.reason.contains(&hash.to), "{}", one.reason);
        assert_eq!((told.forward.counts.keep, told.forward.counts.disturbed()), (1, 0));
        // An immediate rollback has the former value.
        let back = told.back.containers[0].rehash.as_ref().unwrap();
        assert_eq!((&back.from, &back.to), (&hash.to, &hash.from));
        assert_eq!(told.back.counts.disturbed(), 0);
        assert_eq!(told.forward.rehashed().count(), 1);
        // The same from the other side.
        let told = ways(&pod, &started(&pod, 31), 31, 30);
        let back = told.forward.containers[0].rehash.as_ref().unwrap();
        assert_eq!((&back.from, &back.to), (&hash.to, &hash.from));
    }

    #[test]
    fn sidecars_are_not_left_to_the_kubelet_after_the_next() {
        let sidecar = |image: &str| {
            let sidecar = container(&json!({"restartPolicy": "Always", "image": image}));
            let main = container(&json!({"name": "main"}));
            pod(
                r#""name":"web","namespace":"default","uid":"1-2""#,
                &format!(r#""initContainers":[{sidecar}],"containers":[{main}]"#),
            )
        };
        let pod = sidecar("proxy:1");
        let running = started(&pod, 30);
        let told = ways(&pod, &running, 30, 31);
        for (way, minors) in [(&told.forward, "forward"), (&told.back, "back")] {
            assert_eq!((way.counts.keep, way.counts.disturbed()), (2, 0), "{minors}");
            assert_eq!(way.rehashed().count(), 2, "{minors}");
        }
        // One whose image has changed is not touched.
        let told = ways(&sidecar("proxy:2"), &running, 30, 31);
        let one = told.forward.containers.iter().find(|one| one.container == "c").unwrap();
        assert_eq!((one.verdict, one.rehash.as_ref()), (Verdict::Unknown, None), "{one:?}");
    }

    #[test]
    fn a_definition_that_really_changed_is_never_hidden() {
        let pod = web(&container(&json!({})));
        // Another image than the one that runs, while the old kubelet was stopped.
        let other = web(r#"{"name":"c","image":"nginx:1.20"}"#);
        let told = ways(&other, &started(&pod, 30), 30, 31);
        let one = &told.forward.containers[0];
        assert_eq!((one.verdict, one.rehash.as_ref()), (Verdict::Restart, None));
        // Within one formula, another hash is another image.
        let told = ways(&other, &started(&pod, 33), 33, 34);
        let one = &told.forward.containers[0];
        assert_eq!((one.verdict, one.code), (Verdict::Restart, Code::ImageString));
        assert!(one.rehash.is_none());
        // What stays needs nothing.
        let told = ways(&pod, &started(&pod, 33), 33, 34);
        let one = &told.forward.containers[0];
        assert_eq!((one.verdict, one.rehash.as_ref()), (Verdict::Keep, None));
    }

    #[test]
    fn static_pods_and_unreadable_hashes_are_left_alone() {
        let pod = static_pod(&container(&json!({})));
        let told = ways(&pod, &started(&pod, 30), 30, 31);
        assert!(told.forward.containers[0].rehash.is_none());
        let pod = web(&container(&json!({})));
        let mut running = started(&pod, 30);
        running[0].hash_annotation = None;
        let told = ways(&pod, &running, 30, 31);
        assert!(told.forward.containers[0].rehash.is_none());
        assert_eq!(told.forward.containers[0].verdict, Verdict::Restart);
    }

    #[test]
    fn what_a_release_recreates_is_not_kept() {
        let pod = web(&container(&json!({})));
        let running = started(&pod, 30);
        let mut told = ways(&pod, &running, 30, 31);
        // If it is not rolled out after all, its hash must not restart it.
        told.forward.perhaps_recreates("kubeadm may roll it out", |_| true);
        let one = &told.forward.containers[0];
        assert_eq!((one.verdict, one.rehash.is_some()), (Verdict::Unknown, true));
        told.forward.recreates("kubeadm rolls it out", |_| true);
        assert_eq!(told.forward.containers[0].verdict, Verdict::Recreate);
        assert!(told.forward.containers[0].rehash.is_none());
    }
}
