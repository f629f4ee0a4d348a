//! Runs Go templates as Helm does: one namespace of named templates, `include` and `tpl`, values
//! that are modified in place, and Go's strict typing, so that a chart renders here as it does in
//! Helm. The dialect says which functions there are and how strict they are.
//!
//! `gotmpl` parses the language; its evaluator is not used, because its values are immutable and
//! its errors have no line numbers. Must not depend on charts or files.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::budget::Budget;
use crate::dialect::{Dialect, MOST_INCLUDES, Missing};
use crate::print::cut;
use crate::source::{Fault, Parsed, Tree, parse, tree_size};
use crate::value::Value;
use imgctl_base::error::{Error, IoContext, Result};

/// A parsed `tpl` argument and the templates that it defines.
type TplText = (Rc<Tree>, Rc<Templates>);
type Templates = HashMap<String, Rc<Tree>>;

/// Named templates that can call each other: those of a chart and its dependencies, or those of one
/// file.
pub struct Engine {
    pub(crate) dialect: Dialect,
    pub(crate) missing: Missing,
    /// Variables that `env` reads.
    pub(crate) environment: Option<BTreeMap<String, String>>,
    templates: Templates,
    /// Templates that `tpl` arguments define, innermost last.
    local: Vec<Rc<Templates>>,
    /// Parsed `tpl` arguments, by text.
    parsed: HashMap<Rc<str>, Rc<TplText>>,
    included: HashMap<String, usize>,
    pub(crate) nested: usize,
    pub(crate) turns: u64,
    pub(crate) budget: Budget,
}

impl Engine {
    /// Returns an engine without templates, for charts.
    pub fn chart() -> Self {
        Self::new(Dialect::Chart, Missing::Zero)
    }

    /// Returns an engine without templates.
    pub(crate) fn new(dialect: Dialect, missing: Missing) -> Self {
        Self {
            dialect,
            missing,
            environment: None,
            templates: HashMap::new(),
            local: Vec::new(),
            parsed: HashMap::new(),
            included: HashMap::new(),
            nested: 0,
            turns: 0,
            budget: Budget::new(dialect.limits()),
        }
    }

    /// Parses a file. Its definitions replace earlier ones of the same name, unless they are empty.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let mut parsed = || {
            self.budget.made(tree_size(text)).map_err(|fault| fault.within(name.to_owned()))?;
            parse(name, text)
        };
        let parsed = parsed().map_err(|fault| fault.error(""))?;
        self.insert(name, &parsed);
        Ok(())
    }

    pub(crate) fn insert(&mut self, name: &str, (main, defined): &Parsed) {
        for (name, template) in defined {
            define(&mut self.templates, name.clone(), template.clone());
        }
        self.templates.insert(name.to_owned(), main.clone());
    }

    /// Renders the file `name` with `data` as dot.
    pub fn render(&mut self, name: &str, data: &Value) -> Result<String, Error> {
        let text = self.run(name, data).map_err(|fault| fault.error(""))?;
        // Go prints missing values as `<no value>` even where missing keys are allowed; Helm
        // removes it.
        Ok(text.replace("<no value>", ""))
    }

    /// Returns what all renderings so far have taken of the budget: bytes and steps.
    pub fn spent(&self) -> (usize, u64) {
        self.budget.spent()
    }

    pub(crate) fn run(&mut self, name: &str, data: &Value) -> Result<String, Fault> {
        let template = self.find(name)?;
        self.execute(&template, data)
    }

    pub(crate) fn find(&self, name: &str) -> Result<Rc<Tree>, Fault> {
        self.local
            .iter()
            .rev()
            .find_map(|local| local.get(name))
            .or_else(|| self.templates.get(name))
            .cloned()
            .ok_or_else(|| format!("there is no template {:?}", cut(name)).into())
    }

    /// `include NAME DATA`.
    pub(crate) fn include(&mut self, name: &str, data: &Value) -> Result<String, Fault> {
        let count = self.included.entry(name.to_owned()).or_default();
        if *count > MOST_INCLUDES {
            return Err(format!("{name:?} includes itself more than {MOST_INCLUDES} times").into());
        }
        *count += 1;
        let text = self.find(name).and_then(|template| self.execute(&template, data));
        if let Some(count) = self.included.get_mut(name) {
            *count = count.saturating_sub(1);
        }
        text
    }

    /// `tpl TEXT DATA`: `name` is the calling template.
    pub(crate) fn tpl(
        &mut self,
        name: &str,
        text: &Rc<str>,
        data: &Value,
    ) -> Result<String, Fault> {
        if !text.contains("{{") {
            self.budget.work(text.len())?;
            return Ok(text.as_ref().to_owned());
        }
        let parsed = match self.parsed.get(text) {
            Some(parsed) => parsed.clone(),
            None => {
                self.budget.made(tree_size(text))?;
                let (main, defined) = parse(&tpl_name(name), text)?;
                let mut local = HashMap::new();
                for (name, template) in defined {
                    define(&mut local, name, template);
                }
                let parsed = Rc::new((main, Rc::new(local)));
                self.parsed.insert(text.clone(), parsed.clone());
                parsed
            }
        };
        self.local.push(parsed.1.clone());
        let rendered = self.execute(&parsed.0, data);
        self.local.pop();
        Ok(rendered?.replace("<no value>", ""))
    }
}

/// Go keeps a definition if an empty one of the same name follows.
fn define(templates: &mut Templates, name: String, template: Rc<Tree>) {
    if !template.body.is_empty_tree() || !templates.contains_key(&name) {
        templates.insert(name, template);
    }
}

/// Returns the name that error messages use for a `tpl` argument of the template `name`.
fn tpl_name(name: &str) -> String {
    let caller = name.strip_suffix(" (tpl)").unwrap_or(name);
    format!("{caller} (tpl)")
}

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
        // The tree lives as long as the template: it is not a part of any rendering's budget.
        let parsed = Budget::new(dialect.limits())
            .once(tree_size(text))
            .map_err(|fault| fault.within(name.to_owned()))
            .and_then(|()| parse(name, text))
            .map_err(|fault| fault.error("cannot parse the template "))?;
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
        let data =
            serde_json::to_value(data).doing(|| "cannot prepare the template's data".to_owned())?;
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
        let strict =
            |text| render("x", text, &json!({"A": {}, "B": 1}), Dialect::Format, Missing::Field);
        let error = strict("{{.A.VIP}} {{.VIP}}").unwrap_err();
        assert!(error.to_string().contains("x:1:14: can't evaluate field VIP"), "{error}");
        assert_eq!(error.hints(), ["the fields are A, B"]);
        assert_eq!(strict("{{.A.VIP}}").unwrap(), "<no value>");
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
                "error calling print: it would take more than 48 MiB",
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
