//! A fake registry that sends wrong data, breaks connections and stalls as a test requires; no real
//! registry does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A received request.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(super) fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.target.contains(part)
    }
}

/// A response: head and body are sent unchanged, then the connection is closed or kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
    pub(super) close: bool,
    /// Number of bytes after which to pause, and the length of the pause.
    pub(super) pauses: Option<(usize, Duration)>,
}

impl Answer {
    /// Returns `status` with headers and a correct Content-Length.
    pub(super) fn new(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        Self { head, body: body.to_vec(), ..Self::default() }
    }

    pub(super) fn not_found() -> Self {
        Self::new("404 Not Found", &[], b"")
    }

    pub(super) fn json(body: &str) -> Self {
        Self::new("200 OK", &[("Content-Type", "application/json")], body.as_bytes())
    }

    /// Returns `status` with these headers and no generated Content-Length.
    pub(super) fn raw(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let mut answer = Self::new(status, headers, body);
        let lines = answer.head.lines().filter(|line| !line.starts_with("Content-Length: "));
        answer.head = lines.map(|line| format!("{line}\r\n")).collect();
        for (name, value) in headers {
            if name.eq_ignore_ascii_case("content-length") {
                answer.head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        answer.close = true;
        answer
    }

    /// Truncates the body to its first `length` bytes, then closes the connection.
    pub(super) fn cut(mut self, length: usize) -> Self {
        self.body.truncate(length);
        self.close = true;
        self
    }
}

type Handler = dyn Fn(&Request) -> Answer + Send + Sync;

/// A server that answers every request with the response of its handler.
pub(super) struct Fake {
    pub(super) host: String,
    pub(super) log: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.host);
    }
}

impl Fake {
    pub(super) fn start(handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let log = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let handler: Arc<Handler> = Arc::new(handler);
        let (log_of_server, stopped) = (Arc::clone(&log), Arc::clone(&stop));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (handler, log) = (Arc::clone(&handler), Arc::clone(&log_of_server));
                std::thread::spawn(move || {
                    let _ = serve(stream?, &*handler, &log);
                    std::io::Result::Ok(())
                });
            }
        });
        Self { host, log, stop }
    }

    /// Returns the requests so far that use `method` and have `part` in their target.
    pub(super) fn asked(&self, method: &str, part: &str) -> Vec<Request> {
        let log = self.log.lock().unwrap();
        log.iter().filter(|request| request.is(method, part)).cloned().collect()
    }
}

fn serve(stream: TcpStream, handler: &Handler, log: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let Some(request) = request(&mut reader)? else {
            return Ok(());
        };
        log.lock().unwrap().push(request.clone());
        let answer = match request.target.as_str() {
            // The client's probe for plain HTTP.
            "/v2/" if request.header("authorization").is_none() => Answer::json("{}"),
            _ => handler(&request),
        };
        stream.write_all(answer.head.as_bytes())?;
        stream.write_all(b"\r\n")?;
        if request.method != "HEAD" {
            let (length, pause) = answer.pauses.unwrap_or((usize::MAX, Duration::ZERO));
            for piece in answer.body.chunks(length) {
                stream.write_all(piece)?;
                std::thread::sleep(pause);
            }
        }
        if answer.close {
            return stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let mut request = Request {
        method: words.next().unwrap_or_default().to_owned(),
        target: words.next().unwrap_or_default().to_owned(),
        ..Request::default()
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        request.headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = request.header("content-length").map_or(0, |text| text.parse().unwrap());
    reader.take(length).read_to_end(&mut request.body)?;
    Ok(Some(request))
}
