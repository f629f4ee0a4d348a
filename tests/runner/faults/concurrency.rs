//! Commands side by side on one store: all succeed, and the store is sound afterwards.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::common::{TestEnv, long};
use crate::faults::support::{assert_prunes_clean, assert_scrubs_clean, noise};

/// Starts `imgctl ARGUMENTS`.
fn start(env: &TestEnv, arguments: &[&str]) -> (String, Child) {
    let mut command = env.command(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    (arguments.join(" "), command.spawn().unwrap())
}

/// Runs commands at the same time; panics unless each ends with success, or with one of the exit
/// codes that it may have.
#[track_caller]
fn all(env: &TestEnv, commands: &[(&[&str], &[i32])]) {
    let running: Vec<_> = commands.iter().map(|(arguments, _)| start(env, arguments)).collect();
    for ((line, child), (_, may)) in running.into_iter().zip(commands) {
        let output = child.wait_with_output().unwrap();
        let code = output.status.code().unwrap_or(-1);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(code == 0 || may.contains(&code), "{line}: {code}\n{said}");
    }
}

fn rounds() -> u32 {
    if long() { 60 } else { 4 }
}

fn context(env: &TestEnv, name: &str, round: u32, seed: u64) -> PathBuf {
    let path = env.context(name, "FROM scratch\nCOPY a /a\nCOPY b /b\nCOPY small /small\n", &[]);
    let seed = u64::from(round) << 16 | seed << 8;
    env.write(path.join("a"), noise(seed + 1, 300_000));
    env.write(path.join("b"), noise(seed + 2, 300_000));
    for number in 0..30 {
        env.write(path.join(format!("small/{number}")), format!("{name} {round}"));
    }
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn assert_sound(env: &TestEnv) {
    assert_scrubs_clean(env);
    assert_prunes_clean(env);
    assert_scrubs_clean(env);
}

#[test]
fn builds_and_prunes() {
    let env = TestEnv::new();
    for round in 0..rounds() {
        let (one, two) = (context(&env, "one", round, 1), context(&env, "two", round, 2));
        all(
            &env,
            &[
                (&["build", "-t", "one", text(&one)], &[]),
                (&["build", "-t", "two", text(&two)], &[]),
                (&["prune", "--all"], &[]),
                (&["prune"], &[]),
                (&["images"], &[]),
            ],
        );
        for (name, source) in [("one", &one), ("two", &two)] {
            let got = env.imgctl(["cat", &format!("{name}:/a")]).ok();
            assert_eq!(got.bytes(), std::fs::read(source.join("a")).unwrap());
        }
    }
    assert_sound(&env);
}

#[test]
fn builds_of_the_same_context() {
    let env = TestEnv::new();
    for round in 0..rounds() {
        let same = context(&env, "same", round, 1);
        let build = |name| ["build", "--timestamp=0", "-t", name, text(&same)];
        all(&env, &[(&build("first"), &[]), (&build("second"), &[]), (&build("third"), &[])]);
        let ids =
            env.imgctl(["images", "-q", "--no-trunc", "--filter=dangling=false"]).ok().stdout();
        let mut ids: Vec<&str> = ids.lines().collect();
        ids.dedup();
        assert_eq!(ids.len(), 1, "{ids:?}");
    }
    assert_sound(&env);
}

#[test]
fn builds_and_removals() {
    let env = TestEnv::new();
    for round in 0..rounds() {
        let one = context(&env, "one", round / 2, 1);
        env.build("old", &one);
        all(
            &env,
            &[
                (&["build", "-t", "new", text(&one)], &[]),
                (&["rmi", "old"], &[]),
                (&["prune", "--all"], &[]),
            ],
        );
        env.imgctl(["cat", "new:/b"]).ok();
    }
    assert_sound(&env);
}

#[test]
fn loads_saves_and_prunes() {
    let env = TestEnv::new();
    let one = context(&env, "one", 0, 1);
    env.build("localhost/one:v1", &one);
    env.imgctl(["save", "localhost/one:v1", "-o", "one.tar"]).ok();
    for round in 0..rounds() {
        if round % 2 == 0 {
            env.imgctl(["rmi", "--all", "--yes"]).ok();
        }
        all(
            &env,
            &[
                (&["load", "-i", "one.tar"], &[]),
                (&["prune", "--all"], &[]),
                (&["load", "-i", "one.tar"], &[]),
                // It may not be there yet.
                (&["save", "localhost/one:v1", "-o", "again.tar"], &[3]),
            ],
        );
        env.imgctl(["cat", "localhost/one:v1:/a"]).ok();
    }
    assert_sound(&env);
}

#[test]
fn mounts_removals_and_prunes() {
    let env = TestEnv::new();
    let one = context(&env, "one", 0, 1);
    for _ in 0..rounds() {
        env.build("one", &one);
        // Removing an image at the moment it is mounted: either may win, neither may do harm.
        all(
            &env,
            &[
                (&["mount", "one"], &[3]),
                (&["mount", "one"], &[3]),
                (&["rmi", "one"], &[6]),
                (&["prune", "--all"], &[]),
                (&["mounts"], &[]),
            ],
        );
        for line in env.imgctl(["mounts", "--format={{.Path}}"]).ok().stdout().lines() {
            let got = std::fs::read(Path::new(line).join("a")).unwrap();
            assert_eq!(got, std::fs::read(one.join("a")).unwrap());
        }
        all(&env, &[(&["umount", "--all"], &[]), (&["umount", "--all"], &[]), (&["prune"], &[])]);
        env.imgctl(["umount", "--all"]).ok();
    }
    assert_sound(&env);
}
