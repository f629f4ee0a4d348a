//! Makes roots of busybox and runs commands in them.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory tree with a shell in it.
pub(crate) struct Root {
    _dir: TempDir,
    /// Where it is.
    pub(crate) path: PathBuf,
}

/// What came back from a sandbox.
pub(crate) struct Ran {
    /// The answer frame; null if there was none.
    pub(crate) answer: Value,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Ran {
    /// The exit code of a command that ended by itself.
    pub(crate) fn code(&self) -> i64 {
        self.answer["Ended"]["exit"]["Code"].as_i64().unwrap_or_else(|| panic!("{}", self.all()))
    }

    /// Standard output of a command that succeeded.
    pub(crate) fn ok(&self) -> &str {
        assert_eq!(self.code(), 0, "{}", self.all());
        &self.out
    }

    /// The message of a sandbox that could not be made.
    pub(crate) fn failure(&self) -> String {
        assert!(self.answer["Failed"].is_object(), "{}", self.all());
        self.answer["Failed"]["chain"].to_string()
    }

    /// Paths of the mount points that had to be made.
    pub(crate) fn stubs(&self) -> Vec<&str> {
        let stubs = self.answer["Ended"]["created_stubs"].as_array().expect("stubs");
        stubs.iter().map(|stub| stub["path"].as_str().unwrap()).collect()
    }

    fn all(&self) -> String {
        format!("{}\nstdout: {}\nstderr: {}", self.answer, self.out, self.err)
    }
}

impl Root {
    /// A root with busybox and its applets, and the directories that are mounted on.
    pub(crate) fn new() -> Self {
        let root = Self::bare();
        for name in ["proc", "sys", "dev", "etc", "tmp"] {
            fs::create_dir(root.path.join(name)).unwrap();
        }
        for name in ["hosts", "hostname", "resolv.conf"] {
            fs::write(root.path.join("etc").join(name), "").unwrap();
        }
        root
    }

    /// A root with nothing but `/bin`.
    pub(crate) fn bare() -> Self {
        let busybox = Path::new("/bin/busybox");
        let hint = "install busybox-static (scripts/setup does)";
        assert!(busybox.exists(), "/bin/busybox is missing: {hint}");
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o755);
        let path = dir.path().join("root");
        fs::create_dir_all(path.join("bin")).unwrap();
        fs::copy(busybox, path.join("bin/busybox")).unwrap();
        let list = Command::new(busybox).arg("--list").output().expect(hint).stdout;
        for applet in String::from_utf8(list).unwrap().lines() {
            if applet != "busybox" {
                symlink("busybox", path.join("bin").join(applet)).unwrap();
            }
        }
        Self { _dir: dir, path }
    }

    /// The directory that holds the root, for files of the host's.
    pub(crate) fn beside(&self) -> &Path {
        self.path.parent().unwrap()
    }

    /// A spec that runs a shell script here, without network.
    pub(crate) fn script(&self, script: &str) -> Value {
        json!({
            "rootfs": self.path, "argv": ["/bin/sh", "-c", script],
            "env": [["PATH", "/bin"]], "cwd": "/",
            "user": {"uid": 0, "gid": 0, "groups": []},
            "network": "None", "mounts": [], "hostname": "box",
            "resolv_conf": "nameserver 192.0.2.1\n", "hosts": "127.0.0.1 localhost\n",
            "limits": [], "security": "Sandbox", "stdin": null,
        })
    }

    /// Runs a shell script with everything at its default.
    pub(crate) fn sh(&self, script: &str) -> Ran {
        run(&self.script(script))
    }

    /// Every path in the root with its type, size and modification time.
    pub(crate) fn listing(&self) -> Vec<String> {
        let script = "find . -printf '%p %y %s %T@ %l\\n' | sort";
        let output = Command::new("sh").arg("-c").arg(script).current_dir(&self.path).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// Sets permission bits.
pub(crate) fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Starts a sandbox; the socket is where the answer comes.
pub(crate) fn start(spec: &Value, command: &mut Command) -> (Child, UnixStream) {
    start_as("__sandbox", spec, command)
}

fn start_as(verb: &str, spec: &Value, command: &mut Command) -> (Child, UnixStream) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let child = command
        .arg(verb)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The child has it; ours would keep the socket from ever ending.
    command.stdin(Stdio::null());
    let json = serde_json::to_vec(spec).unwrap();
    let mut frame = u32::try_from(json.len()).unwrap().to_le_bytes().to_vec();
    frame.extend(json);
    // One that asks for nothing may be gone already.
    let _ = ours.write_all(&frame);
    (child, ours)
}

/// Runs a sandbox to its end, as `command` says how to start imgctl.
pub(crate) fn run_by(spec: &Value, command: &mut Command) -> Ran {
    run_as("__sandbox", spec, command)
}

/// The same for any of the inner processes that answers.
pub(crate) fn run_as(verb: &str, spec: &Value, command: &mut Command) -> Ran {
    let (child, mut socket) = start_as(verb, spec, command);
    let output = child.wait_with_output().unwrap();
    let mut frame = Vec::new();
    let _ = socket.read_to_end(&mut frame);
    Ran {
        answer: frame.get(4..).map_or(Value::Null, |json| serde_json::from_slice(json).unwrap()),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The binary under test.
pub(crate) fn imgctl() -> Command {
    Command::new(env!("CARGO_BIN_EXE_imgctl"))
}

/// Runs a sandbox to its end, as root.
pub(crate) fn run(spec: &Value) -> Ran {
    run_by(spec, &mut imgctl())
}
