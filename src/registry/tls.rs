//! Makes HTTP clients: this machine's certificate authorities, a host's own, proxies, no surprises.
//!
//! One maker for all that is downloaded. Must not know registries' protocol; reads the files it is
//! told to read and never the environment.

use reqwest::{Certificate, ClientBuilder, Identity, NoProxy, Proxy};

use crate::error::{Error, IoContext as _, Result};
use crate::registry::registries::Certificates;

/// Where distributions keep the certificates of public authorities.
const CA_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Nobody means a proxy for these (Go's rule).
const NEVER_PROXIED: &str = "localhost,127.0.0.0/8,::1";

/// A builder that trusts this machine's authorities (none is fine: plain HTTP needs none) and says
/// who we are. It still reads the proxy variables itself: see [`with_proxies`].
pub(crate) fn builder() -> Result<ClientBuilder> {
    Ok(reqwest::Client::builder()
        .tls_certs_only(authorities()?)
        .user_agent(concat!("imgctl/", env!("CARGO_PKG_VERSION"))))
}

fn authorities() -> Result<Vec<Certificate>> {
    // Somebody else may have installed the same provider already; either is right.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match CA_BUNDLES.iter().find_map(|path| std::fs::read(path).ok()) {
        Some(pem) => Certificate::from_pem_bundle(&pem).map_err(|error| {
            Error::failed("cannot read this machine's CA certificates").caused_by(error)
        }),
        None => Ok(Vec::new()),
    }
}

/// Adds a host's own authorities and our certificate for it.
pub(crate) fn with_certificates(
    mut builder: ClientBuilder,
    certificates: &Certificates,
) -> Result<ClientBuilder> {
    let unusable = |path: &std::path::Path, error: reqwest::Error| {
        Error::usage(format!("cannot use the certificates in {}", path.display()))
            .caused_by(error.without_url())
            .hint("it has to be a PEM file")
    };
    for path in &certificates.authorities {
        let pem = std::fs::read(path).path("read", path)?;
        let found = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(path, error))?;
        builder = builder.tls_certs_merge(found);
    }
    if let Some((certificate, key)) = &certificates.client {
        let mut pem = std::fs::read(certificate).path("read", certificate)?;
        pem.push(b'\n');
        pem.extend(std::fs::read(key).path("read", key)?);
        let identity = Identity::from_pem(&pem).map_err(|error| unusable(certificate, error))?;
        builder = builder.identity(identity);
    }
    Ok(builder)
}

/// Uses the proxies that `variables` (`HTTP_PROXY`, `https_proxy`, `NO_PROXY`, …) name, and no
/// others. The small form of a name goes before the large one, as curl has it.
pub(crate) fn with_proxies(
    builder: ClientBuilder,
    variables: &[(String, String)],
) -> Result<ClientBuilder> {
    let value = |name: &str| {
        let of = |wanted: &str| {
            variables
                .iter()
                .find(|(name, value)| name == wanted && !value.is_empty())
                .map(|(_, value)| value.as_str())
        };
        of(name).or_else(|| of(&name.to_uppercase()))
    };
    let exceptions = match value("no_proxy") {
        Some(list) => format!("{NEVER_PROXIED},{list}"),
        None => NEVER_PROXIED.to_owned(),
    };
    let exceptions = NoProxy::from_string(&exceptions);
    let mut builder = builder.no_proxy();
    for (variable, of) in [
        (
            "http_proxy",
            Proxy::http as fn(String) -> reqwest::Result<Proxy>,
        ),
        ("https_proxy", Proxy::https),
        ("all_proxy", Proxy::all),
    ] {
        if let Some(address) = value(variable) {
            // The address may hold a password: neither it nor the cause is repeated.
            let proxy = of(address.to_owned()).map_err(|_| {
                Error::usage(format!("the variable {variable} is not a proxy's address"))
                    .hint("write http://HOST:PORT")
            })?;
            builder = builder.proxy(proxy.no_proxy(exceptions.clone()));
        }
    }
    Ok(builder)
}
