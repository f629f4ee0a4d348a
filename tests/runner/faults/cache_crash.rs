//! `kill -9` at random instants of `build --push --cache-to`: the tag and the cache in the registry are
//! the old ones or the new ones, whole, and the next run succeeds.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::build_cache::{on, result, sha};
use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, long, noise, tool};
use crate::faults::support::{assert_prunes_clean, assert_scrubs_clean, random};

/// Kills in the short selection and in the long one.
const ROUNDS: (u32, u32) = (12, 200);
/// Steps of the Kubefile, all of which change from round to round.
const STEPS: u64 = 3;

struct Scene {
    env: TestEnv,
    registry: Registry,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { env: TestEnv::new(), registry: Registry::start() };
        let kubefile = "FROM scratch\nCOPY data /data\nCOPY small /small\nCOPY data/1 /once/more\n";
        scene.env.context("context", kubefile, &[]);
        scene
    }

    fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.registry.host)
    }

    /// New content, so that nothing comes from the cache and everything is sent.
    fn change(&self, round: u32) {
        for number in 0..4 {
            let seed = u64::from(round) << 8 | number;
            self.env.write(format!("context/data/{number}"), noise(seed, 700_000));
        }
        for number in 0..30 {
            self.env.write(format!("context/small/{number}"), format!("{round} {number}\n"));
        }
    }

    fn command(&self) -> Command {
        let mut command = on(&self.env, "root");
        let (app, cache) = (self.name("team/app:v1"), self.name("team/cache:main"));
        command.args(["build", "--push", "-t", &app, "--cache-from", &cache, "--cache-to", &cache]);
        command.arg("context");
        command
    }

    /// Digest of what a tag refers to.
    fn digest(&self, name: &str) -> String {
        let name = format!("docker://{}", self.name(name));
        let inspect =
            || Ran::new(tool("skopeo", ["inspect", "--raw", "--tls-verify=false", &name]));
        // docker-registry answers 500 while it still writes the tag of a client that was killed.
        let tries = std::iter::repeat_with(|| {
            let ran = inspect();
            if !ran.success() {
                std::thread::sleep(Duration::from_millis(300));
            }
            ran
        });
        let raw = tries.take(10).find(Ran::success).unwrap_or_else(inspect).ok();
        format!("sha256:{}", sha(raw.bytes()))
    }

    /// What a fresh machine makes of the cache: the image, and how many steps it has not made.
    fn on_fresh_machine(&self) -> (String, u64) {
        let machine = self.env.path("fresh");
        let _ = std::fs::remove_dir_all(&machine);
        let mut command = on(&self.env, "fresh");
        let cache = self.name("team/cache:main");
        command.args(["build", "-t", "app", "--cache-from", &cache]).arg("context");
        let ran = Ran::new(command).ok();
        assert!(!ran.stderr().contains("used"), "{}", ran.report());
        result(ran)
    }

    /// Kills a run after `delay`; returns whether it was still running.
    fn kill_after(&self, delay: Duration) -> bool {
        let mut child = self.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(delay);
        child.kill().unwrap();
        child.wait().unwrap().code().is_none()
    }
}

#[test]
fn push_and_cache() {
    let scene = Scene::new();
    let rounds = if long() { ROUNDS.1 } else { ROUNDS.0 };
    let mut time = Duration::MAX;
    for round in 0..2 {
        scene.change(round);
        let begun = Instant::now();
        Ran::new(scene.command()).ok();
        time = time.min(begun.elapsed());
    }
    let (mut hits, mut new_tags, mut new_caches) = (0, 0, 0);
    for round in 2..rounds + 2 {
        let old = (scene.digest("team/app:v1"), scene.digest("team/cache:main"));
        scene.change(round);
        let delay = time.mul_f64(1.05 * (random() >> 11) as f64 / (1_u64 << 53) as f64);
        let was_hit = scene.kill_after(delay);
        let now = (scene.digest("team/app:v1"), scene.digest("team/cache:main"));
        scene.registry.assert_serves("team/app:v1");
        // A machine without the killed one's store: half a cache would be seen here.
        let (image, cached) = scene.on_fresh_machine();
        let expected = if now.1 == old.1 { 0 } else { STEPS };
        assert_eq!(cached, expected, "round {round}, killed after {delay:?}");
        let (pushed, _) = result(Ran::new(scene.command()));
        if now.1 != old.1 {
            assert_eq!(image, pushed, "round {round}");
        }
        assert!(now.0 == old.0 || now.0 == pushed, "round {round}: {now:?}, {old:?}, {pushed}");
        assert_eq!(scene.digest("team/app:v1"), pushed);
        assert_eq!(scene.on_fresh_machine(), (pushed, STEPS));
        hits += u32::from(was_hit);
        new_tags += u32::from(now.0 != old.0);
        new_caches += u32::from(now.1 != old.1);
        println!("round {round}: killed after {delay:?}: {was_hit}");
        if round % 20 == 1 {
            assert_scrubs_clean(&scene.env);
        }
    }
    println!(
        "{hits} of {rounds} were hit, {new_tags} after the tag, {new_caches} after the cache; the \
         command takes {time:?}"
    );
    assert!(!long() || hits * 3 >= rounds, "{hits} of {rounds}");
    assert_scrubs_clean(&scene.env);
    assert_prunes_clean(&scene.env);
}
