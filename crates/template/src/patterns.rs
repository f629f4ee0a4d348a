//! Regular expressions of one rendering: compiled once, and what they cost. The search takes time that grows
//! with the size of the program that an expression becomes, which a short expression makes large. Must not know
//! functions.

use std::cell::RefCell;

use imgctl_base::re2;
use regex::{Regex, RegexBuilder};

use crate::print::cut;

/// Maximum length of a regular expression, in bytes: its syntax tree takes hundreds of times as much.
const LONGEST: usize = 16 << 10;
/// Number of compiled expressions that a rendering keeps, and their maximum size.
const KEPT: usize = 8;
const LARGEST_KEPT: usize = 2000;
/// Size of a class of a script or category (`\p{L}`), and of others that are not ASCII.
const SCRIPT: usize = 300;
const WIDE: usize = 16;

/// The expressions that a rendering has compiled last.
#[derive(Default)]
pub(crate) struct Patterns(RefCell<Vec<(String, Regex)>>);

impl Patterns {
    /// Returns the compiled expression.
    pub(crate) fn compiled(&self, pattern: &str) -> Result<Regex, String> {
        let kept = self.kept(pattern);
        if let Some(regex) = kept {
            return Ok(regex);
        }
        let regex = compiled(pattern)?;
        if size(pattern) <= LARGEST_KEPT {
            let mut kept = self.0.borrow_mut();
            if kept.len() == KEPT {
                kept.remove(0);
            }
            kept.push((pattern.to_owned(), regex.clone()));
        }
        Ok(regex)
    }

    fn kept(&self, pattern: &str) -> Option<Regex> {
        let kept = self.0.borrow();
        kept.iter().find(|(known, _)| known == pattern).map(|(_, regex)| regex.clone())
    }

    /// Returns the steps that a search in `length` bytes takes, with those to compile the expression.
    pub(crate) fn steps(&self, pattern: &str, length: usize) -> u64 {
        let size = size(pattern);
        let compile = if self.kept(pattern).is_some() { 0 } else { size.saturating_mul(8) };
        let blocks = size / 64;
        // Small programs become automata that read a byte in no time, large ones do not.
        let search = length.saturating_mul(1 + blocks.saturating_mul(blocks));
        u64::try_from(compile.saturating_add(search)).unwrap_or(u64::MAX)
    }
}

fn compiled(pattern: &str) -> Result<Regex, String> {
    let long =
        || format!("the regular expression is longer than {LONGEST} bytes: {}", cut(pattern));
    if pattern.len() > LONGEST {
        return Err(long());
    }
    let translated = re2::translated(pattern)
        .map_err(|error| format!("error parsing regexp: {error} in {:?}", cut(pattern)))?;
    if translated.len() > LONGEST {
        return Err(long());
    }
    RegexBuilder::new(&translated).size_limit(1 << 20).build().map_err(|error| error.to_string())
}

/// Returns about how many states the program of an expression has. One that cannot be compiled has few.
fn size(pattern: &str) -> usize {
    if pattern.len() > LONGEST {
        return 1;
    }
    match re2::translated(pattern) {
        Ok(translated) if translated.len() <= LONGEST => states(&translated),
        _ => 1,
    }
}

/// The same for a translated expression, in which each bracket that is no sign is escaped.
fn states(translated: &str) -> usize {
    // For each open group what it has so far, and the size of the last part.
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

/// Returns the size of a class and what follows it.
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

/// Returns the size of what a backslash begins, and what follows it.
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
            ("a**", 1, 1),
        ] {
            let size = size(pattern);
            assert!((least..=most).contains(&size), "{pattern}: {size}");
        }
        bolero::check!().with_type::<String>().for_each(|pattern: &String| {
            let _ = size(pattern);
        });
    }

    #[test]
    fn large_expressions_cost_more_than_long_texts_and_are_compiled_once() {
        let patterns = Patterns::default();
        assert!(patterns.steps("^[a-z]+$", 5000) < 10_000);
        let large = "(a{1,50}){1,19}b";
        let first = patterns.steps(large, 5000);
        assert!(first > 1_000_000, "{first}");
        patterns.compiled(large).unwrap();
        assert!(patterns.steps(large, 5000) < first);
        for number in 0..20 {
            patterns.compiled(&format!("a{number}")).unwrap();
        }
        assert_eq!(patterns.0.borrow().len(), KEPT);
    }
}
