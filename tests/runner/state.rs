//! `imgctl state`: encrypting what the controller stores, to others as well, and reading it with an
//! identity; killed at any moment; Debian's age is the referee.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ran, TestEnv, tool};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const DENIED: i32 = 5;
const SECRET: &str = "-----BEGIN PRIVATE KEY-----";

/// A cluster that is stored, with keys and a kubeconfig.
fn env() -> TestEnv {
    let env = TestEnv::new();
    let stored = include_str!("clusterfile/fixtures/sealos-5");
    env.write(".sealos/prod/Clusterfile", stored);
    for name in ["pki/ca.key", "pki/etcd/ca.key", "etc/admin.conf"] {
        env.write(Path::new(".sealos/prod").join(name), format!("{SECRET}\n{name}\n"));
    }
    env.write(".sealos/prod/journal/note", "kept");
    env
}

/// A new identity of Debian's age, and its recipient.
fn identity(env: &TestEnv, name: &str) -> (String, String) {
    let path = env.path(name);
    Ran::new(tool("age-keygen", ["-o".as_ref(), path.as_path()])).ok();
    let recipient = Ran::new(tool("age-keygen", ["-y".as_ref(), path.as_path()])).ok().stdout();
    (path.to_str().unwrap().to_owned(), recipient.trim().to_owned())
}

/// The files of the state that have a secret in plain text.
fn in_plain_text(env: &TestEnv) -> String {
    let state = env.path(".sealos");
    Ran::new(tool("grep", ["-rlF", "--", SECRET, state.to_str().unwrap()])).stdout()
}

#[test]
fn a_state_is_encrypted_read_with_an_identity_and_encrypted_to_others() {
    let env = env();
    let (one, first) = identity(&env, "one");
    let (two, second) = identity(&env, "two");
    let shown = env.imgctl(["state", "show", "-c", "prod"]).ok();
    assert!(shown.stdout().contains("not encrypted (4 private files)"), "{}", shown.report());
    let encrypted = env.imgctl(["state", "encrypt", "-c", "prod", "--to", &first]).ok();
    assert!(encrypted.stdout().contains("4 files"), "{}", encrypted.report());
    assert!(encrypted.stderr().contains("commands on the cluster need"), "{}", encrypted.report());
    assert_eq!(in_plain_text(&env), "");
    assert_eq!(std::fs::read(env.path(".sealos/prod/journal/note")).unwrap(), b"kept");
    let said = "the state of cluster prod is encrypted to";

    // Whoever has no identity is told which.
    for verb in [
        &["env", "-c", "prod"][..],
        &["status", "-c", "prod"],
        &["state", "cat", "-c", "prod", "etc/admin.conf"],
        &["state", "decrypt", "-c", "prod"],
        &["state", "encrypt", "-c", "prod", "--to", &second],
        &["exec", "-c", "prod", "true"],
    ] {
        let refused = env.imgctl(verb).fails(DENIED);
        assert!(refused.stderr().contains(&format!("{said} {first}")), "{}", refused.report());
        assert!(refused.stderr().contains("--state-identity FILE"), "{}", refused.report());
    }
    let status = env.imgctl(["status", "-c", "prod"]).fails(DENIED);
    assert!(status.stderr().contains("need no identity"), "{}", status.report());
    let refused = env.imgctl(["--state-identity", &two, "env", "-c", "prod"]).fails(DENIED);
    assert!(refused.stderr().contains("the identity of none of them"), "{}", refused.report());
    let missing =
        env.imgctl(["--state-identity", "/nowhere", "env", "-c", "prod"]).fails(NOT_FOUND);
    assert!(missing.stderr().contains("/nowhere"), "{}", missing.report());
    let json = env.imgctl(["--json", "env", "-c", "prod"]).fails(DENIED);
    assert!(json.stderr().contains("\"kind\":\"denied\""), "{}", json.report());

    // What asks for no secret works, also when the variable names what is not there.
    let mut journal = env.command(["journal", "-c", "prod"]);
    journal.env("IMGCTL_STATE_IDENTITY", "/nowhere");
    Ran::new(journal).ok();
    let shown = env.imgctl(["state", "show", "-c", "prod", "--json"]).ok().json();
    assert_eq!(shown["recipients"], serde_json::json!([first]));
    assert_eq!((&shown["readable"], &shown["encrypted"]), (&false.into(), &true.into()));
    assert_eq!(shown["files"], serde_json::json!({"encrypted": 4, "plain": 0}));

    // A flag, the variable, or a pipe.
    let own = env.imgctl(["env", "-c", "prod", "--state-identity", &one]).ok();
    assert!(own.stdout().contains("10.1.0.1"), "{}", own.report());
    let mut by_variable = env.command(["env", "-c", "prod"]);
    by_variable.env("IMGCTL_STATE_IDENTITY", &one);
    Ran::new(by_variable).ok();
    let mut piped = env.command(["state", "cat", "-c", "prod", "etc/admin.conf"]);
    piped.args(["--state-identity", "/dev/stdin"]).stdin(std::fs::File::open(&one).unwrap());
    assert_eq!(Ran::new(piped).ok().bytes(), format!("{SECRET}\netc/admin.conf\n").as_bytes());
    for wrong in ["/etc/passwd", "../x", "etc"] {
        env.imgctl(["state", "cat", "-c", "prod", wrong, "--state-identity", &one]).fails(USAGE);
    }
    env.imgctl(["state", "cat", "-c", "prod", "etc/x", "--state-identity", &one]).fails(NOT_FOUND);
    env.imgctl(["state", "show", "-c", "none"]).fails(NOT_FOUND);
    env.imgctl(["state", "encrypt", "-c", "none", "--to", &first]).fails(NOT_FOUND);
    assert!(!env.path(".sealos/none").exists());

    // Others, and one more who can recover it.
    let file = env.write("recipients", format!("# the team\n{second}\n\n{first}\n"));
    let to = ["state", "encrypt", "-c", "prod", "--to", file.to_str().unwrap()];
    env.imgctl([&to[..], &["--state-identity", &one]].concat()).ok();
    for key in [&one, &two] {
        assert_eq!(by_age(&env, key, "pki/ca.key").ok().stdout(), format!("{SECRET}\npki/ca.key"));
        env.imgctl(["env", "-c", "prod", "--state-identity", key]).ok();
    }
    let only = ["state", "encrypt", "-c", "prod", "--to", &second, "--state-identity", &two];
    let quiet = env.imgctl(only).ok();
    assert!(!quiet.stderr().contains("need that identity"), "{}", quiet.report());
    env.imgctl(["env", "-c", "prod", "--state-identity", &one]).fails(DENIED);
    assert!(!by_age(&env, &one, "pki/ca.key").success());
    by_age(&env, &two, "pki/ca.key").ok();

    // Somebody put a file there: it is read as it is, and the next change encrypts it.
    env.write(".sealos/prod/pki/front-proxy-ca.key", SECRET);
    let shown = env.imgctl(["state", "show", "-c", "prod", "--state-identity", &two]).ok();
    assert!(shown.stdout().contains("1 in plain text"), "{}", shown.report());
    env.imgctl(only).ok();
    assert_eq!(in_plain_text(&env), "");
    env.imgctl(["state", "decrypt", "-c", "prod", "--state-identity", &two]).ok();
    let plain = std::fs::read_to_string(env.path(".sealos/prod/Clusterfile")).unwrap();
    assert_eq!(plain, include_str!("clusterfile/fixtures/sealos-5"));
    env.imgctl(["env", "-c", "prod"]).ok();
}

/// Debian's age decrypts a file of the state.
fn by_age(env: &TestEnv, key: &str, name: &str) -> Ran {
    let file = env.path(".sealos/prod").join(name);
    Ran::new(tool("age", ["-d", "-i", key, file.to_str().unwrap()]))
}

#[test]
fn a_key_is_never_shown_and_bad_recipients_change_nothing() {
    let env = env();
    let (one, first) = identity(&env, "one");
    let key = std::fs::read_to_string(&one).unwrap();
    let key = key.lines().last().unwrap();
    for wrong in [key, "/nowhere", &first[..30], &one, "age1"] {
        let refused = env.imgctl(["state", "encrypt", "-c", "prod", "--to", wrong]);
        assert!(!refused.success(), "{}", refused.report());
        assert!(!refused.stderr().contains("AGE-SECRET-KEY"), "{}", refused.report());
        assert!(!env.path(".sealos/prod/recipients").exists());
    }
    assert!(in_plain_text(&env).contains("ca.key"));
    let in_place_of_a_file = [
        &["backup", "--to", "/nowhere", "--passphrase-file", key][..],
        &["restore", "/nowhere", "--masters", "192.0.2.1", "--identity", key],
        &["run", "none:v1", "--encrypt-state", &first, "--state-identity", key],
    ];
    for command in in_place_of_a_file {
        let refused = env.imgctl(command).fails(USAGE);
        assert!(refused.stderr().contains("an identity itself"), "{}", refused.report());
        assert!(!refused.stderr().contains("AGE-SECRET-KEY"), "{}", refused.report());
    }
    // A new cluster needs the identity from the first command on, and a kubeconfig has no state.
    let new = ["run", "none:v1", "--masters", "192.0.2.1", "--encrypt-state", &first];
    let refused = env.imgctl(new).fails(DENIED);
    assert!(refused.stderr().contains("--state-identity"), "{}", refused.report());
    assert!(!env.path(".sealos/default/recipients").exists());
    let by_kubeconfig = ["run", "none:v1", "--kubeconfig", "/nowhere", "--encrypt-state", &first];
    let refused = env.imgctl(by_kubeconfig).fails(USAGE);
    assert!(refused.stderr().contains("--encrypt-state"), "{}", refused.report());
    // One that is encrypted to others stays so.
    let (two, second) = identity(&env, "two");
    env.imgctl(["state", "encrypt", "-c", "prod", "--to", &first]).ok();
    let other = ["run", "x:v1", "-c", "prod", "--encrypt-state", &second, "--state-identity", &one];
    let refused = env.imgctl(other).fails(USAGE);
    assert!(refused.stderr().contains("imgctl state encrypt"), "{}", refused.report());
    assert!(!refused.report().contains(&two), "{}", refused.report());
}

/// Files of a state that takes a while.
const MANY: usize = 60;

#[test]
fn killed_at_any_moment_a_state_is_readable_and_the_next_command_completes_the_change() {
    let env = env();
    for number in 0..MANY {
        env.write(format!(".sealos/prod/etc/file-{number}"), format!("{SECRET} {number}"));
    }
    let (one, first) = identity(&env, "one");
    let (two, second) = identity(&env, "two");
    let keys = [(&one, &first), (&two, &second)];
    let began = Instant::now();
    env.imgctl(["state", "encrypt", "-c", "prod", "--to", &first]).ok();
    let whole = began.elapsed();
    let mut owner = 0;
    let mut kills = 0;
    for step in 1..=12 {
        let next = 1 - owner;
        let mut command = env.command(["state", "encrypt", "-c", "prod", "--to", keys[next].1]);
        command.args(["--state-identity", keys[owner].0]);
        kills += usize::from(killed(command, whole * step / 10));
        assert_eq!(in_plain_text(&env), "");
        // One of the two opens all of it, before anything repairs it.
        owner = (0..2)
            .find(|&at| cat(&env, keys[at].0, 0).is_some())
            .expect("one of the identities opens it");
        for number in 0..MANY {
            assert_eq!(cat_unless_fast(&env, keys[owner].0, number, step), Some(()), "{number}");
        }
        // The next command on the cluster completes the change.
        let key = keys[owner].0.as_str();
        let same = ["state", "encrypt", "-c", "prod", "--to", keys[owner].1];
        env.imgctl([&same[..], &["--state-identity", key]].concat()).ok();
        let shown = env.imgctl(["state", "show", "-c", "prod", "--json"]).ok().json();
        assert_eq!(shown["unfinished"], false);
        assert_eq!(shown["recipients"], serde_json::json!([keys[owner].1]));
        for left in [".replaced", ".replacing"] {
            assert!(!env.path(".sealos/prod").join(left).exists());
        }
    }
    assert!(kills > 3, "{kills} kills in {whole:?}");
}

/// Starts a command and kills it; whether it was still running.
fn killed(mut command: Command, after: Duration) -> bool {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(after);
    let running = child.try_wait().unwrap().is_none();
    let _ = child.kill();
    child.wait().unwrap();
    running
}

/// Reads one of the many files.
fn cat(env: &TestEnv, key: &str, number: usize) -> Option<()> {
    let name = format!("etc/file-{number}");
    let ran = env.imgctl(["state", "cat", "-c", "prod", &name, "--state-identity", key]);
    (ran.success() && ran.stdout() == format!("{SECRET} {number}")).then_some(())
}

/// The same for every tenth file, another tenth each time.
fn cat_unless_fast(env: &TestEnv, key: &str, number: usize, step: u32) -> Option<()> {
    if number % 10 != step as usize % 10 {
        return Some(());
    }
    cat(env, key, number)
}
