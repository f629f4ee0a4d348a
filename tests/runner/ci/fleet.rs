//! `ci/fleet/` and docs/fleet.md: every document is YAML of a known kind, and every command line has
//! flags that exist.

use imgctl_template::yaml;
use serde_json::Value;

use crate::common::{Ran, TestEnv, repository};

/// The documents of `ci/fleet/`, with their files.
fn documents() -> Vec<(String, Value)> {
    let directory = repository().join("ci/fleet");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for text in std::fs::read_to_string(&path).unwrap().split("\n---\n") {
            let document = yaml::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            found.push((name.clone(), document));
        }
    }
    found
}

/// Calls `visit` with every mapping of a document.
fn walk(value: &Value, visit: &mut dyn FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(map) => {
            visit(map);
            map.values().for_each(|value| walk(value, visit));
        }
        Value::Array(list) => list.iter().for_each(|value| walk(value, visit)),
        _ => {}
    }
}

/// Fails unless imgctl knows all flags of a command line: with `--help` after them it says so before
/// it does anything.
#[track_caller]
fn check(env: &TestEnv, place: &str, arguments: &[String]) {
    let words = arguments.iter().map(String::as_str).chain(["--help"]);
    let ran = Ran::new(env.command(words));
    assert!(ran.success(), "{place}: {arguments:?}: {}", ran.report());
    assert!(ran.stdout().contains("Usage: imgctl"), "{place}: {}", ran.report());
}

/// The command lines of imgctl in a shell text, with lines that go on joined.
fn commands(text: &str) -> Vec<Vec<String>> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| line.trim().strip_prefix("imgctl "));
    lines
        .map(|line| line.split(" #").next().unwrap_or_default())
        .map(|line| line.split_whitespace().map(|word| word.trim_matches('"').to_owned()).collect())
        .collect()
}

#[test]
fn documents_are_complete_and_have_flags_that_exist() {
    let env = TestEnv::new();
    let variables = std::fs::read_to_string(repository().join("docs/cli.md")).unwrap();
    let mut kinds = Vec::new();
    let mut lines = 0;
    for (file, document) in documents() {
        kinds.push(document["kind"].as_str().unwrap_or_else(|| panic!("{file}")).to_owned());
        assert!(document["apiVersion"].is_string(), "{file}");
        let metadata = &document["metadata"];
        assert!(metadata["name"].is_string() || metadata["generateName"].is_string(), "{file}");
        walk(&document, &mut |map| {
            if let Some(arguments) = map.get("args").and_then(Value::as_array) {
                let words = arguments.iter().map(|word| word.as_str().unwrap().to_owned());
                check(&env, &file, &words.collect::<Vec<_>>());
                lines += 1;
            }
            if let Some(script) = map.get("script").and_then(Value::as_str) {
                let set = script.lines().find_map(|line| line.trim().strip_prefix("set -- --file"));
                let given = format!("--file{}", set.unwrap_or_else(|| panic!("{file}: {script}")));
                for words in commands(script) {
                    let words = words.iter().flat_map(|word| match &**word {
                        // A word that stands for a variable is one that every flag takes.
                        "$@" => given
                            .split_whitespace()
                            .map(|word| if word.contains('$') { "controller" } else { word })
                            .map(str::to_owned)
                            .collect(),
                        word => vec![word.to_owned()],
                    });
                    check(&env, &file, &words.collect::<Vec<_>>());
                    lines += 1;
                }
            }
            for variable in map.get("env").and_then(Value::as_array).into_iter().flatten() {
                let name = variable["name"].as_str().unwrap();
                if name.starts_with("IMGCTL_") || name.starts_with("SEALOS_") {
                    assert!(variables.contains(&format!("`{name}`")), "{file}: {name}");
                }
            }
        });
    }
    assert!(lines >= 4, "{lines}");
    for kind in
        ["ServiceAccount", "PersistentVolumeClaim", "Job", "CronJob", "ApplicationSet", "Task"]
    {
        assert!(kinds.iter().any(|found| found == kind), "no {kind}: {kinds:?}");
    }
}

/// The Job and the hook of Argo CD are one Job: what was mended in one is mended in the other.
#[test]
fn the_hook_is_the_job() {
    let spec = |file: &str| {
        let found = documents().into_iter().find(|(name, _)| name == file);
        let mut spec = found.unwrap().1["spec"].clone();
        spec.as_object_mut().unwrap().remove("ttlSecondsAfterFinished");
        spec
    };
    assert_eq!(spec("job.yaml"), spec("argocd-hook.yaml"));
}

/// Exit codes of the Job's policy are those that the page calls final.
#[test]
fn final_exit_codes_are_those_of_the_page() {
    let job = documents().into_iter().find(|(name, _)| name == "job.yaml").unwrap().1;
    let codes = &job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"];
    let codes: Vec<String> = codes.as_array().unwrap().iter().map(Value::to_string).collect();
    let page = std::fs::read_to_string(repository().join("docs/fleet.md")).unwrap();
    let row = page.lines().find(|line| line.contains("fails at once")).unwrap();
    assert!(row.starts_with(&format!("| {} |", codes.join(", "))), "{row}");
}

#[test]
fn the_pages_commands_have_flags_that_exist() {
    let env = TestEnv::new();
    for page in ["docs/fleet.md", "docs/site-registry.md"] {
        let text = std::fs::read_to_string(repository().join(page)).unwrap();
        let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let lines: Vec<Vec<String>> = blocks.flat_map(commands).collect();
        assert!(!lines.is_empty(), "{page}");
        for words in lines {
            check(&env, page, &words);
        }
    }
}
