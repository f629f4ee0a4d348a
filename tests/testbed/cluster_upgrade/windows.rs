//! An upgrade waits for its window and goes on by itself, holds nothing meanwhile, and can be paused,
//! continued at once, killed and rolled back while it waits.

use std::process::{Child, Stdio};
use std::time::Duration;

use jiff::{Timestamp, ToSpan};

use crate::cluster_etcd::support::{signal, wait_for};
use crate::cluster_upgrade::counting::{
    all_counted, build, create, refused, trees, upgrade, versions,
};
use crate::common::needs_root;
use crate::common::testbed::Bed;

const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn it_waits_for_its_window_and_goes_on_by_itself() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(2).with_agent();
    for version in ["1.0.0", "1.1.0"] {
        build(&bed, version, "");
    }
    create(&bed);
    nothing_is_held(&bed);
    it_opens(&bed);
}

/// A window between two times from now, in seconds.
fn window(from: i64, to: i64) -> String {
    let at = |seconds: i64| {
        let time = Timestamp::now() + seconds.seconds();
        time.strftime("%H:%M:%S").to_string()
    };
    format!("daily {}-{} UTC", at(from), at(to))
}

fn begin(bed: &Bed, arguments: &[&str]) -> Child {
    let mut command = bed.command([arguments, &["--yes"]].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn state(bed: &Bed) -> String {
    let status = bed.imgctl(["upgrade", "status", "--json"]).ok().json();
    status["open"]["state"].as_str().unwrap_or("none").to_owned()
}

fn nothing_is_held(bed: &Bed) {
    let closed = window(3600 * 5, 3600 * 6);
    let plan = bed.imgctl(["upgrade", "counting:1.1.0", "--window", &closed, "--plan"]).ok();
    assert!(plan.stdout().contains("the next opens"), "{}", plan.report());
    let wrong = upgrade(bed, &["counting:1.1.0", "--window", "Sat 2-5"]).fails(2);
    refused(&wrong, "is not a time of day");

    // The files are there; nothing of the hosts has changed.
    let running = begin(bed, &["upgrade", "counting:1.1.0", "--window", &closed]);
    wait_for("the window", LIMIT, || state(bed) == "waiting");
    assert_eq!(all_counted(bed), ["", ""]);
    assert_eq!(trees(bed), ["1.0.0"; 2]);
    let status = bed.imgctl(["upgrade", "status", "--json"]).ok().json();
    assert_eq!(status["open"]["window"]["open"], false, "{status}");
    bed.imgctl(["upgrade", "pause"]).ok();
    let ended = running.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(state(bed), "paused");

    // It waits again, and dies; a host is done at once in spite of the window.
    let running = begin(bed, &["upgrade", "resume"]);
    wait_for("the window", LIMIT, || state(bed) == "waiting");
    signal(&running, "-KILL");
    running.wait_with_output().unwrap();
    let now = ["upgrade", "resume", "--ignore-windows", "--pause-after", "control-plane"];
    bed.imgctl(now).ok();
    assert_eq!(versions(bed), ["1.1.0", "1.0.0"]);
    assert_eq!(all_counted(bed), ["backup upgrade", ""]);

    // No lock is held: another command takes it back under the one that waits.
    let running = begin(bed, &["upgrade", "counting:1.1.0"]);
    wait_for("the window", LIMIT, || state(bed) == "waiting");
    // It says that it waits just before it releases its lock.
    wait_for("the lock", LIMIT, || {
        let ran = bed.imgctl(["rollback", "--yes"]);
        !ran.stderr().contains("another command is running") && ran.ok().success()
    });
    let ended = running.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(versions(bed), ["1.0.0"; 2]);
    assert_eq!(all_counted(bed), ["rollback", ""]);
}

/// Nobody does anything: the run begins with the first host when the window opens.
fn it_opens(bed: &Bed) {
    let opens = Timestamp::now() + 15.seconds();
    let soon = window(15, 3600);
    let ran = upgrade(bed, &["counting:1.1.0", "--window", &soon, "--json"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 2]);
    assert_eq!(trees(bed), ["1.1.0"; 2]);
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade"]);
    let events: Vec<serde_json::Value> =
        ran.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = events.iter().find(|event| {
        event["event"] == "step-start" && event["step"].as_str().unwrap().ends_with("/switch")
    });
    let first: Timestamp = first.unwrap()["time"].as_str().unwrap().parse().unwrap();
    // The window has whole seconds.
    assert!(first.as_second() >= opens.as_second(), "{first} is before {opens}");
    let waits: Vec<_> = events.iter().filter(|event| event["event"] == "window").collect();
    // A machine that is slow enough does not have to wait.
    assert!(waits.is_empty() || waits.len() == 2, "{waits:?}");
    if let [closed, open] = waits[..] {
        assert_eq!(
            (&closed["window"]["open"], &open["window"]["open"]),
            (&false.into(), &true.into())
        );
    }
}
