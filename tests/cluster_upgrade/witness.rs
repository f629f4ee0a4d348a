//! The writer itself, against etcd as `run` makes it: it sees a member that stops, and nothing else.

use std::time::{Duration, Instant};

use crate::common::is_root;
use crate::common::testbed::Bed;
use crate::rolling::{addresses, build};
use crate::support::run;
use crate::writer::Writer;

#[test]
fn the_writer_sees_what_stops() {
    if !is_root() {
        return;
    }
    let bed = Bed::up(3);
    if !build(&bed, "3.4.23") {
        return;
    }
    run(&bed, &["run", "etcd:v3.4.23", "--masters", &bed.ips(1..=3)]).ok();
    let began = Instant::now();
    let writer = Writer::start("seen", &addresses(&bed));
    bed.says(2, "systemctl stop etcd; sleep 1; systemctl start etcd");
    writer.goes_on();
    let written = writer.stop(began);
    written.assert_kept("seen", &addresses(&bed), Duration::from_secs(5));
    assert_eq!(written.stops(), [0, 1, 0]);
}
