//! Keys: generated, read from PEM, used to sign and to verify.
//!
//! Generates ECDSA keys on P-256 like cosign; also reads Ed25519, RSA and the larger curves. Hashes
//! follow sigstore: SHA-256, and for the larger curves also their own. Must not depend on files.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA384_ASN1,
    ECDSA_P256_SHA512_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA512_ASN1,
    ECDSA_P521_SHA256_ASN1, ECDSA_P521_SHA512_ASN1, ED25519, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, VerificationAlgorithm,
};

use crate::{pem, sealed};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;
use imgctl_registry::credentials::Secret;

/// Maximum size of a key file, in bytes.
pub(crate) const MAX_KEY: u64 = 1 << 20;

const PUBLIC_LABEL: &str = "PUBLIC KEY";

/// Supported public key types, with the hashes that their signatures may use.
const ALGORITHMS: [&[&'static dyn VerificationAlgorithm]; 5] = [
    &[&ECDSA_P256_SHA256_ASN1],
    &[&ED25519],
    &[&RSA_PKCS1_2048_8192_SHA256],
    &[&ECDSA_P384_SHA384_ASN1, &ECDSA_P384_SHA256_ASN1],
    &[&ECDSA_P521_SHA512_ASN1, &ECDSA_P521_SHA256_ASN1],
];

/// The same for keys of time-stamping authorities, which choose their hash.
const ANY_HASH: [&[&'static dyn VerificationAlgorithm]; 5] = [
    &[&ECDSA_P256_SHA256_ASN1, &ECDSA_P256_SHA384_ASN1, &ECDSA_P256_SHA512_ASN1],
    &[&ED25519],
    &[&RSA_PKCS1_2048_8192_SHA256, &RSA_PKCS1_2048_8192_SHA384, &RSA_PKCS1_2048_8192_SHA512],
    &[&ECDSA_P384_SHA384_ASN1, &ECDSA_P384_SHA256_ASN1, &ECDSA_P384_SHA512_ASN1],
    &[&ECDSA_P521_SHA512_ASN1, &ECDSA_P521_SHA256_ASN1],
];

/// A key that verifies signatures.
#[derive(Clone)]
pub struct PublicKey {
    /// DER of the SubjectPublicKeyInfo.
    der: Vec<u8>,
    /// The parsed key, once per hash.
    parsed: Vec<ParsedPublicKey>,
}

impl PublicKey {
    /// Parses a PEM text with exactly one block, a `PUBLIC KEY`.
    pub fn from_pem(text: &[u8]) -> Result<Self> {
        let blocks = pem::blocks(text)?;
        match &blocks[..] {
            [block] if block.label == PUBLIC_LABEL => Self::from_der(&block.content),
            [block] => Err(Error::bad_content(format!(
                "this is a {}, not a public key",
                printable(&block.label)
            ))),
            [] => Err(Error::bad_content("this is not a public key in PEM")),
            _ => Err(Error::bad_content("this is more than one key")),
        }
    }

    /// Parses a SubjectPublicKeyInfo.
    pub(crate) fn from_der(der: &[u8]) -> Result<Self> {
        Self::of(der, &ALGORITHMS)
    }

    /// Parses a SubjectPublicKeyInfo whose signatures may use any hash of the SHA-2 family.
    pub(crate) fn with_any_hash(der: &[u8]) -> Result<Self> {
        Self::of(der, &ANY_HASH)
    }

    fn of(der: &[u8], families: &[&[&'static dyn VerificationAlgorithm]]) -> Result<Self> {
        for family in families {
            let parsed: Vec<ParsedPublicKey> = family
                .iter()
                .filter_map(|algorithm| ParsedPublicKey::new(*algorithm, der).ok())
                .collect();
            if !parsed.is_empty() {
                return Ok(Self { der: der.to_vec(), parsed });
            }
        }
        Err(Error::bad_content("the public key is of a kind that is not supported")
            .hint("use ECDSA (P-256, P-384, P-521), Ed25519 or RSA with at least 2048 bits"))
    }

    /// Returns whether this key made `signature` over `message`.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.parsed.iter().any(|key| key.verify_sig(message, signature).is_ok())
    }

    /// DER of the SubjectPublicKeyInfo.
    pub(crate) fn der(&self) -> &[u8] {
        &self.der
    }

    /// Encodes the key as a `PUBLIC KEY` block.
    pub fn to_pem(&self) -> String {
        pem::encode(PUBLIC_LABEL, &self.der)
    }

    /// Digest of the SubjectPublicKeyInfo, for comparing keys.
    pub fn fingerprint(&self) -> Digest {
        Digest::of(&self.der)
    }
}

impl PartialEq for PublicKey {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for PublicKey {}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PublicKey({})", self.fingerprint())
    }
}

/// A signing key. `Debug` reveals nothing of it.
pub struct PrivateKey(Pair);

enum Pair {
    Ecdsa(Box<EcdsaKeyPair>),
    Ed25519(Box<Ed25519KeyPair>),
    Rsa(Box<rsa::KeyPair>),
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateKey(***)")
    }
}

impl PrivateKey {
    /// Generates an ECDSA key on P-256.
    pub fn generate() -> Result<Self> {
        EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)
            .map(|pair| Self(Pair::Ecdsa(Box::new(pair))))
            .map_err(|_| Error::failed("cannot generate a key"))
    }

    /// Parses a PEM text: encrypted in cosign's format (only then calls `password`), PKCS #8, or
    /// SEC 1.
    pub fn from_pem(text: &[u8], password: &mut dyn FnMut() -> Result<Secret>) -> Result<Self> {
        // openssl writes the curve's parameters into a separate block.
        let blocks: Vec<pem::Block> =
            pem::blocks(text)?.into_iter().filter(|block| block.label != "EC PARAMETERS").collect();
        match &blocks[..] {
            [block] if sealed::LABELS.contains(&block.label.as_str()) => {
                Self::from_der(&sealed::open(&block.content, &password()?)?)
            }
            [block]
                if matches!(
                    &*block.label,
                    "PRIVATE KEY" | "EC PRIVATE KEY" | "RSA PRIVATE KEY"
                ) =>
            {
                Self::from_der(&block.content)
            }
            [block] if block.label == "ENCRYPTED PRIVATE KEY" => Err(Error::bad_content(
                "the private key is encrypted as PKCS #8, which is not supported",
            )
            .hint("`openssl pkey -in KEY -out PLAIN` decrypts it")),
            [block] => Err(Error::bad_content(format!(
                "this is a {}, not a private key",
                printable(&block.label)
            ))),
            [] => Err(Error::bad_content("this is not a private key in PEM")),
            _ => Err(Error::bad_content("this is more than one key")),
        }
    }

    fn from_der(der: &[u8]) -> Result<Self> {
        if let Ok(pair) = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_ASN1_SIGNING, der) {
            return Ok(Self(Pair::Ecdsa(Box::new(pair))));
        }
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8(der) {
            return Ok(Self(Pair::Ed25519(Box::new(pair))));
        }
        if let Ok(pair) = rsa::KeyPair::from_pkcs8(der).or_else(|_| rsa::KeyPair::from_der(der)) {
            return Ok(Self(Pair::Rsa(Box::new(pair))));
        }
        Err(Error::bad_content("the private key is of a kind that is not supported")
            .hint("use ECDSA on P-256 (imgctl key generate), Ed25519 or RSA"))
    }

    /// Encrypts the PKCS #8 form with `password`, in cosign's format.
    pub fn to_sealed_pem(&self, password: &Secret) -> Result<String> {
        let Pair::Ecdsa(pair) = &self.0 else {
            return Err(Error::usage("only ECDSA keys can be written"));
        };
        let der = pair.to_pkcs8v1().map_err(|_| Error::failed("cannot encode the private key"))?;
        let content = sealed::seal(der.as_ref(), password)?;
        Ok(pem::encode(sealed::LABELS[0], &content))
    }

    /// Signs `message`: ASN.1 for ECDSA, PKCS #1 for RSA, each with SHA-256.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        let random = SystemRandom::new();
        let failed = |_| Error::failed("cannot sign");
        match &self.0 {
            Pair::Ecdsa(pair) => Ok(pair.sign(&random, message).map_err(failed)?.as_ref().to_vec()),
            Pair::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .map_err(failed)?;
                Ok(signature)
            }
        }
    }

    /// Returns the matching public key.
    pub fn public(&self) -> Result<PublicKey> {
        let der: Result<PublicKeyX509Der<'_>, _> = match &self.0 {
            Pair::Ecdsa(pair) => pair.public_key().as_der(),
            Pair::Ed25519(pair) => pair.public_key().as_der(),
            Pair::Rsa(pair) => pair.public_key().as_der(),
        };
        let der = der.map_err(|_| Error::failed("cannot encode the public key"))?;
        PublicKey::from_der(der.as_ref())
    }
}

fn printable(label: &str) -> String {
    label.chars().filter(|c| !c.is_control()).take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    fn no_password() -> Result<Secret> {
        Err(Error::usage("no password was expected"))
    }

    #[test]
    fn a_key_survives_its_file() {
        let key = PrivateKey::generate().unwrap();
        let text = key.to_sealed_pem(&Secret::new("pw")).unwrap();
        assert!(text.starts_with("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n"));
        let again = PrivateKey::from_pem(text.as_bytes(), &mut || Ok(Secret::new("pw"))).unwrap();
        let signature = again.sign(b"message").unwrap();
        let public = PublicKey::from_pem(key.public().unwrap().to_pem().as_bytes()).unwrap();
        assert!(public.verifies(b"message", &signature));
        assert!(!public.verifies(b"massage", &signature));
        let other = PrivateKey::generate().unwrap().public().unwrap();
        assert!(!other.verifies(b"message", &signature));
        assert_eq!(format!("{key:?}"), "PrivateKey(***)");
    }

    #[test]
    fn openssl_makes_keys_that_we_use_and_verifies_what_they_sign() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let openssl = |arguments: &[&str]| {
            let output = std::process::Command::new("openssl")
                .args(arguments)
                .current_dir(directory.path())
                .output()
                .unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        };
        for (name, arguments) in [
            ("sec1", "ecparam -name prime256v1 -genkey -out sec1"),
            ("pkcs8", "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out pkcs8"),
            ("ed25519", "genpkey -algorithm ED25519 -out ed25519"),
            ("rsa", "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa"),
        ] {
            openssl(&arguments.split(' ').collect::<Vec<_>>());
            let text = std::fs::read(path(name)).unwrap();
            let key = PrivateKey::from_pem(&text, &mut no_password).unwrap();
            std::fs::write(path("message"), "message").unwrap();
            std::fs::write(path("signature"), key.sign(b"message").unwrap()).unwrap();
            let public = key.public().unwrap();
            assert!(public.verifies(b"message", &key.sign(b"message").unwrap()));
            std::fs::write(path("public"), public.to_pem()).unwrap();
            let digest = if name == "ed25519" { "" } else { "-digest sha256" };
            let verify = format!(
                "pkeyutl -verify -pubin -inkey public -sigfile signature -rawin -in message {digest}"
            );
            openssl(&verify.split_whitespace().collect::<Vec<_>>());
        }
        openssl(&["ecparam", "-name", "secp384r1", "-genkey", "-noout", "-out", "p384"]);
        openssl(&["ec", "-in", "p384", "-pubout", "-out", "p384.pub"]);
        openssl(&["dgst", "-sha256", "-sign", "p384", "-out", "signature", "message"]);
        let public = PublicKey::from_pem(&std::fs::read(path("p384.pub")).unwrap()).unwrap();
        assert!(public.verifies(b"message", &std::fs::read(path("signature")).unwrap()));
    }

    #[test]
    fn what_is_no_key_is_named() {
        let public = PrivateKey::generate().unwrap().public().unwrap().to_pem();
        let error = PrivateKey::from_pem(public.as_bytes(), &mut no_password).unwrap_err();
        assert_eq!(error.message(), "this is a PUBLIC KEY, not a private key");
        for bad in [
            String::new(),
            public.repeat(2),
            pem::encode("PUBLIC KEY", b"x"),
            pem::encode("CERTIFICATE", b"x"),
        ] {
            assert!(PublicKey::from_pem(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn any_bytes_are_a_key_or_refused() {
        let key = PrivateKey::generate().unwrap();
        let public = key.public().unwrap().to_pem();
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), damaged(public.as_bytes(), input)] {
                if let Ok(key) = PublicKey::from_pem(&text) {
                    assert_eq!(PublicKey::from_pem(key.to_pem().as_bytes()).unwrap(), key);
                    assert!(!key.verifies(b"message", input));
                }
                let _ = PrivateKey::from_pem(&text, &mut no_password);
            }
            let _ = PublicKey::from_der(input);
            let _ = PrivateKey::from_der(input);
        });
    }
}
