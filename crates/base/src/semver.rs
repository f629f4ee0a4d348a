//! Semantic versions and the constraints of `semverCompare` (Masterminds/semver's grammar):
//! `>=1.26.0`, `~1.2`, `^1.2.3`, `1.x`, `1.2 - 2.3`, `a, b` and `a b` for and, `a || b` for or.

use std::cmp::Ordering;

/// A version; omitted parts are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub numbers: [u64; 3],
    pub prerelease: String,
    pub metadata: String,
}

impl Version {
    /// Parses `v1.2.3-rc.1+build`; `v`, minor and patch may be missing.
    pub fn parse(text: &str) -> Option<Self> {
        let partial = Partial::parse(text)?;
        (!partial.wildcard).then_some(())?;
        Some(partial.version())
    }

    /// Compares by precedence (semver §11); ignores build metadata.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.numbers
            .cmp(&other.numbers)
            .then_with(|| compare_prereleases(&self.prerelease, &other.prerelease))
    }
}

/// A version ranks above its pre-releases; identifiers compare as numbers if both are numeric
/// (semver §11).
fn compare_prereleases(a: &str, b: &str) -> Ordering {
    match (a.is_empty(), b.is_empty()) {
        (true, true) => return Ordering::Equal,
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    let (mut left, mut right) = (a.split('.'), b.split('.'));
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(a), Some(b)) => match (a.parse::<u64>(), b.parse::<u64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => a.cmp(b),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// A version as written in a constraint: it may be partial or end in a wildcard.
#[derive(Clone, Debug)]
struct Partial {
    numbers: Vec<u64>,
    wildcard: bool,
    prerelease: String,
    metadata: String,
}

impl Partial {
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let (text, metadata) = text.split_once('+').unwrap_or((text, ""));
        let (core, prerelease) = text.split_once('-').unwrap_or((text, ""));
        let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
        if !prerelease.bytes().all(word) || !metadata.bytes().all(word) {
            return None;
        }
        let (mut numbers, mut wildcard) = (Vec::new(), false);
        for part in core.split('.') {
            match part {
                "x" | "X" | "*" => wildcard = true,
                _ if wildcard => return None,
                _ if part.bytes().all(|b| b.is_ascii_digit()) => numbers.push(part.parse().ok()?),
                _ => return None,
            }
        }
        let dashed = text.ends_with('-');
        (numbers.len() <= 3 && !dashed).then(|| Self {
            numbers,
            wildcard,
            prerelease: prerelease.to_owned(),
            metadata: metadata.to_owned(),
        })
    }

    fn version(&self) -> Version {
        let part = |index: usize| self.numbers.get(index).copied().unwrap_or(0);
        Version {
            numbers: [part(0), part(1), part(2)],
            prerelease: self.prerelease.clone(),
            metadata: self.metadata.clone(),
        }
    }

    /// The lowest version above all versions that share the first `parts` numbers.
    fn next(&self, parts: usize) -> Option<Version> {
        let mut numbers = [0; 3];
        for (slot, number) in numbers.iter_mut().zip(self.numbers.iter().take(parts)) {
            *slot = *number;
        }
        let last = numbers.get_mut(parts.checked_sub(1)?)?;
        *last = last.checked_add(1)?;
        Some(Version { numbers, prerelease: String::new(), metadata: String::new() })
    }
}

/// Returns whether `version` satisfies `constraint`, or `None` if the constraint is malformed.
pub fn satisfies(constraint: &str, version: &Version) -> Option<bool> {
    let mut any = false;
    for alternative in constraint.split("||") {
        any |= all_of(alternative, version)?;
    }
    Some(any)
}

fn all_of(text: &str, version: &Version) -> Option<bool> {
    let spaced = text.replace(',', " ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut all = true;
    let mut position = 0;
    let mut seen = false;
    while let Some(word) = words.get(position) {
        seen = true;
        position += 1;
        if let (Some(&"-"), Some(high)) = (words.get(position), words.get(position + 1)) {
            position += 2;
            all &= check(">=", word, version)? && check("<=", high, version)?;
            continue;
        }
        let digits = word.find(|c: char| !"=!<>~^".contains(c)).unwrap_or(word.len());
        let (operator, rest) = word.split_at(digits);
        if rest.is_empty() {
            // A space separates operator and operand: `>= 1.2`.
            let operand = words.get(position)?;
            position += 1;
            all &= check(operator, operand, version)?;
        } else {
            all &= check(operator, rest, version)?;
        }
    }
    seen.then_some(all)
}

fn check(operator: &str, operand: &str, version: &Version) -> Option<bool> {
    let partial = Partial::parse(operand)?;
    // A constraint matches pre-releases only if it names one itself.
    if !version.prerelease.is_empty() && partial.prerelease.is_empty() {
        return Some(false);
    }
    let bound = partial.version();
    let given = partial.numbers.len();
    let at_least = version.compare(&bound) != Ordering::Less;
    let below = |limit: Option<Version>| limit.is_some_and(|limit| version.numbers < limit.numbers);
    let within = |parts: usize| at_least && (parts == 0 || below(partial.next(parts)));
    Some(match operator {
        "" | "=" | "!=" => {
            let equal =
                if given < 3 { within(given) } else { version.compare(&bound) == Ordering::Equal };
            equal != (operator == "!=")
        }
        ">=" | "=>" => at_least,
        "<" => !at_least,
        ">" if given < 3 => at_least && !within(given),
        ">" => version.compare(&bound) == Ordering::Greater,
        "<=" | "=<" if given < 3 => !at_least || within(given),
        "<=" | "=<" => version.compare(&bound) != Ordering::Greater,
        "~" | "~>" => within(given.min(2)),
        "^" => {
            let leading = partial.numbers.iter().position(|number| *number != 0);
            within(leading.map_or(given, |index| index + 1))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_mean_what_their_documentation_says() {
        for (constraint, version, expected) in [
            (">=1.26.0", "v1.29.9", true),
            (">=1.26.0", "1.25.16", false),
            (">=1.26.0", "1.27.0-rc.1", false),
            (">=1.26.0-0", "1.27.0-rc.1", true),
            (">= 1.2, < 3.0.0", "2.9.9", true),
            (">=1.2 <3.0.0", "3.0.0", false),
            ("<1.2 || >=2.3.1", "2.3.1", true),
            ("1.2.x", "1.2.9", true),
            ("1.2.x", "1.3.0", false),
            ("*", "7.1.2", true),
            ("~1.2.3", "1.2.9", true),
            ("~1.2.3", "1.3.0", false),
            ("~1", "1.9.0", true),
            ("^1.2.3", "1.9.9", true),
            ("^1.2.3", "2.0.0", false),
            ("^0.2.3", "0.2.9", true),
            ("^0.2.3", "0.3.0", false),
            ("^0.0.3", "0.0.4", false),
            ("^0", "0.9.0", true),
            ("1.2 - 1.4.5", "1.4.5", true),
            ("1.2 - 1.4.5", "1.4.6", false),
            ("!=1.2.3", "1.2.4", true),
            (">1.2", "1.2.9", false),
            (">1.2", "1.3.0", true),
            ("<=1.2", "1.2.9", true),
            ("=1.0.0-alpha.2", "1.0.0-alpha.10", false),
            (">1.0.0-alpha.2", "1.0.0-alpha.10", true),
        ] {
            let version = Version::parse(version).unwrap();
            assert_eq!(satisfies(constraint, &version), Some(expected), "{constraint} {version:?}");
        }
    }

    #[test]
    fn nonsense_is_not_a_version_or_constraint() {
        for text in ["", "x.1", "1.2.3.4", "one", "1.-2", "1.2.3-"] {
            assert!(Version::parse(text).is_none(), "{text}");
        }
        let version = Version::parse("1").unwrap();
        for text in ["", ">=", "?1", ">=1 || "] {
            assert_eq!(satisfies(text, &version), None, "{text}");
        }
    }

    #[test]
    fn fuzz_versions_and_constraints_are_read_or_refused() {
        bolero::check!().with_type::<(String, u8, u8)>().for_each(|(text, major, minor)| {
            let written = format!("{major}.{minor}.0");
            let version = Version::parse(&written).unwrap();
            satisfies(text, &version);
            assert_eq!(satisfies(&format!("={written}"), &version), Some(true));
            assert_eq!(satisfies(&format!("<{written} || >{written}"), &version), Some(false));
        });
    }
}
