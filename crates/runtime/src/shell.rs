//! Programs that hosts run: `.sh` files beside the modules that run them, each of which can also be started
//! alone. Values reach them as environment variables. Must not know what a program does.

/// Functions for files of a host: `put`, `ours`, `where`.
pub(crate) const FILES: &str = include_str!("scripts/files.sh");
/// The function `put_own`, which puts the program that runs the commands of a host at a path.
pub(crate) const OWN_BINARY: &str = include_str!("scripts/own-binary.sh");

/// Returns what a host runs: the title of the last part, and all parts without their heads. The head of a
/// file is `#!`, a title, more comments, and the lines `. FILE` by which it loads the parts before it when it
/// is started alone.
pub fn program(parts: &[&str]) -> String {
    let title = parts.last().and_then(|text| text.lines().nth(1)).unwrap_or_default();
    let mut program = format!("{title}\n");
    parts.iter().for_each(|part| program.push_str(body(part)));
    program.truncate(program.trim_end().len());
    program
}

/// What a line begins with that loads a part.
const LOADS: &str = ". \"$(dirname \"$0\")/";

fn body(text: &str) -> &str {
    let mut rest = text;
    while rest.starts_with(['#', '\n']) || rest.starts_with(LOADS) {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    #[test]
    fn a_program_is_its_title_and_the_bodies_of_its_parts() {
        let library = "#!/bin/bash -e\n# Functions.\n\nf() { echo \"$1\"; }\n";
        let main = "#!/bin/bash -e\n# Says it.\n# IMGCTL_X: what\n# shellcheck source=l.sh\n\
                    . \"$(dirname \"$0\")/l.sh\"\n\nf \"$IMGCTL_X\"\n# inside\n. ./other\n";
        let text = program(&[library, main]);
        assert_eq!(text, "# Says it.\nf() { echo \"$1\"; }\nf \"$IMGCTL_X\"\n# inside\n. ./other");
    }

    fn scripts(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                scripts(&path, found);
            } else if path.parent().is_some_and(|parent| parent.ends_with("scripts")) {
                found.push(path);
            }
        }
    }

    /// What a host runs is what runs when a file is started alone, so a head loads only what is there.
    #[test]
    fn every_script_says_what_it_is_for_and_loads_what_it_needs() {
        let mut found = Vec::new();
        scripts(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut found);
        assert!(found.len() > 20, "{found:?}");
        for path in found {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut lines = text.lines();
            assert_eq!(lines.next(), Some("#!/bin/bash -e"), "{}", path.display());
            let title = lines.next().unwrap();
            assert!(title.starts_with("# ") && title.len() > 5, "{}: {title}", path.display());
            assert!(!body(&text).is_empty(), "{}", path.display());
            let head = &text[..text.len() - body(&text).len()];
            for named in head.lines().filter_map(|line| line.strip_prefix(LOADS)) {
                let part = path.parent().unwrap().join(named.trim_end_matches('"'));
                assert!(part.is_file(), "{}: {named}", path.display());
            }
        }
    }
}
