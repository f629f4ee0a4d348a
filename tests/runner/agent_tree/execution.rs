//! Commands on a host: run once, found again, ended in time, told apart when they died.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::agent_tree::support::{act, finish, start};
use crate::common::TestEnv;

fn request(env: &TestEnv, key: &str, line: &str) -> Value {
    json!({
        "directory": env.path("runs"), "key": key, "line": line, "workdir": null,
        "environment": {}, "input": null, "timeout_seconds": null, "again": false,
    })
}

fn with(mut request: Value, member: &str, value: Value) -> Value {
    request[member] = value;
    request
}

/// Waits until `done` says so; panics after two minutes.
#[track_caller]
fn wait(done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(120), "waited too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn place(env: &TestEnv, key: &str) -> PathBuf {
    env.path("runs").join(key)
}

fn lines(env: &TestEnv, file: &str) -> usize {
    fs::read_to_string(env.path(file)).map_or(0, |text| text.lines().count())
}

/// Kills the supervisor of a key.
fn kill_supervisor(env: &TestEnv, key: &str) {
    let state = place(env, key).join("state.json");
    let state: Value = serde_json::from_slice(&fs::read(state).unwrap()).unwrap();
    let pid = i32::try_from(state["supervisor"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_key_runs_once_and_is_recalled() {
    let env = TestEnv::new();
    let line = "echo out; echo err >&2; printf last; echo x >> count; exit 3";
    let request = with(request(&env, "run/step", line), "workdir", json!(env.path("")));
    let first = act(&env, "run", &request);
    assert_eq!(first.output(), ["out", "err", "last"]);
    assert_eq!(first.lines[1]["error_stream"], true);
    assert_eq!(first.last()["code"], 3);
    assert_eq!(first.last()["recalled"], false);
    let second = act(&env, "run", &request);
    assert_eq!(second.output(), first.output());
    assert_eq!((&second.last()["code"], &second.last()["recalled"]), (&json!(3), &json!(true)));
    assert_eq!(lines(&env, "count"), 1);
    let again = act(&env, "run", &with(request, "again", json!(true)));
    assert_eq!(again.last()["recalled"], false);
    assert_eq!(lines(&env, "count"), 2);
    let log = fs::read_to_string(again.last()["log"].as_str().unwrap()).unwrap();
    assert!(log.contains(" o out\n") && log.contains(" e err\n"), "{log}");
}

#[test]
fn a_failing_line_ends_the_command_and_pipes_are_plain() {
    let env = TestEnv::new();
    let ended = act(&env, "run", &request(&env, "a", "false; echo never"));
    assert_eq!((ended.output().len(), &ended.last()["code"]), (0, &json!(1)));
    let piped = act(&env, "run", &request(&env, "b", "false | true; echo on"));
    assert_eq!(piped.output(), ["on"]);
    let input = with(request(&env, "c", "cat; echo end"), "input", json!("a\nb"));
    assert_eq!(act(&env, "run", &input).output(), ["a", "bend"]);
    let killed = act(&env, "run", &request(&env, "d", "kill -9 $$"));
    assert_eq!(killed.last()["code"], Value::Null);
    assert_eq!(killed.last()["reason"], "killed by signal 9");
}

#[test]
fn it_outlives_whoever_asked_and_is_followed() {
    let env = TestEnv::new();
    let line = format!(
        "echo begun; echo x >> {0}/count; while [ ! -e {0}/go ]; do sleep 0.05; done; echo done",
        env.path("").display()
    );
    let request = request(&env, "k", &line);
    let mut asker = start(&env, "run", &request);
    wait(|| lines(&env, "count") == 1);
    asker.kill().unwrap();
    asker.wait().unwrap();
    let second = start(&env, "run", &request);
    fs::write(env.path("go"), "").unwrap();
    let answer = finish(second);
    assert_eq!(answer.output(), ["begun", "done"]);
    assert_eq!(answer.last()["recalled"], true);
    assert_eq!(lines(&env, "count"), 1);
}

#[test]
fn an_end_is_not_taken_for_that_of_the_next() {
    let env = TestEnv::new();
    let first = act(&env, "run", &request(&env, "k", "echo first"));
    assert_eq!(first.output(), ["first"]);
    // The first one's supervisor has written how it ended, and is not quite gone.
    let alive = fs::File::open(place(&env, "k").join("alive")).unwrap();
    alive.lock().unwrap();
    let next = with(request(&env, "k", "echo second"), "again", json!(true));
    let asker = start(&env, "run", &next);
    std::thread::sleep(Duration::from_millis(500));
    alive.unlock().unwrap();
    let answer = finish(asker);
    assert_eq!(answer.output(), ["second"]);
    assert_eq!(answer.last()["recalled"], false);
}

#[test]
fn many_askers_start_one_command() {
    let env = TestEnv::new();
    let line = format!("echo x >> {}; sleep 0.3; echo end", env.path("count").display());
    let request = request(&env, "k", &line);
    let askers: Vec<_> = (0..8).map(|_| start(&env, "run", &request)).collect();
    let answers: Vec<_> = askers.into_iter().map(finish).collect();
    for answer in &answers {
        assert_eq!(answer.output(), ["end"]);
    }
    let ours = answers.iter().filter(|answer| answer.last()["recalled"] == false);
    assert_eq!(ours.count(), 1);
    assert_eq!(lines(&env, "count"), 1);
}

#[test]
fn a_killed_supervisor_and_a_reboot_are_told_and_nothing_runs_on() {
    let env = TestEnv::new();
    let line = format!("echo $$ > {}; exec sleep 1000", env.path("pid").display());
    for (key, reason) in [("killed", "supervisor was killed"), ("rebooted", "was rebooted")] {
        let request = request(&env, key, &line);
        let asker = start(&env, "run", &request);
        wait(|| lines(&env, "pid") == 1);
        let pid = fs::read_to_string(env.path("pid")).unwrap().trim().to_owned();
        kill_supervisor(&env, key);
        if key == "rebooted" {
            let mut asker = asker;
            asker.kill().unwrap();
            asker.wait().unwrap();
            // Another asker could have found it dead in the meantime.
            let _ = fs::remove_file(place(&env, key).join("outcome.json"));
            let state = place(&env, key).join("state.json");
            let mut value: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
            value["boot_id"] = json!("another");
            fs::write(&state, value.to_string()).unwrap();
            let _ = Command::new("kill").args(["-9", &pid]).output();
        } else {
            let answer = finish(asker);
            assert!(answer.last()["reason"].as_str().unwrap().contains(reason));
            wait(|| !PathBuf::from(format!("/proc/{pid}")).exists());
        }
        let answer = act(&env, "run", &request);
        assert_eq!(answer.last()["code"], Value::Null);
        assert!(answer.last()["reason"].as_str().unwrap().contains(reason), "{:?}", answer.lines);
        fs::remove_file(env.path("pid")).unwrap();
        let repaired = with(with(request, "again", json!(true)), "line", json!("echo fine"));
        assert_eq!(act(&env, "run", &repaired).output(), ["fine"]);
    }
}

#[test]
fn a_signal_before_a_reboot_is_the_reboot() {
    let env = TestEnv::new();
    for (key, line, told) in [
        ("itself", "kill -KILL $$", json!("killed by signal 9")),
        ("its-last", "bash -c 'kill -TERM $$'; true", Value::Null),
        ("failed", "exit 3", Value::Null),
    ] {
        let request = request(&env, key, line);
        let first = act(&env, "run", &request);
        assert_eq!(first.last()["reason"], told, "{key}");
        assert_eq!(act(&env, "run", &request).last()["code"], first.last()["code"], "{key}");
        let state = place(&env, key).join("state.json");
        let mut value: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
        value["boot_id"] = json!("another");
        fs::write(&state, value.to_string()).unwrap();
        let later = act(&env, "run", &request);
        if key == "failed" {
            assert_eq!(later.last()["code"], 3);
        } else {
            let reason = later.last()["reason"].as_str().unwrap();
            assert!(reason.contains("was rebooted"), "{key}: {reason}");
        }
    }
}

#[test]
fn time_is_up_and_cancelled() {
    let env = TestEnv::new();
    let line = "(trap '' TERM; sleep 300) & sleep 300";
    let timed = with(request(&env, "t", line), "timeout_seconds", json!(1));
    let begun = Instant::now();
    let answer = act(&env, "run", &timed);
    assert_eq!(answer.last()["reason"], "timed out after 1 s");
    assert!(begun.elapsed() < Duration::from_secs(120));
    let cancelled = request(&env, "c", "echo begun; sleep 300");
    let asker = start(&env, "run", &cancelled);
    let log = place(&env, "c").join("log");
    wait(|| fs::read_to_string(&log).is_ok_and(|text| text.contains("begun")));
    assert!(act(&env, "cancel", &cancelled).success);
    let answer = finish(asker);
    assert_eq!(answer.last()["reason"], "cancelled");
    assert_eq!(answer.last()["code"], Value::Null);
    // What does not run can be cancelled, too.
    assert!(act(&env, "cancel", &cancelled).success);
    assert!(act(&env, "cancel", &request(&env, "never", "")).success);
}

#[test]
fn a_daemon_left_behind_does_not_hold_the_end_up() {
    let env = TestEnv::new();
    let begun = Instant::now();
    let answer = act(&env, "run", &request(&env, "d", "sleep 120 & echo started"));
    assert_eq!(answer.output(), ["started"]);
    assert_eq!(answer.last()["code"], 0);
    assert!(begun.elapsed() < Duration::from_secs(100));
}

#[test]
fn much_output_and_long_lines_stay_small_on_disk() {
    let env = TestEnv::new();
    let size = if crate::common::long() { "1G" } else { "40M" };
    let line = format!(
        "head -c 300000 /dev/zero | tr '\\0' y; echo; yes 0123456789012345678901234567890123456789 | head -c {size}; printf '\\xff\\n'; echo last"
    );
    let answer = act(&env, "run", &request(&env, "big", &line));
    let output = answer.output();
    assert_eq!(output.last(), Some(&"last"));
    assert!(output[output.len() - 2].ends_with('\u{fffd}'));
    assert!(output[0].len() < 66_000 && output[0].ends_with("(cut)"));
    let bytes: u64 = fs::read_dir(place(&env, "big"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(bytes < 17 << 20, "{bytes}");
}

#[test]
fn what_is_missing_is_said_and_nothing_counts_as_run() {
    let env = TestEnv::new();
    let no_bash = with(request(&env, "k", "true"), "environment", json!({"PATH": "/nowhere"}));
    let answer = act(&env, "run", &no_bash);
    assert!(!answer.success && answer.error.contains("install bash"), "{}", answer.error);
    let no_directory = with(request(&env, "k", "true"), "workdir", json!("/not/there"));
    let answer = act(&env, "run", &no_directory);
    assert!(!answer.success && answer.error.contains("/not/there"), "{}", answer.error);
    assert_eq!(act(&env, "run", &request(&env, "k", "echo ok")).last()["recalled"], false);
}

#[test]
fn secrets_are_on_no_command_line_and_in_no_file() {
    let env = TestEnv::new();
    let secret = "s3cr3t-value-of-a-variable";
    let line = "cat /proc/*/cmdline 2>/dev/null | grep -ac 's3cr3[t]-value' || true";
    let request = with(request(&env, "k", line), "environment", json!({"TOKEN": secret}));
    assert_eq!(act(&env, "run", &request).output(), ["0"]);
    for entry in fs::read_dir(place(&env, "k")).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(secret));
    }
}

#[test]
fn old_runs_are_swept() {
    let env = TestEnv::new();
    for number in 0..230 {
        fs::create_dir_all(place(&env, &format!("old-{number}"))).unwrap();
    }
    assert!(act(&env, "run", &request(&env, "new", "true")).success);
    let left = fs::read_dir(env.path("runs")).unwrap().count();
    assert!((200..=202).contains(&left), "{left}");
    assert!(place(&env, "new").exists());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn variables_arrive_unchanged(
        values in proptest::collection::btree_map(
            "[A-Za-z_.-][A-Za-z0-9_. $\"'\\\\,-]{0,8}",
            "([\"$\\\\`,= \n\t'!*?{}()ä😀]|[a-z]){0,20}",
            1..8,
        ),
    ) {
        let env = TestEnv::new();
        // bash does not take over names of functions, its own variables and `_`.
        let values: std::collections::BTreeMap<String, String> = values
            .into_iter()
            .map(|(name, value)| (format!("V{name}"), value))
            .collect();
        let out = env.path("out");
        let line = format!("exec env -0 > {}", out.display());
        let request = with(request(&env, "k", &line), "environment", json!(values));
        prop_assert!(act(&env, "run", &request).success);
        let printed = fs::read_to_string(out).unwrap();
        let printed: std::collections::BTreeMap<&str, &str> = printed
            .split_terminator('\0')
            .filter_map(|variable| variable.split_once('='))
            .collect();
        for (name, value) in &values {
            prop_assert_eq!(printed.get(name.as_str()), Some(&value.as_str()), "{}", name);
        }
    }
}
