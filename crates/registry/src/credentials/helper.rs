//! Credential helpers: programs `docker-credential-NAME` that store logins outside of files
//! (docker-credential-helpers' protocol). Does not know about which registry uses which helper.

use std::io::{Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::config_file::member;
use crate::credentials::{Login, Secret};
use imgctl_base::error::{Error, IoContext as _, Result};

/// User name that marks an identity token.
const TOKEN_USER: &str = "<token>";
/// Messages of helpers that have no login; there is no exit code for this.
const NOTHING: [&str; 3] = [
    "credentials not found in native keychain",
    "no credentials server URL",
    "no credentials username",
];
const MAX_ANSWER: u64 = 256 << 10;
/// Timeout, long enough for the user to type a passphrase.
const PATIENCE: Duration = Duration::from_secs(120);

/// One credential helper.
pub(super) struct Helper {
    /// `docker-credential-NAME`.
    program: String,
    path: PathBuf,
    patience: Duration,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Kept<'a> {
    #[serde(rename = "ServerURL")]
    server: &'a str,
    username: &'a str,
    secret: &'a str,
}

impl Helper {
    /// Finds the helper NAME in the directories `search_path`.
    pub(super) fn new(name: &str, search_path: &[PathBuf]) -> Result<Self> {
        let is_name = !name.is_empty()
            && name.len() <= 128
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        if !is_name {
            return Err(Error::usage(format!(
                "`{}` is not the name of a credential helper",
                name.escape_debug()
            )));
        }
        let program = format!("docker-credential-{name}");
        let path = search_path
            .iter()
            .map(|directory| directory.join(&program))
            .find(|path| path.is_file());
        let Some(path) = path else {
            return Err(Error::not_found(format!("{program} is not in PATH")).hint(format!(
                "install it, or remove `{name}` from credHelpers, credsStore or credential-helpers"
            )));
        };
        Ok(Self { program, path, patience: PATIENCE })
    }

    /// Returns `docker-credential-NAME`.
    pub(super) fn program(&self) -> &str {
        &self.program
    }

    /// Returns the login stored for `server`.
    pub(super) fn get(&self, server: &str) -> Result<Option<Login>> {
        let Some(answer) = self.run("get", server.as_bytes())? else {
            return Ok(None);
        };
        let got: Map<String, Value> = serde_json::from_slice(&answer).map_err(|_| {
            Error::failed(format!("{} returned no login for {server}", self.program))
                .hint(format!("try it: echo {server} | {} get", self.program))
        })?;
        let text = |name| member(&got, name).and_then(Value::as_str).unwrap_or_default();
        let (user, secret) = (text("Username"), text("Secret"));
        if secret.is_empty() {
            return Ok(None);
        }
        let secret = Secret::new(secret);
        Ok(Some(if user == TOKEN_USER {
            Login::Identity(secret)
        } else {
            Login::Password { user: user.to_owned(), password: secret }
        }))
    }

    /// Stores a login for `server`.
    pub(super) fn store(&self, server: &str, user: &str, password: &Secret) -> Result<()> {
        let kept = Kept { server, username: user, secret: password.expose() };
        let input = serde_json::to_vec(&kept)
            .map_err(|_| Error::failed(format!("cannot pass the login to {}", self.program)))?;
        self.run("store", &input)?;
        Ok(())
    }

    /// Removes the login for `server`. Returns whether there was one.
    pub(super) fn erase(&self, server: &str) -> Result<bool> {
        // Some helpers also report success for a login that does not exist.
        if self.get(server)?.is_none() {
            return Ok(false);
        }
        Ok(self.run("erase", server.as_bytes())?.is_some())
    }

    /// Runs the helper. Returns `None` if it reports that it has no login.
    fn run(&self, action: &str, input: &[u8]) -> Result<Option<Vec<u8>>> {
        let failed = |why: &str| Error::failed(format!("{} {action} {why}", self.program));
        let mut child = Command::new(&self.path)
            .arg(action)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .path("run", &self.path)?;
        let output = child.stdout.take().map(collect);
        let errors = child.stderr.take().map(collect);
        if let Some(mut stdin) = child.stdin.take() {
            let input = input.to_vec();
            // A helper that does not read its input must not block us. A helper that has exited
            // reports its own error.
            std::thread::spawn(move || stdin.write_all(&input));
        }
        let deadline = Instant::now() + self.patience;
        let Some(success) = wait(&mut child, deadline).path("wait for", &self.path)? else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(&format!("did not end within {} s", self.patience.as_secs())));
        };
        // Processes started by the helper may keep the pipes open, but the output is complete by
        // now.
        let received = |pipe: Option<Receiver<Vec<u8>>>| {
            pipe.and_then(|pipe| pipe.recv_timeout(Duration::from_secs(2)).ok()).unwrap_or_default()
        };
        let (output, errors) = (received(output), received(errors));
        if output.len() as u64 > MAX_ANSWER {
            return Err(failed("writes too much output"));
        }
        if success {
            return Ok(Some(output));
        }
        let said = String::from_utf8_lossy(&output);
        if NOTHING.iter().any(|nothing| said.contains(nothing)) {
            return Ok(None);
        }
        let said = [said, String::from_utf8_lossy(&errors)]
            .iter()
            .map(|text| printable(text))
            .find(|text| !text.is_empty())
            .unwrap_or_else(|| "it gives no reason".to_owned());
        Err(failed(&format!("failed: {said}")))
    }
}

/// Reads a pipe to its end in a separate thread, up to one byte more than the limit.
fn collect(pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.take(MAX_ANSWER + 1).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

/// Returns whether the child succeeded; `None` if it is still running at `deadline`.
fn wait(child: &mut Child, deadline: Instant) -> std::io::Result<Option<bool>> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Returns the first line, without control characters.
fn printable(text: &str) -> String {
    text.trim()
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|character| !character.is_control())
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    /// Creates a helper that runs this shell script.
    fn helper(script: &str) -> (Helper, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "docker-credential-x", script);
        let path = ["/nonexistent".into(), directory.path().to_owned()];
        (Helper::new("x", &path).unwrap(), directory)
    }

    fn write(directory: &Path, name: &str, script: &str) {
        // A child writes the script: if another thread forked while this process holds the file
        // open for writing, running it would fail with ETXTBSY.
        let path = directory.join(name);
        let mut child = Command::new("sh")
            .args(["-c", "cat >\"$0\" && chmod 700 \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let script = format!("#!/bin/sh\n{script}\n");
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn logins_and_tokens_are_got() {
        let script = r#"read server
            case "$1 $server" in
                "get a.io") echo '{"ServerURL":"a.io","Username":"me","Secret":"pw"}';;
                "get l.io") echo '{"username":"low","secret":"er"}';;
                "get t.io") echo '{"ServerURL":"t.io","Username":"<token>","Secret":"tok"}';;
                *) echo credentials not found in native keychain; exit 1;;
            esac"#;
        let (helper, _kept) = helper(script);
        let password = Login::Password { user: "me".to_owned(), password: Secret::new("pw") };
        assert_eq!(helper.get("a.io").unwrap(), Some(password));
        let password = Login::Password { user: "low".to_owned(), password: Secret::new("er") };
        assert_eq!(helper.get("l.io").unwrap(), Some(password));
        let token = Login::Identity(Secret::new("tok"));
        assert_eq!(helper.get("t.io").unwrap(), Some(token));
        assert_eq!(helper.get("z.io").unwrap(), None);
    }

    #[test]
    fn a_helper_that_misbehaves_is_named() {
        for (script, expected) in [
            ("echo locked; exit 3", "docker-credential-x get failed: locked"),
            ("echo '\x1b[1mbad' >&2; exit 1", "failed: [1mbad"),
            ("exit 1", "gives no reason"),
            ("echo sEcret", "returned no login for a.io"),
            ("yes sEcret", "too much output"),
            ("sleep 20", "did not end within 0 s"),
        ] {
            let (helper, _kept) = helper(script);
            let patience = match script {
                "sleep 20" => Duration::from_millis(100),
                _ => PATIENCE,
            };
            let error = Helper { patience, ..helper }.get("a.io").unwrap_err();
            let told = error.to_string();
            assert!(told.contains(expected), "{script}: {told}");
            assert!(!told.contains("sEcret"), "{told}");
        }
    }

    #[test]
    fn names_stay_in_the_search_path() {
        let path = ["/usr/bin".into()];
        for name in ["", "../x", "/bin/sh", "a b", "x\n", "-;ls", &"x".repeat(200)] {
            let error = Helper::new(name, &path).err().unwrap();
            assert!(error.to_string().contains("is not the name"), "{error}");
        }
        let error = Helper::new("does-not-exist", &path).err().unwrap();
        assert!(error.to_string().contains("docker-credential-does-not-exist"));
    }
}
