//! Versions of anything that a rootfs image holds, and ranges of them.
//!
//! Read leniently: `v1.34.1`, `3.4.23`, `v1.34.1+k3s1`, `1.36.0-rc.1`, `2024.11`. What each runtime
//! makes of a version is its own business.

use std::cmp::Ordering;

use crate::cluster::image::ClusterImage;
use crate::error::{Error, Result};

/// The labels that say which version an image holds; the first that is not empty counts.
const LABELS: [&str; 2] = ["version", "imgctl.io/version"];
/// Versions that may be left for this image.
pub(crate) const UPGRADE_FROM: &str = "imgctl.io/upgrade-from";

/// A version that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    numbers: Vec<u64>,
    /// `rc.1`: before the release.
    before: Option<String>,
    /// `k3s1`: after it.
    after: Vec<u64>,
}

impl Version {
    /// `None` when it does not begin with a number.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let (text, after) = text.split_once('+').unwrap_or((text, ""));
        let (release, before) = text
            .split_once('-')
            .map_or((text, None), |(release, before)| (release, Some(before)));
        let numbers: Option<Vec<u64>> = release.split('.').map(|part| part.parse().ok()).collect();
        let after = after
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|part| part.parse().ok())
            .collect();
        Some(Self {
            numbers: numbers?,
            before: before.map(str::to_owned),
            after,
        })
    }

    /// The number at `at`: 0 major, 1 minor, 2 patch.
    pub(crate) fn number(&self, at: usize) -> u64 {
        self.numbers.get(at).copied().unwrap_or(0)
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let length = self.numbers.len().max(other.numbers.len());
        for at in 0..length {
            match self.number(at).cmp(&other.number(at)) {
                Ordering::Equal => {}
                unequal => return unequal,
            }
        }
        match (&self.before, &other.before) {
            (None, None) => {}
            (None, Some(_)) => return Ordering::Greater,
            (Some(_), None) => return Ordering::Less,
            (Some(a), Some(b)) => match before_release(a, b) {
                Ordering::Equal => {}
                unequal => return unequal,
            },
        }
        // The digits of `k3s1` and `k3s2`: the 3 is in both.
        self.after.cmp(&other.after)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// `alpha.2`, `rc.1`, `rc.10`: part by part, numbers as numbers.
fn before_release(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.split('.'), b.split('.'));
    loop {
        let ordering = match (left.next(), right.next()) {
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
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
}

/// The version of an image: its label, else its tag.
pub(crate) fn of(image: &ClusterImage) -> Result<String> {
    if let Some(version) = image.label(&LABELS) {
        return Ok(version.to_owned());
    }
    let name = image.name.split('@').next().unwrap_or_default();
    let last = name.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        Some((_, tag)) if Version::parse(tag).is_some() => Ok(tag.to_owned()),
        _ => Err(
            Error::usage(format!("image {} does not say its version", image.name))
                .hint("build it with a label, for example: LABEL version=\"3.5.1\""),
        ),
    }
}

/// Whether `image` may follow on `from`, as far as it says so itself.
pub(crate) fn accepts(image: &ClusterImage, from: &str) -> Result<()> {
    let Some(range) = image.label(&[UPGRADE_FROM]) else {
        return Ok(());
    };
    if within(range, from).map_err(|error| error.context(format!("image {}", image.name)))? {
        return Ok(());
    }
    Err(Error::usage(format!(
        "image {} cannot follow on {from}: it takes up from {range} (label {UPGRADE_FROM})",
        image.name
    ))
    .hint("go over an image of a version between the two"))
}

/// Whether `version` is in `range`: comparisons separated by blanks or commas must all hold,
/// `||` separates alternatives. `>=3.4.0 <3.6.0`.
fn within(range: &str, version: &str) -> Result<bool> {
    let wrong = |what: &str| {
        Error::bad_content(format!(
            "`{range}` is no range of versions: `{what}` cannot be read"
        ))
        .hint("a range looks like `>=3.4.0 <3.6.0`")
    };
    let Some(version) = Version::parse(version) else {
        return Err(Error::usage(format!(
            "`{version}` is no version that can be compared with `{range}`"
        )));
    };
    let mut any = false;
    for alternative in range.split("||") {
        let mut all = true;
        let mut words = alternative
            .split([' ', ',', '\t'])
            .filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            let end = word
                .find(|c: char| !"<>=!".contains(c))
                .unwrap_or(word.len());
            let (sign, mut number) = word.split_at(end);
            if number.is_empty() {
                number = words.next().ok_or_else(|| wrong(word))?;
            }
            let bound = Version::parse(number).ok_or_else(|| wrong(number))?;
            all &= match sign {
                "" | "=" | "==" => version == bound || version.cmp(&bound).is_eq(),
                "!=" => !version.cmp(&bound).is_eq(),
                ">=" => version >= bound,
                ">" => version > bound,
                "<=" => version <= bound,
                "<" => version < bound,
                _ => return Err(wrong(word)),
            };
        }
        any |= all;
    }
    Ok(any)
}

/// The rule for control planes of Kubernetes: newer patches, or one minor. Pure.
pub(crate) fn permits_kubernetes(from: &str, to: &str) -> Result<()> {
    let number = |text: &str| {
        Version::parse(text)
            .ok_or_else(|| Error::usage(format!("`{text}` is not a version of Kubernetes")))
    };
    let (old, new) = (number(from)?, number(to)?);
    if new < old {
        return Err(
            Error::usage(format!("{to} is older than {from}, which the cluster runs"))
                .hint("`imgctl rollback` takes a cluster back to what it was before"),
        );
    }
    let (major, minor) = (new.number(0), new.number(1));
    if major != old.number(0) || minor > old.number(1) + 1 {
        let chain: Vec<String> = (old.number(1) + 1..=minor)
            .map(|minor| format!("v{major}.{minor}"))
            .collect();
        return Err(Error::usage(format!(
            "control planes go one minor at a time: from {from} to {to} by way of {}",
            chain.join(", ")
        ))
        .hint("name an image of each, in this order, with --hop auto"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::image::ImageKind;
    use crate::cluster::test_scenes::image;

    #[test]
    fn versions_are_ordered() {
        let ordered = [
            "3.4.23",
            "3.5.0-alpha.1",
            "3.5.0-rc.2",
            "3.5.0-rc.10",
            "3.5",
            "v3.5.1",
            "v3.5.1+k3s1",
            "v3.5.1+k3s2",
            "3.10.0",
            "2024.11",
        ];
        for pair in ordered.windows(2) {
            let parse = |text: &str| Version::parse(text).unwrap();
            assert!(parse(pair[0]) < parse(pair[1]), "{pair:?}");
        }
        for wrong in ["", "latest", "v", "1.x", "main-3"] {
            assert_eq!(Version::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ranges() {
        for (range, version, expected) in [
            (">=3.4.0 <3.6.0", "3.4.23", true),
            (">=3.4.0, <3.6.0", "v3.6.0", false),
            (">= 3.4.0 < 3.6.0", "3.5.1", true),
            ("3.5.0 || 3.4.23", "3.4.23", true),
            ("!=3.5.0", "3.5.0", false),
            ("=3.5", "3.5.0", true),
        ] {
            assert_eq!(within(range, version).unwrap(), expected, "{range}");
        }
        for wrong in ["~3.4", ">=", "newer"] {
            assert!(within(wrong, "3.4.0").is_err(), "{wrong}");
        }
    }

    #[test]
    fn images_say_their_version() {
        let mut image = image("sealos.hub:5000/etcd:3.5.1", ImageKind::Rootfs);
        assert_eq!(of(&image).unwrap(), "3.5.1");
        image
            .labels
            .insert(UPGRADE_FROM.into(), ">=3.4.0 <3.5.1".into());
        accepts(&image, "3.5.0").unwrap();
        let error = accepts(&image, "3.5.1").unwrap_err();
        assert!(error.to_string().contains(">=3.4.0 <3.5.1"), "{error}");
        image
            .labels
            .insert("imgctl.io/version".into(), "3.5.2".into());
        assert_eq!(of(&image).unwrap(), "3.5.2");
        image.name = "sealos.hub:5000/etcd".into();
        image.labels.clear();
        assert!(of(&image).is_err());
    }

    #[test]
    fn one_minor_at_a_time() {
        for (from, to) in [
            ("v1.33.13", "v1.33.13"),
            ("v1.33.13", "v1.33.14"),
            ("v1.33.13", "v1.34.0"),
            ("v1.34.0-rc.1", "v1.34.0"),
            ("v1.34.1+k3s1", "v1.34.1+k3s2"),
        ] {
            permits_kubernetes(from, to).unwrap();
        }
        let error = permits_kubernetes("v1.31.2", "v1.34.1").unwrap_err();
        assert!(error.to_string().contains("v1.32, v1.33, v1.34"), "{error}");
        for (from, to) in [("v1.34.1", "v1.34.0"), ("v1.34.1", "v1.33.9")] {
            let error = permits_kubernetes(from, to).unwrap_err();
            assert!(error.hints()[0].contains("rollback"), "{error}");
        }
    }
}
