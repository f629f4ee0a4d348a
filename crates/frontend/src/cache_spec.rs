//! How caches are named on the command line: `NAME`, or keys and values as BuildKit has them. Tokens and
//! URLs of GitHub's cache service come from the environment, and no message shows a token.

use std::path::PathBuf;
use std::time::Duration;

use crate::{duration, environment::Environment};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Reference, reference::DEFAULT_TAG};
use imgctl_base::secret::Secret;
use imgctl_build::cache::{GhaCache, Place};

const TYPES: &str = "use type=registry, type=local or type=gha";
/// Scope of a cache in GitHub's cache service that names none.
const DEFAULT_SCOPE: &str = "imgctl";
/// How long a request to GitHub's cache service is repeated.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Values of these keys are not shown.
const SECRETS: [&str; 2] = ["token", "ghtoken"];

/// Keys of BuildKit's caches that have nothing to decide here.
const NO_EFFECT: [(&str, &str); 8] = [
    ("compression", "layers are cached as the build writes them"),
    ("compression-level", "layers are cached as the build writes them"),
    ("force-compression", "layers are cached as the build writes them"),
    ("oci-mediatypes", "a build cache always has OCI's media types"),
    ("image-manifest", "a build cache is a manifest anyway"),
    ("digest", "a build cache is found by its tag"),
    ("ghtoken", "entries are looked up one by one"),
    ("repository", "the token says which repository it is for"),
];

/// The keys and values of one cache.
pub struct Spec<'a> {
    flag: &'static str,
    pairs: Vec<(&'a str, &'a str)>,
    /// The text without secrets, for messages.
    shown: String,
    notes: Vec<String>,
}

impl<'a> Spec<'a> {
    /// Splits `type=registry,ref=NAME`; a bare name is `type=registry,ref=NAME`. `flag` is for
    /// messages.
    pub fn parse(flag: &'static str, text: &'a str) -> Result<Self> {
        let parts = text.split(',').map(|part| (part, part.split_once('=')));
        let shown: Vec<String> = parts
            .clone()
            .map(|(part, pair)| match pair {
                Some((key, _)) if SECRETS.contains(&key) => format!("{key}=***"),
                _ => part.to_owned(),
            })
            .collect();
        let shown = shown.join(",");
        let pairs = if text.contains('=') {
            parts
                .map(|(part, pair)| {
                    pair.ok_or_else(|| {
                        Error::usage(format!("{flag} `{shown}`: `{part}` has no value"))
                            .hint("use KEY=VALUE,KEY=VALUE or the name of a registry's cache")
                    })
                })
                .collect::<Result<_>>()?
        } else {
            vec![("type", "registry"), ("ref", text)]
        };
        Ok(Self { flag, pairs, shown, notes: Vec::new() })
    }

    /// Returns the place that a lone name means: that of a cache to read, or a directory.
    pub fn lone(text: &str, environment: &Environment) -> Result<(Place, Vec<String>)> {
        if text.starts_with(['/', '.']) && !text.contains('=') {
            let place = Place::Directory { path: text.into(), tag: DEFAULT_TAG.to_owned() };
            return Ok((place, Vec::new()));
        }
        let mut spec = Spec::parse("the cache", text)?;
        let place = spec.place("src", environment)?.ok_or_else(|| {
            Error::not_found("GitHub's cache service is not available")
                .hint("it needs ACTIONS_RESULTS_URL and ACTIONS_RUNTIME_TOKEN")
        })?;
        Ok((place, spec.finish()?))
    }

    /// Takes the value of a key.
    pub fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.pairs.iter().position(|(known, _)| *known == key)?;
        Some(self.pairs.remove(at).1)
    }

    /// Takes one of a few values; the first is the default.
    pub fn choice<T: Copy>(&mut self, key: &str, values: [(&str, T); 2]) -> Result<T> {
        let Some(given) = self.take(key) else { return Ok(values[0].1) };
        let found = values.iter().find(|(value, _)| *value == given);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let [(one, _), (other, _)] = values;
            self.wrong(&format!("{key} cannot be `{given}`")).hint(format!("use {one} or {other}"))
        })
    }

    /// Returns an error about this text.
    pub fn wrong(&self, why: &str) -> Error {
        Error::usage(format!("{} `{}`: {why}", self.flag, self.shown))
    }

    /// Adds a note about this text.
    pub fn note(&mut self, text: &str) {
        self.notes.push(format!("{} `{}`: {text}", self.flag, self.shown));
    }

    fn warn(&self, why: &str) {
        tracing::warn!("{} `{}` is not used: {why}", self.flag, self.shown);
    }

    /// Takes the place; `directory` is the key of a local one. Returns `None`, with a warning, if
    /// it is a place that only jobs of GitHub Actions have.
    pub fn place(&mut self, directory: &str, environment: &Environment) -> Result<Option<Place>> {
        match self.take("type") {
            Some("registry") => {
                let name = self.take("ref").ok_or_else(|| self.wrong("there is no ref"))?;
                let reference = Reference::parse(name)?.with_default_tag();
                if reference.registry().is_none() {
                    return Err(self
                        .wrong("the name has no registry")
                        .hint(format!("name it in full, for instance docker.io/{name}")));
                }
                Ok(Some(Place::Registry(reference)))
            }
            Some("local") => {
                let path = self.take(directory);
                let path = path.ok_or_else(|| self.wrong(&format!("there is no {directory}")))?;
                let tag = self.take("tag").unwrap_or(DEFAULT_TAG).to_owned();
                Ok(Some(Place::Directory { path: PathBuf::from(path), tag }))
            }
            Some("gha") => self.gha(environment),
            Some(other) => {
                Err(self.wrong(&format!("there is no cache of type `{other}`")).hint(TYPES))
            }
            None => Err(self.wrong("there is no type").hint(TYPES)),
        }
    }

    fn gha(&mut self, environment: &Environment) -> Result<Option<Place>> {
        let scope = self.take("scope").unwrap_or(DEFAULT_SCOPE);
        let timeout = self.take("timeout").map(duration::parse).transpose()?;
        if self.take("version").is_some_and(|version| version != "2") {
            return Err(self.wrong("imgctl speaks only version 2 of GitHub's cache service"));
        }
        let (url, url_v2) = (self.take("url"), self.take("url_v2"));
        let given = self.take("token");
        if given.is_some() {
            self.note("other processes see the token; set ACTIONS_RUNTIME_TOKEN instead");
        }
        let of_version_1 = environment.switch("ACTIONS_CACHE_SERVICE_V2")? == Some(false);
        let url = match url_v2.or(url) {
            None if of_version_1 => {
                self.warn("this server has version 1 of the cache service alone");
                return Ok(None);
            }
            None => environment.text("ACTIONS_RESULTS_URL")?,
            given => given,
        };
        let token = match given {
            None => environment.text("ACTIONS_RUNTIME_TOKEN")?,
            given => given,
        };
        let (Some(url), Some(token)) = (url, token) else {
            let name =
                if token.is_none() { "ACTIONS_RUNTIME_TOKEN" } else { "ACTIONS_RESULTS_URL" };
            self.warn(&format!(
                "{name} is not set; a `run:` step of GitHub Actions has it only if an earlier step \
                 exports it (docs/build-cache.md)"
            ));
            return Ok(None);
        };
        let timeout = timeout.unwrap_or(DEFAULT_TIMEOUT);
        Ok(Some(Place::Gha(GhaCache::new(url, Secret::new(token), scope, timeout))))
    }

    /// Refuses what is left, apart from what other tools' scripts pass; returns the notes.
    pub fn finish(mut self) -> Result<Vec<String>> {
        for (key, _) in &self.pairs {
            match NO_EFFECT.iter().find(|(known, _)| known == key) {
                Some((_, why)) => {
                    self.notes.push(format!("{key} of {} has no effect: {why}", self.flag));
                }
                None => return Err(self.wrong(&format!("there is no key `{key}`"))),
            }
        }
        Ok(self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, variables: &[(&str, &str)]) -> (Result<Option<Place>>, Vec<String>) {
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let environment = Environment::new(variables.collect());
        let mut spec = Spec::parse("--cache-from", text).unwrap();
        (spec.place("src", &environment), spec.finish().unwrap_or_default())
    }

    #[test]
    fn githubs_cache_takes_url_and_token_from_the_job() {
        let job = [("ACTIONS_RESULTS_URL", "https://r/"), ("ACTIONS_RUNTIME_TOKEN", "t0ken")];
        let (found, notes) = place("type=gha,scope=main,timeout=2m", &job);
        let Place::Gha(cache) = found.unwrap().unwrap() else { panic!("another place") };
        assert_eq!((&*cache.url, &*cache.scope), ("https://r/", "main"));
        assert_eq!((cache.token.expose(), cache.timeout.as_secs()), ("t0ken", 120));
        assert!(notes.is_empty());
        assert!(place("type=gha", &job[..1]).0.unwrap().is_none());
        let old = [job[0], job[1], ("ACTIONS_CACHE_SERVICE_V2", "false")];
        assert!(place("type=gha", &old).0.unwrap().is_none());
        assert!(place("type=gha,version=1", &job).0.is_err());
    }

    #[test]
    fn no_message_shows_a_token() {
        let text = "type=gha,url_v2=https://r,token=s3cret,ghtoken=s3cret";
        let (found, notes) = place(text, &[]);
        assert!(!format!("{:?} {notes:?}", found.unwrap()).contains("s3cret"));
        assert!(
            !Spec::parse("--cache-to", text).unwrap().wrong("x").to_string().contains("s3cret")
        );
        let broken = Spec::parse("--cache-to", "token=s3cret,mode").err().unwrap();
        assert!(!broken.to_string().contains("s3cret"));
    }
}
