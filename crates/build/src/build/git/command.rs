//! The installed git, run so that only the repository decides about the files: not the caller's
//! repository, configuration, hooks or attributes. Must not know what is fetched.

use std::path::Path;
use std::process::Command;

use imgctl_base::error::{Error, IoContext as _, Kind, Result};

/// Protocols that git may use; `ext::` and `file` would run programs or read files on this machine.
const PROTOCOLS: &str = "git:http:https:ssh";

/// Variables that lead git to another repository or change the files that it writes. Git sets some of
/// them for hooks, which may run a build. What decides only about access (`GIT_SSH_COMMAND`,
/// `GIT_SSL_CAINFO`, …) stays.
const FOREIGN: [&str; 27] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_ATTR_SOURCE",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DEFAULT_HASH",
    "GIT_DEFAULT_REF_FORMAT",
    "GIT_DIR",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_GLOB_PATHSPECS",
    "GIT_GRAFT_FILE",
    "GIT_ICASE_PATHSPECS",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INDEX_VERSION",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NAMESPACE",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// Settings of every call. A git that knows `GIT_CONFIG_GLOBAL` (2.32) reads no file of the user or the
/// system; for an older one these are the settings that change files.
const SETTINGS: [&str; 8] = [
    "-c",
    "core.autocrlf=false",
    "-c",
    "core.attributesFile=/dev/null",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.logAllRefUpdates=false",
];

/// An `Authorization` header for the URLs below `place`.
pub(super) struct Login {
    pub place: String,
    pub header: String,
}

/// Git, in one directory.
pub(super) struct Git<'a> {
    pub directory: &'a Path,
    pub login: Option<Login>,
    /// More settings, as names and values.
    pub settings: Vec<(String, String)>,
    /// Whether the repository itself, but not what it refers to, may be in a directory of this machine.
    pub reads_files: bool,
}

/// Commands that take what git is told to, never what the files of a repository name.
const DIRECT: [&str; 2] = ["ls-remote", "fetch"];

impl Git<'_> {
    /// Runs git, and returns what it prints.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<String> {
        let is_direct = arguments.first().is_some_and(|command| DIRECT.contains(command));
        let protocols = if self.reads_files && is_direct {
            format!("{PROTOCOLS}:file")
        } else {
            PROTOCOLS.to_owned()
        };
        let mut command = Command::new("git");
        FOREIGN.iter().for_each(|name| {
            command.env_remove(name);
        });
        command
            .args(SETTINGS)
            .args(arguments)
            .current_dir(self.directory)
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TEMPLATE_DIR", "")
            .env("GIT_CEILING_DIRECTORIES", self.directory.parent().unwrap_or(self.directory))
            .env("GIT_ALLOW_PROTOCOL", protocols)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_LFS_SKIP_SMUDGE", "1");
        // Not as arguments: those are visible to every user of the machine.
        let header =
            |login: &Login| (format!("http.{}.extraHeader", login.place), login.header.clone());
        let settings: Vec<_> =
            self.settings.iter().cloned().chain(self.login.as_ref().map(header)).collect();
        command.env("GIT_CONFIG_COUNT", settings.len().to_string());
        for (number, (name, value)) in settings.iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{number}"), name);
            command.env(format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        let output = command
            .output()
            .doing(|| "cannot run git, which ADD needs for a repository".to_owned())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new(Kind::Network, format!("git said: {said}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_names_a_repository_is_removed() {
        let printed = Command::new("git").args(["rev-parse", "--local-env-vars"]).output().unwrap();
        let names = String::from_utf8(printed.stdout).unwrap();
        assert!(names.contains("GIT_DIR"), "{names}");
        for name in names.lines() {
            assert!(FOREIGN.contains(&name), "{name}");
        }
    }
}
