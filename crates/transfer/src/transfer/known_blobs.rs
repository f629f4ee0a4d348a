//! Records which repositories have which blobs, so that a push can have the registry mount a blob
//! from one of its own repositories instead of uploading it again.
//!
//! A cache: one file per registry, one line per blob and repository. A wrong entry costs a failed
//! request; a missing entry costs an upload. Must not depend on how blobs are transferred.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use imgctl_base::error::{IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::{Digest, Reference};
use imgctl_store::store::Store;

/// Maximum file size that is read, in bytes: about 40,000 lines.
const MAX_FILE: u64 = 4 << 20;
/// Maximum number of repositories suggested for one blob.
const MAX_OFFERED: usize = 4;

/// Known locations of blobs in registries.
pub struct KnownBlobs {
    directory: PathBuf,
    /// Parsed files by registry, read on first use.
    read: Mutex<HashMap<String, Arc<Places>>>,
}

/// Repositories by blob, most recently learnt last.
type Places = HashMap<Digest, Vec<String>>;

impl KnownBlobs {
    /// Returns the cache kept with `store`. Reads nothing yet.
    pub fn of(store: &Store) -> Self {
        Self { directory: store.cache_directory().join("known-blobs"), read: Mutex::default() }
    }

    /// Repositories of `registry` that had this blob, most likely first.
    pub fn repositories(&self, registry: &str, digest: &Digest) -> Vec<String> {
        let places = self.places(registry);
        let known = places.get(digest).into_iter().flatten();
        known.rev().take(MAX_OFFERED).cloned().collect()
    }

    /// Records that `repository` (with its registry) has these blobs.
    pub fn remember<'a>(
        &self,
        repository: &Reference,
        digests: impl IntoIterator<Item = &'a Digest>,
    ) -> Result<()> {
        let Some(registry) = repository.registry() else {
            return Ok(());
        };
        let known = self.places(registry);
        let name = repository.repository();
        let mut lines = String::new();
        for digest in digests {
            let places = known.get(digest);
            if !places.is_some_and(|places| places.iter().any(|place| place == name)) {
                let _ = writeln!(lines, "{digest} {name}");
            }
        }
        if lines.is_empty() {
            return Ok(());
        }
        let path = self.path(registry);
        let _ = std::fs::create_dir(&self.directory);
        let lock = self.directory.join(".lock");
        let _lock = Lock::acquire(&lock, Mode::Exclusive, &mut || {})?;
        let mut file =
            OpenOptions::new().create(true).append(true).open(&path).path("open", &path)?;
        file.write_all(lines.as_bytes()).path("write", &path)?;
        if file.metadata().path("look at", &path)?.len() > MAX_FILE / 2 {
            self.shorten(registry)?;
        }
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.remove(registry);
        Ok(())
    }

    /// Keeps the newer half. The caller holds the lock.
    fn shorten(&self, registry: &str) -> Result<()> {
        let path = self.path(registry);
        let text = self.text(registry);
        let half = text.len() / 2;
        let start = text.as_bytes()[half..].iter().position(|b| *b == b'\n');
        let kept = start.map_or("", |start| &text[half + start + 1..]);
        atomic::write(&path, kept.as_bytes(), 0o644, Durability::Atomic)
    }

    fn path(&self, registry: &str) -> PathBuf {
        self.directory.join(registry)
    }

    fn places(&self, registry: &str) -> Arc<Places> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = read.get(registry) {
            return Arc::clone(places);
        }
        let places = Arc::new(parse(&self.text(registry)));
        read.insert(registry.to_owned(), Arc::clone(&places));
        places
    }

    /// The content of the file; empty if it cannot be read.
    fn text(&self, registry: &str) -> String {
        let mut bytes = Vec::new();
        let read = File::open(self.path(registry))
            .and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
        match read {
            Ok(_) => String::from_utf8(bytes).unwrap_or_default(),
            Err(_) => String::new(),
        }
    }
}

/// Skips malformed lines (cut off by a full disk).
fn parse(text: &str) -> Places {
    let mut places = Places::new();
    for line in text.lines() {
        let Some((digest, name)) = line.split_once(' ') else {
            continue;
        };
        let Ok(digest) = Digest::parse(digest) else {
            continue;
        };
        let known = places.entry(digest).or_default();
        if Reference::parse(&format!("localhost/{name}")).is_ok() && known.iter().all(|k| k != name)
        {
            known.push(name.to_owned());
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_store::store::Options;

    fn repository(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    #[test]
    fn what_was_learnt_is_offered_newest_first_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let known = KnownBlobs::of(&store);
        assert!(known.repositories("reg.io:5000", &one).is_empty());
        known.remember(&repository("reg.io:5000/a"), [&one, &two]).unwrap();
        known.remember(&repository("reg.io:5000/b/c"), [&one]).unwrap();
        known.remember(&repository("reg.io:5000/a"), [&one]).unwrap();
        for known in [&known, &KnownBlobs::of(&store)] {
            assert_eq!(known.repositories("reg.io:5000", &one), ["b/c", "a"]);
            assert_eq!(known.repositories("reg.io:5000", &two), ["a"]);
            assert!(known.repositories("reg.io", &one).is_empty());
        }
        let file = std::fs::read_to_string(known.path("reg.io:5000")).unwrap();
        assert_eq!(file.lines().count(), 3);
    }

    #[test]
    fn the_file_stays_short_and_damage_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        let known = KnownBlobs::of(&store);
        let name = repository("reg.io/a");
        let digests: Vec<Digest> = (0_u32..30_000).map(|n| Digest::of(&n.to_le_bytes())).collect();
        known.remember(&name, &digests).unwrap();
        let length = std::fs::metadata(known.path("reg.io")).unwrap().len();
        assert!(length < MAX_FILE / 2, "{length}");
        assert!(known.repositories("reg.io", &digests[0]).is_empty());
        assert_eq!(known.repositories("reg.io", &digests[29_999]), ["a"]);
        let digest = Digest::of(b"x");
        let text = format!("{digest}\n{digest} ../a\nsha256:1 a\n{digest} b\n{digest}");
        std::fs::write(known.path("other"), text).unwrap();
        assert_eq!(known.repositories("other", &digest), ["b"]);
    }
}
