//! A real sshd on the loopback interface for tests, with its own keys and files. Shared with
//! `tests/runner/ssh`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use imgctl_base::testing::free_port;

/// An sshd with its own directory that stops when the value is dropped.
pub struct Sshd {
    pub port: u16,
    pub directory: tempfile::TempDir,
    process: Child,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a tool and panics if it fails.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Creates a key pair.
pub fn keygen(path: &Path, kind: &[&str], passphrase: &str) {
    let file = path.to_str().unwrap();
    let mut arguments = vec!["-q", "-f", file, "-N", passphrase, "-C", "test"];
    arguments.extend(kind);
    tool("ssh-keygen", &arguments);
}

impl Sshd {
    /// Starts sshd with an ed25519 host key, one authorized user key `id`, and additional lines of
    /// sshd_config.
    pub fn start(lines: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let path = |name: &str| directory.path().join(name);
        keygen(&path("host"), &["-t", "ed25519"], "");
        keygen(&path("id"), &["-t", "ed25519"], "");
        std::fs::copy(path("id.pub"), path("authorized")).unwrap();
        // Some versions of sshd require it.
        let _ = std::fs::create_dir("/run/sshd");
        let port = free_port();
        let penalties = if knows_penalties() { "PerSourcePenalties no" } else { "" };
        // With `SHLVL` set, bash does not read root's rc files, which can take longer than the
        // test.
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {d}/host\nAuthorizedKeysFile {d}/authorized\n\
             StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nMaxStartups 200\nLogLevel VERBOSE\nSetEnv SHLVL=3\n{penalties}\n{lines}\n",
            d = directory.path().display()
        );
        std::fs::write(path("config"), config).unwrap();
        let log = std::fs::File::create(path("log")).unwrap();
        let process = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(path("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let sshd = Self { port, directory, process };
        assert!(sshd.is_up(), "sshd: {}", sshd.log());
        sshd
    }

    fn is_up(&self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if self.log().contains("Server listening") {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Returns whether this sshd supports `PerSourcePenalties` (9.8 and later).
fn knows_penalties() -> bool {
    let output = Command::new("/usr/sbin/sshd").arg("-V").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let version = text.split("OpenSSH_").nth(1).unwrap_or("0");
    let major = version.split('.').next().and_then(|text| text.parse().ok());
    major.unwrap_or(0) >= 10 || version.starts_with("9.8") || version.starts_with("9.9")
}
