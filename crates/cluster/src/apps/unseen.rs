//! Calls of kubectl and helm in an image's command that bypass the wrappers, found in the text of the command
//! alone: the scripts that it runs are not read. Must not depend on clusters.

use std::collections::BTreeSet;

/// Words that may precede the program of a simple command and do not change the search path.
const LEADING: [&str; 15] = [
    "!", "{", "if", "then", "elif", "else", "do", "while", "until", "time", "exec", "command",
    "env", "nohup", "eval",
];
const SHELLS: [&str; 3] = ["sh", "bash", "dash"];
/// Options of sudo whose value is the next word.
const SUDO_VALUES: [&str; 8] = ["-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T"];
const TOOLS: [&str; 2] = ["kubectl", "helm"];
/// Programs that contain a kubectl.
const CARRIERS: [&str; 2] = ["k3s", "k0s"];

/// Returns the calls in the line that bypass the wrappers: `sudo kubectl`, `/usr/bin/helm`, `k3s kubectl`,
/// `kubectl -f URL`.
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

fn of_command(words: &[String]) -> Vec<String> {
    let mut words = words.iter().map(String::as_str).peekable();
    let mut sudo = false;
    let program = loop {
        let Some(word) = words.next() else { return Vec::new() };
        if word == "sudo" {
            sudo = true;
            while let Some(option) = words.next_if(|word| word.starts_with('-')) {
                if SUDO_VALUES.contains(&option) {
                    words.next();
                }
            }
        } else if SHELLS.contains(&base(word)) {
            // Only `sh -c` has the command in the line.
            let is_command = |word: &&str| word.starts_with('-') && word.ends_with('c');
            if words.next_if(is_command).is_none() {
                return Vec::new();
            }
        } else if !LEADING.contains(&word) && !is_assignment(word) {
            break word;
        }
    };
    let name = base(program);
    if CARRIERS.contains(&name) && words.peek() == Some(&"kubectl") {
        return vec![format!("{name} kubectl")];
    }
    if !TOOLS.contains(&name) {
        return Vec::new();
    }
    if program != name {
        return vec![program.to_owned()];
    }
    if sudo {
        return vec![format!("sudo {name}")];
    }
    if name != "kubectl" {
        return Vec::new();
    }
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let file = match word {
            "-f" | "--filename" => words.next(),
            _ => word.strip_prefix("--filename=").or_else(|| word.strip_prefix("-f")),
        };
        let is_url = |file: &&str| file.starts_with("https://") || file.starts_with("http://");
        found.extend(file.filter(is_url).map(|file| format!("kubectl -f {file}")));
    }
    found
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
            ("cat a | sudo -E kubectl apply -f -", "sudo kubectl"),
            ("sudo -u root helm install a b", "sudo helm"),
            ("sudo bash -ec 'kubectl apply -f a'", "sudo kubectl"),
            ("bash -c \"k3s kubectl apply -f a\"", "k3s kubectl"),
            ("if ! /usr/local/bin/k3s kubectl get ns; then exit 1; fi", "k3s kubectl"),
            ("x=$(opt/kubectl get ns)", "opt/kubectl"),
            ("{ ${OPT}/kubectl get ns; }", "${OPT}/kubectl"),
            ("kubectl apply -f a -f https://h/b.yaml", "kubectl -f https://h/b.yaml"),
            ("kubectl apply \\\n --filename='http://h/b'", "kubectl -f http://h/b"),
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
        ] {
            assert_eq!(calls(line), BTreeSet::new(), "{line}");
        }
    }
}
