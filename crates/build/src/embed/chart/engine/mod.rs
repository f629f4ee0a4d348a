//! Runs Go templates as Helm does: one namespace of named templates, `include` and `tpl`, values
//! that are modified in place, and Go's strict typing, so that a chart renders here as it does in
//! Helm.
//!
//! `gotmpl` parses the language; its evaluator is not used, because its values are immutable and
//! its errors have no line numbers. Must not depend on charts or files.

mod dates;
mod eval;
mod files;
mod functions;
pub(super) mod objects;
mod print;
mod printf;
mod resolve;
mod source;
mod value;
mod yaml;

use std::collections::HashMap;
use std::rc::Rc;

use gotmpl::TemplateError;
use gotmpl::parse::{ListNode, Parser, Pos};

pub(super) use files::matches as glob_matches;
pub(super) use value::Value;

/// Maximum size of the text that a template or function produces, in bytes.
const LONGEST_TEXT: usize = 64 << 20;
/// Maximum size of all strings and lists that one chart produces, in bytes.
const MOST_MADE: usize = 2 << 30;
/// Maximum number of loop iterations in one chart.
const MOST_TURNS: u64 = 2_000_000;
/// Maximum depth at which a named template includes itself, as in Helm.
const MOST_INCLUDES: usize = 1000;
/// Maximum total nesting depth of evaluation; [`STACK`] holds that many levels.
const MOST_NESTED: usize = 20_000;
/// Size of the native stack that evaluation needs, in bytes; untouched pages use no memory.
pub(super) const STACK: usize = 512 << 20;

/// Reason why a template did not render.
#[derive(Debug)]
pub(super) struct Fault {
    /// `chart/templates/x.yaml:12:5`: where the error occurred, followed by the including
    /// templates, innermost first.
    pub(super) at: Vec<String>,
    pub(super) message: String,
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self { at: Vec::new(), message }
    }
}

impl Fault {
    /// Adds the position of a caller; only the innermost and outermost few are kept.
    fn within(mut self, place: String) -> Self {
        if self.at.len() >= 12 {
            self.at.remove(6);
        }
        self.at.push(place);
        self
    }
}

/// Source text of a template.
struct Source {
    name: String,
    text: String,
}

impl Source {
    /// Returns `name:line:column`, both counted from 1.
    fn place(&self, pos: Pos) -> String {
        let before = self.text.get(..pos.offset).unwrap_or(&self.text);
        let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[start..].chars().count() + 1;
        format!("{}:{line}:{column}", self.name)
    }
}

/// A parsed template.
struct Template {
    source: Rc<Source>,
    body: ListNode,
}

/// A parsed `tpl` argument and the templates that it defines.
type TplText = (Rc<Template>, Rc<Templates>);
/// Templates by name.
type Templates = HashMap<String, Rc<Template>>;

/// All templates of a chart and its dependencies.
pub(super) struct Engine {
    templates: Templates,
    /// Templates that `tpl` arguments define, innermost last.
    local: Vec<Rc<Templates>>,
    /// Parsed `tpl` arguments, by text.
    parsed: HashMap<Rc<str>, Rc<TplText>>,
    included: HashMap<String, usize>,
    nested: usize,
    turns: u64,
    made: usize,
}

impl Engine {
    /// Returns an engine without templates.
    pub(super) fn new() -> Self {
        Self {
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
    pub(super) fn add(&mut self, name: &str, text: &str) -> Result<(), Fault> {
        let (main, defined) = parse(name, text)?;
        for (name, template) in defined {
            define(&mut self.templates, name, template);
        }
        self.templates.insert(name.to_owned(), main);
        Ok(())
    }

    /// Renders the file `name` with `data` as dot.
    pub(super) fn render(&mut self, name: &str, data: &Value) -> Result<String, Fault> {
        let template = self.find(name)?;
        let text = self.execute(&template, data)?;
        // Go prints missing values as `<no value>` even where missing keys are allowed; Helm
        // removes it.
        Ok(text.replace("<no value>", ""))
    }

    fn find(&self, name: &str) -> Result<Rc<Template>, Fault> {
        self.local
            .iter()
            .rev()
            .find_map(|local| local.get(name))
            .or_else(|| self.templates.get(name))
            .cloned()
            .ok_or_else(|| format!("there is no template {name:?}").into())
    }

    /// `include NAME DATA`.
    fn include(&mut self, name: &str, data: &Value) -> Result<String, Fault> {
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
    fn tpl(&mut self, name: &str, text: &Rc<str>, data: &Value) -> Result<String, Fault> {
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
    fn made(&mut self, bytes: usize) -> Result<(), Fault> {
        self.made = self.made.saturating_add(bytes);
        if self.made > MOST_MADE {
            return Err(format!("the chart makes more than {MOST_MADE} bytes of text").into());
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

type Parsed = (Rc<Template>, Vec<(String, Rc<Template>)>);

fn parse(name: &str, text: &str) -> Result<Parsed, Fault> {
    let source = Rc::new(Source { name: name.to_owned(), text: text.to_owned() });
    let (body, defined) = Parser::new(&source::adapted(text), "{{", "}}")
        .and_then(Parser::parse)
        .map_err(|error| match error {
        TemplateError::Parse { line, col, message, .. }
        | TemplateError::Lex { line, col, message, .. } => {
            Fault { at: vec![format!("{name}:{line}:{col}")], message }
        }
        other => Fault { at: vec![name.to_owned()], message: other.to_string() },
    })?;
    let template = |body| Rc::new(Template { source: source.clone(), body });
    let defined =
        defined.into_iter().map(|node| (node.name.to_string(), template(node.body))).collect();
    Ok((template(body), defined))
}
