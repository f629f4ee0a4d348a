//! Turns what the files define into targets: evaluates variables and attributes, spreads matrices, merges
//! what targets inherit, applies overrides, and finds what is built for the names that a caller wants.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use hcl::Value;
use hcl::expr::{Expression, ObjectKey};

use imgctl_base::error::{Error, Result};
use imgctl_base::suggest;
use imgctl_base::text::csv;

use crate::budget::Budget;
use crate::compose;
use crate::definitions::{Definition, Definitions, Form, Source};
use crate::eval::{Evaluator, Locals, Names};
use crate::functions;
use crate::overrides::Override;
use crate::spec::Spec;
use crate::target::{Target, Values};
use crate::value::{Outcome, number, numeric, text, truth};

/// Target or group that is built if nobody names one.
const DEFAULT: &str = "default";
/// A context that is the result of a target.
const TARGET: &str = "target:";
/// Maximum number of targets that one matrix makes.
const MOST: usize = 1024;

/// What the files say, resolved.
#[derive(Clone, Debug, Default)]
pub struct Bake {
    /// Members of each group, in the order of their definition.
    pub groups: BTreeMap<String, Vec<String>>,
    pub targets: BTreeMap<String, Target>,
    pub variables: Vec<Variable>,
}

/// A variable, for a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    /// Declared type, or empty.
    pub kind: String,
    pub value: String,
    pub description: String,
}

/// Reads the files, later ones over earlier ones. `lookup` returns the value that a variable has outside the
/// files, which replaces the default; `overrides` change targets at the end.
///
/// # Errors
///
/// If a file is malformed, an expression fails, or a name means nothing.
pub fn read(
    sources: &[Source],
    overrides: &[Override],
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Bake> {
    let mut definitions = Definitions::default();
    let mut composed = Vec::new();
    for source in sources {
        if source.form == Form::Compose {
            composed.push(compose::read(source, lookup)?);
        } else {
            definitions.read(source)?;
        }
    }
    let scope = Scope::new(&definitions, lookup);
    let variables = scope.listed()?;
    let mut bake = Bake { variables, ..Bake::default() };
    for compose::Services { targets, group } in composed {
        for target in targets {
            bake.add(target);
        }
        bake.groups.entry(DEFAULT.to_owned()).or_default().extend(group);
    }
    for definition in &definitions.targets {
        for target in scope.targets(definition, &mut bake.groups)? {
            bake.add(target);
        }
    }
    for definition in &definitions.groups {
        let place = || format!("group `{}` in {}", definition.name, definition.file);
        let mut members = Vec::new();
        for (key, expression) in &definition.attributes {
            match (&**key, scope.values(expression, &Locals::new())) {
                ("targets", Ok(Values::List(list))) => members = list,
                ("description", Ok(_)) => {}
                ("targets", Ok(_)) => return Err(wrong(&place(), "targets is a list of names")),
                (_, Ok(_)) => return Err(wrong(&place(), &format!("there is no attribute {key}"))),
                (_, Err(cause)) => return Err(wrong(&place(), &format!("{key}: {cause}"))),
            }
        }
        bake.groups.insert(definition.name.clone(), members);
    }
    for change in overrides {
        change.check(bake.targets.keys().map(String::as_str))?;
    }
    bake.inherit(overrides)?;
    Ok(bake)
}

fn wrong(place: &str, cause: &str) -> Error {
    Error::usage(format!("cannot read {place}")).caused_by(cause.to_owned())
}

impl Bake {
    fn add(&mut self, target: Target) {
        match self.targets.get_mut(&target.name) {
            Some(known) => known.merge(&target),
            None => {
                self.targets.insert(target.name.clone(), target);
            }
        }
    }

    /// Merges every target over those that it inherits, and overrides over each of them.
    fn inherit(&mut self, overrides: &[Override]) -> Result<()> {
        let names: Vec<String> = self.targets.keys().cloned().collect();
        let mut done = BTreeMap::new();
        for name in &names {
            self.inherited(name, overrides, &mut Vec::new(), &mut done)?;
        }
        self.targets = done;
        Ok(())
    }

    fn inherited(
        &self,
        name: &str,
        overrides: &[Override],
        path: &mut Vec<String>,
        done: &mut BTreeMap<String, Target>,
    ) -> Result<Target> {
        if let Some(target) = done.get(name) {
            return Ok(target.clone());
        }
        if path.iter().any(|known| known == name) {
            let circle = format!("{} -> {name}", path.join(" -> "));
            return Err(Error::usage(format!("targets inherit each other: {circle}")));
        }
        let own = self.target(name)?;
        path.push(name.to_owned());
        let mut target = Target { name: name.to_owned(), ..Target::default() };
        for parent in &own.inherits {
            target.merge(&self.inherited(parent, overrides, path, done)?);
        }
        path.pop();
        target.merge(own);
        target.inherits.clear();
        for change in overrides {
            change.apply(&mut target)?;
        }
        done.insert(name.to_owned(), target.clone());
        Ok(target)
    }

    fn target(&self, name: &str) -> Result<&Target> {
        self.targets.get(name).ok_or_else(|| {
            let error = Error::not_found(format!("there is no target `{name}`"));
            let names = self.targets.keys().chain(self.groups.keys()).map(String::as_str);
            match suggest::closest(name, names) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error.hint("`imgctl bake --list=targets` shows what the files define"),
            }
        })
    }

    /// Returns the targets that `names` stand for, of targets and of groups, and those whose results they use.
    /// Without names, `default` counts.
    ///
    /// # Errors
    ///
    /// If there is no such target, or targets use each other's results.
    pub fn wanted(&self, names: &[String]) -> Result<Wanted> {
        let default = [DEFAULT.to_owned()];
        let names = if names.is_empty() { &default[..] } else { names };
        let mut wanted = Wanted::default();
        if !matches!(names, [one] if self.groups.contains_key(one) && one == DEFAULT) {
            wanted.groups.insert(DEFAULT.to_owned(), names.to_vec());
        }
        let mut seen = BTreeSet::new();
        for name in names {
            self.expand(name, &mut seen, &mut wanted)?;
        }
        for name in wanted.requested.clone() {
            self.order(&name, &mut Vec::new(), &mut wanted.ordered)?;
        }
        Ok(wanted)
    }

    /// Adds what `name` stands for, each group once: groups may name each other any number of times.
    fn expand(&self, name: &str, seen: &mut BTreeSet<String>, wanted: &mut Wanted) -> Result<()> {
        if !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(members) = self.groups.get(name) else {
            let target = self.target(name)?;
            if !wanted.requested.contains(&target.name) {
                wanted.requested.push(target.name.clone());
            }
            return Ok(());
        };
        wanted.groups.insert(name.to_owned(), members.clone());
        for member in members {
            // A target may have the name of the group that contains it.
            if member == name && self.targets.contains_key(name) {
                if !wanted.requested.contains(member) {
                    wanted.requested.push(member.clone());
                }
                continue;
            }
            self.expand(member, seen, wanted)?;
        }
        Ok(())
    }

    fn order(&self, name: &str, path: &mut Vec<String>, ordered: &mut Vec<String>) -> Result<()> {
        if ordered.iter().any(|known| known == name) {
            return Ok(());
        }
        if path.iter().any(|known| known == name) {
            let circle = format!("{} -> {name}", path.join(" -> "));
            return Err(Error::usage(format!("targets use each other's results: {circle}")));
        }
        path.push(name.to_owned());
        for context in self.target(name)?.contexts.values() {
            if let Some(other) = context.strip_prefix(TARGET) {
                self.order(other, path, ordered)?;
            }
        }
        path.pop();
        ordered.push(name.to_owned());
        Ok(())
    }
}

/// Targets to build.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Those that were asked for, by name or in a group.
    pub requested: Vec<String>,
    /// All targets, each behind those whose results it uses.
    pub ordered: Vec<String>,
    /// Groups among the names and their members.
    pub groups: BTreeMap<String, Vec<String>>,
}

/// The variables and functions of the files.
struct Scope<'a> {
    definitions: &'a Definitions,
    lookup: &'a dyn Fn(&str) -> Option<String>,
    known: RefCell<BTreeMap<String, Value>>,
    /// What is being evaluated, to find circles.
    open: RefCell<BTreeSet<String>>,
    budget: Budget,
}

impl<'a> Scope<'a> {
    fn new(definitions: &'a Definitions, lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            definitions,
            lookup,
            known: RefCell::default(),
            open: RefCell::default(),
            budget: Budget::default(),
        }
    }

    fn evaluate(&self, expression: &Expression, locals: &Locals, depth: usize) -> Outcome<Value> {
        Evaluator { names: self, locals, depth }.value(expression)
    }

    /// Evaluates `what` once. Fails if it needs its own value.
    fn once(&self, what: &str, evaluate: impl FnOnce() -> Outcome<Value>) -> Outcome<Value> {
        if let Some(value) = self.known.borrow().get(what) {
            return Ok(value.clone());
        }
        if !self.open.borrow_mut().insert(what.to_owned()) {
            return Err(format!("{what} needs its own value"));
        }
        let value = evaluate();
        self.open.borrow_mut().remove(what);
        let value = value?;
        self.known.borrow_mut().insert(what.to_owned(), value.clone());
        Ok(value)
    }

    fn defined(&self, name: &str, depth: usize) -> Outcome<Value> {
        let Some(variable) = self.definitions.variables.get(name) else {
            if let Some(constant) = self.definitions.constants.get(name) {
                return self.evaluate(constant, &Locals::new(), depth);
            }
            let builtin = match name {
                // Contexts are local here: the directory in which the command runs.
                "BAKE_CMD_CONTEXT" => (self.lookup)(name).or(Some(".".to_owned())),
                "BAKE_LOCAL_PLATFORM" => (self.lookup)(name),
                _ => None,
            };
            return builtin.map(Value::from).ok_or_else(|| format!("there is no variable {name}"));
        };
        let default = match &variable.default {
            Some(default) => Some(self.evaluate(default, &Locals::new(), depth)?),
            None => None,
        };
        let kind = variable.kind.as_ref().map(kind_of);
        let Some(outside) = (self.lookup)(name) else {
            if let Some(json) = (self.lookup)(&format!("{name}_JSON"))
                && kind.is_some()
            {
                return serde_json::from_str(&json)
                    .map_err(|error| format!("{name}_JSON: {error}"));
            }
            return Ok(match (default, &kind) {
                (Some(default), _) => default,
                (None, Some(_)) => Value::Null,
                (None, None) => Value::from(""),
            });
        };
        let typed = match (kind.as_deref(), &default) {
            (Some(kind), _) => kind,
            (None, Some(Value::Bool(_))) => "bool",
            (None, Some(Value::Number(_))) => "number",
            (None, Some(Value::Array(_) | Value::Object(_))) => {
                return Err(format!(
                    "the variable {name} is a list or a map without a type, so its value cannot come from outside: \
                     add `type = list(string)`"
                ));
            }
            (None, _) => "string",
        };
        match typed {
            "bool" => truth(&Value::from(outside.to_lowercase()))
                .map(Value::Bool)
                .map_err(|cause| format!("the variable {name}: {cause}")),
            "number" => number(&Value::from(outside))
                .map(numeric)
                .map_err(|cause| format!("the variable {name}: {cause}")),
            "string" => Ok(Value::from(outside)),
            typed
                if typed.starts_with("list(")
                    || typed.starts_with("set(")
                    || typed.starts_with("tuple(") =>
            {
                let is_numeric = typed.contains("number");
                let item = |field: String| {
                    let value = Value::from(field);
                    if is_numeric { number(&value).map(numeric) } else { Ok(value) }
                };
                if outside.is_empty() {
                    return Ok(Value::Array(Vec::new()));
                }
                csv(&outside).into_iter().map(item).collect::<Outcome<_>>().map(Value::Array)
            }
            typed if typed.starts_with("map(") || typed.starts_with("object(") => {
                let mut map = hcl::Map::new();
                for field in csv(&outside).into_iter().filter(|field| !field.is_empty()) {
                    let (key, value) = field.split_once('=').ok_or_else(|| {
                        format!("the variable {name}: `{field}` is not KEY=VALUE")
                    })?;
                    map.insert(key.to_owned(), Value::from(value));
                }
                Ok(Value::Object(map))
            }
            other => Err(format!("the variable {name} has the type {other}, which is unknown")),
        }
    }

    /// Returns the variables. Fails if a `validation` of one does.
    fn listed(&self) -> Result<Vec<Variable>> {
        let mut listed = Vec::new();
        for (name, definition) in &self.definitions.variables {
            let broken = |cause: String| wrong(&format!("the variable {name}"), &cause);
            let value = self.variable(name, 0).map_err(broken)?;
            let constant = |expression: &Expression| {
                self.evaluate(expression, &Locals::new(), 0).and_then(|value| text(&value))
            };
            for (condition, message) in &definition.validations {
                let holds =
                    self.evaluate(condition, &Locals::new(), 0).and_then(|value| truth(&value));
                if !holds.map_err(broken)? {
                    let message = message.as_ref().map(constant).transpose().map_err(broken)?;
                    let message = message.unwrap_or_else(|| "its value is not valid".to_owned());
                    return Err(broken(message));
                }
            }
            let description = definition.description.as_ref().map(constant).transpose();
            listed.push(Variable {
                name: name.clone(),
                kind: definition.kind.as_ref().map(kind_of).unwrap_or_default(),
                value: match &value {
                    Value::Null => String::new(),
                    Value::Array(_) | Value::Object(_) => {
                        serde_json::to_string(&value).unwrap_or_default()
                    }
                    other => text(other).unwrap_or_default(),
                },
                description: description.map_err(broken)?.unwrap_or_default(),
            });
        }
        Ok(listed)
    }

    /// Returns the targets that a definition makes: several with a matrix, whose group is added to `groups`.
    fn targets(
        &self,
        definition: &Definition,
        groups: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<Vec<Target>> {
        let place = format!("target `{}` in {}", definition.name, definition.file);
        let broken = |cause: String| wrong(&place, &cause);
        let Some(matrix) = definition.attributes.get("matrix") else {
            if definition.attributes.contains_key("name") {
                return Err(broken("`name` needs a `matrix`".to_owned()));
            }
            checked(&definition.name).map_err(broken)?;
            let target = self.one(definition, &definition.name, &Locals::new()).map_err(broken)?;
            return Ok(vec![target]);
        };
        let name = definition.attributes.get("name");
        let name = name.ok_or_else(|| broken("a matrix needs a `name`".to_owned()))?;
        let rows = self.evaluate(matrix, &Locals::new(), 0).and_then(rows).map_err(broken)?;
        let mut targets: Vec<Target> = Vec::new();
        for locals in rows {
            let own =
                self.evaluate(name, &locals, 0).and_then(|value| text(&value)).map_err(broken)?;
            checked(&own).map_err(broken)?;
            if targets.iter().any(|known| known.name == own) {
                return Err(broken(format!("two members of its matrix have the name `{own}`")));
            }
            targets.push(self.one(definition, &own, &locals).map_err(broken)?);
        }
        let members = targets.iter().map(|target| target.name.clone()).collect();
        groups.insert(definition.name.clone(), members);
        Ok(targets)
    }

    fn one(&self, definition: &Definition, name: &str, locals: &Locals) -> Outcome<Target> {
        let mut target = Target { name: name.to_owned(), ..Target::default() };
        for (key, expression) in &definition.attributes {
            if matches!(&**key, "matrix" | "name") {
                continue;
            }
            let values =
                self.values(expression, locals).map_err(|cause| format!("{key}: {cause}"))?;
            match target.set(key, values) {
                Some(set) => set?,
                None => return Err(format!("there is no attribute `{key}`")),
            }
        }
        Ok(target)
    }

    fn values(&self, expression: &Expression, locals: &Locals) -> Outcome<Values> {
        Ok(match self.evaluate(expression, locals, 0)? {
            Value::Null => Values::Absent,
            Value::Array(items) => {
                let mut list = Vec::new();
                for item in items {
                    match item {
                        Value::Null => {}
                        Value::String(text) if text.is_empty() => {}
                        Value::Object(map) => list.push(spec(&map)?.text()),
                        other => list.push(text(&other)?),
                    }
                }
                Values::List(list)
            }
            Value::Object(map) => {
                let set = map.into_iter().filter(|(_, value)| !matches!(value, Value::Null));
                Values::Map(
                    set.map(|(key, value)| Ok((key, text(&value)?))).collect::<Outcome<_>>()?,
                )
            }
            other => Values::Text(text(&other)?),
        })
    }
}

impl Names for Scope<'_> {
    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn variable(&self, name: &str, depth: usize) -> Outcome<Value> {
        self.once(name, || self.defined(name, depth))
    }

    fn attribute(&self, target: &str, attribute: &str, depth: usize) -> Outcome<Value> {
        let what = format!("target.{target}.{attribute}");
        let mut named = self.definitions.targets.iter().rev().filter(|known| known.name == target);
        let first = named.clone().next().ok_or_else(|| format!("there is no target {target}"))?;
        let found = named.find_map(|known| known.attributes.get(attribute));
        if let ("name", None) = (attribute, found) {
            return Ok(Value::from(first.name.clone()));
        }
        let found = found.ok_or_else(|| format!("the target {target} does not set {attribute}"))?;
        self.once(&what, || self.evaluate(found, &Locals::new(), depth))
    }

    fn call(&self, name: &str, arguments: &[Value], depth: usize) -> Option<Outcome<Value>> {
        let function = self.definitions.functions.get(name)?;
        let (fixed, given) = (function.parameters.len(), arguments.len());
        if given < fixed || (given > fixed && function.variadic.is_none()) {
            return Some(Err(format!("it takes {fixed} arguments, not {given}")));
        }
        let mut locals = Locals::new();
        locals.extend(function.parameters.iter().cloned().zip(arguments.iter().cloned()));
        if let Some(variadic) = &function.variadic {
            let rest = arguments.get(fixed..).unwrap_or_default().to_vec();
            locals.insert(variadic.clone(), Value::Array(rest));
        }
        Some(self.evaluate(&function.result, &locals, depth + 1))
    }
}

/// Returns the members of a matrix, the first key changing fastest, as in buildx.
fn rows(matrix: Value) -> Outcome<Vec<Locals>> {
    let Value::Object(axes) = matrix else {
        return Err("a matrix is a map of lists".to_owned());
    };
    let mut rows = vec![Locals::new()];
    let axes: BTreeMap<String, Value> = axes.into_iter().collect();
    for (name, items) in axes {
        let Value::Array(items) = items else {
            return Err(format!("{name} in the matrix is not a list"));
        };
        if rows.len().saturating_mul(items.len()) > MOST {
            return Err(format!("the matrix has more than {MOST} members"));
        }
        rows = items
            .iter()
            .flat_map(|item| {
                rows.iter().map(|row| {
                    let mut row = row.clone();
                    row.insert(name.clone(), item.clone());
                    row
                })
            })
            .collect();
    }
    Ok(rows)
}

fn spec(map: &hcl::Map<String, Value>) -> Outcome<Spec> {
    let set = map.iter().filter(|(_, value)| !matches!(value, Value::Null));
    let pairs = set.map(|(key, value)| {
        let value = match value {
            Value::Array(items) => items.iter().map(text).collect::<Outcome<Vec<_>>>()?.join(","),
            other => text(other)?,
        };
        Ok((key.clone(), value))
    });
    Ok(Spec(pairs.collect::<Outcome<_>>()?))
}

fn checked(name: &str) -> Outcome<()> {
    if name.is_empty() || functions::sanitized(name) != name {
        return Err(format!(
            "`{name}` is not a name of a target: letters, digits, `-` and `_` are allowed"
        ));
    }
    Ok(())
}

/// Returns a type as it is written.
fn kind_of(expression: &Expression) -> String {
    match expression {
        Expression::Variable(name) => name.to_string(),
        Expression::String(name) => name.clone(),
        Expression::FuncCall(call) => {
            let inner: Vec<String> = call.args.iter().map(kind_of).collect();
            format!("{}({})", call.name, inner.join(","))
        }
        Expression::Object(object) => {
            let members = object.iter().map(|(key, kind)| match key {
                ObjectKey::Identifier(name) => format!("{name}={}", kind_of(kind)),
                _ => kind_of(kind),
            });
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        Expression::Array(items) => {
            format!("[{}]", items.iter().map(kind_of).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}
