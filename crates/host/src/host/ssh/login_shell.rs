//! Whether a user's login shell runs commands, and as whom. sshd passes every command to that shell,
//! which may refuse (`nologin`, `false`, `rbash`) or end in one of its start-up files. Must not depend
//! on how the question is sent.

use tokio::io::AsyncReadExt as _;

use crate::host::command::AFTER_THE_END;
use crate::host::transport::{Channel, Ended};
use imgctl_base::error::{Error, Result};
use imgctl_base::text::escape;

const BEGIN: &str = "imgctl-uid-";

/// Prints the user ID. A shell that quotes the question in a refusal does not give the answer.
pub(super) const QUESTION: &str = "printf 'imgctl-uid-%s;' \"$(id -u)\"";

/// Number of bytes that are kept of an output: start-up files may print anything before the answer.
const KEPT: usize = 4 << 10;
const LONGEST_LINE: usize = 200;

/// What a shell did with the question.
#[derive(Debug)]
pub(super) enum Answer {
    Root(bool),
    /// It ended without an answer; contains the last parts of its output and of its errors.
    Nothing(String, String, Ended),
}

/// Reads the answer to the question, which `channel` runs. Processes that start-up files leave behind
/// may keep the streams open. Standard input stays open as for commands: start-up files that read it
/// wait here, and not in a command.
pub(super) async fn read(channel: Channel) -> Result<Answer> {
    let Channel { input: _open, mut output, mut errors, mut ended } = channel;
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let (mut first, mut second) = ([0; KEPT], [0; KEPT]);
    let (mut is_open, mut errors_open) = (true, true);
    let mut how = None;
    while is_open || errors_open {
        let silence = tokio::time::sleep(AFTER_THE_END);
        tokio::select! {
            // A read error ends the stream; the end of the command tells about it.
            count = output.read(&mut first), if is_open => {
                let count = count.unwrap_or(0);
                is_open = count > 0;
                keep(&mut said, &first[..count]);
            }
            count = errors.read(&mut second), if errors_open => {
                let count = count.unwrap_or(0);
                errors_open = count > 0;
                keep(&mut complained, &second[..count]);
            }
            end = &mut ended, if how.is_none() => how = Some(end?),
            () = silence, if how.is_some() => break,
        }
        if how.is_some() && is_root(&text(&said)).is_some() {
            break;
        }
    }
    let how = match how {
        Some(how) => how,
        None => ended.await?,
    };
    let said = text(&said);
    Ok(match is_root(&said) {
        Some(is_root) => Answer::Root(is_root),
        None => Answer::Nothing(said, text(&complained), how),
    })
}

fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.extend_from_slice(bytes);
    let surplus = kept.len().saturating_sub(KEPT);
    kept.drain(..surplus);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns whether the answer is that of root; `None` if there is no answer.
fn is_root(output: &str) -> Option<bool> {
    let (_, answer) = output.rsplit_once(BEGIN)?;
    let (uid, _) = answer.split_once(';')?;
    // Without `id` the user counts as an ordinary one; sudo then reports the problem.
    uid.bytes().all(|byte| byte.is_ascii_digit()).then_some(uid == "0")
}

/// Returns the error for a shell that does not answer the question.
pub(super) fn refusal(label: &str, user: &str, output: &str, errors: &str, ended: Ended) -> Error {
    let last = |text: &str| {
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(escape(line).chars().take(LONGEST_LINE).collect::<String>())
    };
    let why = match last(errors).or_else(|| last(output)) {
        Some(said) => format!("it says: {said}"),
        None => format!("it ended with {ended} and without a message"),
    };
    if why.to_ascii_lowercase().contains("password") {
        // sshd runs `passwd` in place of the shell.
        return Error::denied(format!("{label} requires {user} to change the password: {why}"))
            .hint("log in there with ssh once and change the password, or use another user");
    }
    Error::denied(format!("the login shell of {user} on {label} runs no commands: {why}")).hint(format!(
        "check the user's shell on the host (`getent passwd {user}`), the start-up files of that shell \
         (~/.bashrc must not end it), and ForceCommand in sshd_config; or log in as another user"
    ))
}

/// Returns the error for a shell that neither answers nor ends.
pub(super) fn silent(label: &str, user: &str, seconds: u64) -> Error {
    Error::denied(format!(
        "the login shell of {user} on {label} runs no commands: it is still starting after {seconds} s"
    ))
    .hint(
        "check the start-up files of the shell there (~/.bashrc, ~/.profile, ~/.cshrc, ~/.login) and \
         ForceCommand in sshd_config: something in them waits or reads standard input",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_shells_are_told_from_refusals() {
        for (output, expected) in [
            ("imgctl-uid-0;", Some(true)),
            ("welcome\nimgctl-uid-1000;", Some(false)),
            ("imgctl-uid-;", Some(false)),
            ("cannot run: printf 'imgctl-uid-%s;' \"$(id -u)\"", None),
            ("This account is currently not available.\n", None),
            ("", None),
        ] {
            assert_eq!(is_root(output), expected, "{output}");
        }
    }

    #[test]
    fn a_refusal_has_the_words_of_the_shell() {
        let told =
            refusal("h1", "ops", "This account is currently not available.\n", "", Ended::Code(1));
        assert!(told.to_string().ends_with("it says: This account is currently not available."));
        let told =
            refusal("h1", "ops", "motd\n", "rbash: line 1: exec: restricted\n", Ended::Code(1));
        assert!(told.to_string().contains("exec: restricted"), "{told}");
        let expired = "Password change required but no TTY available.\n";
        let told = refusal("h1", "ops", "", expired, Ended::Code(1));
        assert!(told.hints().iter().any(|hint| hint.contains("change the password")), "{told}");
        let told = refusal("h1", "ops", "", "\n", Ended::Code(0));
        assert!(
            told.to_string().contains("ops on h1") && told.to_string().contains("code 0"),
            "{told}"
        );
        assert!(told.hints().iter().any(|hint| hint.contains(".bashrc")));
    }
}
