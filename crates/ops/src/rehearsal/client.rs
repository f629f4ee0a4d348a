//! A client of the copied cluster: it asks the hosts in turn, as one that tries the next host when one does not
//! answer. Must not know what the cluster is.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::rehearsal_record::Answers;
use imgctl_base::error::{Error, Result};

/// Time between two requests, and until a host counts as not answering.
const PAUSE: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(1);
/// Stands for the address of a host.
const HOST: &str = "{host}";

/// What a client asks: `http://{host}:PORT/PATH`, or `tcp://{host}:PORT` for a connection alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestAddress {
    port: u16,
    /// Path of an HTTP request; `None` for a connection alone.
    path: Option<String>,
}

impl RequestAddress {
    /// # Errors
    /// If the text is of another form.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`{text}` is not an address to ask"))
                .hint("write http://{host}:PORT/PATH or tcp://{host}:PORT")
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let rest = rest.strip_prefix(HOST).ok_or_else(wrong)?;
        let (port, path) = match rest.split_once('/') {
            Some((port, path)) => (port, format!("/{path}")),
            None => (rest, "/".to_owned()),
        };
        let number = match (port.strip_prefix(':'), scheme) {
            (Some(port), _) => port.parse().map_err(|_| wrong())?,
            (None, "http") if port.is_empty() => 80,
            (None, _) => return Err(wrong()),
        };
        match scheme {
            "http" if !path.chars().any(|c| c.is_control() || c == ' ') => {
                Ok(Self { port: number, path: Some(path) })
            }
            "tcp" => Ok(Self { port: number, path: None }),
            _ => Err(wrong()),
        }
    }

    /// Asks one host; `true` if it answers well.
    fn ask(&self, host: IpAddr) -> bool {
        self.try_ask(host).unwrap_or(false)
    }

    fn try_ask(&self, host: IpAddr) -> std::io::Result<bool> {
        let address = SocketAddr::new(host, self.port);
        let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
        let Some(path) = &self.path else { return Ok(true) };
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        // In one piece: a server that answers the first part and closes would reset the connection.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        // `HTTP/1.1 200`
        let mut start = [0; 12];
        stream.read_exact(&mut start)?;
        Ok(start.starts_with(b"HTTP/") && matches!(start[9], b'2' | b'3'))
    }
}

/// A client that runs.
pub(super) struct Client {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Answers>,
}

impl Client {
    pub(super) fn start(address: &RequestAddress, hosts: &[IpAddr]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (address, hosts, stopped) = (address.clone(), hosts.to_vec(), stop.clone());
        let thread = std::thread::spawn(move || run(&address, &hosts, &stopped));
        Self { stop, thread }
    }

    pub(super) fn stop(self) -> Answers {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn run(address: &RequestAddress, hosts: &[IpAddr], stop: &AtomicBool) -> Answers {
    let mut seen = Answers::default();
    let mut last = Instant::now();
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        // A client stays with a host as long as it answers.
        let tried = (0..hosts.len()).map(|offset| (next + offset) % hosts.len());
        let answered = tried.clone().find(|host| address.ask(hosts[*host]));
        seen.asked += 1;
        seen.longest_gap = seen.longest_gap.max(last.elapsed().as_secs_f64());
        match answered {
            Some(host) => {
                last = Instant::now();
                next = host;
            }
            None => seen.failed += 1,
        }
        std::thread::sleep(PAUSE);
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn addresses_name_the_host_by_its_place() {
        for (text, port, path) in [
            ("http://{host}:8080/healthz?x=1", 8080, Some("/healthz?x=1")),
            ("http://{host}", 80, Some("/")),
            ("tcp://{host}:2379", 2379, None),
        ] {
            let address = RequestAddress::parse(text).unwrap();
            assert_eq!((address.port, address.path.as_deref()), (port, path), "{text}");
        }
        for text in ["https://{host}/", "http://10.0.0.1/", "tcp://{host}", "http://{host}:x/", "a"]
        {
            let error = RequestAddress::parse(text).unwrap_err();
            assert!(error.hints()[0].contains("{host}"), "{text}: {error}");
        }
    }

    #[test]
    fn a_request_fails_when_no_host_answers_it() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let answers = std::thread::spawn(move || {
            for status in ["200 OK", "503 Busy", "302 Found"] {
                let (mut stream, _) = server.accept().unwrap();
                let _ = stream.read(&mut [0; 256]);
                // The client leaves as soon as it knows the status.
                let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes());
            }
        });
        let address = RequestAddress::parse(&format!("http://{{host}}:{port}/")).unwrap();
        let asked: Vec<bool> = (0..3).map(|_| address.ask(LOCAL)).collect();
        answers.join().unwrap();
        assert_eq!(asked, [true, false, true]);
        // Nothing listens any more.
        assert!(!address.ask(LOCAL));
        let client = Client::start(&address, &[LOCAL]);
        std::thread::sleep(PAUSE * 3);
        let seen = client.stop();
        assert!(seen.asked > 0 && seen.failed == seen.asked, "{seen:?}");
    }
}
