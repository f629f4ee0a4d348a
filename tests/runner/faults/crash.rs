//! `kill -9` at random instants: the next command works, nothing is damaged, `prune` leaves no
//! garbage and no mount is left over.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{TestEnv, long, needs_root};
use crate::faults::support::{
    assert_no_garbage, assert_no_mounts, assert_prunes_clean, assert_scrubs_clean, noise, random,
};

/// Kills per command in the short selection and in the long one.
const ROUNDS: (u32, u32) = (3, 200);

/// One command that gets killed.
struct Victim<'a> {
    env: &'a TestEnv,
    /// What makes the state that the command starts from; runs before each round.
    prepare: &'a dyn Fn(u32),
    /// The command of a round.
    arguments: &'a dyn Fn(u32) -> Vec<OsString>,
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).to_vec()
}

impl Victim<'_> {
    fn kill_again_and_again(&self) {
        let rounds = if long() { ROUNDS.1 } else { ROUNDS.0 };
        // Runs to the end tell how long there is to kill it; other tests run at the same time.
        let time = self.undisturbed().min(self.undisturbed());
        let mut hits = 0;
        for round in 1..=rounds {
            (self.prepare)(round);
            let delay = time.mul_f64(1.05 * (random() >> 11) as f64 / (1_u64 << 53) as f64);
            let was_hit = self.kill_after(delay, round);
            hits += u32::from(was_hit);
            println!("round {round}: killed after {delay:?}: {was_hit}");
            self.check(round);
        }
        println!("{hits} of {rounds} were hit; the command takes {time:?}");
        // Some end before they are killed. In a short selection that may be all.
        assert!(!long() || hits * 3 >= rounds, "{hits} of {rounds}");
    }

    fn undisturbed(&self) -> Duration {
        (self.prepare)(0);
        let start = Instant::now();
        self.env.imgctl((self.arguments)(0)).ok();
        let time = start.elapsed();
        self.check(0);
        time
    }

    /// Whether it was still running.
    fn kill_after(&self, delay: Duration, round: u32) -> bool {
        let mut command = self.env.command((self.arguments)(round));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(delay);
        child.kill().unwrap();
        child.wait().unwrap().code().is_none()
    }

    fn check(&self, round: u32) {
        self.env.imgctl(["images"]).ok();
        self.env.imgctl(["mounts"]).ok();
        assert_scrubs_clean(self.env);
        // The same command again; what it is about may be gone already.
        let again = self.env.imgctl((self.arguments)(round));
        let is_gone = again.report().contains("exit status: 3");
        assert!(again.success() || is_gone, "{}", again.report());
        assert_prunes_clean(self.env);
        self.env.imgctl(["umount", "--all"]).ok();
        assert_prunes_clean(self.env);
        assert_no_mounts(self.env);
        assert_scrubs_clean(self.env);
    }
}

/// A context whose content differs from round to round, so that nothing comes from the cache.
fn change_context(env: &TestEnv, round: u32) {
    for number in 0..6 {
        let seed = u64::from(round) << 8 | number;
        env.write(format!("context/data/{number}"), noise(seed, 700_000));
    }
    for number in 0..60 {
        env.write(format!("context/small/{number}"), format!("{round} {number}\n"));
    }
}

const KUBEFILE: &str = "FROM scratch\nCOPY data /data\nCOPY small /small\nCOPY data/1 /once/more\n";

/// A store with one image, `app:v1`.
fn with_image() -> TestEnv {
    let env = TestEnv::new();
    let context = env.context("context", KUBEFILE, &[]);
    change_context(&env, 0);
    env.build("app:v1", &context);
    env
}

fn forget_unpacked(env: &TestEnv) {
    env.imgctl(["umount", "--all"]).ok();
    env.imgctl(["prune", "--all"]).ok();
}

#[test]
fn build() {
    let env = TestEnv::new();
    env.context("context", KUBEFILE, &[]);
    let context = env.path("context");
    Victim {
        env: &env,
        prepare: &|round| change_context(&env, round),
        arguments: &|_| {
            let mut arguments = words(["build", "-t", "app:v1"]);
            arguments.push(context.clone().into());
            arguments
        },
    }
    .kill_again_and_again();
}

#[test]
fn build_with_run() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY busybox /bin/sh\nARG ROUND\nRUN echo $ROUND >/round\nRUN echo $ROUND >>/round\n";
    env.context(
        "context",
        &kubefile.replace("[\"/bin/sh\", \"mkdir\", \"/made\"]", "exec /bin/sh -c 'mkdir /made'"),
        &[],
    );
    std::fs::copy("/bin/busybox", env.path("context/busybox"))
        .expect("no busybox: run scripts/setup");
    let context = env.path("context");
    Victim {
        env: &env,
        prepare: &|_| {},
        arguments: &|round| {
            let mut arguments = words(["build", "-t", "app:v1", "--network=none"]);
            arguments.push(format!("--build-arg=ROUND={round}").into());
            arguments.push(context.clone().into());
            arguments
        },
    }
    .kill_again_and_again();
}

#[test]
fn load() {
    let env = with_image();
    env.imgctl(["save", "app:v1", "-o", "app.tar"]).ok();
    Victim {
        env: &env,
        prepare: &|_| {
            env.imgctl(["rmi", "--all", "--yes"]).ok();
            env.imgctl(["prune", "--all"]).ok();
        },
        arguments: &|_| words(["load", "-i", "app.tar"]),
    }
    .kill_again_and_again();
}

#[test]
fn save() {
    let env = with_image();
    Victim {
        env: &env,
        prepare: &|_| {
            let _ = std::fs::remove_file(env.path("app.tar"));
        },
        arguments: &|_| words(["save", "app:v1", "-o", "app.tar"]),
    }
    .kill_again_and_again();
    // An archive is there whole or not at all, and always the same.
    env.imgctl(["rmi", "--all", "--yes"]).ok();
    env.imgctl(["load", "-i", "app.tar"]).ok();
}

#[test]
fn mount_and_unpack() {
    if !needs_root() {
        return;
    }
    let env = with_image();
    Victim {
        env: &env,
        prepare: &|_| forget_unpacked(&env),
        arguments: &|_| words(["mount", "--backend=overlay", "app:v1"]),
    }
    .kill_again_and_again();
}

#[test]
fn mount_by_default() {
    let env = with_image();
    Victim {
        env: &env,
        prepare: &|_| forget_unpacked(&env),
        arguments: &|_| words(["mount", "app:v1"]),
    }
    .kill_again_and_again();
}

#[test]
fn umount() {
    let env = with_image();
    Victim {
        env: &env,
        prepare: &|_| {
            let path = env.imgctl(["mount", "app:v1"]).ok().stdout();
            std::fs::write(PathBuf::from(path).join("written"), "into it").unwrap();
            env.imgctl(["mount", "app:v1"]).ok();
        },
        arguments: &|_| words(["umount", "app:v1"]),
    }
    .kill_again_and_again();
}

#[test]
fn rmi() {
    let env = with_image();
    let context = env.path("context");
    Victim {
        env: &env,
        prepare: &|round| {
            change_context(&env, round);
            env.build("app:v1", &context);
        },
        arguments: &|_| words(["rmi", "app:v1"]),
    }
    .kill_again_and_again();
}

#[test]
fn prune() {
    let env = with_image();
    let context = env.path("context");
    Victim {
        env: &env,
        prepare: &|round| {
            change_context(&env, round);
            env.build("app:v1", &context);
            env.imgctl(["mount", "--backend=checkout", "app:v1"]).ok();
            env.imgctl(["ls", "app:v1:/"]).ok();
        },
        arguments: &|_| words(["prune", "--all"]),
    }
    .kill_again_and_again();
    assert_no_garbage(&env);
}
