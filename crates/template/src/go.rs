//! Go's `text/template`: parse once, render many times.

use std::collections::BTreeMap;

use gotmpl::{FuncMap, MissingKey, TemplateError};

use crate::functions;
use crate::value::Value;
use imgctl_base::error::{Error, Result};

/// Maximum number of `range` iterations in one rendering.
const MAX_TURNS: u64 = 1_000_000;

/// Functions that a template has in addition to Go's built-in ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The sprig functions, for `*.tmpl` files of cluster images.
    ClusterImage,
    /// Docker's `--format` functions: `json`, `join LIST SEP`, `split`, `lower`, `upper`…
    Format,
}

/// Result of a missing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// `<no value>`, as Go's `missingkey=default`.
    NoValue,
    /// An error that names the key.
    Error,
}

/// A parsed template.
pub struct Template {
    inner: gotmpl::Template,
    name: String,
    text: String,
}

impl Template {
    /// Parses `text`; `name` identifies it in errors. A call of an undefined function is an error
    /// when rendering reaches it.
    pub fn parse(name: &str, text: &str, dialect: Dialect, missing: Missing) -> Result<Self> {
        Self::parse_with(name, text, functions::of(dialect), missing)
    }

    /// Like [`Template::parse`] for cluster images, plus `env` and `expandenv`, which read only
    /// `environment`.
    pub fn parse_in(
        name: &str,
        text: &str,
        missing: Missing,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let mut table = functions::of(Dialect::ClusterImage);
        table.extend(functions::environment(environment));
        Self::parse_with(name, text, table, missing)
    }

    fn parse_with(name: &str, text: &str, table: FuncMap, missing: Missing) -> Result<Self> {
        let inner = gotmpl::Template::new(name)
            .missing_key(match missing {
                Missing::NoValue => MissingKey::Invalid,
                Missing::Error => MissingKey::Error,
            })
            .max_range_iters(MAX_TURNS)
            .funcs(table)
            .parse(text)
            .map_err(|error| {
                Error::usage(format!("cannot parse the template {name}")).caused_by(error)
            })?;
        Ok(Self { inner, name: name.to_owned(), text: text.to_owned() })
    }

    /// Renders the template with `data` as dot.
    pub fn render(&self, data: &Value) -> Result<String> {
        self.inner.execute_to_string(data).map_err(|error| {
            let hint = match &error {
                TemplateError::MissingKey { key } => Some(format!("set `{key}` (-e {key}=…)")),
                TemplateError::UndefinedFunction(name) => {
                    Some(format!("imgctl has Go's own functions and most of sprig, not `{name}`"))
                }
                _ => None,
            };
            let place = match &error {
                TemplateError::MissingKey { key } => self.place(&format!(".{key}")),
                TemplateError::UndefinedFunction(name) => self.place(name),
                _ => self.name.clone(),
            };
            let failed =
                Error::usage(format!("cannot render the template {place}")).caused_by(error);
            match hint {
                Some(hint) => failed.hint(hint),
                None => failed,
            }
        })
    }
}

impl Template {
    /// `NAME:LINE` of the first line whose action contains `word`, because the library does not
    /// report positions.
    fn place(&self, word: &str) -> String {
        let line = self.text.lines().position(|line| {
            line.match_indices(word).any(|(at, _)| {
                let end = line.get(at + word.len()..).unwrap_or_default();
                let is_end = !end.starts_with(|c: char| c.is_alphanumeric() || c == '_');
                is_end && line.get(..at).is_some_and(|before| before.contains("{{"))
            })
        });
        match line {
            Some(line) => format!("{}:{}", self.name, line + 1),
            None => self.name.clone(),
        }
    }
}

/// Parses and renders in one step.
#[cfg(test)]
pub fn render(
    name: &str,
    text: &str,
    data: &Value,
    dialect: Dialect,
    missing: Missing,
) -> Result<String> {
    Template::parse(name, text, dialect, missing)?.render(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::from_json;
    use serde_json::json;

    fn rendered(text: &str, data: &serde_json::Value) -> Result<String> {
        let data = from_json(data);
        render("t", text, &data, Dialect::ClusterImage, Missing::NoValue)
    }

    #[test]
    fn go_prints_maps_lists_and_gaps_its_own_way() {
        for (text, expected) in [
            ("{{.Labels}}", "map[a:1 b:x]"),
            ("{{.List}}", "[1 two]"),
            ("{{.None}}", "<no value>"),
            ("{{.Labels.zzz}}", "<no value>"),
            ("{{index .Labels \"b\"}}", "x"),
            ("{{printf \"%d %v %q\" .N .Bool \"s\"}}", "5 true \"s\""),
            ("{{range $i, $e := .List}}{{$i}}={{$e}};{{end}}", "0=1;1=two;"),
            ("{{- if and .Bool (eq .N 5) -}} yes {{- end}}", "yes"),
            ("{{with .Empty}}x{{else}}y{{end}}", "y"),
        ] {
            let data = json!({"Labels": {"b": "x", "a": "1"}, "List": [1, "two"], "N": 5,
                "Bool": true, "Empty": ""});
            assert_eq!(rendered(text, &data).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn strict_templates_name_what_is_missing() {
        let error =
            render("x", "{{.VIP}}", &from_json(&json!({})), Dialect::ClusterImage, Missing::Error)
                .unwrap_err();
        assert!(error.to_string().contains("VIP"), "{error}");
        let error = rendered("{{ lookup 1 }}", &json!({})).unwrap_err();
        assert!(error.hints()[0].contains("`lookup`"), "{error}");
        let error = rendered("{{ .X ", &json!({})).unwrap_err();
        assert!(error.to_string().contains("t:1:"), "{error}");
    }

    #[test]
    fn a_loop_without_end_is_stopped() {
        let text = "{{range until 2000}}{{range until 2000}}{{end}}{{end}}";
        assert!(rendered(text, &json!({})).is_err());
    }
}
