//! The certificate that a server presents, whatever it is. Nothing is sent to the server that it could
//! misuse, and nothing that it says is believed.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

use imgctl_base::error::{Error, IoContext as _, Result};

const LIMIT: Duration = Duration::from_secs(5);

/// Returns the certificate (DER) of the TLS server at `address`.
pub fn certificate(address: SocketAddr) -> Result<Vec<u8>> {
    let cannot = |error: rustls::Error| {
        Error::failed(format!("cannot speak TLS with {address}")).caused_by(error)
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(cannot)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any(provider)))
        .with_no_client_auth();
    let name = ServerName::IpAddress(address.ip().into());
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(cannot)?;
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)
        .doing(|| format!("cannot connect to {address}"))?;
    let limited = stream.set_read_timeout(Some(LIMIT)).and(stream.set_write_timeout(Some(LIMIT)));
    limited.doing(|| format!("cannot use the connection to {address}"))?;
    while connection.is_handshaking() {
        // A server that asks for a client certificate ends the handshake, after it has shown its own.
        if let Err(error) = connection.complete_io(&mut stream)
            && connection.peer_certificates().is_none()
        {
            return Err(Error::network(format!("{address} does not complete a TLS handshake"))
                .caused_by(error));
        }
        if connection.peer_certificates().is_some() {
            break;
        }
    }
    connection.send_close_notify();
    let _ = connection.write_tls(&mut stream);
    let _ = stream.flush();
    let shown = connection.peer_certificates().and_then(<[_]>::first);
    let shown = shown.map(|certificate| certificate.as_ref().to_vec());
    shown.ok_or_else(|| Error::failed(format!("{address} presents no certificate")))
}

/// Accepts every certificate: it is looked at, not relied upon.
#[derive(Debug)]
struct Any(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
