//! How large the program of a regular expression is, without compiling it: a short expression may be large, and
//! both its memory and the time of a search grow with it. Must not know what is searched.

/// Size of a class of a script or category (`\p{L}`), and of others that are not ASCII.
const SCRIPT: usize = 300;
const WIDE: usize = 16;

/// Returns about how many states the program of an expression has that [`crate::re2::translated`] has written: in
/// it, each bracket that is no sign is escaped.
pub fn states(translated: &str) -> usize {
    // For each open group: its size so far, and the size of its last part.
    let mut open: Vec<usize> = Vec::new();
    let (mut sum, mut last) = (1_usize, 0_usize);
    let mut rest = translated;
    while let Some(c) = rest.chars().next() {
        let (_, after) = rest.split_at(c.len_utf8());
        rest = after;
        let part = match c {
            '(' => {
                open.push(sum);
                (sum, last) = (0, 0);
                if let Some(flags) = rest.strip_prefix('?') {
                    let end = flags.find([':', '>', ')']).unwrap_or(0);
                    let is_whole = flags[end..].starts_with(')');
                    rest =
                        if is_whole { &flags[end..] } else { flags.get(end + 1..).unwrap_or("") };
                }
                continue;
            }
            ')' => {
                last = sum.saturating_add(2);
                sum = open.pop().unwrap_or(0).saturating_add(last);
                continue;
            }
            '*' | '+' | '?' => {
                last = last.saturating_add(1);
                sum = sum.saturating_add(1);
                continue;
            }
            '{' => {
                let (count, after) = rest.split_once('}').unwrap_or((rest, ""));
                rest = after;
                let count = count.split(',').filter_map(|one| one.parse::<usize>().ok()).max();
                let more = last.saturating_mul(count.unwrap_or(1));
                sum = sum.saturating_add(more);
                last = last.saturating_add(more);
                continue;
            }
            '[' => {
                let (part, after) = class(rest);
                rest = after;
                part
            }
            '\\' => {
                let (part, after) = escaped(rest);
                rest = after;
                part
            }
            '.' => WIDE,
            c => c.len_utf8(),
        };
        last = part;
        sum = sum.saturating_add(part);
    }
    open.into_iter().fold(sum, usize::saturating_add)
}

/// Returns the size of a class and the rest of the pattern.
fn class(mut rest: &str) -> (usize, &str) {
    let mut part = if rest.starts_with('^') { WIDE } else { 2 };
    let mut depth = 1;
    while let Some(c) = rest.chars().next() {
        let (_, after) = rest.split_at(c.len_utf8());
        rest = after;
        match c {
            '[' => {
                depth += 1;
                if rest.starts_with('^') || rest.starts_with(":^") {
                    part += WIDE;
                }
            }
            ']' => depth -= 1,
            '\\' => {
                let (more, after) = escaped(rest);
                rest = after;
                part += more - 1;
            }
            c => part += c.len_utf8() - 1,
        }
        if depth == 0 {
            break;
        }
    }
    (part, rest)
}

/// Returns the size of an escape and the rest of the pattern.
fn escaped(rest: &str) -> (usize, &str) {
    let Some(c) = rest.chars().next() else { return (1, "") };
    let (_, after) = rest.split_at(c.len_utf8());
    match c {
        'p' | 'P' => (SCRIPT, after.split_once('}').map_or("", |(_, after)| after)),
        'x' => (1, after.get(2..).unwrap_or("")),
        _ => (1, after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::re2::translated;

    #[test]
    fn a_short_expression_may_be_large() {
        for (pattern, least, most) in [
            ("", 1, 1),
            ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", 10, 64),
            ("(a{1,50}){1,19}b", 900, 2500),
            ("((((a{100}){100}){100}){100}){100}", 1 << 30, usize::MAX),
            ("a{x}[[]x{2}\\x7b\\{9", 8, 30),
            ("(?i)(?P<n>a|b){3}(?:c)", 10, 40),
            ("\\pL{2}", 600, 1000),
            ("[^a]\\W.", 32, 64),
        ] {
            let states = states(&translated(pattern).unwrap());
            assert!((least..=most).contains(&states), "{pattern}: {states}");
        }
        bolero::check!().with_type::<String>().for_each(|pattern: &String| {
            if let Ok(translated) = translated(pattern) {
                assert!(states(&translated) > 0);
            }
            let _ = states(pattern);
        });
    }
}
