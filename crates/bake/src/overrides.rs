//! `--set PATTERN.ATTRIBUTE[.KEY]=VALUE`. Must not know where overrides come from.

use std::collections::BTreeMap;

use regex::Regex;

use imgctl_base::error::{Error, Result};

use crate::target::{Target, Values};

/// One override.
#[derive(Clone, Debug)]
pub struct Override {
    /// Matches the names of targets.
    pattern: Regex,
    /// The pattern as written, with `*` and `?`.
    target: String,
    attribute: String,
    /// Key of a map, such as the name of an argument.
    key: Option<String>,
    /// One, or several for an attribute that is a list.
    values: Vec<String>,
    adds: bool,
}

/// Attributes that are maps, whose keys an override names.
const MAPS: [&str; 4] = ["args", "labels", "contexts", "extra-hosts"];
/// Other words for attributes, as flags of a build have them.
const WORDS: [(&str, &str); 5] = [
    ("platform", "platforms"),
    ("tag", "tags"),
    ("secrets", "secret"),
    ("annotation", "annotations"),
    ("outputs", "output"),
];
/// Attributes that are one text.
const SINGLE: [&str; 10] = [
    "call",
    "context",
    "description",
    "dockerfile",
    "dockerfile-inline",
    "network",
    "no-cache",
    "pull",
    "shm-size",
    "target",
];

impl Override {
    /// Reads overrides; several values for one attribute become its list. `lookup` returns the value of an
    /// argument that has none in its text, as with `--build-arg NAME`; without one, the override has no effect.
    ///
    /// # Errors
    ///
    /// If a text does not have this form.
    pub fn parse_all(
        texts: &[String],
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        for text in texts {
            let one = Self::parse(text, lookup)?;
            let same = |known: &&mut Self| {
                (&known.target, &known.attribute, &known.key)
                    == (&one.target, &one.attribute, &one.key)
            };
            match all.iter_mut().find(same) {
                Some(known) => known.values.extend(one.values),
                None => all.push(one),
            }
        }
        Ok(all)
    }

    fn parse(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("--set cannot be `{text}`"))
                .hint("write TARGET.ATTRIBUTE=VALUE or TARGET.ATTRIBUTE.KEY=VALUE, where TARGET may contain `*`")
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let (name, adds) = match name.strip_suffix('+') {
            Some(name) => (name, true),
            None => (name, false),
        };
        let mut words = name.splitn(3, '.');
        let (Some(pattern), Some(attribute)) = (words.next(), words.next()) else {
            return Err(wrong());
        };
        let attribute =
            WORDS.iter().find(|(word, _)| *word == attribute).map_or(attribute, |(_, own)| own);
        let key = words.next().map(str::to_owned);
        if pattern.is_empty() || MAPS.contains(&attribute) != key.is_some() {
            return Err(wrong());
        }
        let values = match value {
            Some(value) => vec![value.to_owned()],
            None if attribute == "args" => key.as_deref().and_then(lookup).into_iter().collect(),
            None => return Err(wrong()),
        };
        let any = regex::escape(pattern).replace(r"\*", ".*").replace(r"\?", ".");
        Ok(Self {
            pattern: Regex::new(&format!("^{any}$")).map_err(|_| wrong())?,
            target: pattern.to_owned(),
            attribute: attribute.to_owned(),
            key,
            values,
            adds,
        })
    }

    /// Fails if no target has a name like the pattern.
    pub(crate) fn check<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Result<()> {
        if names.any(|name| self.pattern.is_match(name)) {
            return Ok(());
        }
        Err(Error::usage(format!("--set: no target has a name like `{}`", self.target)))
    }

    /// Changes a target if the pattern matches its name.
    pub(crate) fn apply(&self, target: &mut Target) -> Result<()> {
        let Some(last) = self.values.last().filter(|_| self.pattern.is_match(&target.name)) else {
            return Ok(());
        };
        let values = match &self.key {
            Some(key) => Values::Map(BTreeMap::from([(key.clone(), last.clone())])),
            None if SINGLE.contains(&&*self.attribute) => Values::Text(last.clone()),
            None => Values::List(self.values.clone()),
        };
        let mut change = Target::default();
        let set = change.set(&self.attribute, values).ok_or_else(|| {
            Error::usage(format!("--set: a target has no attribute `{}`", self.attribute))
        })?;
        set.map_err(|cause| Error::usage(format!("--set {}: {cause}", self.attribute)))?;
        if self.adds {
            change.prepend(target, &self.attribute);
        } else {
            target.clear(&self.attribute);
        }
        target.merge(&change);
        Ok(())
    }
}
