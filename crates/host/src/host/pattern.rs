//! Patterns of ssh_config(5) and known_hosts: `*`, `?`, lists, and `!` before a pattern that must
//! not match. Must not depend on files.

/// Returns whether a list of patterns matches: at least one plain pattern and no negated one.
pub(super) fn matches_list<'a>(patterns: impl IntoIterator<Item = &'a str>, name: &str) -> bool {
    let mut found = false;
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches(pattern, name) => return false,
            Some(_) => {}
            None => found |= matches(pattern, name),
        }
    }
    found
}

/// Returns whether a pattern matches the whole name, ignoring case.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    // Backtracking position: after the last star, and the end of the part of the name that it has
    // matched.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, n));
                p += 1;
            }
            Some(c) if *c == b'?' || c.eq_ignore_ascii_case(&name[n]) => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((behind, eaten)) => {
                    star = Some((behind, eaten + 1));
                    p = behind;
                    n = eaten + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_marks_and_negation() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("10.0.?.1", "10.0.5.1", true),
            ("10.0.?.1", "10.0.55.1", false),
            ("*.Example.com", "a.b.example.COM", true),
            ("*.example.com", "example.com", false),
            ("a*b*c", "axxbyybc", true),
            ("a*b*c", "axxbyyb", false),
            ("[::1]:22", "[::1]:22", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
        assert!(matches_list(["*.a", "!x.a"], "y.a"));
        assert!(!matches_list(["*.a", "!x.a"], "x.a"));
        assert!(!matches_list(["!x.a"], "y.a"));
        // A hostile pattern must not take exponential time.
        assert!(!matches(&"a*".repeat(500), &"a".repeat(400)));
    }
}
