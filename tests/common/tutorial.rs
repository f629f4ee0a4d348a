//! What a tutorial of `docs/tutorials` has its reader do, and what it shows of the output.

use regex::Regex;

/// One action of the reader.
pub(crate) enum Act {
    /// Writes a file, whose path is relative to the home directory.
    File { path: String, content: String },
    /// Types a command at a prompt (`$`, `inside$`), below which `shown` is printed.
    Command { prompt: String, text: String, shown: Vec<String> },
}

/// Returns the actions of a tutorial in their order.
pub(crate) fn acts(document: &str) -> Vec<Act> {
    let named = Regex::new("^`([a-z][a-zA-Z0-9./-]+)`[ ,.:]").unwrap();
    let prompted = Regex::new(r"^([a-z]*)\$ +(.*)$").unwrap();
    let (mut acts, mut path) = (Vec::new(), None);
    let mut lines = document.lines();
    let mut begins = true;
    while let Some(line) = lines.next() {
        // A paragraph that begins with a path, or a line with a path and a colon, names the file that follows.
        if (begins || line.ends_with("`:"))
            && let Some(found) = named.captures(line)
        {
            path = Some(found[1].to_owned());
        }
        begins = line.is_empty();
        let Some(language) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if language == "console" {
            for line in body {
                if let Some(found) = prompted.captures(line) {
                    let (prompt, text) = (found[1].to_owned(), found[2].to_owned());
                    acts.push(Act::Command { prompt, text, shown: Vec::new() });
                } else if let Some(Act::Command { shown, .. }) = acts.last_mut() {
                    shown.push(line.to_owned());
                }
            }
        } else if let Some(path) = path.take() {
            acts.push(Act::File { path, content: body.join("\n") + "\n" });
        }
    }
    acts
}

/// Returns a line with each match replaced, for comparisons, and with single spaces.
pub(crate) fn without(line: &str, patterns: &[(&str, &str)]) -> String {
    let replaced =
        patterns.iter().chain(&[(r"\s+", " ")]).fold(line.to_owned(), |line, (pattern, to)| {
            Regex::new(pattern).unwrap().replace_all(&line, *to).into_owned()
        });
    replaced.trim().to_owned()
}
