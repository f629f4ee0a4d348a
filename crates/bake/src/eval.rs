//! Evaluates expressions and templates of HCL (hcl/hclsyntax/spec.md). Must not know which variables there
//! are: it asks [`Names`].

use std::collections::BTreeMap;

use hcl::expr::{
    BinaryOperator, Expression, ForExpr, FuncCall, ObjectKey, Operation, TemplateExpr, Traversal,
    TraversalOperator, UnaryOperator,
};
use hcl::template::{Directive, Element, Strip, Template};
use hcl::{Map, Value};

use crate::budget::{Budget, NODE, size};
use crate::functions;
use crate::value::{Outcome, equal, indexed, member, number, numeric, shown, text, truth};

/// Maximum nesting of expressions and calls.
const MOST_NESTED: usize = 200;
/// Maximum size of a text, in bytes, and of a list.
const LONGEST: usize = 4 << 20;

/// Names that are not local to an expression.
pub(crate) trait Names {
    /// Limits that all expressions share.
    fn budget(&self) -> &Budget;
    fn variable(&self, name: &str, depth: usize) -> Outcome<Value>;
    /// Returns an attribute of a target, for `target.NAME.ATTRIBUTE`.
    fn attribute(&self, target: &str, attribute: &str, depth: usize) -> Outcome<Value>;
    /// Calls a function that the files define; `None` if they do not.
    fn call(&self, name: &str, arguments: &[Value], depth: usize) -> Option<Outcome<Value>>;
}

/// Variables of `for`, of functions and of a matrix.
pub(crate) type Locals = BTreeMap<String, Value>;

#[derive(Clone, Copy)]
pub(crate) struct Evaluator<'a> {
    pub(crate) names: &'a dyn Names,
    pub(crate) locals: &'a Locals,
    pub(crate) depth: usize,
}

impl<'a> Evaluator<'a> {
    fn with<'b>(&self, locals: &'b Locals) -> Evaluator<'b>
    where
        'a: 'b,
    {
        Evaluator { names: self.names, locals, depth: self.depth }
    }

    pub(crate) fn value(&self, expression: &Expression) -> Outcome<Value> {
        let deeper = Self { depth: self.depth + 1, ..*self };
        if deeper.depth > MOST_NESTED {
            return Err(format!("it is nested more than {MOST_NESTED} times"));
        }
        self.names.budget().step(1)?;
        deeper.evaluate(expression)
    }

    /// Counts a value that is about to be copied.
    fn copied(&self, value: &Value) -> Outcome<Value> {
        self.names.budget().make(size(value))?;
        Ok(value.clone())
    }

    fn evaluate(&self, expression: &Expression) -> Outcome<Value> {
        Ok(match expression {
            Expression::Null => Value::Null,
            Expression::Bool(value) => Value::Bool(*value),
            Expression::Number(number) => Value::Number(*number),
            Expression::String(text) => {
                self.names.budget().make(NODE + text.len())?;
                Value::String(text.clone())
            }
            Expression::Array(items) => {
                self.names.budget().make(NODE * items.len())?;
                Value::Array(items.iter().map(|item| self.value(item)).collect::<Outcome<_>>()?)
            }
            Expression::Object(object) => {
                let mut map = Map::new();
                self.names.budget().make(2 * NODE * object.len())?;
                for (key, value) in object {
                    map.insert(self.key(key)?, self.value(value)?);
                }
                Value::Object(map)
            }
            Expression::TemplateExpr(template) => self.template_value(template)?,
            Expression::Variable(name) => self.variable(name.as_str())?,
            Expression::Traversal(traversal) => self.traversal(traversal)?,
            Expression::FuncCall(call) => self.call(call)?,
            Expression::Parenthesis(inner) => self.value(inner)?,
            Expression::Conditional(conditional) => {
                if self.condition(&conditional.cond_expr)? {
                    self.value(&conditional.true_expr)?
                } else {
                    self.value(&conditional.false_expr)?
                }
            }
            Expression::Operation(operation) => self.operation(operation)?,
            Expression::ForExpr(expression) => self.each(expression)?,
            other => return Err(format!("`{other}` is not supported")),
        })
    }

    fn variable(&self, name: &str) -> Outcome<Value> {
        match self.locals.get(name) {
            Some(value) => self.copied(value),
            None => {
                let value = self.names.variable(name, self.depth)?;
                self.names.budget().make(size(&value))?;
                Ok(value)
            }
        }
    }

    fn key(&self, key: &ObjectKey) -> Outcome<String> {
        match key {
            ObjectKey::Identifier(name) => Ok(name.to_string()),
            ObjectKey::Expression(expression) => text(&self.value(expression)?),
            other => Err(format!("`{other}` is no key")),
        }
    }

    fn condition(&self, expression: &Expression) -> Outcome<bool> {
        truth(&self.value(expression)?)
    }

    fn traversal(&self, traversal: &Traversal) -> Outcome<Value> {
        let operators = &traversal.operators[..];
        if let (Expression::Variable(name), [first, second, rest @ ..]) =
            (&traversal.expr, operators)
            && name.as_str() == "target"
            && !self.locals.contains_key("target")
        {
            let word = |operator: &TraversalOperator| match operator {
                TraversalOperator::GetAttr(name) => Ok(name.to_string()),
                TraversalOperator::Index(expression) => text(&self.value(expression)?),
                _ => Err("a target is named as target.NAME.ATTRIBUTE".to_owned()),
            };
            let value = self.names.attribute(&word(first)?, &word(second)?, self.depth)?;
            return self.steps(value, rest);
        }
        let value = self.value(&traversal.expr)?;
        self.steps(value, operators)
    }

    fn steps(&self, value: Value, operators: &[TraversalOperator]) -> Outcome<Value> {
        let Some((operator, rest)) = operators.split_first() else {
            return Ok(value);
        };
        let all = |value: Value, own: &[TraversalOperator]| -> Outcome<Value> {
            let items = match value {
                Value::Array(items) => items,
                Value::Null => Vec::new(),
                one => vec![one],
            };
            Ok(Value::Array(
                items.into_iter().map(|item| self.steps(item, own)).collect::<Outcome<_>>()?,
            ))
        };
        match operator {
            TraversalOperator::GetAttr(name) => self.steps(member(&value, name.as_str())?, rest),
            TraversalOperator::Index(expression) => {
                self.steps(indexed(&value, &self.value(expression)?)?, rest)
            }
            TraversalOperator::LegacyIndex(index) => {
                self.steps(indexed(&value, &Value::from(*index))?, rest)
            }
            TraversalOperator::FullSplat => all(value, rest),
            TraversalOperator::AttrSplat => {
                let own = rest
                    .iter()
                    .take_while(|operator| matches!(operator, TraversalOperator::GetAttr(_)))
                    .count();
                let (own, rest) = rest.split_at(own);
                self.steps(all(value, own)?, rest)
            }
        }
    }

    fn call(&self, call: &FuncCall) -> Outcome<Value> {
        let name = call.name.to_string();
        // These two see an error of their arguments.
        match &*name {
            "can" => {
                let [argument] = &call.args[..] else {
                    return Err("can takes one argument".to_owned());
                };
                return Ok(Value::Bool(self.value(argument).is_ok()));
            }
            "try" => {
                let values = call.args.iter().map(|argument| self.value(argument));
                let mut last = Err("try takes an argument".to_owned());
                for value in values {
                    last = value;
                    if last.is_ok() {
                        break;
                    }
                }
                return last;
            }
            _ => {}
        }
        let mut arguments = Vec::with_capacity(call.args.len());
        for (at, argument) in call.args.iter().enumerate() {
            let value = self.value(argument)?;
            match value {
                Value::Array(items) if call.expand_final && at + 1 == call.args.len() => {
                    arguments.extend(items);
                }
                value => arguments.push(value),
            }
        }
        if let Some(outcome) = self.names.call(&name, &arguments, self.depth) {
            return outcome.map_err(|error| format!("{name}: {error}"));
        }
        let cost = functions::cost(&name, &arguments);
        self.names.budget().make(cost.bytes).map_err(|error| format!("{name}: {error}"))?;
        self.names.budget().step(cost.steps).map_err(|error| format!("{name}: {error}"))?;
        match functions::call(&name, &arguments) {
            Some(outcome) => bounded(outcome.map_err(|error| format!("{name}: {error}"))?),
            None => Err(format!("there is no function {name}")),
        }
    }

    fn operation(&self, operation: &Operation) -> Outcome<Value> {
        use BinaryOperator::{
            And, Div, Eq, Greater, GreaterEq, Less, LessEq, Minus, Mod, Mul, NotEq, Or, Plus,
        };
        let binary = match operation {
            Operation::Unary(unary) => {
                let value = self.value(&unary.expr)?;
                return Ok(match unary.operator {
                    UnaryOperator::Not => Value::Bool(!truth(&value)?),
                    UnaryOperator::Neg => numeric(-number(&value)?),
                });
            }
            Operation::Binary(binary) => binary,
        };
        let left = self.value(&binary.lhs_expr)?;
        let right = || self.value(&binary.rhs_expr);
        let numbers = || Ok::<_, String>((number(&left)?, number(&right()?)?));
        let arithmetic = |operate: fn(f64, f64) -> f64| {
            let (left, right) = numbers()?;
            Ok::<_, String>(numeric(operate(left, right)))
        };
        let compared = |holds: fn(f64, f64) -> bool| {
            let (left, right) = numbers()?;
            Ok::<_, String>(Value::Bool(holds(left, right)))
        };
        match binary.operator {
            Eq => Ok(Value::Bool(equal(&left, &right()?))),
            NotEq => Ok(Value::Bool(!equal(&left, &right()?))),
            And => Ok(Value::Bool(truth(&left)? && truth(&right()?)?)),
            Or => Ok(Value::Bool(truth(&left)? || truth(&right()?)?)),
            Plus => arithmetic(|a, b| a + b),
            Minus => arithmetic(|a, b| a - b),
            Mul => arithmetic(|a, b| a * b),
            Div | Mod if number(&right()?)? == 0.0 => Err("it divides by zero".to_owned()),
            Div => arithmetic(|a, b| a / b),
            Mod => arithmetic(|a, b| a % b),
            Less => compared(|a, b| a < b),
            LessEq => compared(|a, b| a <= b),
            Greater => compared(|a, b| a > b),
            GreaterEq => compared(|a, b| a >= b),
        }
    }

    /// Calls `visit` for each item of a collection, with the variables of the loop.
    fn items(
        &self,
        collection: &Expression,
        key: Option<&str>,
        value: &str,
        visit: &mut dyn FnMut(&Evaluator<'_>) -> Outcome<()>,
    ) -> Outcome<()> {
        let pairs: Vec<(Value, Value)> = match self.value(collection)? {
            Value::Array(items) => {
                items.into_iter().enumerate().map(|(at, item)| (Value::from(at), item)).collect()
            }
            Value::Object(map) => {
                map.into_iter().map(|(key, item)| (Value::from(key), item)).collect()
            }
            other => return Err(format!("{} is neither a list nor a map", shown(&other))),
        };
        self.names.budget().make(self.locals.values().map(size).sum())?;
        let mut locals = self.locals.clone();
        for (name, item) in pairs {
            if let Some(key) = key {
                locals.insert(key.to_owned(), name);
            }
            locals.insert(value.to_owned(), item);
            self.names.budget().step(1)?;
            visit(&self.with(&locals))?;
        }
        Ok(())
    }

    fn each(&self, each: &ForExpr) -> Outcome<Value> {
        let (mut list, mut map) = (Vec::new(), Map::new());
        let key = each.key_var.as_ref().map(hcl::Identifier::as_str);
        self.items(&each.collection_expr, key, each.value_var.as_str(), &mut |inner| {
            if let Some(condition) = &each.cond_expr
                && !inner.condition(condition)?
            {
                return Ok(());
            }
            let value = inner.value(&each.value_expr)?;
            self.names.budget().make(2 * NODE)?;
            let Some(key) = &each.key_expr else {
                list.push(value);
                return Ok(());
            };
            let key = text(&inner.value(key)?)?;
            if each.grouping {
                match map.entry(key).or_insert_with(|| Value::Array(Vec::new())) {
                    Value::Array(group) => group.push(value),
                    _ => return Err("a group is a list".to_owned()),
                }
            } else if map.insert(key.clone(), value).is_some() {
                return Err(format!("the key `{key}` occurs twice"));
            }
            Ok(())
        })?;
        Ok(if each.key_expr.is_some() { Value::Object(map) } else { Value::Array(list) })
    }

    fn template_value(&self, expression: &TemplateExpr) -> Outcome<Value> {
        let template = Template::from_expr(expression).map_err(|error| error.to_string())?;
        // A lone interpolation keeps its type.
        if let [Element::Interpolation(interpolation)] = template.elements() {
            return self.value(&interpolation.expr);
        }
        let mut text = String::new();
        self.template(&template, Strip::None, Strip::None, &mut text)?;
        self.names.budget().make(NODE + text.len())?;
        Ok(Value::String(text))
    }

    fn template(
        &self,
        template: &Template,
        before: Strip,
        after: Strip,
        to: &mut String,
    ) -> Outcome<()> {
        let elements = template.elements();
        for (at, element) in elements.iter().enumerate() {
            match element {
                Element::Literal(literal) => {
                    let before =
                        at.checked_sub(1).and_then(|at| elements.get(at)).map_or(before, strip);
                    let after = elements.get(at + 1).map_or(after, strip);
                    to.push_str(stripped(literal, before, after));
                }
                Element::Interpolation(interpolation) => {
                    to.push_str(&text(&self.value(&interpolation.expr)?)?);
                }
                Element::Directive(directive) => match &**directive {
                    Directive::If(branch) => {
                        let end = branch.endif_strip;
                        if self.condition(&branch.cond_expr)? {
                            let after = if branch.false_template.is_some() {
                                branch.else_strip
                            } else {
                                end
                            };
                            self.template(&branch.true_template, branch.if_strip, after, to)?;
                        } else if let Some(template) = &branch.false_template {
                            self.template(template, branch.else_strip, end, to)?;
                        }
                    }
                    Directive::For(each) => {
                        let key = each.key_var.as_ref().map(hcl::Identifier::as_str);
                        self.items(
                            &each.collection_expr,
                            key,
                            each.value_var.as_str(),
                            &mut |inner| {
                                inner.template(
                                    &each.template,
                                    each.for_strip,
                                    each.endfor_strip,
                                    to,
                                )
                            },
                        )?;
                    }
                },
            }
            if to.len() > LONGEST {
                return Err(format!("a text is longer than {} MiB", LONGEST >> 20));
            }
        }
        Ok(())
    }
}

fn strip(element: &Element) -> Strip {
    match element {
        Element::Literal(_) => Strip::None,
        Element::Interpolation(interpolation) => interpolation.strip,
        Element::Directive(directive) => match &**directive {
            Directive::If(branch) => both(branch.if_strip, branch.endif_strip),
            Directive::For(each) => both(each.for_strip, each.endfor_strip),
        },
    }
}

/// What a directive strips before its first and behind its last marker.
fn both(first: Strip, last: Strip) -> Strip {
    let starts = matches!(first, Strip::Start | Strip::Both);
    let ends = matches!(last, Strip::End | Strip::Both);
    match (starts, ends) {
        (true, true) => Strip::Both,
        (true, false) => Strip::Start,
        (false, true) => Strip::End,
        (false, false) => Strip::None,
    }
}

/// Returns a literal without the space towards markers with `~`.
fn stripped(mut literal: &str, before: Strip, after: Strip) -> &str {
    if matches!(before, Strip::End | Strip::Both) {
        literal = literal.trim_start();
    }
    if matches!(after, Strip::Start | Strip::Both) {
        literal = literal.trim_end();
    }
    literal
}

fn bounded(value: Value) -> Outcome<Value> {
    let is_large = match &value {
        Value::String(text) => text.len() > LONGEST,
        Value::Array(items) => items.len() > LONGEST >> 4,
        _ => false,
    };
    if is_large { Err("the result is too large".to_owned()) } else { Ok(value) }
}
