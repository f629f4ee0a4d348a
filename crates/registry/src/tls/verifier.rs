//! Server certificate verification: webpki's checks, plus one exception that Go's tools make.
//!
//! `openssl req -x509` creates certificates that are authorities (CA:TRUE), and small registries
//! present them as their own. RFC 5280 does not allow that and webpki rejects it; every tool
//! written in Go accepts such a certificate if it is itself one of the trusted authorities. This
//! verifier does the same: the holder of its key could sign a certificate that webpki accepts. Must
//! not depend on files or HTTP.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

/// Accepts certificates signed by a trusted authority, and the trusted authorities' own
/// certificates.
#[derive(Debug)]
pub(super) struct Verifier {
    roots: RootCertStore,
    /// Certificates that `roots` was built from.
    authorities: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn new(provider: &CryptoProvider) -> Self {
        Self {
            roots: RootCertStore::empty(),
            authorities: Vec::new(),
            algorithms: provider.signature_verification_algorithms,
        }
    }

    /// Adds `authority` to the trusted authorities; fails if it is malformed.
    pub(super) fn trust(&mut self, authority: CertificateDer<'static>) -> Result<(), Error> {
        self.roots.add(authority.clone())?;
        self.authorities.push(authority);
        Ok(())
    }
}

/// Reports whether the only problem of a certificate is that it is an authority's. webpki checks
/// the validity period earlier (the tests verify that), and the name and the handshake signature
/// later.
fn is_of_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = error else {
        return false;
    };
    matches!(cause.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let signed = verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        );
        match signed {
            Err(error) if is_of_authority(&error) && self.authorities.contains(end_entity) => {}
            other => other?,
        }
        verify_server_name(&certificate, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Accepts any server certificate: for hosts that the operator declared insecure.
#[derive(Debug)]
pub(super) struct Anybody(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    // Skips the handshake signature: accepts even a certificate that nothing can be verified
    // against, as other tools do.
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
