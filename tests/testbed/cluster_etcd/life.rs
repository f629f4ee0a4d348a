//! The life of a cluster of real etcd: made, written to, grown, shrunk, both at once, taken down;
//! the data is looked at after each step.

use crate::cluster_etcd::support::{
    assert_untouched, build_etcd, bytes, etcdctl, events, members, run, surface,
};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, tool};

#[test]
fn etcd_lives_through_everything() {
    if !needs_root() {
        return;
    }
    let mut bed = Bed::up(4);
    if !build_etcd(&bed) {
        return;
    }
    let before: Vec<String> = (1..=4).map(|host| surface(&bed, host)).collect();
    let three = bed.ips(1..=3);
    let run_three = ["run", "etcd:v1", "--masters", &three];

    // A plan changes nothing, here or there.
    let plan = run(&bed, &[&run_three[..], &["--dry-run"]].concat()).ok();
    assert!(plan.stdout().contains("init.sh"), "{}", plan.report());
    run(&bed, &[&["plan"], &run_three[..]].concat()).ok();
    assert!(!bed.env.path("clusters/default/Clusterfile").exists());
    for host in 1..=4 {
        assert_untouched(&bed, host, &before[host - 1]);
    }

    let made = run(&bed, &[&run_three[..], &["--json"]].concat()).ok();
    assert!(bytes(&events(&made)) > 3 * 10_000_000, "{}", made.report());
    assert_eq!(members(&bed, 1), ["h1", "h2", "h3"]);
    etcdctl(&bed, 2, "put fruit pear");

    nothing_moves(&bed, &run_three);
    status(&mut bed);

    run(&bed, &["add", "--masters", &bed.ip(4)]).ok();
    assert_eq!(members(&bed, 4), ["h1", "h2", "h3", "h4"]);
    assert_eq!(etcdctl(&bed, 4, "get fruit --print-value-only"), "pear");
    chosen(&bed);

    run(&bed, &["delete", "--masters", &bed.ip(2), "--yes"]).ok();
    assert_eq!(members(&bed, 1), ["h1", "h3", "h4"]);
    assert_eq!(etcdctl(&bed, 3, "get fruit --print-value-only"), "pear");
    assert_untouched(&bed, 2, &before[1]);

    both_at_once(&bed);
    assert_eq!(members(&bed, 1), ["h1", "h2", "h4"]);
    assert_eq!(etcdctl(&bed, 2, "get fruit --print-value-only"), "pear");
    assert_untouched(&bed, 3, &before[2]);

    bed.imgctl(["reset", "--yes", "--dry-run"]).ok();
    assert_eq!(members(&bed, 1).len(), 3);
    bed.imgctl(["reset", "--yes"]).ok();
    for host in 1..=4 {
        assert_untouched(&bed, host, &before[host - 1]);
    }
    let again = bed.imgctl(["reset", "--yes"]).fails(3);
    assert!(again.stderr().contains("there is no cluster `default`"), "{}", again.report());
}

/// The same command once more: no step, no byte, no journal.
fn nothing_moves(bed: &Bed, command: &[&str]) {
    let journals = || std::fs::read_dir(bed.env.path("clusters/default/journal")).unwrap().count();
    let before = journals();
    let received = |host: usize| -> u64 {
        let text = bed.says(host, "cat /sys/class/net/eth0/statistics/rx_bytes");
        text.trim().parse().unwrap()
    };
    let wire: u64 = (1..=3).map(received).sum();
    let again = run(bed, &[command, &["--json"]].concat()).ok();
    let events = events(&again);
    let last = events.last().unwrap();
    assert_eq!(last["event"], "end", "{}", again.report());
    assert_eq!(last["done"], 0);
    assert!(last["time"].is_string(), "{last}");
    assert_eq!(bytes(&events), 0, "{}", again.report());
    assert_eq!(journals(), before);
    // etcd's own heartbeats and the questions to the agents, but no layer.
    let moved = (1..=3).map(received).sum::<u64>() - wire;
    assert!(moved < 3_000_000, "{moved} bytes for nothing");
}

fn status(bed: &mut Bed) {
    let well = bed.imgctl(["status", "--json"]).ok().json();
    assert_eq!(well["hosts"].as_array().unwrap().len(), 3, "{well}");
    bed.says(3, "systemctl stop etcd");
    let ill = bed.imgctl(["status"]).fails(10);
    assert!(ill.stdout().contains(&bed.ip(3)), "{}", ill.report());
    support_bundle(bed);
    bed.says(3, "systemctl start etcd");
    bed.imgctl(["status"]).ok();
}

/// Everything that a report of a problem needs, without what hosts and variables hold of secrets.
fn support_bundle(bed: &Bed) {
    bed.says(
        1,
        "systemd-run -q --wait --unit imgctl-says sh -c 'echo password: hunter22-of-a-unit; echo all the rest'",
    );
    let planned = bed.imgctl(["support-bundle", "--dry-run"]).ok();
    assert!(planned.stdout().contains("journal-imgctl.txt"), "{}", planned.report());
    let file = bed.env.path("report.tar.gz");
    let name = file.to_str().unwrap();
    bed.imgctl(["support-bundle", "-o", name]).ok();
    let unpacked = bed.env.path("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    Ran::new(tool("tar", ["-xzf", name, "-C", unpacked.to_str().unwrap()])).ok();
    let read = |path: &str| {
        let path = unpacked.join("report").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let of_first = format!("hosts/{}", bed.ip(1));
    let said = read(&format!("{of_first}/journal-imgctl.txt"));
    assert!(said.contains("password: ***") && said.contains("all the rest"), "{said}");
    assert!(!said.contains("hunter22"), "{said}");
    assert!(read(&format!("{of_first}/system.txt")).contains("PRETTY_NAME"));
    assert!(read("status.json").contains(&bed.ip(3)));
    assert!(read("Clusterfile").contains("etcd:v1"));
    let listed = read("contents.json");
    assert!(listed.contains("journal/") && listed.contains("logs/"), "{listed}");
    assert!(!listed.contains("missing"), "{listed}");
    bed.imgctl(["support-bundle", "-o", name]).fails(2);
}

/// `exec` and `scp` find the cluster's hosts by themselves.
fn chosen(bed: &Bed) {
    let names = bed.imgctl(["exec", "--cluster", "default", "hostname"]).ok();
    for host in 1..=4 {
        let line = format!("{}: h{host}", bed.ip(host));
        assert!(names.stdout().contains(&line), "{}", names.report());
    }
    let one = bed.imgctl(["exec", "--ips", &bed.ip(3), "--cluster", "default", "hostname"]);
    assert_eq!(one.ok().stdout(), "h3");
    let none = bed.imgctl(["exec", "--roles", "node", "hostname"]);
    none.fails(3);
    let file = bed.env.write("note", "a note\n");
    bed.imgctl(["scp", "--roles", "master", file.to_str().unwrap(), "/run/note"]).ok();
    for host in 1..=4 {
        assert_eq!(bed.says(host, "cat /run/note; rm /run/note"), "a note");
    }
}

/// h2 comes back and h3 goes, in one `apply`.
fn both_at_once(bed: &Bed) {
    let stored = bed.env.path("clusters/default/Clusterfile");
    let text = std::fs::read_to_string(&stored).unwrap();
    let own = bed.ip(3);
    assert!(text.contains(&own), "{text}");
    let wanted = bed.env.write("wanted.yaml", text.replace(&own, &bed.ip(2)));
    // A key of the command line counts more than one of the file.
    let key = bed.key().display().to_string();
    assert!(text.contains(&key), "{text}");
    let other = bed.env.write("other.yaml", text.replace(&key, "/nowhere/key"));
    let dry = ["apply", "--dry-run", "-f", other.to_str().unwrap()];
    let refused = bed.imgctl(dry);
    assert!(
        !refused.success() && refused.report().contains("/nowhere/key"),
        "{}",
        refused.report()
    );
    bed.imgctl([&dry[..], &["--pk", &key]].concat()).ok();

    let mut apply = bed.command(["apply", "--yes", "-f"]);
    apply.arg(wanted);
    Ran::new(apply).ok();
}
