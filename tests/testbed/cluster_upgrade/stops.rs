//! An upgrade stops: where it was told to, at a host that is ill, for another operator, at a journal
//! that was tampered with; and goes on, or is given up.

use std::path::PathBuf;
use std::time::Duration;

use crate::cluster_etcd::support::{signal, wait_for};
use crate::cluster_upgrade::counting::{
    all_counted, cluster, die_at, refused, trees, upgrade, versions,
};
use crate::common::needs_root;
use crate::common::testbed::Bed;

const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn it_stops_where_it_must_and_goes_on() {
    if !needs_root() {
        return;
    }
    let bed = cluster();
    pauses(&bed);
    ill_canary(&bed);
    taken_back(&bed);
    two_operators(&bed);
    abort(&bed);
    journals(&bed);
}

/// Behind the canary, behind a batch, and when somebody says so.
fn pauses(bed: &Bed) {
    let to = ["counting:1.1.0", "--canary", &bed.ip(3)];
    upgrade(bed, &[&to[..], &["--pause-after", "control-plane"]].concat());
    assert_eq!(versions(bed), ["1.1.0", "1.0.0", "1.0.0"]);
    let status = bed.imgctl(["upgrade", "status"]);
    assert!(status.stdout().contains("pause"), "{}", status.report());
    bed.imgctl(["upgrade", "resume", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    assert_eq!(trees(bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
    back(bed);

    upgrade(bed, &[&to[..], &["--pause-after", "canary"]].concat());
    assert_eq!(versions(bed), ["1.1.0", "1.0.0", "1.1.0"]);
    bed.imgctl(["upgrade", "resume", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    back(bed);

    // While the first host is at it.
    bed.says(1, "echo 4 >/run/slow");
    let running = begin_upgrade(bed, "counting:1.1.0");
    wait_for("the script", LIMIT, || bed.exec(1, "grep -q upgrade /run/begun").success());
    bed.imgctl(["upgrade", "pause"]).ok();
    running.wait_with_output().unwrap();
    bed.says(1, "rm /run/slow");
    assert_eq!(versions(bed), ["1.1.0", "1.0.0", "1.0.0"]);
    bed.imgctl(["upgrade", "resume", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    back(bed);
}

/// The host that fails goes back by itself, and the upgrade stops there; later it goes on.
fn taken_back(bed: &Bed) {
    bed.says(2, "touch /run/ill-1.1.0");
    let to = ["counting:1.1.0", "--canary", &bed.ip(2), "--on-failure", "rollback"];
    let failed = upgrade(bed, &to).fails(9);
    refused(&failed, "ill with 1.1.0");
    let back = format!("{} is back at v1.0.0", bed.ip(2));
    assert!(failed.stderr().contains(&back), "{}", failed.report());
    assert_eq!(versions(bed), ["1.1.0", "1.0.0", "1.0.0"]);
    assert_eq!(trees(bed), ["1.1.0", "1.0.0", "1.0.0"]);
    // It is decided when the upgrade begins, and holds when it goes on.
    let failed = bed.imgctl(["upgrade", "resume", "--yes"]).fails(9);
    assert!(failed.stderr().contains(&back), "{}", failed.report());
    assert_eq!(versions(bed), ["1.1.0", "1.0.0", "1.0.0"]);
    bed.says(2, "rm /run/ill-1.1.0");
    bed.imgctl(["upgrade", "resume", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    all_counted(bed);
    bed.imgctl(["rollback", "--yes"]).ok();
    all_counted(bed);
}

/// The canary fails its gate: no other worker is touched; it goes back alone, or is repaired.
fn ill_canary(bed: &Bed) {
    bed.says(2, "touch /run/ill");
    let to = ["counting:1.1.0", "--canary", &bed.ip(2)];
    let failed = upgrade(bed, &to);
    refused(&failed, "ill on request");
    assert!(failed.stderr().contains(&bed.ip(2)), "{}", failed.report());
    assert_eq!(versions(bed)[2], "1.0.0");
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", ""]);
    // Something else than to go on or to go back is refused.
    let other = upgrade(bed, &["counting:1.2.0"]);
    assert!(!other.success(), "{}", other.report());
    bed.says(2, "rm /run/ill");
    bed.imgctl(["upgrade", "resume", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(bed), ["", "", "upgrade"]);
    back(bed);
}

/// The second operator is told who is at it; when that one is dead, the second takes over.
fn two_operators(bed: &Bed) {
    bed.says(1, "echo 4 >/run/slow");
    let running = begin_upgrade(bed, "counting:1.1.0");
    wait_for("the script", LIMIT, || bed.exec(1, "grep -q upgrade /run/begun").success());
    let second = upgrade(bed, &["counting:1.1.0"]).fails(6);
    refused(&second, &format!("process {}", running.id()));
    signal(&running, "-KILL");
    running.wait_with_output().unwrap();
    upgrade(bed, &["counting:1.1.0"]).ok();
    bed.says(1, "rm /run/slow");
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
    back(bed);
}

/// Given up before anything was changed, and after.
fn abort(bed: &Bed) {
    let none = bed.imgctl(["upgrade", "abort", "--yes"]);
    assert!(!none.success(), "{}", none.report());
    upgrade(bed, &["counting:1.1.0", "--pause-after", "stage"]);
    assert_eq!(versions(bed), ["1.0.0"; 3]);
    assert_eq!(trees(bed), ["1.0.0"; 3]);
    bed.imgctl(["upgrade", "abort", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.0.0"; 3]);
    all_counted(bed);
    // It is closed: another one may begin, with what was staged.
    upgrade(bed, &["counting:1.1.0", "--pause-after", "control-plane"]);
    assert_eq!(versions(bed), ["1.1.0", "1.0.0", "1.0.0"]);
    // A host runs the new one already: it goes on or back.
    let half = bed.imgctl(["upgrade", "abort", "--yes"]);
    refused(&half, &bed.ip(1));
    assert_eq!(versions(bed), ["1.1.0", "1.0.0", "1.0.0"]);
    assert_eq!(all_counted(bed), ["backup upgrade", "", ""]);
    back(bed);
}

/// A last line that was torn is as if it had not been written; one that was edited is not trusted.
fn journals(bed: &Bed) {
    die_at(bed, &["upgrade", "counting:1.1.0"], 20);
    let journal = newest_journal(bed);
    let whole = std::fs::read_to_string(&journal).unwrap();
    let mut torn = whole.clone();
    torn.push_str("{\"record\":\"begin\",\"ti");
    std::fs::write(&journal, torn).unwrap();
    upgrade(bed, &["counting:1.1.0"]).ok();
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
    back(bed);

    die_at(bed, &["upgrade", "counting:1.1.0"], 20);
    let journal = newest_journal(bed);
    let whole = std::fs::read_to_string(&journal).unwrap();
    let edited = whole.replacen("\"attempt\":1", "\"attempt\":2", 1);
    assert_ne!(whole, edited);
    std::fs::write(&journal, edited).unwrap();
    let name = journal.file_name().unwrap().to_string_lossy();
    let done = || versions(bed);
    let before = done();
    let distrusted = upgrade(bed, &["counting:1.1.0"]);
    refused(&distrusted, &name);
    assert_eq!(done(), before);
    std::fs::write(&journal, whole).unwrap();
    upgrade(bed, &["counting:1.1.0"]).ok();
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
}

fn newest_journal(bed: &Bed) -> PathBuf {
    let entries = std::fs::read_dir(bed.env.path("clusters/default/journal")).unwrap();
    entries.map(|entry| entry.unwrap().path()).max().unwrap()
}

fn back(bed: &Bed) {
    bed.imgctl(["rollback", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.0.0"; 3]);
    all_counted(bed);
}

fn begin_upgrade(bed: &Bed, image: &str) -> std::process::Child {
    let mut command = bed.command(["upgrade", image, "--yes"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command.spawn().unwrap()
}
