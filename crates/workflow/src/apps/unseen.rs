//! Calls of kubectl and helm in an image's command that bypass the wrappers, found in the text of the command
//! alone: the scripts that it runs are not read. Must not depend on clusters.

use std::collections::BTreeSet;

use crate::apps::sudo::{PLAIN, ROOT};
use crate::apps::wrapper::Tool;

/// Words that may precede the program of a simple command and do not change the search path.
const LEADING: [&str; 15] = [
    "!", "{", "if", "then", "elif", "else", "do", "while", "until", "time", "exec", "command",
    "env", "nohup", "eval",
];
const SHELLS: [&str; 3] = ["sh", "bash", "dash"];
/// Options of sudo whose value is the next word.
const SUDO_VALUES: [&str; 9] = ["-u", "--user", "-g", "-h", "-p", "-C", "-D", "-R", "-T"];
const TOOLS: [Tool; 2] = [Tool::Kubectl, Tool::Helm];

/// Returns the calls in the line that bypass the wrappers: `sudo -u app kubectl`, `/usr/bin/helm`.
pub(super) fn calls(line: &str) -> BTreeSet<String> {
    simple_commands(line).iter().flat_map(|words| of_command(words)).collect()
}

/// Splits a line wherever a command may end. Quotes are dropped: the result only serves to find calls.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for line in line.replace("\\\n", " ").lines() {
        for command in line.split([';', '|', '&', '(', ')', '`']) {
            let words = command
                .split_whitespace()
                .take_while(|word| !word.starts_with('#'))
                .map(|word| word.replace(['"', '\''], ""));
            commands.push(words.collect());
        }
    }
    commands
}

fn of_command(words: &[String]) -> Option<String> {
    let mut words = words.iter().map(String::as_str).peekable();
    let mut sudo = None;
    let program = loop {
        let word = words.next()?;
        if base(word) == "sudo" {
            if word != "sudo" {
                sudo = Some(word.to_owned());
            }
            while let Some(option) = words.next_if(|word| word.starts_with('-')) {
                let value = if SUDO_VALUES.contains(&option) { words.next() } else { None };
                if !stays_root(option, value) {
                    sudo = Some(match value {
                        Some(value) => format!("sudo {option} {value}"),
                        None => format!("sudo {option}"),
                    });
                }
            }
        } else if SHELLS.contains(&base(word)) {
            // Only `sh -c` has the command in the line.
            let is_command = |word: &&str| word.starts_with('-') && word.ends_with('c');
            words.next_if(is_command)?;
        } else if !LEADING.contains(&word) && !is_assignment(word) {
            break word;
        }
    };
    let name = base(program);
    let is_any = |tools: [Tool; 2]| tools.iter().any(|tool| tool.name() == name);
    let name = if is_any(Tool::CARRIERS) && words.peek() == Some(&"kubectl") {
        format!("{program} kubectl")
    } else if is_any(TOOLS) {
        program.to_owned()
    } else {
        return None;
    };
    match sudo {
        Some(sudo) => Some(format!("{sudo} {name}")),
        None => program.contains('/').then_some(name),
    }
}

/// Returns whether sudo with this option still runs programs as root, in its usual environment.
fn stays_root(option: &str, value: Option<&str>) -> bool {
    match option.strip_prefix("-u").or_else(|| option.strip_prefix("--user=")) {
        Some("") => value == Some(ROOT),
        Some(user) => user == ROOT,
        None if option == "--user" => value == Some(ROOT),
        None => option == "--" || option[1..].chars().all(|letter| PLAIN.contains(letter)),
    }
}

fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_past_the_wrappers_are_named_and_no_others() {
        for (line, expected) in [
            ("cd /x && /usr/bin/kubectl apply -f a.yaml", "/usr/bin/kubectl"),
            ("A=1 ./helm install a b", "./helm"),
            ("cat a | sudo -u app kubectl apply -f -", "sudo -u app kubectl"),
            ("sudo -uapp helm install a b", "sudo -uapp helm"),
            ("sudo -i bash -ec 'kubectl apply -f a'", "sudo -i kubectl"),
            ("sudo /usr/bin/kubectl get ns", "/usr/bin/kubectl"),
            ("/usr/bin/sudo -E kubectl get ns", "/usr/bin/sudo kubectl"),
            ("bash -c \"sudo --login k3s kubectl apply -f a\"", "sudo --login k3s kubectl"),
            (
                "if ! /usr/local/bin/k3s kubectl get ns; then exit 1; fi",
                "/usr/local/bin/k3s kubectl",
            ),
            ("x=$(opt/kubectl get ns)", "opt/kubectl"),
            ("{ ${OPT}/kubectl get ns; }", "${OPT}/kubectl"),
        ] {
            assert_eq!(calls(line), BTreeSet::from([expected.to_owned()]), "{line}");
        }
        for line in [
            "",
            "sudo",
            "sudo -u",
            "kubectl apply -f a.yaml && helm upgrade -i a charts/a",
            "cp opt/helm /usr/bin/helm; chmod +x /usr/bin/kubectl",
            "helm install a https://h/a.tgz",
            "bash install.sh kubectl",
            "# sudo kubectl apply",
            "echo ${OPT}/kubectl",
            "k3s check-config",
            "/usr/local/bin/k3s check-config",
            "k3s kubectl apply -f a",
            "sudo kubectl apply -f a",
            "sudo -En -u root -- helm install a b",
            "sudo --user=root bash -c 'kubectl apply -f a'",
            "sudo --user root kubectl apply -f a",
            "kubectl apply -f a -f https://h/b.yaml",
        ] {
            assert_eq!(calls(line), BTreeSet::new(), "{line}");
        }
    }
}
