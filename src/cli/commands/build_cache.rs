//! `--cache-from` and `--cache-to` of `build`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::{context::Context, duration};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Reference, reference::DEFAULT_TAG};
use imgctl_build::cache::options::DEFAULT_AGE;
use imgctl_build::cache::{CacheOptions, Mode, Place, Source, Target, Trust};

/// Caches that a build shares with builds on other machines.
#[derive(Args, Debug)]
pub(crate) struct CacheArgs {
    /// Use the build cache at NAME or type=registry,ref=NAME or type=local,src=DIRECTORY (may be
    /// repeated)
    #[arg(long, value_name = "SPEC")]
    cache_from: Vec<String>,

    /// Write the build cache to NAME or type=registry,ref=NAME or type=local,dest=DIRECTORY, with
    /// mode=max that of all stages, or with type=inline into the image (may be repeated)
    #[arg(long, value_name = "SPEC")]
    cache_to: Vec<String>,
}

/// Keys of BuildKit's caches that have nothing to decide here.
const NO_EFFECT: [(&str, &str); 6] = [
    ("compression", "layers are cached as the build writes them"),
    ("compression-level", "layers are cached as the build writes them"),
    ("force-compression", "layers are cached as the build writes them"),
    ("oci-mediatypes", "a build cache always has OCI's media types"),
    ("image-manifest", "a build cache is a manifest anyway"),
    ("digest", "a build cache is found by its tag"),
];

impl CacheArgs {
    /// Returns the caches to read and to write.
    pub(crate) fn options(&self, context: &Context) -> Result<CacheOptions> {
        let mut notes = Vec::new();
        let from = self.cache_from.iter().map(|text| source(text, &mut notes));
        let from = from.collect::<Result<_>>()?;
        let mut options = CacheOptions { from, ..CacheOptions::default() };
        for text in &self.cache_to {
            match inline(text, &mut notes)? {
                true => options.inline = true,
                false => options.to.push(target(text, &mut notes)?),
            }
        }
        context.ui.notes(&notes);
        Ok(options)
    }
}

/// The keys and values of one flag.
struct Spec<'a> {
    flag: &'static str,
    text: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Spec<'a> {
    /// Splits `type=registry,ref=NAME`; a bare name is `type=registry,ref=NAME`.
    fn parse(flag: &'static str, text: &'a str) -> Result<Self> {
        let pairs = match text.contains('=') {
            false => vec![("type", "registry"), ("ref", text)],
            true => text
                .split(',')
                .map(|part| {
                    part.split_once('=').ok_or_else(|| {
                        Error::usage(format!("{flag} `{text}`: `{part}` has no value"))
                            .hint("use KEY=VALUE,KEY=VALUE or the name of a registry's cache")
                    })
                })
                .collect::<Result<_>>()?,
        };
        Ok(Self { flag, text, pairs })
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.pairs.iter().position(|(known, _)| *known == key)?;
        Some(self.pairs.remove(at).1)
    }

    fn wrong(&self, why: &str) -> Error {
        Error::usage(format!("{} `{}`: {why}", self.flag, self.text))
    }

    fn place(&mut self, directory: &str) -> Result<Place> {
        match self.take("type") {
            Some("registry") => {
                let name = self.take("ref").ok_or_else(|| self.wrong("there is no ref"))?;
                let reference = Reference::parse(name)?.with_default_tag();
                if reference.registry().is_none() {
                    return Err(self
                        .wrong("the name has no registry")
                        .hint(format!("name it in full, for instance docker.io/{name}")));
                }
                Ok(Place::Registry(reference))
            }
            Some("local") => {
                let path = self.take(directory);
                let path = path.ok_or_else(|| self.wrong(&format!("there is no {directory}")))?;
                let tag = self.take("tag").unwrap_or(DEFAULT_TAG).to_owned();
                Ok(Place::Directory { path: PathBuf::from(path), tag })
            }
            Some(other) => Err(self
                .wrong(&format!("there is no cache of type `{other}`"))
                .hint("use type=registry or type=local")),
            None => Err(self.wrong("there is no type").hint("use type=registry or type=local")),
        }
    }

    /// Refuses what is left, apart from what other tools' scripts pass.
    fn finish(self, notes: &mut Vec<String>) -> Result<()> {
        for (key, _) in &self.pairs {
            match NO_EFFECT.iter().find(|(known, _)| known == key) {
                Some((_, why)) => {
                    notes.push(format!("{key} of {} has no effect: {why}", self.flag));
                }
                None => return Err(self.wrong(&format!("there is no key `{key}`"))),
            }
        }
        Ok(())
    }
}

fn source(text: &str, notes: &mut Vec<String>) -> Result<Source> {
    let mut spec = Spec::parse("--cache-from", text)?;
    let place = spec.place("src")?;
    let trust = match spec.take("trust") {
        None | Some("all") => Trust::All,
        Some("content") => Trust::Content,
        Some(other) => return Err(spec.wrong(&format!("trust cannot be `{other}`"))),
    };
    spec.finish(notes)?;
    Ok(Source { place, trust })
}

/// Reports whether the target is the image itself.
fn inline(text: &str, notes: &mut Vec<String>) -> Result<bool> {
    let mut spec = Spec::parse("--cache-to", text)?;
    if spec.take("type") != Some("inline") {
        return Ok(false);
    }
    match spec.take("mode") {
        None | Some("min") => {}
        Some("max") => notes.push(
            "mode=max of --cache-to has no effect: an image carries the records of its own layers"
                .to_owned(),
        ),
        Some(other) => return Err(spec.wrong(&format!("mode cannot be `{other}`"))),
    }
    // It is written with the image or not at all.
    let _ = spec.take("ignore-error");
    spec.finish(notes)?;
    Ok(true)
}

fn target(text: &str, notes: &mut Vec<String>) -> Result<Target> {
    let mut spec = Spec::parse("--cache-to", text)?;
    let place = spec.place("dest")?;
    let mode = match spec.take("mode") {
        None | Some("min") => Mode::Min,
        Some("max") => Mode::Max,
        Some(other) => return Err(spec.wrong(&format!("mode cannot be `{other}`"))),
    };
    let max_age = spec.take("max-age").map(duration::parse).transpose()?.unwrap_or(DEFAULT_AGE);
    let ignore_error = match spec.take("ignore-error") {
        None | Some("true") => true,
        Some("false") => false,
        Some(other) => return Err(spec.wrong(&format!("ignore-error cannot be `{other}`"))),
    };
    spec.finish(notes)?;
    Ok(Target { place, mode, max_age, ignore_error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> Result<Source> {
        source(text, &mut Vec::new())
    }

    fn to(text: &str) -> Result<Target> {
        target(text, &mut Vec::new())
    }

    #[test]
    fn a_bare_name_is_a_registrys() {
        let bare = from("reg.io:5000/a/cache").unwrap();
        assert_eq!(bare, from("type=registry,ref=reg.io:5000/a/cache:latest").unwrap());
        assert_eq!(bare.trust, Trust::All);
        assert_eq!(from("type=local,src=/c,trust=content").unwrap().trust, Trust::Content);
        let spec = to("type=local,dest=/c,mode=max,ignore-error=false,max-age=7d").unwrap();
        assert_eq!((spec.mode, spec.ignore_error), (Mode::Max, false));
        assert_eq!(spec.max_age.as_secs(), 7 * 86_400);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for wrong in [
            "type=s3,bucket=x",
            "ref=reg.io/a",
            "type=local,dest=/c",
            "a/b",
            "type=registry",
            "type=registry,ref=reg.io/a,mode=max",
            "type=local,src",
        ] {
            assert!(from(wrong).is_err(), "{wrong}");
        }
        assert!(to("type=local,dest=/c,mode=some").is_err());
        let mut notes = Vec::new();
        target("type=registry,ref=reg.io/a,oci-mediatypes=true", &mut notes).unwrap();
        assert_eq!(notes.len(), 1);
    }
}
