//! Private keys: generated in the sizes that kubeadm supports, read in the common formats.

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, RsaKeySize};

use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;

/// `encryptionAlgorithm` of kubeadm's ClusterConfiguration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    #[default]
    Rsa2048,
    Rsa3072,
    Rsa4096,
    EcdsaP256,
    EcdsaP384,
}

impl Algorithm {
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "RSA-2048" => Ok(Self::Rsa2048),
            "RSA-3072" => Ok(Self::Rsa3072),
            "RSA-4096" => Ok(Self::Rsa4096),
            "ECDSA-P256" => Ok(Self::EcdsaP256),
            "ECDSA-P384" => Ok(Self::EcdsaP384),
            other => Err(Error::usage(format!("there is no encryptionAlgorithm `{other}`"))
                .hint("one of RSA-2048, RSA-3072, RSA-4096, ECDSA-P256, ECDSA-P384")),
        }
    }
}

/// A private key with its original PEM.
pub struct Key {
    pub(crate) pem: Secret,
    pair: KeyPair,
}

impl Key {
    pub fn generate(algorithm: Algorithm) -> Result<Self> {
        let rsa = |size| KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, size);
        let pair = match algorithm {
            Algorithm::Rsa2048 => rsa(RsaKeySize::_2048),
            Algorithm::Rsa3072 => rsa(RsaKeySize::_3072),
            Algorithm::Rsa4096 => rsa(RsaKeySize::_4096),
            Algorithm::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Algorithm::EcdsaP384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
        }
        .map_err(|error| Error::failed("cannot create a private key").caused_by(error))?;
        Ok(Self { pem: Secret::new(pair.serialize_pem()), pair })
    }

    /// Parses PKCS#8, PKCS#1 (kubeadm's own) or SEC1.
    pub fn parse(pem: &str) -> Result<Self> {
        let pair = KeyPair::from_pem(pem).map_err(|error| {
            Error::bad_content("the private key cannot be read").caused_by(error)
        })?;
        Ok(Self { pem: Secret::new(pem), pair })
    }

    pub fn pair(&self) -> &KeyPair {
        &self.pair
    }

    /// Returns the public key in the format of `sa.pub`.
    pub(crate) fn public_pem(&self) -> String {
        self.pair.public_key_pem()
    }
}
