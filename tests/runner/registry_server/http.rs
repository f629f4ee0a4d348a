//! HTTP as it is on the wire: a request is written, a response read, and nothing is done on the side.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use sha2::Digest as _;

/// One request.
#[derive(Clone)]
pub(crate) struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    host: String,
    body: Vec<u8>,
    /// Whether the body goes in chunks, without a length.
    chunked: bool,
}

/// One response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, path: impl Into<String>) -> Self {
        Self {
            method: method.to_owned(),
            path: path.into(),
            headers: Vec::new(),
            host: "localhost".to_owned(),
            body: Vec::new(),
            chunked: false,
        }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn host(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// What goes over the wire, without the body.
    pub(crate) fn head(&self) -> String {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.method, self.path, self.host
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.chunked {
            head.push_str("Transfer-Encoding: chunked\r\n");
        } else {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head + "\r\n"
    }

    /// Sends it to `address` and reads the response to the end of the connection.
    #[track_caller]
    pub(crate) fn send(&self, address: &str) -> Response {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(self.head().as_bytes()).unwrap();
        // A refused body may be cut: what counts is the response.
        if self.chunked {
            for chunk in self.body.chunks(1000) {
                let _ = stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes());
                let _ = stream.write_all(chunk);
                let _ = stream.write_all(b"\r\n");
            }
            let _ = stream.write_all(b"0\r\n\r\n");
        } else {
            let _ = stream.write_all(&self.body);
        }
        let response = Response::read(&mut stream);
        if self.method == "HEAD" {
            assert!(response.body.is_empty(), "a HEAD has no body");
        }
        response
    }
}

impl Response {
    #[track_caller]
    pub(crate) fn read(stream: &mut impl Read) -> Self {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .unwrap_or_else(|| panic!("no response: {:?}", String::from_utf8_lossy(&bytes)));
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let headers = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Self { status: status.parse().unwrap(), headers, body: bytes[end + 4..].to_vec() }
    }

    /// The value of a header.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Panics unless the status is this one.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        let body = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{:?} {body}", self.headers);
        self
    }

    /// Panics unless it is an error of the distribution API with this code.
    #[track_caller]
    pub(crate) fn fails(self, status: u16, code: &str) -> Self {
        let response = self.is(status);
        let json = response.json();
        assert_eq!(json["errors"][0]["code"], code, "{json}");
        assert!(json["errors"][0]["message"].is_string(), "{json}");
        response
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Path and query of the `Location` header.
    #[track_caller]
    pub(crate) fn location(&self) -> String {
        let location = self.get("location").expect("no Location");
        match location.split_once("://") {
            Some((_, rest)) => rest[rest.find('/').unwrap()..].to_owned(),
            None => location.to_owned(),
        }
    }
}

/// `sha256:…` of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&sha2::Sha256::digest(bytes)))
}

/// `sha512:…` of `bytes`.
pub(crate) fn sha512(bytes: &[u8]) -> String {
    format!("sha512:{}", hex(&sha2::Sha512::digest(bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
