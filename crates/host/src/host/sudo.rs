//! Runs commands as root through sudo, over pipes that stay 8-bit clean.
//!
//! sudo uses a prompt that no other program prints, and the command that it starts first prints a
//! second marker. The one that appears on stderr shows the state of sudo: the password is sent only
//! when sudo asks for it, so that it can never become input of the command. Must not depend on the
//! transport.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::host::login::{Login, RECORDED};
use crate::host::transport::{Channel, Ended};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::quote::quote;
use imgctl_base::secret::Secret;

const PROMPT: &str = "[imgctl-sudo-asks]";
const STARTED: &str = "[imgctl-sudo-started]";
/// Prints [`STARTED`]. A refusal of sudo quotes the command, which must not contain the marker.
const PRINT_STARTED: &str = "printf '[imgctl-sudo-%s]' started >&2";

/// Maximum number of bytes on stderr before the prompt or the marker.
const LONGEST_PREAMBLE: usize = 64 << 10;

/// Timeout for sudo; name services and PAM modules on hosts can be slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// sudo for one user on one host.
pub(super) struct Sudo {
    host: String,
    user: String,
    password: Option<Secret>,
    is_recorded: bool,
    /// Why sudo failed, if it did: a second wrong password could lock the account.
    refused: Mutex<Option<String>>,
}

/// State of sudo according to stderr.
enum Answer {
    Password,
    /// The command runs; contains what it has already written to stderr.
    Running(Vec<u8>),
    /// sudo ended; contains its output.
    Gone(String),
}

impl Sudo {
    /// Uses the passwords of the login.
    pub(super) fn new(host: String, user: String, login: &Login) -> Self {
        let password = login.sudo_password.clone().or(login.password.clone());
        Self { host, user, password, is_recorded: login.is_recorded, refused: Mutex::new(None) }
    }

    /// Fails immediately if sudo refused before.
    pub(super) fn check(&self) -> Result<()> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match refused.as_ref() {
            Some(why) => Err(self.refusal(why)),
            None => Ok(()),
        }
    }

    /// Returns the shell line that runs `line` as root.
    pub(super) fn wrap(&self, line: &str) -> String {
        let script = format!("{PRINT_STARTED}; exec /bin/sh -c \"$1\"");
        format!(
            "LC_ALL=C exec sudo -H -S -p {} -- /bin/sh -c {} sh {}",
            quote(PROMPT),
            quote(&script),
            quote(line)
        )
    }

    /// Answers sudo's prompt; returns the channel once the command runs.
    pub(super) async fn pass(&self, channel: Channel) -> Result<Channel> {
        let outcome = tokio::time::timeout(PATIENCE, self.answer(channel)).await;
        outcome.unwrap_or_else(|_| {
            Err(Error::denied(format!("sudo on {} does not respond", self.host)))
        })
    }

    async fn answer(&self, mut channel: Channel) -> Result<Channel> {
        let mut asked = false;
        loop {
            match self.read_answer(&mut channel).await? {
                Answer::Running(early) => {
                    channel.errors = Box::new(std::io::Cursor::new(early).chain(channel.errors));
                    return Ok(channel);
                }
                Answer::Gone(said) => {
                    let ended = channel.ended.await?;
                    return Err(self.refuse(&explain(&said, ended, &self.user)));
                }
                Answer::Password if asked => {
                    return Err(self.refuse("it rejects the password"));
                }
                Answer::Password => {
                    let Some(password) = &self.password else {
                        return Err(self.refuse("it asks for a password, and none was given"));
                    };
                    asked = true;
                    let line = Secret::new(format!("{}\n", password.expose()));
                    let sent = channel.input.write_all(line.expose().as_bytes()).await;
                    sent.doing(|| format!("cannot send the password to sudo on {}", self.host))?;
                    let flushed = channel.input.flush().await;
                    flushed
                        .doing(|| format!("cannot send the password to sudo on {}", self.host))?;
                }
            }
        }
    }

    async fn read_answer(&self, channel: &mut Channel) -> Result<Answer> {
        let mut said = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            if let Some(end) = find(&said, STARTED) {
                return Ok(Answer::Running(said.split_off(end)));
            }
            if find(&said, PROMPT).is_some() {
                return Ok(Answer::Password);
            }
            if said.len() > LONGEST_PREAMBLE {
                let why = "it writes too much output before it starts";
                return Err(self.refuse(why));
            }
            let count = channel.errors.read(&mut buffer).await;
            match count.doing(|| format!("cannot read from sudo on {}", self.host))? {
                0 => return Ok(Answer::Gone(String::from_utf8_lossy(&said).trim().to_owned())),
                count => said.extend_from_slice(&buffer[..count]),
            }
        }
    }

    fn refuse(&self, why: &str) -> Error {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
        self.refusal(why)
    }

    fn refusal(&self, why: &str) -> Error {
        let error = Error::denied(format!("sudo on {} refuses {}: {why}", self.host, self.user));
        if why.contains("password") && self.is_recorded {
            error.hint(RECORDED)
        } else if why.contains("password") {
            error.hint("pass the password with --sudo-passwd-file, or log in as root")
        } else if why.contains("terminal") {
            error.hint(format!(
                "put `Defaults:{} !requiretty` into the sudoers file, or log in as root",
                self.user
            ))
        } else {
            error.hint("let the user run all commands as root (sudoers), or log in as root")
        }
    }
}

/// Returns the position after `word` in `text`.
fn find(text: &[u8], word: &str) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word.as_bytes()).map(|at| at + word.len())
}

/// Explains the last output of sudo.
fn explain(said: &str, ended: Ended, user: &str) -> String {
    let has = |words: &str| said.contains(words);
    if ended == Ended::Code(127) || has("sudo: not found") {
        return "there is no sudo on the host".to_owned();
    }
    if has("must have a tty") || has("a terminal is required") {
        return "it requires a terminal (requiretty)".to_owned();
    }
    if let Some(sentence) = not_allowed(said) {
        return sentence;
    }
    if has("is not in the sudoers file") || has("may not run sudo") {
        return format!("{user} may not use sudo there");
    }
    if has("a password is required") || has("incorrect password") {
        return "it rejects the password".to_owned();
    }
    match said.lines().last() {
        Some(last) => last.to_owned(),
        None => format!("it ended with {ended} and without a message"),
    }
}

/// Returns sudo's sentence about a command that the user may not run, with the command shortened.
fn not_allowed(said: &str) -> Option<String> {
    const VERB: &str = " is not allowed to ";
    let verb = said.find(VERB)?;
    let begin = said[..verb].rfind('\n').map_or(0, |end| end + 1);
    let sentence = said[begin..].trim();
    let Some((before, quoted)) = sentence.split_once('\'') else {
        return Some(sentence.lines().next()?.to_owned());
    };
    let (command, after) = quoted.rsplit_once('\'').unwrap_or((quoted, ""));
    let program = command.split_whitespace().next().unwrap_or_default();
    Some(format!("{before}'{program} …'{}", after.lines().next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_sudo_are_understood() {
        for (said, ended, part) in [
            ("sh: 1: exec: sudo: not found", 127, "no sudo"),
            ("sudo: sorry, you must have a tty to run sudo", 1, "terminal"),
            ("u is not in the sudoers file.", 1, "may not use sudo"),
            ("Sorry, user u may not run sudo on h.", 1, "may not use sudo"),
            ("sudo: 1 incorrect password attempt", 1, "password"),
            ("x\nsudo: strange", 1, "sudo: strange"),
            ("", 3, "exit code 3"),
        ] {
            let explained = explain(said, Ended::Code(ended), "u");
            assert!(explained.contains(part), "{said}: {explained}");
        }
    }

    #[test]
    fn a_refusal_that_quotes_the_command_is_no_start() {
        let sudo = Sudo::new("h".to_owned(), "u".to_owned(), &Login::default());
        let wrapped = sudo.wrap("id -u");
        assert!(!wrapped.contains(STARTED), "{wrapped}");
        let said = "Sorry, user u is not allowed to execute '/bin/sh -c printf '[x-%s]' started\nid' as root on h1.\n";
        let explained = explain(said, Ended::Code(1), "u");
        assert_eq!(explained, "Sorry, user u is not allowed to execute '/bin/sh …' as root on h1.");
    }

    #[test]
    fn a_line_with_quotes_survives_two_shells() {
        let sudo = Sudo::new("h".to_owned(), "u".to_owned(), &Login::default());
        let line = "printf '%s' \"it's \\$x\"";
        // Runs what sudo would run, without sudo itself.
        let wrapped = sudo.wrap(line).replace(&format!("exec sudo -H -S -p '{PROMPT}' --"), "exec");
        let output = std::process::Command::new("/bin/sh").arg("-c").arg(wrapped).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "it's $x");
        assert_eq!(output.stderr, STARTED.as_bytes());
    }
}
