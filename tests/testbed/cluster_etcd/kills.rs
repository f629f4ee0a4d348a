//! Whatever dies while a cluster is worked on, the same command again brings it to its end, and
//! scripts that bear no second run get none. The image is small and counts what its scripts do.

use std::time::{Duration, Instant};

use crate::cluster_etcd::support::{
    assert_untouched, begin, killed, run, signal, surface, wait_for,
};
use crate::common::testbed::Bed;
use crate::common::{long, needs_root};

const LIMIT: Duration = Duration::from_secs(180);

/// Every script says in /var/log/counted what it did. One that makes a host a member fails when it
/// is run twice, unless /run/repeatable is there; /run/slow and /run/fail make it slow and fail.
const SCRIPT: &str = r#"set -eu
word=$1
echo "begin $word" >>/run/begun
sleep "$(cat /run/slow 2>/dev/null || echo 0)"
[ ! -e /run/fail ] || { echo "it fails on request" >&2; exit 3; }
case $word in
  init | join) if [ -e /run/repeatable ]; then mkdir -p /var/lib/member; else mkdir /var/lib/member; fi ;;
  leave) rmdir /var/lib/member ;;
  clean) rm -rf /var/lib/member ;;
esac
echo "$word" >>/var/log/counted
"#;

const KUBEFILE: &str = r#"FROM scratch
LABEL sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script version=v1 \
  init="does.sh init" join="does.sh join" leave="does.sh leave" clean="does.sh clean"
COPY scripts scripts
"#;

pub(crate) fn build(bed: &Bed) {
    let context = bed.env.context("counting", KUBEFILE, &[("scripts/does.sh", SCRIPT)]);
    bed.env.build("counting:v1", &context);
}

/// What the scripts did on a host, in order; forgotten with this.
pub(crate) fn counted(bed: &Bed, host: usize) -> String {
    let words =
        bed.says(host, "cat /var/log/counted 2>/dev/null; rm -f /var/log/counted /run/begun");
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn wait_for_script(bed: &Bed, host: usize) {
    wait_for("the script", LIMIT, || bed.exec(host, "test -s /run/begun").success());
}

#[test]
fn killed_after_any_record_it_converges_and_repeats_nothing() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    build(&bed);
    let began = Instant::now();
    let mut kills = 0;
    let records: Vec<u64> = if long() { (1..60).collect() } else { vec![9, 16] };
    for record in records {
        let died = cycle(&bed, record);
        kills += died;
        if died == 0 {
            break;
        }
    }
    println!("{kills} kills, {:?}", began.elapsed());
    assert!(kills > 4);
}

/// A cluster's life in which each command first dies with the record of that number; how many did.
fn cycle(bed: &Bed, record: u64) -> usize {
    let (two, third) = (bed.ips(1..=2), bed.ip(3));
    let mut kills = 0;
    let mut twice = |arguments: &[&str], gone: &str| {
        kills += usize::from(killed(bed, arguments, record));
        let again = run(bed, arguments);
        // It died behind its last change: then there is nothing left to take away.
        let is_over = !gone.is_empty() && again.stderr().contains(gone);
        assert!(again.success() || is_over, "{record}: {}", again.report());
    };
    twice(&["run", "counting:v1", "--masters", &two], "");
    assert_eq!(counted(bed, 1), "init", "run, {record}");
    assert_eq!(counted(bed, 2), "join", "run, {record}");
    twice(&["add", "--nodes", &third], "");
    assert_eq!(counted(bed, 3), "join", "add, {record}");
    twice(&["delete", "--nodes", &third, "--yes"], "does not belong to cluster");
    assert_eq!(counted(bed, 3), "leave clean", "delete, {record}");
    twice(&["reset", "--yes"], "there is no cluster");
    for host in [1, 2] {
        assert_eq!(counted(bed, host), "clean", "reset, {record}");
    }
    assert_eq!(counted(bed, 3), "", "reset, {record}");
    for host in 1..=3 {
        let left = bed.says(host, "ls -d /var/lib/member /var/lib/sealos/data/* || true");
        assert_eq!(left, "", "{record}");
    }
    kills
}

#[test]
fn whatever_dies_or_is_cut_the_same_command_goes_on() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(2).with_agent();
    build(&bed);
    let clean: Vec<String> = (1..=2).map(|host| surface(&bed, host)).collect();
    let (first, second) = (bed.ip(1), bed.ip(2));
    let command = ["run", "counting:v1", "--masters", &first];
    let slow = |seconds: &str| bed.says(1, &format!("echo {seconds} >/run/slow"));
    let reset = || {
        bed.says(1, "rm -f /run/slow");
        run(&bed, &["reset", "--yes"]).ok();
        counted(&bed, 1);
    };
    let timed = |what: &str, began: Instant| println!("{what}: {:?}", began.elapsed());

    let began = Instant::now();
    slow("3");
    let running = begin(&bed, &command);
    wait_for_script(&bed, 1);
    // Another command finds the cluster in use.
    let busy = bed.imgctl(["reset", "--yes"]).fails(6);
    let holder = format!("process {}", running.id());
    assert!(
        busy.stderr().contains("imgctl run") && busy.stderr().contains(&holder),
        "{}",
        busy.report()
    );
    // The agent dies, the script does not.
    bed.says(1, "pkill -9 -f '[i]mgctl-agent.*--stdio'");
    finished(running.wait_with_output().unwrap());
    assert_eq!(counted(&bed, 1), "init", "the agent was killed");
    reset();
    timed("agent", began);

    let began = Instant::now();
    slow("3");
    let running = begin(&bed, &command);
    wait_for_script(&bed, 1);
    bed.cut(1);
    std::thread::sleep(Duration::from_secs(2));
    bed.heal();
    let output = running.wait_with_output().unwrap();
    if !output.status.success() {
        run(&bed, &command).ok();
    }
    assert_eq!(counted(&bed, 1), "init", "the network was cut");
    reset();
    timed("cut", began);

    let began = Instant::now();
    slow("2");
    let running = begin(&bed, &command);
    wait_for_script(&bed, 1);
    signal(&running, "-INT");
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "one Ctrl-C");
    run(&bed, &command).ok();
    assert_eq!(counted(&bed, 1), "init", "one Ctrl-C lets a script end");
    reset();
    timed("Ctrl-C", began);

    let began = Instant::now();
    slow("3600");
    let mut running = begin(&bed, &command);
    wait_for_script(&bed, 1);
    let asked = Instant::now();
    // Two signals that come at once may count as one.
    while running.try_wait().unwrap().is_none() {
        signal(&running, "-INT");
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "two Ctrl-C");
    assert!(asked.elapsed() < Duration::from_secs(300));
    assert!(!bed.exec(1, "pgrep -f '[d]oes.sh'").success(), "it goes on");
    let journal = bed.imgctl(["journal", "last"]).ok();
    assert!(journal.stdout().contains("interrupted"), "{}", journal.report());
    slow("0");
    run(&bed, &command).ok();
    assert_eq!(counted(&bed, 1), "init", "the second Ctrl-C ended the script");
    timed("two Ctrl-C", began);

    // A host on which `add` failed is no member, and yet cleaned.
    let began = Instant::now();
    bed.says(2, "touch /run/fail");
    let failed = run(&bed, &["add", "--nodes", &second]).fails(9);
    assert!(
        failed.stderr().contains("it fails on request") && failed.stderr().contains("does.sh join"),
        "{}",
        failed.report()
    );
    bed.says(2, "rm /run/fail");
    reset();
    for host in 1..=2 {
        counted(&bed, host);
        assert_untouched(&bed, host, &clean[host - 1]);
    }
    timed("failed add", began);

    // What the host itself cannot tell any more is begun anew: such scripts are to bear it.
    for what in ["supervisor", "reboot"] {
        let began = Instant::now();
        bed.says(1, "touch /run/repeatable");
        slow("4");
        let running = begin(&bed, &command);
        wait_for_script(&bed, 1);
        match what {
            "supervisor" => {
                bed.says(1, "pkill -9 -f '[_]_supervise'");
            }
            _ => {
                bed.kill(1);
                bed.start(1);
            }
        }
        let output = running.wait_with_output().unwrap();
        bed.says(1, "touch /run/repeatable; rm -f /run/slow");
        if !output.status.success() {
            run(&bed, &command).ok();
        }
        bed.imgctl(["status"]).ok();
        let done = counted(&bed, 1);
        assert_eq!(done, "init", "{what}: cut short once, then done once");
        reset();
        timed(what, began);
    }
}

#[track_caller]
#[allow(clippy::needless_pass_by_value, reason = "the last use of it")]
fn finished(output: std::process::Output) {
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
