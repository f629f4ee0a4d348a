//! `--set PATTERN.ATTRIBUTE[.KEY]=VALUE`. Must not know where overrides come from.

use std::collections::BTreeMap;

use imgctl_base::error::{Error, Result};

use crate::target::{Target, Values};

/// One override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Name of a target, with `*` and `?`.
    pattern: String,
    attribute: String,
    /// Key of a map, such as the name of an argument.
    key: Option<String>,
    /// Values of one attribute that is a list come one by one.
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
    /// Reads overrides; several values for one attribute become its list.
    ///
    /// # Errors
    ///
    /// If a text is not of the form.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        for text in texts {
            let one = Self::parse(text)?;
            let same = |known: &&mut Self| {
                (&known.pattern, &known.attribute, &known.key)
                    == (&one.pattern, &one.attribute, &one.key)
            };
            match all.iter_mut().find(same) {
                Some(known) => known.values.extend(one.values),
                None => all.push(one),
            }
        }
        Ok(all)
    }

    fn parse(text: &str) -> Result<Self> {
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
            // An argument without a value comes from the environment, as with --build-arg.
            None if attribute == "args" => Vec::new(),
            None => return Err(wrong()),
        };
        Ok(Self { pattern: pattern.to_owned(), attribute: attribute.to_owned(), key, values, adds })
    }

    /// Returns the name of an argument whose value comes from the environment.
    pub fn from_environment(&self) -> Option<&str> {
        self.values.is_empty().then_some(self.key.as_deref()).flatten()
    }

    /// Sets the value that [`Override::from_environment`] asks for; without one, the override has no effect.
    pub fn set_value(&mut self, value: Option<String>) {
        self.values.extend(value);
    }

    /// Fails if no target has a name like the pattern.
    pub(crate) fn check<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Result<()> {
        if names.any(|name| matches(&self.pattern, name)) {
            return Ok(());
        }
        Err(Error::usage(format!("--set: no target has a name like `{}`", self.pattern)))
    }

    /// Changes a target if the pattern matches its name.
    pub(crate) fn apply(&self, target: &mut Target) -> Result<()> {
        let Some(last) = self.values.last().filter(|_| matches(&self.pattern, &target.name)) else {
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

/// Matches `*` and `?`.
fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.chars().next(), name.chars().next()) {
        (None, None) => true,
        (Some('*'), _) => {
            matches(&pattern[1..], name)
                || name.chars().next().is_some_and(|c| matches(pattern, &name[c.len_utf8()..]))
        }
        (Some('?'), Some(c)) => matches(&pattern[1..], &name[c.len_utf8()..]),
        (Some(a), Some(b)) if a == b => matches(&pattern[a.len_utf8()..], &name[b.len_utf8()..]),
        _ => false,
    }
}
