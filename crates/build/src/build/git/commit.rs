//! The time of a context's last commit. The repository is a stranger's: its configuration must run nothing and
//! fetch nothing. Must not know how the time is used.

use std::path::Path;
use std::process::Command;

use super::command::FOREIGN;
use imgctl_base::error::{Error, IoContext as _, Result};

/// Settings that count over those of the repository. A directory that only looks like a repository (HEAD, objects,
/// refs) may be a part of a checkout, with a configuration of its author.
const SETTINGS: [&str; 12] = [
    "-c",
    "safe.bareRepository=explicit",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "gpg.program=false",
    "-c",
    "log.showSignature=false",
    "-c",
    "protocol.allow=never",
];

/// Returns the time of the last commit of the repository that `directory` is in, in seconds since 1970.
///
/// # Errors
/// If there is none, or git is not installed.
pub fn commit_time(directory: &Path) -> Result<i64> {
    let mut command = Command::new("git");
    FOREIGN.iter().for_each(|name| {
        command.env_remove(name);
    });
    let output = command
        .args(SETTINGS)
        .arg("-C")
        .arg(directory)
        .args(["log", "-1", "--format=%ct"])
        .env("LC_ALL", "C")
        // Objects that a partial clone lacks are not fetched: no protocol is allowed.
        .env("GIT_ALLOW_PROTOCOL", "none")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .output()
        .doing(|| "cannot run git for --reproducible".to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| {
        Error::usage(format!("--reproducible: {} has no git commit", directory.display()))
            .caused_by(Error::failed(String::from_utf8_lossy(&output.stderr).trim()))
            .hint("pass --timestamp SECONDS instead")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(directory: &Path, arguments: &[&str]) {
        let as_somebody = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let mut command = Command::new("git");
        command.arg("-C").arg(directory).args(as_somebody).args(arguments);
        let done = command.env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn what_a_repository_configures_is_not_run() {
        let place = tempfile::tempdir().unwrap();
        let (work, ran) = (place.path().join("work"), place.path().join("ran"));
        let fake = work.join("bare");
        std::fs::create_dir_all(fake.join("refs/heads")).unwrap();
        std::fs::create_dir_all(fake.join("objects")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(fake.join(name), text).unwrap();
        write("HEAD", "ref: refs/heads/main");
        write("refs/heads/main", &"1".repeat(40));
        write("Kubefile", "FROM scratch\n");
        let remote = format!(
            "[extensions]\npartialClone = o\n[remote \"o\"]\npromisor = true\n\
             url = \"ext::sh -c id>{}\"\n[protocol \"ext\"]\nallow = always\n",
            ran.display()
        );
        let core = "[core]\nrepositoryformatversion = 1\nbare = true\n";
        write("config", &format!("{core}{remote}"));
        git(&work, &["init", "-q"]);
        git(&work, &["add", "bare/Kubefile"]);
        git(&work, &["commit", "-qm", "x", "--date=@1700000000"]);
        let own = commit_time(&work).unwrap();
        assert!(own > 1_700_000_000, "{own}");
        // Git from 2.38 looks above what only looks like a repository; an older one fails.
        assert!(commit_time(&fake).map_or(true, |time| time == own));
        assert!(!ran.exists());
        // Plain git runs the program, so the repository is hostile and the settings protect.
        let mut plain = Command::new("git");
        plain.arg("-C").arg(&fake).args(["log", "-1", "--format=%ct"]);
        plain.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", place.path()).output().unwrap();
        assert!(ran.exists(), "git did not read the configuration of {}", fake.display());
    }
}
