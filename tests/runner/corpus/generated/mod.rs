//! Generated Kubefiles: imgctl and Debian's buildah build each, configuration and tree are compared; with
//! `IMGCTL_BUILDKIT` (`buildkit.rs`) BuildKit, too, and its history.
//!
//! A case is a function of its seed. `IMGCTL_SEED=N` (or `N..M`) runs those seeds alone;
//! `IMGCTL_TEST_LONG=1` runs thousands. A case that differs is printed with its seed after lines that do
//! not matter were taken out. What the grammar leaves out on purpose is in the tables of docs/kubefile.md.

mod builders;
mod buildkit;
mod context;
mod grammar;

use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{self, Ran, TestEnv};
use crate::corpus::made::PER_STORAGE;
use builders::{Outcome, Pair};
use buildkit::Daemon;
use grammar::Case;

/// The seeds of a run in CI; every change sees the same ones, so that a failure is the change's.
const SEEDS: Range<u64> = 0..200;
const LONG: Range<u64> = 0..4000;

/// This many failures are made small and shown; more of them seldom say more.
const SHOWN: usize = 5;

/// How often a failing case is built again to make it small; a daemon takes longer.
const TRIES: usize = 60;
const TRIES_OF_DAEMON: usize = 10;

/// What happened to all cases.
#[derive(Default)]
struct Tally {
    built: usize,
    refused: usize,
    differ: Vec<(Case, Vec<String>)>,
}

/// Builds every case and compares.
pub(crate) fn check() {
    // The cases give files away.
    if !common::needs_root() {
        return;
    }
    let seeds = seeds();
    let batches: Vec<Range<u64>> = seeds
        .clone()
        .step_by(PER_STORAGE)
        .map(|start| start..seeds.end.min(start + PER_STORAGE as u64))
        .collect();
    let buildkit = Daemon::start();
    let tally = Mutex::new(Tally::default());
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Ok(at) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
                    && let Some(batch) = batches.get(at)
                {
                    check_batch(batch.clone(), buildkit.as_ref(), &tally);
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap();
    let total = tally.built + tally.refused + tally.differ.len();
    println!(
        "{total} Kubefiles: {} built alike, {} refused by both, {} differ",
        tally.built,
        tally.refused,
        tally.differ.len()
    );
    let reports: Vec<String> = tally
        .differ
        .iter()
        .take(SHOWN)
        .map(|(case, differences)| format!("{case}{}\n", differences.join("\n")))
        .collect();
    assert!(
        reports.is_empty(),
        "{} of {total} Kubefiles differ:\n\n{}",
        tally.differ.len(),
        reports.join("\n")
    );
    // A grammar that makes nonsense compares nothing.
    assert!(
        total < 100 || tally.refused * 10 < total,
        "{} of {total} are refused by both",
        tally.refused
    );
}

/// Builds a few cases, or hundreds with `IMGCTL_TEST_LONG=1`, here and with a program for another machine.
pub(crate) fn check_machines(elsewhere: &dyn Fn(&TestEnv, &Path, &[&str]) -> Ran) {
    builders::compare_machines(if common::long() { 0..300 } else { 0..15 }, elsewhere);
}

fn seeds() -> Range<u64> {
    let Ok(wanted) = std::env::var("IMGCTL_SEED") else {
        return if common::long() { LONG } else { SEEDS };
    };
    let number = |text: &str| text.parse::<u64>().expect("IMGCTL_SEED=N or N..M");
    match wanted.split_once("..") {
        Some((start, end)) => number(start)..number(end),
        None => number(&wanted)..number(&wanted) + 1,
    }
}

fn check_batch(seeds: Range<u64>, buildkit: Option<&Daemon>, tally: &Mutex<Tally>) {
    let env = TestEnv::new();
    let pair = Pair::new(&env, buildkit);
    let tries = if buildkit.is_some() { TRIES_OF_DAEMON } else { TRIES };
    for seed in seeds {
        let case = Case::new(seed);
        match pair.compare(&case) {
            Outcome::Same => tally.lock().unwrap().built += 1,
            Outcome::Refused => tally.lock().unwrap().refused += 1,
            Outcome::Differ(differences) => {
                let many = tally.lock().unwrap().differ.len() >= SHOWN;
                let small = if many {
                    (case, differences)
                } else {
                    shrink(&pair, case, differences, tries)
                };
                tally.lock().unwrap().differ.push(small);
            }
        }
    }
}

/// Takes lines out as long as the case still differs.
fn shrink(
    pair: &Pair<'_>,
    mut case: Case,
    mut differences: Vec<String>,
    mut tries: usize,
) -> (Case, Vec<String>) {
    let mut at = 0;
    while tries > 0
        && let Some(smaller) = case.without(at)
    {
        tries -= 1;
        match pair.compare(&smaller) {
            Outcome::Differ(found) => (case, differences) = (smaller, found),
            _ => at += 1,
        }
    }
    (case, differences)
}
