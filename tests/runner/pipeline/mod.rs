//! The executor's promises, against the built binary and simulated hosts: whatever instant the
//! controller dies at, the next run brings everything to its end and does nothing twice.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::IMGCTL;

/// `imgctl simulate` over four hosts whose memory is a directory.
fn simulate(directory: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(IMGCTL);
    command
        .env_clear()
        .env("HOME", directory)
        .args(["--no-sync", "--json", "--root"])
        .arg(directory.join("store"))
        .args(["simulate", "--durable", "--hosts", "4", "--masters", "2", "--dir"])
        .arg(directory)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn finish(directory: &Path) -> Output {
    let output = simulate(directory, &["--takes", "0"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// What each host was made to run, without the journal's name. A second execution has a number.
fn ran(directory: &Path) -> BTreeSet<String> {
    let mut steps = BTreeSet::new();
    for entry in std::fs::read_dir(directory.join("hosts")).unwrap() {
        let host = entry.unwrap();
        for key in std::fs::read_dir(host.path()).unwrap() {
            let key = key.unwrap().file_name().into_string().unwrap();
            // `synced` is the mark of the files.
            let Some((_, step)) = key.split_once("Z-") else {
                continue;
            };
            let step = step.split_once('.').unwrap().1;
            let name = format!("{} {step}", host.file_name().to_string_lossy());
            assert!(steps.insert(name), "{key} under two journals");
        }
    }
    steps
}

fn records(directory: &Path) -> usize {
    let journals = std::fs::read_dir(directory.join("state/journal")).unwrap();
    journals
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .map(|text| text.lines().count())
        .sum()
}

#[test]
fn killed_after_each_record_the_next_run_ends_and_nothing_runs_twice() {
    let whole = tempfile::tempdir().unwrap();
    finish(whole.path());
    let expected = ran(whole.path());
    let total = records(whole.path());
    assert!(expected.len() > 20 && total > 60, "{total} {expected:?}");
    let step = if crate::common::long() { 1 } else { 4 };
    for limit in (1..total).step_by(step) {
        let directory = tempfile::tempdir().unwrap();
        let killed =
            simulate(directory.path(), &["--takes", "1", "--die-after", &limit.to_string()])
                .output()
                .unwrap();
        assert_eq!(killed.status.signal(), Some(9), "record {limit} of {total}");
        finish(directory.path());
        assert_eq!(ran(directory.path()), expected, "killed after record {limit}");
    }
}

#[test]
fn killed_again_and_again_it_still_gets_to_the_end() {
    let whole = tempfile::tempdir().unwrap();
    finish(whole.path());
    let expected = ran(whole.path());
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..40 {
        let killed =
            simulate(directory.path(), &["--takes", "1", "--die-after", "5"]).output().unwrap();
        if killed.status.success() {
            break;
        }
    }
    finish(directory.path());
    assert_eq!(ran(directory.path()), expected);
    let journals = std::fs::read_dir(directory.path().join("state/journal")).unwrap();
    assert!(journals.count() <= 2, "one undertaking has one journal");
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
}

/// Asks again and again: two signals that come at once may count as one.
fn urged(mut child: Child) -> Output {
    while child.try_wait().unwrap().is_none() {
        signal(&child, "-TERM");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn wait_for_steps(directory: &Path) {
    let until = Instant::now() + Duration::from_secs(180);
    while Instant::now() < until {
        if directory.join("hosts").is_dir() && !ran(directory).is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the run did not begin");
}

#[test]
fn ctrl_c_lets_running_steps_end_and_a_second_one_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let child = simulate(directory.path(), &["--takes", "1500", "--events"]).spawn().unwrap();
    wait_for_steps(directory.path());
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let events = String::from_utf8(output.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "end");
    assert_eq!(last["outcome"], "interrupted");
    assert!(!events.contains("\"outcome\":\"failed\""), "{events}");
    let before = ran(directory.path());
    assert!(!before.is_empty());
    finish(directory.path());
    let after = ran(directory.path());
    assert!(after.is_superset(&before));
    assert!(!after.iter().any(|step| step.ends_with(".2")), "{after:?}");

    let directory = tempfile::tempdir().unwrap();
    let child = simulate(directory.path(), &["--takes", "600000"]).spawn().unwrap();
    wait_for_steps(directory.path());
    let asked = Instant::now();
    let output = urged(child);
    assert_eq!(output.status.code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(120), "{:?}", asked.elapsed());
}

/// The figures of `imgctl simulate` for a cluster in memory.
fn figures(directory: &Path, hosts: u64) -> serde_json::Value {
    let mut command = Command::new(IMGCTL);
    command
        .env_clear()
        .env("HOME", directory)
        .args(["--no-sync", "--json", "--root"])
        .arg(directory.join("store"))
        .args(["simulate", "--takes", "0", "--chatter", "0", "--dir"])
        .arg(directory.join(hosts.to_string()))
        .args(["--hosts", &hosts.to_string()])
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a large cluster costs the controller grows with its hosts, not with their square; the uplink
/// carries an image once.
#[test]
fn a_cluster_costs_memory_and_journal_by_the_host_and_the_uplink_one_image() {
    let directory = tempfile::tempdir().unwrap();
    let (some, many) = (figures(directory.path(), 300), figures(directory.path(), 1500));
    let number = |figures: &serde_json::Value, name: &str| figures[name].as_u64().unwrap();
    let of_a_host = |name: &str| (number(&many, name) - number(&some, name)) / 1200;
    assert!(of_a_host("peak_kib") < 80, "{some} {many}");
    assert!(of_a_host("journal_bytes") < 9000, "{some} {many}");
    assert!(of_a_host("plan_bytes") < 3000, "{some} {many}");
    assert_eq!(number(&many, "uplink_bytes"), 30 * (20 << 20), "{many}");
    assert_eq!(number(&many, "moved_bytes"), 1500 * 30 * (20 << 20), "{many}");
}
