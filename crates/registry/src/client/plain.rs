//! Sends a part of a file as the body of one request over plain HTTP, by `sendfile`: the kernel moves the
//! bytes from the page cache to the socket, and this process never sees them.
//!
//! Only for the ordinary case: one connection for one request to a server without TLS and proxies, which
//! takes the body and answers 2xx. Whatever else happens is a failure that may pass, and the caller repeats
//! the request over the client's ordinary connections, which know proxies, logins and refusals. Must not know
//! which requests a registry expects.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use reqwest::Url;

use crate::client::challenge::Authorization;
use crate::client::failure::Failure;
use crate::client::hosts::Place;
use crate::client::http::{Pace, Response};
use crate::client::place::Ask;
use crate::client::retry::retry_after;
use crate::client::sending::Sending;
use crate::tls::{self, USER_AGENT};
use imgctl_base::error::{Error, Kind, Result};

/// Number of bytes handed to the kernel at once, after which progress is visible.
const PIECE: u64 = 4 << 20;
/// Maximum length of the head of a response, in bytes, and its maximum number of headers.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

/// A file whose content is a blob.
#[derive(Debug)]
pub struct BlobFile {
    pub file: File,
    /// Ends sending once it is set.
    pub stop: Arc<AtomicBool>,
}

/// The `length` bytes of `blob` from `start` on.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) blob: Arc<BlobFile>,
    pub(super) start: u64,
    pub(super) length: u64,
}

impl Place {
    /// Returns whether requests like `ask` may have a [`Part`] as their body: they go to this host
    /// itself, without TLS and without a proxy.
    pub(super) async fn takes_files(&self, ask: &Ask) -> Result<bool, Failure> {
        let (url, home) = (self.url(&ask.address).await?, self.base().await?);
        let proxied = tls::may_proxy_plain(&self.shared.options.proxies);
        Ok(url.scheme() == "http" && url.origin() == home.origin() && !proxied)
    }

    /// Makes one attempt with `part` as the body and the authorization that the host is known to
    /// require. A redirect is refused; any other response but 2xx is a failure that may pass.
    pub(super) async fn send_file(
        &self,
        ask: &Ask,
        part: Part,
        sending: &Arc<Sending>,
    ) -> Result<Response, Failure> {
        let url = self.url(&ask.address).await?;
        let authorization = self.known_authorization(&ask.scopes).await?;
        let head = head(ask, &url, authorization.as_ref());
        let addresses = self.shared.names.addresses(&url).await;
        let (pace, sending) = (self.shared.pace.clone(), Arc::clone(sending));
        let answer =
            tokio::task::spawn_blocking(move || send(&addresses, &head, &part, &pace, &sending));
        let answer = answer.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let (status, headers) = answer.map_err(|error| {
            let broke = format!("the connection broke to {}", self.host.name);
            Failure::passing(Error::new(Kind::Network, broke).caused_by(error))
        })?;
        tracing::debug!("{} {}{}: {status}", ask.method, self.host.name, url.path());
        let response = Response::without_body(status, headers, url);
        if status.is_success() {
            return Ok(response);
        }
        self.refuse_redirect(&response).await?;
        let refused = format!("{} answered {status}", self.host.name);
        Err(Failure {
            error: Error::new(Kind::Network, refused),
            again: true,
            retry_after: retry_after(&response.headers),
            status: Some(status),
        })
    }
}

/// Returns the request line and the headers, with the empty line that ends them.
fn head(ask: &Ask, url: &Url, authorization: Option<&Authorization>) -> Vec<u8> {
    let query = url.query().map_or_else(String::new, |query| format!("?{query}"));
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    let (method, path, host) = (&ask.method, url.path(), url.host_str().unwrap_or_default());
    let mut head = format!(
        "{method} {path}{query} HTTP/1.1\r\nhost: {host}{port}\r\nuser-agent: {USER_AGENT}\r\n\
         accept: */*\r\nconnection: close\r\n"
    )
    .into_bytes();
    let authorization = authorization.map(|known| (&header::AUTHORIZATION, &known.value));
    let asked = ask.headers.iter().filter(|(name, _)| *name != header::CONNECTION);
    for (name, value) in asked.chain(authorization) {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Sends a request with `part` as its body to the first of `addresses` that accepts a connection, and
/// returns the head of the response. Blocks; fails if nothing moves for longer than `pace` allows.
fn send(
    addresses: &[SocketAddr],
    head: &[u8],
    part: &Part,
    pace: &Pace,
    sending: &Sending,
) -> io::Result<(StatusCode, HeaderMap)> {
    let mut connection = connect(addresses, pace.connect)?;
    connection.set_nodelay(true)?;
    connection.set_write_timeout(Some(pace.silence))?;
    connection.set_read_timeout(Some(pace.write_answer))?;
    connection.write_all(head)?;
    send_bytes(&connection, part, sending)?;
    read_head(&mut connection)
}

fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(address, limit) {
            Ok(connection) => return Ok(connection),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn send_bytes(connection: &TcpStream, part: &Part, sending: &Sending) -> io::Result<()> {
    let mut offset = part.start;
    let end = part.start + part.length;
    while offset < end {
        if part.blob.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("stopped because another part has failed"));
        }
        let piece = usize::try_from((end - offset).min(PIECE)).unwrap_or_default();
        let before = offset;
        match rustix::fs::sendfile(connection, &part.blob.file, Some(&mut offset), piece) {
            Ok(0) => {
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    format!("the data to send ended {} bytes too early", end - offset),
                ));
            }
            Ok(_) => sending.add(offset - before),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads the head of the response and skips interim ones (1xx). Does not read the body.
fn read_head(connection: &mut TcpStream) -> io::Result<(StatusCode, HeaderMap)> {
    let mut bytes = Vec::new();
    let mut block = [0; 4096];
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut fields);
        let parsed = head.parse(&bytes).map_err(unusable)?;
        if let httparse::Status::Complete(length) = parsed {
            let status = StatusCode::from_u16(head.code.unwrap_or_default()).map_err(unusable)?;
            if !status.is_informational() {
                return Ok((status, headers(head.headers)?));
            }
            bytes.drain(..length);
            continue;
        }
        if bytes.len() > MAX_HEAD {
            return Err(unusable(format!("its head is longer than {MAX_HEAD} bytes")));
        }
        match connection.read(&mut block) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes.extend_from_slice(block.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn headers(fields: &[httparse::Header<'_>]) -> io::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let value = HeaderValue::from_bytes(field.value);
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(unusable(format!("header {:?} is malformed", field.name)));
        };
        headers.append(name, value);
    }
    Ok(headers)
}

fn unusable(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the response cannot be used: {why}"))
}
