//! Opens simple signing's OpenPGP messages with the installed `gpgv`, in a separate directory and
//! with only the given keys.
//!
//! Relies on its status lines, not on its exit code alone. Must not depend on the content of a
//! message.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Resource, Rlimit};

use crate::payload::MAX_PAYLOAD;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic::remove_tree;

/// Maximum size of a signed message, in bytes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 20;
/// Maximum size of the status output; a message with one signature gives a few hundred bytes.
const MAX_STATUS: u64 = 64 << 10;

const PROGRAM: &str = "gpgv";
const PROGRAMS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns the content of `message` if exactly one of the keys in `keyrings` (binary or armoured)
/// signed all of it.
pub(super) fn open(message: &[u8], keyrings: &[Vec<u8>]) -> Result<Vec<u8>> {
    if message.len() as u64 > MAX_MESSAGE {
        return Err(Error::bad_content("a GPG signature is too long"));
    }
    let home = Home::make()?;
    let output = home.path.join("content");
    let mut command = Command::new(PROGRAM);
    command
        .env_clear()
        .env("PATH", PROGRAMS)
        .arg("--homedir")
        .arg(&home.path)
        .args(["--status-fd", "1", "--output"])
        .arg(&output)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    for (index, keyring) in keyrings.iter().enumerate() {
        let path = home.path.join(format!("keys{index}.gpg"));
        write(&path, &binary(keyring)?)?;
        command.arg("--keyring").arg(path);
    }
    let child = command.arg("-").spawn().map_err(|error| {
        Error::io(format!("cannot run {PROGRAM}, which verifies GPG signatures"), error)
            .hint("install gpgv (Debian: gpgv, Fedora: gnupg2)")
    })?;
    let status = run(child, message)?;
    verdict(&status)?;
    let mut content = Vec::new();
    std::fs::File::open(&output)
        .and_then(|file| file.take(MAX_PAYLOAD).read_to_end(&mut content))
        .path("read", &output)?;
    Ok(content)
}

/// Writes the message to gpgv and returns the status lines.
fn run(mut child: Child, message: &[u8]) -> Result<String> {
    let doing = || format!("cannot talk to {PROGRAM}");
    // Set before gpgv reads anything: a few bytes of compressed data can expand to gigabytes.
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let limit = Rlimit { current: Some(MAX_PAYLOAD), maximum: Some(MAX_PAYLOAD) };
        rustix::process::prlimit(Some(pid), Resource::Fsize, limit).doing(doing)?;
    }
    // A thread feeds the message while the status is read. A failed write is ignored: gpgv may stop
    // before the end of the message.
    let stdin = child.stdin.take();
    let mut status = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(message)));
        let read =
            child.stdout.take().map(|stdout| stdout.take(MAX_STATUS).read_to_end(&mut status));
        if status.len() as u64 >= MAX_STATUS {
            let _ = child.kill();
        }
        read.transpose().doing(doing)
    })?;
    child.wait().doing(doing)?;
    Ok(String::from_utf8_lossy(&status).into_owned())
}

/// Accepts exactly one text and one good signature, and nothing bad. (A message can contain several
/// texts and signatures that do not all belong together.)
fn verdict(status: &str) -> Result<()> {
    let denied = |why: &str| Err(Error::new(Kind::Denied, why.to_owned()));
    let mut words = Vec::new();
    for line in status.lines() {
        let word = line.strip_prefix("[GNUPG:] ").and_then(|rest| rest.split(' ').next());
        words.extend(word);
    }
    let count = |wanted: &str| words.iter().filter(|word| **word == wanted).count();
    for (bad, why) in [
        ("NO_PUBKEY", "a GPG signature was made with another key"),
        ("BADSIG", "a GPG signature does not match the signed text"),
        ("EXPSIG", "a GPG signature has expired"),
        ("EXPKEYSIG", "a GPG signature was made with an expired key"),
        ("REVKEYSIG", "a GPG signature was made with a revoked key"),
        ("ERRSIG", "a GPG signature cannot be checked"),
        ("NODATA", "this is not a GPG signature"),
    ] {
        if count(bad) > 0 {
            return denied(why);
        }
    }
    let is_one = |word| count(word) == 1;
    if ["NEWSIG", "PLAINTEXT", "GOODSIG", "VALIDSIG"].into_iter().all(is_one) {
        return Ok(());
    }
    denied("this is not one text with one GPG signature")
}

/// Removes the armour of a keyring (RFC 4880, section 6.2), because gpgv only reads binary
/// keyrings.
fn binary(keyring: &[u8]) -> Result<Vec<u8>> {
    const BEGIN: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";
    const END: &str = "-----END PGP PUBLIC KEY BLOCK-----";
    let Some(text) = std::str::from_utf8(keyring).ok().filter(|t| t.contains(BEGIN)) else {
        return Ok(keyring.to_vec());
    };
    let wrong = || Error::bad_content("the policy's GPG keyring has a malformed armour");
    let mut keys = Vec::new();
    for block in text.split(BEGIN).skip(1) {
        let (block, _) = block.split_once(END).ok_or_else(wrong)?;
        // Headers end at an empty line; a line that starts with `=` is the checksum.
        let mut body = String::new();
        let mut in_body = false;
        for line in block.trim_start_matches(['\r', '\n']).lines().map(str::trim) {
            if in_body && line.starts_with('=') {
                break;
            }
            if in_body || !line.contains(": ") {
                in_body = true;
                body.push_str(line);
            }
        }
        keys.extend(STANDARD.decode(body).map_err(|_| wrong())?);
    }
    Ok(keys)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .path("write", path)
}

/// A directory that only this user can access; removed on drop.
struct Home {
    path: PathBuf,
}

impl Home {
    fn make() -> Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = PathBuf::from(format!("/tmp/imgctl-gpg-{}-{number}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                // Left by a killed process with the same ID, or created by another user.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("cannot make a directory in /tmp", error)),
            }
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.path) {
            tracing::debug!(%error, "cannot remove a temporary directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gpg home with one key; drop stops the agent.
    struct Signer(tempfile::TempDir);

    impl Signer {
        fn new() -> Self {
            let signer = Self(tempfile::tempdir().unwrap());
            signer.gpg(
                &["--quick-gen-key", "Test <test@example.com>", "ed25519", "sign", "never"],
                b"",
            );
            signer
        }

        fn gpg(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
            let mut child = Command::new("gpg")
                .env("GNUPGHOME", self.0.path())
                .args(["--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""])
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(input).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{arguments:?}");
            output.stdout
        }
    }

    impl Drop for Signer {
        fn drop(&mut self) {
            let _ = Command::new("gpgconf")
                .env("GNUPGHOME", self.0.path())
                .args(["--kill", "all"])
                .status();
        }
    }

    #[test]
    fn a_message_is_opened_by_its_signers_key_only() {
        let (signer, other) = (Signer::new(), Signer::new());
        let (key, armoured) =
            (signer.gpg(&["--export"], b""), signer.gpg(&["--export", "--armor"], b""));
        let others = other.gpg(&["--export"], b"");
        let message = signer.gpg(&["--sign"], b"the text");
        for keys in [vec![key.clone()], vec![armoured.clone()], vec![others.clone(), key.clone()]] {
            assert_eq!(open(&message, &keys).unwrap(), b"the text");
        }
        let why = |message: &[u8], keys: &[Vec<u8>]| open(message, keys).unwrap_err().to_string();
        assert!(why(&message, &[others]).contains("another key"));
        assert!(why(b"no message", std::slice::from_ref(&key)).contains("is not a GPG signature"));
        // Two good messages in a row do not count as one.
        let plain = signer.gpg(&["--sign", "--compress-algo", "none"], b"the text");
        let twice = plain.repeat(2);
        open(&twice, std::slice::from_ref(&key)).unwrap_err();
        let bomb = signer.gpg(&["--sign", "--compress-algo", "bzip2"], &vec![0; 8 << 20]);
        assert!(bomb.len() < 10_000);
        open(&bomb, &[key]).unwrap_err();
    }

    #[test]
    fn the_verdict_needs_one_of_each_and_nothing_bad() {
        let good = "[GNUPG:] NEWSIG\n[GNUPG:] PLAINTEXT 62 1 x\n[GNUPG:] GOODSIG A b\n[GNUPG:] VALIDSIG C\n";
        verdict(good).unwrap();
        for bad in [
            good.replace("GOODSIG", "EXPKEYSIG"),
            good.replace("[GNUPG:] VALIDSIG C\n", ""),
            format!("{good}[GNUPG:] PLAINTEXT 62 1 x\n"),
            format!("{good}[GNUPG:] BADSIG A b\n"),
            good.replace("[GNUPG:] ", "gpgv: "),
            String::new(),
        ] {
            assert!(verdict(&bad).is_err(), "{bad}");
        }
    }
}
