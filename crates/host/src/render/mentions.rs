//! What the templates of a tree can see of the data. Inputs that they cannot see do not change the
//! tree: a new member does not recreate the tree of every other host.
//!
//! Must not know what templates do with the data. Anything uncertain counts as seen.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::render::{ImageInputs, Inputs};

/// Maximum number of names; templates with more count as seeing everything.
const MOST: usize = 2000;
/// Objects that contain all variables or many facts.
const OBJECTS: [&str; 4] = ["Env", "Cluster", "Host", "Registry"];
/// Functions and variables that reach names which do not occur in the template.
const LOOKUPS: [&str; 4] = ["env", "expandenv", "get_env", "__tera_context"];

/// The names that occur in the actions (`{{ … }}`, `{% … %}`) of templates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mentions {
    /// A template may use any variable and any fact.
    All,
    /// Only these words occur; most of them are not names of data.
    Names(BTreeSet<String>),
}

impl Default for Mentions {
    fn default() -> Self {
        Self::Names(BTreeSet::new())
    }
}

impl Mentions {
    /// Adds the mentions of one template, in either language.
    pub(super) fn add(&mut self, template: &str) {
        let Self::Names(names) = self else { return };
        if scan(template, names).is_none() || names.len() > MOST {
            *self = Self::All;
        }
    }

    /// Returns the inputs without what these templates cannot see.
    pub(crate) fn restrict(&self, inputs: &Inputs) -> Inputs {
        let Self::Names(names) = self else { return inputs.clone() };
        let seen = |variables: &BTreeMap<String, String>| {
            let seen = variables.iter().filter(|(name, _)| names.contains(*name));
            seen.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let images = inputs.images.iter().map(|image| ImageInputs {
            name: image.name.clone(),
            environment: seen(&image.environment),
        });
        Inputs {
            images: images.collect(),
            environment: seen(&inputs.environment),
            facts: facts(&inputs.facts, names),
            configs: inputs.configs.clone(),
            strict: inputs.strict,
        }
    }
}

/// Returns the facts with these names; of objects, only the fields with these names.
fn facts(facts: &Map<String, Value>, names: &BTreeSet<String>) -> Map<String, Value> {
    let mut seen = Map::new();
    for (name, value) in facts.iter().filter(|(name, _)| names.contains(*name)) {
        let value = match value {
            Value::Object(fields) if OBJECTS.contains(&name.as_str()) => {
                let fields = fields.iter().filter(|(field, _)| names.contains(*field));
                Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
            }
            value => value.clone(),
        };
        seen.insert(name.clone(), value);
    }
    seen
}

/// Adds the words in the actions of `template`; returns `None` if one of them may see everything.
fn scan(template: &str, names: &mut BTreeSet<String>) -> Option<()> {
    let mut rest = template;
    while let Some(start) = rest.find('{') {
        rest = &rest[start + 1..];
        let (end, is_go) = match rest.as_bytes().first() {
            Some(b'{') => ("}}", true),
            Some(b'%') => ("%}", false),
            _ => continue,
        };
        rest = &rest[1..];
        let comment = rest.trim_start_matches('-').trim_start();
        if is_go && comment.starts_with("/*") {
            rest = comment.split_once("*/")?.1;
            continue;
        }
        rest = action(rest, end, names)?;
    }
    Some(())
}

/// Reads one action up to its `end`; returns what follows.
fn action<'a>(text: &'a str, end: &str, names: &mut BTreeSet<String>) -> Option<&'a str> {
    let mut rest = text;
    let mut before = ' ';
    loop {
        if let Some(after) = rest.strip_prefix(end) {
            return Some(after);
        }
        let next = rest.chars().next()?;
        let after = &rest[next.len_utf8()..];
        match next {
            '"' | '\'' | '`' => {
                let length = string(after, next)?;
                words(after.get(..length)?, names);
                rest = after.get(length + 1..)?;
            }
            _ if is_start(next) => {
                let length = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
                let (word, after) = rest.split_at(length);
                let goes_on =
                    after.strip_prefix('.').is_some_and(|field| field.starts_with(is_start));
                if LOOKUPS.contains(&word) || OBJECTS.contains(&word) && !goes_on {
                    return None;
                }
                names.insert(word.to_owned());
                rest = after;
            }
            // All data: dot or `$` without a field or a name behind it.
            '.' => {
                let is_number =
                    before.is_ascii_digit() || after.starts_with(|c: char| c.is_ascii_digit());
                if !after.starts_with(is_start) && !is_number {
                    return None;
                }
                rest = after;
            }
            '$' if !after.starts_with(|c| c == '.' || is_start(c)) => return None,
            _ => rest = after,
        }
        before = next;
    }
}

/// Returns the number of bytes up to the closing `quote`; `None` if there is none.
fn string(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if quote != '`' => is_escaped = true,
            _ if character == quote => return Some(at),
            _ => {}
        }
    }
    None
}

/// Adds all words of a string: a name may be looked up by it.
fn words(text: &str, names: &mut BTreeSet<String>) {
    let words = text.split(|c: char| !is_part(c)).filter(|word| !word.is_empty());
    names.extend(words.take(MOST + 1).map(str::to_owned));
}

fn is_start(character: char) -> bool {
    character.is_alphabetic() || character == '_'
}

fn is_part(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(text: &str) -> Mentions {
        let mut mentions = Mentions::default();
        mentions.add(text);
        mentions
    }

    fn inputs() -> Inputs {
        let variables = [("PORT", "6443"), ("MASTERS", "10.0.0.1"), ("domain", "a.b")];
        let facts = json!({
            "Arch": "amd64", "Cluster": {"Domain": "x", "Masters": ["10.0.0.1"]}, "Host": {"IP": "10.0.0.1"},
        });
        Inputs {
            images: vec![ImageInputs {
                name: "image".to_owned(),
                environment: BTreeMap::from([("PORT".to_owned(), "1".to_owned())]),
            }],
            environment: variables.map(|(n, v)| (n.to_owned(), v.to_owned())).into(),
            facts: facts.as_object().unwrap().clone(),
            ..Inputs::default()
        }
    }

    #[test]
    fn what_a_template_may_see_is_kept() {
        for (text, variables, facts) in [
            ("no action: {MASTERS} $MASTERS .", vec![], json!({})),
            ("{{ .domain }}:{{ .PORT | default 6443 }}", vec!["PORT", "domain"], json!({})),
            (
                "{{- if eq .Cluster.Domain \"x\" -}}a{{ end }}",
                vec![],
                json!({"Cluster": {"Domain": "x"}}),
            ),
            ("{{ $m := .MASTERS }}{{ $m }}{{ $.PORT }}", vec!["MASTERS", "PORT"], json!({})),
            ("{{/* don't read .MASTERS */}}{{ 1.5 }}{{ .Arch }}", vec![], json!({"Arch": "amd64"})),
            ("{{ .Env.domain }}{{ printf \"}}\" }}", vec!["domain"], json!({})),
            (
                "{% if PORT %}{{ PORT }}{% endif %}{{ Host.IP }}",
                vec!["PORT"],
                json!({"Host": {"IP": "10.0.0.1"}}),
            ),
            ("{{ index .x \"domain\" }}", vec!["domain"], json!({})),
        ] {
            let seen = of(text).restrict(&inputs());
            let names: Vec<&str> = seen.environment.keys().map(String::as_str).collect();
            assert_eq!(names, variables, "{text}");
            assert_eq!(Value::Object(seen.facts), facts, "{text}");
            let has_port = seen.images[0].environment.contains_key("PORT");
            assert_eq!(has_port, variables.contains(&"PORT"), "{text}");
        }
    }

    #[test]
    fn what_is_not_certain_counts_as_all() {
        for text in [
            "{{ . }}",
            "{{ toYaml . }}",
            "{{ range $k, $v := $ }}{{ end }}",
            "{{ index . \"MASTERS\" }}",
            "{{ index $ .x }}",
            "{{ env \"MASTERS\" }}",
            "{{ toYaml .Cluster }}",
            "{{ with .Env }}{{ end }}",
            "{{ index .Env .x }}",
            "{% for k, v in __tera_context %}{% endfor %}",
            "{{ get_env(name=\"x\") }}",
            "{{ \"open }}",
            "{{ never closed",
            "{{/* never closed }}",
        ] {
            assert_eq!(of(text), Mentions::All, "{text}");
            assert_eq!(of(text).restrict(&inputs()), inputs(), "{text}");
        }
        let many: String = (0..=MOST).map(|n| format!("{{{{ .v{n} }}}}")).collect();
        assert_eq!(of(&many), Mentions::All);
        let mut both = of("{{ . }}");
        both.add("{{ .PORT }}");
        assert_eq!(both, Mentions::All);
    }
}
