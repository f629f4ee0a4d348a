//! Builds HTTP clients with this machine's certificate authorities, a host's own authorities, and
//! proxies.
//!
//! All downloads use these clients. Must not depend on the registry protocol. Reads only the files
//! that it is given and never the environment.

mod verifier;

use std::sync::Arc;

use reqwest::{ClientBuilder, NoProxy, Proxy, Url};
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::registries::{Certificates, Pem};
use crate::tls::verifier::{Anybody, Verifier};
use imgctl_base::error::{Error, Result};

/// Where distributions store the certificates of public authorities.
const CA_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The `User-Agent` of every request.
pub(crate) const USER_AGENT: &str = concat!("imgctl/", env!("CARGO_PKG_VERSION"));
/// Hosts that never use a proxy (Go's rule).
const NEVER_PROXIED: &str = "localhost,127.0.0.0/8,::1";

/// Returns a builder that trusts this machine's authorities (none is fine: plain HTTP needs none)
/// and sets the user agent. The builder still reads the proxy variables from the environment: see
/// [`with_proxies`].
pub fn builder() -> Result<ClientBuilder> {
    builder_for(&Certificates::default(), false)
}

/// Returns a builder that also trusts a host's own authorities and presents the client certificate
/// for that host. With `insecure`, any server certificate is accepted.
pub fn builder_for(certificates: &Certificates, insecure: bool) -> Result<ClientBuilder> {
    let mut tls = configuration(certificates, insecure)?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        // HTTP/2 flow control slows down a single large stream.
        .http1_only()
        .user_agent(USER_AGENT))
}

fn configuration(certificates: &Certificates, insecure: bool) -> Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = if insecure {
        Arc::new(Anybody(Arc::clone(&provider)))
    } else {
        Arc::new(verifier(certificates, &provider)?)
    };
    let configuration = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::failed("cannot set up TLS").caused_by(error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some((certificate, key)) = &certificates.client else {
        return Ok(configuration.with_no_client_auth());
    };
    let chain = in_pem(certificate)?;
    // Neither error contains any part of the key.
    let private = PrivateKeyDer::from_pem_slice(&key.read()?).map_err(|_| {
        Error::usage(format!("there is no private key in {key}"))
            .hint("it must be a PEM file, and the key must not be encrypted")
    })?;
    configuration
        .with_client_auth_cert(chain, private)
        .map_err(|error| unusable(certificate, error))
}

/// Returns a verifier that trusts this machine's authorities and a host's own.
fn verifier(certificates: &Certificates, provider: &CryptoProvider) -> Result<Verifier> {
    let mut verifier = Verifier::new(provider);
    if let Some(pem) = CA_BUNDLES.iter().find_map(|path| std::fs::read(path).ok()) {
        for authority in CertificateDer::pem_slice_iter(&pem) {
            let authority = authority.map_err(|_| {
                Error::failed("cannot read this machine's CA certificates")
                    .hint("run `update-ca-certificates`, or the equivalent of your distribution")
            })?;
            // An unusable certificate must not prevent the use of the others.
            if let Err(error) = verifier.trust(authority) {
                tracing::debug!("skipping one of this machine's CA certificates: {error}");
            }
        }
    }
    for pem in &certificates.authorities {
        for authority in in_pem(pem)? {
            verifier.trust(authority).map_err(|error| unusable(pem, error))?;
        }
    }
    Ok(verifier)
}

/// Returns the certificates in a file; fails if there is none.
fn in_pem(pem: &Pem) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem.read()?).collect();
    let found = found.map_err(|error| unusable(pem, error))?;
    if found.is_empty() {
        return Err(Error::usage(format!("there is no certificate in {pem}"))
            .hint("it must be a PEM file; `openssl x509 -inform der` converts a DER file"));
    }
    Ok(found)
}

fn unusable(pem: &Pem, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::usage(format!("cannot use the certificates in {pem}"))
        .caused_by(error)
        .hint("it must be a PEM file")
}

/// Uses only the proxies that `variables` (`HTTP_PROXY`, `https_proxy`, `NO_PROXY`, …) name. A
/// lowercase name takes precedence over an uppercase one, as in curl.
pub(crate) fn with_proxies(
    builder: ClientBuilder,
    variables: &[(String, String)],
) -> Result<ClientBuilder> {
    let exceptions = NoProxy::from_string(&exceptions(variables));
    let mut builder = builder.no_proxy();
    for (variable, of) in [
        ("http_proxy", Proxy::http as fn(String) -> reqwest::Result<Proxy>),
        ("https_proxy", Proxy::https),
        ("all_proxy", Proxy::all),
    ] {
        if let Some(address) = value(variables, variable) {
            // The address can contain a password, so the error includes neither the address nor the
            // cause.
            let proxy = of(address.to_owned()).map_err(|_| {
                Error::usage(format!("the variable {variable} is not a proxy's address"))
                    .hint("write http://HOST:PORT")
            })?;
            builder = builder.proxy(proxy.no_proxy(exceptions.clone()));
        }
    }
    Ok(builder)
}

/// Returns whether `variables` name a proxy that requests over plain HTTP may have to use.
pub(crate) fn may_proxy_plain(variables: &[(String, String)]) -> bool {
    ["http_proxy", "all_proxy"].iter().any(|name| value(variables, name).is_some())
}

/// Returns the hosts of the proxies that `variables` name.
pub(crate) fn proxy_hosts(variables: &[(String, String)]) -> Vec<String> {
    let addresses = ["http_proxy", "https_proxy", "all_proxy"].map(|name| value(variables, name));
    let host = |address: &str| {
        let whole =
            if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
        Some(Url::parse(&whole).ok()?.host_str()?.to_owned())
    };
    addresses.into_iter().flatten().filter_map(host).collect()
}

fn value<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let of = |wanted: &str| {
        variables
            .iter()
            .find(|(name, value)| name == wanted && !value.is_empty())
            .map(|(_, value)| value.as_str())
    };
    of(name).or_else(|| of(&name.to_uppercase()))
}

/// Returns the hosts to connect to directly. Go's rule supports ports but the matcher does not, so
/// ports are dropped and the exception covers the whole host.
fn exceptions(variables: &[(String, String)]) -> String {
    let mut exceptions = NEVER_PROXIED.to_owned();
    let list = value(variables, "no_proxy").unwrap_or_default();
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let host = match (entry.strip_prefix('['), entry.split_once(':')) {
            (Some(bracketed), _) => bracketed.split(']').next().unwrap_or_default(),
            // More than one colon means an IPv6 address.
            (None, Some((host, port))) if !port.contains(':') => host,
            _ => entry,
        };
        exceptions.push(',');
        exceptions.push_str(host);
    }
    exceptions
}

#[cfg(test)]
mod tests;
