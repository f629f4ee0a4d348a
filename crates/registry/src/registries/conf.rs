//! `registries.conf`: versions 1 and 2 of the format, and how several files are merged.
//! containers-registries.conf(5), containers-registries.conf.d(5).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::config_file;
use crate::registries::names::matched_length;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;

/// Merged configuration of all files.
#[derive(Clone, Debug, Default)]
pub(super) struct Conf {
    rules: Vec<Rule>,
    /// `unqualified-search-registries`.
    pub(super) search: Option<Vec<String>>,
    /// `credential-helpers`.
    pub(super) credential_helpers: Option<Vec<String>>,
    pub(super) short_names: Option<ShortNames>,
    pub(super) aliases: BTreeMap<String, String>,
}

/// `short-name-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ShortNames {
    Enforcing,
    Permissive,
    Disabled,
}

/// One `[[registry]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) prefix: String,
    /// Replacement of the prefix, if it differs.
    pub(super) location: Option<String>,
    pub(super) insecure: Option<bool>,
    pub(super) blocked: bool,
    pub(super) mirrors: Vec<Mirror>,
}

/// One `[[registry.mirror]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mirror {
    pub(super) location: String,
    pub(super) insecure: Option<bool>,
    pub(super) by_digest: bool,
    pub(super) by_tag: bool,
}

impl Conf {
    /// Merges the file at `path` into the existing configuration. Ignores a missing file.
    pub(super) fn add(&mut self, path: &Path, drop_in: bool) -> Result<()> {
        let Some(text) = config_file::text(path)? else {
            return Ok(());
        };
        let document: Document = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| config_file::line_of(&text, span.start));
            Error::usage(format!("{}:{line}: {}", path.display(), error.message()))
                .hint("the format is that of containers-registries.conf(5)")
        })?;
        self.merge(document, drop_in)
            .map_err(|error| error.context(format!("{} is not usable", path.display())))
    }

    fn merge(&mut self, document: Document, drop_in: bool) -> Result<()> {
        let mut found: Vec<Rule> = Vec::new();
        if let Some(lists) = document.registries {
            let mixed = !document.registry.is_empty() || document.search.is_some();
            if mixed || drop_in {
                return Err(Error::usage(
                    "version 1 of the format ([registries.search], [registries.insecure], \
                     [registries.block]) mixed with version 2",
                ));
            }
            self.search = Some(lists.search.registries);
            found = version_1(&lists.insecure.registries, &lists.block.registries)?;
        }
        for table in document.registry {
            let rule = table.rule()?;
            if found.iter().any(|known| known.prefix == rule.prefix) && !found.contains(&rule) {
                return Err(Error::usage(format!(
                    "the registry `{}` is configured twice, differently",
                    rule.prefix
                )));
            }
            found.push(rule);
        }
        for rule in found {
            self.rules.retain(|known| known.prefix != rule.prefix);
            self.rules.push(rule);
        }
        if let Some(search) = document.search {
            self.search = Some(search);
        }
        if let Some(search) = &self.search {
            for host in search {
                location(host, "unqualified-search-registries")?;
            }
        }
        if document.credential_helpers.is_some() {
            self.credential_helpers = document.credential_helpers;
        }
        match document.short_names.as_deref() {
            None | Some("") => {}
            Some("enforcing") => self.short_names = Some(ShortNames::Enforcing),
            Some("permissive") => self.short_names = Some(ShortNames::Permissive),
            Some("disabled") => self.short_names = Some(ShortNames::Disabled),
            Some(other) => {
                return Err(Error::usage(format!(
                    "short-name-mode is `{other}`, not enforcing, permissive or disabled"
                )));
            }
        }
        for (name, value) in document.aliases {
            if value.is_empty() {
                self.aliases.remove(&name);
            } else {
                self.aliases.insert(name, value);
            }
        }
        Ok(())
    }

    /// Returns the rule with the longest prefix of `text` (`host/repository:tag@digest`).
    pub(super) fn rule_for(&self, text: &str) -> Option<&Rule> {
        self.rules
            .iter()
            .filter(|rule| matched_length(text, &rule.prefix).is_some())
            // A literal prefix is more specific than a `*.` prefix that matches the same length.
            .max_by_key(|rule| {
                let wild = rule.prefix.starts_with('*');
                (matched_length(text, &rule.prefix), !wild, rule.prefix.len())
            })
    }
}

/// TOML representation of the file. Unknown members are ignored, as in containers.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    #[serde(rename = "unqualified-search-registries")]
    search: Option<Vec<String>>,
    credential_helpers: Option<Vec<String>>,
    #[serde(rename = "short-name-mode")]
    short_names: Option<String>,
    #[serde(default)]
    registry: Vec<Table>,
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    /// Tables of version 1.
    registries: Option<Lists>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lists {
    search: List,
    insecure: List,
    block: List,
}

#[derive(Debug, Default, Deserialize)]
struct List {
    #[serde(default)]
    registries: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Table {
    prefix: Option<String>,
    location: Option<String>,
    insecure: Option<bool>,
    #[serde(default)]
    blocked: bool,
    #[serde(default)]
    mirror: Vec<MirrorTable>,
    #[serde(default)]
    mirror_by_digest_only: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct MirrorTable {
    #[serde(default)]
    location: String,
    insecure: Option<bool>,
    #[serde(default)]
    pull_from_mirror: String,
}

impl Table {
    fn rule(self) -> Result<Rule> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let physical = given(self.location).map(|text| location(&text, "location")).transpose()?;
        let prefix = match (given(self.prefix), &physical) {
            (Some(prefix), _) => checked_prefix(&prefix)?,
            (None, Some(physical)) => physical.clone(),
            (None, None) => {
                return Err(Error::usage("a [[registry]] has neither prefix nor location"));
            }
        };
        let by_digest_only = self.mirror_by_digest_only;
        let mirrors = self
            .mirror
            .into_iter()
            .map(|mirror| mirror.checked(&prefix, by_digest_only))
            .collect::<Result<_>>()?;
        Ok(Rule {
            location: physical.filter(|physical| *physical != prefix),
            prefix,
            insecure: self.insecure,
            blocked: self.blocked,
            mirrors,
        })
    }
}

impl MirrorTable {
    fn checked(self, prefix: &str, by_digest_only: bool) -> Result<Mirror> {
        if by_digest_only && !self.pull_from_mirror.is_empty() {
            return Err(Error::usage(format!(
                "the registry `{prefix}` has mirror-by-digest-only, so its mirrors cannot have \
                 pull-from-mirror"
            )));
        }
        let (by_digest, by_tag) = match self.pull_from_mirror.as_str() {
            "" | "all" => (true, !by_digest_only),
            "digest-only" => (true, false),
            "tag-only" => (false, true),
            other => {
                return Err(Error::usage(format!(
                    "pull-from-mirror is `{other}`, not all, digest-only or tag-only"
                )));
            }
        };
        Ok(Mirror {
            location: location(&self.location, "location of a mirror")?,
            insecure: self.insecure,
            by_digest,
            by_tag,
        })
    }
}

/// Converts version 1, which contains only hosts.
fn version_1(insecure: &[String], blocked: &[String]) -> Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = Vec::new();
    for (host, is_insecure) in
        insecure.iter().map(|host| (host, true)).chain(blocked.iter().map(|host| (host, false)))
    {
        let prefix = location(host, "registry")?;
        let at = rules.iter().position(|rule| rule.prefix == prefix).unwrap_or_else(|| {
            rules.push(Rule { prefix, ..Rule::default() });
            rules.len() - 1
        });
        if is_insecure {
            rules[at].insecure = Some(true);
        } else {
            rules[at].blocked = true;
        }
    }
    Ok(rules)
}

/// Checks a prefix: a location, or `*.` and a domain.
fn checked_prefix(text: &str) -> Result<String> {
    let Some(domain) = text.strip_prefix("*.") else {
        return location(text, "prefix");
    };
    let text = text.trim_end_matches('/');
    if domain.trim_end_matches('/').contains(['/', ':', '@', '*']) {
        return Err(Error::usage(format!(
            "the prefix `{text}` is not valid: only a whole domain may follow `*.`"
        )));
    }
    Ok(text.to_owned())
}

/// Checks `host[:port][/namespace…][:tag|@digest]` and removes trailing slashes.
fn location(text: &str, what: &str) -> Result<String> {
    let trimmed = text.trim_end_matches('/');
    let wrong = |why: &str| Error::usage(format!("the {what} `{text}` is not valid: {why}"));
    if trimmed.contains("://") {
        return Err(wrong("it must not have a scheme"));
    }
    // A reference needs a repository, and a host without a dot and port must also be recognized as
    // a host.
    let whole = match trimmed.split_once('/') {
        None => Reference::parse(&format!("{trimmed}/x")),
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => {
            Reference::parse(&format!("{host}/{path}"))
        }
        Some(_) => return Err(wrong("the host needs a domain or a port")),
    };
    whole.map_err(|_| wrong("it is not host[:port][/namespace]"))?;
    Ok(trimmed.to_owned())
}
