//! Runs Go templates as Helm does: one namespace of named templates, `include` and `tpl`, values
//! that are modified in place, and Go's strict typing, so that a chart renders here as it does in
//! Helm. The dialect says which functions there are and how strict they are.
//!
//! `gotmpl` parses the language; its evaluator is not used, because its values are immutable and
//! its errors have no line numbers. Must not depend on charts or files.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::dialect::{Dialect, Missing};
use crate::limits::{MOST_INCLUDES, MOST_MADE};
use crate::source::{Fault, Parsed, Template, parse};
use crate::value::Value;
use imgctl_base::error::Error;

/// A parsed `tpl` argument and the templates that it defines.
type TplText = (Rc<Template>, Rc<Templates>);
/// Templates by name.
type Templates = HashMap<String, Rc<Template>>;

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
    made: usize,
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
            made: 0,
        }
    }

    /// Parses a file. Its definitions replace earlier ones of the same name, unless they are empty.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let parsed = parse(name, text).map_err(|fault| fault.error(""))?;
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

    pub(crate) fn run(&mut self, name: &str, data: &Value) -> Result<String, Fault> {
        let template = self.find(name)?;
        self.execute(&template, data)
    }

    pub(crate) fn find(&self, name: &str) -> Result<Rc<Template>, Fault> {
        self.local
            .iter()
            .rev()
            .find_map(|local| local.get(name))
            .or_else(|| self.templates.get(name))
            .cloned()
            .ok_or_else(|| format!("there is no template {name:?}").into())
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
            return Ok(text.as_ref().to_owned());
        }
        let parsed = match self.parsed.get(text) {
            Some(parsed) => parsed.clone(),
            None => {
                let (main, defined) = parse(&tpl_name(name), text)?;
                let mut local = HashMap::new();
                for (name, template) in defined {
                    define(&mut local, name, template);
                }
                let parsed = Rc::new((main, Rc::new(local)));
                self.made(text.len().saturating_mul(8))?;
                self.parsed.insert(text.clone(), parsed.clone());
                parsed
            }
        };
        self.local.push(parsed.1.clone());
        let rendered = self.execute(&parsed.0, data);
        self.local.pop();
        Ok(rendered?.replace("<no value>", ""))
    }

    /// Counts produced bytes toward the limit.
    pub(crate) fn made(&mut self, bytes: usize) -> Result<(), Fault> {
        self.made = self.made.saturating_add(bytes);
        if self.made > MOST_MADE {
            return Err(format!("templates make more than {MOST_MADE} bytes of text").into());
        }
        Ok(())
    }
}

/// Go keeps a definition if an empty one of the same name follows.
fn define(templates: &mut Templates, name: String, template: Rc<Template>) {
    if !template.body.is_empty_tree() || !templates.contains_key(&name) {
        templates.insert(name, template);
    }
}

/// Returns the name that error messages use for a `tpl` argument of the template `name`.
fn tpl_name(name: &str) -> String {
    let caller = name.strip_suffix(" (tpl)").unwrap_or(name);
    format!("{caller} (tpl)")
}
