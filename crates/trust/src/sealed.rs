//! Password-protected private keys in the format of cosign's key files: JSON with scrypt and NaCl's
//! secretbox (secure-systems-lab, `encrypted`). Must not depend on the type of the key inside.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use poly1305::Poly1305;
use poly1305::universal_hash::KeyInit as _;
use salsa20::XSalsa20;
use salsa20::cipher::{KeyIvInit as _, StreamCipher as _};
use serde::{Deserialize, Serialize};

use imgctl_base::error::{Error, Kind, Result};
use imgctl_registry::credentials::Secret;

/// Labels of the PEM block: the current one and that of cosign 1.
pub(super) const LABELS: [&str; 2] =
    ["ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY"];

/// Parameters for writing: every version of cosign, skopeo and podman reads them.
const LOG_N: u8 = 15;
const R: u32 = 8;
const P: u32 = 1;

/// Limits for reading: a key file must not make imgctl use more than 512 MiB (128·N·r bytes) or
/// compute for minutes.
const MAX_MEMORY: u64 = 512 << 20;
const MAX_P: u32 = 8;

const SALT: usize = 32;
const NONCE: usize = 24;
const TAG: usize = 16;

#[derive(Serialize, Deserialize)]
struct Sealed {
    kdf: Kdf,
    cipher: Cipher,
    ciphertext: String,
}

#[derive(Serialize, Deserialize)]
struct Kdf {
    name: String,
    params: Params,
    salt: String,
}

#[derive(Serialize, Deserialize)]
struct Params {
    #[serde(rename = "N")]
    n: u64,
    r: u32,
    p: u32,
}

#[derive(Serialize, Deserialize)]
struct Cipher {
    name: String,
    nonce: String,
}

/// Encrypts `secret` with `password`; returns the content of the PEM block.
pub(super) fn seal(secret: &[u8], password: &Secret) -> Result<Vec<u8>> {
    let (mut salt, mut nonce) = ([0; SALT], [0; NONCE]);
    for random in [&mut salt[..], &mut nonce[..]] {
        rand::fill(random).map_err(|_| Error::failed("the system provides no random numbers"))?;
    }
    let params = scrypt::Params::new(LOG_N, R, P).map_err(|_| wrong("scrypt refuses"))?;
    let (mut cipher, authenticator) = secretbox(password, &salt, &params, &nonce)?;
    let mut ciphertext = secret.to_vec();
    cipher.apply_keystream(&mut ciphertext);
    let tag = authenticator.compute_unpadded(&ciphertext);
    let sealed = Sealed {
        kdf: Kdf {
            name: "scrypt".to_owned(),
            params: Params { n: 1 << LOG_N, r: R, p: P },
            salt: STANDARD.encode(salt),
        },
        cipher: Cipher { name: "nacl/secretbox".to_owned(), nonce: STANDARD.encode(nonce) },
        ciphertext: STANDARD.encode([&tag[..], &ciphertext].concat()),
    };
    serde_json::to_vec(&sealed)
        .map_err(|error| Error::failed("cannot write the private key").caused_by(error))
}

/// Decrypts the output of [`seal`] or cosign. A wrong password is an error of kind Denied.
pub(super) fn open(content: &[u8], password: &Secret) -> Result<Vec<u8>> {
    let sealed: Sealed = serde_json::from_slice(content)
        .map_err(|error| wrong("is not the JSON that cosign writes").caused_by(error))?;
    if sealed.kdf.name != "scrypt" || sealed.cipher.name != "nacl/secretbox" {
        return Err(wrong("uses another cipher than scrypt with nacl/secretbox"));
    }
    let params = checked(&sealed.kdf.params)?;
    let bytes =
        |text: &str| STANDARD.decode(text).map_err(|_| wrong("has a member that is not base64"));
    let (salt, nonce) = (bytes(&sealed.kdf.salt)?, bytes(&sealed.cipher.nonce)?);
    let ciphertext = bytes(&sealed.ciphertext)?;
    let nonce: [u8; NONCE] =
        nonce.try_into().map_err(|_| wrong("has a nonce of the wrong length"))?;
    let (tag, secret) = ciphertext.split_at_checked(TAG).ok_or_else(|| wrong("is truncated"))?;
    let (mut cipher, authenticator) = secretbox(password, &salt, &params, &nonce)?;
    verify_slices_are_equal(&authenticator.compute_unpadded(secret), tag).map_err(|_| {
        Error::new(Kind::Denied, "the password does not decrypt the private key")
            .hint("set COSIGN_PASSWORD or give the right password")
    })?;
    let mut secret = secret.to_vec();
    cipher.apply_keystream(&mut secret);
    Ok(secret)
}

fn checked(params: &Params) -> Result<scrypt::Params> {
    let memory = params.n.checked_mul(128 * u64::from(params.r.max(1)));
    let is_bounded = memory.is_some_and(|memory| memory <= MAX_MEMORY)
        && (1..=MAX_P).contains(&params.p)
        && params.n > 1;
    if !is_bounded || !params.n.is_power_of_two() {
        return Err(wrong("has excessive scrypt parameters"));
    }
    let log_n = u8::try_from(params.n.ilog2()).unwrap_or(u8::MAX);
    scrypt::Params::new(log_n, params.r, params.p)
        .map_err(|_| wrong("has invalid scrypt parameters"))
}

/// Returns the two halves of NaCl's secretbox: the stream that encrypts, and the authenticator of the
/// ciphertext, whose key is the stream's beginning.
fn secretbox(
    password: &Secret,
    salt: &[u8],
    params: &scrypt::Params,
    nonce: &[u8; NONCE],
) -> Result<(XSalsa20, Poly1305)> {
    let mut key = [0; 32];
    scrypt::scrypt(password.expose().as_bytes(), salt, params, &mut key)
        .map_err(|error| Error::failed("cannot derive a key").caused_by(error))?;
    let mut cipher = XSalsa20::new(&key.into(), nonce.into());
    let mut authentication = [0; 32];
    cipher.apply_keystream(&mut authentication);
    Ok((cipher, Poly1305::new(&authentication.into())))
}

fn wrong(how: &str) -> Error {
    Error::bad_content(format!("the encrypted private key {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    #[test]
    fn only_the_password_opens_it() {
        let sealed = seal(b"secret", &Secret::new("right")).unwrap();
        assert_eq!(open(&sealed, &Secret::new("right")).unwrap(), b"secret");
        let error = open(&sealed, &Secret::new("wrong")).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(!String::from_utf8(sealed).unwrap().contains("secret\""));
    }

    #[test]
    fn parameters_that_would_eat_the_machine_are_refused() {
        for (n, r, p) in [
            (1 << 40, 8, 1),
            (1 << 20, 1 << 20, 1),
            (1 << 15, 8, 1 << 20),
            (1 << 15, 8, 0),
            (1 << 15, 0, 1),
            (0, 8, 1),
            (1000, 8, 1),
            (u64::MAX, u32::MAX, u32::MAX),
        ] {
            assert!(checked(&Params { n, r, p }).is_err(), "{n} {r} {p}");
        }
        assert!(checked(&Params { n: 65536, r: 8, p: 1 }).is_ok());
    }

    /// With parameters that cost nothing: scrypt is not what this looks at.
    #[test]
    fn any_key_file_is_opened_or_refused() {
        let valid = String::from_utf8(seal(b"secret", &Secret::new("p")).unwrap()).unwrap();
        let valid = valid.replace("32768", "2");
        bolero::check!().for_each(|input: &[u8]| {
            for content in [input.to_vec(), damaged(valid.as_bytes(), input)] {
                let costs = serde_json::from_slice::<Sealed>(&content).is_ok_and(|sealed| {
                    let Params { n, r, p } = sealed.kdf.params;
                    n.saturating_mul(u64::from(r)).saturating_mul(u64::from(p)) > 1 << 12
                });
                if !costs {
                    assert!(open(&content, &Secret::new("p")).is_err());
                }
            }
        });
    }
}
