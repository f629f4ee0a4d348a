//! Versions of clusters: their order, and what their numbers mean for Kubernetes.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::template::semver::Version;

/// A version as somebody wrote it.
///
/// # Errors
/// When it is none; `whose` is named.
pub(crate) fn parse(text: &str, whose: &str) -> Result<Version> {
    Version::parse(text.trim())
        .ok_or_else(|| Error::usage(format!("`{text}`, which {whose} says, is not a version")))
}

/// The order of two versions. What follows `+` counts last: k3s releases differ in nothing else
/// at times (`v1.34.1+k3s1`, `v1.34.1+k3s2`).
pub(crate) fn order(one: &Version, other: &Version) -> Ordering {
    let build = |version: &Version| {
        let text = version.metadata.clone();
        (text.len(), text)
    };
    one.compare(other)
        .then_with(|| build(one).cmp(&build(other)))
}

/// The order of two texts; `None` when one is no version.
pub(crate) fn order_of(one: &str, other: &str) -> Option<Ordering> {
    Some(order(&Version::parse(one)?, &Version::parse(other)?))
}

/// The second number.
pub(crate) fn minor(text: &str) -> Option<u64> {
    Some(Version::parse(text)?.numbers[1])
}

/// How many minors `newer` is above `older`; 0 when it is not above. `None` when one of them is no
/// version, or they are of different majors.
pub(crate) fn minors_between(older: &str, newer: &str) -> Option<u64> {
    let (older, newer) = (Version::parse(older)?, Version::parse(newer)?);
    (older.numbers[0] == newer.numbers[0])
        .then(|| newer.numbers[1].saturating_sub(older.numbers[1]))
}

/// The minors that lie between two versions and the last one, as a control plane walks them:
/// `v1.33, v1.34`.
pub(crate) fn chain(from: &str, to: &str) -> Vec<String> {
    let (Some(from), Some(to)) = (Version::parse(from), Version::parse(to)) else {
        return Vec::new();
    };
    if from.numbers[0] != to.numbers[0] {
        return Vec::new();
    }
    let minors = from.numbers[1].saturating_add(1)..=to.numbers[1];
    minors
        .take(100)
        .map(|minor| format!("v{}.{minor}", to.numbers[0]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_of_one_version_have_an_order() {
        for (older, newer) in [
            ("v1.34.1", "v1.34.2"),
            ("v1.9.0", "v1.34.0"),
            ("v1.34.0-rc.1", "v1.34.0"),
            ("v1.34.1+k3s1", "v1.34.1+k3s2"),
            ("v1.34.1+k3s2", "v1.34.1+k3s10"),
            ("3.5.0", "v3.5.1"),
        ] {
            assert_eq!(
                order_of(older, newer),
                Some(Ordering::Less),
                "{older} {newer}"
            );
            assert_eq!(order_of(newer, older), Some(Ordering::Greater));
        }
        assert_eq!(order_of("v1.34.1", "1.34.1"), Some(Ordering::Equal));
        assert_eq!(order_of("new", "1.34.1"), None);
    }

    #[test]
    fn the_chain_names_each_minor() {
        assert_eq!(chain("v1.31.4", "v1.34.9"), ["v1.32", "v1.33", "v1.34"]);
        assert!(chain("v1.34.1", "v1.34.9").is_empty());
        assert_eq!(minors_between("v1.31.4", "v1.34.9"), Some(3));
        assert_eq!(minors_between("v1.34.4", "v1.31.9"), Some(0));
        assert_eq!(minors_between("v0.34.4", "v1.31.9"), None);
    }
}
