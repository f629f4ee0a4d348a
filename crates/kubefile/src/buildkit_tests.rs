//! BuildKit as the reference for the language: compares the results of its parser, its expansion
//! and moby's pattern matcher for the inputs in `tests/buildkit` (see the README there) with ours.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::ast::{
    CacheSharing, CommandForm, Healthcheck, Instruction, InstructionKind, Kubefile, Mount,
    MountKind, Run, RunNetwork, RunSecurity, Source, Transfer,
};
use super::expand::{expand, expand_heredoc, expand_words};
use super::glob::SegmentPattern;
use super::ignore::IgnoreRules;
use super::parse;

/// Reads a file of `tests/buildkit`: hundreds of JSON values, one per line.
fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    assert!(lines.len() > 300, "the cases have shrunk to {}", lines.len());
    lines
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Fails on every difference that is not a listed exception of `kind`, and on every exception that
/// no longer differs.
fn judge(kind: &str, compared: usize, differences: Vec<(String, String)>) {
    let text = include_str!("../../../tests/buildkit/exceptions.json");
    let exceptions: Value = serde_json::from_str(text).unwrap();
    // Each reason has a list of inputs.
    let lists = exceptions[kind].as_object().into_iter().flatten();
    let mut exceptions: BTreeSet<&str> =
        lists.flat_map(|(_reason, inputs)| inputs.as_array().unwrap()).map(self::text).collect();
    let named = exceptions.len();
    let mut found = Vec::new();
    for (input, report) in differences {
        if !exceptions.remove(input.as_str()) {
            found.push(report);
        }
    }
    assert!(
        found.is_empty(),
        "{} of {compared} differ beside the {named} exceptions:\n{}",
        found.len(),
        found.join("\n")
    );
    assert!(exceptions.is_empty(), "no exceptions any more: {exceptions:?}");
}

fn lookup(env: &Value) -> impl Fn(&str) -> Option<String> + '_ {
    |name| env[name].as_str().map(str::to_owned)
}

#[test]
fn words_expand_as_in_buildkit() {
    let cases = lines(include_str!("../../../tests/buildkit/words.jsonl"));
    let lookup = lookup(&cases[0]["env"]);
    let mut differences = Vec::new();
    for case in &cases[1..] {
        let (input, escape) = (text(&case[0]), text(&case[1]).chars().next().unwrap());
        let value = expand(input, escape, &lookup).ok();
        let words = expand_words(input, escape, &lookup).ok();
        if json!(value) != case[2] || json!(words) != case[3] {
            let ours = json!([value, words]);
            let report = format!("{} {escape}\n  - {} {}\n  + {ours}", case[0], case[2], case[3]);
            differences.push((input.to_owned(), report));
        }
    }
    judge("words", cases.len() - 1, differences);
}

#[test]
fn heredoc_bodies_expand_as_in_buildkit() {
    let cases = lines(include_str!("../../../tests/buildkit/heredocs.jsonl"));
    let lookup = lookup(&cases[0]["env"]);
    let mut differences = Vec::new();
    for case in &cases[1..] {
        let input = text(&case[0]);
        let value = json!(expand_heredoc(input, &lookup).ok());
        if value != case[1] {
            let report = format!("{}\n  - {}\n  + {value}", case[0], case[1]);
            differences.push((input.to_owned(), report));
        }
    }
    judge("heredocs", cases.len() - 1, differences);
}

#[test]
fn ignore_files_match_as_in_moby() {
    let cases = lines(include_str!("../../../tests/buildkit/ignore.jsonl"));
    let paths: Vec<&str> = cases[0]["paths"].as_array().unwrap().iter().map(text).collect();
    let mut differences = Vec::new();
    for case in &cases[1..] {
        let input = text(&case[0]);
        let ours = IgnoreRules::parse(input.as_bytes()).ok().map(|rules| {
            let mark = |path: &&str| {
                if rules.matches(path.as_bytes()) { 'x' } else { '.' }
            };
            paths.iter().map(mark).collect::<String>()
        });
        if json!(ours) != case[1] {
            let theirs = case[1].as_str().unwrap_or("error");
            let ours = ours.as_deref().unwrap_or("error");
            let differ = paths.iter().zip(theirs.chars().zip(ours.chars()));
            let differ: Vec<_> = differ.filter(|(_, (a, b))| a != b).collect();
            let report = format!("{}\n  - {theirs}\n  + {ours} {differ:?}", case[0]);
            differences.push((input.to_owned(), report));
        }
    }
    judge("ignore", cases.len() - 1, differences);
}

#[test]
fn patterns_match_as_in_go() {
    let cases = lines(include_str!("../../../tests/buildkit/match.jsonl"));
    let names: Vec<&str> = cases[0]["names"].as_array().unwrap().iter().map(text).collect();
    let mut differences = Vec::new();
    for case in &cases[1..] {
        let input = text(&case[0]);
        let ours = SegmentPattern::compile(input.as_bytes()).ok().map(|pattern| {
            let mark = |name: &&str| {
                if pattern.matches(name.as_bytes()) { 'x' } else { '.' }
            };
            names.iter().map(mark).collect::<String>()
        });
        if json!(ours) != case[1] {
            let report = format!("{}\n  - {}\n  + {ours:?}", case[0], case[1]);
            differences.push((input.to_owned(), report));
        }
    }
    judge("match", cases.len() - 1, differences);
}

#[test]
fn kubefiles_parse_as_in_buildkit() {
    let cases = lines(include_str!("../../../tests/buildkit/parse.jsonl"));
    let mut differences = Vec::new();
    for case in &cases {
        let input = text(&case[0]);
        let parsed = parse("Kubefile", input.as_bytes()).map_err(|found| {
            let said = found.iter().map(|diagnostic| diagnostic.message.as_str());
            said.collect::<Vec<_>>().join("; ")
        });
        let parsed = parsed.and_then(bodies_expand);
        let theirs = case[1].as_object().is_some();
        let report = match &parsed {
            Err(said) if theirs => Some(format!("refused: {said}")),
            Ok(_) if !theirs => Some("accepted".to_owned()),
            Ok(kubefile) => difference(kubefile, &case[1]),
            Err(_) => None,
        };
        if let Some(report) = report {
            differences.push((input.to_owned(), format!("{}\n  {report}", case[0])));
        }
    }
    judge("parse", cases.len(), differences);
}

/// Fails on errors that appear only when a here-document is expanded; the BuildKit results include
/// that expansion.
fn bodies_expand(kubefile: Kubefile) -> Result<Kubefile, String> {
    let instructions = kubefile.stages.iter().flat_map(|stage| &stage.instructions);
    for instruction in instructions {
        let (InstructionKind::Add(transfer) | InstructionKind::Copy(transfer)) = &instruction.kind
        else {
            continue;
        };
        for source in &transfer.sources {
            if let Source::Heredoc(doc) = source
                && doc.expand
            {
                expand_heredoc(&doc.body, &|_| Some("v".to_owned())).map_err(|e| e.to_string())?;
            }
        }
    }
    Ok(kubefile)
}

/// Returns the first instruction that differs.
fn difference(ours: &Kubefile, theirs: &Value) -> Option<String> {
    if theirs["escape"] != ours.directives.escape.to_string() {
        return Some(format!("escape {}", ours.directives.escape));
    }
    let mut found: Vec<Value> = ours.global_args.iter().map(instruction).collect();
    for stage in &ours.stages {
        let from = &stage.from;
        found.push(json!({
            "name": "FROM", "image": from.image, "as": from.name, "platform": from.platform,
            "lines": [from.span.line, from.span.end_line],
        }));
        found.extend(stage.instructions.iter().map(instruction));
    }
    let theirs = theirs["instructions"].as_array().unwrap();
    if found.len() != theirs.len() {
        return Some(format!("{} instructions, not {}", found.len(), theirs.len()));
    }
    let drop_empty = |value: &Value| {
        let fields = value.as_object().unwrap().iter();
        let set = fields.filter(|(_, value)| {
            **value != json!(null) && **value != json!(false) && **value != json!("")
        });
        Value::Object(set.map(|(k, v)| (k.clone(), v.clone())).collect())
    };
    let pairs = found.iter().zip(theirs);
    pairs
        .map(|(ours, theirs)| (drop_empty(&same_mounts(ours, theirs)), drop_empty(theirs)))
        .find(|(ours, theirs)| ours != theirs)
        .map(|(ours, theirs)| format!("- {theirs}\n  + {ours}"))
}

/// Returns our mounts with only the options that BuildKit lists: BuildKit fills in defaults later.
fn same_mounts(ours: &Value, theirs: &Value) -> Value {
    let mut ours = ours.clone();
    let Some(mounts) = ours["mounts"].as_array_mut() else {
        return ours;
    };
    for (mount, theirs) in mounts.iter_mut().zip(theirs["mounts"].as_array().unwrap()) {
        let theirs = theirs.as_object().unwrap();
        mount.as_object_mut().unwrap().retain(|key, _| theirs.contains_key(key));
        if theirs["target"] == "" {
            mount["target"] = "".into();
        }
    }
    ours
}

fn instruction(instruction: &Instruction) -> Value {
    let mut said = kind(&instruction.kind);
    said["name"] = instruction.name().into();
    said["lines"] = json!([instruction.span.line, instruction.span.end_line]);
    said
}

fn kind(kind: &InstructionKind) -> Value {
    match kind {
        InstructionKind::Add(add) => transfer(add),
        InstructionKind::Copy(copy) => transfer(copy),
        InstructionKind::Arg(pairs) => json!({"pairs": pairs}),
        InstructionKind::Env(pairs) | InstructionKind::Label(pairs) => json!({"pairs": pairs}),
        InstructionKind::Cmd(form) | InstructionKind::Entrypoint(form) => command(form),
        InstructionKind::Expose(ports) => {
            // BuildKit sorts them here; the order has no effect later.
            let mut ports = ports.clone();
            ports.sort();
            json!({"list": ports})
        }
        InstructionKind::Healthcheck(check) => health(check),
        InstructionKind::Maintainer(text)
        | InstructionKind::StopSignal(text)
        | InstructionKind::User(text)
        | InstructionKind::Workdir(text) => json!({"text": text}),
        InstructionKind::Onbuild(onbuild) => json!({"text": onbuild.trigger}),
        InstructionKind::Run(run) => self::run(run),
        InstructionKind::Shell(words) => json!({"words": words}),
        InstructionKind::Volume(volumes) => {
            let volumes: Vec<&str> = volumes.iter().map(|volume| volume.trim()).collect();
            json!({"list": volumes})
        }
    }
}

fn command(form: &CommandForm) -> Value {
    match form {
        CommandForm::Shell(text) if text.is_empty() => json!({"words": [], "shell": true}),
        CommandForm::Shell(text) => json!({"words": [text], "shell": true}),
        CommandForm::Exec(words) => json!({"words": words, "shell": false}),
    }
}

fn transfer(transfer: &Transfer) -> Value {
    let mut sources = Vec::new();
    let mut contents = Vec::new();
    for source in &transfer.sources {
        match source {
            Source::Path(path) => sources.push(path),
            Source::Heredoc(doc) => contents.push(json!([doc.name, doc.body, doc.expand])),
        }
    }
    let flags = &transfer.flags;
    let some = |list: &[Value]| (!list.is_empty()).then(|| list.to_vec());
    json!({
        "sources": sources, "contents": some(&contents), "dest": transfer.dest,
        "from": flags.from, "chown": flags.chown, "chmod": flags.chmod, "link": flags.link,
        "exclude": (!flags.exclude.is_empty()).then_some(&flags.exclude),
        "parents": flags.parents, "checksum": flags.checksum,
        "keep_git_dir": flags.keep_git_dir, "unpack": flags.unpack,
    })
}

fn run(run: &Run) -> Value {
    let mut said = command(&run.form);
    said["network"] = match run.network {
        None | Some(RunNetwork::Default) => "default",
        Some(RunNetwork::None) => "none",
        Some(RunNetwork::Host) => "host",
    }
    .into();
    said["security"] = match run.security {
        None | Some(RunSecurity::Sandbox) => "sandbox",
        Some(RunSecurity::Insecure) => "insecure",
    }
    .into();
    if !run.heredocs.is_empty() {
        let docs = run.heredocs.iter();
        let docs = docs.map(|doc| json!([doc.name, doc.raw_body, doc.body]));
        said["heredocs"] = docs.collect();
    }
    let mounts = run.mounts.iter().map(|mount| {
        let as_written = |word: &str| Ok(word.to_owned());
        self::mount(&mount.resolve(&as_written).unwrap())
    });
    if !run.mounts.is_empty() {
        said["mounts"] = mounts.collect();
    }
    said
}

/// Converts a mount, including our defaults: [`same_mounts`] reduces it to the options of
/// BuildKit's mount.
fn mount(mount: &Mount) -> Value {
    let mut said = match &mount.kind {
        MountKind::Bind { from, source } => json!({"type": "bind", "from": from, "source": source}),
        MountKind::Cache(cache) => json!({
            "type": "cache", "id": cache.id, "from": cache.from, "source": cache.source,
            "mode": cache.mode, "uid": cache.uid, "gid": cache.gid,
            "sharing": match cache.sharing {
                CacheSharing::Shared => "shared",
                CacheSharing::Private => "private",
                CacheSharing::Locked => "locked",
            },
        }),
        MountKind::Tmpfs { size, .. } => json!({"type": "tmpfs", "size": size}),
        MountKind::Secret { id, env, required, mode, uid, gid } => json!({
            "type": "secret", "id": id, "source": id, "env": env, "required": required,
            "mode": mode, "uid": uid, "gid": gid,
        }),
        MountKind::Ssh { id, required, mode, uid, gid } => json!({
            "type": "ssh", "id": id, "required": required, "mode": mode, "uid": uid, "gid": gid,
        }),
    };
    said["target"] = json!(mount.target);
    said["read_only"] = mount.read_only.into();
    said
}

fn health(check: &Healthcheck) -> Value {
    let Healthcheck::Cmd { interval, timeout, start_period, start_interval, retries, command } =
        check
    else {
        return json!({"test": ["NONE"], "times": [0, 0, 0, 0, 0]});
    };
    let mut test = match command {
        CommandForm::Shell(text) => vec!["CMD-SHELL".to_owned(), text.clone()],
        CommandForm::Exec(words) => words.clone(),
    };
    if let CommandForm::Exec(_) = command {
        test.insert(0, "CMD".to_owned());
    }
    let times = [interval, timeout, start_period, start_interval];
    let mut times: Vec<u64> = times
        .iter()
        .map(|time| time.map_or(0, |time| time.as_nanos().try_into().unwrap()))
        .collect();
    times.push(retries.unwrap_or(0).into());
    json!({"test": test, "times": times})
}
