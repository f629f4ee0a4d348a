//! The corpus: every folder of `tests/corpus` is built by imgctl and by Debian's buildah, then
//! configuration and tree are compared entry by entry. Where buildah 1.28 cannot be the referee,
//! the folder holds the expectation as data. `tests/corpus/README.md` describes the folders.
//!
//! `IMGCTL_CORPUS=word cargo nextest run --test runner corpus::` builds the entries whose name contains the word.

mod entry;
mod expected;
pub(crate) mod generated;
mod made;
mod referee;

use std::ffi::OsString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::tree::{self, Compare};
use crate::common::{Ran, TestEnv};
use entry::{BUSYBOX, Entry};
use referee::Referee;

/// Everything written before this moment (2024) is the context's, everything after the build's.
const BUILD_TIME: i64 = 1_700_000_000;

#[test]
fn copy_only_kubefiles_equal_buildah() {
    check_all(|entry| !entry.needs_busybox());
}

#[test]
fn kubefiles_with_run_equal_buildah() {
    check_all(Entry::needs_busybox);
}

#[test]
fn generated_kubefiles_equal_buildah() {
    generated::check();
}

fn check_all(wanted: fn(&Entry) -> bool) {
    // The corpus gives files away and mounts.
    if !crate::common::needs_root() {
        return;
    }
    let word = std::env::var("IMGCTL_CORPUS").unwrap_or_default();
    let mut entries = Entry::all();
    let total = entries.len();
    assert!(total >= 100, "the corpus has shrunk to {total} entries");
    entries.retain(|entry| wanted(entry) && entry.name.contains(&word));

    let env = TestEnv::new();
    if entries.iter().any(Entry::needs_busybox) {
        env.build(BUSYBOX, &referee::busybox(&env.path("busybox")));
    }
    let failures = in_parallel(
        &entries,
        |thread| Referee::new(env.path(format!("buildah-{thread}"))),
        |referee, entry| check(&env, referee, entry),
    );
    assert!(
        failures.is_empty(),
        "{} of {} entries differ:\n\n{}",
        failures.len(),
        entries.len(),
        failures.join("\n")
    );
}

/// Runs `check` on every entry, one thread per core with a referee of its own; gives the reports of
/// those that differ.
fn in_parallel(
    entries: &[Entry],
    referee: impl Fn(usize) -> Referee + Sync,
    check: impl Fn(&mut Referee, &Entry) -> Vec<String> + Sync,
) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = |thread| {
        let mut referee = referee(thread);
        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check(&mut referee, entry)
            }));
            let found = found.unwrap_or_else(|panic| vec![entry::panic_text(&*panic)]);
            if !found.is_empty() {
                let report = format!("== {}\n{}\n", entry.name, found.join("\n"));
                failures.lock().unwrap().push(report);
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    failures
}

/// The differences of one entry, one per line.
fn check(env: &TestEnv, referee: &mut Referee, entry: &Entry) -> Vec<String> {
    let work = entry.prepare(&env.path("work"));
    let seen = (!entry.has("expect.tree") || !entry.has("expect.json"))
        .then(|| referee.result(entry, &work));

    let image = format!("localhost/corpus/{}", entry.name);
    let build = |mut arguments: Vec<OsString>| {
        // buildah looks for no container images in a context (tests/embed).
        arguments.splice(1..1, ["--no-sync", "--save-image=false"].map(OsString::from));
        let mut command = env.command(arguments);
        command.current_dir(&work);
        Ran::new(command).ok();
    };
    if entry.has("base.Kubefile") {
        build(entry.build_arguments("base.Kubefile", &entry.base_image(), false));
    }
    build(entry.build_arguments("Kubefile", &image, true));
    let exported = format!("export/{}", entry.name);
    let (tree, config) = made::by_imgctl(env, &format!("{image}:latest"), &exported);

    let mut found = match (entry.text("expect.tree"), &seen) {
        (Some(text), _) => expected::tree_differences(&text, &tree),
        (None, Some(seen)) => {
            let compare = Compare { times_before: BUILD_TIME, directory_times: false };
            tree::differences(&seen.tree, &tree, compare)
        }
        (None, None) => unreachable!("the referee is asked when nothing is written down"),
    };
    let written = entry.text("expect.json").map(|text| serde_json::from_str(&text).unwrap());
    let theirs = seen.as_ref().map(|seen| &seen.config);
    found.extend(expected::config_differences(theirs, written.as_ref(), &config));
    found
}
