//! What the tests of this binary share: commands with the bed's key, events, etcd's own words.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::testbed::Bed;
use crate::common::{Ran, repository, tool};

/// `imgctl ARGUMENTS --pk …` against the bed's hosts, not yet run.
pub(crate) fn keyed(bed: &Bed, arguments: &[&str]) -> Command {
    let mut command = bed.command(arguments);
    command.arg("--pk").arg(bed.key());
    command
}

/// Runs it.
pub(crate) fn run(bed: &Bed, arguments: &[&str]) -> Ran {
    Ran::new(keyed(bed, arguments))
}

/// Runs it so that it dies with its `record`th record; whether it did.
pub(crate) fn killed(bed: &Bed, arguments: &[&str], record: u64) -> bool {
    let mut command = keyed(bed, arguments);
    command.env("IMGCTL_DIE_AFTER", record.to_string());
    let ran = Ran::new(command);
    if ran.success() {
        return false;
    }
    assert!(ran.report().contains("signal: 9"), "died of something else: {}", ran.report());
    true
}

/// Begins it and does not wait.
pub(crate) fn begin(bed: &Bed, arguments: &[&str]) -> Child {
    let mut command = keyed(bed, arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Sends a signal (`-INT`) to a process that we began.
pub(crate) fn signal(child: &Child, name: &str) {
    Ran::new(tool("kill", [name, &child.id().to_string()])).ok();
}

/// Waits until `is` returns true, and checks less often the longer it takes. `what` names the condition in the
/// failure.
#[track_caller]
pub(crate) fn wait_for(what: &str, limit: Duration, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        let waited = began.elapsed();
        assert!(waited < limit, "{what}: not within {limit:?}");
        let pause = waited / 20;
        std::thread::sleep(pause.clamp(Duration::from_millis(50), Duration::from_secs(1)));
    }
}

/// The events that a command with `--json` wrote: one object per line.
pub(crate) fn events(ran: &Ran) -> Vec<Value> {
    let parse = |line: &str| {
        serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("`{line}` is no event: {error}\n{}", ran.report()))
    };
    ran.stdout().lines().map(parse).collect()
}

/// The bytes that steps said they would bring, and those that they moved.
pub(crate) fn bytes(events: &[Value]) -> u64 {
    let sum = |kind: &str| -> u64 {
        let of_kind = events.iter().filter(|event| event["event"] == kind);
        of_kind.filter_map(|event| event["bytes"].as_u64()).sum()
    };
    sum("step-start") + sum("progress")
}

/// Puts etcd's binaries into the example and builds it; `false`, with a word on why, when they
/// cannot be had here.
pub(crate) fn build_etcd(bed: &Bed) -> bool {
    let example = repository().join("Kubefile.examples/etcd");
    let fetched = Ran::new(tool::<&str>(example.join("fetch").to_str().unwrap(), []));
    if !fetched.success() {
        assert!(std::env::var_os("CI").is_none(), "CI needs etcd: {}", fetched.report());
        println!("skipped: {}", fetched.report());
        return false;
    }
    bed.env.build("etcd:v1", &example);
    true
}

/// `etcdctl ARGUMENTS` on a host against its own member.
pub(crate) fn etcdctl(bed: &Bed, host: usize, arguments: &str) -> String {
    let endpoint = format!("http://{}:2379", bed.ip(host));
    bed.says(host, &format!("ETCDCTL_API=3 etcdctl --endpoints={endpoint} {arguments}"))
}

/// The names of the members that have started, sorted.
pub(crate) fn members(bed: &Bed, host: usize) -> Vec<String> {
    let list = etcdctl(bed, host, "member list");
    let mut names: Vec<String> = list
        .lines()
        .filter(|line| line.contains(", started, "))
        .map(|line| line.split(", ").nth(2).unwrap().to_owned())
        .collect();
    assert_eq!(names.len(), list.lines().count(), "{list}");
    names.sort();
    names
}

/// What a cluster could leave on a host: hosts file, units, everything in /var/lib with mode, size
/// and link. The agent and its layers stay (docs/operations.md), and the empty directories above
/// the data of clusters.
pub(crate) fn surface(bed: &Bed, host: usize) -> String {
    bed.says(
        host,
        "cat /etc/hosts; find /etc/systemd/system /usr/local/bin /etc/etcd /etc/docker \
         -printf '%p %y %m %l\\n' 2>/dev/null | sort; \
         find /var/lib -path /var/lib/imgctl -prune -o -path /var/lib/systemd -prune \
         -o -path /var/lib/sealos -o -path /var/lib/sealos/data \
         -o \\( -type d -printf '%p %y %m\\n' -o -printf '%p %y %m %s %l\\n' \\) | sort; \
         pgrep -ax 'etcd|imgctl|imgctl-agent-.*' || true; systemctl list-units --failed --no-legend --plain",
    )
}

/// Nothing on a host is other than it was: names the lines that are.
#[track_caller]
pub(crate) fn assert_untouched(bed: &Bed, host: usize, before: &str) {
    let now = surface(bed, host);
    let differs = |one: &str, other: &str| -> Vec<String> {
        let known: std::collections::HashSet<&str> = other.lines().collect();
        let lines = one.lines().filter(|line| !known.contains(line));
        lines.map(str::to_owned).collect()
    };
    let (more, less) = (differs(&now, before), differs(before, &now));
    assert!(more.is_empty() && less.is_empty(), "h{host}: new {more:#?}, gone {less:#?}");
}
