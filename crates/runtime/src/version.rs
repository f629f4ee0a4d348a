//! Versions of a rootfs image's content: their order, the version that an image declares, and the
//! rules of Kubernetes. Must not depend on how a runtime uses a version otherwise.

use std::cmp::Ordering;

use imgctl_base::error::{Error, Result};
use imgctl_base::semver::{Version, satisfies};
use imgctl_model::image::ClusterImage;

/// Labels with the version of an image's content; the first non-empty one counts.
const LABELS: [&str; 2] = ["version", "imgctl.io/version"];
/// Label with the range of versions that can be upgraded to this image.
pub const UPGRADE_FROM: &str = "imgctl.io/upgrade-from";

/// Parses a version.
///
/// # Errors
/// Fails if the text is not a version; the message names `whose`.
pub fn parse(text: &str, whose: &str) -> Result<Version> {
    Version::parse(text.trim())
        .ok_or_else(|| Error::usage(format!("`{text}` of {whose} is not a version")))
}

/// Compares two versions. The part after `+` counts last, because some k3s releases differ only in
/// it (`v1.34.1+k3s1`, `v1.34.1+k3s2`).
pub fn order(one: &Version, other: &Version) -> Ordering {
    let build = |version: &Version| {
        let text = version.metadata.clone();
        (text.len(), text)
    };
    one.compare(other).then_with(|| build(one).cmp(&build(other)))
}

/// Compares two texts; returns `None` if one is not a version.
pub fn order_of(one: &str, other: &str) -> Option<Ordering> {
    Some(order(&Version::parse(one)?, &Version::parse(other)?))
}

pub fn minor(text: &str) -> Option<u64> {
    Some(Version::parse(text)?.numbers[1])
}

/// Returns the number of minor versions that `newer` is above `older`; 0 if it is not above.
/// Returns `None` if one is not a version or their major versions differ.
pub fn minors_between(older: &str, newer: &str) -> Option<u64> {
    let (older, newer) = (Version::parse(older)?, Version::parse(newer)?);
    (older.numbers[0] == newer.numbers[0])
        .then(|| newer.numbers[1].saturating_sub(older.numbers[1]))
}

/// Returns the minor versions after `from` up to and including that of `to`, in the order that a
/// control plane is upgraded: `v1.33, v1.34`.
pub fn chain(from: &str, to: &str) -> Vec<String> {
    let (Some(from), Some(to)) = (Version::parse(from), Version::parse(to)) else {
        return Vec::new();
    };
    if from.numbers[0] != to.numbers[0] {
        return Vec::new();
    }
    let minors = from.numbers[1].saturating_add(1)..=to.numbers[1];
    minors.take(100).map(|minor| format!("v{}.{minor}", to.numbers[0])).collect()
}

/// Returns the version of an image: its label, or otherwise its tag.
pub fn of(image: &ClusterImage) -> Result<String> {
    if let Some(version) = image.label(&LABELS) {
        return Ok(version.to_owned());
    }
    let name = image.name.split('@').next().unwrap_or_default();
    let last = name.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        Some((_, tag)) if Version::parse(tag).is_some() => Ok(tag.to_owned()),
        _ => Err(Error::usage(format!("image {} does not state its version", image.name))
            .hint("build it with a label, for example: LABEL version=\"3.5.1\"")),
    }
}

/// Checks whether `image` accepts an upgrade from `from`, by its own label.
pub fn accepts(image: &ClusterImage, from: &str) -> Result<()> {
    let Some(range) = image.label(&[UPGRADE_FROM]) else {
        return Ok(());
    };
    let version = parse(from, "the cluster")?;
    let fits = satisfies(range, &version).ok_or_else(|| {
        Error::bad_content(format!(
            "image {}: `{range}` is not a version range (label {UPGRADE_FROM})",
            image.name
        ))
        .hint("a range looks like `>=3.4.0 <3.6.0`")
    })?;
    if fits {
        return Ok(());
    }
    // What to do depends on the image that the cluster has.
    Err(Error::usage(format!(
        "image {} cannot upgrade {from}: it supports upgrades from {range} (label {UPGRADE_FROM})",
        image.name
    )))
}

/// Applies the rule for Kubernetes control planes: newer patches, or one minor version. Pure.
pub(crate) fn permits_kubernetes(from: &str, to: &str) -> Result<()> {
    let whose = "an image of Kubernetes";
    let (old, new) = (parse(from, whose)?, parse(to, whose)?);
    if order(&new, &old).is_lt() {
        return Err(Error::usage(format!("{to} is older than {from}, which the cluster runs"))
            .hint("`imgctl rollback` restores the previous version of a cluster"));
    }
    if new.numbers[0] != old.numbers[0] || new.numbers[1] > old.numbers[1].saturating_add(1) {
        return Err(Error::usage(format!(
            "control planes upgrade one minor at a time: from {from} to {to} through {}",
            chain(from, to).join(", ")
        ))
        .hint("name an image of each, in this order, and pass --hop auto"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_model::image::ImageKind;
    use imgctl_model::testing::image;

    #[test]
    fn builds_of_one_version_have_an_order() {
        for (older, newer) in [
            ("v1.34.1", "v1.34.2"),
            ("v1.9.0", "v1.34.0"),
            ("v1.34.0-rc.1", "v1.34.0"),
            ("v1.34.1+k3s1", "v1.34.1+k3s2"),
            ("v1.34.1+k3s2", "v1.34.1+k3s10"),
            ("3.5.0", "v3.5.1"),
            ("3.5.0-rc.2", "3.5.0-rc.10"),
            ("3.5", "2024.11"),
        ] {
            assert_eq!(order_of(older, newer), Some(Ordering::Less), "{older} {newer}");
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

    #[test]
    fn images_say_their_version() {
        let mut image = image("sealos.hub:5000/etcd:3.5.1", ImageKind::Rootfs);
        assert_eq!(of(&image).unwrap(), "3.5.1");
        image.labels.insert(UPGRADE_FROM.into(), ">=3.4.0 <3.5.1".into());
        accepts(&image, "3.5.0").unwrap();
        let error = accepts(&image, "3.5.1").unwrap_err();
        assert!(error.to_string().contains(">=3.4.0 <3.5.1"), "{error}");
        for wrong in [">=", "newer"] {
            image.labels.insert(UPGRADE_FROM.into(), wrong.into());
            let error = accepts(&image, "3.5.0").unwrap_err();
            assert!(error.to_string().contains("not a version range"), "{error}");
        }
        image.labels.insert("imgctl.io/version".into(), "3.5.2".into());
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
