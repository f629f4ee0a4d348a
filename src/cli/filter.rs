//! `--filter` of `images`.

use crate::cli::names::PatternExt as _;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Digest, Reference};
use imgctl_store::store::Store;
use imgctl_store::store::list::ImageSummary;

/// Conditions that must all hold.
pub(crate) struct Filters(Vec<Filter>);

enum Filter {
    Label(String, Option<String>),
    /// Pattern with `*` and `?` for the name, with or without registry and tag.
    Reference(String),
    /// Image found by name, ID or digest.
    Exactly(Digest),
    Dangling(bool),
    /// Created before this time, in seconds since 1970; excludes the image with this digest.
    Before(i64, Digest),
    Since(i64, Digest),
}

impl Filters {
    /// Parses the `KEY=VALUE` conditions and the name argument.
    pub(crate) fn parse(specs: &[String], name: Option<&str>, store: &Store) -> Result<Self> {
        let mut filters = Vec::new();
        for spec in specs {
            filters.push(Self::one(spec, store)?);
        }
        if let Some(name) = name {
            filters.push(match store.resolve(name) {
                // `images REPOSITORY` lists all tags of the repository.
                Ok(found) if has_tag(name) || found.reference.is_none() => {
                    Filter::Exactly(found.descriptor.digest)
                }
                _ => Filter::Reference(name.to_owned()),
            });
        }
        Ok(Self(filters))
    }

    fn one(spec: &str, store: &Store) -> Result<Filter> {
        let (key, value) = spec.split_once('=').ok_or_else(|| {
            Error::usage(format!("--filter `{spec}` is not of the form KEY=VALUE"))
        })?;
        let moment = |name: &str| -> Result<(i64, Digest)> {
            let named = store.resolve(name)?;
            let summary = store.summary(&named)?;
            Ok((seconds(&summary).unwrap_or(i64::MIN), summary.digest))
        };
        Ok(match key {
            "label" => match value.split_once('=') {
                Some((name, value)) => Filter::Label(name.to_owned(), Some(value.to_owned())),
                None => Filter::Label(value.to_owned(), None),
            },
            "reference" => Filter::Reference(value.to_owned()),
            "dangling" => Filter::Dangling(value.parse().map_err(|_| {
                Error::usage(format!("--filter dangling must be true or false, not `{value}`"))
            })?),
            "before" => moment(value).map(|(time, digest)| Filter::Before(time, digest))?,
            "since" | "after" => moment(value).map(|(time, digest)| Filter::Since(time, digest))?,
            "readonly" | "intermediate" | "containers" => Filter::Reference("*".to_owned()),
            _ => {
                return Err(Error::usage(format!("unknown --filter key `{key}`"))
                    .hint("use label, reference, dangling, before or since"));
            }
        })
    }

    /// Whether to show `image`.
    pub(crate) fn accept(&self, image: &ImageSummary) -> bool {
        self.0.iter().all(|filter| filter.accept(image))
    }
}

impl Filter {
    fn accept(&self, image: &ImageSummary) -> bool {
        let created = || seconds(image).unwrap_or(i64::MIN);
        match self {
            Self::Label(name, None) => image.labels.contains_key(name),
            Self::Label(name, Some(value)) => image.labels.get(name) == Some(value),
            Self::Reference(pattern) => matches(pattern, image),
            Self::Exactly(digest) => image.digest == *digest,
            Self::Dangling(wanted) => image.name.is_none() == *wanted,
            Self::Before(time, digest) => created() < *time && image.digest != *digest,
            Self::Since(time, digest) => created() > *time && image.digest != *digest,
        }
    }
}

/// Whether `pattern` matches the full name, or the name without its registry, its tag or both.
fn matches(pattern: &str, image: &ImageSummary) -> bool {
    let Some(reference) = &image.reference else {
        return match &image.name {
            Some(name) => pattern.fits(name),
            None => pattern == "*",
        };
    };
    let repository = reference.repository();
    let mut forms = vec![reference.name(), repository.to_owned()];
    let last = repository.rsplit('/').next().unwrap_or(repository);
    forms.push(last.to_owned());
    if let Some(tag) = reference.tag() {
        let tagged: Vec<String> = forms.iter().map(|form| format!("{form}:{tag}")).collect();
        forms.extend(tagged);
    }
    forms.iter().any(|form| pattern.fits(form))
}

fn has_tag(name: &str) -> bool {
    Reference::parse(name).is_ok_and(|name| name.tag().is_some() || name.digest().is_some())
}

fn seconds(image: &ImageSummary) -> Option<i64> {
    let created = image.created.as_deref()?;
    imgctl_base::image::time::parse_rfc3339(created).ok().map(|(seconds, _)| seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn image(name: Option<&str>) -> ImageSummary {
        ImageSummary {
            reference: name.map(|name| Reference::parse(name).unwrap()),
            name: name.map(str::to_owned),
            digest: Digest::of(b""),
            id: None,
            created: Some("2024-01-02T03:04:05Z".to_owned()),
            size: 0,
            platforms: Vec::new(),
            labels: BTreeMap::from([("a".to_owned(), "1".to_owned())]),
            layers: 0,
            problem: None,
        }
    }

    #[test]
    fn patterns_fit_names_with_and_without_registry_and_tag() {
        let etcd = image(Some("localhost/team/etcd:v1"));
        for (pattern, expected) in [
            ("etcd", true),
            ("team/etcd", true),
            ("localhost/team/etcd:v1", true),
            ("*etcd:v?", true),
            ("etcd:v2", false),
            ("etc", false),
        ] {
            assert_eq!(matches(pattern, &etcd), expected, "{pattern}");
        }
        assert!(!matches("etcd", &image(None)));
    }

    #[test]
    fn labels_dangling_and_times() {
        let named = image(Some("localhost/a:1"));
        assert!(Filter::Label("a".into(), None).accept(&named));
        assert!(!Filter::Label("a".into(), Some("2".into())).accept(&named));
        assert!(Filter::Dangling(true).accept(&image(None)));
        let other = Digest::of(b"other");
        assert!(Filter::Before(1_800_000_000, other.clone()).accept(&named));
        assert!(!Filter::Since(1_800_000_000, other).accept(&named));
    }
}
