//! Regular expressions, with Go's syntax and meaning.

use super::call::{Answer, Call, Group, int, text};
use super::growth::Growth::{Fresh, Searches};
use super::growth::{full, searched, substituted};
use crate::value::Value;

/// Memory for each part that is found, beside its text.
const PART: usize = 160;

pub(super) const GROUP: Group = &[
    ("mustRegexMatch", "ss", Searches(searched::<1>), |a| {
        Ok(Value::Bool(a.patterns.compiled(&text(a, 0))?.is_match(&text(a, 1))))
    }),
    ("regexMatch", "ss", Searches(searched::<1>), |a| {
        let matches =
            a.patterns.compiled(&text(a, 0)).is_ok_and(|regex| regex.is_match(&text(a, 1)));
        Ok(Value::Bool(matches))
    }),
    ("regexFind", "ss", Searches(searched::<2>), |a| {
        let text = text(a, 1);
        let found = a.patterns.compiled(&super::call::text(a, 0))?.find(&text).map(|m| m.as_str());
        Ok(Value::text(found.unwrap_or("")))
    }),
    ("regexFindAll", "ssi", Searches(searched::<2>), |a| {
        let (regex, text) = (a.patterns.compiled(&text(a, 0))?, text(a, 1));
        let most = usize::try_from(int(a, 2)).unwrap_or(usize::MAX);
        let mut parts = Parts::of(a);
        regex.find_iter(&text).take(most).try_for_each(|found| parts.push(found.as_str()))?;
        Ok(Value::list(parts.found))
    }),
    ("regexReplaceAll", "sss", Searches(substituted), |a| {
        let (regex, text) = (a.patterns.compiled(&text(a, 0))?, text(a, 1));
        let by = super::call::text(a, 2);
        Ok(Value::text(regex.replace_all(&text, &*by)))
    }),
    ("regexReplaceAllLiteral", "sss", Searches(substituted), |a| {
        let (regex, text) = (a.patterns.compiled(&text(a, 0))?, text(a, 1));
        let by = super::call::text(a, 2);
        Ok(Value::text(regex.replace_all(&text, regex::NoExpand(&by))))
    }),
    ("regexSplit", "ssi", Searches(searched::<2>), split),
    ("regexQuoteMeta", "s", Fresh(full::<48, 8>), |a| {
        let text = text(a, 0);
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            if r"\.+*?()|[]{}^$".contains(c) {
                out.push('\\');
            }
            out.push(c);
        }
        Ok(Value::text(out))
    }),
];

/// Parts of a text, as many as a call may make.
struct Parts {
    found: Vec<Value>,
    left: usize,
}

impl Parts {
    fn of(a: &Call<'_>) -> Self {
        let limits = a.dialect.limits();
        Self { found: Vec::new(), left: limits.once.saturating_sub(searched::<2>(a)) }
    }

    /// Adds a part; an error if there are too many.
    fn push(&mut self, part: &str) -> Result<(), String> {
        let left = self.left.checked_sub(PART + 2 * part.len());
        self.left = left.ok_or("the regular expression finds too many parts")?;
        self.found.push(Value::text(part));
        Ok(())
    }
}

/// Go's `Regexp.Split`: nothing is a separator too, except at the beginning.
fn split(a: &Call<'_>) -> Answer {
    let (pattern, text) = (text(a, 0), text(a, 1));
    let regex = a.patterns.compiled(&pattern)?;
    let most = usize::try_from(int(a, 2)).unwrap_or(usize::MAX);
    let mut parts = Parts::of(a);
    if most == 0 {
        return Ok(Value::list([]));
    }
    if text.is_empty() && !pattern.is_empty() {
        return Ok(Value::list([Value::text("")]));
    }
    let (mut begin, mut end) = (0, 0);
    for found in regex.find_iter(&text).take(most) {
        if parts.found.len() == most - 1 {
            break;
        }
        end = found.start();
        if found.end() != 0 {
            parts.push(&text[begin..end])?;
        }
        begin = found.end();
    }
    if end != text.len() {
        parts.push(&text[begin..])?;
    }
    Ok(Value::list(parts.found))
}
