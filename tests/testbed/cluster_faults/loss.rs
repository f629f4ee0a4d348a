//! Hosts that go away in the middle, and links that are cut: the same command goes on.

use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::cluster_faults::support::{arguments, bed, image, reset, run, says};
use crate::common::testbed::Bed;

const NETWORK: i32 = 7;

/// A run that goes on by itself.
struct Going {
    child: Child,
    said: std::path::PathBuf,
}

impl Going {
    fn start(bed: &Bed, hosts: &str, more: &[&str]) -> Self {
        // A lost host is noticed in seconds rather than in a minute.
        let config = bed.env.path("ssh_config");
        std::fs::write(&config, "ServerAliveInterval 4\nServerAliveCountMax 2\n").unwrap();
        let config = config.display().to_string();
        let more = [&["--masters", hosts, "--ssh-config", &config], more].concat();
        let said = bed.env.path("said");
        let file = std::fs::File::create(&said).unwrap();
        let mut command = bed.command(arguments(bed, &["run", "f:1"], "default", &more));
        let child = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Self { child, said }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut file = std::fs::File::open(&self.said).unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    }

    fn end(mut self) -> (Option<i32>, String) {
        let until = Instant::now() + Duration::from_secs(240);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), self.text());
            }
            assert!(Instant::now() < until, "it hangs\n{}", self.text());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(240);
    while !is() {
        assert!(Instant::now() < limit, "{what} does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_host_lost_in_any_phase_is_named_and_the_next_run_ends() {
    let Some(bed) = bed(2) else { return };
    // The first time, each script on host 2 waits to be killed with it, however long that takes; bash may
    // outlive its child by a moment.
    let slow = |name: &str| {
        let mark = format!("/var/lib/in-{name}");
        format!(
            "if ! test -e {mark}; then touch {mark}; sleep 600 || exit 1; fi; echo {name} >> /var/lib/ran\n"
        )
    };
    let noise = std::process::Command::new("head").args(["-c", "6000000", "/dev/urandom"]).output();
    image(
        &bed,
        "f:1",
        "",
        &[("scripts/check.sh", &slow("check")), ("scripts/join.sh", &slow("join"))],
    );
    std::fs::write(bed.env.path("context-f-1/noise"), noise.unwrap().stdout).unwrap();
    bed.env.build("f:1", &bed.env.path("context-f-1"));
    let both = bed.ips(1..=2);
    bed.says(1, "touch /var/lib/in-check");

    // Before anything is known of it.
    bed.kill(2);
    let lost = run(&bed, "f:1", "default", &both, &["--retries", "0"]).fails(NETWORK);
    says(&lost, &[&bed.ip(2), "check/", "cannot connect", "firewall"]);
    bed.start(2);

    let phases: &[(&str, &str)] = &[("sync", ""), ("preflight", "in-check"), ("join", "in-join")];
    for (phase, mark) in phases {
        if *phase == "sync" {
            // So that the files are on their way for seconds.
            run(&bed, "f:1", "warm", &both, &["--dry-run"]).ok();
            bed.rate(2, 8);
        }
        let going = Going::start(&bed, &both, &["--retries", "0"]);
        match *phase {
            "sync" => until("sync", || going.text().contains(&format!("{}: files", bed.ip(2)))),
            _ => until(phase, || bed.exec(2, &format!("test -e /var/lib/{mark}")).success()),
        }
        if *phase == "sync" {
            std::thread::sleep(Duration::from_millis(1000));
        }
        bed.kill(2);
        let (code, text) = going.end();
        assert_eq!(code, Some(NETWORK), "{phase}: {text}");
        let step = format!("{phase}/{}", bed.ip(2));
        assert!(text.contains(&step), "{phase}: {text}");
        assert!(text.contains("run the same command again"), "{phase}: {text}");
        bed.start(2);
        bed.rate(2, 0);
    }
    run(&bed, "f:1", "default", &both, &[]).ok();
    assert_eq!(bed.says(1, "grep -c init /var/lib/ran"), "1");
    assert_eq!(bed.says(2, "grep -c join /var/lib/ran"), "1");
    reset(&bed, "default");
}

#[test]
fn a_blob_goes_on_where_the_link_was_cut() {
    let Some(bed) = bed(1) else { return };
    let ip = bed.ip(1);
    image(&bed, "f:1", "", &[]);
    let size = 24_000_000_u64;
    // The agent is there already.
    run(&bed, "f:1", "default", &ip, &[]).ok();
    reset(&bed, "default");
    let noise =
        std::process::Command::new("head").args(["-c", &size.to_string(), "/dev/urandom"]).output();
    std::fs::write(bed.env.path("context-f-1/noise"), noise.unwrap().stdout).unwrap();
    bed.env.build("f:1", &bed.env.path("context-f-1"));
    let received = || -> u64 {
        let text = bed.says(1, "tr : ' ' < /proc/net/dev | awk 'NR > 2 && $1 != \"lo\" { sum += $2 } END { print sum }'");
        text.parse().unwrap()
    };
    let before = received();
    bed.rate(1, 40);
    let going = Going::start(&bed, &ip, &[]);
    until("half of the blob", || received() - before > size / 2);
    bed.cut(1);
    std::thread::sleep(Duration::from_secs(2));
    bed.heal();
    let (code, text) = going.end();
    assert_eq!(code, Some(0), "{text}");
    let sent = received() - before;
    assert!(sent < size * 13 / 10, "{sent} bytes for a blob of {size}");
    let whole = bed.says(1, "stat -c %s /var/lib/sealos/data/default/rootfs/noise");
    assert_eq!(whole, size.to_string());
}
