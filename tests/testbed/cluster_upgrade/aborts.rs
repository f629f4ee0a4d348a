//! Given up in every state; images that share a name; options that do not count.

use crate::cluster_etcd::support::{bytes, events};
use crate::cluster_upgrade::counting::{
    all_counted, build, build_as, cluster, die_at, last_record, refused, trees, upgrade, versions,
};
use crate::common::testbed::Bed;
use crate::common::{json, long, needs_root};

#[test]
fn an_upgrade_is_given_up_in_any_state() {
    if !needs_root() {
        return;
    }
    let bed = cluster();
    at_any_record(&bed);
    nothing_is_sent_twice(&bed);
    behind_the_record(&bed);
    a_way_back(&bed);
    a_part_of_a_way_back(&bed);
    options(&bed);
    the_same_name(&bed);
}

/// Until a host has been switched it is closed, and hosts are as they were; from then on it is said
/// what to do.
fn at_any_record(bed: &Bed) {
    // Behind these all of it is on record.
    let last = last_record(bed, "counting:1.1.0") - 14;
    let records: Vec<u64> =
        if long() { (1..=last).collect() } else { vec![1, 5, 12, last / 2, last * 2 / 3, last] };
    let (mut closed, mut refusals) = (0, 0);
    for record in records {
        die_at(bed, &["upgrade", "counting:1.1.0"], record);
        let given_up = bed.imgctl(["upgrade", "abort"]);
        if trees(bed) == ["1.0.0"; 3] && given_up.success() {
            closed += 1;
            bed.imgctl(["upgrade", "abort"]).fails(3);
            assert_eq!(versions(bed), ["1.0.0"; 3], "{record}");
            assert!(status(bed)["open"].is_null());
        } else {
            refusals += 1;
            let given_up = given_up.fails(10);
            refused(&given_up, &bed.ip(1));
            refused(&given_up, "`imgctl rollback` to roll them back");
            assert_eq!(status(bed)["open"]["state"], "running");
            bed.imgctl(["rollback", "--yes"]).ok();
            assert_eq!(versions(bed), ["1.0.0"; 3], "{record}");
        }
        assert_eq!(trees(bed), ["1.0.0"; 3], "{record}");
        all_counted(bed);
    }
    println!("{closed} closed, {refusals} refused");
    assert!(closed > 1 && refusals > 1);
}

fn status(bed: &Bed) -> serde_json::Value {
    bed.imgctl(["upgrade", "status", "--json"]).ok().json()
}

fn nothing_is_sent_twice(bed: &Bed) {
    build(bed, "1.3.0", "");
    let to = ["upgrade", "counting:1.3.0", "--json", "--yes"];
    let staged = bed.imgctl([&to[..], &["--pause-after", "stage"]].concat()).ok();
    assert!(bytes(&events(&staged)) > 0, "{}", staged.report());
    bed.imgctl(["upgrade", "abort"]).ok();
    let again = bed.imgctl(to).ok();
    assert_eq!(bytes(&events(&again)), 0, "{}", again.report());
    bed.imgctl(["rollback", "--yes"]).ok();
    all_counted(bed);
}

/// It is over but for its end: there is nothing to give up, whatever the force.
fn behind_the_record(bed: &Bed) {
    let record = last_record(bed, "counting:1.1.0");
    die_at(bed, &["upgrade", "counting:1.1.0"], record);
    for force in [&[][..], &["--force"]] {
        let late = bed.imgctl([&["upgrade", "abort"], force].concat()).fails(10);
        refused(&late, "that is recorded");
        refused(&late, "`imgctl upgrade resume` to close it");
    }
    bed.imgctl(["upgrade", "resume"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
    bed.imgctl(["rollback", "--yes"]).ok();
    all_counted(bed);
}

/// The upgrade that was to be taken back is open again.
fn a_way_back(bed: &Bed) {
    let to = ["counting:1.1.0", "--pause-after", "control-plane"];
    upgrade(bed, &to).ok();
    let open = status(bed)["open"]["id"].clone();
    die_at(bed, &["rollback"], 3);
    assert_eq!(status(bed)["open"]["direction"], "back");
    let given_up = bed.imgctl(["upgrade", "abort"]).ok();
    assert!(given_up.report().contains("is open again"), "{}", given_up.report());
    assert_eq!(status(bed)["open"]["id"], open);
    bed.imgctl(["upgrade", "resume"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
    bed.imgctl(["rollback", "--yes"]).ok();
    all_counted(bed);
}

/// One host goes back, is killed on its way, and stays one host when it is resumed.
fn a_part_of_a_way_back(bed: &Bed) {
    upgrade(bed, &["counting:1.1.0", "--pause-after", "control-plane"]).ok();
    all_counted(bed);
    let scope = format!("node={}", bed.ip(1));
    die_at(bed, &["rollback", "--scope", &scope], 8);
    let other = bed.imgctl(["rollback", "--scope", "workers", "--yes"]).fails(6);
    refused(&other, "a different --scope");
    bed.imgctl(["upgrade", "resume"]).ok();
    assert_eq!(versions(bed), ["1.0.0"; 3]);
    assert_eq!(all_counted(bed), ["rollback", "", ""]);
    assert_eq!(status(bed)["open"]["direction"], "forward");
    bed.imgctl(["upgrade", "resume"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(bed), ["upgrade"; 3]);
    bed.imgctl(["rollback", "--yes"]).ok();
    all_counted(bed);
}

/// What would not count is refused, and named.
fn options(bed: &Bed) {
    let plan = bed.env.path("options.json");
    let plan = plan.to_str().unwrap();
    bed.imgctl(["upgrade", "counting:1.1.0", "--batch", "2", "--save-plan", plan]).ok();
    for beside in [&["--batch", "3"][..], &["--pause-after", "batch"], &["--id", "other"]] {
        let odd = bed.imgctl([&["upgrade", "--plan-file", plan], beside].concat());
        refused(&odd.fails(2), beside[0]);
    }
    let odd = bed.imgctl(["upgrade", "counting:1.2.0", "--plan-file", plan]);
    refused(&odd.fails(2), "counting:1.2.0 cannot be combined with --plan-file");
    for option in ["--canary", "--hop", "--strategy", "--certificate-renewal", "--spare"] {
        bed.imgctl(["rollback", option, "x"]).fails(2);
    }
    bed.imgctl(["upgrade", "--plan-file", plan, "--yes", "--dry-run"]).ok();
    let to = ["counting:1.1.0", "--pause-after", "stage"];
    upgrade(bed, &to).ok();
    let odd = upgrade(bed, &["counting:1.1.0", "--batch", "2"]).fails(6);
    refused(&odd, "a different --batch");
    bed.imgctl(["upgrade", "abort"]).ok();
    all_counted(bed);
    assert_eq!(json(std::path::Path::new(plan))["choices"]["batch"], "2");
}

/// Old and new image have one name; what was done behind the record is not done twice.
fn the_same_name(bed: &Bed) {
    build_as(bed, "counting:1.0.0", "1.1.0", "under the old name");
    let record = last_record(bed, "counting:1.0.0");
    die_at(bed, &["upgrade", "counting:1.0.0"], record);
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
    bed.imgctl(["upgrade", "resume"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    assert_eq!(trees(bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(bed), [""; 3]);
}
