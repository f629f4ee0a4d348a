//! The help of `imgctl` itself: all verbs under headings, and the global options, on two screens.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Args as _, Command};

use imgctl_frontend::settings::Globals;
use imgctl_ui::edge;

/// Each visible verb, under the heading of what it is for.
const GROUPS: [(&str, &[&str]); 7] = [
    (
        "Build images",
        &[
            "init", "recipe", "build", "bake", "lock", "update", "merge", "rebase", "annotate",
            "tag", "manifest", "sbom",
        ],
    ),
    (
        "Ship images",
        &[
            "pull",
            "push",
            "copy",
            "save",
            "load",
            "bundle",
            "tags",
            "login",
            "logout",
            "registry",
            "sign",
            "verify",
            "key",
            "attach",
            "attest-blob",
            "verify-blob-attestation",
        ],
    ),
    (
        "Run clusters",
        &[
            "run",
            "apply",
            "add",
            "adopt",
            "delete",
            "renumber",
            "uninstall",
            "reset",
            "gen",
            "plan",
            "exec",
            "scp",
        ],
    ),
    (
        "Upgrade and back up clusters",
        &["upgrade", "rehearse", "rollback", "inplace", "backup", "restore"],
    ),
    (
        "Inspect",
        &[
            "images",
            "inspect",
            "history",
            "tree",
            "ls",
            "cat",
            "diff",
            "mount",
            "umount",
            "mounts",
            "create",
            "export",
            "render",
            "clusters",
            "status",
            "env",
            "journal",
            "report",
            "ui",
            "support-bundle",
        ],
    ),
    ("Maintain", &["cache", "cert", "df", "prune", "rmi", "scrub", "state"]),
    ("imgctl", &["testbed", "version", "completion", "man", "help"]),
];

/// `help` is clap's own: it is added when the grammar is built.
const HELP: (&str, &str) = ("help", "Show the help of a command");

/// Returns `command` with the overview as its help.
pub(crate) fn extend(command: Command) -> Command {
    let mut text = String::new();
    if let Some(about) = command.get_about() {
        let _ = writeln!(text, "{about}\n");
    }
    text.push_str("Usage: imgctl [OPTIONS] <COMMAND>\n");
    for (heading, verbs) in GROUPS {
        let _ = write!(text, "\n{heading}:\n");
        for verb in verbs {
            if let Some(line) = line(&command, verb) {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    let _ = write!(text, "\n{}", options().ansi());
    let after = command.get_after_help().map(ToString::to_string);
    let _ = write!(text, "\nDetails: `imgctl COMMAND --help`. {}\n", after.unwrap_or_default());
    // clap wraps no help that it did not write.
    let text = match edge::columns() {
        Some(columns) => wrapped(&text, columns),
        None => text,
    };
    command.override_help(text)
}

/// Breaks lines that are longer than `columns` between words; what follows is indented as the summaries are.
fn wrapped(text: &str, columns: usize) -> String {
    const INDENT: usize = 14;
    let mut shown = String::new();
    for line in text.lines() {
        let is_styled = line.contains('\u{1b}');
        let (mut rest, mut indent) = (line, 0);
        while !is_styled && rest.chars().count() + indent > columns.max(2 * INDENT) {
            let room = columns.max(2 * INDENT) - indent;
            let end = rest.char_indices().nth(room).map_or(rest.len(), |(at, _)| at);
            let start = rest.len() - rest.trim_start().len();
            let Some(cut) = rest[..end].rfind(' ').filter(|cut| *cut > start) else { break };
            let _ = writeln!(shown, "{:indent$}{}", "", rest[..cut].trim_end());
            (rest, indent) = (rest[cut..].trim_start(), INDENT);
        }
        let _ = writeln!(shown, "{:indent$}{rest}", "");
    }
    shown
}

/// Returns the line of a verb: name, summary, aliases.
fn line(command: &Command, verb: &str) -> Option<String> {
    if verb == HELP.0 {
        return Some(format!("  {:<11} {}", HELP.0, HELP.1));
    }
    let found = command.find_subcommand(verb)?;
    let about = found.get_about().map(ToString::to_string);
    let aliases: Vec<&str> = found.get_visible_aliases().collect();
    let aliases = match aliases[..] {
        [] => String::new(),
        _ => format!(" [alias: {}]", aliases.join(", ")),
    };
    Some(format!("  {verb:<11} {}{aliases}", about.unwrap_or_default()))
}

/// Returns the global options in their short form.
pub(crate) fn options() -> StyledStr {
    let mut command = Globals::augment_args(Command::new("imgctl"))
        .version("1")
        .max_term_width(100)
        .help_template("{all-args}");
    command.render_help()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments;

    #[test]
    fn every_visible_verb_has_one_place_and_a_line_that_fits() {
        let command = arguments::command();
        let mut there: Vec<&str> = command
            .get_subcommands()
            .filter(|verb| !verb.is_hide_set())
            .map(Command::get_name)
            .chain([HELP.0])
            .collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| *verbs).copied().collect();
        there.sort_unstable();
        there.dedup();
        grouped.sort_unstable();
        assert_eq!(grouped, there);
        for verb in grouped {
            let line = line(&command, verb).unwrap();
            assert!(line.len() <= 100, "{line}");
        }
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        let text = "Build:\n  build       Build an image from a Kubefile or a Dockerfile\n";
        let expected =
            "Build:\n  build       Build an image from a\n              Kubefile or a Dockerfile\n";
        assert_eq!(wrapped(text, 40), expected);
        assert_eq!(wrapped(text, 100), text);
        let word = format!("{}\n", "a".repeat(50));
        assert_eq!(wrapped(&word, 40), word);
    }

    #[test]
    fn the_overview_fits_on_two_screens() {
        let mut command = arguments::command();
        let help = command.render_long_help().to_string();
        assert!(help.lines().count() <= 118, "{help}");
        for part in ["Build images:\n  init ", "--root <DIR>", "docs/cli.md"] {
            assert!(help.contains(part), "{help}");
        }
    }
}
