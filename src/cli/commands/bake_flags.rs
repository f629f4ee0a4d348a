//! The settings of a bake target as the flags of a build, so that both mean the same.

use std::collections::BTreeMap;
use std::path::Path;

use imgctl_bake::{Spec, Target};

/// Settings for all targets of one command.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub(crate) push: bool,
    pub(crate) no_cache: bool,
    pub(crate) pull: bool,
    pub(crate) check: bool,
}

/// Returns the arguments of `imgctl build` for `target`. A target that only others use (`!is_wanted`) gets no name
/// and no output. `results` has the image of each target that is built already, `inline` the file with the text of
/// `dockerfile-inline`.
pub(crate) fn of(
    target: &Target,
    is_wanted: bool,
    common: &Common,
    results: &BTreeMap<String, String>,
    inline: Option<&str>,
) -> Vec<String> {
    let mut flags: Vec<String> = Vec::new();
    let mut add = |flag: &str, value: &str| flags.push(format!("--{flag}={value}"));
    let context = target.context.as_deref().unwrap_or(".");
    if let Some(path) = inline {
        add("file", path);
    } else if let Some(file) = &target.dockerfile {
        // Like buildx, relative to the context.
        let path = Path::new(context).join(file);
        add("file", &if path.exists() { path.display().to_string() } else { file.clone() });
    }
    for (name, value) in &target.args {
        add("build-arg", &format!("{name}={value}"));
    }
    for (name, source) in &target.contexts {
        let result = source.strip_prefix("target:").and_then(|other| results.get(other));
        let source = result.map_or(source.clone(), |image| format!("docker-image://{image}"));
        add("build-context", &format!("{name}={source}"));
    }
    for (name, value) in &target.labels {
        add("label", &format!("{name}={value}"));
    }
    for (name, address) in &target.extra_hosts {
        add("add-host", &format!("{name}:{address}"));
    }
    let list = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    for platform in list(&target.platforms) {
        add("platform", &platform);
    }
    for stage in list(&target.no_cache_filter) {
        add("no-cache-filter", &stage);
    }
    let specs = |flag: &str, specs: &[Spec], add: &mut dyn FnMut(&str, &str)| {
        specs.iter().for_each(|spec| add(flag, &spec.text()));
    };
    specs("secret", &target.secrets, &mut add);
    for spec in &target.ssh {
        let id = spec.0.get("id").map_or("default", String::as_str);
        let path = spec.0.get("src").or_else(|| spec.0.get("paths"));
        add("ssh", &path.map_or(id.to_owned(), |path| format!("{id}={path}")));
    }
    specs("cache-from", &target.cache_from, &mut add);
    for (flag, value) in [("target", &target.target), ("network", &target.network)] {
        if let Some(value) = value {
            add(flag, value);
        }
    }
    if common.no_cache || target.no_cache == Some(true) {
        add("no-cache", "true");
    }
    if common.pull || target.pull == Some(true) {
        add("pull", "always");
    }
    for entitlement in &target.entitlements {
        add("allow", entitlement);
    }
    if is_wanted {
        for name in list(&target.tags) {
            add("tag", &name);
        }
        for annotation in &target.annotations {
            add("annotation", annotation);
        }
        let enabled = target
            .attest
            .iter()
            .filter(|spec| spec.0.get("disabled").is_none_or(|value| value != "true"));
        enabled.for_each(|spec| add("attest", &spec.text()));
        specs("cache-to", target.cache_to.as_deref().unwrap_or_default(), &mut add);
        for spec in target.outputs.iter().flatten().filter(|spec| !is_in_store(spec)) {
            add("output", &spec.text());
        }
        if common.push {
            add("push", "true");
        }
        if let Some(call) = if common.check { Some("check") } else { target.call.as_deref() } {
            add("call", call);
        }
    }
    flags.push("--".to_owned());
    flags.push(context.to_owned());
    flags
}

/// Returns whether an output is what every build does anyway: to keep the image in the store.
fn is_in_store(spec: &Spec) -> bool {
    let members = &spec.0;
    match members.get("type").map(String::as_str) {
        Some("cacheonly") => true,
        Some("docker") => !members.contains_key("dest"),
        _ => false,
    }
}
