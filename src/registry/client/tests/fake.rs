//! A fake: no real registry lies, cuts and stalls as this one does, for it does as a test says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A request as it came.
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

/// What is written back: a head and a body as they are, then the connection is kept or not.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
    pub(super) close: bool,
    /// After the head, before the body; the connection is then ended.
    pub(super) stall: Option<std::time::Duration>,
}

impl Answer {
    /// `status` with headers and a right Content-Length.
    pub(super) fn new(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        Self {
            head,
            body: body.to_vec(),
            ..Self::default()
        }
    }

    pub(super) fn json(body: &str) -> Self {
        Self::new(
            "200 OK",
            &[("Content-Type", "application/json")],
            body.as_bytes(),
        )
    }

    /// Only the first `length` bytes of the body, then the end.
    pub(super) fn cut(mut self, length: usize) -> Self {
        self.body.truncate(length);
        self.close = true;
        self
    }
}

type Handler = dyn Fn(&Request) -> Answer + Send + Sync;

/// A server that answers every request with what its handler says.
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

    /// The requests so far that are of `method` and have `part` in their target.
    pub(super) fn asked(&self, method: &str, part: &str) -> Vec<Request> {
        let log = self.log.lock().unwrap();
        log.iter()
            .filter(|request| request.is(method, part))
            .cloned()
            .collect()
    }
}

fn serve(stream: TcpStream, handler: &Handler, log: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let Some(request) = request(&mut reader)? else {
            return Ok(());
        };
        if request.target == "/v2/" && request.header("authorization").is_none() {
            // The question whether this is http.
        }
        log.lock().unwrap().push(request.clone());
        let answer = handler(&request);
        stream.write_all(answer.head.as_bytes())?;
        stream.write_all(b"\r\n")?;
        if let Some(stall) = answer.stall {
            std::thread::sleep(stall);
        }
        if request.method != "HEAD" {
            stream.write_all(&answer.body)?;
        }
        if answer.close || answer.stall.is_some() {
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
        request
            .headers
            .insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = request
        .header("content-length")
        .map_or(0, |text| text.parse().unwrap());
    reader.take(length).read_to_end(&mut request.body)?;
    Ok(Some(request))
}
