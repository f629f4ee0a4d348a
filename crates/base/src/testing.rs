//! Tests only: what happens to a test that lacks what it needs, such as root.
//!
//! Must not be part of any release: it reads the environment, prints and panics.

#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::print_stderr,
    reason = "only tests use this module"
)]

use std::cell::Cell;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;

thread_local! {
    /// Whether this test (each has a thread of its own) has said that it is skipped.
    static IS_TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Returns a TCP port of 127.0.0.1 at which nobody listens, for a program that cannot choose one itself.
///
/// The kernel gives ports from 32768 on to whoever asks for any, as the tests beside this one do all the time: this
/// one is below.
///
/// # Panics
///
/// If no port is free.
pub fn free_port() -> u16 {
    let random = || RandomState::new().build_hasher().finish();
    let mut candidates = (0..1000).map(|_| 10_000 + u16::try_from(random() % 20_000).unwrap_or(0));
    candidates
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap_or_else(|| panic!("of 1,000 ports none is free"))
}

/// Returns whether this test runs as root, so that it can go on. `false` only if
/// `IMGCTL_TEST_UNPRIVILEGED` is 1; the test then counts as skipped.
///
/// # Panics
///
/// Without root, unless `IMGCTL_TEST_UNPRIVILEGED` is 1.
#[track_caller]
pub fn needs_root() -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(
        std::env::var_os("IMGCTL_TEST_UNPRIVILEGED").is_some_and(|value| value == "1"),
        "this test needs root; set IMGCTL_TEST_UNPRIVILEGED=1 to skip tests that need it"
    );
    skip("needs root");
    false
}

/// Returns whether the tests run in their long form.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("IMGCTL_TEST_LONG").is_some_and(|value| value == "1")
}

/// Counts this test as skipped, once: `scripts/test` counts the lines of the file that
/// `IMGCTL_TEST_SKIPPED` names.
///
/// # Panics
///
/// If the file cannot be written.
pub fn skip(reason: &str) {
    if !IS_TOLD.replace(true) {
        eprintln!("skipped: {reason}");
        if let Some(path) = std::env::var_os("IMGCTL_TEST_SKIPPED") {
            count(Path::new(&path));
        }
    }
}

/// Adds a line to the file, in one write because other tests add theirs.
fn count(path: &Path) {
    // A test that runs alone may be in the main thread; then the arguments name it.
    let words: Vec<String> = std::env::args().collect();
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let line = format!("{name} ({})\n", words.join(" "));
    let file = File::options().create(true).append(true).open(path);
    let added = file.and_then(|mut file| file.write_all(line.as_bytes()));
    added.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}

/// Returns `valid` with the damage that the bytes of a fuzzer describe, four for each change: a place, a kind, a byte. So its
/// input also reaches what lies behind the first check of a parser.
#[must_use]
pub fn damaged(valid: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for [low, high, kind, byte] in changes.as_chunks().0.iter().copied().take(16) {
        let place = usize::from(u16::from_le_bytes([low, high])) % (bytes.len() + 1);
        let end = (place + usize::from(byte)).min(bytes.len());
        match kind % 8 {
            0..=2 => {
                if let Some(there) = bytes.get_mut(place) {
                    *there = byte;
                }
            }
            3 | 4 => bytes.insert(place, byte),
            5 => drop(bytes.drain(place..end)),
            6 => {
                let again = bytes.get(place..end).unwrap_or_default().to_vec();
                drop(bytes.splice(place..place, again));
            }
            _ => bytes.truncate(place),
        }
    }
    bytes
}
