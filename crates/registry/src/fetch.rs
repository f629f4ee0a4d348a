//! A small file of a web server, into memory. Must not know what it is.

use std::time::Duration;

use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::progress::{Reporter, Unit};
use reqwest::Url;

use crate::tls;

/// Largest file, in bytes.
const LARGEST: u64 = 64 << 20;
/// Maximum time to wait for a server without receiving data.
const SILENCE: Duration = Duration::from_secs(60);

/// Downloads the file at `url`. From an address of https, no redirection leads to plain HTTP.
///
/// # Errors
/// If the server does not have it, or it has more than 64 MiB.
pub fn fetch(url: &str, reporter: &dyn Reporter) -> Result<Vec<u8>> {
    let address = Url::parse(url)
        .map_err(|error| Error::usage(format!("`{url}` is not a URL")).caused_by(error))?;
    let mut shown = address.clone();
    // Only an address without a host has no place for them, and none of HTTP is without one.
    let _ = (shown.set_username(""), shown.set_password(None));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "cannot start the network runtime".to_owned())?;
    let doing = || format!("cannot download {shown}");
    runtime.block_on(download(address.clone(), &shown, reporter)).context(doing)
}

async fn download(url: Url, shown: &Url, reporter: &dyn Reporter) -> Result<Vec<u8>> {
    let client = tls::builder()?
        .https_only(url.scheme() == "https")
        .read_timeout(SILENCE)
        .connect_timeout(SILENCE)
        .build()
        .map_err(|error| Error::failed("cannot create an HTTP client").caused_by(error))?;
    let network = |error: reqwest::Error| {
        Error::new(Kind::Network, "the transfer failed").caused_by(error.without_url())
    };
    let mut response = client.get(url).send().await.map_err(network)?;
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
