//! What images, files and commands say, on a terminal and elsewhere: no control character, no line in
//! another's name. `script` is the terminal.

use std::process::Command;

use crate::common::{IMGCTL, Ran, TestEnv};
use imgctl_base::text::is_unsafe;

/// An escape sequence, a bidirectional mark, and lines that look like imgctl's.
const HOSTILE: &str =
    "\u{1b}]0;pwned\u{7}\u{1b}[31mred\u{202e}gnp\u{9b}2J\nhint: run evil\nerror: forged";

/// An image with hostile text wherever an image can have it.
fn with_image() -> TestEnv {
    let env = TestEnv::new();
    let kubefile =
        "FROM scratch\nLABEL a=b\nCOPY etc /etc\nCMD [\"x\", \"\\u001b[2J\\nhint: run evil\"]\n";
    let context = env.context("context", kubefile, &[("etc/plain", "x\r\ny\n")]);
    std::fs::write(context.join(format!("etc/{}", HOSTILE.replace('/', "_"))), HOSTILE).unwrap();
    std::fs::write(context.join("etc/content"), HOSTILE).unwrap();
    let labels = ["check", "init", "auth", "image", "clean", "description", "version"]
        .map(|key| format!("{key}={HOSTILE}"));
    let variable = format!("VARIABLE={HOSTILE}");
    let mut arguments = vec!["build", "-q", "--env", &variable];
    labels.iter().for_each(|label| arguments.extend(["--label", label]));
    env.imgctl([&arguments[..], &["-t", "foreign:v1", "context"]].concat()).ok();
    let rootfs = ["sealos.io.type=rootfs", "sealos.io.version=v1beta1", "version=v1.31.4"];
    rootfs.iter().for_each(|label| arguments.extend(["--label", label]));
    env.imgctl([&arguments[..], &["-t", "rootfs:v1", "context"]].concat()).ok();
    env
}

/// Runs a command whose stdout and stderr are a terminal.
fn on_terminal(env: &TestEnv, line: &str) -> String {
    let line = format!("{IMGCTL} --root {} --no-color {line}", env.root().display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(env.path("."));
    command
        .env("HOME", env.path("."))
        .env("SEALOS_DATA_ROOT", env.path("data"))
        .env("TERM", "dumb");
    Ran::new(command).stdout()
}

#[track_caller]
fn is_safe(text: &str, what: &str) {
    let found = text.trim_end_matches('\r').replace("\r\n", "\n");
    let found = found.chars().find(|c| is_unsafe(*c) && *c != '\n');
    assert!(found.is_none(), "{what} has {found:?}:\n{text:?}");
    for line in text.lines() {
        let forged = line.starts_with("hint: run evil") || line.starts_with("error: forged");
        assert!(!forged, "{what} has a line of its own:\n{text}");
    }
}

#[test]
fn no_text_of_an_image_reaches_a_terminal_as_it_is() {
    let env = with_image();
    for line in [
        "ls -R foreign:v1",
        "history foreign:v1",
        "tree foreign:v1",
        "inspect foreign:v1",
        "diff foreign:v1",
        "images",
        "images --json",
        "cat foreign:v1:/etc/none",
    ] {
        is_safe(&on_terminal(&env, line), line);
        let ran = env.imgctl(line.split(' '));
        is_safe(&ran.stderr(), line);
        // Names of files are content: scripts need them exactly.
        if !line.starts_with("ls") {
            is_safe(&ran.stdout(), line);
        }
    }
}

#[test]
fn a_plan_says_what_an_image_wants_and_nothing_in_its_name() {
    let env = with_image();
    if crate::common::needs_root() {
        return;
    }
    let shown = on_terminal(&env, "run --dry-run rootfs:v1 --masters 127.0.0.1");
    assert!(shown.contains("bash \\u{1b}]0;pwned"), "{shown}");
    is_safe(&shown, "run --dry-run");
}

#[test]
fn values_in_a_template_are_parts_of_a_line_on_a_terminal() {
    let env = with_image();
    for line in
        ["images --format '{{.Labels}}'", "inspect -f '{{.OCIv1.Config.Labels}}' foreign:v1"]
    {
        let shown = on_terminal(&env, line);
        is_safe(&shown, line);
        assert!(shown.contains("\\u{1b}[31mred\\u{202e}gnp\\u{9b}2J\\nhint: run evil"), "{shown}");
    }
    // The template's own lines are lines, and a script gets the value.
    assert_eq!(on_terminal(&env, "inspect -f 'a\\nb' foreign:v1"), "a\r\nb\r");
    let exact = env.imgctl(["inspect", "-f", "{{.OCIv1.Config.Labels.check}}", "foreign:v1"]).ok();
    assert_eq!(exact.bytes(), format!("{HOSTILE}\n").as_bytes());
}

#[test]
fn a_command_in_a_hint_is_the_one_that_is_meant() {
    let env = TestEnv::new();
    env.context("context", "FROM scratch\nCOPY etc /etc\n", &[]);
    let name = "it's $(touch pwned) `touch pwned`;x";
    env.write(format!("context/etc/{name}/file"), "x");
    env.imgctl(["build", "-q", "-t", "odd:v1", "context"]).ok();
    let said = env.imgctl(["cat", &format!("odd:v1:/etc/{name}")]).fails(2).stderr();
    let hint = said.lines().find_map(|line| line.strip_prefix("hint: ")).expect(&said);
    let mut shell = Command::new("sh");
    let program =
        format!("imgctl() {{ {IMGCTL} --root {} \"$@\"; }}\n{hint}", env.root().display());
    shell.args(["-c", &program]).current_dir(env.path("."));
    assert_eq!(Ran::new(shell).ok().stdout(), "file");
    assert!(!env.path("pwned").exists(), "{hint}");
}

#[test]
fn content_is_exact_except_on_a_terminal() {
    let env = with_image();
    let ran = env.imgctl(["cat", "foreign:v1:/etc/content"]).ok();
    assert_eq!(ran.bytes(), HOSTILE.as_bytes());
    let shown = on_terminal(&env, "cat foreign:v1:/etc/content");
    assert!(
        shown.contains("\\u{1b}[31mred\\u{202e}gnp\\u{9b}2J") && !shown.contains('\u{1b}'),
        "{shown:?}"
    );
    assert_eq!(on_terminal(&env, "cat foreign:v1:/etc/plain"), "x\r\ny\r");
}

#[test]
fn json_has_the_same_value_without_what_a_terminal_obeys() {
    let env = with_image();
    let ran = env.imgctl(["inspect", "--json", "foreign:v1"]).ok();
    is_safe(&ran.stdout(), "inspect --json");
    let found = ran.json().to_string();
    let text = serde_json::to_string(HOSTILE).unwrap();
    assert!(found.contains(&text), "{found}");
}

#[test]
fn output_of_steps_is_escaped_and_gives_a_runner_no_command() {
    let env = TestEnv::new();
    if crate::common::needs_root() {
        return;
    }
    let tree = env.path("context/rootfs");
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    std::fs::copy("/bin/busybox", tree.join("bin/busybox")).expect("scripts/setup installs it");
    std::os::unix::fs::symlink("busybox", tree.join("bin/sh")).unwrap();
    let kubefile = "FROM scratch\nCOPY rootfs /\n\
        RUN printf '\\033[31mred\\033[0m\\n  1%%\\r  2%%\\r\\n::error::forged\\n'; printf 'half \\302\\233\\n' >&2\n";
    env.context("context", kubefile, &[]);
    for runner in [false, true] {
        let mut command =
            env.command(["build", "--no-cache", "--progress", "plain", "-t", "x:v1", "context"]);
        if runner {
            command.env("GITHUB_ACTIONS", "true");
        }
        let said = Ran::new(command).ok().stderr();
        is_safe(&said, "the output of a step");
        let lines: Vec<&str> = said.lines().map(str::trim).collect();
        for line in ["\\u{1b}[31mred\\u{1b}[0m", "1%", "2%", "half \\u{9b}"] {
            assert!(lines.contains(&line), "{line}:\n{said}");
        }
        assert_eq!(runner, !said.lines().any(|line| line.starts_with("::error::forged")), "{said}");
    }
}
