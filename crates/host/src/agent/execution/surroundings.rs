//! The environment of a command when it starts: its variables, shell and working directory.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::agent::protocol::Run;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::secret::{Redactor, Secret, is_secret_name};

/// Default search path for programs, if the request sets none.
const PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin:/snap/bin";
/// Variable in the environment of everything that a command starts; identifies leftover processes.
pub(super) const MARKER: &str = "IMGCTL_RUN";
/// Maximum length of an argument or variable that the kernel accepts (`MAX_ARG_STRLEN`).
const LONGEST_ARGUMENT: usize = (128 << 10) - 1;

/// Rejects what the kernel would reject, with an error that names the cause.
pub(super) fn check(request: &Run) -> Result<()> {
    let refuse = |what: String| Err(Error::usage(format!("cannot run {}: {what}", request.key)));
    if request.line.contains('\0') {
        return refuse("the command contains a NUL byte".to_owned());
    }
    if request.line.len() > LONGEST_ARGUMENT {
        return refuse(format!(
            "the command has {} bytes, at most {LONGEST_ARGUMENT} are allowed; put it into a script of the image",
            request.line.len()
        ));
    }
    for (name, value) in &request.environment {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return refuse(format!(
                "cannot set the variable `{name}`: a name must not be empty or contain `=`, and \
                 neither name nor value may contain a NUL byte"
            ));
        }
        if name.len() + 1 + value.len() > LONGEST_ARGUMENT {
            return refuse(format!(
                "the variable `{name}` is longer than {LONGEST_ARGUMENT} bytes"
            ));
        }
    }
    Ok(())
}

/// Returns the complete environment of the command.
pub(super) fn environment(request: &Run, marker: &str) -> BTreeMap<String, String> {
    let (user, home) = user();
    let mut variables = BTreeMap::from([
        ("PATH".to_owned(), PATH.to_owned()),
        ("HOME".to_owned(), home),
        ("LOGNAME".to_owned(), user.clone()),
        ("USER".to_owned(), user),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ("SHELL".to_owned(), "/bin/bash".to_owned()),
    ]);
    // The path as given, not the one behind its links: `cd .. && pwd` in a script must not yield
    // the current tree, which the next one replaces.
    if let Some(workdir) = &request.workdir {
        variables.insert("PWD".to_owned(), workdir.clone());
    }
    variables.extend(request.environment.clone());
    variables.insert(MARKER.to_owned(), marker.to_owned());
    variables
}

/// Returns the values of variables whose names look like secrets.
pub(super) fn secrets(request: &Run) -> Redactor {
    let mut secrets = Redactor::default();
    for (name, value) in &request.environment {
        if is_secret_name(name) {
            secrets.add(&Secret::new(value.as_str()));
        }
    }
    secrets
}

pub(super) fn bash(variables: &BTreeMap<String, String>) -> Result<PathBuf> {
    let path = variables.get("PATH").map_or(PATH, String::as_str);
    path.split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| Path::new(directory).join("bash"))
        .find(|file| {
            rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file()
        })
        .ok_or_else(|| {
            Error::failed(format!("there is no bash in {path}"))
                .hint("install bash on the host: scripts of images need it")
        })
}

/// Returns the command's working directory, which must exist.
pub(super) fn workdir(request: &Run) -> Result<PathBuf> {
    let Some(workdir) = &request.workdir else {
        return Ok(PathBuf::from("/"));
    };
    let path = PathBuf::from(workdir);
    let metadata = std::fs::metadata(&path).path("enter the working directory", &path)?;
    if !metadata.is_dir() {
        return Err(Error::not_found(format!(
            "cannot enter the working directory {workdir}: it is not a directory"
        )));
    }
    Ok(path)
}

/// Returns the name and home directory of the current user from passwd(5), never through NSS.
fn user() -> (String, String) {
    let uid = rustix::process::geteuid().as_raw();
    let file = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entry = file.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        match fields.as_slice() {
            [name, _, number, _, _, home, ..] if number.parse() == Ok(uid) => {
                Some(((*name).to_owned(), (*home).to_owned()))
            }
            _ => None,
        }
    });
    match (entry, uid) {
        (Some(entry), _) => entry,
        (None, 0) => ("root".to_owned(), "/root".to_owned()),
        (None, _) => (uid.to_string(), "/".to_owned()),
    }
}

pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// Maximum number of passes over the processes: a killed process may have started others.
const ROUNDS: usize = 5;

/// Kills all processes that have `marker` in their environment.
pub(super) fn kill_marked(marker: &str) {
    let wanted = format!("{MARKER}={marker}");
    for _ in 0..ROUNDS {
        let mut found = false;
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.parse::<i32>().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else {
                continue;
            };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_ours = environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == std::ffi::OsStr::new(&wanted).as_bytes());
            if is_ours {
                found = true;
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if !found {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(environment: &[(&str, &str)], line: &str) -> Run {
        Run {
            directory: "/runs".to_owned(),
            key: "k".to_owned(),
            line: line.to_owned(),
            workdir: None,
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            input: None,
            timeout_seconds: None,
            again: false,
        }
    }

    #[test]
    fn what_the_kernel_would_refuse_is_named() {
        assert!(check(&request(&[("a", "\" $ \\ ` , = \n"), ("ä b", "")], "true")).is_ok());
        for (environment, line, says) in [
            (vec![("", "x")], "true", "variable ``"),
            (vec![("a=b", "x")], "true", "`a=b`"),
            (vec![("a", "x\0")], "true", "NUL"),
            (vec![], "a\0b", "NUL"),
        ] {
            let error = check(&request(&environment, line)).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let long = "x".repeat(200_000);
        assert!(check(&request(&[("a", &long)], "true")).is_err());
        assert!(check(&request(&[], &long)).is_err());
    }

    #[test]
    fn the_request_beats_the_defaults_but_not_the_marker() {
        let request = request(&[("PATH", "/x"), (MARKER, "y"), ("HOME", "/h")], "");
        let variables = environment(&request, "m");
        assert_eq!(variables["PATH"], "/x");
        assert_eq!(variables["HOME"], "/h");
        assert_eq!(variables[MARKER], "m");
        assert_eq!(variables["LANG"], "C.UTF-8");
        let error = bash(&variables).unwrap_err();
        assert!(error.hints()[0].contains("install bash"), "{error}");
    }
}
