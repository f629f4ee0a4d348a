//! What `bake --print` shows, beside what buildx of Debian's newest suite (`scripts/referees`) prints for the same
//! files: equal but for the rows of docs/bake.md.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::common::newest::Newest;
use crate::common::{Ran, TestEnv};

const BUILDX: &str = "/usr/libexec/docker/cli-plugins/docker-buildx";

type Files = BTreeMap<String, String>;

/// The entries of the corpus by name.
fn corpus() -> Vec<(String, Files)> {
    let text = include_str!("corpus.txt");
    let mut entries: Vec<(String, Files)> = Vec::new();
    let mut file = String::new();
    for line in text.lines().skip_while(|line| !line.starts_with("== ")) {
        if let Some(name) = line.strip_prefix("== ").and_then(|line| line.strip_suffix(" ==")) {
            entries.push((name.to_owned(), Files::new()));
            continue;
        }
        let (_, files) = entries.last_mut().unwrap();
        if let Some(name) = line.strip_prefix("-- ").and_then(|line| line.strip_suffix(" --")) {
            name.clone_into(&mut file);
            files.insert(file.clone(), String::new());
            continue;
        }
        files.get_mut(&file).unwrap().push_str(&format!("{line}\n"));
    }
    entries
}

/// The rows of docs/bake.md: defaults that buildx shows, paths and sizes that it cleans, members of groups that
/// it sorts.
fn normal(ran: &Ran) -> Result<Value, String> {
    if !ran.success() {
        return Err(ran.stderr());
    }
    let mut document: Value = ran.json();
    for target in document["target"].as_object_mut().unwrap().values_mut() {
        let members = target.as_object_mut().unwrap();
        let defaults = [
            ("context", json!(".")),
            ("dockerfile", json!("Dockerfile")),
            ("output", json!([{"type": "cacheonly"}])),
        ];
        members.retain(|name, value| !defaults.contains(&(name.as_str(), value.clone())));
    }
    for group in document["group"].as_object_mut().unwrap().values_mut() {
        let members = group["targets"].as_array_mut().unwrap();
        members.sort_by_key(ToString::to_string);
    }
    Ok(document)
}

#[test]
fn buildx_prints_the_same() {
    let Some(newest) = Newest::with(&BUILDX[1..]) else { return };
    let entries = corpus();
    assert!(entries.len() > 25, "{}", entries.len());
    let mut wrong = Vec::new();
    for (name, mut files) in entries {
        let env = TestEnv::new();
        let mut taken = |name: &str| files.remove(name);
        let (words, variables) = (taken("words"), taken("environment").unwrap_or_default());
        let (differs, refused) = (taken("differs"), taken("refused").is_some());
        for (path, text) in &files {
            env.write(path, text);
        }
        let words: Vec<&str> = words.as_deref().unwrap_or_default().split_whitespace().collect();
        let variables: Vec<(&str, &str)> =
            variables.lines().map(|line| line.split_once('=').unwrap()).collect();
        let mut command =
            newest.command(&env, "", &[&[BUILDX, "bake", "--print"], &words[..]].concat());
        command.envs(variables.iter().copied());
        let theirs = normal(&Ran::new(command));
        let mut command = env.command(["bake", "--print"].iter().chain(&words));
        command.envs(variables.iter().copied()).current_dir(env.path(""));
        let ours = normal(&Ran::new(command));
        let agree = match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => ours == theirs && !refused,
            (Err(_), Err(_)) => refused,
            _ => false,
        };
        if agree == differs.is_some() {
            let shown = |one: &Result<Value, String>| match one {
                Ok(document) => serde_json::to_string_pretty(document).unwrap(),
                Err(error) => error.clone(),
            };
            wrong.push(format!("== {name}\nimgctl: {}\nbuildx: {}", shown(&ours), shown(&theirs)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
