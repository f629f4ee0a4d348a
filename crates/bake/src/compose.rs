//! Compose files: services with `build` are targets (compose-spec, build.md, and buildx' `x-bake`). Must not
//! know how other files are read.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use imgctl_base::error::{Error, Result};

use crate::budget::Budget;
use crate::definitions::Source;
use crate::functions::sanitized;
use crate::spec::{Kind, Spec};
use crate::target::{Target, Values};

/// Returns the value of a variable.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What a compose file defines.
pub(crate) struct Services {
    pub(crate) targets: Vec<Target>,
    pub(crate) group: Vec<String>,
}

/// Reads a compose file; `lookup` returns the variables that it interpolates.
pub(crate) fn read(source: &Source, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Services> {
    let wrong = |cause: String| {
        Error::usage(format!("{} is not a compose file that can be built", source.name))
            .caused_by(cause)
    };
    // `y` and `no` are texts, as in YAML 1.2.
    let options = serde_saphyr::options! { strict_booleans: true };
    let document: Value = serde_saphyr::from_str_with_options(&source.text, options)
        .map_err(|error| wrong(error.to_string()))?;
    let document = interpolated(document, lookup, &Budget::default()).map_err(wrong)?;
    if document.get("include").is_some_and(|include| !include.is_null()) {
        return Err(wrong("imgctl does not follow `include`: pass each file with -f".to_owned()));
    }
    let Some(Value::Object(services)) = document.get("services") else {
        return Err(wrong("there is no `services`".to_owned()));
    };
    let secrets = document.get("secrets").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut all = Services { targets: Vec::new(), group: Vec::new() };
    let mut services: Vec<_> = services.iter().collect();
    services.sort_by_key(|(name, _)| *name);
    for (name, service) in services {
        if service.get("extends").is_some_and(|extends| !extends.is_null()) {
            return Err(wrong(format!(
                "service {name}: imgctl does not follow `extends`: write out what it builds"
            )));
        }
        let Some(build) = service.get("build").filter(|build| !build.is_null()) else {
            continue;
        };
        let target = target(name, service, build, &secrets, lookup)
            .map_err(|cause| wrong(format!("service {name}: {cause}")))?;
        all.group.push(target.name.clone());
        all.targets.push(target);
    }
    Ok(all)
}

type Outcome<T> = std::result::Result<T, String>;

fn target(
    name: &str,
    service: &Value,
    build: &Value,
    secrets: &Map<String, Value>,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Outcome<Target> {
    let mut target = Target { name: sanitized(name), ..Target::default() };
    let empty = Map::new();
    let build = match build {
        Value::String(context) => {
            target.context = Some(context.clone());
            &empty
        }
        Value::Object(members) => members,
        _ => return Err("`build` is a path or a map".to_owned()),
    };
    for (key, value) in build {
        let named = match &**key {
            "dockerfile_inline" => "dockerfile-inline",
            "additional_contexts" => "contexts",
            "cache_from" => "cache-from",
            "cache_to" => "cache-to",
            "no_cache" => "no-cache",
            "no_cache_filter" => "no-cache-filter",
            "shm_size" => "shm-size",
            "extra_hosts" => "extra-hosts",
            other => other,
        };
        let values = match named {
            "args" => arguments(value, lookup)?,
            "labels" | "contexts" | "extra-hosts" => pairs(value)?,
            "secrets" => {
                target.secrets = mounts(value, secrets)?;
                continue;
            }
            "ulimits" => {
                target.ulimits = Some(limits(value)?);
                continue;
            }
            "ssh" => match pairs(value)? {
                Values::Map(map) => Values::List(
                    map.into_iter()
                        .map(
                            |(id, path)| {
                                if path.is_empty() { id } else { format!("id={id},src={path}") }
                            },
                        )
                        .collect(),
                ),
                other => other,
            },
            "privileged" => {
                if value.as_bool() == Some(true) {
                    target.entitlements.push("security.insecure".to_owned());
                }
                continue;
            }
            // Of no effect on one machine, and provenance and SBOMs are attestations.
            "isolation" => continue,
            "provenance" | "sbom" => {
                if !matches!(value, Value::Bool(false) | Value::Null) {
                    target.attest.push(attestation(named, value));
                }
                continue;
            }
            "x-bake" => continue,
            _ => values(value)?,
        };
        match target.set(named, values) {
            Some(set) => set?,
            None if key.starts_with("x-") => {}
            None => return Err(format!("`build` has no `{key}`")),
        }
    }
    for context in target.contexts.values_mut() {
        if let Some(other) = context.strip_prefix("service:") {
            *context = format!("target:{}", sanitized(other));
        }
    }
    if target.network.as_deref() == Some("host") {
        target.entitlements.push("network.host".to_owned());
    }
    if let Some(Value::Object(own)) = build.get("x-bake") {
        extend(&mut target, own)?;
    }
    // The service's image is the name only if nothing else gives one (buildx).
    if target.tags.is_none()
        && let Some(Value::String(image)) = service.get("image")
    {
        target.tags = Some(vec![image.clone()]);
    }
    Ok(target)
}

/// Applies `x-bake`: lists are added, as in buildx.
fn extend(target: &mut Target, own: &Map<String, Value>) -> Outcome<()> {
    for (key, value) in own {
        let named = match &**key {
            "secrets" => "secret",
            other => other,
        };
        let mut change = Target::default();
        let value = match values(value)? {
            Values::Text(one)
                if !matches!(
                    named,
                    "call" | "context" | "dockerfile" | "pull" | "no-cache" | "network"
                ) =>
            {
                Values::List(vec![one])
            }
            other => other,
        };
        match change.set(named, value) {
            Some(set) => set?,
            None => return Err(format!("x-bake has no `{key}`")),
        }
        change.prepend(target, named);
        target.merge(&change);
    }
    Ok(())
}

fn scalar(value: &Value) -> Outcome<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err("a text is expected".to_owned()),
    }
}

fn values(value: &Value) -> Outcome<Values> {
    Ok(match value {
        Value::Null => Values::Absent,
        Value::Array(items) => Values::List(items.iter().map(scalar).collect::<Outcome<_>>()?),
        Value::Object(map) => Values::Map(
            map.iter()
                .map(|(key, value)| Ok((key.clone(), scalar(value)?)))
                .collect::<Outcome<_>>()?,
        ),
        other => Values::Text(scalar(other)?),
    })
}

/// A map, or a list of `KEY=VALUE` and `HOST:ADDRESS`.
fn pairs(value: &Value) -> Outcome<Values> {
    Ok(match values(value)? {
        Values::List(list) => Values::Map(
            list.iter()
                .map(|item| match item.split_once('=').or_else(|| item.split_once(':')) {
                    Some((key, value)) => (key.to_owned(), value.to_owned()),
                    None => (item.clone(), String::new()),
                })
                .collect(),
        ),
        other => other,
    })
}

/// Arguments without a value have that of the environment, or none.
fn arguments(value: &Value, lookup: &dyn Fn(&str) -> Option<String>) -> Outcome<Values> {
    let mut arguments = BTreeMap::new();
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value.or_else(|| lookup(key)) {
            arguments.insert(key.to_owned(), value);
        }
    };
    match value {
        Value::Array(items) => {
            for item in items {
                let item = scalar(item)?;
                match item.split_once('=') {
                    Some((key, value)) => add(key, Some(value.to_owned())),
                    None => add(&item, None),
                }
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                let value = if value.is_null() { None } else { Some(scalar(value)?) };
                add(key, value);
            }
        }
        Value::Null => {}
        _ => return Err("`args` is a map or a list".to_owned()),
    }
    Ok(Values::Map(arguments))
}

fn mounts(value: &Value, secrets: &Map<String, Value>) -> Outcome<Vec<Spec>> {
    let mut mounts = Vec::new();
    for item in value.as_array().ok_or_else(|| "`secrets` is a list".to_owned())? {
        let (name, id) = match item {
            Value::Object(long) => {
                let source = long.get("source").and_then(Value::as_str).unwrap_or_default();
                (source, long.get("target").and_then(Value::as_str).unwrap_or(source))
            }
            other => {
                let name = other.as_str().ok_or_else(|| "a secret has a name".to_owned())?;
                (name, name)
            }
        };
        let secret = secrets.get(name).ok_or_else(|| format!("there is no secret {name}"))?;
        let mut pairs = BTreeMap::from([("id".to_owned(), id.to_owned())]);
        for (from, to) in [("file", "src"), ("environment", "env")] {
            if let Some(text) = secret.get(from).and_then(Value::as_str) {
                pairs.insert(to.to_owned(), text.to_owned());
            }
        }
        mounts.push(Spec(pairs));
    }
    Ok(mounts)
}

fn limits(value: &Value) -> Outcome<Vec<String>> {
    let map = value.as_object().ok_or_else(|| "`ulimits` is a map".to_owned())?;
    let mut limits = Vec::new();
    for (name, value) in map {
        let both = |key: &str| value.get(key).map_or_else(|| scalar(value), scalar);
        limits.push(format!("{name}={}:{}", both("soft")?, both("hard")?));
    }
    limits.sort();
    Ok(limits)
}

fn attestation(kind: &str, value: &Value) -> Spec {
    let mut text = format!("type={kind}");
    if let Value::String(own) = value {
        text = format!("{text},{own}");
    }
    Spec::parse(&text, Kind::Other)
}

/// Replaces `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME-default}`, `${NAME:?error}`, `${NAME:+other}` in all
/// texts (compose-spec, 12-interpolation.md).
fn interpolated(value: Value, lookup: Lookup<'_>, budget: &Budget) -> Outcome<Value> {
    Ok(match value {
        Value::String(text) => Value::String(replaced(&text, lookup, budget, 0)?),
        Value::Array(items) => Value::Array(
            items
                .into_iter()
                .map(|item| interpolated(item, lookup, budget))
                .collect::<Outcome<_>>()?,
        ),
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| Ok((key, interpolated(value, lookup, budget)?)))
                .collect::<Outcome<_>>()?,
        ),
        other => other,
    })
}

pub(crate) fn replaced(
    text: &str,
    lookup: Lookup<'_>,
    budget: &Budget,
    depth: usize,
) -> Outcome<String> {
    let (mut out, mut rest) = (String::new(), text);
    budget.make(text.len())?;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if let Some(inner) = after.strip_prefix('{') {
            let end = closing(inner).ok_or_else(|| format!("`{text}`: a brace is not closed"))?;
            let (inside, behind) = inner.split_at(end);
            let at = inside.find(|c| !is_name(c)).unwrap_or(inside.len());
            let (name, operation) = inside.split_at(at);
            let value = operated(name, operation, lookup, budget, depth)?;
            budget.make(value.len())?;
            out.push_str(&value);
            rest = behind.get(1..).unwrap_or_default();
            continue;
        }
        let at = after.find(|c| !is_name(c)).unwrap_or(after.len());
        let (name, behind) = after.split_at(at);
        if name.is_empty() {
            return Err(format!("`{text}`: `$` is written as `$$`"));
        }
        let value = lookup(name).unwrap_or_default();
        budget.make(value.len())?;
        out.push_str(&value);
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the offset of the brace that closes an expression.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn operated(
    name: &str,
    operation: &str,
    lookup: Lookup<'_>,
    budget: &Budget,
    depth: usize,
) -> Outcome<String> {
    if depth > 20 {
        return Err(format!("the default of {name} is nested too deeply"));
    }
    let value = lookup(name);
    let filled = value.clone().filter(|value| !value.is_empty());
    let nested = |text: &str| replaced(text, lookup, budget, depth + 1);
    if let Some(text) = operation.strip_prefix(":-") {
        return filled.map_or_else(|| nested(text), Ok);
    }
    if let Some(text) = operation.strip_prefix('-') {
        return value.map_or_else(|| nested(text), Ok);
    }
    if let Some(text) = operation.strip_prefix(":+") {
        return filled.map_or(Ok(String::new()), |_| nested(text));
    }
    if let Some(text) = operation.strip_prefix('+') {
        return value.map_or(Ok(String::new()), |_| nested(text));
    }
    let required = |value: Option<String>, text: &str| {
        value.ok_or_else(|| format!("the variable {name} is required: {text}"))
    };
    if let Some(text) = operation.strip_prefix(":?") {
        return required(filled, text);
    }
    if let Some(text) = operation.strip_prefix('?') {
        return required(value, text);
    }
    if operation.is_empty() {
        return Ok(value.unwrap_or_default());
    }
    Err(format!("`${{{name}{operation}}}` cannot be interpolated"))
}
