//! Questions to the user at the terminal.

use std::io::{self, BufRead, IsTerminal as _, Read as _};

use nix::sys::termios::{self, LocalFlags, SetArg, Termios};

use crate::edge::{self, Stream, is_terminal};
use imgctl_base::error::{Error, IoContext, Kind, Result};

/// Returns whether a user at a terminal can see a question and answer it.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && is_terminal(Stream::Error)
}

/// Asks on stderr and reads the answer from stdin.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    edge::question(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).doing(|| "cannot read the answer".to_owned())?;
    Ok(is_yes(&answer))
}

/// Asks on stderr and reads a line from stdin; trims surrounding spaces.
pub(crate) fn line(question: &str) -> Result<String> {
    edge::question(question);
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.doing(|| "cannot read the answer".to_owned())? == 0 {
        edge::end_of_question();
        return Err(Error::new(Kind::Interrupted, "the input ended before an answer"));
    }
    Ok(answer.trim().to_owned())
}

/// Asks on stderr and reads a line from stdin without echo.
pub(crate) fn secret(question: &str) -> Result<String> {
    let typed = {
        // Echo is off before the question appears.
        let _silent = Silent::start()?;
        edge::question(question);
        read_secret(io::stdin().lock().bytes())
    };
    edge::end_of_question();
    match typed.doing(|| "cannot read the answer".to_owned())? {
        Typed::Text(bytes) => {
            String::from_utf8(bytes).map_err(|_| Error::usage("the answer is not UTF-8"))
        }
        Typed::Interrupted => {
            // The terminal settings are restored, so the signal can have its usual effect.
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::INT,
            );
            Err(Error::failed("interrupted"))
        }
    }
}

/// A terminal with echo and signal keys disabled: Ctrl-C must not leave echo off.
struct Silent(Termios);

impl Silent {
    fn start() -> Result<Self> {
        let before = termios::tcgetattr(io::stdin())
            .doing(|| "cannot read the terminal's settings".to_owned())?;
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG);
        termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &silent)
            .doing(|| "cannot turn off the terminal's echo".to_owned())?;
        Ok(Self(before))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

/// The result of the input.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    Text(Vec<u8>),
    Interrupted,
}

/// Reads a line with a terminal's editing keys: backspace, Ctrl-U, Ctrl-C, Ctrl-D.
fn read_secret(bytes: impl Iterator<Item = io::Result<u8>>) -> io::Result<Typed> {
    let mut text = Vec::new();
    for byte in bytes {
        match byte? {
            b'\n' | b'\r' | 0x04 => break,
            0x03 => return Ok(Typed::Interrupted),
            0x15 => text.clear(),
            0x08 | 0x7f => {
                // A UTF-8 character is its first byte and the continuation bytes (10xxxxxx).
                while text.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            byte => text.push(byte),
        }
    }
    Ok(Typed::Text(text))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_edited_as_on_a_terminal() {
        for (keys, expected) in [
            ("geheim\n", "geheim"),
            ("geheim\rrest", "geheim"),
            ("x\u{15}ge\u{7f}eim\u{4}", "geim"),
            ("gä\u{8}e\n", "ge"),
            ("\u{7f}a", "a"),
        ] {
            let typed = read_secret(keys.bytes().map(Ok)).unwrap();
            assert_eq!(typed, Typed::Text(expected.into()), "{keys:?}");
        }
        let typed = read_secret("ab\u{3}".bytes().map(Ok)).unwrap();
        assert_eq!(typed, Typed::Interrupted);
    }

    #[test]
    fn only_a_clear_yes_is_one() {
        for (answer, expected) in
            [("y\n", true), (" YES \n", true), ("\n", false), ("yeah\n", false)]
        {
            assert_eq!(is_yes(answer), expected);
        }
    }
}
