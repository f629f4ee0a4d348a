//! A programmable HTTP/1.1 proxy between imgctl and a registry. It records every request and, by
//! rules, lies about answers, cuts, stalls, drips or never ends.
//!
//! Each request gets connections of its own on both sides, so that a rule is about one request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use regex::Regex;

/// A running proxy. Its threads end with the test's process.
pub(crate) struct Proxy {
    /// `127.0.0.1:PORT`.
    pub(crate) host: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// `None` = there is nothing behind: what no rule answers is 404.
    upstream: Option<String>,
    rules: Mutex<Vec<Rule>>,
    requests: Mutex<Vec<Request>>,
}

struct Rule {
    method: String,
    path: Regex,
    /// How often it still applies.
    left: u32,
    fault: Fault,
}

/// What a rule does to a request it is about.
#[derive(Clone)]
pub(crate) enum Fault {
    /// The proxy answers itself.
    Answer(Answer),
    /// The upstream's whole answer is changed; a `Content-Length` is made anew.
    Edit(Arc<Change>),
    /// The answer's body ends after so many bytes with the connection.
    Cut(u64),
    /// So many bytes of a longer request's body arrive, then both connections break.
    CutRequest(u64),
    /// After so many bytes of the answer's body nothing more comes.
    Stall(u64),
    /// A byte of the answer's body at a time, with pauses.
    Drip(Duration),
    /// A head that promises nothing, and zeros as long as somebody takes them.
    Endless,
    /// The request goes on without this header.
    Without(&'static str),
    /// The connection is closed without a word.
    Close,
}

/// Changes an answer to a request.
pub(crate) type Change = dyn Fn(&Request, &mut Answer) + Send + Sync;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
}

/// An answer, whole.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Code and reason.
    pub(crate) status: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// What `Content-Length` says, if that is a lie.
    pub(crate) length: Option<usize>,
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_str())
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// Method and path.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

impl Answer {
    pub(crate) fn new(status: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            status: status.to_owned(),
            headers: headers.iter().map(owned).collect(),
            body: body.into(),
            length: None,
        }
    }

    /// A redirect that keeps the method.
    pub(crate) fn redirect(location: &str) -> Self {
        Self::new("307 Temporary Redirect", &[("Location", location)], "")
    }

    /// Replaces a header, or adds it.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
    }
}

impl Fault {
    /// The proxy answers itself.
    pub(crate) fn answer(status: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        Self::Answer(Answer::new(status, headers, body))
    }

    /// Changes the upstream's answer.
    pub(crate) fn edit(change: impl Fn(&Request, &mut Answer) + Send + Sync + 'static) -> Self {
        Self::Edit(Arc::new(change))
    }
}

impl Proxy {
    /// In front of `upstream` (`127.0.0.1:PORT`).
    pub(crate) fn start(upstream: &str) -> Self {
        Self::listen(Some(upstream.to_owned()), "127.0.0.1")
    }

    /// With nothing behind, at an address of its own: a host that only records and says 404.
    pub(crate) fn alone(address: &str) -> Self {
        Self::listen(None, address)
    }

    fn listen(upstream: Option<String>, address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let shared =
            Arc::new(Shared { upstream, rules: Mutex::default(), requests: Mutex::default() });
        let theirs = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&theirs);
                // What breaks here is what the test wants to break.
                thread::spawn(move || shared.serve(&client).ok());
            }
        });
        Self { host, shared }
    }

    /// From now on `fault` befalls requests with this method whose path and query match.
    pub(crate) fn on(&self, method: &str, path: &str, fault: Fault) {
        self.on_first(u32::MAX, method, path, fault);
    }

    /// The same for only so many requests. Later rules apply once earlier ones are used up.
    pub(crate) fn on_first(&self, times: u32, method: &str, path: &str, fault: Fault) {
        self.shared.rules.lock().unwrap().push(Rule {
            method: method.to_owned(),
            path: Regex::new(path).unwrap(),
            left: times,
            fault,
        });
    }

    /// Forgets all rules.
    pub(crate) fn behave(&self) {
        self.shared.rules.lock().unwrap().clear();
    }

    /// Forgets the rules for this path, as it was written.
    pub(crate) fn forget(&self, path: &str) {
        let mut rules = self.shared.rules.lock().unwrap();
        rules.retain(|rule| rule.path.as_str() != path);
    }

    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.requests.lock().unwrap())
    }

    /// How many requests since the last call of [`Proxy::requests`] there were of this sort.
    pub(crate) fn count(&self, method: &str, path: &str) -> usize {
        let path = Regex::new(path).unwrap();
        let requests = self.shared.requests.lock().unwrap();
        let wanted = |request: &&Request| request.method == method && path.is_match(&request.path);
        requests.iter().filter(wanted).count()
    }
}

impl Shared {
    fn fault(&self, request: &Request) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap();
        let rule = rules.iter_mut().find(|rule| {
            rule.left > 0 && rule.method == request.method && rule.path.is_match(&request.path)
        })?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }

    fn serve(&self, client: &TcpStream) -> std::io::Result<()> {
        let mut first = [0];
        // TLS: we do not speak it.
        if client.peek(&mut first)? == 0 || first[0] == 0x16 {
            return Ok(());
        }
        let mut reader = BufReader::new(client.try_clone()?);
        let (line, headers) = read_head(&mut reader)?;
        let mut words = line.split(' ');
        let mut request = Request {
            method: words.next().unwrap_or_default().to_owned(),
            path: words.next().unwrap_or_default().to_owned(),
            headers,
        };
        self.requests.lock().unwrap().push(request.clone());
        let fault = self.fault(&request);
        match fault {
            Some(Fault::Close) => return Ok(()),
            Some(Fault::Answer(answer)) => {
                copy_body(&mut reader, &request, &mut std::io::sink(), u64::MAX)?;
                return send(client, &request, &answer);
            }
            Some(Fault::Endless) => return endless(client),
            Some(Fault::Without(name)) => {
                request.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
            }
            _ => {}
        }
        let Some(upstream) = &self.upstream else {
            return send(client, &request, &Answer::new("404 Not Found", &[], ""));
        };
        let mut server = TcpStream::connect(upstream)?;
        write_head(&server, &line, &request.headers)?;
        let most = match fault {
            Some(Fault::CutRequest(bytes)) => bytes,
            _ => u64::MAX,
        };
        let cut = copy_body(&mut reader, &request, &mut server, most)?;
        if cut {
            return server.shutdown(Shutdown::Both);
        }
        relay(client, &request, &server, fault.as_ref())
    }
}

/// Brings the upstream's answer to the client, with `fault`.
fn relay(
    client: &TcpStream,
    request: &Request,
    server: &TcpStream,
    fault: Option<&Fault>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(server);
    let (line, headers) = read_head(&mut reader)?;
    if let Some(Fault::Edit(change)) = fault {
        let mut body = Vec::new();
        reader.read_to_end(&mut body)?;
        let status = line.split_once(' ').unwrap_or_default().1;
        let mut answer = Answer { status: status.to_owned(), headers, body, length: None };
        change(request, &mut answer);
        return send(client, request, &answer);
    }
    write_head(client, &line, &headers)?;
    let mut client = client;
    match fault {
        Some(Fault::Cut(bytes)) => {
            std::io::copy(&mut reader.take(*bytes), &mut client)?;
        }
        Some(Fault::Stall(bytes)) => {
            std::io::copy(&mut reader.take(*bytes), &mut client)?;
            // Until the client has gone.
            let _ = client.read(&mut [0]);
        }
        Some(Fault::Drip(pause)) => {
            for byte in reader.bytes() {
                client.write_all(&[byte?])?;
                thread::sleep(*pause);
            }
        }
        _ => {
            std::io::copy(&mut reader, &mut client)?;
        }
    }
    client.shutdown(Shutdown::Both)
}

fn endless(mut client: &TcpStream) -> std::io::Result<()> {
    client.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let zeros = vec![0; 64 << 10];
    loop {
        client.write_all(format!("{:x}\r\n", zeros.len()).as_bytes())?;
        client.write_all(&zeros)?;
        client.write_all(b"\r\n")?;
    }
}

/// The first line and the headers; `Connection` is left out.
fn read_head(reader: &mut impl BufRead) -> std::io::Result<(String, Vec<(String, String)>)> {
    let mut first = None;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok((first.unwrap_or_default(), headers));
        }
        if first.is_none() {
            first = Some(line.to_owned());
        } else if let Some((name, value)) = line.split_once(':')
            && !name.eq_ignore_ascii_case("connection")
        {
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }
}

fn write_head(mut to: &TcpStream, line: &str, headers: &[(String, String)]) -> std::io::Result<()> {
    let mut head = format!("{line}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    to.write_all((head + "\r\n").as_bytes())
}

/// An answer as a whole. To HEAD it has the length that the upstream said.
fn send(mut client: &TcpStream, request: &Request, answer: &Answer) -> std::io::Result<()> {
    let mut answer = answer.clone();
    let head_only = request.method == "HEAD";
    if !head_only {
        let length = answer.length.unwrap_or(answer.body.len());
        answer.set("Content-Length", &length.to_string());
    }
    answer.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("transfer-encoding"));
    let line = format!("HTTP/1.1 {}", answer.status);
    write_head(client, &line, &answer.headers)?;
    if !head_only {
        client.write_all(&answer.body)?;
    }
    client.shutdown(Shutdown::Both)
}

/// At most `most` bytes of the request's body. Returns whether there is more.
fn copy_body(
    reader: &mut impl Read,
    request: &Request,
    to: &mut impl Write,
    most: u64,
) -> std::io::Result<bool> {
    let length = request.header("content-length");
    let length: u64 = length.and_then(|text| text.parse().ok()).unwrap_or(0);
    std::io::copy(&mut reader.take(length.min(most)), to)?;
    Ok(length > most)
}
