//! `cargo bench`: the cost of a build in this process: the first build, a build with no changes,
//! and a build after one file has changed. `scripts/bench` compares with other tools.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints and may stop")]

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of files in the context, and bytes in each.
const FILES: usize = 4000;
const SIZE: usize = 16 << 10;
/// Runs of each job; the benchmark shows the median.
const RUNS: usize = 7;

fn main() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let context = directory.path().join("context");
    make_context(&context);
    let mut round = 0;
    show("first build", || {
        round += 1;
        let root = directory.path().join(format!("root-{round}"));
        build(&root, &context)
    });
    let root = directory.path().join("root-1");
    show("nothing changed", || build(&root, &context));
    show("one file changed", || {
        round += 1;
        fs::write(context.join("changed"), round.to_string()).unwrap();
        build(&root, &context)
    });
}

fn make_context(context: &Path) {
    let mut state = 1_u64;
    for number in 0..FILES {
        let folder = context.join(format!("rootfs/{}", number % 100));
        fs::create_dir_all(&folder).unwrap();
        // Half words, half noise: compresses about as well as a program.
        let content: Vec<u8> = (0..SIZE)
            .map(|at| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if at % 2 == 0 { b'a' + (at % 7) as u8 } else { (state >> 33) as u8 }
            })
            .collect();
        fs::write(folder.join(number.to_string()), content).unwrap();
    }
    fs::write(context.join("Kubefile"), "FROM scratch\nCOPY . /\n").unwrap();
}

fn build(root: &Path, context: &Path) -> Duration {
    let arguments: Vec<OsString> = [
        "imgctl",
        "--progress",
        "none",
        "--quiet",
        "build",
        "-t",
        "bench",
        "--iidfile",
        "/dev/null",
    ]
    .iter()
    .map(OsString::from)
    .chain(["--root".into(), root.into(), context.into()])
    .collect();
    let start = Instant::now();
    let code = imgctl::run(&arguments, Vec::new());
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    start.elapsed()
}

fn show(job: &str, mut run: impl FnMut() -> Duration) {
    let mut times: Vec<Duration> = (0..RUNS).map(|_| run()).collect();
    times.sort_unstable();
    println!("{job}: {:?} (of {RUNS}: {:?} to {:?})", times[RUNS / 2], times[0], times[RUNS - 1]);
}
