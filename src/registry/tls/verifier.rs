//! Whether a server is who it says: webpki's checks, and the one that Go's tools have beyond them.
//!
//! `openssl req -x509` makes certificates that are authorities (CA:TRUE), and small registries show
//! them as their own. RFC 5280 has no place for that and webpki refuses it; every tool written in Go
//! takes such a certificate where it is itself among the authorities. So do we: whoever has its key
//! could sign a certificate that webpki takes. Must not know files or HTTP.

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

/// Takes certificates that an authority signed, and authorities' own.
#[derive(Debug)]
pub(super) struct Verifier {
    roots: RootCertStore,
    /// What `roots` was made of.
    authorities: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// Trusts nobody yet.
    pub(super) fn new(provider: &CryptoProvider) -> Self {
        Self {
            roots: RootCertStore::empty(),
            authorities: Vec::new(),
            algorithms: provider.signature_verification_algorithms,
        }
    }

    /// Trusts `authority` too; one that is malformed is an error.
    pub(super) fn trust(&mut self, authority: CertificateDer<'static>) -> Result<(), Error> {
        self.roots.add(authority.clone())?;
        self.authorities.push(authority);
        Ok(())
    }
}

/// Whether all that is wrong with a certificate is that it is an authority's. webpki looks at the
/// time before (the tests hold it to that), at the name and the handshake's signature after.
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

/// Takes whatever a server shows: for those that the operator declared insecure.
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

    // A certificate that nothing can be checked against is taken too, as other tools do.
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
