//! Pages of runs and plans, and of hostile names, in a browser.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{browse, everywhere, heard, images, is_clean};
use crate::common::{IMGCTL, TestEnv, repository};

/// Runs `imgctl simulate` and copies its journal to where `report run` looks for journals.
fn simulated(env: &TestEnv, more: &[&str]) {
    let directory = env.path("simulated");
    std::fs::create_dir_all(&directory).unwrap();
    let mut command = Command::new(IMGCTL);
    command.env_clear().env("HOME", &directory).args(["--no-sync", "--json", "--root"]);
    command.arg(directory.join("store")).args(["simulate", "--durable", "--hosts", "4"]);
    command.args(["--masters", "2", "--dir"]).arg(&directory).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap();
    let journals = env.path("runtime/c/journal");
    std::fs::create_dir_all(&journals).unwrap();
    for entry in std::fs::read_dir(directory.join("state/journal")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), journals.join(entry.file_name())).unwrap();
    }
}

/// Runs `imgctl --json report run` on the cluster `c`, and also writes its page.
fn report_run(env: &TestEnv, page: &Path) -> Value {
    run_report(env, page, &[])
}

/// The same of the run that `more` names.
fn run_report(env: &TestEnv, page: &Path, more: &[&str]) -> Value {
    let mut command = env.command(["--json", "report", "run", "--cluster", "c", "-o"]);
    command.arg(page).args(more).env("SEALOS_RUNTIME_ROOT", env.path("runtime"));
    crate::common::Ran::new(command).ok().json()
}

/// The journal of an in-place update of five Pods on two Nodes, one of which fails and gets its former image
/// back, with `words` where names and messages are.
pub(super) fn in_place(words: &[String]) -> String {
    let word = |number: usize| words[number % words.len()].as_str();
    let time = |second: usize| format!("2026-01-02T10:00:{second:02}Z");
    let name = |pod: usize| format!("web-{pod} {}", word(pod));
    let node = |pod: usize| format!("node-{} {}", pod % 2, word(pod % 2));
    let pod = |number: usize| {
        json!({"namespace": "shop", "name": name(number), "uid": number.to_string(), "group": "g", "node": node(number),
            "architecture": "amd64", "ready": true, "verdict": "CHANGE", "stopSeconds": 30, "containers": [
                {"name": "app", "role": "main", "from": "web:v1", "imageId": "i", "to": word(7), "verdict": "CHANGE"}]})
    };
    let plan = json!({
        "schema": 1, "digest": "d", "server": word(1), "images": {}, "problems": [], "notes": [word(2)],
        "groups": {"g": {"kind": "Deployment", "namespace": "shop", "name": "web", "desired": 5, "ready": 5, "maxUnavailable": 1,
            "budgets": [], "template": {}, "consequence": word(3)}},
        "request": {"selection": {"by": "workload", "kind": "Deployment", "namespace": "shop", "name": "web"}, "set": {"app": word(7)},
            "template": "sync", "batches": ["1", "100%"], "maxUnavailable": "1", "verify": "image"},
        "pods": (0..5).map(pod).collect::<Vec<_>>(), "batches": [["0"], ["1", "2", "3", "4"]]});
    let mut lines = vec![
        json!({"record": "start", "time": time(0), "version": "1", "plan": plan, "controller": word(0)}),
    ];
    let mut tell = |second: usize, pod: usize, phase: &str, more: Value| {
        let mut record = json!({"record": "pod", "time": time(second), "uid": pod.to_string(), "pod": format!("shop/{}", name(pod)),
            "phase": phase, "node": node(pod), "batch": if pod == 0 { 1 } else { 2 }});
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        lines.push(record);
    };
    let after = |app: u64, side: u64, running: bool| {
        json!({"after": {"app": {"restarts": app, "running": running, "imageID": word(4)},
            "side": {"restarts": side, "running": true, "imageID": "s"}}})
    };
    for pod in 0..4 {
        tell(pod * 7 + 1, pod, "intent", json!({}));
        tell(pod * 7 + 2, pod, "patched", json!({}));
        if pod < 3 {
            tell(pod * 7 + 6, pod, "ready", after(1, u64::from(pod == 2), true));
        }
    }
    let mut failed = after(0, 0, false);
    failed["message"] = format!("Pod shop/web-3: `app`: ImagePullBackOff {}", word(5)).into();
    tell(50, 3, "failed", failed);
    tell(55, 3, "restored", json!({}));
    lines.push(
        json!({"record": "finish", "time": time(56), "outcome": "failed", "message": word(6)}),
    );
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_run_is_described_when_done_killed_or_torn() {
    let env = TestEnv::new();
    let page = env.path("run.html");
    simulated(&env, &["--takes", "1", "--die-after", "30"]);
    let killed = report_run(&env, &page);
    assert_eq!(killed["run"]["state"], "unfinished");
    assert_eq!(killed["problems"], json!([]));

    simulated(&env, &["--takes", "1"]);
    let whole = report_run(&env, &page);
    assert_eq!(whole["run"]["state"], "done");
    assert_eq!(whole["sessions"].as_array().unwrap().len(), 2);
    let moved: Vec<&Value> = whole["links"].as_array().unwrap().iter().collect();
    assert!(moved.iter().any(|link| link["from"] == "controller"), "{moved:?}");
    let mut works = vec![everywhere("run", &page)];

    // Cut in the middle of a record, with a record of a newer version before.
    let journal = std::fs::read_dir(env.path("runtime/c/journal")).unwrap().next().unwrap();
    let journal = journal.unwrap().path();
    let text = std::fs::read_to_string(&journal).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let torn =
        format!("{}\n{{\"record\":\"weather\"}}\n{}", lines[..20].join("\n"), &lines[20][..30]);
    std::fs::write(&journal, torn).unwrap();
    let torn = env.path("torn.html");
    let report = report_run(&env, &torn);
    let problems = report["problems"].to_string();
    assert!(problems.contains("weather") && problems.contains("in the middle"), "{problems}");
    works.push(everywhere("run-torn", &torn));

    let journal = in_place(&["x".to_owned()]);
    env.write("runtime/c/inplace/web-v2.jsonl", &journal);
    let updated = env.path("updated.html");
    let report = run_report(&env, &updated, &["web-v2"]);
    assert_eq!(
        (&report["run"]["state"], &report["run"]["verb"]),
        (&json!("failed"), &json!("inplace apply"))
    );
    let nodes = report["restarts"].as_array().unwrap();
    let told = |node: &Value| {
        (
            node["asPredicted"].as_u64().unwrap(),
            node["agreed"].as_array().unwrap().len(),
            node["others"].as_array().unwrap().len(),
        )
    };
    assert_eq!(nodes.iter().map(told).collect::<Vec<_>>(), [(3, 2, 1), (3, 1, 1)], "{report}");
    assert_eq!(nodes[1]["others"][0]["actual"], "gone");
    works.push(everywhere("run-in-place", &updated));
    // The newest run is that whose journal changed last.
    assert_eq!(report_run(&env, &env.path("last.html"))["run"]["id"], "web-v2");

    let Some(pages) = browse(&env, &works) else { return };
    pages.iter().for_each(is_clean);
    let headings = heard(&pages[2], "heading");
    for heading in
        ["Overview", "Failures", "Timeline", "Predicted and actual restarts", "Containers"]
    {
        assert!(headings.contains(&heading), "{heading}: {headings:?}");
    }
    assert!(heard(&pages[2], "rowheader").contains(&"shop/web-2 x side"), "{:?}", pages[2]);
    let headings = heard(&pages[0], "heading");
    for heading in ["Overview", "Timeline", "Steps", "Transfers", "Commands"] {
        assert!(headings.contains(&heading), "{heading}: {headings:?}");
    }
    let lanes = heard(&pages[0], "image");
    assert!(lanes.iter().any(|lane| lane.contains("steps, busy for")), "{lanes:?}");
    assert!(pages[1]["tree"].to_string().contains("This report is not complete."));
}

#[test]
fn plans_and_a_cluster_are_described() {
    let env = TestEnv::new();
    let step = |host: &str| {
        json!({"host": host, "steps": [{"id": format!("files/{host}/sync"), "says": [format!("sync {host}")],
            "once": false, "bytes": 1000}]})
    };
    let plan = json!({
        "verb": "reset", "cluster": "c", "notes": ["a note"],
        "phases": [{"phase": "files", "order": "parallel",
            "hosts": [step("10.0.0.1:22"), step("10.0.0.2:22")]}],
    });
    let file = env.write("plan.json", serde_json::to_vec(&plan).unwrap());
    let page = env.path("plan.html");
    let report = env
        .imgctl([
            "--json".as_ref(),
            "report".as_ref(),
            "plan".as_ref(),
            file.as_os_str(),
            "-o".as_ref(),
            page.as_os_str(),
        ])
        .ok()
        .json();
    assert_eq!(report["hosts"][1]["host"], "10.0.0.2:22");
    assert!(report["irreversible"].to_string().contains("Only a backup"), "{report}");
    // The plan of an in-place update, as its journal has it.
    let journal = in_place(&["x".to_owned()]);
    let start: Value = serde_json::from_str(journal.lines().next().unwrap()).unwrap();
    let mut works = vec![everywhere("plan", &page)];
    for (name, verb, data) in
        [("plan-in-place", "plan", start["plan"].clone()), ("cluster", "render", cluster())]
    {
        let file = env.write(format!("{name}.json"), data.to_string());
        let page = env.path(format!("{name}.html"));
        let words = ["report", verb].map(AsRef::as_ref);
        let more = [file.as_os_str(), "-o".as_ref(), page.as_os_str()];
        env.imgctl(words.into_iter().chain(more)).ok();
        works.push(everywhere(name, &page));
    }
    let Some(pages) = browse(&env, &works) else { return };
    pages.iter().for_each(is_clean);
    for (page, role, expected) in [
        (1, "rowheader", "shop/Deployment/web"),
        (1, "heading", "Restarts of containers"),
        (2, "heading", "Certificates"),
        (2, "rowheader", "10.0.0.12 node-12"),
        (2, "rowheader", "20260102T030405.678Z-upgrade-1a2b3c4d"),
    ] {
        let found = heard(&pages[page], role);
        assert!(found.contains(&expected), "{expected}: {found:?}");
    }
    let tree = pages[0]["tree"].to_string();
    assert!(tree.contains("sync HOST") && tree.contains("2 hosts"), "{tree}");
}

/// The data of a cluster's report.
fn cluster() -> Value {
    let host = |number: u8, healthy: bool| {
        json!({"host": format!("10.0.0.{number}"), "roles": [if number < 12 { "master" } else { "node" }], "reachable": healthy,
            "healthy": healthy, "hostname": format!("node-{number}"), "architecture": "amd64", "freeBytes": 41_000_000_000_u64,
            "system": "Debian GNU/Linux 12 (bookworm)", "tree": "c8eb02973f23", "problems": if healthy { json!([]) } else { json!(["no answer within 10 s"]) },
            "warnings": []})
    };
    let certificate = |days: i64| {
        json!({"host": "10.0.0.11", "file": "/etc/kubernetes/pki/apiserver.crt", "subject": "CN=kube-apiserver", "issuer": "CN=kubernetes",
            "authority": false, "notAfter": "2026-02-01T00:00:00Z", "daysLeft": days})
    };
    let digest = format!("sha256:{}", "1a".repeat(32));
    let mut first = host(11, true);
    first["registry"] = true.into();
    json!({
        "about": {"report": "cluster", "schemaVersion": 1, "generator": "test", "created": "2026-01-03T00:00:00Z"},
        "cluster": {"name": "prod", "runtime": "kubeadm", "phase": "ClusterSuccess", "healthy": false},
        "hosts": [first, host(12, true), host(13, false)],
        "nodes": [{"name": "node-11", "ready": true, "version": "v1.34.1", "containerRuntime": "containerd://1.7.27", "host": "10.0.0.11"},
            {"name": "node-13", "ready": false, "version": "v1.34.1", "containerRuntime": "containerd://1.7.27", "host": "10.0.0.13", "reason": "Kubelet stopped posting node status."}],
        "certificates": [certificate(12), certificate(340)],
        "images": [{"name": "registry.example.com/kubernetes:v1.34.1", "digest": digest, "type": "rootfs", "embedded": [
            {"name": "registry.k8s.io/pause:3.10", "digest": digest}]}],
        "drift": [{"workload": "Deployment shop/web", "container": "app", "template": "web:v1", "pods": ["web:v2 (3)"]}],
        "backup": {"created": "2026-01-01T00:00:00Z", "place": "/backups", "digest": digest, "bytes": 123_456_789, "encrypted": true},
        "runs": [{"id": "20260102T030405.678Z-upgrade-1a2b3c4d", "verb": "upgrade", "started": "2026-01-02T03:04:05Z", "last": "2026-01-02T03:14:05Z",
            "state": "done", "steps": 120, "controller": "laptop"}],
        "upgrades": [{"id": "v1.34.1-1a2b3c4d", "verb": "upgrade", "from": "v1.33.5", "to": "v1.34.1", "end": "committed", "time": "2026-01-02T03:14:05Z", "hosts": 3}],
        "problems": []})
}

/// Replaces every text below `value` by one of the corpus, in turn, but for those that say what a
/// document is.
fn poison(value: &mut Value, corpus: &[String], next: &mut usize) {
    match value {
        Value::String(text) => {
            text.clone_from(&corpus[*next % corpus.len()]);
            *next += 1;
        }
        Value::Array(list) => list.iter_mut().for_each(|one| poison(one, corpus, next)),
        Value::Object(members) => {
            for (name, one) in members.iter_mut() {
                let is_code = ["about", "types", "severity", "change"].contains(&name.as_str());
                if !is_code {
                    poison(one, corpus, next);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn hostile_names_are_text_on_every_page() {
    let env = TestEnv::new();
    images(&env);
    let corpus = std::fs::read(repository().join("crates/report/hostile.json")).unwrap();
    let mut corpus: Vec<String> = serde_json::from_slice(&corpus).unwrap();
    corpus.push("x".repeat(64 << 10));
    simulated(&env, &["--takes", "0"]);
    let image = env.imgctl(["--json", "report", "image", "report:v2", "--compare", "report:v1"]);
    let run = report_run(&env, &env.path("unused.html"));
    let about = json!({"report": "plan", "schemaVersion": 1, "generator": "test"});
    let host = |number: usize| json!({"host": number.to_string(), "roles": ["r"], "group": "g"});
    let plan = json!({
        "about": about, "plan": {"verb": "v", "cluster": "c", "from": "f", "to": "t"},
        "hosts": (0..40).map(host).collect::<Vec<_>>(),
        "phases": [{"name": "p", "order": "o", "lanes": (0..40).map(|number| json!({
            "host": number.to_string(), "steps": [{"name": "s", "says": ["a", "b"]}]
        })).collect::<Vec<_>>()}],
        "restarts": (0..40).map(|_| json!({"host": "h", "namespace": "n", "pod": "p", "container": "c",
            "owner": "o", "verdict": "v", "reason": "r"})).collect::<Vec<_>>(),
        "findings": [{"severity": "error", "rule": "r", "message": "m", "place": "p", "hint": "h"}],
        "irreversible": ["i"], "notes": ["n"],
    });
    let about = json!({"report": "cluster", "schemaVersion": 1, "generator": "test"});
    let host = |_| {
        json!({"host": "h", "roles": ["r"], "reachable": true, "healthy": false, "hostname": "n",
            "problems": ["p"], "warnings": ["w"]})
    };
    let cluster = json!({
        "about": about, "cluster": {"name": "c", "runtime": "r", "healthy": false},
        "hosts": (0..20).map(host).collect::<Vec<_>>(), "nodes": [], "images": [],
        "certificates": [{"host": "h", "file": "f", "subject": "s", "issuer": "i", "authority": false,
            "notAfter": "t", "daysLeft": 3}],
        "runs": [], "upgrades": [], "problems": ["p"],
    });
    let mut works = Vec::new();
    let reports =
        [("image", image.ok().json()), ("run", run), ("plan", plan), ("cluster", cluster)];
    for (name, mut value) in reports {
        poison(&mut value, &corpus, &mut 0);
        let data = env.write(format!("{name}.json"), serde_json::to_vec(&value).unwrap());
        let page = env.path(format!("{name}.html"));
        let output = [
            "report".as_ref(),
            "render".as_ref(),
            data.as_os_str(),
            "-o".as_ref(),
            page.as_os_str(),
        ];
        env.imgctl(output).ok();
        works.push(json!({"name": format!("hostile-{name}"), "file": page, "width": 390,
            "scheme": "light"}));
    }
    let Some(pages) = browse(&env, &works) else { return };
    for page in &pages {
        is_clean(page);
        let tree = page["tree"].to_string();
        assert!(tree.contains("<script>window.pwned=1</script>"), "{}", page["name"]);
        assert!(!tree.contains('\u{202e}'), "{}", page["name"]);
    }
}
