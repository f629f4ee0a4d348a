//! A template on its own: parse once, render many times.

use std::collections::BTreeMap;

use crate::dialect::{Dialect, Missing};
use crate::engine::Engine;
use crate::source::{Parsed, parse};
use crate::value::Value;
use imgctl_base::error::{Error, Result};

/// A parsed template.
pub struct Template {
    name: String,
    parsed: Parsed,
    dialect: Dialect,
    missing: Missing,
    environment: Option<BTreeMap<String, String>>,
}

impl Template {
    /// Parses `text`; `name` identifies it in errors. A call of an undefined function is an error
    /// when rendering reaches it.
    pub fn parse(name: &str, text: &str, dialect: Dialect, missing: Missing) -> Result<Self> {
        let parsed =
            parse(name, text).map_err(|fault| fault.error("cannot parse the template "))?;
        Ok(Self { name: name.to_owned(), parsed, dialect, missing, environment: None })
    }

    /// Like [`Template::parse`] for cluster images, plus `env` and `expandenv`, which read only
    /// `environment`.
    pub fn parse_in(
        name: &str,
        text: &str,
        missing: Missing,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let template = Self::parse(name, text, Dialect::ClusterImage, missing)?;
        Ok(Self { environment: Some(environment.clone()), ..template })
    }

    /// Renders the template with `data` as dot. What the template does to the data is gone
    /// afterwards.
    pub fn render<T: serde::Serialize + ?Sized>(&self, data: &T) -> Result<String> {
        let data = serde_json::to_value(data).map_err(|error| {
            Error::failed("cannot prepare the template's data").caused_by(error)
        })?;
        let data = Value::from_json(&data, self.dialect.numbers());
        let mut engine = Engine::new(self.dialect, self.missing);
        engine.environment.clone_from(&self.environment);
        engine.insert(&self.name, &self.parsed);
        engine.run(&self.name, &data).map_err(|fault| fault.error("cannot render the template "))
    }
}

/// Parses and renders in one step.
#[cfg(test)]
pub(crate) fn render(
    name: &str,
    text: &str,
    data: &serde_json::Value,
    dialect: Dialect,
    missing: Missing,
) -> Result<String> {
    Template::parse(name, text, dialect, missing)?.render(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(text: &str, data: &serde_json::Value) -> Result<String> {
        render("t", text, data, Dialect::ClusterImage, Missing::NoValue)
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
            render("x", "{{.VIP}}", &json!({}), Dialect::ClusterImage, Missing::Error).unwrap_err();
        assert!(error.to_string().contains("x:1:3: map has no entry for key \"VIP\""), "{error}");
        let error = rendered("{{ lookup 1 }}", &json!({})).unwrap_err();
        assert!(error.hints()[0].contains("`lookup`"), "{error}");
        let error = rendered("{{ .X ", &json!({})).unwrap_err();
        assert!(error.to_string().contains("t:1:"), "{error}");
    }

    /// The stack of a test is 2 MiB, as that of the threads on which templates are rendered.
    #[test]
    fn hostile_templates_are_stopped() {
        let parens = format!("{{{{ {}1{} }}}}", "(".repeat(90), ")".repeat(90));
        let ifs = "{{ if true }}".repeat(90) + &"{{ end }}".repeat(90);
        for text in [parens.clone(), ifs.clone()] {
            rendered(&text, &json!({})).unwrap();
        }
        for (text, part) in [
            ("{{range until 2000}}{{range until 2000}}{{end}}{{end}}", "iterations"),
            (r#"{{define "a"}}{{template "a" .}}{{end}}{{template "a" .}}"#, "nested too deeply"),
            (
                &format!(
                    r#"{{{{define "a"}}}}{}{{{{template "a" .}}}}{}{{{{end}}}}{{{{template "a" .}}}}"#,
                    "{{if true}}".repeat(50),
                    "{{end}}".repeat(50)
                ),
                "nested too deeply",
            ),
            (
                r#"{{$s := "xxxxxxxx"}}{{range until 40}}{{$s = print $s $s}}{{end}}"#,
                "makes more than",
            ),
        ] {
            let error = rendered(text, &json!({})).unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        let nest = "{{$d := dict}}{{$top := $d}}{{range until 20000}}{{$n := dict}}{{$_ := set $d \"k\" $n}}\
                    {{$d = $n}}{{end}}{{toYaml $top}}{{$top}}{{deepEqual $top $top}}";
        rendered(nest, &json!({})).unwrap();
    }

    #[test]
    fn a_template_does_not_change_the_data_of_the_next() {
        let template = Template::parse(
            "t",
            "{{ $_ := set .m \"x\" (add .m.x 1) }}{{ .m.x }}",
            Dialect::ClusterImage,
            Missing::NoValue,
        )
        .unwrap();
        let data = json!({"m": {"x": 1}});
        assert_eq!(template.render(&data).unwrap(), "2");
        assert_eq!(template.render(&data).unwrap(), "2");
    }
}
