//! `.helmignore`: the files of a chart directory that are not part of the chart. Like `.gitignore`,
//! but without `**`, and a pattern that contains a slash matches the whole path.

/// The rules of one file.
pub(super) struct Rules(Vec<Rule>);

struct Rule {
    pattern: String,
    negated: bool,
    /// The pattern ends in a slash and matches only directories.
    directory: bool,
    /// The pattern contains a slash and matches the whole path; otherwise it matches the base name.
    whole: bool,
}

impl Rules {
    /// Parses `.helmignore`; hidden files under `templates/` are always ignored.
    pub(super) fn parse(text: &str) -> Self {
        let lines = text.lines().chain(["templates/.?*"]);
        Self(lines.filter_map(Rule::parse).collect())
    }

    /// Returns whether the file at `path` is ignored, either itself or because of a parent
    /// directory. The first rule that applies decides; a negated rule (`!x`) ignores everything
    /// that it does not match.
    pub(super) fn ignores(&self, path: &str) -> bool {
        let ends = path.match_indices('/').map(|(at, _)| at);
        ends.chain([path.len()]).any(|end| {
            let part = path.get(..end).unwrap_or(path);
            self.ignores_one(part, end < path.len())
        })
    }

    fn ignores_one(&self, path: &str, directory: bool) -> bool {
        for rule in &self.0 {
            let fits = rule.matches(path);
            if rule.negated {
                // As in Helm, a negated rule ignores everything that it does not match.
                if rule.directory && !directory {
                    return true;
                }
                if !fits {
                    return true;
                }
            } else if fits && (directory || !rule.directory) {
                return true;
            }
        }
        false
    }
}

impl Rule {
    fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.contains("**") {
            return None;
        }
        let (negated, pattern) = match line.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (directory, pattern) = match pattern.strip_suffix('/') {
            Some(rest) => (true, rest),
            None => (false, pattern),
        };
        let whole = pattern.contains('/');
        Some(Self {
            pattern: pattern.trim_start_matches('/').to_owned(),
            negated,
            directory,
            whole,
        })
    }

    fn matches(&self, path: &str) -> bool {
        let name = if self.whole { path } else { path.rsplit('/').next().unwrap_or(path) };
        super::glob::matches(&self.pattern, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_names_paths_and_directories() {
        let rules = Rules::parse("# a comment\n*.swp\n.git/\n/docs\nci/values.yaml\n");
        for (path, expected) in [
            ("a.swp", true),
            ("templates/a.swp", true),
            (".git/config", true),
            ("docs/x.md", true),
            ("sub/docs/x.md", false),
            ("ci/values.yaml", true),
            ("values.yaml", false),
            ("templates/.hidden", true),
            ("templates/x.yaml", false),
        ] {
            assert_eq!(rules.ignores(path), expected, "{path}");
        }
    }
}
