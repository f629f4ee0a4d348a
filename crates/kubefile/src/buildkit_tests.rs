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

/// Compares cases, each of which begins with its input; `difference` describes how ours differs.
/// Fails on every difference that is not a listed exception of `kind`, and on every exception that no
/// longer differs.
fn compare(kind: &str, cases: &[Value], difference: impl Fn(&str, &[Value]) -> Option<String>) {
    let exceptions = include_str!("../../../tests/buildkit/exceptions.json");
    let exceptions: Value = serde_json::from_str(exceptions).unwrap();
    // Each reason has a list of inputs.
    let lists = exceptions[kind].as_object().into_iter().flatten();
    let mut exceptions: BTreeSet<&str> =
        lists.flat_map(|(_reason, inputs)| inputs.as_array().unwrap()).map(text).collect();
    let named = exceptions.len();
    let mut found = Vec::new();
    for case in cases {
        let input = text(&case[0]);
        if let Some(report) = difference(input, &case.as_array().unwrap()[1..])
            && !exceptions.remove(input)
        {
            found.push(format!("{}\n{report}", case[0]));
        }
    }
    assert!(
        found.is_empty(),
        "{} of {} differ beside the {named} exceptions:\n{}",
        found.len(),
        cases.len(),
        found.join("\n")
    );
    assert!(exceptions.is_empty(), "no exceptions any more: {exceptions:?}");
}

fn lookup(env: &Value) -> impl Fn(&str) -> Option<String> + '_ {
    |name| env[name].as_str().map(str::to_owned)
}

/// An `x` for each name that matches, and a dot for each other one.
fn marks(names: &Value, matches: impl Fn(&[u8]) -> bool) -> String {
    let names = names.as_array().unwrap().iter();
    names.map(|name| if matches(text(name).as_bytes()) { 'x' } else { '.' }).collect()
}

#[test]
fn words_expand_as_in_buildkit() {
    let cases = lines(include_str!("../../../tests/buildkit/words.jsonl"));
    let lookup = lookup(&cases[0]["env"]);
    compare("words", &cases[1..], |input, theirs| {
        let escape = text(&theirs[0]).chars().next().unwrap();
        let value = expand(input, escape, &lookup).ok();
        let words = expand_words(input, escape, &lookup).ok();
        let ours = [json!(value), json!(words)];
        (ours != theirs[1..])
            .then(|| format!("  {escape}\n  - {} {}\n  + {}", theirs[1], theirs[2], json!(ours)))
    });
}

#[test]
fn heredoc_bodies_expand_as_in_buildkit() {
    let cases = lines(include_str!("../../../tests/buildkit/heredocs.jsonl"));
    let lookup = lookup(&cases[0]["env"]);
    compare("heredocs", &cases[1..], |input, theirs| {
        let ours = json!(expand_heredoc(input, &lookup).ok());
        (ours != theirs[0]).then(|| format!("  - {}\n  + {ours}", theirs[0]))
    });
}

#[test]
fn ignore_files_match_as_in_moby() {
    let cases = lines(include_str!("../../../tests/buildkit/ignore.jsonl"));
    let paths = &cases[0]["paths"];
    compare("ignore", &cases[1..], |input, theirs| {
        let rules = IgnoreRules::parse(input.as_bytes()).ok();
        let ours = rules.map(|rules| marks(paths, |path| rules.matches(path)));
        if json!(ours) == theirs[0] {
            return None;
        }
        let (ours, theirs) = (ours.as_deref().unwrap_or("error"), theirs[0].as_str());
        let theirs = theirs.unwrap_or("error");
        let marks = paths.as_array().unwrap().iter().zip(theirs.chars().zip(ours.chars()));
        let differ: Vec<_> = marks.filter(|(_, (a, b))| a != b).collect();
        Some(format!("  - {theirs}\n  + {ours} {differ:?}"))
    });
}

#[test]
fn patterns_match_as_in_go() {
    let cases = lines(include_str!("../../../tests/buildkit/match.jsonl"));
    let names = &cases[0]["names"];
    compare("match", &cases[1..], |input, theirs| {
        let pattern = SegmentPattern::compile(input.as_bytes()).ok();
        let ours = pattern.map(|pattern| marks(names, |name| pattern.matches(name)));
        (json!(ours) != theirs[0]).then(|| format!("  - {}\n  + {ours:?}", theirs[0]))
    });
}

#[test]
fn kubefiles_parse_as_in_buildkit() {
    let cases = lines(include_str!("../../../tests/buildkit/parse.jsonl"));
    compare("parse", &cases, |input, theirs| {
        let parsed = parse("Kubefile", input.as_bytes()).map_err(|found| {
            let said = found.iter().map(|diagnostic| diagnostic.message.as_str());
            said.collect::<Vec<_>>().join("; ")
        });
        match parsed.and_then(bodies_expand) {
            Err(said) if theirs[0].is_object() => Some(format!("  refused: {said}")),
            Ok(_) if !theirs[0].is_object() => Some("  accepted".to_owned()),
            Ok(kubefile) => difference(&kubefile, &theirs[0]).map(|report| format!("  {report}")),
            Err(_) => None,
        }
    });
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
