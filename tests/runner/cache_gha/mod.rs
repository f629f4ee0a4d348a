//! `type=gha`: jobs of several branches share caches in GitHub's cache service; what it refuses, loses or
//! answers late is a warning, and tokens are in no message.

pub(crate) mod service;

use std::process::Command;

use crate::build_cache::{filled, on, result, set_times};
use crate::common::{Ran, TestEnv, needs_root, noise};
use service::{SIGNATURE, Service, token};

const DENIED: i32 = 5;
/// Seconds since 1970, far from now.
const LATER: i64 = 4_000_000_000;
const BOTH: [&str; 2] = ["--cache-from=type=gha,trust=all", "--cache-to=type=gha"];

/// A job of GitHub Actions on a fresh machine.
struct Job<'a> {
    env: &'a TestEnv,
    service: &'a Service,
    token: String,
}

impl Job<'_> {
    fn command(&self, machine: &str, words: &[&str]) -> Command {
        let mut command = on(self.env, machine);
        command.args(["--log-level=debug", "build", "--network=none", "-t", "app"]);
        command.args(words).arg("context");
        command.env("ACTIONS_RESULTS_URL", &self.service.url);
        command.env("ACTIONS_CACHE_SERVICE_V2", "True");
        command.env("ACTIONS_RUNTIME_TOKEN", &self.token);
        command
    }

    /// Builds, and panics if a secret is in what it says.
    fn build(&self, machine: &str, words: &[&str]) -> Ran {
        let ran = Ran::new(self.command(machine, words));
        for secret in [&*self.token, SIGNATURE] {
            let said = ran.stdout() + &ran.stderr();
            assert!(!said.contains(secret), "{said}");
        }
        ran
    }
}

fn job<'a>(env: &'a TestEnv, service: &'a Service, branches: &[&str]) -> Job<'a> {
    Job { env, service, token: token(branches, true, LATER) }
}

/// A command that makes a layer of several blocks, which cannot be made again.
fn with_command() -> TestEnv {
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY --chmod=755 busybox /bin/sh\nCOPY --chmod=755 busybox /bin/cat\n\
        COPY large /large\n\
        RUN cat /proc/sys/kernel/random/uuid /large >/made\n";
    env.context("context", kubefile, &[]);
    env.write("context/large", noise(7, 20 << 20));
    std::fs::copy("/bin/busybox", env.path("context/busybox")).expect("no busybox: scripts/setup");
    env
}

#[test]
fn a_fresh_runner_finds_what_another_made() {
    if !needs_root() {
        return;
    }
    let (env, service) = (with_command(), Service::start());
    let job = job(&env, &service, &["refs/heads/main"]);
    let (first, _) = result(job.build("one", &BOTH));
    assert!(service.requests().iter().filter(|line| line.contains("comp=block&")).count() >= 6);
    assert!(service.keys().iter().any(|key| key.starts_with("imgctl-index-1-imgctl-")));
    let (second, cached) = result(job.build("two", &BOTH));
    assert_eq!((second, cached), (first, 4));
    let requests = service.requests();
    let written: Vec<_> = requests.iter().filter(|line| line.starts_with("PUT")).collect();
    assert!(written.is_empty(), "an unchanged cache sends nothing: {written:?}");
    // Only the index, the records and the layer of the command were read.
    let read = requests.iter().filter(|line| line.starts_with("GET")).count();
    assert!(read <= 7, "{requests:?}");
}

#[test]
fn writers_at_the_same_time_all_survive() {
    const WRITERS: usize = 4;
    let (env, service) = (TestEnv::new(), Service::start());
    let job = job(&env, &service, &["refs/heads/main"]);
    for number in 0..WRITERS {
        let files = [("file", &*format!("{number}\n"))];
        env.context(&format!("c{number}"), "FROM scratch\nCOPY file /file\n", &files);
    }
    let build = |number: usize, machine: &str, flag: &str| {
        let mut command = on(&env, &format!("{machine}{number}"));
        command.args(["build", "-t", "app", flag]).arg(env.path(format!("c{number}")));
        command.env("ACTIONS_RESULTS_URL", &service.url);
        command.env("ACTIONS_RUNTIME_TOKEN", &job.token);
        result(Ran::new(command))
    };
    std::thread::scope(|threads| {
        for number in 0..WRITERS {
            let build = &build;
            threads.spawn(move || build(number, "w", BOTH[1]));
        }
    });
    for number in 0..WRITERS {
        assert_eq!(build(number, "r", BOTH[0]).1, 1, "the records of writer {number} are lost");
    }
}

#[test]
fn a_branch_reads_the_cache_of_its_base_and_writes_its_own() {
    let (env, service) = (filled(), Service::start());
    let main = job(&env, &service, &["refs/heads/main"]);
    let branch = job(&env, &service, &["refs/heads/topic", "refs/heads/main"]);
    let (first, _) = result(main.build("one", &BOTH));
    set_times(&env.path("context"), 1_700_000_000);
    let (second, cached) = result(branch.build("two", &BOTH));
    assert_eq!((second, cached), (first, 3));
    env.write("context/etc/conf", "a=topic\n");
    result(branch.build("three", &BOTH));
    let (_, cached) = result(branch.build("four", &BOTH));
    assert_eq!(cached, 3);
    let (_, cached) = result(main.build("five", &BOTH[..1]));
    assert_eq!(cached, 2, "what a branch wrote is not the base's");
    // A pull request from a fork reads, and writes nothing.
    let token = token(&["refs/pull/1/merge", "refs/heads/main"], false, LATER);
    let fork = Job { token, ..main };
    let before = service.keys();
    let ran = fork.build("six", &BOTH).ok();
    assert!(ran.stderr().contains("may only read"), "{}", ran.report());
    assert_eq!(result(ran).1, 2);
    assert_eq!(service.keys(), before);
    // Scopes are caches of their own.
    let other = ["--cache-from=type=gha,scope=other"];
    assert_eq!(result(fork.build("seven", &other)).1, 0);
}

#[test]
fn a_service_that_fails_costs_time_and_nothing_else() {
    let (env, service) = (filled(), Service::start());
    let job = job(&env, &service, &["refs/heads/main"]);
    let (expected, _) = result(job.build("one", &BOTH));
    // What passes is waited for.
    service.fail("GetCacheEntry", 429, 2);
    service.fail("/blob/", 503, 1);
    let (found, cached) = result(job.build("two", &BOTH));
    assert_eq!((found, cached), (expected.clone(), 3));
    service.behave();
    // A signed URL that has expired is asked for again; see `Ranges`.
    service.fail("/blob/1?", 403, 1);
    assert_eq!(result(job.build("three", &BOTH)).0, expected);
    service.behave();
    let short = ["--cache-from=type=gha,timeout=1s", "--cache-to=type=gha,timeout=1s"];
    service.fail("CacheService", 503, u32::MAX);
    let ran = job.build("four", &short).ok();
    assert!(ran.stderr().contains("GitHub's cache service"), "{}", ran.report());
    assert!(ran.stderr().contains("answered 503"), "{}", ran.report());
    assert_eq!(result(ran), (expected.clone(), 0));
    service.behave();
    // Nobody listens.
    let nobody = ["--cache-from=type=gha,timeout=1s,url_v2=http://127.0.0.1:1/"];
    assert_eq!(result(job.build("five", &nobody)), (expected.clone(), 0));
    // Without TLS, a token goes to this machine alone.
    let plain = ["--cache-from=type=gha,url_v2=http://cache.example.com/"];
    let ran = job.build("six", &plain).ok();
    assert!(ran.stderr().contains("without TLS"), "{}", ran.report());
    assert_eq!(result(ran).0, expected);
}

#[test]
fn a_token_that_has_expired_is_named_and_not_shown() {
    let (env, service) = (filled(), Service::start());
    let job =
        Job { env: &env, service: &service, token: token(&["refs/heads/x"], true, 1_000_000) };
    service.fail("CacheService", 401, u32::MAX);
    let ran = job.build("one", &BOTH).ok();
    let said = ran.stderr();
    assert!(said.contains("it expired at 1970-01-12T13:46:40Z"), "{said}");
    assert_eq!(result(ran).1, 0);
    let strict = ["--cache-to=type=gha,ignore-error=false"];
    let ran = job.build("one", &strict).fails(DENIED);
    assert!(ran.stderr().contains("ACTIONS_RUNTIME_TOKEN"), "{}", ran.report());
    // Given as an argument, it is in no message either.
    let given = format!("--cache-to=type=gha,token={},mode=none", job.token);
    job.build("one", &[&given]).fails(2);
    // Outside of a job there is no such cache.
    let mut outside = on(&env, "two");
    outside.args(["build", "--network=none", "-t", "app"]).args(BOTH).arg("context");
    let ran = Ran::new(outside).ok();
    assert!(ran.stderr().contains("ACTIONS_RUNTIME_TOKEN is not set"), "{}", ran.report());
}

#[test]
fn what_a_killed_job_reserved_blocks_nobody() {
    let (env, service) = (filled(), Service::start());
    let job = job(&env, &service, &["refs/heads/main"]);
    result(job.build("one", &BOTH));
    let keys = service.keys();
    let index = keys.iter().find(|key| key.ends_with("#1")).unwrap();
    service.abandon(&index.replace("#1", "#2"), "refs/heads/main");
    env.write("context/etc/conf", "a=c\n");
    let (changed, _) = result(job.build("two", &BOTH));
    assert!(service.keys().contains(&index.replace("#1", "#3")), "{:?}", service.keys());
    assert_eq!(result(job.build("three", &BOTH)), (changed, 3));
}

#[test]
fn a_layer_that_was_evicted_is_made_and_written_again() {
    if !needs_root() {
        return;
    }
    let (env, service) = (with_command(), Service::start());
    let job = job(&env, &service, &["refs/heads/main"]);
    let (first, _) = result(job.build("one", &BOTH));
    service.evict(1 << 20);
    let ran = job.build("two", &BOTH).ok();
    assert!(ran.stderr().contains("is not used"), "{}", ran.report());
    let (second, cached) = result(ran);
    assert_eq!(cached, 3, "the command runs again");
    assert_ne!(second, first);
    assert_eq!(result(job.build("three", &BOTH)), (second, 4));
}

#[test]
fn the_cache_of_the_own_branch_can_be_shortened() {
    let (env, service) = (filled(), Service::start());
    let job = job(&env, &service, &["refs/heads/main"]);
    result(job.build("one", &BOTH));
    let cache = |words: &[&str]| {
        let mut command = on(&env, "two");
        command.arg("cache").args(words).arg("type=gha");
        command.env("ACTIONS_RESULTS_URL", &service.url);
        command.env("ACTIONS_RUNTIME_TOKEN", &job.token);
        Ran::new(command).ok().json()
    };
    let records = || cache(&["ls"])["caches"][0]["records"].as_array().unwrap().len();
    assert_eq!(records(), 3);
    assert_eq!(cache(&["prune", "--keep=1"])["kept"], 1);
    assert_eq!(records(), 1);
}
