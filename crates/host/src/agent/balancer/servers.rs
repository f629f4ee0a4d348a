//! The servers: their list in a file, their health, the order in which they are tried, and which
//! connections must end.
//!
//! `#out ADDRESS:PORT SECONDS` in the file takes a server out of service for that time after the
//! file was written, because its writer may never come back. A balancer that does not know the line
//! skips it as a comment, and therefore does not find the server in the list.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::probe::Finding;
use imgctl_base::error::{Error, IoContext, Result};

/// Consecutive probes needed to mark a server as unready, or as ready again.
const LOOKS: u32 = 2;
/// Time that connections have to become quiet when their server still works.
const OUT_GRACE: Duration = Duration::from_secs(15);
/// The same when the server does not work.
const UNREADY_GRACE: Duration = Duration::from_secs(5);

/// Rank of a server, the best first. Connections go to the best available server: if all are
/// unready, an unready one is better than none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Ready,
    /// Taken out of service by an operator.
    Out,
    Unready,
    Down,
}

impl Class {
    fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Out => "out",
            Self::Unready => "unready",
            Self::Down => "down",
        }
    }
}

/// The part of a server's state that its connections use.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: String,
    pub(super) open: AtomicUsize,
    /// `Some`: connections must end within that time.
    leave: watch::Sender<Option<Duration>>,
}

impl Server {
    pub(super) fn leave(&self) -> watch::Receiver<Option<Duration>> {
        self.leave.subscribe()
    }

    fn set_leave(&self, grace: Option<Duration>) {
        self.leave.send_if_modified(|now| std::mem::replace(now, grace) != grace);
    }
}

#[derive(Debug)]
struct Entry {
    server: Arc<Server>,
    out_until: Option<Instant>,
    /// Never [`Class::Out`]: only the operator sets that.
    health: Class,
    why: String,
    /// Number of consecutive probes that differ from `health`.
    doubts: u32,
    was_looked_at: bool,
    shown: Class,
}

impl Entry {
    fn new(address: String) -> Self {
        Self {
            server: Arc::new(Server {
                address,
                open: AtomicUsize::new(0),
                leave: watch::Sender::new(None),
            }),
            out_until: None,
            health: Class::Ready,
            why: String::new(),
            doubts: 0,
            was_looked_at: false,
            shown: Class::Ready,
        }
    }

    fn class(&self, now: Instant) -> Class {
        match self.health {
            Class::Ready if self.out_until.is_some_and(|until| now < until) => Class::Out,
            health => health,
        }
    }
}

/// Shared by connections and probes.
pub(super) struct Servers {
    path: PathBuf,
    list: Mutex<(Vec<Entry>, Option<Stamp>)>,
    turn: AtomicUsize,
}

impl Servers {
    /// Reads the file. An empty or missing file is an error here; later it is ignored.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let stamp = stamp(path);
        let mut entries = Vec::new();
        merge(&mut entries, read_list(path)?);
        Ok(Self {
            path: path.to_owned(),
            list: Mutex::new((entries, stamp)),
            turn: AtomicUsize::new(0),
        })
    }

    fn entries(&self) -> MutexGuard<'_, (Vec<Entry>, Option<Stamp>)> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file again if it has changed. Servers that remain listed keep their state.
    pub(super) fn reload(&self) {
        let stamp = stamp(&self.path);
        let mut held = self.entries();
        if stamp == held.1 {
            return;
        }
        held.1 = stamp;
        match read_list(&self.path) {
            Ok(fresh) => merge(&mut held.0, fresh),
            Err(error) => {
                tracing::warn!("keeping the current list of servers: {}", error.message());
            }
        }
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        let held = self.entries();
        held.0.iter().map(|entry| entry.server.address.clone()).collect()
    }

    /// Returns the servers in the order to try them: the best ones in rotation, then the others.
    pub(super) fn in_order(&self) -> Vec<Arc<Server>> {
        let now = Instant::now();
        let held = self.entries();
        // A server that failed its last probe comes after those that did not.
        let mut order: Vec<_> = held
            .0
            .iter()
            .map(|entry| ((entry.class(now), entry.doubts > 0), &entry.server))
            .collect();
        order.sort_by_key(|(rank, _)| *rank);
        let best = order.first().map(|(rank, _)| *rank);
        let equal = order.iter().filter(|(rank, _)| Some(*rank) == best).count();
        if equal > 0 {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % equal;
            order[..equal].rotate_left(turn);
        }
        order.into_iter().map(|(_, server)| Arc::clone(server)).collect()
    }

    /// Records the result of a probe.
    pub(super) fn found(&self, address: &str, finding: Finding) {
        let mut held = self.entries();
        let Some(entry) = held.0.iter_mut().find(|entry| entry.server.address == address) else {
            return;
        };
        let (health, why) = match finding {
            Finding::Ready => (Class::Ready, String::new()),
            Finding::Unready(why) => (Class::Unready, why),
            Finding::Down(why) => (Class::Down, why),
        };
        let is_first = !std::mem::replace(&mut entry.was_looked_at, true);
        if health == entry.health {
            entry.doubts = 0;
            entry.why = why;
            return;
        }
        entry.doubts += 1;
        // A refused connection needs no confirmation.
        if is_first || health == Class::Down || entry.doubts >= LOOKS {
            entry.health = health;
            entry.why = why;
            entry.doubts = 0;
        }
    }

    pub(super) fn retire(&self, grace: Duration) {
        for entry in &self.entries().0 {
            entry.server.set_leave(Some(grace));
        }
    }

    /// Returns the number of open connections.
    pub(super) fn open(&self) -> usize {
        let held = self.entries();
        let open = held.0.iter();
        open.map(|entry| entry.server.open.load(Ordering::Relaxed)).sum()
    }

    /// Ends connections whose server is worse than the best one, and describes the servers, one per
    /// line.
    pub(super) fn settle(&self) -> String {
        let now = Instant::now();
        let mut held = self.entries();
        let best = held.0.iter().map(|entry| entry.class(now)).min();
        let mut text = String::new();
        for entry in &mut held.0 {
            let class = entry.class(now);
            if class != entry.shown {
                let why = match entry.why.as_str() {
                    "" => String::new(),
                    why => format!(": {why}"),
                };
                tracing::info!("{} is {}{why}", entry.server.address, class.word());
                entry.shown = class;
            }
            let grace = match class {
                Class::Out => OUT_GRACE,
                _ => UNREADY_GRACE,
            };
            let is_outdone = best.is_some_and(|best| best < class);
            entry.server.set_leave(is_outdone.then_some(grace));
            let open = entry.server.open.load(Ordering::Relaxed);
            let _ = writeln!(
                text,
                "{} {} {open} {}",
                entry.server.address,
                class.word(),
                entry.why.lines().next().unwrap_or_default()
            );
        }
        text
    }
}

/// Ends connections to servers that are no longer listed.
fn merge(entries: &mut Vec<Entry>, fresh: Vec<Listed>) {
    let now = Instant::now();
    let mut known = std::mem::take(entries);
    for listed in fresh {
        let at = known.iter().position(|entry| entry.server.address == listed.address);
        let mut entry = match at {
            Some(at) => known.swap_remove(at),
            None => Entry::new(listed.address),
        };
        entry.out_until = listed.out.map(|left| now + left);
        entries.push(entry);
    }
    for gone in known {
        gone.server.set_leave(Some(OUT_GRACE));
    }
}

/// Maximum size of the server list, in bytes.
const LONGEST_FILE: u64 = 64 * 1024;
/// Maximum time that a server stays out of service, whatever the file says.
const LONGEST_OUT: Duration = Duration::from_secs(60 * 60);
const OUT: &str = "#out ";

/// A server as listed in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) address: String,
    /// Remaining time out of service.
    pub(super) out: Option<Duration>,
}

/// Modification stamp that distinguishes one version of a file from another.
pub(super) type Stamp = (SystemTime, u64, u64);

/// Returns the stamp of the file without reading its content.
pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.ino(), found.len()))
}

/// Reads the list: one `address:port` per line. Empty lines and other `#` comments are skipped.
pub(super) fn read_list(path: &Path) -> Result<Vec<Listed>> {
    let found = std::fs::metadata(path).path("read", path)?;
    if found.len() > LONGEST_FILE {
        return Err(Error::usage(format!("{} is too long for a list of servers", path.display())));
    }
    // A modification time in the future (the clock was set back) counts as just now.
    let age = found.modified().ok().and_then(|time| time.elapsed().ok());
    let text = std::fs::read_to_string(path).path("read", path)?;
    let mut list: Vec<Listed> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let wrong = || {
            Error::usage(format!("{}:{}: `{line}` is not address:port", path.display(), number + 1))
        };
        let (address, seconds) = match line.strip_prefix(OUT) {
            Some(rest) => {
                let (address, seconds) = rest.trim().split_once(' ').ok_or_else(wrong)?;
                let seconds: u64 = seconds.trim().parse().map_err(|_| wrong())?;
                (address, Some(Duration::from_secs(seconds)))
            }
            None if line.is_empty() || line.starts_with('#') => continue,
            None => (line, None),
        };
        address.parse::<SocketAddr>().map_err(|_| wrong())?;
        let out = seconds
            .map(|wanted| wanted.min(LONGEST_OUT).saturating_sub(age.unwrap_or_default()))
            .filter(|left| !left.is_zero());
        if list.iter().all(|listed| listed.address != address) {
            let address = address.to_owned();
            list.push(Listed { address, out });
        }
    }
    if list.is_empty() {
        return Err(Error::usage(format!("{} lists no servers", path.display()))
            .hint("write one address:port per line"));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(directory: &Path, text: &str) -> Servers {
        let file = directory.join("servers");
        std::fs::write(&file, text).unwrap();
        Servers::load(&file).unwrap()
    }

    fn first(servers: &Servers) -> String {
        servers.in_order()[0].address.clone()
    }

    fn leaves(servers: &Servers, address: &str) -> bool {
        let found = servers.in_order();
        let found = found.iter().find(|one| one.address == address).unwrap();
        found.leave().borrow().is_some()
    }

    #[test]
    fn one_failed_look_moves_new_connections_and_two_end_those_that_are_open() {
        let directory = tempfile::tempdir().unwrap();
        let servers = servers(directory.path(), "10.0.0.1:6443\n10.0.0.2:6443\n");
        for address in servers.addresses() {
            servers.found(&address, Finding::Ready);
        }
        let unready = || Finding::Unready("/readyz answers 500".to_owned());
        servers.found("10.0.0.1:6443", unready());
        servers.settle();
        for _ in 0..3 {
            assert_eq!(first(&servers), "10.0.0.2:6443");
        }
        assert!(!leaves(&servers, "10.0.0.1:6443"));
        servers.found("10.0.0.1:6443", unready());
        let text = servers.settle();
        assert!(text.contains("10.0.0.1:6443 unready 0 /readyz answers 500\n"), "{text}");
        assert!(leaves(&servers, "10.0.0.1:6443"));
        // A single ready result may be chance.
        servers.found("10.0.0.1:6443", Finding::Ready);
        servers.settle();
        assert!(leaves(&servers, "10.0.0.1:6443"));
        servers.found("10.0.0.1:6443", Finding::Ready);
        servers.settle();
        assert!(!leaves(&servers, "10.0.0.1:6443"));
    }

    #[test]
    fn where_none_is_ready_the_least_bad_serves_and_its_connections_stay() {
        let directory = tempfile::tempdir().unwrap();
        let list = "10.0.0.1:6443\n10.0.0.2:6443\n10.0.0.3:6443\n";
        let servers = servers(directory.path(), list);
        for _ in 0..LOOKS {
            servers.found("10.0.0.1:6443", Finding::Unready("500".to_owned()));
            servers.found("10.0.0.2:6443", Finding::Down("refused".to_owned()));
            servers.found("10.0.0.3:6443", Finding::Unready("500".to_owned()));
        }
        servers.settle();
        let order: Vec<String> = servers.in_order().iter().map(|one| one.address.clone()).collect();
        assert_eq!(order[2], "10.0.0.2:6443", "{order:?}");
        assert!(!leaves(&servers, "10.0.0.1:6443") && !leaves(&servers, "10.0.0.3:6443"));
        // A server that is out of service but ready is better than an unready or refusing one.
        std::fs::write(
            directory.path().join("servers"),
            "10.0.0.1:6443\n10.0.0.2:6443\n10.0.0.3:6443\n#out 10.0.0.4:6443 60\n",
        )
        .unwrap();
        servers.reload();
        servers.settle();
        assert_eq!(first(&servers), "10.0.0.4:6443");
        assert!(leaves(&servers, "10.0.0.1:6443"));
    }

    #[test]
    fn a_server_is_out_for_as_long_as_the_file_says_and_no_longer() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers");
        std::fs::write(
            &file,
            "# control planes\n10.0.0.11:6443\n#out 10.0.0.12:6443 600\n\n#out [fd00::3]:6443 999999\n",
        )
        .unwrap();
        let list = read_list(&file).unwrap();
        let addresses: Vec<&str> = list.iter().map(|one| one.address.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.11:6443", "10.0.0.12:6443", "[fd00::3]:6443"]);
        assert_eq!(list[0].out, None);
        let out = list[1].out.unwrap();
        assert!(out > Duration::from_secs(500) && out <= Duration::from_secs(600));
        assert!(list[2].out.unwrap() <= LONGEST_OUT);
        // The writer never came back.
        let then = SystemTime::now() - Duration::from_secs(601);
        std::fs::File::open(&file).unwrap().set_modified(then).unwrap();
        assert_eq!(read_list(&file).unwrap()[1].out, None);
        for wrong in ["10.0.0.1\n", "#out 10.0.0.1:6443\n", "#out x:1 5\n", "\n"] {
            std::fs::write(&file, wrong).unwrap();
            assert!(read_list(&file).is_err(), "{wrong}");
        }
    }
}
