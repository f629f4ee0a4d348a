//! Selection of objects in a list: `labelSelector` and `fieldSelector`.

use serde_json::Value;

use crate::api::Answer;
use crate::testing::stand_in::{path::Path, status};

pub(super) struct Selection {
    labels: Vec<Term>,
    fields: Vec<(String, bool, String)>,
}

enum Term {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Has(String),
    HasNot(String),
}

impl Selection {
    pub(super) fn parse(path: &Path) -> Answer<Self> {
        let mut fields = Vec::new();
        let text = path.query("fieldSelector").unwrap_or_default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, equal, value) = match (part.split_once("!="), part.split_once('=')) {
                (Some((name, value)), _) => (name, false, value),
                (_, Some((name, value))) => (name, true, value.trim_start_matches('=')),
                _ => return Err(status::bad_request("invalid field selector")),
            };
            fields.push((name.to_owned(), equal, value.to_owned()));
        }
        let text = path.query("labelSelector").unwrap_or_default();
        Ok(Self { labels: terms(text), fields })
    }

    pub(super) fn has(&self, object: &Value) -> bool {
        let fields = self.fields.iter().all(|(name, equal, value)| {
            let found = name.split('.').fold(object, |object, part| &object[part]);
            let found = match found {
                Value::String(text) => text.clone(),
                Value::Null if name == "spec.unschedulable" => "false".to_owned(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            (found == *value) == *equal
        });
        fields && self.labels.iter().all(|term| term.has(&object["metadata"]["labels"]))
    }
}

impl Term {
    fn has(&self, labels: &Value) -> bool {
        let among = |name: &String, values: &Vec<String>| {
            let value = labels[name.as_str()].as_str();
            value.is_some_and(|value| values.iter().any(|one| one == value))
        };
        match self {
            Self::In(name, values) => among(name, values),
            Self::NotIn(name, values) => !among(name, values),
            Self::Has(name) => labels[name.as_str()].is_string(),
            Self::HasNot(name) => !labels[name.as_str()].is_string(),
        }
    }
}

/// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
fn terms(text: &str) -> Vec<Term> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for character in text.chars() {
        depth += i32::from(character == '(') - i32::from(character == ')');
        match character {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("never empty").push(character),
        }
    }
    let several = |text: &str| -> Vec<String> {
        let inner = text.trim().trim_start_matches('(').trim_end_matches(')');
        inner.split(',').map(|one| one.trim().to_owned()).collect()
    };
    let own = |text: &str| text.trim().to_owned();
    let parts = parts.iter().map(|part| part.trim());
    let term = |part: &str| {
        if let Some((name, values)) = part.split_once(" notin ") {
            Term::NotIn(own(name), several(values))
        } else if let Some((name, values)) = part.split_once(" in ") {
            Term::In(own(name), several(values))
        } else if let Some((name, value)) = part.split_once("!=") {
            Term::NotIn(own(name), vec![own(value)])
        } else if let Some((name, value)) = part.split_once('=') {
            Term::In(own(name), vec![own(value.trim_start_matches('='))])
        } else if let Some(name) = part.strip_prefix('!') {
            Term::HasNot(own(name))
        } else {
            Term::Has(own(part))
        }
    };
    parts.filter(|part| !part.is_empty()).map(term).collect()
}
