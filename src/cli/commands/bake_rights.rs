//! What a bake file may do beyond building from the directory that it was called in: somebody else may have written it. As in buildx,
//! each further right is asked for with `--allow`.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::cli::commands::build_output::Outputs;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_build::build::options::Network;
use imgctl_build::build::{LocalPaths, Options};

const INSECURE: &str = "security.insecure";
const HOST_NETWORK: &str = "network.host";
/// The agent that the caller's environment names.
const SSH: &str = "ssh";

/// A right that a file needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Right {
    Privilege(&'static str),
    Read(PathBuf),
    Write(PathBuf),
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Privilege(name) => f.write_str(name),
            Self::Read(path) => write!(f, "fs.read={}", path.display()),
            Self::Write(path) => write!(f, "fs.write={}", path.display()),
        }
    }
}

/// The rights that the command line gives.
pub(crate) struct Rights<'a> {
    /// Values of `--allow`.
    allow: &'a [String],
    /// Where the command was called: paths below it need no right.
    directory: PathBuf,
}

impl<'a> Rights<'a> {
    pub(crate) fn given(allow: &'a [String]) -> Result<Self> {
        let directory = std::env::current_dir()
            .doing(|| "cannot determine the current directory".to_owned())?;
        Ok(Self { allow, directory: real(&directory, Path::new("")) })
    }

    /// Fails if the build of the target `name` needs a right that is not given. What counts is the build
    /// that will run, however the file expresses it. `agent` is the SSH agent of the caller.
    pub(crate) fn check(
        &self,
        name: &str,
        (options, outputs): (&Options, &Outputs),
        agent: Option<&Path>,
    ) -> Result<()> {
        let Outputs { delivery, sbom, provenance, insecure: _ } = outputs;
        let LocalPaths { read, written, agents } = LocalPaths::of(options, delivery);
        let mut needed = BTreeSet::new();
        needed.extend(read.into_iter().map(Right::Read));
        needed.extend(written.into_iter().map(Right::Write));
        needed.extend([sbom, provenance].into_iter().flatten().cloned().map(Right::Write));
        needed.extend(agents.into_iter().map(|path| match agent {
            Some(agent) if *agent == *path => Right::Privilege(SSH),
            _ => Right::Read(path),
        }));
        let has_host_network = options.allow_host_network || options.network == Network::Host;
        let privileges = [(INSECURE, options.allow_insecure), (HOST_NETWORK, has_host_network)];
        needed.extend(
            privileges.iter().filter(|(_, asked)| *asked).map(|(name, _)| Right::Privilege(name)),
        );
        self.demand(&format!("the target `{name}`"), needed)
    }

    /// Fails if reading `path`, which nobody has named on the command line, needs a right.
    pub(crate) fn check_file(&self, path: &Path) -> Result<()> {
        self.demand(&path.display().to_string(), BTreeSet::from([Right::Read(path.to_owned())]))
    }

    fn demand(&self, who: &str, needed: BTreeSet<Right>) -> Result<()> {
        let needed = needed.into_iter().map(|right| match right {
            Right::Read(path) => Right::Read(real(&self.directory, &path)),
            Right::Write(path) => Right::Write(real(&self.directory, &path)),
            other => other,
        });
        let missing: BTreeSet<Right> = needed.filter(|right| !self.has(right)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let asked: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let flags: Vec<String> = asked.iter().map(|right| format!("--allow {right}")).collect();
        Err(Error::denied(format!("{who} asks for {}", asked.join(", ")))
            .hint(format!("pass {} if you trust the file", flags.join(" "))))
    }

    fn has(&self, right: &Right) -> bool {
        let covers = |allowed: &str, path: &Path| {
            allowed == "*" || path.starts_with(real(&self.directory, Path::new(allowed)))
        };
        let (path, word) = match right {
            Right::Privilege(name) => {
                return self.allow.iter().any(|allowed| allowed == name || allowed == "*");
            }
            Right::Read(path) => (path, "fs.read="),
            Right::Write(path) => (path, "fs.write="),
        };
        path.starts_with(&self.directory)
            || self.allow.iter().any(|one| {
                let place = one.strip_prefix(word).or_else(|| one.strip_prefix("fs="));
                one == "*" || place.is_some_and(|place| covers(place, path))
            })
    }
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

    #[test]
    fn what_leaves_the_directory_is_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("project");
        std::fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink("/etc", directory.join("link")).unwrap();
        let directory = real(&directory, Path::new(""));
        let demand = |allow: &[&str], right: Right| {
            let allow: Vec<String> = allow.iter().map(ToString::to_string).collect();
            let rights = Rights { allow: &allow, directory: directory.clone() };
            rights.demand("it", BTreeSet::from([right]))
        };
        let (read, write) =
            (|path: &str| Right::Read(path.into()), |path: &str| Right::Write(path.into()));
        for (right, told) in [
            (write("out"), None),
            (read("."), None),
            (write("new/../../other"), Some("fs.write=")),
            (write("/etc/x"), Some("fs.write=/etc/x")),
            (write("link/x"), Some("fs.write=/etc/x")),
            (read("/etc"), Some("fs.read=/etc")),
            (read("target:/../../other"), Some("fs.read=")),
            (Right::Privilege(INSECURE), Some(INSECURE)),
            (Right::Privilege(HOST_NETWORK), Some(HOST_NETWORK)),
            (Right::Privilege(SSH), Some(SSH)),
        ] {
            match (told, demand(&[], right.clone())) {
                (None, outcome) => outcome.unwrap(),
                (Some(told), outcome) => {
                    let error = outcome.unwrap_err().to_string();
                    assert!(error.contains(told), "{error}");
                }
            }
            demand(&["*"], right).unwrap();
        }
        demand(&["fs.write=/etc"], write("/etc/x")).unwrap();
        demand(&["fs.write=/etc"], write("/etcetera")).unwrap_err();
        demand(&["fs.write=/etc"], read("/etc")).unwrap_err();
        demand(&["fs=/etc"], read("/etc")).unwrap();
        demand(&["ssh"], Right::Privilege(SSH)).unwrap();
        demand(&["ssh"], Right::Privilege(INSECURE)).unwrap_err();
    }
}
