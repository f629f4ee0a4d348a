//! Verdicts on hosts of every era, in both directions, and reports on wrong predictions.

use Verdict::{Keep, Recreate, Restart, Unknown};
use serde_json::{Value, json};

use super::*;
use crate::hash::{Resources, json_hash};
use crate::restart::testing::{container, inspect, pod, started, static_pod, web};
fn change(from: u32, to: u32) -> KubeletChange {
    KubeletChange::new(Minor(from), Minor(to))
}
fn one(pod: &Pod, from: u32, to: u32) -> ContainerPrediction {
    let running = started(pod, from);
    predict(&running, std::slice::from_ref(pod), &change(from, to)).containers.remove(0)
}
fn verdict(more: &Value, from: u32, to: u32) -> (Verdict, Code) {
    let found = one(&web(&container(more)), from, to);
    (found.verdict, found.code)
}

fn mounts() -> Value {
    json!({"volumeMounts": [{"name": "t", "mountPath": "/t"}]})
}

#[test]
fn formulas_change_at_their_boundaries_in_both_directions() {
    for (from, to, code) in [
        (30, 31, Code::Formula131),
        (28, 34, Code::Formula131),
        (31, 30, Code::Formula131),
        (16, 31, Code::Formula131),
    ] {
        assert_eq!(verdict(&mounts(), from, to), (Restart, code), "{from} to {to}");
    }
    // Nothing is known of kubelets that hash Go structs.
    let pod = web(&container(&mounts()));
    let running = started(&pod, 30);
    for (from, to) in [(15, 16), (15, 31), (30, 15)] {
        let found = predict(&running, std::slice::from_ref(&pod), &change(from, to));
        let found = &found.containers[0];
        assert_eq!((found.verdict, found.code), (Unknown, Code::OldRelease), "{from} to {to}");
    }
}

#[test]
fn within_an_era_containers_are_kept() {
    for (from, to) in
        [(16, 17), (22, 28), (29, 30), (30, 24), (31, 32), (31, 36), (33, 31), (30, 30)]
    {
        assert_eq!(verdict(&mounts(), from, to), (Keep, Code::SameHash), "{from} to {to}");
    }
}

#[test]
fn fields_that_only_one_kubelet_reads_restart() {
    // Set through an API server newer than the kubelet.
    let grace = json!({"livenessProbe": {"terminationGracePeriodSeconds": 5}});
    let found = one(&web(&container(&grace)), 20, 21);
    assert_eq!((found.verdict, found.code), (Restart, Code::Fields));
    assert!(
        found.reason.contains("livenessProbe.terminationGracePeriodSeconds"),
        "{}",
        found.reason
    );
    assert!(found.exact && found.next_hash.is_some());
    assert_eq!(verdict(&grace, 21, 20), (Restart, Code::Fields));
    assert_eq!(verdict(&grace, 21, 30), (Keep, Code::SameHash));
    assert_eq!(verdict(&grace, 16, 20), (Keep, Code::SameHash));
}

#[test]
fn what_cannot_be_reproduced_is_never_kept() {
    let pod = web(&container(&mounts()));
    let mut running = started(&pod, 28);
    for (annotation, code) in [
        (Some("deadbeef"), Code::NotReproducible),
        (Some("not hex"), Code::NoHash),
        (None, Code::NoHash),
    ] {
        running[0].hash_annotation = annotation.map(str::to_owned);
        for to in [27, 28, 29, 30] {
            let found = predict(&running, std::slice::from_ref(&pod), &change(28, to));
            assert_eq!((found.containers[0].verdict, found.containers[0].code), (Unknown, code));
            assert_eq!(found.counts.disturbed(), 1);
        }
    }
}

#[test]
fn fields_nobody_knows_are_kept_where_nothing_else_changes() {
    // A provider's kubelet with its own field, which the API server shows.
    let raw = r#"{"name":"c","image":"i","resources":{},"vendor":"x"}"#;
    let pod = web(raw);
    let mut running = started(&pod, 28);
    running[0].hash_annotation = Some(json_hash(raw.as_bytes()).to_string());
    let found = predict(&running, &[pod], &change(28, 29));
    assert_eq!(found.containers[0].verdict, Keep);
}

#[test]
fn a_newer_image_string_restarts_only_who_hashes_it_anew() {
    let old = started(&web(r#"{"name":"c","image":"nginx:1.18"}"#), 31);
    let now = web(r#"{"name":"c","image":"nginx:1.19"}"#);
    let found = predict(&old, &[now], &change(31, 32));
    assert_eq!(found.containers[0].code, Code::ImageString);
    assert!(found.containers[0].reason.contains("nginx:1.19"));
}

#[test]
fn a_hash_written_beforehand_keeps_the_container() {
    let pod = web(&container(&mounts()));
    let running = started(&pod, 31);
    assert_eq!(predict(&running, std::slice::from_ref(&pod), &change(30, 31)).counts.keep, 1);
    let mut declared = change(30, 31);
    declared.compatible = vec![Minor(30)];
    let found = predict(&started(&pod, 30), &[pod], &declared);
    assert_eq!(found.containers[0].code, Code::DeclaredCompatible);
}

#[test]
fn static_pods_follow_their_own_table() {
    let plain = static_pod(r#"{"name":"c","image":"i","resources":{}}"#);
    let probed = static_pod(
        r#"{"name":"c","image":"i","resources":{},"livenessProbe":{"timeoutSeconds":1}}"#,
    );
    for (from, to, of_plain, of_probed) in [
        (31, 32, Recreate, Recreate),
        (20, 21, Recreate, Recreate),
        (32, 31, Recreate, Recreate),
        (28, 29, Unknown, Recreate),
        (16, 17, Unknown, Unknown),
        (29, 29, Keep, Keep),
        (30, 31, Restart, Recreate),
        (36, 37, Unknown, Unknown),
    ] {
        assert_eq!(one(&plain, from, to).verdict, of_plain, "{from} to {to}");
        assert_eq!(one(&probed, from, to).verdict, of_probed, "{from} to {to}");
    }
    assert!(one(&plain, 31, 32).is_static);
    // Without a mirror: the uid changes for most manifests.
    let running = started(&plain, 28);
    let found = predict(&running, &[], &change(28, 29));
    assert_eq!((found.containers[0].verdict, found.containers[0].exact), (Recreate, false));
    // A manifest that sets its uid keeps it.
    let mut named = plain.clone();
    named.mirror_of = Some("etcd-of-mine".to_owned());
    assert_eq!(one(&named, 31, 32).verdict, Keep);
}

#[test]
fn containers_that_are_not_compared_are_kept() {
    let pod = pod(
        r#""name":"web","namespace":"default","uid":"u""#,
        r#""initContainers":[{"name":"i","image":"x"},{"name":"s","image":"x","restartPolicy":"Always"}],"containers":[{"name":"c","image":"x"}],"ephemeralContainers":[{"name":"e","image":"x"}]"#,
    );
    let running = started(&pod, 30);
    let at = |to| -> Vec<Verdict> {
        let found = predict(&running, std::slice::from_ref(&pod), &change(30, to));
        found.containers.iter().map(|c| c.verdict).collect()
    };
    assert_eq!(at(31), [Keep, Unknown, Restart, Keep]);
    assert_eq!(at(32), [Keep, Restart, Restart, Keep]);
    assert_eq!(at(29), [Keep, Keep, Keep, Keep]);
}

#[test]
fn ended_containers_are_counted_apart() {
    let pod = web(&container(&json!({})));
    let mut running = started(&pod, 30);
    running[0].running = false;
    let found = predict(&running, &[pod], &change(30, 31));
    assert_eq!((found.containers.len(), found.counts.ended), (0, 1));
}

#[test]
fn pods_that_go_or_are_not_seen_are_unknown() {
    let pod = web(&container(&json!({})));
    let running = started(&pod, 31);
    let code = |pods: &[Pod]| predict(&running, pods, &change(31, 32)).containers[0].code;
    assert_eq!(code(&[]), Code::NoSpec);
    let mut going = pod.clone();
    going.terminating = true;
    assert_eq!(code(&[going]), Code::Terminating);
    let mut another = pod;
    another.uid = "another".to_owned();
    assert_eq!(code(&[another]), Code::NoSpec);
}

#[test]
fn a_server_that_fills_in_fields_is_reckoned_with() {
    let limits = json!({"resources": {"limits": {"cpu": "1"}}});
    let pod = web(&container(&limits));
    let mut change = change(30, 30);
    change.server = Some((Minor(32), Minor(33)));
    let running = started(&pod, 30);
    let found = predict(&running, std::slice::from_ref(&pod), &change);
    assert_eq!(found.containers[0].code, Code::ServerDefaults);
    change.server = Some((Minor(31), Minor(32)));
    assert_eq!(predict(&running, &[pod], &change).counts.keep, 1);
}

#[test]
fn a_resize_that_only_some_kubelets_forgive_is_unknown() {
    let claims = json!({"resources": {"limits": {"cpu": "1"}, "claims": [{"name": "gpu"}]}});
    let pod = web(&container(&claims));
    let mut running = started(&pod, 25);
    let rest = crate::hash::json(&pod.containers[0].spec, Minor(27), Resources::LeftOut);
    running[0].hash_without_resources = Some(json_hash(&rest.unwrap()).to_string());
    let found = predict(&running, std::slice::from_ref(&pod), &change(25, 27));
    assert_eq!(found.containers[0].code, Code::Resize);
    let found = predict(&running, &[pod], &change(25, 26));
    assert_eq!(found.containers[0].code, Code::Fields);
}

#[test]
fn another_runtime_or_cgroup_driver_keeps_nothing() {
    let pod = web(&container(&json!({})));
    let running = started(&pod, 31);
    let mut change = change(31, 32);
    change.cgroup_driver = Some(("cgroupfs".to_owned(), "systemd".to_owned()));
    let found = predict(&running, std::slice::from_ref(&pod), &change);
    assert_eq!(found.containers[0].code, Code::CgroupDriver);
    assert!(found.others.iter().any(|text| text.contains("systemd")));
    change.runtime = Some(("docker".to_owned(), "containerd".to_owned()));
    let found = predict(&running, &[pod], &change);
    assert_eq!((found.containers[0].verdict, found.containers[0].code), (Recreate, Code::Runtime));
}

#[test]
fn both_ways_are_predicted() {
    let pods = [web(&container(&mounts()))];
    let both = |from, to| {
        let ways = predict_both(&started(&pods[0], from), &pods, &change(from, to));
        (ways.forward.containers[0].verdict, ways.back.containers[0].verdict)
    };
    assert_eq!(both(30, 31), (Restart, Restart));
    assert_eq!(both(31, 32), (Keep, Keep));
    assert_eq!(both(29, 30), (Keep, Keep));
    // What cannot be predicted for the upgrade cannot be predicted for the rollback.
    let mut running = started(&pods[0], 29);
    running[0].hash_annotation = Some("1".to_owned());
    let ways = predict_both(&running, &pods, &change(29, 30));
    assert_eq!((ways.forward.counts.unknown, ways.back.counts.unknown), (1, 1));
}

#[test]
fn a_prediction_is_held_against_what_happened() {
    let pods = [web(&container(&mounts())), static_pod(r#"{"name":"etcd","image":"e"}"#)];
    let before: Vec<RunningContainer> = pods.iter().flat_map(|pod| started(pod, 31)).collect();
    let prediction = predict(&before, &pods, &change(31, 32));
    let mut after = before.clone();
    after[1].id = "new".to_owned();
    after[1].uid = "fedcba9876543210fedcba9876543210".to_owned();
    let fine: Comparison = compare(&prediction, &after);
    assert_eq!((fine.agreed, fine.mismatches.len()), (2, 0));
    // A container that has ended is not running, even if it has the same id.
    after[0].running = false;
    let ended = compare(&prediction, &after);
    assert_eq!(ended.mismatches[0].actual, Actual::Gone);
    after[0].running = true;
    after[0].id = "other".to_owned();
    after[1].uid = before[1].uid.clone();
    let wrong = compare(&prediction, &after);
    let actual: Vec<Actual> = wrong.mismatches.iter().map(|one: &Mismatch| one.actual).collect();
    assert_eq!(actual, [Actual::Restarted, Actual::Restarted]);
    assert_eq!(compare(&prediction, &[]).mismatches.len(), 2);
    // The prediction survives serialization to the journal.
    let text = serde_json::to_string(&prediction).unwrap();
    assert_eq!(serde_json::from_str::<Prediction>(&text).unwrap(), prediction);
}

#[test]
fn what_crictl_says_is_read() {
    let pod = web(&container(&json!({})));
    let mut answer = inspect(&pod, "0123456789abcdef0123456789abcdef", "c", "e449eef9");
    let read = running(std::slice::from_ref(&answer)).unwrap().remove(0);
    assert!(read.running && read.is_static);
    assert_eq!(read.hash_annotation.as_deref(), Some("e449eef9"));
    answer["status"]["state"] = json!("CONTAINER_EXITED");
    assert!(!running(std::slice::from_ref(&answer)).unwrap()[0].running);
    // A container that no kubelet started.
    answer["status"]["labels"] = Value::Null;
    assert!(running(std::slice::from_ref(&answer)).unwrap().is_empty());
    assert!(running(&[json!({"status": {}})]).is_err());
    assert!(running(&[json!("x")]).is_err());
}
