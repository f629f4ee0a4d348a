//! Yes-or-no questions.

use std::io::{self, BufRead, IsTerminal as _};

use crate::error::{IoContext, Result};
use crate::ui::output;
use crate::ui::terminal::{Stream, is_terminal};

/// Whether somebody sits at a terminal who sees the question and can answer.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && is_terminal(Stream::Error)
}

/// Asks on stderr, reads the answer from stdin.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    output::stderr(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .doing(|| "cannot read the answer".to_owned())?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for (answer, expected) in [
            ("y\n", true),
            (" YES \n", true),
            ("\n", false),
            ("yeah\n", false),
        ] {
            assert_eq!(is_yes(answer), expected);
        }
    }
}
