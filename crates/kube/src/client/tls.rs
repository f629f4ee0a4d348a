//! TLS to an API server: accepts only certificates signed by the kubeconfig's authorities, under
//! one of the names of an API server.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore,
    SignatureScheme, client::WebPkiServerVerifier, crypto::aws_lc_rs,
    pki_types::pem::PemObject as _,
};

use crate::client::kubeconfig::{Access, Credentials};
use imgctl_base::error::{Error, Kind, Result};

/// Names in API server certificates in addition to those of the cluster.
const OWN: [&str; 2] = ["kubernetes", "127.0.0.1"];

/// Returns the TLS settings and the requested server name.
pub(super) fn settings(
    access: &Access,
    credentials: &Credentials,
) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let unusable = |what: &str| Error::bad_content(format!("the kubeconfig's {what} is unusable"));
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&access.authorities) {
        let authority = authority.map_err(|_| unusable("certificate authority"))?;
        roots.add(authority).map_err(|error| unusable("certificate authority").caused_by(error))?;
    }
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| unusable("certificate authority").caused_by(error))?;
    let name = access.name.as_ref().unwrap_or(&access.host);
    let name = ServerName::try_from(name.clone()).map_err(|_| unusable("server name"))?;
    let others = OWN.iter().filter_map(|name| ServerName::try_from(*name).ok());
    let verifier = Arc::new(AnyName { verifier, others: others.collect() });
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::failed("cannot set up TLS").caused_by(error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match credentials {
        Credentials::Token(_) | Credentials::Plugin(_) => builder.with_no_client_auth(),
        Credentials::Certificate(chain, key) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
            let chain = chain.map_err(|_| unusable("client certificate"))?;
            // Neither underlying error contains key material.
            let key = PrivateKeyDer::from_pem_slice(key.expose().as_bytes())
                .map_err(|_| unusable("client key"))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| unusable("client certificate").caused_by(error))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok((Arc::new(config), name))
}

/// Converts the error of a failed handshake.
pub(super) fn failure(error: std::io::Error) -> Error {
    let is_refusal = error.get_ref().is_some_and(|inner| {
        matches!(
            inner.downcast_ref(),
            Some(TlsError::InvalidCertificate(_) | TlsError::AlertReceived(_))
        )
    });
    let kind = if is_refusal { Kind::Denied } else { Kind::Network };
    let told = Error::new(kind, "no TLS connection with the API server").caused_by(error);
    if is_refusal {
        told.hint(
            "the kubeconfig and the API server's certificate do not match, or one of them has \
             expired (`imgctl cert` renews them)",
        )
    } else {
        told
    }
}

/// The client connects to the API server of one specific host over its own route, but the
/// certificate is issued for the public names: that of the load balancer or the cluster's Service.
/// It must nevertheless be the certificate of an API server.
#[derive(Debug)]
struct AnyName {
    verifier: Arc<WebPkiServerVerifier>,
    others: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let verify = |name: &ServerName<'_>| {
            self.verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
        };
        let error = match verify(server_name) {
            Err(
                error @ TlsError::InvalidCertificate(
                    CertificateError::NotValidForName
                    | CertificateError::NotValidForNameContext { .. },
                ),
            ) => error,
            other => return other,
        };
        let found = self.others.iter().find_map(|name| verify(name).ok());
        found.ok_or(error)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
