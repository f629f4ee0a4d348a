//! A TCP proxy between imgctl and a registry: counts what is asked for and how many bytes come
//! back, and can be slow.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A running proxy. Its threads end with the test's process.
pub(crate) struct Proxy {
    /// `127.0.0.1:PORT`.
    pub(crate) host: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Bytes that came from the registry.
    bytes: AtomicU64,
    /// First lines of requests.
    requests: Mutex<Vec<String>>,
    /// Bytes that may come in a second, for each connection; 0 = any.
    rate: AtomicU64,
}

impl Proxy {
    /// In front of `upstream` (`127.0.0.1:PORT`).
    pub(crate) fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared::default());
        let (upstream, theirs) = (upstream.to_owned(), Arc::clone(&shared));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&upstream) else {
                    continue;
                };
                connect(client, server, &theirs);
            }
        });
        Self { host, shared }
    }

    /// Lets so many bytes through in a second.
    pub(crate) fn slow(&self, rate: u64) {
        self.shared.rate.store(rate, Ordering::Relaxed);
    }

    /// Bytes from the registry so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// The requests since the last call (`GET /v2/…`).
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.requests.lock().unwrap())
    }

    /// Those of [`Proxy::requests`] that are for blobs.
    pub(crate) fn blob_requests(&self) -> Vec<String> {
        let mut requests = self.requests();
        requests.retain(|line| line.contains("/blobs/"));
        requests
    }
}

fn connect(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let up = Arc::clone(shared);
    thread::spawn(move || {
        copy(from_client, to_server, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Some((line, _)) = text.split_once(" HTTP/1.") {
                up.requests.lock().unwrap().push(line.to_owned());
            }
        });
    });
    let down = Arc::clone(shared);
    thread::spawn(move || {
        copy(server, client, |bytes| {
            down.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let rate = down.rate.load(Ordering::Relaxed);
            let nanoseconds = (bytes.len() as u64 * 1_000_000_000).checked_div(rate);
            thread::sleep(Duration::from_nanos(nanoseconds.unwrap_or(0)));
        });
    });
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut seen: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
