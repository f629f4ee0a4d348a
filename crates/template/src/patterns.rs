//! Regular expressions of one rendering: compiled once, and what they cost. The search takes time that grows
//! with the size of the program that an expression becomes, which a short expression makes large. Must not know
//! functions.

use std::cell::RefCell;

use imgctl_base::{re2, re2_size};
use regex::{Regex, RegexBuilder};

use crate::print::cut;

/// Maximum length of a regular expression, in bytes: its syntax tree takes hundreds of times as much.
const LONGEST: usize = 16 << 10;
/// Number of compiled expressions that a rendering keeps, and their maximum size.
const KEPT: usize = 8;
const LARGEST_KEPT: usize = 2000;

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
        let search = length.saturating_mul(blocks.saturating_mul(blocks).saturating_add(1));
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
        Ok(translated) if translated.len() <= LONGEST => re2_size::states(&translated),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
