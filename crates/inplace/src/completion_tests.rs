//! Tests of `completion`: when a container counts as running its new image.

use serde_json::{Value, json};

use super::*;
use crate::target::Variant;

fn changed(verdict: Verdict) -> Changed {
    let before = Before {
        image: "r.io/app:1".to_owned(),
        image_id: "r.io/app@sha256:old".to_owned(),
        container_id: "containerd://old".to_owned(),
        restart_count: 3,
        to: "r.io/app:2".to_owned(),
        ..Before::default()
    };
    Changed {
        uid: "u".to_owned(),
        architecture: "amd64".to_owned(),
        state: PodState {
            id: "x".to_owned(),
            time: "2026-01-01T00:10:00Z".parse().unwrap(),
            containers: BTreeMap::from([("app".to_owned(), before)]),
        },
        stored: BTreeMap::from([("app".to_owned(), "r.io/app:2".to_owned())]),
        verdicts: BTreeMap::from([("app".to_owned(), (verdict, Role::Main))]),
    }
}

/// Returns a Pod that runs its new image, modified by `with`.
fn pod(with: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {"uid": "u", "name": "p", "generation": 2},
        "spec": {"containers": [{"name": "app", "image": "r.io/app:2"}]},
        "status": {
            "observedGeneration": 2,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{
                "name": "app", "image": "r.io/app:2", "imageID": "r.io/app@sha256:new",
                "containerID": "containerd://new", "ready": true, "restartCount": 4,
                "state": {"running": {"startedAt": "2026-01-01T00:10:05Z"}},
            }],
        },
    });
    with(&mut pod);
    serde_json::from_value(pod).unwrap()
}

fn targets(digest: &str) -> BTreeMap<String, Target> {
    let variant =
        Variant { manifest: digest.to_owned(), config: "sha256:config".to_owned(), size: 1 };
    let target = Target {
        digest: "sha256:index".to_owned(),
        platforms: BTreeMap::from([("amd64".to_owned(), variant)]),
    };
    BTreeMap::from([("r.io/app:2".to_owned(), target)])
}

fn judged(with: impl FnOnce(&mut Value)) -> Judgement {
    let changed = changed(Verdict::Change);
    judge(&changed, Some(&pod(with)), &targets("sha256:new"), Verify::Digest)
}

fn status(pod: &mut Value) -> &mut Value {
    &mut pod["status"]["containerStatuses"][0]
}

#[test]
fn a_new_container_of_the_right_image_that_is_ready_is_the_end() {
    assert_eq!(judged(|_| {}), Judgement::Ready);
    let named = |image: &str, id: &str| {
        let pod = pod(|pod| {
            status(pod)["image"] = json!(image);
            status(pod)["imageID"] = json!(format!("r.io/app@sha256:{id}"));
        });
        judge(&changed(Verdict::Change), Some(&pod), &BTreeMap::new(), Verify::Image)
    };
    assert_eq!(named("r.io/app:2", "new"), Judgement::Ready);
    assert_eq!(named("r.io/app:2", "old"), Judgement::Ready);
    // The runtime knows several names of the image.
    assert_eq!(named("sha256:1234", "new"), Judgement::Ready);
    assert_eq!(named("r.io/latest:3", "new"), Judgement::Ready);
    // It crashed before the kubelet saw the change.
    assert!(matches!(named("r.io/app:1", "old"), Judgement::Waiting(_)));
}

#[test]
fn everything_else_is_waited_for() {
    type Change = fn(&mut Value);
    let cases: [Change; 6] = [
        |pod| pod["metadata"]["generation"] = json!(3),
        |pod| status(pod)["containerID"] = json!("containerd://old"),
        |pod| status(pod)["containerID"] = json!(""),
        |pod| status(pod)["ready"] = json!(false),
        |pod| status(pod)["state"] = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}),
        |pod| status(pod)["state"] = json!({"waiting": {"reason": "ContainerCreating"}}),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        assert!(matches!(judged(case), Judgement::Waiting(_)), "{number}");
    }
    let unready = |pod: &mut Value| pod["status"]["conditions"][0]["status"] = json!("False");
    assert_eq!(judged(unready), Judgement::ContainersReady);
}

#[test]
fn what_does_not_mend_itself_is_a_failure() {
    type Change = fn(&mut Value);
    let cases: [Change; 5] = [
        |pod| status(pod)["restartCount"] = json!(5),
        |pod| status(pod)["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}}),
        |pod| {
            status(pod)["containerID"] = json!("containerd://old");
            status(pod)["state"] = json!({"waiting": {"reason": "ImagePullBackOff"}});
        },
        |pod| status(pod)["imageID"] = json!("r.io/app@sha256:other"),
        |pod| pod["spec"]["containers"][0]["image"] = json!("r.io/app:3"),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        assert!(matches!(judged(case), Judgement::Failed(_)), "{number}");
    }
    let other = |pod: &mut Value| pod["metadata"]["uid"] = json!("other");
    assert_eq!(judged(other), Judgement::Gone);
}

#[test]
fn a_crash_loop_of_the_former_image_is_no_failure_of_the_new_one() {
    let mut changed = changed(Verdict::Change);
    if let Some(before) = changed.state.containers.get_mut("app") {
        before.waiting = "CrashLoopBackOff".to_owned();
    }
    let pod = pod(|pod| {
        status(pod)["containerID"] = json!("containerd://old");
        status(pod)["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    });
    let judgement = judge(&changed, Some(&pod), &BTreeMap::new(), Verify::Image);
    assert!(matches!(judgement, Judgement::Waiting(_)), "{judgement:?}");
}

/// Case 69: the image ID does not change, but the container ID does.
#[test]
fn the_same_content_under_another_name_ends_with_the_restart() {
    let same = |id: &'static str| {
        pod(move |pod| {
            status(pod)["imageID"] = json!("r.io/app@sha256:old");
            status(pod)["containerID"] = json!(id);
            status(pod)["image"] = json!("r.io/app:1");
        })
    };
    let changed = changed(Verdict::RestartOnly);
    let judged = |pod: &Pod| judge(&changed, Some(pod), &targets("sha256:old"), Verify::Digest);
    assert_eq!(judged(&same("containerd://new")), Judgement::Ready);
    assert!(matches!(judged(&same("containerd://old")), Judgement::Waiting(_)));
}

/// Case 80: the stored image counts, not the requested one.
#[test]
fn an_image_that_admission_has_rewritten_is_compared_as_stored() {
    let mut changed = changed(Verdict::Change);
    changed.stored = BTreeMap::from([("app".to_owned(), "mirror.io/app:2".to_owned())]);
    let pod = pod(|pod| {
        pod["spec"]["containers"][0]["image"] = json!("mirror.io/app:2");
        status(pod)["image"] = json!("mirror.io/app:2");
    });
    let judgement = judge(&changed, Some(&pod), &targets("sha256:other"), Verify::Image);
    assert_eq!(judgement, Judgement::Ready);
}

#[test]
fn resources_are_had_when_the_kubelet_says_so() {
    let mut changed = changed(Verdict::Noop);
    if let Some(before) = changed.state.containers.get_mut("app") {
        before.resources = Some(crate::object::Resources::default());
    }
    let judged = |with: &dyn Fn(&mut Value)| {
        let pod = pod(|pod| {
            pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
            status(pod)["resources"] = json!({"requests": {"cpu": "1000m"}});
            with(pod);
        });
        judge(&changed, Some(&pod), &BTreeMap::new(), Verify::Image)
    };
    assert_eq!(judged(&|_| {}), Judgement::Ready);
    let old = |pod: &mut Value| status(pod)["resources"] = json!({"requests": {"cpu": "2"}});
    assert!(matches!(judged(&old), Judgement::Waiting(_)));
    let condition = |reason: &'static str| {
        move |pod: &mut Value| {
            pod["status"]["conditions"] = json!([
                {"type": "Ready", "status": "True"},
                {"type": "PodResizePending", "status": "True", "reason": reason},
            ]);
        }
    };
    assert!(matches!(judged(&condition("Deferred")), Judgement::Waiting(_)));
    assert!(matches!(judged(&condition("Infeasible")), Judgement::Failed(_)));
}
