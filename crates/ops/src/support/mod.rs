//! Everything that a report of a problem needs, in one archive: the records of a cluster on this
//! controller, its status, and logs and facts of its hosts, without secrets: what is not known to be harmless is
//! left out.
//!
//! What goes in is a value first, which a front end shows before anything is collected. Reads only: no
//! lock, no Lease, no change on hosts. A host or file that cannot be read is named in the archive's
//! list and stops nothing.

mod archive;
mod harmless;
mod redaction;

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::maintain;
use crate::operation::Operation;
use crate::report::journals::{Found, Kind, Places};
use crate::session::Session;
use crate::support::archive::Archive;
use crate::support::harmless::Harmless;
use crate::work::{RunOptions, Work};
use imgctl_base::error::{Error, IoContext as _, Kind as ErrorKind, Result};
use imgctl_base::fs::directory;
use imgctl_base::secret::Redactor;
use imgctl_base::workers::map;
use imgctl_host::agent::protocol::{OutputLine, Run};
use imgctl_model::context::ClusterContext;
use imgctl_model::redact::of_cluster;
use imgctl_runtime::HostPool;

/// Maximum size of one file in the archive, in bytes. Of longer ones, the end is kept.
const LONGEST: usize = 1 << 20;
/// Number of lines of a command's output that the host keeps, and sends.
const LINES: u32 = 10_000;
/// Timeout of one command on a host, in seconds.
const LIMIT: u64 = 60;
/// Number of hosts that are asked at once; so many hosts' files are in memory.
const AT_ONCE: usize = 16;

/// Commands on every host: file in the archive, and line. `SINCE` is the age of the oldest line to keep,
/// in seconds.
const ON_HOSTS: [(&str, &str); 8] = [
    (
        "system.txt",
        "uname -a; cat /etc/os-release; uptime; free -m; df -h; df -i; ip -brief address; ip route; ip -6 route",
    ),
    (
        "services.txt",
        "systemctl --failed --no-pager; systemctl list-timers --all --no-pager 'imgctl-*'; \
         systemctl status --no-pager --lines 0 kubelet containerd docker crio k3s k3s-agent etcd 'imgctl-*'",
    ),
    (
        "containers.txt",
        "if command -v crictl; then crictl pods; crictl ps -a; crictl images; \
         elif command -v k3s; then k3s crictl pods; k3s crictl ps -a; k3s crictl images; \
         elif command -v ctr; then ctr -n k8s.io containers ls; ctr -n k8s.io tasks ls; fi",
    ),
    (
        "files.txt",
        "cat /etc/hosts; ls -la /etc/kubernetes/manifests /etc/containerd /etc/containerd/certs.d/* /var/lib/imgctl \"$DATA\"",
    ),
    (
        "journal-kubelet.txt",
        "journalctl --no-pager -o short-iso --since \"-$SINCE\" -u kubelet -u k3s -u k3s-agent",
    ),
    (
        "journal-runtime.txt",
        "journalctl --no-pager -o short-iso --since \"-$SINCE\" -u containerd -u docker -u crio",
    ),
    (
        "journal-imgctl.txt",
        "journalctl --no-pager -o short-iso --since \"-$SINCE\" -u 'imgctl*' -u etcd",
    ),
    ("journal-kernel.txt", "journalctl --no-pager -o short-iso --since \"-$SINCE\" -k -p warning"),
];

/// Commands on the first control plane, with a kubeconfig.
const OF_API: (&str, &str) = (
    "kubernetes.txt",
    "for config in /etc/kubernetes/admin.conf /etc/rancher/k3s/k3s.yaml; do [ ! -r $config ] || export KUBECONFIG=$config; done\n\
     [ -n \"$KUBECONFIG\" ] || { echo 'no kubeconfig'; exit 0; }\n\
     if command -v kubectl >/dev/null; then k=kubectl; else k='k3s kubectl'; fi\n\
     for what in version 'get nodes -o wide' 'get pods -A -o wide' 'get daemonsets,deployments,statefulsets -A -o wide' \
     'get events -A --sort-by=.lastTimestamp'; do echo \"\\$ kubectl $what\"; $k --request-timeout 20s $what; done",
);

/// What to collect.
#[derive(Clone, Debug)]
pub struct SupportRequest {
    pub cluster: String,
    /// Version of the program that asks.
    pub version: String,
    /// Age of the oldest lines of the hosts' journals.
    pub since: Duration,
    /// Number of recorded runs, newest first.
    pub runs: usize,
    /// Whether hosts are asked.
    pub hosts: bool,
}

/// A file of the archive.
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    /// Path in the archive, below its only directory.
    pub path: String,
    /// Origin of the content, for people.
    pub source: String,
    #[serde(skip)]
    origin: Origin,
}

#[derive(Clone, Debug)]
enum Origin {
    Version,
    Clusterfile,
    Status,
    File(PathBuf),
    /// A host by its index in the cluster, and a line.
    Command(usize, &'static str),
}

/// What an archive will contain, and where it comes from.
struct Contents<'a> {
    items: Vec<Item>,
    request: &'a SupportRequest,
    work: Work<'a>,
    context: ClusterContext,
    redactor: Redactor,
    harmless: Harmless,
}

/// One row of the archive's list.
#[derive(Clone, Debug, Serialize)]
pub struct Collected {
    pub path: String,
    pub source: String,
    pub bytes: usize,
    /// Only the end of the source is in the archive.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Why the file is not in the archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// How a front end takes part.
pub struct Steps<'a> {
    /// Receives what the archive will contain, before any host is asked; `false` ends it.
    pub agree: &'a dyn Fn(&[Item]) -> Result<bool>,
    /// Receives each file when it is collected.
    pub done: &'a dyn Fn(&Collected),
}

/// Collects what a report of a problem needs into a gzip-compressed tar archive at `path`, which must
/// not exist; only its owner can read it. Returns its files; `None` if the front end did not agree.
///
/// # Errors
/// If there is no such cluster, its state is encrypted to somebody else, or the archive cannot be written.
/// What cannot be read of hosts is no error.
pub fn bundle(
    request: &SupportRequest,
    path: &Path,
    session: &Session<'_>,
    steps: &Steps<'_>,
) -> Result<Option<Vec<Collected>>> {
    let looking = RunOptions::look();
    let work = Work::begin(Operation::SupportBundle, &request.cluster, &looking, session)?;
    let context = work.recorded(work.existing()?.clone())?.context;
    let redactor = of_cluster(&context);
    let mut items = vec![
        item("version.json", "this program and this machine", Origin::Version),
        item("Clusterfile", "the stored Clusterfile, without its secrets", Origin::Clusterfile),
    ];
    items.extend(records(&work, request.runs)?);
    if request.hosts {
        items.push(item("status.json", "imgctl status --json", Origin::Status));
        for (index, host) in context.hosts.iter().enumerate() {
            let id = host.id();
            let folder = format!("hosts/{}", id.replace([':', '/', '[', ']'], "_"));
            let own = ON_HOSTS.iter().chain((index == 0).then_some(&OF_API));
            items.extend(own.map(|(name, line)| {
                item(&format!("{folder}/{name}"), &id, Origin::Command(index, line))
            }));
        }
    }
    if !(steps.agree)(&items)? {
        return Ok(None);
    }
    let harmless = names(&context);
    let contents = Contents { items, request, work, context, redactor, harmless };
    contents.write(path, steps.done).map(Some)
}

/// Returns the names of a cluster's own parts, which are no secrets.
fn names(context: &ClusterContext) -> Harmless {
    let mut harmless = Harmless::default();
    harmless.name(&context.name);
    for host in &context.hosts {
        harmless.name(&host.id());
        harmless.name(host.ip());
    }
    for image in &context.images {
        image.name.split(['/', ':', '@']).for_each(|part| harmless.name(part));
        harmless.name(&image.name);
    }
    harmless
}

fn item(path: &str, source: &str, origin: Origin) -> Item {
    Item { path: path.to_owned(), source: source.to_owned(), origin }
}

/// Returns the journals and logs of the newest runs over hosts, and the journals of the newest in-place
/// updates.
fn records(work: &Work<'_>, runs: usize) -> Result<Vec<Item>> {
    let state = work.state.directory();
    let places = Places::of_cluster(state);
    let mut items = Vec::new();
    for kind in [Kind::Hosts, Kind::InPlace] {
        let found = places.list()?.into_iter().filter(|found| found.kind == kind);
        for Found { id, path, .. } in found.take(runs) {
            let below = path.strip_prefix(state).unwrap_or(&path).display().to_string();
            items.push(item(&below, &path.display().to_string(), Origin::File(path.clone())));
            for host in directory::list(&state.join("logs").join(&id))? {
                for log in directory::list(&host)? {
                    let below = log.strip_prefix(state).unwrap_or(&log).display().to_string();
                    items.push(item(&below, &log.display().to_string(), Origin::File(log)));
                }
            }
        }
    }
    Ok(items)
}

impl Contents<'_> {
    fn write(mut self, path: &Path, done: &dyn Fn(&Collected)) -> Result<Vec<Collected>> {
        let mut archive = Archive::create(path)?;
        let mut all = Vec::new();
        let mut keep = |collected: Collected| {
            done(&collected);
            all.push(collected);
        };
        for one in self.items.iter().filter(|one| !matches!(one.origin, Origin::Command(..))) {
            keep(self.add(&mut archive, one, self.of_controller(one))?);
        }
        let mut of_hosts: BTreeMap<usize, Vec<(&Item, &'static str)>> = BTreeMap::new();
        for one in &self.items {
            if let Origin::Command(host, line) = one.origin {
                of_hosts.entry(host).or_default().push((one, line));
            }
        }
        let of_hosts: Vec<_> = of_hosts.into_iter().collect();
        if !of_hosts.is_empty() {
            let pool = self.work.session.hosts()?;
            let hosts = Hosts { context: &self.context, since: self.request.since };
            for part in of_hosts.chunks(AT_ONCE) {
                let found = map(part, AT_ONCE, |(host, lines)| hosts.ask(&*pool, *host, lines));
                let tables =
                    found.iter().flatten().filter(|(item, _)| item.path.ends_with(OF_API.0));
                for (text, _) in tables.filter_map(|(_, content)| content.as_ref().ok()) {
                    self.harmless.names_of_tables(text);
                }
                for (one, content) in found.into_iter().flatten() {
                    keep(self.add(&mut archive, one, content)?);
                }
            }
        }
        let list = serde_json::to_vec_pretty(&all)
            .map_err(|error| Error::failed("cannot write the archive's list").caused_by(error))?;
        archive.add("contents.json", &list)?;
        archive.finish()?;
        Ok(all)
    }

    fn add(
        &self,
        archive: &mut Archive,
        item: &Item,
        content: Result<(String, bool)>,
    ) -> Result<Collected> {
        let mut collected = Collected {
            path: item.path.clone(),
            source: item.source.clone(),
            bytes: 0,
            cut: false,
            missing: None,
        };
        match content {
            Ok((text, cut)) => {
                let text = self.clean(&text);
                archive.add(&item.path, text.as_bytes())?;
                (collected.bytes, collected.cut) = (text.len(), cut);
            }
            Err(error) => collected.missing = Some(self.clean(&error.chain().join(": "))),
        }
        Ok(collected)
    }

    /// Returns `text` without known secrets and without what could be one.
    fn clean(&self, text: &str) -> String {
        redaction::redact(&self.redactor.redact(text), &self.harmless)
    }

    /// Returns the content of an item of the controller, and whether it was cut.
    fn of_controller(&self, item: &Item) -> Result<(String, bool)> {
        let text = match &item.origin {
            Origin::Version => json(&serde_json::json!({
                "imgctl": self.request.version,
                "created": Timestamp::now().to_string(),
                "kernel": std::fs::read_to_string("/proc/version").unwrap_or_default().trim_end(),
                "architecture": std::env::consts::ARCH,
            }))?,
            Origin::Clusterfile => self.work.existing()?.without_secrets().write()?,
            Origin::Status => {
                let found = maintain::status(&self.request.cluster, self.work.session)?;
                json(&found.status)?
            }
            Origin::File(path) => return end_of(path),
            Origin::Command(..) => String::new(),
        };
        Ok((text, false))
    }
}

/// The hosts of a cluster, which are asked from several threads.
struct Hosts<'a> {
    context: &'a ClusterContext,
    since: Duration,
}

impl Hosts<'_> {
    /// Runs `lines` on a host, one after the other.
    fn ask<'i>(
        &self,
        pool: &dyn HostPool,
        index: usize,
        lines: &[(&'i Item, &'static str)],
    ) -> Vec<(&'i Item, Result<(String, bool)>)> {
        let Some(host) = self.context.hosts.get(index) else { return Vec::new() };
        let unreachable = |error: Error| {
            let message = error.chain().join(": ");
            lines
                .iter()
                .map(|(item, _)| (*item, Err(Error::new(error.kind(), message.clone()))))
                .collect()
        };
        let agent = match pool.agent(host) {
            Ok(agent) => agent,
            Err(error) => return unreachable(error),
        };
        let key = format!("support-{}", Timestamp::now().as_millisecond());
        let asked = lines.iter().enumerate().map(|(number, (item, line))| {
            let mut tail = Tail::default();
            let run = self.run(&format!("{key}.{number}"), line);
            let outcome = agent.run(&run, &mut |said: OutputLine| tail.push(&said.text));
            (*item, outcome.map(|_| tail.take()))
        });
        asked.collect()
    }

    fn run(&self, key: &str, line: &str) -> Run {
        let root = self.context.paths.root();
        let environment = BTreeMap::from([
            ("SINCE".to_owned(), format!("{}s", self.since.as_secs())),
            ("DATA".to_owned(), root.clone()),
        ]);
        Run {
            directory: format!("{root}/runs"),
            key: key.to_owned(),
            // A command that is not there, or fails, says so in the file. Whole lines only: the end of one
            // could be the rest of a secret.
            line: format!("{{ set +e\n{line}\n}} 2>&1 | tail -n {LINES}"),
            workdir: None,
            environment,
            input: None,
            timeout_seconds: Some(LIMIT),
            again: true,
        }
    }
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map_err(|error| Error::failed("cannot write JSON").caused_by(error))
}

/// Returns the end of a file, and whether something is before it.
fn end_of(path: &Path) -> Result<(String, bool)> {
    let mut file = std::fs::File::open(path).path("open", path)?;
    let size = file.metadata().path("look at", path)?.len();
    let skipped = size.saturating_sub(LONGEST as u64);
    file.seek(SeekFrom::Start(skipped)).path("read", path)?;
    let mut bytes = Vec::new();
    file.take(LONGEST as u64).read_to_end(&mut bytes).path("read", path)?;
    let text = String::from_utf8_lossy(&bytes);
    // What is left of a line could be the rest of a secret.
    let text = match (skipped, text.split_once('\n')) {
        (0, _) => &text,
        (_, Some((_, rest))) => rest,
        (_, None) => "",
    };
    Ok((text.to_owned(), skipped > 0))
}

/// The last lines of an output, in bounded memory.
#[derive(Default)]
struct Tail {
    lines: std::collections::VecDeque<String>,
    bytes: usize,
    cut: bool,
}

impl Tail {
    fn push(&mut self, line: &str) {
        self.bytes += line.len() + 1;
        self.lines.push_back(line.to_owned());
        while self.bytes > LONGEST {
            let Some(first) = self.lines.pop_front() else { break };
            self.bytes -= first.len() + 1;
            self.cut = true;
        }
    }

    fn take(self) -> (String, bool) {
        let mut text = String::with_capacity(self.bytes);
        for line in self.lines {
            text.push_str(&line);
            text.push('\n');
        }
        (text, self.cut)
    }
}

/// Returns an error if nothing of the hosts could be read although they were asked.
pub fn check(collected: &[Collected]) -> Result<()> {
    let of_hosts: Vec<&Collected> =
        collected.iter().filter(|one| one.path.starts_with("hosts/")).collect();
    match of_hosts.iter().find_map(|one| one.missing.as_deref()) {
        Some(why) if of_hosts.iter().all(|one| one.missing.is_some()) => {
            Err(Error::new(ErrorKind::Network, format!("no host could be asked: {why}"))
                .hint("the archive is written, with what this controller knows"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_file_begins_with_a_whole_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(end_of(&path).unwrap(), ("one\ntwo\n".to_owned(), false));
        let line = format!("{}\n", "x".repeat(1023));
        std::fs::write(&path, line.repeat(1025)).unwrap();
        let (text, cut) = end_of(&path).unwrap();
        assert!(cut && text.len() <= LONGEST && text.starts_with('x'), "{}", text.len());
        assert_eq!(text.len() % 1024, 0);
    }

    #[test]
    fn output_is_bounded() {
        let mut tail = Tail::default();
        for _ in 0..3000 {
            tail.push(&"y".repeat(1023));
        }
        let (text, cut) = tail.take();
        assert!(cut && text.len() <= LONGEST && text.len() > LONGEST / 2);
    }
}
