//! Simulates the schedule: how long the last host takes, and how much the uplink carries.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{Job, Limits, Needs, Next, Schedule};

/// Controller's uplink in bytes per second, shared by its transfers.
const UPLINK: u64 = 125_000_000;
/// A host's link in bytes per second, shared by the hosts that it serves.
const LINK: u64 = 1_000_000_000;

struct Outcome {
    seconds: f64,
    sent: u64,
    steps: usize,
    most: usize,
}

/// Runs the schedule with transfer times based on a fixed share of the links.
fn simulate(sizes: &[u64], hosts: usize, limits: Limits, reach: fn(u32, u32) -> bool) -> Outcome {
    let needs =
        vec![
            Needs { lacks: (0..sizes.len() as u32).collect(), checkout: true, ..Needs::default() };
            hosts
        ];
    let mut schedule = Schedule::new(sizes, needs, limits);
    let mut running: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut jobs: Vec<Option<Job>> = Vec::new();
    let (mut now, mut sent, mut steps, mut most) = (0u64, 0, 0, 0);
    // The uplink sends one blob after the other, which takes as long in total as in parallel.
    let mut uplink = 0u64;
    loop {
        steps += 1;
        match schedule.next() {
            Next::End => break,
            Next::Do(job) => {
                let micros = |bytes: u64, rate: u64| bytes * 1_000_000 / rate;
                let end = match &job {
                    Job::Upload { blob, .. } => {
                        sent += sizes[*blob as usize];
                        uplink = uplink.max(now) + micros(sizes[*blob as usize], UPLINK);
                        uplink
                    }
                    Job::Fetch { blobs, .. } => {
                        let bytes: u64 = blobs.iter().map(|&blob| sizes[blob as usize]).sum();
                        now + micros(bytes, LINK / u64::from(limits.per_source)) + 1000
                    }
                    Job::Checkout { .. } => now + 10_000,
                };
                running.push(Reverse((end, jobs.len())));
                jobs.push(Some(job));
                most = most.max(running.len());
            }
            Next::Wait => {
                assert!(!schedule.is_idle(), "stuck");
                let Reverse((end, number)) = running.pop().unwrap();
                now = end;
                match jobs[number].take().unwrap() {
                    Job::Upload { host, blob } => schedule.uploaded(host, blob),
                    Job::Fetch { host, source, blobs } => {
                        let missing = if reach(host, source) { Vec::new() } else { blobs.clone() };
                        schedule.fetched(host, source, &blobs, &missing);
                    }
                    Job::Checkout { host } => schedule.checked_out(host),
                }
            }
        }
    }
    assert!(running.is_empty() && schedule.unended().count() == 0);
    Outcome { seconds: now as f64 / 1e6, sent, steps, most }
}

fn mebibytes(count: usize, size: u64) -> Vec<u64> {
    vec![size << 20; count]
}

#[test]
fn eight_hosts_behind_a_narrow_uplink_take_at_most_twice_the_time_of_one() {
    for sizes in [mebibytes(1, 512), mebibytes(8, 64), mebibytes(100, 5)] {
        let one = simulate(&sizes, 1, Limits::default(), |_, _| true);
        let eight = simulate(&sizes, 8, Limits::default(), |_, _| true);
        assert_eq!(one.sent, eight.sent, "the uplink carries each byte once");
        let ratio = eight.seconds / one.seconds;
        assert!(ratio < 2.0, "{ratio}");
        let without = Limits { fan_out: false, ..Limits::default() };
        let without = simulate(&sizes, 8, without, |_, _| true);
        assert_eq!(without.sent, 8 * one.sent);
    }
}

#[test]
fn a_thousand_hosts_cost_bounded_work_and_the_uplink_no_more_than_one() {
    let sizes = mebibytes(30, 20);
    let begun = std::time::Instant::now();
    let many = simulate(&sizes, 1000, Limits::default(), |_, _| true);
    assert_eq!(many.sent, 600 << 20);
    assert!(many.most <= 64, "{}", many.most);
    assert!(many.steps < 100_000, "{}", many.steps);
    // Generous for a debug build on a busy machine; the problem that this detects takes minutes.
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
}

#[test]
fn a_network_in_parts_costs_a_few_copies_and_one_without_peers_a_copy_each() {
    let sizes = mebibytes(10, 10);
    let total = 100 << 20;
    let parts = simulate(&sizes, 60, Limits::default(), |host, source| host % 3 == source % 3);
    assert!(parts.sent <= 8 * total, "{}", parts.sent / total);
    let alone = simulate(&sizes, 60, Limits::default(), |_, _| false);
    assert_eq!(alone.sent, 60 * total);
}

#[test]
fn a_registry_gives_a_few_copies_at_once_and_hosts_the_rest() {
    let sizes = mebibytes(30, 20);
    let limits = Limits::default().of_registry();
    let many = simulate(&sizes, 1000, limits, |_, _| true);
    assert!(many.sent <= 4 * (600 << 20), "{}", many.sent >> 20);
    assert!(many.steps < 100_000, "{}", many.steps);
    let alone = simulate(&sizes, 20, limits, |_, _| false);
    assert_eq!(alone.sent, 20 * (600 << 20));
}
