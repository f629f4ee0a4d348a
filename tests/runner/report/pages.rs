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
    let mut command = env.command(["--json", "report", "run", "--cluster", "c", "-o"]);
    command.arg(page).env("SEALOS_RUNTIME_ROOT", env.path("runtime"));
    crate::common::Ran::new(command).ok().json()
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
    let mut works = everywhere("run", &page);

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
    works.extend(everywhere("run-torn", &torn));

    let Some(pages) = browse(&env, &works) else { return };
    pages.iter().for_each(is_clean);
    let headings = heard(&pages[0], "heading");
    for heading in ["Overview", "Timeline", "Steps", "Transfers", "Commands"] {
        assert!(headings.contains(&heading), "{heading}: {headings:?}");
    }
    let lanes = heard(&pages[0], "image");
    assert!(lanes.iter().any(|lane| lane.contains("steps, busy for")), "{lanes:?}");
    assert!(pages[4]["tree"].to_string().contains("This report is not complete."));
}

#[test]
fn a_plan_is_described() {
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
    let Some(pages) = browse(&env, &everywhere("plan", &page)) else { return };
    pages.iter().for_each(is_clean);
    let tree = pages[0]["tree"].to_string();
    assert!(tree.contains("sync HOST") && tree.contains("2 hosts"), "{tree}");
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
