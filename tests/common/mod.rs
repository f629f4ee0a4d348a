//! What every integration test shares: a private root, the binary under test, trees compared.
//!
//! A test makes a [`TestEnv`], runs `imgctl` in it and looks at output, store and trees. Nothing
//! here knows the crate's insides: the tests see what a user sees.

#![allow(dead_code, reason = "shared by two test binaries that each use a part")]

pub(crate) mod mirror;
pub(crate) mod newest;
pub(crate) mod proxy;
pub(crate) mod registry;
pub(crate) mod terminal;
pub(crate) mod testbed;
pub(crate) mod tree;
pub(crate) mod tutorial;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

/// The binary under test.
pub(crate) const IMGCTL: &str = env!("CARGO_BIN_EXE_imgctl");

/// The repository's root.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether the long loops were asked for (`scripts/test --long`).
pub(crate) fn long() -> bool {
    std::env::var_os("IMGCTL_TEST_LONG").is_some_and(|value| value == "1")
}

/// Whether this test runs as root; some things can be seen only then, others only otherwise.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a test that needs root can go on; it fails without root unless
/// `IMGCTL_TEST_UNPRIVILEGED=1` says to skip such tests.
#[track_caller]
pub(crate) fn needs_root() -> bool {
    imgctl_base::testing::needs_root()
}

/// A temporary directory with a store of its own; both go when the value goes.
pub(crate) struct TestEnv {
    directory: tempfile::TempDir,
}

impl Drop for TestEnv {
    /// Unmounts what a failed test left mounted, so that the directory can be removed. A thread may have a mount
    /// namespace of its own.
    fn drop(&mut self) {
        let mounts = std::fs::read("/proc/thread-self/mounts").unwrap_or_default();
        let below = self.directory.path().as_os_str().as_encoded_bytes();
        let points = mounts
            .split(|byte| *byte == b'\n')
            .rev()
            .filter_map(|line| line.split(|byte| *byte == b' ').nth(1));
        for point in points.filter(|point| point.starts_with(below)) {
            let _ = Command::new("umount").arg("-l").arg(OsStr::from_bytes(point)).output();
        }
    }
}

impl Default for TestEnv {
    fn default() -> Self {
        Self::new()
    }
}

impl TestEnv {
    /// An empty directory, readable by every user so that a test may change to one.
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("imgctl-test.")
            .tempdir()
            .expect("cannot make a temporary directory");
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Self { directory }
    }

    /// A path below the temporary directory.
    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(relative)
    }

    /// The store that [`TestEnv::imgctl`] works on.
    pub(crate) fn root(&self) -> PathBuf {
        self.path("root")
    }

    /// Writes a file below the temporary directory, with its parents.
    pub(crate) fn write(&self, relative: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A build context `name` with a Kubefile and files; gives its path.
    pub(crate) fn context(&self, name: &str, kubefile: &str, files: &[(&str, &str)]) -> PathBuf {
        self.write(Path::new(name).join("Kubefile"), kubefile);
        for (path, content) in files {
            self.write(Path::new(name).join(path), content);
        }
        self.path(name)
    }

    /// The command `imgctl --root … ARGUMENTS`, not yet run, with a clean environment.
    pub(crate) fn command<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        self.command_in(&self.root(), arguments)
    }

    /// The same with another store.
    pub(crate) fn command_in<S: AsRef<OsStr>>(
        &self,
        root: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(IMGCTL);
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.directory.path())
            .env("LC_ALL", "C.UTF-8")
            .arg("--root")
            .arg(root)
            .args(arguments)
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs `imgctl --root … ARGUMENTS`.
    pub(crate) fn imgctl<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        Ran::new(self.command(arguments))
    }

    /// Builds `context` as `name`; panics with imgctl's own words when that fails.
    pub(crate) fn build(&self, name: &str, context: &Path) -> Ran {
        let arguments = [OsStr::new("build"), "-t".as_ref(), name.as_ref(), context.as_ref()];
        self.imgctl(arguments).ok()
    }

    /// Checks an image out into a new directory and gives its path.
    pub(crate) fn export(&self, image: &str, to: &str) -> PathBuf {
        let path = self.path(to);
        let arguments = [OsStr::new("export"), image.as_ref(), "-o".as_ref(), path.as_ref()];
        self.imgctl(arguments).ok();
        path
    }

    /// The configuration blob of an image, byte for byte, found through `save --format oci-dir`.
    pub(crate) fn config(&self, image: &str) -> serde_json::Value {
        let layout = self.path(format!("layout-{}", image.replace(['/', ':'], "-")));
        let _ = std::fs::remove_dir_all(&layout);
        let arguments: [&OsStr; 6] = [
            "save".as_ref(),
            "--format".as_ref(),
            "oci-dir".as_ref(),
            "-o".as_ref(),
            layout.as_ref(),
            image.as_ref(),
        ];
        self.imgctl(arguments).ok();
        let index = json(&layout.join("index.json"));
        let manifest = blob(&layout, &index["manifests"][0]["digest"]);
        blob(&layout, &manifest["config"]["digest"])
    }
}

fn blob(layout: &Path, digest: &serde_json::Value) -> serde_json::Value {
    let digest = digest.as_str().expect("a descriptor has a digest");
    json(&layout.join("blobs").join(digest.replace(':', "/")))
}

/// Runs a command that succeeds. Returns its peak resident memory, in kibibytes.
pub(crate) fn peak<S: AsRef<OsStr>>(env: &TestEnv, arguments: impl IntoIterator<Item = S>) -> u64 {
    let (peak, ended, said) = measured(env, arguments);
    assert!(ended.success(), "{said}");
    peak
}

/// Runs a command to its end. Returns its peak resident memory in kibibytes, its status and its stderr.
pub(crate) fn measured<S: AsRef<OsStr>>(
    env: &TestEnv,
    arguments: impl IntoIterator<Item = S>,
) -> (u64, ExitStatus, String) {
    let mut command = env.command(arguments);
    let log = std::fs::File::create(env.path("log")).unwrap();
    let mut child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let ended = loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let value = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(value.unwrap_or_default());
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let said = std::fs::read_to_string(env.path("log")).unwrap();
    assert!(peak > 0, "it ended before it was looked at");
    (peak, ended, said)
}

/// Bytes that do not compress, the same for the same seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Reads a JSON file.
pub(crate) fn json(path: &Path) -> serde_json::Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a finished command said.
pub(crate) struct Ran {
    line: String,
    output: Output,
}

impl Ran {
    /// Runs a command to its end.
    pub(crate) fn new(command: Command) -> Self {
        let words: Vec<OsString> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(OsStr::to_owned)
            .collect();
        let line = words.join(OsStr::new(" ")).to_string_lossy().into_owned();
        Self::named(line, command)
    }

    /// Runs a command that the report shows as `line`.
    fn named(line: String, mut command: Command) -> Self {
        let output = command.output().unwrap_or_else(|error| {
            panic!("cannot run `{line}`: {error} (scripts/setup installs what tests need)")
        });
        Self { line, output }
    }

    /// Panics unless the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert!(self.output.status.success(), "{}", self.report());
        self
    }

    /// Panics unless the command failed with this exit code.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> Self {
        assert_eq!(self.output.status.code(), Some(code), "{}", self.report());
        self
    }

    /// Whether it succeeded.
    pub(crate) fn success(&self) -> bool {
        self.output.status.success()
    }

    /// Standard output, without the last newline.
    pub(crate) fn stdout(&self) -> String {
        text(&self.output.stdout)
    }

    /// Standard error, without the last newline.
    pub(crate) fn stderr(&self) -> String {
        text(&self.output.stderr)
    }

    /// Standard output as it came.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.output.stdout
    }

    /// Standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.output.stdout)
            .unwrap_or_else(|error| panic!("not JSON: {error}\n{}", self.report()))
    }

    /// The command with everything it said.
    pub(crate) fn report(&self) -> String {
        format!(
            "`{}`: {}\n--- stdout\n{}\n--- stderr\n{}",
            self.line,
            self.output.status,
            self.stdout(),
            self.stderr()
        )
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\n').to_owned()
}

/// A command of this machine (a peer, a tool), to be run with [`Ran::new`].
pub(crate) fn tool<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null());
    command
}
