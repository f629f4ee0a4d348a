//! `kill -9` of everything that ships, at random instants: what was killed works when it is run
//! again, nothing is damaged, nothing is left over.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, long};
use crate::faults::support::{assert_no_mounts, assert_prunes_clean, assert_scrubs_clean, random};
use crate::registry_faults::bench::{at, make};
use crate::registry_faults::server::{Server, assert_tree_scrubs_clean};

/// Kills per command in the short selection and in the long one.
const ROUNDS: (u32, u32) = (3, 60);

/// One command that gets killed.
struct Victim<'a> {
    /// What makes the state that the command starts from; runs before each round.
    prepare: &'a dyn Fn(),
    command: &'a dyn Fn() -> Command,
    /// What has to hold after a kill.
    sound: &'a dyn Fn(),
    /// What has to hold once it ran to its end after a kill.
    finished: &'a dyn Fn(),
}

impl Victim<'_> {
    fn kill_again_and_again(&self, what: &str) {
        let rounds = if long() { ROUNDS.1 } else { ROUNDS.0 };
        let time = self.undisturbed().min(self.undisturbed());
        let mut hits = 0;
        for _ in 0..rounds {
            (self.prepare)();
            let delay = some_of(time);
            let was_hit = kill_after(delay, (self.command)());
            hits += u32::from(was_hit);
            println!("{what}: killed after {delay:?}: {was_hit}");
            (self.sound)();
            Ran::new((self.command)()).ok();
            (self.finished)();
        }
        println!("{what}: {hits} of {rounds} were hit; it takes {time:?}");
        assert!(!long() || hits * 5 >= rounds, "{hits} of {rounds}");
    }

    fn undisturbed(&self) -> Duration {
        (self.prepare)();
        let start = Instant::now();
        Ran::new((self.command)()).ok();
        let time = start.elapsed();
        (self.finished)();
        time
    }
}

/// A part of `time`, or a little more than all.
fn some_of(time: Duration) -> Duration {
    time.mul_f64(1.05 * (random() >> 11) as f64 / (1_u64 << 53) as f64)
}

/// Whether it was still running.
fn kill_after(delay: Duration, mut command: Command) -> bool {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(delay);
    child.kill().unwrap();
    child.wait().unwrap().code().is_none()
}

/// A registry with `team/app:v1`, made in the store `maker`.
fn filled(env: &TestEnv) -> Registry {
    let registry = Registry::start();
    let root = make(env, "maker", "team/app:v1", 1);
    registry.fill(&root, "team/app:v1");
    registry
}

fn pull(flags: &'static [&'static str]) {
    let env = TestEnv::new();
    let registry = filled(&env);
    let name = format!("{}/team/app:v1", registry.host);
    Victim {
        prepare: &|| {
            env.imgctl(["rmi", "--all", "--yes"]).ok();
            env.imgctl(["prune", "--all"]).ok();
        },
        command: &|| {
            let mut command = env.command(["pull"]);
            command.args(flags).arg(&name);
            command
        },
        sound: &|| {
            env.imgctl(["images"]).ok();
            assert_scrubs_clean(&env);
        },
        finished: &|| {
            assert_scrubs_clean(&env);
            env.imgctl(["cat", &format!("{name}:/small")]).ok();
            assert_prunes_clean(&env);
            assert_no_mounts(&env);
        },
    }
    .kill_again_and_again("pull");
}

#[test]
fn pull_of_an_image() {
    pull(&[]);
}

#[test]
fn pull_and_unpack() {
    pull(&["--unpack"]);
}

/// Removes what a registry has; it looks at its tree for each request.
fn clear(tree: &Path) {
    let _ = std::fs::remove_dir_all(tree.join("docker"));
}

#[test]
fn push() {
    let env = TestEnv::new();
    let registry = Registry::start();
    let root = make(&env, "maker", "team/app:v1", 1);
    let name = format!("{}/team/app:v1", registry.host);
    Victim {
        prepare: &|| clear(&registry.data()),
        command: &|| at(&root, ["push", "localhost/team/app:v1", &name]),
        sound: &|| {
            Ran::new(at(&root, ["scrub", "--deep"])).ok();
        },
        finished: &|| registry.assert_serves("team/app:v1"),
    }
    .kill_again_and_again("push");
}

#[test]
fn copy() {
    let env = TestEnv::new();
    let (from, to) = (filled(&env), Registry::start());
    let source = format!("docker://{}/team/app:v1", from.host);
    let target = format!("docker://{}/team/copy:v1", to.host);
    Victim {
        prepare: &|| clear(&to.data()),
        command: &|| env.command(["copy", &source, &target]),
        sound: &|| assert_scrubs_clean(&env),
        finished: &|| to.assert_serves("team/copy:v1"),
    }
    .kill_again_and_again("copy");
}

#[test]
fn sync() {
    let env = TestEnv::new();
    let from = filled(&env);
    let tree = env.path("tree");
    let text = tree.to_str().unwrap();
    Victim {
        prepare: &|| {
            let _ = std::fs::remove_dir_all(&tree);
        },
        command: &|| env.command(["registry", "sync", &from.host, text]),
        sound: &|| {
            // Killed before the first file, it leaves the directories at most.
            if tree.join("docker/registry/v2").exists() {
                assert_tree_scrubs_clean(&tree);
            }
        },
        finished: &|| {
            assert_tree_scrubs_clean(&tree);
            Registry::over(&tree).assert_serves("team/app:v1");
        },
    }
    .kill_again_and_again("sync");
}

#[test]
fn build_with_embedded_images() {
    let env = TestEnv::new();
    let registry = filled(&env);
    let list = format!("{}/team/app:v1\n", registry.host);
    let files = [("images/shim/list", &*list)];
    let context = env.context("context", "FROM scratch\nCOPY images images\n", &files);
    Victim {
        prepare: &|| {
            env.imgctl(["rmi", "--all", "--yes"]).ok();
            env.imgctl(["prune", "--all"]).ok();
            let _ = std::fs::remove_file(context.join("imgctl.lock"));
        },
        command: &|| {
            let mut command = env.command(["build", "-t", "cluster:v1"]);
            command.arg(&context);
            command
        },
        sound: &|| assert_scrubs_clean(&env),
        finished: &|| {
            assert_scrubs_clean(&env);
            assert_prunes_clean(&env);
            let tree = env.path("exported");
            let _ = std::fs::remove_dir_all(&tree);
            let tree = env.export("cluster:v1", "exported").join("registry");
            Registry::over(&tree).assert_serves("team/app:v1");
        },
    }
    .kill_again_and_again("build");
}

/// Pushes `root`'s image to `host` in the background and waits for the end.
fn push_to(root: &Path, host: &str) -> std::thread::JoinHandle<Ran> {
    let name = format!("{host}/team/app:v1");
    let command = at(root, ["push", "--retry=1", "localhost/team/app:v1", &name]);
    std::thread::spawn(move || Ran::new(command))
}

#[test]
fn our_own_server_under_a_push() {
    let env = TestEnv::new();
    let root: PathBuf = make(&env, "maker", "team/app:v1", 1);
    let tree = env.path("tree");
    let rounds = if long() { ROUNDS.1 } else { ROUNDS.0 };
    let (mut time, mut failed) = (Duration::MAX, 0);
    for round in 0..rounds + 2 {
        let _ = std::fs::remove_dir_all(&tree);
        let server = Server::start(&tree);
        let start = Instant::now();
        let pushing = push_to(&root, &server.host);
        if round < 2 {
            pushing.join().unwrap().ok();
            time = time.min(start.elapsed());
            continue;
        }
        std::thread::sleep(some_of(time));
        server.stop();
        let ran = pushing.join().unwrap();
        if !ran.success() {
            failed += 1;
            ran.fails(crate::registry_faults::bench::NETWORK);
        }
        if tree.exists() {
            assert_tree_scrubs_clean(&tree);
        }
        let server = Server::start(&tree);
        push_to(&root, &server.host).join().unwrap().ok();
        server.stop();
        assert_tree_scrubs_clean(&tree);
        Registry::over(&tree).assert_serves("team/app:v1");
    }
    println!("serve: {failed} of {rounds} pushes were hit; one takes {time:?}");
    assert!(!long() || failed * 5 >= rounds, "{failed} of {rounds}");
}
