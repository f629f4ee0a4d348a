//! Files of web servers: one client for all of them, and a small file read into memory. Must not know what the files are.

use std::sync::Arc;
use std::time::Duration;

use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::progress::{Reporter, Unit};
use reqwest::Url;
use reqwest::redirect::Policy;

use crate::client::resolver::Hickory;
use crate::tls;

/// Largest file that [`fetch`] reads, in bytes.
const LARGEST: u64 = 64 << 20;
/// Maximum time to wait for a server without receiving data.
pub const SILENCE: Duration = Duration::from_secs(60);
const MOST_REDIRECTS: usize = 10;

/// Returns a client for files. It follows no redirect from HTTPS to plain HTTP and sends no referrer.
///
/// # Errors
/// If the TLS settings of this machine cannot be used.
pub fn client() -> Result<reqwest::Client> {
    tls::builder()?
        .referer(false)
        .redirect(Policy::custom(|attempt| {
            let is_secret = attempt.previous().last().is_some_and(|from| from.scheme() == "https");
            if is_secret && attempt.url().scheme() != "https" {
                attempt.error("the server leads from HTTPS to plain HTTP")
            } else if attempt.previous().len() > MOST_REDIRECTS {
                attempt.error("too many redirects")
            } else {
                attempt.follow()
            }
        }))
        // Its errors are readable; those of the default resolver print the query.
        .dns_resolver(Arc::new(Hickory::default()))
        .read_timeout(SILENCE)
        .connect_timeout(SILENCE)
        .build()
        .map_err(|error| Error::failed("cannot create an HTTP client").caused_by(error))
}

/// Returns a runtime for one transfer.
///
/// # Errors
/// If the system has no room for it.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "cannot start the network runtime".to_owned())
}

/// Returns the error of a transfer, without its address, which may contain a password.
pub fn network(error: reqwest::Error) -> Error {
    let host = error.url().and_then(|url| url.host_str().map(str::to_owned));
    let error = error.without_url();
    let Some(host) = host.filter(|_| error.is_connect()) else {
        return Error::new(Kind::Network, "the transfer failed").caused_by(error);
    };
    // Each layer of the library adds a message; only the innermost one gives the reason.
    let mut reason: &dyn std::error::Error = &error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    Error::new(Kind::Network, format!("cannot connect to {host}: {reason}"))
}

/// Returns an address without its user and password.
pub fn without_login(address: &Url) -> Url {
    let mut shown = address.clone();
    // Only an address without a host has no place for them, and none of HTTP is without one.
    let _ = (shown.set_username(""), shown.set_password(None));
    shown
}

/// Returns an address as messages and files show it: without its user and password.
///
/// # Errors
/// If it is none.
pub fn shown(url: &str) -> Result<String> {
    Ok(without_login(&parsed(url)?).to_string())
}

fn parsed(url: &str) -> Result<Url> {
    Url::parse(url).map_err(|error| Error::usage(format!("`{url}` is not a URL")).caused_by(error))
}

/// Downloads the file at `url`.
///
/// # Errors
/// If the server does not have it, or it has more than 64 MiB.
pub fn fetch(url: &str, reporter: &dyn Reporter) -> Result<Vec<u8>> {
    let address = parsed(url)?;
    let shown = without_login(&address);
    let doing = || format!("cannot download {shown}");
    runtime()?.block_on(download(address, &shown, reporter)).context(doing)
}

async fn download(url: Url, shown: &Url, reporter: &dyn Reporter) -> Result<Vec<u8>> {
    let mut response = client()?.get(url).send().await.map_err(network)?;
    if !response.status().is_success() {
        return Err(Error::new(
            Kind::Network,
            format!("the server answered {}", response.status()),
        ));
    }
    let length = response.content_length();
    let task = reporter.start(&format!("downloading {shown}"), Unit::Bytes, length);
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(network)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > LARGEST {
            return Err(Error::bad_content(format!("it has more than {LARGEST} bytes")));
        }
        task.advance(chunk.len() as u64);
    }
    task.done(shown.as_str());
    Ok(bytes)
}
