//! Tests of whole runs; the numbers refer to the hard cases for in-place changes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::plan::{PodPlan, Verdict};
use crate::request::{Selection, TemplatePolicy};
use crate::{drift, marks, pre_pull::Puller, rollback, testing::*, world};
use crate::{journal, journal::Phase};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_kube::api::{Answer, Api, ApiError, PatchKind};
use imgctl_kube::testing::stand_in::StandIn;

const WEB: &str = "/apis/apps/v1/namespaces/shop/deployments/web";
const SET: &str = "/apis/apps/v1/namespaces/shop/replicasets/web-1";

fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/shop/pods/{name}")
}

fn uids(api: &StandIn) -> Vec<String> {
    let pods = api.list("/api/v1/namespaces/shop/pods").unwrap();
    pods.iter().map(|pod| pod["metadata"]["uid"].to_string()).collect()
}

fn deployment_is_well(api: &StandIn, image: &str) {
    let web = api.peek(WEB).unwrap();
    assert_eq!(web["spec"]["template"]["spec"]["containers"][0]["image"], image);
    assert_ne!(web["spec"]["paused"], true);
    assert!(web["status"]["surprise"].is_null(), "a rollout would have begun");
    assert!(web["metadata"]["annotations"][marks::RESTORE].is_null());
    assert!(web["metadata"]["annotations"][marks::DRIFT].is_null());
    assert_eq!(api.peek(SET).unwrap()["spec"]["template"]["spec"]["containers"][0]["image"], image);
}

/// 67, 72, 78: Pods stay, containers restart, the template follows; containers are selected by
/// name.
#[test]
fn a_deployment_changes_without_new_pods() {
    let (api, directory) = (cluster(4), tempfile::tempdir().unwrap());
    let before = uids(&api);
    let summary = apply(&api, &request(web(), "r.io/app:2"), "x", directory.path()).unwrap();
    assert_eq!((summary.changed, summary.synced), (4, 1));
    assert_eq!(uids(&api), before);
    assert_eq!(images(&api), ["r.io/app:2"; 4]);
    let pod = api.peek(&pod_path("web-0")).unwrap();
    assert_eq!(pod["spec"]["containers"][0]["image"], "r.io/side:1");
    assert_eq!(pod["status"]["containerStatuses"][1]["restartCount"], 1);
    // The journal says where each Pod is, and what its containers did.
    let read = journal::read(&directory.path().join("x.jsonl")).unwrap();
    assert_eq!(read.problems, [""; 0]);
    let ready: Vec<_> = read
        .records
        .iter()
        .filter_map(|record| match record {
            journal::Record::Pod { phase: Phase::Ready, node, batch, after, .. } => Some((
                node.as_str(),
                *batch,
                (after["app"].restarts, after["side"].restarts, after["app"].is_running),
            )),
            _ => None,
        })
        .collect();
    assert_eq!((ready.len(), ready[0]), (4, ("n1", Some(1), (1, 0, true))));
    assert!(ready[1..].iter().all(|one| one.1 > Some(1) && one.2 == (1, 0, true)), "{ready:?}");
    deployment_is_well(&api, "r.io/app:2");
}

/// 72: the normal case of a rollback, an older ReplicaSet that has the template.
#[test]
fn a_former_replica_set_of_the_same_template_goes_first() {
    let (api, directory) = (cluster(2), tempfile::tempdir().unwrap());
    api.add(replica_set("old", "old-uid", 0, "r.io/app:0"));
    apply(&api, &request(web(), "r.io/app:0"), "x", directory.path()).unwrap();
    deployment_is_well(&api, "r.io/app:0");
    assert!(api.peek("/apis/apps/v1/namespaces/shop/replicasets/old").is_none());
}

/// 68: only the canary gets a bad image, and then its former image again.
#[test]
fn a_bad_image_stops_at_the_canary() {
    let (api, directory) = (cluster(4), tempfile::tempdir().unwrap());
    let error = apply(&api, &request(web(), "r.io/app:bad"), "x", directory.path()).unwrap_err();
    assert!(error.to_string().contains("ImagePullBackOff"), "{error}");
    assert!(error.to_string().contains("shop/web-0"), "{error}");
    assert_eq!(images(&api), ["r.io/app:1"; 4]);
    let patched: std::collections::BTreeSet<String> =
        api.writes().iter().map(|one| one.path.clone()).collect();
    assert_eq!(patched.into_iter().collect::<Vec<_>>(), [pod_path("web-0")]);
    let pod = api.peek(&pod_path("web-0")).unwrap();
    assert_eq!(pod["status"]["conditions"][0]["status"], "True");
    let past = journal::past(directory.path(), "x").unwrap().unwrap();
    assert!(past.phases.values().eq([&Phase::Restored]));
    deployment_is_well(&api, "r.io/app:1");
}

/// 69: the same content under another name.
#[test]
fn the_same_content_under_another_name_comes_to_its_end() {
    let (api, directory) = (cluster(2), tempfile::tempdir().unwrap());
    let request = request(web(), "r.io/app:same");
    let plan = planned(&api, &request, &desired(&request), &[], false);
    assert!(plan.pods.iter().all(|pod| pod.verdict == Verdict::RestartOnly));
    let summary = apply(&api, &request, "x", directory.path()).unwrap();
    assert_eq!(summary.changed, 2);
}

/// 70: no change is needed, and no request is sent.
#[test]
fn the_same_name_sends_nothing() {
    let (api, directory) = (cluster(2), tempfile::tempdir().unwrap());
    let summary = apply(&api, &request(web(), "r.io/app:1"), "x", directory.path()).unwrap();
    assert_eq!(summary.changed, 0);
    assert!(api.writes().is_empty(), "{:?}", api.writes());
}

struct Pulls(Mutex<Vec<String>>, bool);

impl Puller for Pulls {
    fn pull(&self, pod: &PodPlan, image: &str, room: u64) -> Result<Vec<String>> {
        assert_eq!(room, 25);
        self.0.lock().unwrap().push(format!("{} {image}", pod.node));
        if self.1 {
            Ok(vec![target(image).digest])
        } else {
            Err(Error::failed("no route to the registry"))
        }
    }
}

/// 71: a Node that cannot pull the image prevents all changes.
#[test]
fn a_failed_pull_changes_nothing_anywhere() {
    let (api, directory) = (cluster(3), tempfile::tempdir().unwrap());
    let request = request(web(), "r.io/app:2");
    let (desired, ids) = (desired(&request), ["x".to_owned()]);
    let plan = planned(&api, &request, &desired, &ids, false);
    for works in [false, true] {
        let pulls = Pulls(Mutex::default(), works);
        let outcome = carry_out(&api, &plan, &desired, &ids, "x", directory.path(), Some(&pulls));
        assert_eq!(*pulls.0.lock().unwrap(), ["n1 r.io/app:2"], "once for each Node");
        if works {
            assert_eq!(outcome.unwrap().changed, 3);
        } else {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("n1") && error.contains("no route"), "{error}");
            assert!(api.writes().is_empty());
        }
    }
}

/// 74: a template that is kept is recorded and reported.
#[test]
fn a_template_that_is_kept_is_reported_as_drift() {
    let (api, directory) = (cluster(2), tempfile::tempdir().unwrap());
    assert!(drift::report(&api, None).unwrap().is_well());
    let mut request = request(web(), "r.io/app:2");
    request.template = TemplatePolicy::Refuse;
    assert_eq!(apply(&api, &request, "x", directory.path()).unwrap_err().kind(), Kind::CheckFailed);
    request.template = TemplatePolicy::Keep;
    apply(&api, &request, "x", directory.path()).unwrap();
    let report = drift::report(&api, Some("shop")).unwrap();
    assert_eq!(report.workloads.len(), 1);
    assert_eq!(report.workloads[0].kept.as_deref(), Some("x"));
    assert_eq!(report.workloads[0].containers[0].pods["r.io/app:2"], 2);
    // The same request with sync resolves the drift; nothing restarts.
    request.template = TemplatePolicy::Sync;
    let summary = apply(&api, &request, "y", directory.path()).unwrap();
    assert_eq!((summary.changed, summary.synced), (0, 1));
    assert!(drift::report(&api, None).unwrap().is_well());
    deployment_is_well(&api, "r.io/app:2");
}

fn budget(min: u64) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "shop"},
        "spec": {"minAvailable": min, "selector": {"matchLabels": {"app": "web"}}},
    })
}

/// 75: the API would allow it.
#[test]
fn a_budget_that_never_allows_anything_refuses_the_plan() {
    let (api, directory) = (cluster(3), tempfile::tempdir().unwrap());
    api.add(budget(3));
    let error = apply(&api, &request(web(), "r.io/app:2"), "x", directory.path()).unwrap_err();
    assert!(error.to_string().contains("PodDisruptionBudget shop/b"), "{error}");
    assert!(api.writes().is_empty());
    api.add(budget(2));
    apply(&api, &request(web(), "r.io/app:2"), "x", directory.path()).unwrap();
}

/// 76: a Pod created during the run has the former image and is found.
#[test]
fn a_pod_that_comes_meanwhile_is_changed_too() {
    let (api, directory) = (cluster(2), tempfile::tempdir().unwrap());
    let added = AtomicUsize::new(0);
    api.react(move |api, request| {
        if request.is_write() && added.fetch_add(1, Ordering::SeqCst) == 1 {
            api.add(pod("web-2", "ReplicaSet", "rs-uid", "r.io/app:1"));
        }
    });
    let summary = apply(&api, &request(web(), "r.io/app:2"), "x", directory.path()).unwrap();
    assert_eq!(summary.changed, 3);
    assert_eq!(images(&api), ["r.io/app:2"; 3]);
}

/// 77: a concurrent edit happens first.
#[test]
fn a_pod_that_somebody_edits_is_looked_at_again() {
    let (api, directory) = (cluster(3), tempfile::tempdir().unwrap());
    let request = request(web(), "r.io/app:2");
    let (desired, ids) = (desired(&request), ["x".to_owned()]);
    let plan = planned(&api, &request, &desired, &ids, false);
    // A different field of another Pod changes between the read and the patch: the patch is
    // retried.
    let failed = AtomicUsize::new(0);
    api.react(move |api, request| {
        if request.verb == "get"
            && request.path.ends_with("/web-0")
            && failed.fetch_add(1, Ordering::SeqCst) == 0
        {
            api.change(&pod_path("web-0"), |pod| {
                pod["metadata"]["annotations"] = json!({"a": "b"});
            });
        }
    });
    api.change(&pod_path("web-1"), |pod| {
        pod["spec"]["containers"][1]["image"] = json!("r.io/app:hotfix");
    });
    let error = carry_out(&api, &plan, &desired, &ids, "x", directory.path(), None).unwrap_err();
    assert_eq!(error.kind(), Kind::CheckFailed);
    assert!(error.to_string().contains("shop/web-1"), "{error}");
    assert_eq!(images(&api), ["r.io/app:2", "r.io/app:hotfix", "r.io/app:2"]);
    let web_0 = api.peek(&pod_path("web-0")).unwrap();
    assert_eq!(web_0["metadata"]["annotations"]["a"], "b", "nobody's change is lost");
    let codes: Vec<u16> = api.writes().iter().map(|one| one.code).collect();
    assert!(codes.contains(&422), "{codes:?}");
    // The template applies to all Pods, so it was left alone.
    let web = api.peek(WEB).unwrap();
    assert_eq!(web["spec"]["template"]["spec"]["containers"][0]["image"], "r.io/app:1");
}

/// 79
#[test]
fn sidecars_and_init_containers_are_asked_for() {
    let (api, directory) = (cluster(0), tempfile::tempdir().unwrap());
    let mut bare = pod("bare-0", "", "", "r.io/app:1");
    bare["spec"]["initContainers"] = json!([
        {"name": "prepare", "image": "r.io/p:1"},
        {"name": "proxy", "image": "r.io/x:1", "restartPolicy": "Always"},
    ]);
    api.add(bare);
    let selection =
        Selection::Pods { namespace: "shop".to_owned(), names: vec!["bare-0".to_owned()] };
    let mut request = request(selection, "r.io/app:2");
    request.set.insert("prepare".to_owned(), "r.io/p:2".to_owned());
    let refused = |request: &crate::request::Request| {
        let plan = planned(&api, request, &desired(request), &[], false);
        (plan.problems.len(), plan.pods[0].reason.clone().unwrap_or_default())
    };
    assert!(refused(&request).1.contains("--include-init"));
    request.include_init = true;
    assert_eq!(refused(&request).0, 0);
    let plan = planned(&api, &request, &desired(&request), &[], false);
    assert!(plan.notes.iter().any(|note| note.contains("no effect until")), "{:?}", plan.notes);
    apply(&api, &request, "x", directory.path()).unwrap();
    request.set.insert("proxy".to_owned(), "r.io/x:2".to_owned());
    assert!(refused(&request).1.contains("--include-sidecars"));
}

#[test]
fn what_cannot_be_changed_is_refused_with_its_reason() {
    let reason = |change: &dyn Fn(&StandIn)| {
        let api = cluster(2);
        change(&api);
        let request = request(web(), "r.io/app:2");
        let plan = planned(&api, &request, &desired(&request), &[], false);
        let reasons: Vec<String> = plan.problems.iter().map(|one| one.reason.clone()).collect();
        reasons.join("; ")
    };
    assert_eq!(reason(&|_| {}), "");
    let said = reason(&|api| {
        api.change(WEB, |web| web["status"]["updatedReplicas"] = json!(1));
    });
    assert!(said.contains("rollout is in progress"), "{said}");
    let said = reason(&|api| {
        api.change(&pod_path("web-1"), |pod| {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        });
    });
    assert!(said.contains("static"), "{said}");
    let said = reason(&|api| {
        api.change(&pod_path("web-1"), |pod| {
            pod["spec"]["containers"][1]["name"] = json!("other");
        });
    });
    assert!(said.contains("no container `app`"), "{said}");
    let said = reason(&|api| {
        api.change(SET, |set| {
            set["metadata"]["ownerReferences"][0] = json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "r", "uid": "r-uid", "controller": true});
        });
        api.change(WEB, |web| web["metadata"]["uid"] = json!("d-uid"));
        api.add(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-9", "namespace": "shop", "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d-uid", "controller": true}]}, "spec": {"containers": [{"name": "app", "image": "r.io/app:1"}]}, "status": {"phase": "Running"}}));
    });
    // Only the Deployment's own Pods are selected: the others now belong to the Rollout.
    assert_eq!(said, "", "{said}");
    let api = cluster(1);
    let request = request(web(), "r.io/app:2");
    let plan = planned(&api, &request, &desired(&request), &[], false);
    assert!(plan.problems[0].reason.contains("single replica"));
}

/// Fails permanently after a number of writes, like a killed process.
struct Dying<'a> {
    api: &'a StandIn,
    left: AtomicUsize,
}

impl Dying<'_> {
    fn alive(&self) -> Answer<()> {
        match self.left.load(Ordering::SeqCst) {
            0 => Err(dead()),
            _ => Ok(()),
        }
    }

    fn write<T>(&self, write: impl FnOnce() -> Answer<T>) -> Answer<T> {
        self.alive()?;
        let done = write();
        self.left.fetch_sub(1, Ordering::SeqCst);
        // The write succeeds, but the response is lost.
        self.alive()?;
        done
    }
}

fn dead() -> ApiError {
    ApiError { code: 0, message: "killed".to_owned(), ..ApiError::default() }
}

impl Api for Dying<'_> {
    fn raw(&self, path: &str) -> Answer<Vec<u8>> {
        self.alive().and_then(|()| self.api.raw(path))
    }
    fn get(&self, path: &str) -> Answer<Value> {
        self.alive().and_then(|()| self.api.get(path))
    }
    fn list(&self, path: &str) -> Answer<Vec<Value>> {
        self.alive().and_then(|()| self.api.list(path))
    }
    fn create(&self, path: &str, object: &Value) -> Answer<Value> {
        self.write(|| self.api.create(path, object))
    }
    fn replace(&self, path: &str, object: &Value) -> Answer<Value> {
        self.write(|| self.api.replace(path, object))
    }
    fn patch(&self, path: &str, kind: PatchKind, patch: &Value) -> Answer<Value> {
        self.write(|| self.api.patch(path, kind, patch))
    }
    fn delete(&self, path: &str, options: &Value) -> Answer<Value> {
        self.write(|| self.api.delete(path, options))
    }
}

/// 73: killed after each write in turn and resumed by its id: everything is done once, and nothing
/// stays paused. Or undone instead.
#[test]
fn a_run_that_is_killed_anywhere_is_taken_up_or_undone() {
    for undo in [false, true] {
        let mut cut = 0;
        loop {
            cut += 1;
            let (api, directory) = (cluster(3), tempfile::tempdir().unwrap());
            api.add(replica_set("old", "old-uid", 0, "r.io/app:2"));
            let before = uids(&api);
            let request = request(web(), "r.io/app:2");
            let dying = Dying { api: &api, left: AtomicUsize::new(cut) };
            let first = apply(&dying, &request, "x", directory.path());
            if first.is_ok() {
                assert!(cut > 6, "{cut}");
                break;
            }
            if undo {
                let past = journal::past(directory.path(), "x").unwrap();
                let world = world::observe(&api, &request.selection).unwrap();
                let former = rollback::former(&world, past.as_ref(), Some("x")).unwrap();
                let mut back = request.clone();
                back.set.clone_from(&former.desired.common);
                let ids = ["x".to_owned(), "y".to_owned()];
                let plan = planned(&api, &back, &former.desired, &ids, true);
                carry_out(&api, &plan, &former.desired, &ids, "y", directory.path(), None)
                    .unwrap_or_else(|error| panic!("cut {cut}: {error}"));
                assert_eq!(images(&api), ["r.io/app:1"; 3], "cut {cut}");
                deployment_is_well(&api, "r.io/app:1");
            } else {
                apply(&api, &request, "x", directory.path())
                    .unwrap_or_else(|error| panic!("cut {cut}: {error}"));
                assert_eq!(images(&api), ["r.io/app:2"; 3], "cut {cut}");
                deployment_is_well(&api, "r.io/app:2");
                for number in 0..3 {
                    let pod = api.peek(&pod_path(&format!("web-{number}"))).unwrap();
                    assert_eq!(
                        pod["status"]["containerStatuses"][1]["restartCount"], 1,
                        "cut {cut}"
                    );
                }
            }
            assert_eq!(uids(&api), before);
        }
    }
}

#[test]
fn another_run_does_not_meddle_with_a_template_that_is_half_done() {
    let (api, directory) = (cluster(2), tempfile::tempdir().unwrap());
    let dying = Dying {
        api: &api,
        // Two Pods, then the Deployment is paused.
        left: AtomicUsize::new(3),
    };
    apply(&dying, &request(web(), "r.io/app:2"), "x", directory.path()).unwrap_err();
    assert_eq!(api.peek(WEB).unwrap()["spec"]["paused"], true);
    let error = apply(&api, &request(web(), "r.io/app:3"), "y", directory.path()).unwrap_err();
    assert!(error.to_string().contains("run x"), "{error}");
    let report = drift::report(&api, None).unwrap();
    assert_eq!(report.workloads[0].unfinished.as_deref(), Some("x"));
}
