//! Downloads small files from plain web servers without credentials: signatures in a lookaside.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::redirect::Policy;

use crate::{Client, tls};
use imgctl_base::error::{Error, Kind, Result};

/// Timeout from the request to the last byte.
const PATIENCE: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 5;

impl Client {
    /// Downloads the file at `url` (http or https) of at most `limit` bytes. Returns `None` if the
    /// server has no such file.
    pub fn file(&self, url: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let builder = tls::with_proxies(tls::builder()?, &self.shared.options.proxies)?;
        let client = builder
            .timeout(PATIENCE)
            .redirect(Policy::limited(MAX_REDIRECTS))
            .build()
            .map_err(|error| Error::failed("cannot make an HTTP client").caused_by(error))?;
        self.shared.run(get(&client, url, limit))
    }
}

async fn get(client: &reqwest::Client, url: &str, limit: u64) -> Result<Option<Vec<u8>>> {
    let network = |error: reqwest::Error| {
        Error::new(Kind::Network, format!("cannot get {url}")).caused_by(error.without_url())
    };
    let mut response = client.get(url).send().await.map_err(network)?;
    match response.status() {
        StatusCode::NOT_FOUND => return Ok(None),
        status if !status.is_success() => {
            return Err(Error::new(
                Kind::Network,
                format!("cannot get {url}: the server answered {status}"),
            ));
        }
        _ => {}
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(network)? {
        if (bytes.len() + chunk.len()) as u64 > limit {
            return Err(Error::bad_content(format!("{url} is longer than {limit} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes))
}
