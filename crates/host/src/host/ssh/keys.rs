//! Private keys and certificates from files, read and decrypted once for all hosts. Must not depend
//! on hosts.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use russh::keys::{self, Certificate, PrivateKey};

use imgctl_base::fs::secret_file::{self, Exposed};
use imgctl_base::secret::Secret;

#[derive(Clone)]
pub(super) struct Key {
    pub(super) key: Arc<PrivateKey>,
    pub(super) certificate: Option<Certificate>,
    /// Name in messages.
    pub(super) shown: String,
}

/// Result of reading a key: the key, no key, or why it cannot be used.
pub(super) type Outcome = Result<Option<Key>, String>;

#[derive(Clone, PartialEq, Eq)]
enum Source {
    File(PathBuf),
    Text(Secret),
}

/// Caches keys, because decryption takes a tenth of a second by design and must not be repeated for
/// each host.
#[derive(Default)]
pub(in crate::host) struct KeyCache {
    read: Mutex<Vec<(Source, Option<Secret>, Outcome)>>,
}

impl KeyCache {
    /// Returns the key in a file, with the certificate in `FILE-cert.pub` if that exists.
    pub(super) fn file(&self, path: &Path, passphrase: Option<&Secret>) -> Outcome {
        self.get(Source::File(path.to_owned()), passphrase, || read_file(path, passphrase))
    }

    /// Returns a key given as text; `number` is for messages.
    pub(super) fn text(
        &self,
        text: &Secret,
        number: usize,
        passphrase: Option<&Secret>,
    ) -> Outcome {
        self.get(Source::Text(text.clone()), passphrase, || {
            let shown = format!("key {number} given as text");
            let key = decode(text.expose(), passphrase).map_err(|why| format!("{shown} {why}"))?;
            Ok(Some(Key { key: Arc::new(key), certificate: None, shown }))
        })
    }

    fn get(
        &self,
        source: Source,
        passphrase: Option<&Secret>,
        read: impl FnOnce() -> Outcome,
    ) -> Outcome {
        // Held while reading: callers that want the same key wait for it instead of decrypting it
        // too.
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let found =
            known.iter().find(|(from, with, _)| *from == source && with.as_ref() == passphrase);
        if let Some((_, _, outcome)) = found {
            return outcome.clone();
        }
        let outcome = read();
        known.push((source, passphrase.cloned(), outcome.clone()));
        outcome
    }
}

fn read_file(path: &Path, passphrase: Option<&Secret>) -> Outcome {
    const LARGEST: u64 = 1 << 20;
    let shown = path.display().to_string();
    let unreadable = |error: std::io::Error| format!("{shown} cannot be read ({error})");
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let data = file.metadata().map_err(unreadable)?;
    if data.len() > LARGEST {
        return Err(format!("{shown} is too large to be a key"));
    }
    // As ssh does. Who may read a file of another user is not for this one to decide.
    if data.uid() == rustix::process::geteuid().as_raw()
        && let Err(error) = secret_file::check(&file, path, Exposed::Refused)
    {
        let why = format!("{error}: {}", error.hints().join("; "));
        tracing::warn!("the key is not used: {why}");
        return Err(why);
    }
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text).map_err(unreadable)?;
    let text = Secret::new(text);
    let key = decode(text.expose(), passphrase).map_err(|why| format!("{shown} {why}"))?;
    let mut beside = path.as_os_str().to_owned();
    beside.push("-cert.pub");
    let certificate = if Path::new(&beside).exists() {
        Some(
            keys::load_openssh_certificate(&beside)
                .map_err(|error| format!("{} is not a certificate ({error})", beside.display()))?,
        )
    } else {
        None
    };
    Ok(Some(Key { key: Arc::new(key), certificate, shown }))
}

fn decode(text: &str, passphrase: Option<&Secret>) -> Result<PrivateKey, String> {
    let passphrase = passphrase.map(Secret::expose);
    match keys::decode_secret_key(text, passphrase) {
        Ok(key) => Ok(key),
        Err(keys::Error::KeyIsEncrypted) => {
            Err("is encrypted, and no passphrase was given".to_owned())
        }
        Err(error) if passphrase.is_some() && text.contains("PRIVATE KEY") => {
            Err(format!("cannot be read: is the passphrase right? ({error})"))
        }
        Err(error) => Err(format!("is not a private key ({error})")),
    }
}
