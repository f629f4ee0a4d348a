//! The meaning of an image's ENTRYPOINT and CMD for a cluster image: a list of shell commands, with
//! variables in the notation of Kubernetes and the shell.
//!
//! Text processing only. Runs nothing.

use std::collections::BTreeMap;
use std::path::Path;

use imgctl_base::image::ContainerConfig;

/// Variables by name.
pub(super) type Environment = BTreeMap<String, String>;

/// Returns the image's `ENV` with `overrides` applied; an entry without `=` is an empty variable.
pub(super) fn environment(config: &ContainerConfig, overrides: &[(String, String)]) -> Environment {
    let mut environment: Environment = config
        .env
        .iter()
        .map(|entry| {
            let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
            (key.to_owned(), value.to_owned())
        })
        .collect();
    environment.extend(overrides.iter().cloned());
    environment
}

/// Returns the commands, each a separate shell command. `/bin/sh` and `-c` are dropped, so the
/// shell form is one command.
pub(super) fn commands(config: &ContainerConfig, environment: &Environment) -> Vec<String> {
    let entrypoint = config.entrypoint.iter().flatten();
    entrypoint
        .chain(config.cmd.iter().flatten())
        .filter(|element| !matches!(element.as_str(), "/bin/sh" | "-c"))
        .map(|element| expand(element, environment))
        .collect()
}

/// Returns one script that has the same effect as running the image: it stops at the first command
/// that fails, and quotes values so that they are passed on unchanged.
pub(super) fn script(commands: &[String], environment: &Environment, directory: &Path) -> String {
    let mut parts = vec!["set -e".to_owned()];
    let variables: Vec<String> = environment
        .iter()
        .filter(|(key, _)| is_name(key))
        .map(|(key, value)| format!("{key}={}", quote(value)))
        .collect();
    if !variables.is_empty() {
        parts.push(format!("export {}", variables.join(" ")));
    }
    parts.push(format!("cd {}", quote(&directory.to_string_lossy())));
    parts.extend(commands.iter().cloned());
    // A comment or here-document would absorb the rest of its line.
    let needs_lines = commands
        .iter()
        .any(|command| command.contains('#') || command.contains('\n') || command.contains("<<"));
    parts.join(if needs_lines { "\n" } else { "; " })
}

/// Replaces `$(VAR)`, `${VAR}` and `$VAR` of known variables; `$$` becomes a dollar sign.
/// Everything else remains as written: `$(date)`, `${X:-default}` and `$1` are for the shell.
pub(super) fn expand(text: &str, environment: &Environment) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        let (before, from) = rest.split_at(dollar);
        out.push_str(before);
        let after = &from[1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
            continue;
        }
        match variable(after).and_then(|(name, length)| Some((environment.get(name)?, length))) {
            Some((value, length)) => {
                out.push_str(value);
                rest = &after[length..];
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Returns the variable at the start of `text` (which follows a `$`), and the length of its
/// notation.
fn variable(text: &str) -> Option<(&str, usize)> {
    for (open, close) in [('(', ')'), ('{', '}')] {
        if let Some(inner) = text.strip_prefix(open) {
            let (name, _) = inner.split_once(close)?;
            return is_name(name).then_some((name, name.len() + 2));
        }
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    let name = &text[..end];
    is_name(name).then_some((name, end))
}

fn is_name(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Quotes a value: single quotes protect everything except themselves.
fn quote(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,@%+=".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment_of(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_known_variables_are_replaced() {
        let environment = environment_of(&[("A", "1"), ("LONG_er2", "x y"), ("E", "")]);
        for (text, expected) in [
            ("$(A) ${A} $A", "1 1 1"),
            ("$A$(LONG_er2)", "1x y"),
            ("$AB $(B) ${B}", "$AB $(B) ${B}"),
            ("$(date) ${A:-2} $1 $? $", "$(date) ${A:-2} $1 $? $"),
            ("$$A $$$A", "$A $1"),
            ("[$E]", "[]"),
            ("${A", "${A"),
            ("é$Aé", "é1é"),
        ] {
            assert_eq!(expand(text, &environment), expected, "{text}");
        }
    }

    #[test]
    fn elements_are_commands_and_the_shell_form_is_one() {
        let list = |elements: &[&str]| {
            Some(elements.iter().map(|element| (*element).to_owned()).collect())
        };
        let config = ContainerConfig {
            env: vec!["NAME=app".into(), "EMPTY".into()],
            entrypoint: list(&["echo $(NAME)"]),
            cmd: list(&["/bin/sh", "-c", "a && b"]),
            ..ContainerConfig::default()
        };
        let environment = environment(&config, &[("NAME".into(), "it's $x".into())]);
        let commands = commands(&config, &environment);
        assert_eq!(commands, ["echo it's $x", "a && b"]);
        assert_eq!(
            script(&["a".into(), "b".into()], &environment, Path::new("/m n")),
            r"set -e; export EMPTY='' NAME='it'\''s $x'; cd '/m n'; a; b"
        );
        assert_eq!(
            script(&["a # all".into()], &Environment::new(), Path::new("/m")),
            "set -e\ncd /m\na # all"
        );
    }
}
