//! `--cache-from` and `--cache-to` of `build`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use clap::Args;

use crate::cli::commands::keys::{self, PasswordArg};
use imgctl_base::error::Result;
use imgctl_build::cache::options::DEFAULT_AGE;
use imgctl_build::cache::{CacheOptions, Mode, Signer, Source, Target, Trust};
use imgctl_frontend::{cache_spec::Spec, context::Context, duration, environment::Environment};
use imgctl_trust::PublicKey;

/// Caches that a build shares with builds on other machines.
#[derive(Args, Debug)]
pub(crate) struct CacheArgs {
    /// Use the build cache at NAME, type=registry,ref=NAME, type=local,src=DIRECTORY or
    /// type=gha,scope=SCOPE; results of RUN only if key=FILE has signed them, or with trust=all (may be
    /// repeated)
    #[arg(long, value_name = "SPEC")]
    cache_from: Vec<String>,

    /// Write the build cache to NAME, type=registry,ref=NAME, type=local,dest=DIRECTORY or
    /// type=gha,scope=SCOPE, with mode=max that of all stages, or with type=inline into the
    /// image; signed with key=FILE (may be repeated)
    #[arg(long, value_name = "SPEC")]
    cache_to: Vec<String>,
}

/// Variable with the key for all caches without a `key` of their own.
const KEY: &str = "IMGCTL_CACHE_KEY";

impl CacheArgs {
    /// Returns the caches to read and to write.
    pub(crate) fn options(&self, context: &Context) -> Result<CacheOptions> {
        let environment = &context.environment;
        let (mut options, mut notes) = (CacheOptions::default(), Vec::new());
        let keys = Keys { context, opened: RefCell::default() };
        let (public, private) = (|path: &str| keys.public(path), |path: &str| keys.private(path));
        for text in &self.cache_from {
            options.from.extend(source(text, environment, &public, &mut notes)?);
        }
        for text in &self.cache_to {
            if inline(text, &mut notes)? {
                options.inline = true;
            } else {
                options.to.extend(target(text, environment, &private, &mut notes)?);
            }
        }
        context.ui.notes(&notes);
        let has_key = environment.lossless(KEY)?.is_some_and(|key| !key.is_empty());
        if has_key && !(options.from.is_empty() && options.to.is_empty()) {
            let path = format!("env://{KEY}");
            let verifier = public(&path)?;
            for source in &mut options.from {
                source.key.get_or_insert_with(|| verifier.clone());
            }
            // A public key only reads: for jobs that must not vouch for anything.
            if !keys::is_public(Path::new(&path), context)? {
                let signer = private(&path)?;
                for target in &mut options.to {
                    target.signer.get_or_insert_with(|| signer.clone());
                }
            }
        }
        Ok(options)
    }
}

/// The keys that the flags name. Each private one is opened once: a password costs a tenth of a second.
struct Keys<'a> {
    context: &'a Context,
    opened: RefCell<HashMap<String, Signer>>,
}

impl Keys<'_> {
    fn private(&self, path: &str) -> Result<Signer> {
        if let Some(signer) = self.opened.borrow().get(path) {
            return Ok(signer.clone());
        }
        let key = keys::private(Path::new(path), &PasswordArg::default(), self.context)?;
        let signer = Signer::new(key)?;
        self.opened.borrow_mut().insert(path.to_owned(), signer.clone());
        Ok(signer)
    }

    /// Returns a public key, or the public half of a private one.
    fn public(&self, path: &str) -> Result<PublicKey> {
        if keys::is_public(Path::new(path), self.context)? {
            keys::public_at(Path::new(path), self.context)
        } else {
            Ok(self.private(path)?.public().clone())
        }
    }
}

fn source(
    text: &str,
    environment: &Environment,
    read: &dyn Fn(&str) -> Result<PublicKey>,
    notes: &mut Vec<String>,
) -> Result<Option<Source>> {
    let mut spec = Spec::parse("--cache-from", text)?;
    let place = spec.place("src", environment)?;
    let trust = spec.choice("trust", [("content", Trust::Content), ("all", Trust::All)])?;
    let key = spec.take("key");
    notes.extend(spec.finish()?);
    let key = key.map(read).transpose()?;
    Ok(place.map(|place| Source { place, trust, key }))
}

/// Reports whether the target is the image itself.
fn inline(text: &str, notes: &mut Vec<String>) -> Result<bool> {
    let mut spec = Spec::parse("--cache-to", text)?;
    if spec.take("type") != Some("inline") {
        return Ok(false);
    }
    if spec.choice("mode", [("min", false), ("max", true)])? {
        spec.note("mode=max has no effect: an image carries the records of its own layers");
    }
    // The records are written with the image or not at all.
    let _ = spec.take("ignore-error");
    notes.extend(spec.finish()?);
    Ok(true)
}

fn target(
    text: &str,
    environment: &Environment,
    read: &dyn Fn(&str) -> Result<Signer>,
    notes: &mut Vec<String>,
) -> Result<Option<Target>> {
    let mut spec = Spec::parse("--cache-to", text)?;
    let place = spec.place("dest", environment)?;
    let mode = spec.choice("mode", [("min", Mode::Min), ("max", Mode::Max)])?;
    let max_age = spec.take("max-age").map(duration::parse).transpose()?.unwrap_or(DEFAULT_AGE);
    let ignore_error = spec.choice("ignore-error", [("true", true), ("false", false)])?;
    if place.is_none() && !ignore_error {
        return Err(spec
            .wrong("GitHub's cache service is not available")
            .hint("it needs ACTIONS_RESULTS_URL and ACTIONS_RUNTIME_TOKEN, or ignore-error=true"));
    }
    let key = spec.take("key");
    notes.extend(spec.finish()?);
    let signer = key.map(read).transpose()?;
    Ok(place.map(|place| Target { place, mode, max_age, ignore_error, signer }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_trust::PrivateKey;

    fn from(text: &str) -> Result<Source> {
        let read = |_: &str| PrivateKey::generate()?.public();
        source(text, &Environment::default(), &read, &mut Vec::new()).map(Option::unwrap)
    }

    fn to(text: &str) -> Result<Target> {
        let read = |_: &str| Signer::new(PrivateKey::generate()?);
        target(text, &Environment::default(), &read, &mut Vec::new()).map(Option::unwrap)
    }

    #[test]
    fn a_bare_name_is_a_registrys() {
        let bare = from("reg.io:5000/a/cache").unwrap();
        assert_eq!(bare, from("type=registry,ref=reg.io:5000/a/cache:latest").unwrap());
        assert_eq!((bare.trust, bare.key.is_some()), (Trust::Content, false));
        assert_eq!(from("type=local,src=/c,trust=all").unwrap().trust, Trust::All);
        assert!(from("type=local,src=/c,key=a.pub").unwrap().key.is_some());
        assert!(to("type=local,dest=/c,key=a.key").unwrap().signer.is_some());
        let spec = to("type=local,dest=/c,mode=max,ignore-error=false,max-age=7d").unwrap();
        assert_eq!((spec.mode, spec.ignore_error), (Mode::Max, false));
        assert_eq!(spec.max_age.as_secs(), 7 * 86_400);
        assert!(inline("type=inline,mode=max", &mut Vec::new()).unwrap());
        assert!(!inline("type=registry,ref=a/b", &mut Vec::new()).unwrap());
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
        assert!(to("type=gha,ignore-error=false").is_err());
        let mut notes = Vec::new();
        let text = "type=registry,ref=reg.io/a,oci-mediatypes=true";
        let read = |_: &str| Signer::new(PrivateKey::generate()?);
        target(text, &Environment::default(), &read, &mut notes).unwrap();
        assert_eq!(notes.len(), 1);
    }
}
