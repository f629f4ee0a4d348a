//! Restoring a snapshot corrects the record; plans, summaries and histories name the hosts that
//! are left out.

use crate::cluster_etcd::support::run;
use crate::cluster_upgrade::counting::{cluster, refused, trees, upgrade, versions};
use crate::common::needs_root;
use crate::common::testbed::Bed;

#[test]
fn the_record_goes_back_with_the_data() {
    if !needs_root() {
        return;
    }
    let bed = cluster();
    for name in ["old", "new"] {
        let kubefile = "FROM scratch\nCOPY . .\nCMD [\"bash install.sh\"]\n";
        let install = format!("echo {name} >>/var/log/installed\n");
        let files = [("install.sh", &*install), ("uninstall.sh", "exit 0\n")];
        let context = bed.env.context(name, kubefile, &files);
        bed.env.build(&format!("{name}:v1"), &context);
    }
    let installed = || bed.says(1, "cat /var/log/installed; rm -f /var/log/installed");
    run(&bed, &["run", "old:v1"]).ok();
    upgrade(&bed, &["counting:1.1.0"]).ok();
    run(&bed, &["run", "new:v1"]).ok();
    bed.imgctl(["uninstall", "old:v1", "--yes"]).ok();
    assert_eq!(installed(), "old\nnew");

    let snapshot = snapshot(&bed);
    let back = ["rollback", "--from-snapshot", &snapshot, "--i-understand-data-loss"];
    let words = ["`imgctl run new:v1` reinstalls it", "old:v1 was uninstalled"];
    let planned = bed.imgctl([&back[..], &["--plan"]].concat()).ok();
    let gone = bed.imgctl([&back[..], &["--yes"]].concat()).ok();
    for words in words {
        assert!(planned.stdout().contains(words), "{}", planned.report());
        assert!(gone.report().contains(words), "{}", gone.report());
    }
    assert_eq!(versions(&bed), ["1.0.0"; 3]);
    run(&bed, &["run", "new:v1", "old:v1"]).ok();
    assert_eq!(installed(), "new");
}

/// The snapshot that the controller keeps of the only upgrade.
fn snapshot(bed: &Bed) -> String {
    let backups = bed.env.path("clusters/default/backup");
    let mut found = std::fs::read_dir(backups).unwrap();
    let directory = found.next().unwrap().unwrap().path();
    assert!(found.next().is_none());
    directory.join("snapshot.db").to_str().unwrap().to_owned()
}

#[test]
fn who_is_left_out_is_told() {
    if !needs_root() {
        return;
    }
    let bed = cluster();
    // `run` that was an upgrade is not gone on with by the same command.
    bed.says(1, "touch /run/ill");
    let failed = run(&bed, &["run", "counting:1.1.0"]).fails(9);
    refused(&failed, "run `imgctl upgrade resume --cluster default` once that is fixed");
    assert!(!failed.stderr().contains("same command"), "{}", failed.report());
    bed.says(1, "rm /run/ill");
    bed.imgctl(["upgrade", "resume"]).ok();

    let alone = format!("node={}", bed.ip(3));
    let planned = bed.imgctl(["rollback", "--scope", &alone, "--plan"]).ok();
    let said = planned.stdout();
    assert!(!said.contains("the API"), "{said}");
    assert!(said.matches("it is not in the scope").count() == 2, "{said}");
    bed.imgctl(["rollback", "--scope", &alone, "--yes"]).ok();
    assert_eq!(trees(&bed), ["1.1.0", "1.1.0", "1.0.0"]);
    let planned = bed.imgctl(["rollback", "--plan"]).ok();
    let said = planned.stdout();
    let row = said.lines().find(|line| line.contains(&bed.ip(3))).unwrap();
    assert!(row.contains("it is already back at v1.0.0"), "{said}");
    let gone = bed.imgctl(["rollback", "--yes"]).ok();
    let left = format!("host {} was skipped: it is already back at v1.0.0", bed.ip(3));
    assert!(gone.report().contains(&left), "{}", gone.report());
    assert_eq!(versions(&bed), ["1.0.0"; 3]);

    bed.kill(3);
    let going = upgrade(&bed, &["counting:1.1.0", "--max-unavailable", "2"]).ok();
    let left = format!("host {} was skipped: it cannot be reached", bed.ip(3));
    for words in [&*left, "`imgctl upgrade counting:1.1.0` to upgrade them"] {
        assert!(going.report().contains(words), "{}", going.report());
    }
    let status = bed.imgctl(["upgrade", "status"]).ok().stdout();
    let ends: Vec<&str> = status.lines().filter(|line| line.ends_with("committed")).collect();
    let but = format!("all but {}", bed.ip(3));
    for (line, hosts) in ends.iter().zip(["  all ", &format!("  {} ", bed.ip(3)), &but, &but]) {
        assert!(line.contains(hosts), "{hosts}: {status}");
    }
}
