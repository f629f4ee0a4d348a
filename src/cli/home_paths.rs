//! `~/` at the beginning of options that name a file on this machine: `--pk=~/key`. Shells do not
//! expand it there, and ssh and the Clusterfile do. Must not know the options.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, StringValueParser, TypedValueParser as _};
use clap::{Arg, Command};

/// Returns the grammar in which options for files expand `~/` to `home`.
pub(super) fn expanding(command: Command, home: Option<&Path>) -> Command {
    let Some(home) = home else { return command };
    let verbs: Vec<String> =
        command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    let command = command.mut_args(|option| expanding_option(option, home));
    verbs.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |verb| expanding(verb, Some(home)))
    })
}

fn expanding_option(option: Arg, home: &Path) -> Arg {
    let home = home.to_owned();
    if option.is_positional() {
        return option;
    }
    let takes = option.get_value_parser().type_id();
    if takes == TypeId::of::<PathBuf>() {
        return option.value_parser(PathBufValueParser::new().map(move |path| expand(path, &home)));
    }
    let names = option.get_value_names().unwrap_or_default();
    // `RECIPIENT|FILE`
    if takes == TypeId::of::<String>() && names.iter().any(|name| name.ends_with("|FILE")) {
        let expand = move |text: String| match expand(PathBuf::from(&text), &home).into_os_string()
        {
            path if path == OsString::from(&text) => text,
            path => path.into_string().unwrap_or(text),
        };
        return option.value_parser(StringValueParser::new().map(expand));
    }
    option
}

fn expand(path: PathBuf, home: &Path) -> PathBuf {
    match path.strip_prefix("~") {
        Ok(rest) if rest.as_os_str().is_empty() => home.to_owned(),
        Ok(rest) => home.join(rest),
        Err(_) => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::{Verb, parse};

    fn parsed(words: &[&str], home: Option<&str>) -> String {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        let parsed = parse(&words, clap::ColorChoice::Never, home.map(Path::new));
        let (_, verb, _): (_, Verb, _) = parsed.unwrap();
        format!("{verb:?}")
    }

    #[test]
    fn options_for_files_begin_at_home_and_others_do_not() {
        let words = [
            "imgctl",
            "exec",
            "--ips",
            "h",
            "--pk=~/key",
            "-i",
            "~/other",
            "--passwd-file=~/pw",
            "--known-hosts=~",
            "--ssh-config=./~/x",
            "--user=~/u",
            "cat",
            "~/of-the-host",
        ];
        let text = parsed(&words, Some("/home/x"));
        for part in
            ["\"/home/x/key\"", "\"/home/x/other\"", "\"/home/x/pw\"", "\"/home/x\"", "\"./~/x\""]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("\"~/u\"") && text.contains("\"~/of-the-host\""), "{text}");
        assert!(parsed(&words, None).contains("\"~/key\""));
    }

    #[test]
    fn verbs_below_verbs_and_lists_of_files_expand_too() {
        let words = ["imgctl", "run", "x", "--encrypt-state=~/r", "--env=A=~/a", "--cmd=~/run"];
        let text = parsed(&words, Some("/h"));
        assert!(text.contains("\"/h/r\"") && text.contains("A=~/a") && text.contains("\"~/run\""));
        let words = ["imgctl", "run", "x", "--config-file=~/a,~/b", "--encrypt-state=age1xyz"];
        let text = parsed(&words, Some("/h"));
        assert!(text.contains("\"/h/a\"") && text.contains("\"/h/b\"") && text.contains("age1xyz"));
    }
}
