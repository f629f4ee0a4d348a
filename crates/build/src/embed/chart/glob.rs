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
}
