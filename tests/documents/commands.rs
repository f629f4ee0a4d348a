//! The pages in `docs/commands/` say what the command line says, and command lines in documents use only
//! verbs and flags that it has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::markdown::{code, escaped};
use crate::{compare, pages, read, up_to_date};

const FOLDER: &str = "docs/commands";
const ORIGIN: &str = "<!-- Written from the command line; do not edit. -->\n";

/// The help of `imgctl` and of each command below it, in the order of `imgctl help-all`.
fn helps() -> Vec<(String, String)> {
    let help = Command::new(env!("CARGO_BIN_EXE_imgctl")).arg("help-all").output().unwrap();
    assert!(help.status.success(), "{}", String::from_utf8_lossy(&help.stderr));
    let mut helps: Vec<(String, String)> = Vec::new();
    for line in String::from_utf8(help.stdout).unwrap().lines() {
        if let Some(command) = line.strip_prefix("# ").filter(|name| name.starts_with("imgctl")) {
            helps.push((command.to_owned(), String::new()));
        } else if let Some((_, text)) = helps.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    helps
}

/// The parts of a help, which empty lines separate: a heading that ends with a colon, if there is one, and
/// the lines.
fn parts(help: &str) -> Vec<(Option<&str>, Vec<&str>)> {
    let mut parts: Vec<(Option<&str>, Vec<&str>)> = Vec::new();
    for block in help.split("\n\n").map(|block| block.trim_matches('\n')) {
        let lines: Vec<&str> = block.lines().collect();
        match lines.split_first() {
            Some((first, rest)) if rest.iter().any(|line| line.starts_with("  ")) => {
                match first.strip_suffix(':') {
                    Some(heading) => parts.push((Some(heading), rest.to_vec())),
                    None => parts.push((None, lines)),
                }
            }
            // The paragraphs of a long description are indented below an option.
            Some((first, _)) if first.starts_with("  ") && !parts.is_empty() => {
                let last = &mut parts.last_mut().unwrap().1;
                last.push("");
                last.extend(lines);
            }
            Some(_) => parts.push((None, lines)),
            None => {}
        }
    }
    parts
}

fn fenced(lines: &[&str]) -> String {
    let indent = lines.iter().filter(|line| !line.is_empty());
    let indent = indent.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    let lines: Vec<&str> = lines.iter().map(|line| line.get(indent..).unwrap_or("")).collect();
    format!("\n```text\n{}\n```\n", lines.join("\n"))
}

/// The section of one command; `level` is that of its heading.
fn section(command: &str, help: &str, level: usize) -> String {
    let mut text = format!("\n{} {command}\n", "#".repeat(level));
    for (heading, lines) in parts(help) {
        let is_prose = lines.iter().all(|line| !line.starts_with(' ')) && heading.is_none();
        if let Some(usage) = lines[0].strip_prefix("Usage: ") {
            let mut lines = lines.clone();
            lines[0] = usage;
            let lines: Vec<&str> = lines.iter().map(|line| line.trim_start()).collect();
            text.push_str(&fenced(&lines));
        } else if is_prose {
            let _ = write!(text, "\n{}\n", escaped(&lines.join("\n")));
        } else {
            if let Some(heading) = heading {
                let _ = write!(text, "\n**{heading}**\n");
            }
            text.push_str(&fenced(&lines));
        }
    }
    text
}

/// Each verb's page, and the page that lists them, as the help of `imgctl` does.
pub(crate) fn written() -> BTreeMap<String, String> {
    let helps = helps();
    let mut written = BTreeMap::new();
    for (command, help) in &helps[1..] {
        let names: Vec<&str> = command.split(' ').collect();
        let page = written.entry(format!("{}.md", names[1])).or_insert_with(|| ORIGIN.to_owned());
        page.push_str(&section(command, help, names.len() - 1));
    }
    for page in written.values_mut() {
        page.push_str("\n[Global options](README.md#global-options) apply as well.\n");
    }
    let mut index = format!(
        "{ORIGIN}\n# Commands\n\nA page for each command, as `imgctl COMMAND --help` shows it. \
         [cli.md](../cli.md) has what all have in common: exit codes, variables, JSON.\n"
    );
    for (heading, lines) in parts(&helps[0].1) {
        match heading {
            None | Some("Options") => {}
            Some(heading @ "Global options") => {
                let _ = write!(index, "\n## {heading}\n\nThey precede or follow the verb.\n");
                index.push_str(&fenced(&lines));
            }
            Some(heading) => {
                let rows: Vec<(&str, &str)> = lines
                    .iter()
                    .filter_map(|line| line.trim_start().split_once(' '))
                    .filter(|(name, _)| written.contains_key(&format!("{name}.md")))
                    .collect();
                let _ = write!(index, "\n## {heading}\n\n| | |\n|---|---|\n");
                for (name, about) in rows {
                    let about = escaped(about.trim_start());
                    let _ = writeln!(index, "| [`{name}`]({name}.md) | {about} |");
                }
            }
        }
    }
    written.insert("README.md".to_owned(), index);
    written
}

#[test]
fn every_command_has_its_page() {
    let written = written();
    assert!(written.len() > 50, "{:?}", written.keys());
    for part in
        ["# imgctl build\n\nBuild an image", "```text\nimgctl build [OPTIONS] [CONTEXT]\n```"]
    {
        assert!(written["build.md"].contains(part), "{}", written["build.md"]);
    }
    assert!(written["upgrade.md"].contains("\n## imgctl upgrade status\n"));
    let files = written.iter().map(|(name, text)| (Path::new(FOLDER).join(name), text));
    up_to_date(files.filter_map(|(path, text)| compare(path, text)));
    let there: BTreeSet<PathBuf> = pages(FOLDER).into_iter().collect();
    let names = written.keys().map(|name| Path::new(FOLDER).join(name)).collect();
    let left: Vec<_> = there.difference(&names).collect();
    assert!(left.is_empty(), "these commands are gone, remove their pages: {left:?}");
    // A verb that the list leaves out would not be in the site's navigation.
    let index = &written["README.md"];
    let unlisted: Vec<_> = written
        .keys()
        .filter(|name| *name != "README.md" && !index.contains(&format!("]({name})")))
        .collect();
    assert!(unlisted.is_empty(), "imgctl --help does not list {unlisted:?}");
}

/// The flags that a help shows, with the aliases it names.
fn flags(help: &str) -> BTreeSet<String> {
    let marks = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
    let defined = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let defined = defined.flat_map(|line| line.split("  ").next().unwrap_or_default().split(marks));
    let aliases = help.split("alias").skip(1).filter_map(|rest| rest.split(']').next());
    defined
        .chain(aliases.flat_map(|rest| rest.split(marks)))
        .filter(|word| word.starts_with('-'))
        .map(str::to_owned)
        .collect()
}

/// What is unknown in a line that begins with `imgctl`.
fn unknown(line: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    let line = line.split(['|', ';', '&', '<', '>']).next().unwrap_or_default();
    let line = line.split(" # ").next().unwrap_or_default();
    // Words in quotes are values.
    let words: Vec<&str> =
        line.split(['\'', '"']).step_by(2).flat_map(str::split_whitespace).collect();
    let mut command = "imgctl".to_owned();
    for word in &words[1..] {
        let below = format!("{command} {word}");
        if known.contains_key(&below) {
            command = below;
        }
    }
    if command == "imgctl" {
        let is_global = words[1..].iter().all(|word| word.starts_with('-'));
        return (!is_global).then(|| format!("no verb: {line}"));
    }
    let shown = |flag: &str| {
        let flag = flag.split('=').next().unwrap_or_default();
        // `-k5` and `-fFILE`: the value follows at once.
        let flag = if flag.starts_with("--") { flag } else { &flag[..2] };
        known[&command].contains(flag) || known["imgctl"].contains(flag) || flag == "--help"
    };
    let flags =
        words.iter().filter(|word| word.len() > 1 && word.starts_with('-') && **word != "--");
    let wrong: Vec<&&str> = flags.filter(|flag| !shown(flag)).collect();
    (!wrong.is_empty()).then(|| format!("{command} has no {wrong:?}"))
}

#[test]
fn command_lines_in_documents_use_what_there_is() {
    let known: BTreeMap<String, BTreeSet<String>> =
        helps().into_iter().map(|(command, help)| (command, flags(&help))).collect();
    let mut all = pages("docs");
    all.retain(|page| !page.starts_with(FOLDER));
    all.extend(pages("Kubefile.examples"));
    all.extend(["README.md", "README.zh-CN.md"].map(PathBuf::from));
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in all {
        for (number, line) in code(&read(&page)) {
            let line = match line.split_once("$ ") {
                Some((prompt, rest)) if !prompt.contains(' ') => rest.trim_start(),
                _ => line.as_str(),
            };
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            // Forms of commands, not commands.
            let is_form =
                ["…", "...", "[", "VERB", "COMMAND"].iter().any(|mark| line.contains(mark));
            if !line.starts_with("imgctl ") || is_form {
                continue;
            }
            count += 1;
            if let Some(why) = unknown(line, &known) {
                wrong.push(format!("{}:{number}: {why}", page.display()));
            }
        }
    }
    assert!(count > 250, "only {count} command lines were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_unknown_verb_or_flag_is_noticed() {
    let own = "Options:\n  -p, --push[=<BOOL>]\n      --retry <N>  Attempts [alias: --tries]\n";
    let known = BTreeMap::from([
        ("imgctl".to_owned(), flags("  -q, --quiet  Less\n")),
        ("imgctl a".to_owned(), flags(own)),
        ("imgctl a b".to_owned(), BTreeSet::new()),
    ]);
    for good in
        ["imgctl a --push=true -q x", "imgctl a -p --tries 2 'b --c' | grep --d", "imgctl -q"]
    {
        assert_eq!(unknown(good, &known), None, "{good}");
    }
    for bad in ["imgctl c", "imgctl a --pull", "imgctl a b --push", "imgctl a -x"] {
        assert!(unknown(bad, &known).is_some(), "{bad}");
    }
}
