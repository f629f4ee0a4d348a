//! Who can read an encrypted file: X25519 recipients with their identities, or a passphrase.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey, X25519};
use aws_lc_rs::{hkdf, hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::bech32;
use crate::stanza::{Stanza, decode, malformed};
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;

const RECIPIENT: &str = "age";
const IDENTITY: &str = "age-secret-key-";
const X25519_STANZA: &str = "X25519";
const X25519_INFO: &[u8] = b"age-encryption.org/v1/X25519";
const SCRYPT_STANZA: &str = "scrypt";
const SCRYPT_SALT: &[u8] = b"age-encryption.org/v1/scrypt";
/// Cost of a passphrase as age writes it, about a second: 256 MiB.
const WORK: u8 = 18;
/// Maximum cost that is accepted: a file must not make the reader use more than 1 GiB.
const MOST_WORK: u8 = 20;
const KEY: usize = 32;
const FILE_KEY: usize = 16;
/// Length of a wrapped file key: with its tag.
const WRAPPED: usize = FILE_KEY + 16;

/// The secret that everything in one file is derived from.
pub(super) struct FileKey([u8; FILE_KEY]);

impl FileKey {
    pub(super) fn generate() -> Result<Self> {
        Ok(Self(random()?))
    }

    /// Returns the key of the content.
    pub(super) fn content(&self, nonce: &[u8]) -> Result<LessSafeKey> {
        cipher(&derive(&self.0, nonce, b"payload")?)
    }

    pub(super) fn authenticate(&self, header: &[u8]) -> Result<Vec<u8>> {
        Ok(hmac::sign(&self.authenticator()?, header).as_ref().to_vec())
    }

    pub(super) fn authenticates(&self, header: &[u8], mac: &[u8]) -> Result<bool> {
        Ok(hmac::verify(&self.authenticator()?, header, mac).is_ok())
    }

    fn authenticator(&self) -> Result<hmac::Key> {
        Ok(hmac::Key::new(hmac::HMAC_SHA256, &derive(&self.0, &[], b"header")?))
    }

    fn of(bytes: &[u8]) -> Result<Self> {
        bytes.try_into().map(Self).map_err(|_| malformed())
    }
}

/// For whom a file is encrypted.
#[derive(Clone, Debug)]
pub struct Recipients(To);

#[derive(Clone, Debug)]
enum To {
    Keys(Vec<[u8; KEY]>),
    Passphrase(Secret, u8),
}

impl Recipients {
    /// Parses recipients `age1…`, one a line; lines that begin with `#` are comments. `name` names
    /// the text in errors.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        let keys: Result<Vec<_>> =
            lines(text).map(|(number, line)| recipient(line, name, number)).collect();
        Self::of(keys?, name)
    }

    fn of(keys: Vec<[u8; KEY]>, name: &str) -> Result<Self> {
        if keys.is_empty() {
            return Err(Error::usage(format!("{name} names no recipient")).hint(
                "a recipient begins with age1; `age-keygen -y FILE` shows that of an identity",
            ));
        }
        Ok(Self(To::Keys(keys)))
    }

    /// Everybody who knows the passphrase.
    pub fn passphrase(passphrase: Secret) -> Self {
        Self(To::Passphrase(passphrase, WORK))
    }

    /// Changes the cost of trying a passphrase.
    #[cfg(test)]
    pub(super) fn with_work(mut self, logarithm: u8) -> Self {
        if let To::Passphrase(_, work) = &mut self.0 {
            *work = logarithm;
        }
        self
    }

    /// Adds the recipients of `other`; a passphrase stands alone.
    pub fn and(self, other: Self) -> Result<Self> {
        match (self.0, other.0) {
            (To::Keys(mut keys), To::Keys(more)) => {
                keys.extend(more);
                Ok(Self(To::Keys(keys)))
            }
            _ => Err(Error::usage("a passphrase cannot be combined with recipients")
                .hint("give either the passphrase or recipients")),
        }
    }

    /// Returns the recipients as text, which [`Recipients::parse`] reads; `None` for a passphrase.
    pub fn text(&self) -> Option<String> {
        match &self.0 {
            To::Keys(keys) => Some(
                keys.iter().map(|key| format!("{}\n", bech32::encode(RECIPIENT, key))).collect(),
            ),
            To::Passphrase(..) => None,
        }
    }

    pub(super) fn wrap(&self, key: &FileKey) -> Result<Vec<Stanza>> {
        match &self.0 {
            To::Keys(keys) => keys.iter().map(|recipient| for_recipient(recipient, key)).collect(),
            To::Passphrase(passphrase, work) => Ok(vec![for_passphrase(passphrase, *work, key)?]),
        }
    }
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().map(str::trim).enumerate();
    lines
        .map(|(at, line)| (at + 1, line))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn recipient(line: &str, name: &str, number: usize) -> Result<[u8; KEY]> {
    let wrong = |why: &str| {
        Error::usage(format!("line {number} of {name} is not a recipient: {why}"))
            .hint("a recipient of age begins with age1 (X25519); keys of SSH and plugins are not supported")
    };
    if is_identity(line) {
        // Not quoted: it is a secret.
        return Err(wrong("it is an identity, the secret half")
            .hint("`age-keygen -y FILE` shows its recipient"));
    }
    let (prefix, data) = bech32::decode(line).ok_or_else(|| wrong("it is malformed"))?;
    if prefix != RECIPIENT {
        return Err(wrong("it is of another kind"));
    }
    data.try_into().map_err(|_| wrong("its length is wrong"))
}

fn for_recipient(recipient: &[u8; KEY], key: &FileKey) -> Result<Stanza> {
    let own = PrivateKey::generate(&X25519).map_err(|_| cannot())?;
    let share = own.compute_public_key().map_err(|_| cannot())?;
    let wrapping = agreed(&own, recipient, share.as_ref(), recipient)?
        .ok_or_else(|| Error::usage("a recipient is not a usable key"))?;
    Ok(Stanza {
        kind: X25519_STANZA.to_owned(),
        arguments: vec![STANDARD_NO_PAD.encode(share.as_ref())],
        body: wrapped(&wrapping, key)?,
    })
}

/// Returns the wrapping key; `None` if the other side's key is not usable.
fn agreed(
    own: &PrivateKey,
    other: &[u8],
    share: &[u8],
    recipient: &[u8],
) -> Result<Option<[u8; KEY]>> {
    let other = UnparsedPublicKey::new(&X25519, other);
    let secret = agreement::agree(own, other, (), |secret| Ok(secret.to_vec()));
    // A point of low order gives zeros.
    let secret = secret.ok().filter(|secret| secret.iter().any(|byte| *byte != 0));
    secret.map(|secret| derive(&secret, &[share, recipient].concat(), X25519_INFO)).transpose()
}

fn for_passphrase(passphrase: &Secret, work: u8, key: &FileKey) -> Result<Stanza> {
    let salt: [u8; 16] = random()?;
    Ok(Stanza {
        kind: SCRYPT_STANZA.to_owned(),
        arguments: vec![STANDARD_NO_PAD.encode(salt), work.to_string()],
        body: wrapped(&stretched(passphrase, &salt, work)?, key)?,
    })
}

fn stretched(passphrase: &Secret, salt: &[u8], work: u8) -> Result<[u8; KEY]> {
    let params = scrypt::Params::new(work, 8, 1).map_err(|_| malformed())?;
    let mut key = [0; KEY];
    let salt = [SCRYPT_SALT, salt].concat();
    scrypt::scrypt(passphrase.expose().as_bytes(), &salt, &params, &mut key)
        .map_err(|_| malformed())?;
    Ok(key)
}

/// Whether a text begins as an identity does: it is a secret, and must not be shown.
pub fn is_identity(text: &str) -> bool {
    text.trim_start()
        .get(..IDENTITY.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(IDENTITY))
}

/// With what files are decrypted.
#[derive(Default)]
pub struct Identities {
    keys: Vec<PrivateKey>,
    passphrase: Option<Secret>,
}

impl std::fmt::Debug for Identities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identities({} keys)", self.keys.len())
    }
}

impl Identities {
    /// Parses identities `AGE-SECRET-KEY-1…`, one a line, as age-keygen writes them.
    pub fn parse(text: &Secret, name: &str) -> Result<Self> {
        let mut keys = Vec::new();
        for (number, line) in lines(text.expose()) {
            let wrong = || {
                Error::usage(format!("line {number} of {name} is not an identity of age")).hint(
                    "an identity begins with AGE-SECRET-KEY-1 (age-keygen); decrypt a file of \
                     identities that is protected by a passphrase first: age -d FILE",
                )
            };
            let (prefix, data) = bech32::decode(line).ok_or_else(wrong)?;
            if prefix != IDENTITY {
                return Err(wrong());
            }
            keys.push(PrivateKey::from_private_key(&X25519, &data).map_err(|_| wrong())?);
        }
        if keys.is_empty() {
            return Err(Error::usage(format!("{name} contains no identity")));
        }
        Ok(Self { keys, passphrase: None })
    }

    /// Decrypts what was encrypted with the passphrase.
    pub fn passphrase(passphrase: Secret) -> Self {
        Self { keys: Vec::new(), passphrase: Some(passphrase) }
    }

    /// Whether there is nothing to decrypt with.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.passphrase.is_none()
    }

    /// Returns the recipients of these identities, as text.
    pub fn recipients(&self) -> Result<Vec<String>> {
        let recipient = |key: &PrivateKey| -> Result<String> {
            let public = key.compute_public_key().map_err(|_| cannot())?;
            Ok(bech32::encode(RECIPIENT, public.as_ref()))
        };
        self.keys.iter().map(recipient).collect()
    }

    /// Returns a new identity and its recipient.
    #[cfg(test)]
    pub(super) fn generate() -> Result<(String, Self)> {
        let key = PrivateKey::generate(&X25519).map_err(|_| cannot())?;
        let public = key.compute_public_key().map_err(|_| cannot())?;
        let recipient = bech32::encode(RECIPIENT, public.as_ref());
        Ok((recipient, Self { keys: vec![key], passphrase: None }))
    }

    pub(super) fn unwrap(&self, stanzas: &[Stanza]) -> Result<FileKey> {
        let by_passphrase = stanzas.iter().find(|stanza| stanza.kind == SCRYPT_STANZA);
        if let Some(stanza) = by_passphrase {
            if stanzas.len() != 1 {
                return Err(malformed());
            }
            let Some(passphrase) = &self.passphrase else {
                return Err(Error::denied("it is encrypted with a passphrase")
                    .hint("give the file that contains it: --passphrase-file FILE"));
            };
            return unlocked(stanza, passphrase)?
                .ok_or_else(|| Error::denied("the passphrase does not decrypt it"));
        }
        for stanza in stanzas.iter().filter(|stanza| stanza.kind == X25519_STANZA) {
            let [share] = stanza.arguments.as_slice() else { return Err(malformed()) };
            let share = decode(share)?;
            if share.len() != KEY || stanza.body.len() != WRAPPED {
                return Err(malformed());
            }
            for own in &self.keys {
                let public = own.compute_public_key().map_err(|_| cannot())?;
                let wrapping = agreed(own, &share, &share, public.as_ref())?;
                let Some(wrapping) = wrapping else { return Err(malformed()) };
                if let Some(key) = unwrapped(&wrapping, &stanza.body)? {
                    return Ok(key);
                }
            }
        }
        Err(if self.keys.is_empty() {
            Error::denied("it is encrypted")
                .hint("give the file with your identity: --identity FILE")
        } else {
            Error::denied("it is encrypted to somebody else: no identity opens it")
                .hint("give the file with the identity of one of its recipients: --identity FILE")
        })
    }
}

fn unlocked(stanza: &Stanza, passphrase: &Secret) -> Result<Option<FileKey>> {
    let [salt, work] = stanza.arguments.as_slice() else { return Err(malformed()) };
    let salt = decode(salt)?;
    let work: u8 = work.parse().map_err(|_| malformed())?;
    if salt.len() != 16 || stanza.body.len() != WRAPPED || work == 0 {
        return Err(malformed());
    }
    if work > MOST_WORK {
        return Err(Error::bad_content(format!(
            "its passphrase has the work factor {work}; at most {MOST_WORK} is accepted"
        )));
    }
    unwrapped(&stretched(passphrase, &salt, work)?, &stanza.body)
}

fn wrapped(wrapping: &[u8; KEY], key: &FileKey) -> Result<Vec<u8>> {
    let mut body = key.0.to_vec();
    let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
    cipher(wrapping)?
        .seal_in_place_append_tag(nonce, Aad::empty(), &mut body)
        .map_err(|_| cannot())?;
    Ok(body)
}

/// Returns the file's key, if it was wrapped with this key.
fn unwrapped(wrapping: &[u8; KEY], body: &[u8]) -> Result<Option<FileKey>> {
    let mut body = body.to_vec();
    let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
    match cipher(wrapping)?.open_in_place(nonce, Aad::empty(), &mut body) {
        Ok(key) => FileKey::of(key).map(Some),
        Err(_) => Ok(None),
    }
}

fn cipher(key: &[u8; KEY]) -> Result<LessSafeKey> {
    UnboundKey::new(&CHACHA20_POLY1305, key).map(LessSafeKey::new).map_err(|_| cannot())
}

fn derive(secret: &[u8], salt: &[u8], info: &[u8]) -> Result<[u8; KEY]> {
    let mut key = [0; KEY];
    hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
        .extract(secret)
        .expand(&[info], hkdf::HKDF_SHA256)
        .and_then(|derived| derived.fill(&mut key))
        .map_err(|_| cannot())?;
    Ok(key)
}

pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| Error::failed("the system provides no random numbers"))?;
    Ok(bytes)
}

fn cannot() -> Error {
    Error::failed("the cryptographic library refuses")
}
