//! How commands start and end.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::needs_root;
use crate::sandbox::harness::{Root, chmod, imgctl, run, start};

#[test]
fn output_and_exit_codes_come_through() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let ran = root.sh("echo out; echo err >&2; exit 7");
    assert_eq!((ran.code(), ran.out.as_str(), ran.err.as_str()), (7, "out\n", "err\n"));
    assert_eq!(root.sh("exit 0").code(), 0);
}

#[test]
fn what_cannot_be_started_says_why_with_the_codes_of_a_shell() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let dir = root.path.join("bin");
    let mut program = fs::read(dir.join("busybox")).unwrap();
    program[18] = 251; // e_machine: one that no emulator is registered for
    fs::write(dir.join("foreign"), program).unwrap();
    fs::write(dir.join("noexec"), "#!/bin/sh\n").unwrap();
    fs::write(dir.join("lost"), "#!/no/such\n").unwrap();
    chmod(&dir.join("foreign"), 0o755);
    chmod(&dir.join("lost"), 0o755);
    let cases = [
        (json!(["nothing"]), 127, "PATH in the image is /bin"),
        (json!(["/nothing"]), 127, "command not found"),
        (json!([]), 127, "no command"),
        (json!(["noexec"]), 126, "not executable"),
        (json!(["/bin/noexec"]), 126, "Permission denied"),
        (json!(["foreign"]), 126, "for another architecture"),
        (json!(["lost"]), 127, "interpreter"),
        (json!(["/etc"]), 126, "Permission denied"),
    ];
    for (argv, code, message) in cases {
        let mut spec = root.script("");
        spec["argv"] = argv.clone();
        let ran = run(&spec);
        assert_eq!(ran.code(), code, "{argv}");
        let said = ran.answer["Ended"]["message"].as_str().unwrap().to_owned();
        assert!(said.contains(message), "{argv}: {said}");
    }
}

#[test]
fn a_signal_is_reported_as_one() {
    if !needs_root() {
        return;
    }
    // Pid 1 is immune to what its own namespace sends, but not to a fault of its own: the limit
    // on CPU time is enforced with SIGKILL.
    let root = Root::new();
    let mut spec = root.script("while :; do :; done");
    spec["limits"] = json!([{"resource": "Cpu", "soft": 1, "hard": 1}]);
    assert_eq!(run(&spec).answer["Ended"]["exit"], json!({"Signal": 9}));
    assert_eq!(root.sh("sh -c 'kill -TERM $$'; exit $?").code(), 128 + 15);
}

#[test]
fn the_environment_is_the_given_one_and_nothing_else() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let mut spec = root.script("env | sort; echo \"$0\"");
    spec["env"] = json!([["PATH", "/bin"], ["A", "1"], ["A", "2 3"], ["B", "\u{ff}"]]);
    let ran = run(&spec);
    let lines: Vec<&str> = ran.ok().lines().collect();
    let known: Vec<&&str> =
        lines.iter().filter(|line| !["PWD=/", "SHLVL=1"].contains(line)).collect();
    assert_eq!(known, [&"A=2 3", &"B=\u{fffd}", &"PATH=/bin", &"/bin/sh"]);
}

#[test]
fn the_working_directory_is_inside_the_root() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    fs::create_dir(root.path.join("work")).unwrap();
    std::os::unix::fs::symlink("/work", root.path.join("link")).unwrap();
    for (cwd, expected) in [("/work", "/work"), ("/link", "/work"), ("/../..", "/"), ("", "/")] {
        let mut spec = root.script("/bin/pwd -P");
        spec["cwd"] = json!(cwd);
        assert_eq!(run(&spec).ok().trim(), expected, "{cwd}");
    }
    for cwd in ["/missing", "/proc/self/cwd", "/proc/self/fd/3", "/bin/sh"] {
        let mut spec = root.script("/bin/pwd -P; ls /");
        spec["cwd"] = json!(cwd);
        assert!(run(&spec).failure().contains("working directory"), "{cwd}");
    }
}

#[test]
fn users_and_groups_are_the_given_ones() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let mut spec = root.script("id -u; id -g; id -G; grep Cap /proc/self/status");
    spec["user"] = json!({"uid": 1000, "gid": 1001, "groups": [5, 6]});
    let ran = run(&spec);
    let zero = "0000000000000000";
    let caps = format!(
        "CapInh:\t{zero}\nCapPrm:\t{zero}\nCapEff:\t{zero}\nCapBnd:\t00000000a80425fb\nCapAmb:\t{zero}\n"
    );
    assert_eq!(ran.ok(), format!("1000\n1001\n1001 5 6\n{caps}"));
    assert_eq!(root.sh("id -G").ok(), "0\n");
}

#[test]
fn standard_input_is_the_script_or_nothing() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    assert_eq!(root.sh("wc -c; readlink /proc/self/fd/0").ok(), "0\n/dev/null\n");
    let mut spec = root.script("");
    spec["argv"] = json!(["sh"]);
    let padding = "#".repeat(300_000);
    spec["stdin"] = json!(format!("{padding}\necho from the script; wc -c </proc/self/fd/0"));
    assert_eq!(run(&spec).ok(), "from the script\n300045\n");
}

#[test]
fn another_user_can_open_its_own_streams() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let mut spec = root.script("cat /dev/stdin; echo out >/dev/stdout; echo err >/dev/stderr");
    spec["user"] = json!({"uid": 1000, "gid": 1000, "groups": []});
    spec["stdin"] = json!("in\n");
    let ran = run(&spec);
    assert_eq!((ran.ok(), ran.err.as_str()), ("in\nout\n", "err\n"));
    spec["stdin"] = json!(null);
    assert_eq!(run(&spec).ok(), "out\n");
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/dev/null").unwrap());
    assert_eq!(owner, 0);
}

#[test]
fn limits_and_umask_have_their_defaults_and_can_be_set() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    assert_eq!(root.sh("ulimit -n; ulimit -c; umask").ok(), "1024\n0\n0022\n");
    let mut spec = root.script("ulimit -n; ulimit -f");
    spec["limits"] = json!([
        {"resource": "OpenFiles", "soft": 99, "hard": 100},
        {"resource": "FileSize", "soft": null, "hard": null},
    ]);
    assert_eq!(run(&spec).ok(), "99\nunlimited\n");
}

#[test]
fn what_a_command_leaves_running_ends_with_it() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let begun = Instant::now();
    root.sh("sleep 300 & echo left").ok();
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn nothing_survives_the_death_of_the_caller() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let marker = format!("{}", 1_000_000 + std::process::id());
    let spec = root.script(&format!("sleep {marker} & echo up; exec sleep {marker}"));
    // Either imgctl's supervisor is killed, or the process that started it.
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" \"$@\"; exit $?"]).arg(imgctl().get_program());
    for mut victim in [imgctl(), shell] {
        let (mut child, socket) = start(&spec, &mut victim);
        let deadline = Instant::now() + Duration::from_secs(60);
        wait_for(deadline, || processes_with(&marker) >= 2);
        drop(socket);
        child.kill().unwrap();
        child.wait().unwrap();
        wait_for(deadline, || processes_with(&marker) == 0);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(root.path.to_str().unwrap()));
    }
}

fn wait_for(deadline: Instant, mut done: impl FnMut() -> bool) {
    while !done() {
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How many processes have this argument.
fn processes_with(argument: &str) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| line.split(|&byte| byte == 0).any(|word| word == argument.as_bytes()))
        .count()
}

#[test]
fn a_malformed_spec_ends_without_a_trace() {
    if !needs_root() {
        return;
    }
    assert!(run(&json!({"rootfs": "/"})).failure().contains("cannot decode"));
    let root = Root::new();
    let mut spec = root.script("");
    spec["rootfs"] = json!("/no/such/root");
    assert!(run(&spec).failure().contains("/no/such/root"));
}
