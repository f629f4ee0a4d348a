//! Yes-or-no questions.

use std::io::{self, BufRead};

use crate::error::{Error, IoContext, Result};
use crate::ui::output;
use crate::ui::terminal::{Stream, is_terminal};

/// Asks on stderr, reads the answer from stdin. Without a terminal there is nobody to ask.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    use std::io::IsTerminal as _;
    if !io::stdin().is_terminal() || !is_terminal(Stream::Error) {
        return Err(Error::usage(format!("{question} needs an answer"))
            .hint("there is no terminal to ask on: give --yes (or IMGCTL_YES=1)"));
    }
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
