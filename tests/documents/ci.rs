//! The files for CI systems, of this repository and for those who use imgctl there: what runs is named by its hash, no job has more
//! rights than it needs, and inputs reach no shell as text. A new file is found here without being named.

use std::path::PathBuf;

use crate::{read, repository};

const PLACES: [&str; 3] = [".github/workflows", "ci", "action.yml"];

/// All of them, with their text.
fn files() -> Vec<(PathBuf, String)> {
    PLACES
        .iter()
        .flat_map(|place| walkdir::WalkDir::new(repository().join(place)).sort_by_file_name())
        .map(|entry| entry.unwrap().into_path())
        .filter(|path| path.is_file())
        .map(|path| {
            let path = path.strip_prefix(repository()).unwrap().to_owned();
            let text = read(&path);
            (path, text)
        })
        .collect()
}

fn workflows() -> Vec<(PathBuf, String)> {
    let found: Vec<_> =
        files().into_iter().filter(|(path, _)| path.starts_with(".github/workflows")).collect();
    assert!(found.len() >= 4, "{found:?}");
    found
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The blocks of the lines that end in `key`, such as `run: |`; and of `key: text`, the text.
fn blocks(text: &str, keys: &[&str]) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let bare = line.trim_start().trim_start_matches("- ");
        let Some(rest) = keys.iter().find_map(|key| bare.strip_prefix(key)) else { continue };
        // Keys beside this one are no part of its block.
        let own = line.len() - bare.len();
        let below = lines[number + 1..]
            .iter()
            .take_while(|next| next.trim().is_empty() || indent(next) > own);
        let below: Vec<&str> = below.copied().collect();
        found.push(format!("{rest}\n{}", below.join("\n")));
    }
    found
}

/// The jobs of a workflow: name and lines.
fn jobs(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for line in text.lines().skip_while(|line| *line != "jobs:").skip(1) {
        match line.strip_suffix(':') {
            Some(name) if indent(line) == 2 => found.push((name.trim().to_owned(), String::new())),
            _ => {
                if let Some((_, lines)) = found.last_mut() {
                    lines.push_str(line);
                    lines.push('\n');
                }
            }
        }
    }
    found
}

/// Fails with everything that is wrong.
fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn actions_are_named_by_their_hash() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in files() {
        for line in text.lines() {
            let Some(action) = line.trim_start().trim_start_matches("- ").strip_prefix("uses: ")
            else {
                continue;
            };
            if action.starts_with("./") {
                continue;
            }
            seen += 1;
            let hash = action.split_once('@').map_or("", |(_, hash)| hash);
            let (hash, version) = hash.split_once(" # v").unwrap_or_default();
            let is_hash = hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !is_hash || version.is_empty() {
                wrong.push(format!(
                    "{}: `{action}` is not OWNER/NAME@HASH # vVERSION",
                    path.display()
                ));
            }
        }
    }
    assert!(seen >= 10, "{seen} actions");
    none(&wrong);
}

#[test]
fn no_job_has_more_rights_than_it_names() {
    let mut wrong = Vec::new();
    for (path, text) in workflows() {
        let path = path.display();
        if !text.lines().any(|line| line == "permissions: {}") {
            wrong.push(format!("{path}: `permissions: {{}}` is not its default"));
        }
        if text.contains("pull_request_target") || text.contains("workflow_run") {
            wrong.push(format!(
                "{path}: runs the code of others with the rights of this repository"
            ));
        }
        let jobs = jobs(&text);
        assert!(!jobs.is_empty(), "{path}");
        for (name, lines) in jobs {
            if !lines.lines().any(|line| line == "    permissions:") {
                wrong.push(format!("{path}: job {name} names no permissions"));
            }
            // Who can write or sign runs nothing that came with the sources or from crates.
            let may = lines.contains(": write");
            let builds =
                ["cargo ", "scripts/", "actions/checkout@"].iter().any(|it| lines.contains(it));
            if may && builds {
                wrong.push(format!("{path}: job {name} builds, and has a right to write"));
            }
        }
        let checkouts = text.matches("uses: actions/checkout@").count();
        if checkouts != text.matches("persist-credentials: false").count() {
            wrong.push(format!("{path}: a checkout keeps its credentials"));
        }
    }
    none(&wrong);
}

/// Scripts of GitHub take values from variables, as those of GitLab and Tekton do: as text they could become commands.
#[test]
fn inputs_reach_no_shell_as_text() {
    let mut wrong = Vec::new();
    let mut scripts = 0;
    for (path, text) in files() {
        let path = path.display();
        for script in blocks(&text, &["run:", "script:", "before_script:", "after_script:"]) {
            scripts += 1;
            for from in ["${{", "$[[", "$(params.", "$(workspaces.", "$(results.", "$(context."] {
                if script.contains(from) {
                    wrong.push(format!("{path}: a script contains `{from}`: {script}"));
                }
            }
        }
    }
    assert!(scripts >= 15, "{scripts} scripts");
    none(&wrong);
}

/// Whether a value of an input stands outside of quotes. Bash needs none in assignments, `case` and `[[ ]]`.
fn unquoted(line: &str) -> bool {
    if line.trim_start().starts_with("case ") {
        return false;
    }
    if let Some((before, rest)) = line.split_once("[[ ")
        && let Some((_, after)) = rest.split_once(" ]]")
    {
        return unquoted(before) || unquoted(after);
    }
    let mut quote = None;
    let mut before = ' ';
    for (at, character) in line.char_indices() {
        match (quote, character) {
            (None, '#') if before.is_whitespace() => return false,
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), _) if open == character && before != '\\' => quote = None,
            (None, '$') if before != '=' => {
                let name = line[at + 1..].trim_start_matches('{');
                if name.starts_with("INPUT_") || name.starts_with("EXTRA_") {
                    return true;
                }
            }
            _ => {}
        }
        before = character;
    }
    false
}

#[test]
fn inputs_stand_in_quotes() {
    assert!(unquoted("imgctl build \"$@\" $INPUT_ARGS") && unquoted("a '' ${INPUT_X}"));
    assert!(!unquoted("[[ -z $INPUT_X ]] && x=$INPUT_X; a \"$INPUT_ARGS\" # $INPUT_X"));
    let mut wrong = Vec::new();
    for (path, text) in files() {
        for line in text.lines() {
            if unquoted(line) {
                wrong.push(format!("{}: an input outside of quotes: {line}", path.display()));
            }
        }
    }
    none(&wrong);
}

#[test]
fn nothing_is_published_before_all_tests_have_run() {
    let release = read(".github/workflows/release.yml");
    let jobs = jobs(&release);
    let calls = "    uses: ./.github/workflows/ci.yml";
    let tests = |lines: &str| lines.lines().any(|line| line == calls);
    let needs = |lines: &str| -> Vec<String> {
        let line = lines.lines().find_map(|line| line.strip_prefix("    needs: "));
        let names = line.unwrap_or_default().trim_matches(['[', ']']).split(", ");
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    // The jobs that wait for the tests, and the tests themselves.
    let mut behind: Vec<&str> = Vec::new();
    for _ in &jobs {
        let waits = |lines: &str| needs(lines).iter().any(|need| behind.contains(&need.as_str()));
        let found = jobs.iter().filter(|(_, lines)| tests(lines) || waits(lines));
        behind = found.map(|(name, _)| name.as_str()).collect();
    }
    let all: Vec<&str> = jobs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(behind, all, "a job of the release does not wait for ci.yml");
    assert!(all.len() >= 4, "{all:?}");
    let ci = read(".github/workflows/ci.yml");
    for part in ["  workflow_call:", "scripts/test --quick", "scripts/test ${", "deny --locked"] {
        assert!(ci.contains(part), "{part}");
    }
}
