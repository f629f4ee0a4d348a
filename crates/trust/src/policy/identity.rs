//! Decides whether the image name in a signature matches the requested name
//! (containers-policy.json(5), `signedIdentity`).

use serde::Deserialize;

use crate::payload::expanded;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;

/// The rule. Its names are checked when the policy is read.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", deny_unknown_fields, rename_all_fields = "camelCase")]
pub(crate) enum SignedIdentity {
    /// Same name with the same tag or digest.
    #[serde(rename = "matchExact")]
    Exact {},
    /// Requested by tag: same name and tag; by digest: same repository.
    #[serde(rename = "matchRepoDigestOrExact")]
    RepoDigestOrExact {},
    /// Same repository.
    #[serde(rename = "matchRepository")]
    Repository {},
    /// This name and tag, regardless of the requested name.
    #[serde(rename = "exactReference")]
    ExactReference { docker_reference: String },
    /// This repository, regardless of the requested name.
    #[serde(rename = "exactRepository")]
    ExactRepository { docker_repository: String },
    /// Like the default, with a prefix of the name replaced.
    #[serde(rename = "remapIdentity")]
    Remap { prefix: String, signed_prefix: String },
}

impl Default for SignedIdentity {
    fn default() -> Self {
        Self::RepoDigestOrExact {}
    }
}

impl SignedIdentity {
    /// Checks the names in the rule.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::ExactReference { docker_reference } => {
                let reference = Reference::parse(docker_reference)?;
                if has_tag(&reference) {
                    Ok(())
                } else {
                    Err(Error::bad_content(format!(
                        "`dockerReference` {docker_reference} has neither tag nor digest"
                    )))
                }
            }
            Self::ExactRepository { docker_repository } => {
                Reference::parse(docker_repository).map(|_| ())
            }
            Self::Remap { prefix, signed_prefix }
                if prefix.is_empty() || signed_prefix.is_empty() =>
            {
                Err(Error::bad_content("`remapIdentity` needs `prefix` and `signedPrefix`"))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a signature for `signed` is valid for `asked`, which is `None` for images
    /// without such a name. Both are full names.
    pub(super) fn admits(&self, asked: Option<&Reference>, signed: &Reference) -> bool {
        match (self, asked) {
            (Self::ExactReference { docker_reference }, _) => named(docker_reference)
                .is_some_and(|expected| has_tag(signed) && expected == *signed),
            (Self::ExactRepository { docker_repository }, _) => {
                named(docker_repository).is_some_and(|expected| expected.name() == signed.name())
            }
            (_, None) => false,
            (Self::Exact {}, Some(asked)) => has_tag(asked) && asked == signed,
            (Self::RepoDigestOrExact {}, Some(asked)) => repo_digest_or_exact(asked, signed),
            (Self::Repository {}, Some(asked)) => asked.name() == signed.name(),
            (Self::Remap { prefix, signed_prefix }, Some(asked)) => {
                remapped(asked, prefix, signed_prefix)
                    .is_some_and(|asked| repo_digest_or_exact(&asked, signed))
            }
        }
    }
}

fn repo_digest_or_exact(asked: &Reference, signed: &Reference) -> bool {
    match (asked.tag(), asked.digest()) {
        (Some(_), _) => asked.name() == signed.name() && asked.tag() == signed.tag(),
        (None, Some(_)) => asked.name() == signed.name(),
        (None, None) => false,
    }
}

/// Replaces `prefix` in `asked`; returns the name unchanged if it does not have the prefix.
fn remapped(asked: &Reference, prefix: &str, signed_prefix: &str) -> Option<Reference> {
    let full = asked.to_string();
    let name = asked.name();
    let Some(rest) = name.strip_prefix(prefix) else {
        return Some(asked.clone());
    };
    if !rest.is_empty() && !rest.starts_with('/') {
        return Some(asked.clone());
    }
    let replaced = format!("{signed_prefix}{}", full.strip_prefix(prefix)?);
    Reference::parse(&replaced).ok().map(|name| expanded(&name))
}

fn named(text: &str) -> Option<Reference> {
    Reference::parse(text).ok().map(|name| expanded(&name))
}

fn has_tag(reference: &Reference) -> bool {
    reference.tag().is_some() || reference.digest().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: &str) -> SignedIdentity {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn each_rule_admits_what_the_manual_says() {
        let digest = format!("q.io/a/b@{}", imgctl_base::image::Digest::of(b""));
        let digest = digest.as_str();
        let exact = r#"{"type":"matchExact"}"#;
        let default = r#"{"type":"matchRepoDigestOrExact"}"#;
        let repository = r#"{"type":"matchRepository"}"#;
        let reference = r#"{"type":"exactReference","dockerReference":"q.io/a/b:1"}"#;
        let elsewhere = r#"{"type":"exactRepository","dockerRepository":"q.io/a/b"}"#;
        let remap = r#"{"type":"remapIdentity","prefix":"mirror:5000/q","signedPrefix":"q.io"}"#;
        for (json, asked, signed, expected) in [
            (exact, "q.io/a/b:1", "q.io/a/b:1", true),
            (exact, "q.io/a/b:1", "q.io/a/b:2", false),
            (exact, digest, "q.io/a/b:1", false),
            (exact, "q.io/a/b", "q.io/a/b", false),
            (default, "q.io/a/b:1", "q.io/a/b:1", true),
            (default, "q.io/a/b:1", "q.io/a/b", false),
            (default, digest, "q.io/a/b:1", true),
            (default, digest, "q.io/a/c:1", false),
            (repository, "q.io/a/b:1", "q.io/a/b:2", true),
            (repository, "q.io/a/b:1", "q.io/a/b", true),
            (repository, "q.io/a/b:1", "q.io/a:1", false),
            (reference, "x.io/y:2", "q.io/a/b:1", true),
            (reference, "q.io/a/b:1", "q.io/a/b", false),
            (elsewhere, "x.io/y:2", "q.io/a/b:7", true),
            (elsewhere, "q.io/a/b:1", "q.io/a/c:1", false),
            (remap, "mirror:5000/q/a/b:1", "q.io/a/b:1", true),
            (remap, "mirror:5000/q/a/b:1", "q.io/a/b:2", false),
            (remap, "mirror:5000/quux/a:1", "q.io/uux/a:1", false),
            (remap, "mirror:5000/quux/a:1", "mirror:5000/quux/a:1", true),
        ] {
            let name = |text| expanded(&Reference::parse(text).unwrap());
            let rule = rule(json);
            rule.check().unwrap();
            let admits = rule.admits(Some(&name(asked)), &name(signed));
            assert_eq!(admits, expected, "{json} {asked} {signed}");
        }
    }

    #[test]
    fn images_without_a_name_need_an_exact_rule() {
        let signed = Reference::parse("q.io/a/b:1").unwrap();
        let exact = rule(r#"{"type":"exactReference","dockerReference":"q.io/a/b:1"}"#);
        assert!(exact.admits(None, &signed));
        assert!(!SignedIdentity::default().admits(None, &signed));
    }

    #[test]
    fn rules_that_are_not_understood_are_refused() {
        for bad in [
            r#"{"type":"matchExact","more":1}"#,
            r#"{"type":"matchNothing"}"#,
            r#"{"type":"exactReference"}"#,
            r#"{}"#,
        ] {
            assert!(serde_json::from_str::<SignedIdentity>(bad).is_err(), "{bad}");
        }
        let untagged = r#"{"type":"exactReference","dockerReference":"q.io/a"}"#;
        assert!(rule(untagged).check().is_err());
    }
}
