//! Glob patterns of `.Files.Glob` and `.helmignore`.

/// Returns whether the glob `pattern` matches the whole of `path`. `*` and `?` stop at a slash,
/// `**` does not; `[a-z]`, `[!a]`, `{a,b}` and `\x` are supported.
pub(super) fn matches(pattern: &str, path: &str) -> bool {
    // Each `{a,b}` multiplies the number of alternatives; the budget stops a pattern from a hostile
    // chart.
    let mut budget = 100_000;
    let pattern: Vec<char> = pattern.chars().collect();
    let path: Vec<char> = path.chars().collect();
    alternatives(&pattern).iter().any(|pattern| covers(pattern, &path, &mut budget))
}

/// Expands each `{a,b}` in the pattern.
fn alternatives(pattern: &[char]) -> Vec<Vec<char>> {
    let mut done = Vec::new();
    let mut pending = vec![pattern.to_vec()];
    while let Some(pattern) = pending.pop() {
        let open = pattern.iter().position(|c| *c == '{');
        let end = open.and_then(|open| {
            let close = pattern.iter().skip(open).position(|c| *c == '}')?;
            Some((open, open + close))
        });
        match end {
            Some((open, close)) if done.len() + pending.len() < 256 => {
                for choice in pattern[open + 1..close].split(|c| *c == ',') {
                    let mut chosen = pattern[..open].to_vec();
                    chosen.extend_from_slice(choice);
                    chosen.extend_from_slice(&pattern[close + 1..]);
                    pending.push(chosen);
                }
            }
            _ => done.push(pattern),
        }
    }
    done
}

/// Recursion: one level for each star; a pattern may have at most 64.
fn covers(pattern: &[char], path: &[char], budget: &mut u32) -> bool {
    if pattern.iter().filter(|c| **c == '*').count() > 64 {
        return false;
    }
    let (mut pattern, mut path) = (pattern, path);
    loop {
        match (pattern, path) {
            ([], []) => return true,
            (['*', '*', rest @ ..], _) => {
                return (0..=path.len()).any(|skip| try_rest(rest, &path[skip..], budget));
            }
            (['*', rest @ ..], _) => {
                let end = path.iter().position(|c| *c == '/').unwrap_or(path.len());
                return (0..=end).any(|skip| try_rest(rest, &path[skip..], budget));
            }
            (['?', rest @ ..], [c, tail @ ..]) if *c != '/' => (pattern, path) = (rest, tail),
            (['[', ..], [c, tail @ ..]) => match class(&pattern[1..], *c) {
                Some((true, rest)) => (pattern, path) = (rest, tail),
                _ => return false,
            },
            (['\\', wanted, rest @ ..], [c, tail @ ..]) if wanted == c => {
                (pattern, path) = (rest, tail);
            }
            ([wanted, rest @ ..], [c, tail @ ..]) if wanted == c => (pattern, path) = (rest, tail),
            _ => return false,
        }
    }
}

fn try_rest(pattern: &[char], path: &[char], budget: &mut u32) -> bool {
    if *budget == 0 {
        return false;
    }
    *budget -= 1;
    covers(pattern, path, budget)
}

/// Returns whether `c` is in the class that begins after `[`, and the pattern after the class.
fn class(pattern: &[char], c: char) -> Option<(bool, &[char])> {
    let close = pattern.iter().position(|c| *c == ']')?;
    let (members, rest) = (&pattern[..close], &pattern[close + 1..]);
    let (negated, members) = match members {
        ['!' | '^', rest @ ..] => (true, rest),
        members => (false, members),
    };
    let mut found = false;
    let mut position = 0;
    while let Some(low) = members.get(position) {
        match (members.get(position + 1), members.get(position + 2)) {
            (Some('-'), Some(high)) => {
                found |= (*low..=*high).contains(&c);
                position += 3;
            }
            _ => {
                found |= *low == c;
                position += 1;
            }
        }
    }
    Some((found != negated, rest))
}

/// The rules of one file.
pub(super) struct IgnoreRules(Vec<Rule>);

struct Rule {
    pattern: String,
    negated: bool,
    /// The pattern ends in a slash and matches only directories.
    directory: bool,
    /// The pattern contains a slash and matches the whole path; otherwise it matches the base name.
    whole: bool,
}

impl IgnoreRules {
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
        matches(&self.pattern, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_stop_at_slashes_unless_doubled() {
        for (pattern, path, expected) in [
            ("files/*", "files/a.txt", true),
            ("files/*", "files/a/b.txt", false),
            ("files/**", "files/a/b.txt", true),
            ("**.yaml", "a/b.yaml", true),
            ("*.{json,yaml}", "b.yaml", true),
            ("*.{json,yaml}", "b.toml", false),
            ("[a-c]?.txt", "b1.txt", true),
            ("[!a-c]?.txt", "b1.txt", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
        let hostile = "*a".repeat(40);
        assert!(!matches(&hostile, &"a".repeat(39)));
    }

    #[test]
    fn ignores_names_paths_and_directories() {
        let rules = IgnoreRules::parse("# a comment\n*.swp\n.git/\n/docs\nci/values.yaml\n");
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
