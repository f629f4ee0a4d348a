//! Paths of this machine that a build opens, for callers that must ask before they use somebody else's
//! settings. Must not know where the settings came from.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::build::deliver::{Delivery, Export, To};
use crate::build::options::{ContextSource, EmbedOptions, NamedContext, Options, SecretSource};
use crate::cache::options::{CacheOptions, Source, Target};
use crate::cache::places::Place;

/// Paths that a build reads and writes, relative to the working directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LocalPaths {
    pub read: Vec<PathBuf>,
    pub written: Vec<PathBuf>,
    /// Sockets of SSH agents that `RUN` reaches.
    pub agents: Vec<PathBuf>,
}

impl LocalPaths {
    /// Returns the paths of a build. Each option is named here, so that a new one does not go unnoticed.
    #[rustfmt::skip]
    pub fn of(options: &Options, delivery: &Delivery) -> Self {
        let Options {
            context, file, ignore_file, build_contexts, cache, secrets, ssh, embed,
            tags: _, platforms: _, all_platforms: _, target: _, build_args: _, env: _, unset_env: _, labels: _,
            annotations: _, platform_annotations: _, base_images: _, no_cache: _, no_cache_stages: _,
            compression: _, format: _, timestamp: _, now: _, squash: _, network: _, allow_insecure: _,
            allow_host_network: _, mirrors: _, add_hosts: _, jobs: _, executable: _, proxy_env: _, attest: _,
            overrides: _, turns: _, lint: _,
        } = options;
        let EmbedOptions { lock_file, save: _, search: _, lock: _, all: _, pulls: _, naming: _ } = embed;
        let CacheOptions { from, to, inline: _, leave: _ } = cache;
        let Delivery { exports, list: _, places: _, form: _, split: _ } = delivery;
        let mut paths = Self::default();
        match context {
            ContextSource::Directory(path) | ContextSource::Archive(path) => {
                paths.read.push(path.clone());
            }
            ContextSource::Stdin => {}
        }
        // What is not in the working directory is looked up inside the context.
        let is_here = |file: &&PathBuf| **file != *Path::new("-") && file.exists();
        paths.read.extend(file.iter().filter(is_here).cloned());
        paths.read.extend(ignore_file.iter().cloned());
        for (_, context) in build_contexts.iter() {
            match context {
                NamedContext::Directory(path) => paths.read.push(path.clone()),
                NamedContext::OciLayout(path) => paths.read.push(layout(path).0.into_owned()),
                NamedContext::Image(_) => {}
            }
        }
        for Source { place, trust: _, key: _ } in from {
            paths.read.extend(directory(place));
        }
        for Target { place, mode: _, max_age: _, ignore_error: _, signer: _ } in to {
            paths.written.extend(directory(place));
        }
        for secret in secrets.values() {
            match secret {
                SecretSource::File(path) => paths.read.push(path.clone()),
                SecretSource::Value(_) => {}
            }
        }
        paths.agents.extend(ssh.values().cloned());
        paths.written.extend(lock_file.iter().cloned());
        for export in exports {
            match export {
                Export::Archive { to: To::Path(path), format: _, names: _ }
                | Export::Files(path)
                | Export::Tar(To::Path(path)) => paths.written.push(path.clone()),
                Export::Archive { to: To::Stdout, .. } | Export::Tar(To::Stdout) => {}
            }
        }
        paths
    }
}

fn directory(place: &Place) -> Option<PathBuf> {
    match place {
        Place::Directory { path, tag: _ } => Some(path.clone()),
        Place::Registry(_) | Place::Gha(_) => None,
    }
}

/// Splits `DIRECTORY[:TAG|@DIGEST]`; a directory may also have such a name.
pub(super) fn layout(path: &Path) -> (Cow<'_, Path>, Option<String>) {
    let split = |text: &str| {
        let (directory, choice) = match text.rsplit_once('@') {
            Some((directory, digest)) => {
                let tagged = directory.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
                (tagged.map_or(directory, |(directory, _)| directory), digest)
            }
            None => text.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))?,
        };
        Some((PathBuf::from(directory), choice.to_owned()))
    };
    match path.to_str().filter(|_| !path.exists()).and_then(split) {
        Some((directory, choice)) => (Cow::Owned(directory), Some(choice)),
        None => (Cow::Borrowed(path), None),
    }
}
