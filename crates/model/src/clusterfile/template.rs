//! The Clusterfile as a template: rendered with `.Values` before it is read.

use serde_json::{Map, Value, json};

use imgctl_base::error::{Context, Error, Result};
use imgctl_template::{Dialect, Missing, Template, yaml};

/// Text that Go prints for a missing value.
const NO_VALUE: &str = "<no value>";

/// Merged values of `--values` and `--set`; later ones override earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Values(Map<String, Value>);

impl Values {
    /// Adds a values file: a YAML mapping.
    pub fn add_file(&mut self, text: &str, file: &str) -> Result<()> {
        match yaml::parse(text).context(|| format!("cannot use the values of {file}"))? {
            Value::Object(members) => {
                merge(&mut self.0, members);
                Ok(())
            }
            Value::Null => Ok(()),
            _ => Err(Error::usage(format!("{file} is not a mapping of values"))),
        }
    }

    /// Adds `a.b=x`, or several separated by commas. `\` escapes `.`, `,` and `=`; `true`, `false`,
    /// `null` and whole numbers are not text.
    pub fn set(&mut self, text: &str) -> Result<()> {
        let wrong = || {
            Error::usage(format!("cannot parse --set `{text}`"))
                .hint("the form is --set key.inner=value; write `\\,` for a comma in a value")
        };
        for pair in divide(text, ',') {
            let (path, value) = split_pair(&pair).ok_or_else(wrong)?;
            let keys: Vec<String> = divide(path, '.').iter().map(|key| plain(key)).collect();
            if keys.iter().any(String::is_empty) {
                return Err(wrong());
            }
            let mut nested = typed(&plain(value));
            for key in keys.iter().rev() {
                nested = json!({ key: nested });
            }
            if let Value::Object(members) = nested {
                merge(&mut self.0, members);
            }
        }
        Ok(())
    }
}

/// Renders `text` in the Go dialect; a missing value is an error with its line.
pub fn render(text: &str, file: &str, values: &Values) -> Result<String> {
    if !text.contains("{{") {
        return Ok(text.to_owned());
    }
    let template = Template::parse(file, text, Dialect::ClusterImage, Missing::NoValue)?;
    let rendered = template
        .render(&json!({ "Values": values.0 }))
        .map_err(|error| error.hint("write {{ \"{{\" }} for a literal `{{` in a Clusterfile"))?;
    let missing = rendered.lines().zip(1..).find(|(line, _)| line.contains(NO_VALUE));
    if let Some((line, number)) = missing
        && !text.contains(NO_VALUE)
    {
        return Err(Error::usage(format!(
            "{file}: a value is missing; line {number} would read `{}`",
            line.trim()
        ))
        .hint("set it with --set NAME=VALUE or --values FILE"));
    }
    Ok(rendered)
}

/// Escapes text so that rendering returns it unchanged.
pub fn escape(text: &str) -> String {
    text.replace("{{", "{{ \"{{\" }}")
}

fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// Splits at separators without a preceding `\`; escapes stay.
fn divide(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        if c == separator {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
            if c == '\\' {
                part.extend(characters.next());
            }
        }
    }
    parts
}

fn split_pair(pair: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    for (at, c) in pair.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '=' => return Some((&pair[..at], &pair[at + 1..])),
            _ => {}
        }
    }
    None
}

/// Removes the escapes.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => out.extend(characters.next()),
            c => out.push(c),
        }
    }
    out
}

fn typed(text: &str) -> Value {
    match text {
        "true" => true.into(),
        "false" => false.into(),
        "null" => Value::Null,
        _ => match text.parse::<i64>() {
            // `0123` is text, as in Helm.
            Ok(number) if number.to_string() == text => number.into(),
            _ => text.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(sets: &[&str]) -> Value {
        let mut values = Values::default();
        for set in sets {
            values.set(set).unwrap();
        }
        Value::Object(values.0)
    }

    #[test]
    fn sets_are_read_as_helm_reads_them() {
        for (sets, expected) in [
            (&["a.b=x", "a.c=1"][..], json!({"a": {"b": "x", "c": 1}})),
            (&["a=1,b=true"], json!({"a": 1, "b": true})),
            (&["a=x\\,y", "b\\.c=d=e"], json!({"a": "x,y", "b.c": "d=e"})),
            (&["a=007", "b="], json!({"a": "007", "b": ""})),
            (&["a.b=1", "a=2"], json!({"a": 2})),
        ] {
            assert_eq!(values(sets), expected, "{sets:?}");
        }
        for wrong in ["a", "=1", "a..b=1", ""] {
            assert!(Values::default().set(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn later_values_beat_earlier_ones_and_missing_ones_are_told() {
        let mut values = Values::default();
        values.add_file("a: {x: 1, y: 2}\n", "one").unwrap();
        values.add_file("a: {y: 3}\n", "two").unwrap();
        values.set("name=etcd").unwrap();
        let text = "n: {{ .Values.name }}\nx: {{ .Values.a.x }}{{ .Values.a.y }}\n";
        assert_eq!(render(text, "f", &values).unwrap(), "n: etcd\nx: 13\n");
        let error = render("a: 1\nb: {{ .Values.no }}\n", "f", &values).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        let defaulted = "b: {{ default \"d\" .Values.no }}";
        assert_eq!(render(defaulted, "f", &values).unwrap(), "b: d");
        let odd = "a {{ b }} {{{ c";
        assert_eq!(render(&escape(odd), "f", &values).unwrap(), odd);
        assert!(values.add_file("- 1\n", "f").is_err());
    }
}
