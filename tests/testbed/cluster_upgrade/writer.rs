//! A client of etcd that writes without pause through every endpoint, and remembers what was
//! acknowledged: the witness that an upgrade loses nothing and never stops all writers.
//!
//! It speaks etcd's JSON over HTTP itself; a process per write would be slower than the cluster.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// How long nothing may be acknowledged. An election takes a second, a request that its leader took with it five, a busy
/// machine adds its own; that a majority runs all the time is what [`Written::assert_one_down_at_most`] finds.
const PAUSE: Duration = Duration::from_secs(30);

/// Writers, one for each endpoint, until [`Writer::stop`].
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    lanes: Vec<JoinHandle<Lane>>,
}

/// What one endpoint answered.
struct Lane {
    acknowledged: Vec<Acknowledged>,
    /// From the first to the last refused connection between two acknowledged writes: the member
    /// surely did not run then.
    down: Vec<Span>,
}

/// From one moment to another.
type Span = (Instant, Instant);

/// The time that is in a span of both.
fn both(one: &[Span], other: &[Span]) -> Vec<Span> {
    let pairs = one.iter().flat_map(|span| other.iter().map(move |second| (span, second)));
    let common = pairs.map(|(a, b)| (a.0.max(b.0), a.1.min(b.1)));
    common.filter(|(begin, end)| begin < end).collect()
}

struct Acknowledged {
    key: String,
    revision: u64,
    at: Instant,
}

/// All that was written.
pub(crate) struct Written {
    began: Instant,
    ended: Instant,
    lanes: Vec<Lane>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Writer {
    /// Begins to write keys `PREFIX/LANE/NUMBER`; the first are acknowledged when this returns.
    pub(crate) fn start(prefix: &'static str, addresses: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicUsize::new(0));
        let lanes = addresses.iter().enumerate().map(|(number, address)| {
            let endpoint = endpoint(address);
            let (stop, count) = (Arc::clone(&stop), Arc::clone(&count));
            std::thread::spawn(move || lane(&format!("{prefix}/{number}"), endpoint, &stop, &count))
        });
        let lanes = lanes.collect();
        let writer = Self { stop, count, lanes };
        writer.goes_on();
        writer
    }

    /// Waits for ten more writes.
    #[track_caller]
    pub(crate) fn goes_on(&self) {
        let wanted = self.count.load(Ordering::Relaxed) + 10;
        let began = Instant::now();
        while self.count.load(Ordering::Relaxed) < wanted {
            assert!(began.elapsed() < Duration::from_secs(180), "nothing is written any more");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends writing.
    pub(crate) fn stop(mut self, began: Instant) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        let lanes = std::mem::take(&mut self.lanes);
        let lanes = lanes.into_iter().map(|lane| lane.join().unwrap()).collect();
        Written { began, ended: Instant::now(), lanes }
    }
}

fn endpoint(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), 2379)
}

fn lane(prefix: &str, endpoint: SocketAddr, stop: &AtomicBool, count: &AtomicUsize) -> Lane {
    let mut acknowledged = Vec::new();
    let mut down = Vec::new();
    let mut refused: Option<Span> = None;
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // A write without an answer may or may not have been done: it is not written again.
        let key = format!("{prefix}/{number:06}");
        match put(endpoint, &key) {
            Ok(revision) => {
                down.extend(refused.take());
                count.fetch_add(1, Ordering::Relaxed);
                let at = Instant::now();
                acknowledged.push(Acknowledged { key, revision, at });
            }
            Err(error) => {
                let now = Instant::now();
                if error.kind() == ErrorKind::ConnectionRefused {
                    refused = Some((refused.map_or(now, |(first, _)| first), now));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    down.extend(refused);
    Lane { acknowledged, down }
}

fn put(endpoint: SocketAddr, key: &str) -> std::io::Result<u64> {
    let encoded = STANDARD.encode(key);
    let body = json!({"key": encoded, "value": encoded});
    let answer = post(endpoint, "/v3/kv/put", &body, Duration::from_secs(5))?;
    number(&answer["header"]["revision"])
        .ok_or_else(|| std::io::Error::other(format!("no revision: {answer}")))
}

/// The gateway writes 64-bit numbers as strings.
fn number(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

fn post(
    endpoint: SocketAddr,
    path: &str,
    body: &Value,
    patience: Duration,
) -> std::io::Result<Value> {
    let mut stream = TcpStream::connect_timeout(&endpoint, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(patience))?;
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let is_ok = answer.split(' ').nth(1) == Some("200");
    let content = answer.split_once("\r\n\r\n").filter(|_| is_ok);
    let (_, content) = content.ok_or_else(|| std::io::Error::other(answer.clone()))?;
    serde_json::from_str(content).map_err(std::io::Error::other)
}

/// The keys below `prefix` with the revision of their last change, as this member alone has them.
pub(crate) fn keys(address: &str, prefix: &str) -> BTreeMap<String, u64> {
    let after = format!("{prefix}0");
    let body = json!({
        "key": STANDARD.encode(format!("{prefix}/")), "range_end": STANDARD.encode(after),
        "keys_only": true, "serializable": true,
    });
    // Many keys on a busy machine.
    let answer = post(endpoint(address), "/v3/kv/range", &body, Duration::from_secs(60));
    let answer = answer.unwrap_or_else(|error| panic!("{address}: {error}"));
    let known = answer["kvs"].as_array().cloned().unwrap_or_default();
    let entry = |item: &Value| {
        let key = STANDARD.decode(item["key"].as_str().unwrap()).unwrap();
        (String::from_utf8(key).unwrap(), number(&item["mod_revision"]).unwrap())
    };
    known.iter().map(entry).collect()
}

impl Written {
    /// Every acknowledged write is on every member under its revision, writing never stopped, no two members were down
    /// at once.
    #[track_caller]
    pub(crate) fn assert_kept(&self, prefix: &str, addresses: &[String]) {
        self.assert_all_there(prefix, addresses);
        self.assert_no_pause();
        self.assert_one_down_at_most(addresses.len());
    }

    /// Writing never stopped for longer than [`PAUSE`].
    #[track_caller]
    pub(crate) fn assert_no_pause(&self) {
        let mut times: Vec<Instant> = self.all().map(|one| one.at).collect();
        times.extend([self.began, self.ended]);
        times.sort_unstable();
        let gap = times.windows(2).map(|pair| pair[1] - pair[0]).max();
        let gap = gap.unwrap_or_default();
        println!(
            "{} writes in {:?}, longest pause {gap:?}",
            self.all().count(),
            self.ended - self.began
        );
        assert!(gap < PAUSE, "nothing was acknowledged for {gap:?}");
    }

    /// Every member has every acknowledged write, once it has caught up.
    #[track_caller]
    pub(crate) fn assert_all_there(&self, prefix: &str, addresses: &[String]) {
        assert!(self.all().count() > 50);
        for address in addresses {
            let began = Instant::now();
            loop {
                let there = keys(address, prefix);
                let lost: Vec<&str> = self
                    .all()
                    .filter(|one| there.get(&one.key) != Some(&one.revision))
                    .map(|one| one.key.as_str())
                    .collect();
                if lost.is_empty() {
                    break;
                }
                assert!(
                    began.elapsed() < Duration::from_secs(120),
                    "{address} lacks {} acknowledged writes: {:?}",
                    lost.len(),
                    &lost[..lost.len().min(5)]
                );
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }

    /// All members have exactly what was written up to some revision, and not all of it.
    #[track_caller]
    pub(crate) fn assert_as_of_some_moment(&self, prefix: &str, addresses: &[String]) {
        let there: Vec<_> = addresses.iter().map(|one| keys(one, prefix)).collect();
        let newest = there[0].values().max().copied().unwrap_or_default();
        assert!(newest > 0, "nothing is there");
        for (address, keys) in addresses.iter().zip(&there) {
            let odd =
                self.all().find(|one| keys.contains_key(&one.key) != (one.revision <= newest));
            let odd = odd.map(|one| (&one.key, one.revision));
            assert!(odd.is_none(), "{address}, as of {newest}: {odd:?}");
        }
        let lost = self.all().filter(|one| one.revision > newest).count();
        assert!(lost > 0, "nothing was taken back");
        println!("as of revision {newest}, {lost} writes are gone");
    }

    /// No two of `members` were down at once. The endpoints are those of all members in order, then their second
    /// addresses in the same order: a member is down while all its endpoints are.
    #[track_caller]
    pub(crate) fn assert_one_down_at_most(&self, members: usize) {
        let down: Vec<Vec<Span>> = (0..members)
            .map(|member| {
                let lanes = self.lanes.iter().skip(member).step_by(members);
                lanes.map(|lane| lane.down.clone()).reduce(|one, other| both(&one, &other)).unwrap()
            })
            .collect();
        for (one, spans) in down.iter().enumerate() {
            for (other, others) in down.iter().enumerate().skip(one + 1) {
                let at_once = both(spans, others);
                assert!(
                    at_once.is_empty(),
                    "members {} and {} were down at once",
                    one + 1,
                    other + 1
                );
            }
        }
    }

    /// How often each member was down.
    pub(crate) fn stops(&self) -> Vec<usize> {
        self.lanes.iter().map(|lane| lane.down.len()).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Acknowledged> {
        self.lanes.iter().flat_map(|lane| &lane.acknowledged)
    }
}
