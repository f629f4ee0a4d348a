//! Logging in and out of a real registry, with files of credentials that podman and skopeo share.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::registry::{PASSWORD, Registry, USER};
use crate::common::terminal;
use crate::common::{IMGCTL, Ran, TestEnv, json, tool};

/// Runs imgctl with `input` on stdin.
fn with_input(mut command: Command, input: &str) -> Ran {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input.as_bytes()).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    command.stdin(file);
    Ran::new(command)
}

/// `imgctl login` with the right password, into `auth.json` of the test's directory.
fn login(env: &TestEnv, host: &str) -> PathBuf {
    let file = env.path("auth.json");
    let arguments = ["login", "--authfile", "auth.json", "-u", USER, "--password-stdin", host];
    let ran = with_input(env.command(arguments), &format!("{PASSWORD}\n")).ok();
    assert_eq!(ran.stdout(), "Login Succeeded!");
    file
}

#[test]
fn skopeo_and_podman_use_the_login_we_keep() {
    let (env, registry) = (TestEnv::new(), Registry::with_login());
    let file = login(&env, &registry.host);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let ran = Ran::new(tool(
        "podman",
        ["login", "--get-login", "--authfile"]
            .map(Path::new)
            .into_iter()
            .chain([file.as_path(), Path::new(&registry.host)]),
    ));
    assert_eq!(ran.ok().stdout(), USER);

    let context = env.context("context", "FROM scratch\nCOPY a /a\n", &[("a", "a")]);
    env.build("app:v1", &context);
    env.imgctl(["save", "--format", "oci-dir", "-o", "layout", "app:v1"]).ok();
    let target = format!("docker://{}/team/app:v1", registry.host);
    let layout = format!("oci:{}", env.path("layout").display());
    let copy = |authfile: &str| {
        let mut command = tool(
            "skopeo",
            ["copy", "--dest-tls-verify=false", "--authfile", authfile, &layout, &target],
        );
        command.current_dir(env.path("."));
        Ran::new(command)
    };
    env.write("none.json", "{}");
    assert!(!copy("none.json").success());
    copy("auth.json").ok();
}

#[test]
fn we_use_the_login_that_podman_keeps() {
    let (env, registry) = (TestEnv::new(), Registry::with_login());
    let file = env.path("auth.json");
    let authfile = format!("--authfile={}", file.display());
    let arguments =
        ["login", "--tls-verify=false", &authfile, "-u", USER, "-p", PASSWORD, &registry.host];
    Ran::new(tool("podman", arguments)).ok();

    let mut get = env.command(["login", "--get-login", &registry.host]);
    get.env("REGISTRY_AUTH_FILE", &file);
    assert_eq!(Ran::new(get).ok().stdout(), USER);
    // Without -u the login that is there is tried, and it is good.
    let mut again = env.command(["login", &registry.host]);
    again.env("REGISTRY_AUTH_FILE", &file);
    assert!(Ran::new(again).ok().stdout().contains("Already logged in to 127.0.0.1"));

    env.imgctl(["logout", "--authfile", "auth.json", &registry.host]).ok();
    let arguments = ["login", "--get-login", &authfile, &registry.host];
    assert!(!Ran::new(tool("podman", arguments)).success());
}

#[test]
fn a_wrong_password_is_not_kept_and_not_shown() {
    let (env, registry) = (TestEnv::new(), Registry::with_login());
    for arguments in [
        &["login", "-u", USER, "-p", "wr0ng"][..],
        &["login", "--creds", "me:wr0ng"],
        &["--debug", "login", "-u", "nobody", "-p", "wr0ng"],
    ] {
        let arguments: Vec<&str> = arguments.iter().copied().chain([&*registry.host]).collect();
        let mut command = env.command(arguments);
        command.env("XDG_RUNTIME_DIR", env.path("run"));
        let ran = Ran::new(command).fails(5);
        assert!(!ran.stderr().contains("wr0ng"), "{}", ran.report());
        assert!(ran.stderr().contains(&registry.host), "{}", ran.report());
    }
    assert!(!env.path("run").exists());
}

#[test]
fn what_is_missing_is_told() {
    let env = TestEnv::new();
    for (arguments, code, expected) in [
        (&["login", "r.invalid"][..], 2, "--password-stdin"),
        (&["login", "-u", "me", "r.invalid"], 2, "no password"),
        (&["login", "-u", "me", "--password-stdin", "r.invalid"], 2, "stdin contains no password"),
        (&["login", "--password-stdin", "r.invalid"], 2, "--username"),
        (&["login"], 2, "REGISTRY"),
        (&["login", "a b"], 2, "is not a registry"),
        (&["login", "--get-login", "r.invalid"], 3, "not logged in to r.invalid"),
        (&["logout", "r.invalid"], 3, "not logged in to r.invalid"),
        (&["logout"], 2, "REGISTRY"),
        (&["login", "--retry=0", "-u", "me", "-p", "x", "r.invalid"], 7, "r.invalid"),
    ] {
        let mut command = env.command(arguments);
        command.env("XDG_RUNTIME_DIR", env.path("run"));
        let ran = Ran::new(command).fails(code);
        assert!(ran.stderr().contains(expected), "{}", ran.report());
    }
}

#[test]
fn logins_go_where_the_environment_says_and_are_found_there() {
    let (env, registry) = (TestEnv::new(), Registry::with_login());
    let run = |arguments: &[&str]| {
        let mut command = env.command(arguments);
        command.env("XDG_RUNTIME_DIR", env.path("run"));
        Ran::new(command)
    };
    let host = &*registry.host;
    let said = run(&["--json", "login", "-u", USER, "-p", PASSWORD, host]).ok().json();
    let file = env.path("run/containers/auth.json");
    assert_eq!(said["registry"], host);
    assert_eq!(said["username"], USER);
    assert_eq!(said["kept"], file.to_str().unwrap());
    let verbose = run(&["login", "-v", "-u", USER, "-p", PASSWORD, host]).ok().stdout();
    assert_eq!(verbose, format!("Used: {}\nLogin Succeeded!", file.display()));

    // docker's file is read, and left to docker.
    let docker = env.write(".docker/config.json", r#"{"auths":{"d.io":{"auth":"ZDpw"}}}"#);
    assert_eq!(run(&["login", "--get-login", "d.io"]).ok().stdout(), "d");
    let refused = run(&["logout", "d.io"]).fails(3).stderr();
    assert!(refused.contains("config.json"), "{refused}");
    assert_eq!(json(&docker)["auths"]["d.io"]["auth"], "ZDpw");

    let removed = run(&["--json", "logout", "--all"]).ok().json();
    assert_eq!(removed["removed"][0], host);
    run(&["login", "--get-login", host]).fails(3);
    assert_eq!(
        run(&["logout", "--all"]).ok().stdout(),
        "Removed login credentials for all registries"
    );
}

#[test]
fn certificates_are_taken_from_where_containers_takes_them() {
    let env = TestEnv::new();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = env.write("certs/ca.crt", made.cert.pem());
    let key = env.write("key.pem", made.signing_key.serialize_pem());
    let registry = Registry::with_tls(&certificate, &key);
    let host = &*registry.host;
    let login = |flags: &[&str]| {
        let mut arguments = vec!["login", "--authfile", "auth.json", "-u", USER, "-p", PASSWORD];
        arguments.extend(flags);
        arguments.push(host);
        env.imgctl(arguments)
    };
    let unknown = login(&["--tls-verify"]).fails(7).stderr();
    assert!(unknown.contains(host), "{unknown}");
    login(&["--tls-verify", "--cert-dir", "certs"]).ok();
    login(&["--tls-verify=false"]).ok();
    login(&["--cert-dir", "absent"]).fails(3);
    env.write(format!(".config/containers/certs.d/{host}/ca.crt"), made.cert.pem());
    login(&["--tls-verify"]).ok();
}

#[test]
fn a_blocked_registry_is_not_logged_in_to() {
    let env = TestEnv::new();
    let conf = env.write("registries.conf", "[[registry]]\nlocation = 'b.io'\nblocked = true\n");
    let mut command = env.command(["login", "-u", "me", "-p", "x", "b.io"]);
    command.env("CONTAINERS_REGISTRIES_CONF", &conf);
    let ran = Ran::new(command).fails(5);
    assert!(ran.stderr().contains("b.io"), "{}", ran.report());

    env.write("registries.conf", "[[registry]]\nlocation = 7\n");
    let mut command = env.command(["login", "-u", "me", "-p", "x", "b.io"]);
    command.env("CONTAINERS_REGISTRIES_CONF", &conf);
    let ran = Ran::new(command).fails(2);
    assert!(ran.stderr().contains("registries.conf:2: "), "{}", ran.report());
}

/// A helper that keeps what it is told in a file beside itself.
const HELPER: &str = r#"#!/bin/sh
file=$(dirname "$0")/kept
case $1 in
store) cat >"$file";;
get) cat >/dev/null; [ -f "$file" ] || { echo credentials not found in native keychain; exit 1; }
     cat "$file";;
erase) rm "$file";;
esac
"#;

#[test]
fn podman_finds_in_the_helper_what_we_keep_there() {
    let (env, registry) = (TestEnv::new(), Registry::with_login());
    let host = &*registry.host;
    // Written by a child: a fork of another test while we hold it open would make it ETXTBSY.
    std::fs::create_dir(env.path("bin")).unwrap();
    let helper = env.path("bin/docker-credential-shelf");
    with_input(tool("tee", [&helper]), HELPER).ok();
    std::fs::set_permissions(&helper, PermissionsExt::from_mode(0o755)).unwrap();
    let authfile = env.write("auth.json", format!(r#"{{"credHelpers":{{"{host}":"shelf"}}}}"#));
    let path = format!("{}:/usr/bin:/bin", env.path("bin").display());
    let run = |mut command: Command| {
        command.env("PATH", &path).env("REGISTRY_AUTH_FILE", &authfile);
        Ran::new(command)
    };
    run(env.command(["login", "-u", USER, "-p", PASSWORD, host])).ok();
    assert!(!std::fs::read_to_string(&authfile).unwrap().contains("bWU6"));
    assert_eq!(run(env.command(["login", "--get-login", host])).ok().stdout(), USER);
    assert_eq!(run(tool("podman", ["login", "--get-login", host])).ok().stdout(), USER);
    run(env.command(["logout", host])).ok();
    assert!(!env.path("bin/kept").exists());
}

/// Runs `line` on a terminal of its own, with the home and the logins of `env`.
pub(crate) fn on_a_terminal(env: &TestEnv, line: &str, keys: &[(&str, &str)]) -> String {
    let environment = [("REGISTRY_AUTH_FILE", &*env.path("auth.json")), ("HOME", &*env.path("."))];
    terminal::on_a_terminal(line, &environment, keys)
}

#[test]
fn somebody_at_a_terminal_is_asked_and_the_password_is_not_shown() {
    let (env, registry) = (TestEnv::new(), Registry::with_login());
    let root = env.root().display().to_string();
    let line = format!("{IMGCTL} --root {root} login {}; stty -a", registry.host);
    let screen = on_a_terminal(
        &env,
        &line,
        &[
            ("Username: ", "me\n"),
            ("Password: ", "sxecret\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}ecret\n"),
        ],
    );
    assert!(screen.contains("Login Succeeded!"), "{screen}");
    assert!(!screen.contains("cret"), "{screen}");
    assert!(screen.contains(" echo "), "the terminal stays silent: {screen}");
    assert_eq!(json(&env.path("auth.json"))["auths"][&registry.host]["auth"], "bWU6c2VjcmV0");
}

#[test]
fn an_interrupted_question_leaves_the_terminal_as_it_was() {
    let env = TestEnv::new();
    let root = env.root().display().to_string();
    let line = format!("{IMGCTL} --root {root} login -u me r.invalid; echo code $?; stty -a");
    let screen = on_a_terminal(&env, &line, &[("Password: ", "abc\u{3}")]);
    assert!(screen.contains("code 130"), "{screen}");
    assert!(screen.contains(" echo "), "{screen}");
}
