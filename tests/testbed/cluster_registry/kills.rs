//! `registry passwd --cluster` and `registry gc --cluster`, killed behind records of their journals: the same
//! command finishes what was begun.

use crate::cluster_registry::{answer, answer_for, image, password, run};
use crate::common::long;
use crate::common::testbed::Bed;

/// More records than either command writes.
const MOST: u64 = 200;

/// Runs it so that it dies with its `record`th record, then to its end; returns whether it died.
fn once(bed: &Bed, arguments: &[&str], record: u64) -> bool {
    let killed = run(bed, arguments, Some(record));
    if killed.success() {
        return false;
    }
    assert!(killed.report().contains("signal: 9"), "{record}: {}", killed.report());
    run(bed, arguments, None).ok();
    true
}

/// Behind each record, every registry host accepts exactly the password that the controller has.
pub(super) fn of_passwd(bed: &Bed) {
    let records: Vec<u64> = if long() { (1..MOST).collect() } else { vec![41, 77] };
    let passwd = ["registry", "passwd", "--cluster", "default", "--generate"];
    for record in records {
        let old = password(bed);
        let killed = once(bed, &passwd, record);
        let new = password(bed);
        assert_ne!(old, new, "{record}");
        for host in 1..=3 {
            let says = |word: &str| answer(bed, host, &format!("admin:{word}"));
            assert!(says(&new).contains("200"), "h{host}, {record}");
            assert!(says(&old).contains("401"), "h{host}, {record}");
        }
        if !killed {
            assert!(long(), "record {record} is behind the end");
            return;
        }
    }
    assert!(!long(), "it never ended");
}

/// Behind each record, the image of an application that is gone goes, and no other one.
pub(super) fn of_gc(bed: &Bed, login: &str) {
    let records: Vec<u64> = if long() { (1..MOST).collect() } else { vec![4] };
    let gc = ["registry", "gc", "--cluster", "default", "--grace", "0s", "--yes"];
    let serves = |host: usize, name: &str| {
        let path = format!("/v2/{name}/manifests/v1");
        answer_for(bed, host, login, &path).contains("200")
    };
    let app = image::APP.trim_end_matches(":v1");
    for record in records {
        run(bed, &["run", "extra:v1"], None).ok();
        run(bed, &["uninstall", "extra:v1", "--yes"], None).ok();
        let killed = once(bed, &gc, record);
        for host in 1..=3 {
            assert!(!serves(host, image::EXTRA), "h{host}, {record}");
            assert!(serves(host, app), "h{host}, {record}");
        }
        if !killed {
            assert!(long(), "record {record} is behind the end");
            return;
        }
    }
    assert!(!long(), "it never ended");
}
