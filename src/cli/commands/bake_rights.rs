//! What a bake file may do beyond building from the directory that it was called in: somebody else may have written it. As in buildx,
//! each further right is asked for with `--allow`.

use std::path::{Component, Path, PathBuf};

use imgctl_bake::{Spec, Target};
use imgctl_base::error::{Error, Result};

const INSECURE: &str = "security.insecure";
const HOST_NETWORK: &str = "network.host";

/// A right that a target needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Right {
    /// A privilege of RUN.
    Entitlement(String),
    Read(PathBuf),
    Write(PathBuf),
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Entitlement(name) => f.write_str(name),
            Self::Read(path) => write!(f, "fs.read={}", path.display()),
            Self::Write(path) => write!(f, "fs.write={}", path.display()),
        }
    }
}

/// Fails if `target` needs a right that `allow`, the values of `--allow`, does not give. Paths below `directory`, where the command was
/// called, need none.
pub(super) fn check(target: &Target, allow: &[String], directory: &Path) -> Result<()> {
    let directory = real(directory, Path::new(""));
    let mut missing: Vec<Right> = needed(target)
        .into_iter()
        .map(|right| match right {
            Right::Read(path) => Right::Read(real(&directory, &path)),
            Right::Write(path) => Right::Write(real(&directory, &path)),
            other => other,
        })
        .filter(|right| !is_given(right, allow, &directory))
        .collect();
    missing.sort();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let asked: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let flags: Vec<String> = asked.iter().map(|right| format!("--allow {right}")).collect();
    Err(Error::denied(format!("the target `{}` asks for {}", target.name, asked.join(", ")))
        .hint(format!("pass {} if you trust the file", flags.join(" "))))
}

fn needed(target: &Target) -> Vec<Right> {
    let mut needed = Vec::new();
    // An entry may be a list, as the flag is.
    for entry in target.entitlements.iter().flat_map(|entry| entry.split(',')) {
        let name = entry.trim();
        if !name.is_empty() {
            needed.push(Right::Entitlement(name.to_owned()));
        }
    }
    if target.network.as_deref() == Some("host") {
        needed.push(Right::Entitlement(HOST_NETWORK.to_owned()));
    }
    let context = target.context.as_deref().unwrap_or(".");
    let contexts = target.contexts.values().map(String::as_str).chain([context]);
    needed.extend(contexts.filter_map(local).map(|path| Right::Read(path.into())));
    if let (Some(file), Some(context)) = (&target.dockerfile, local(context)) {
        needed.push(Right::Read(Path::new(context).join(file)));
    }
    let value = |spec: &Spec, names: &[&str]| {
        names.iter().find_map(|name| spec.0.get(*name)).filter(|value| *value != "-").cloned()
    };
    let is_local = |spec: &&Spec| spec.0.get("type").is_some_and(|kind| kind == "local");
    for spec in target.outputs.iter().flatten() {
        needed.extend(value(spec, &["dest", "output"]).map(|path| Right::Write(path.into())));
    }
    for spec in target.cache_to.iter().flatten().filter(is_local) {
        needed.extend(value(spec, &["dest"]).map(|path| Right::Write(path.into())));
    }
    for spec in target.cache_from.iter().filter(is_local) {
        needed.extend(value(spec, &["src"]).map(|path| Right::Read(path.into())));
    }
    for spec in &target.secrets {
        needed.extend(value(spec, &["src", "source"]).map(|path| Right::Read(path.into())));
    }
    for spec in &target.ssh {
        let paths = value(spec, &["src", "paths"]).unwrap_or_default();
        let paths = paths.split(',').filter(|path| !path.is_empty()).map(PathBuf::from);
        needed.extend(paths.map(Right::Read));
    }
    needed
}

/// Returns the directory of a context on this machine.
fn local(context: &str) -> Option<&str> {
    if let Some(layout) = context.strip_prefix("oci-layout://") {
        let name = layout.rfind(['@', ':']).filter(|at| !layout[*at..].contains('/'));
        return Some(&layout[..name.unwrap_or(layout.len())]);
    }
    let is_elsewhere =
        context.contains("://") || context.starts_with("git@") || context.starts_with("target:");
    (!is_elsewhere).then_some(context)
}

fn is_given(right: &Right, allow: &[String], directory: &Path) -> bool {
    let covers = |allowed: &str, path: &Path| {
        allowed == "*" || path.starts_with(real(directory, Path::new(allowed)))
    };
    let (path, word) = match right {
        Right::Entitlement(name) => {
            let is_named = |allowed: &String| allowed == name || allowed == "*";
            // What is no privilege at all is refused by the build, by name.
            let is_privilege = name == INSECURE || name == HOST_NETWORK || name.contains('*');
            return !is_privilege && !name.starts_with("device") || allow.iter().any(is_named);
        }
        Right::Read(path) => (path, "fs.read="),
        Right::Write(path) => (path, "fs.write="),
    };
    path.starts_with(directory)
        || allow.iter().any(|one| {
            let place = one.strip_prefix(word).or_else(|| one.strip_prefix("fs="));
            one == "*" || place.is_some_and(|place| covers(place, path))
        })
}

/// Returns where `path` really is: links of what exists are followed, `..` of what does not exist is taken back.
fn real(directory: &Path, path: &Path) -> PathBuf {
    let whole = directory.join(path);
    let mut real = PathBuf::new();
    for component in whole.components() {
        match component {
            Component::ParentDir => {
                real.pop();
            }
            component => real.push(component),
        }
        if let Ok(resolved) = real.canonicalize() {
            real = resolved;
        }
    }
    real
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(change: impl FnOnce(&mut Target)) -> Target {
        let mut target = Target { name: "app".to_owned(), ..Target::default() };
        change(&mut target);
        target
    }

    fn spec(pairs: &[(&str, &str)]) -> Spec {
        Spec(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn what_leaves_the_directory_is_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("project");
        std::fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink("/etc", directory.join("link")).unwrap();
        let output = |dest: &str| {
            let output = spec(&[("type", "local"), ("dest", dest)]);
            target(|target| target.outputs = Some(vec![output]))
        };
        let read = |context: &str| target(|target| target.context = Some(context.to_owned()));
        let entitled = |name: &str| target(|target| target.entitlements = vec![name.to_owned()]);
        for (target, right) in [
            (output("out"), None),
            (output("-"), None),
            (output("new/../../other"), Some("fs.write=")),
            (output("/etc/x"), Some("fs.write=/etc/x")),
            (output("link/x"), Some("fs.write=/etc/x")),
            (read("."), None),
            (read("https://example.com/a.git"), None),
            (read("target:base"), None),
            (read("oci-layout:///etc/layout:v1"), Some("fs.read=/etc/layout")),
            (read("/etc"), Some("fs.read=/etc")),
            (entitled("security.insecure"), Some("security.insecure")),
            (entitled("network.host, security.insecure"), Some("security.insecure")),
            (entitled("*"), Some("*")),
            (target(|target| target.network = Some("host".to_owned())), Some("network.host")),
        ] {
            let outcome = check(&target, &[], &directory);
            match right {
                None => outcome.unwrap(),
                Some(right) => {
                    let error = outcome.unwrap_err().to_string();
                    assert!(error.contains(right), "{error}");
                }
            }
            check(&target, &["*".to_owned()], &directory).unwrap();
        }
        let allow = ["fs.write=/etc".to_owned()];
        check(&output("/etc/x"), &allow, &directory).unwrap();
        check(&output("/etcetera"), &allow, &directory).unwrap_err();
        check(&read("/etc"), &allow, &directory).unwrap_err();
        check(&read("/etc"), &["fs=/etc".to_owned()], &directory).unwrap();
    }
}
