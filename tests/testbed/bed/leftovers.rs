//! After `down` nothing is left, however `up` or its owner ended.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::testbed::Bed;
use crate::common::{Ran, TestEnv, needs_root, repository, tool};

/// What a bed of this name still has: files, namespaces, control groups, mounts, processes.
fn left(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let places = [
        ("/var/lib/imgctl-testbed", name.to_owned()),
        ("/run/netns", format!("itb.{name}.")),
        ("/sys/fs/cgroup", format!("imgctl-testbed.{name}.")),
    ];
    for (place, part) in places {
        let mut find = tool("find", [place, "-maxdepth", "2", "-name"]);
        find.arg(format!("*{part}*"));
        found.extend(Ran::new(find).stdout().lines().map(str::to_owned));
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(name));
    found.extend(mounts.map(str::to_owned));
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&format!("/{name}/")) || line.contains(&format!("py {name}")) {
            found.push(line);
        }
    }
    found
}

fn interfaces() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/net").unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn testbed(name: &str, arguments: &[&str]) -> Command {
    let script = repository().join("scripts/testbed");
    let mut command = tool(script.to_str().unwrap(), ["--name", name]);
    command.args(arguments);
    command
}

#[test]
fn down_leaves_nothing() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(1);
    let name = bed.name.clone();
    let interface = bed.list()["controller"]["interface"].clone();
    let interface = interface.as_str().unwrap().to_owned();
    assert!(!left(&name).is_empty());
    assert!(interfaces().contains(&interface));
    // Things that hinder: a mount in the host, an immutable file, a busy process.
    bed.says(
        1,
        "mount -t tmpfs x /mnt; touch /var/lib/fixed; chattr +i /var/lib/fixed; \
         setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' >/dev/null 2>&1 &",
    );
    bed.testbed(["down"]).ok();
    assert_eq!(left(&name), Vec::<String>::new());
    assert!(!interfaces().contains(&interface));
    // Nothing to do is no error.
    bed.testbed(["down"]).ok();
}

#[test]
fn a_killed_up_is_taken_down_or_finished() {
    if !needs_root() {
        return;
    }
    let name = format!("k{}", std::process::id());
    // If this test fails, the bed still goes. And the template is not what is tested.
    let owner = std::process::id().to_string();
    let up = ["up", "2", "--owner", &owner];
    Ran::new(testbed(&name, &["template"])).ok();
    for (round, milliseconds) in [80, 200, 350, 600, 1000, 1600].into_iter().enumerate() {
        let mut running =
            testbed(&name, &up).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        running.kill().unwrap();
        running.wait().unwrap();
        if round == 3 {
            Ran::new(testbed(&name, &up)).ok();
            Ran::new(testbed(&name, &["ssh", "h2", "true"])).ok();
        }
        Ran::new(testbed(&name, &["down"])).ok();
        // The kernel gives up cgroups of processes that are just gone after a moment.
        let began = Instant::now();
        while !left(&name).is_empty() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(100));
            Ran::new(testbed(&name, &["down"])).ok();
        }
        assert_eq!(left(&name), Vec::<String>::new(), "{milliseconds} ms");
    }
}

#[test]
fn a_bed_goes_with_its_owner() {
    if !needs_root() {
        return;
    }
    let name = format!("o{}", std::process::id());
    let mut owner = Command::new("sleep").arg("300").spawn().unwrap();
    // With the program that the binary brings along.
    let env = TestEnv::new();
    let imgctl = |words: &[&str]| env.imgctl([&["testbed", "--name", &name], words].concat());
    let ran = imgctl(&["up", "1", "--owner", &owner.id().to_string()]);
    let list = imgctl(&["list", "--json"]);
    let hello = imgctl(&["ssh", "deploy@h1", "sudo", "-n", "id", "-un"]);
    let missing = imgctl(&["exec", "h2", "true"]);
    owner.kill().unwrap();
    owner.wait().unwrap();
    let list = list.ok().json();
    let flags = list["run_flags"].as_str().unwrap();
    assert!(ran.ok().stdout().ends_with(&format!("imgctl run IMAGE {flags}")), "{flags}");
    let masters = format!("--masters {} --pk ", list["hosts"][0]["ip"].as_str().unwrap());
    assert!(flags.starts_with(&masters), "{flags}");
    assert_eq!(hello.ok().stdout(), "root");
    let why = missing.fails(3).stderr();
    assert!(why.contains(&format!("no host h2 in test bed {name} (it has h1)")), "{why}");
    let end = Instant::now() + Duration::from_secs(120);
    while !left(&name).is_empty() {
        assert!(Instant::now() < end, "{:?}", left(&name));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!Path::new("/var/lib/imgctl-testbed").join(&name).exists());
}
