//! Evaluates a parsed template.

use std::rc::Rc;

use gotmpl::parse::{
    BranchNode, CommandNode, Expr, ListNode, Node, Number, PipeNode, Pos, SmolStr, TemplateNode,
};

use crate::dialect::LONGEST_TEXT;
use crate::dialect::{Dialect, Missing};
use crate::engine::Engine;
use crate::functions;
use crate::helm;
use crate::print;
use crate::source::{Fault, Source, Tree};
use crate::value::Value;

/// Reason why evaluation ends early.
enum Stop {
    Fault(Box<Fault>),
    Break,
    Continue,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(Box::new(fault))
    }
}

/// A template being evaluated: its source, dot, its variables and its output so far.
struct State {
    source: Rc<Source>,
    dot: Value,
    variables: Vec<(SmolStr, Value)>,
    out: String,
}

impl State {
    /// Returns an error at a position in this template.
    fn fault(&self, pos: Pos, message: impl Into<String>) -> Fault {
        Fault::new(self.source.place(pos), message)
    }

    fn assign(&mut self, name: &SmolStr, value: Value) -> bool {
        let found = self.variables.iter_mut().rev().find(|(n, _)| n == name);
        match found {
            Some((_, slot)) => {
                *slot = value;
                true
            }
            None => false,
        }
    }
}

impl Engine {
    /// Runs a template from the start with `data` as dot and `$`.
    pub(crate) fn execute(&mut self, template: &Tree, data: &Value) -> Result<String, Fault> {
        let mut state = State {
            source: template.source.clone(),
            dot: data.clone(),
            variables: vec![(SmolStr::new_static("$"), data.clone())],
            out: String::new(),
        };
        match self.walk(&mut state, &template.body) {
            Ok(()) => {
                self.made(state.out.len())?;
                Ok(state.out)
            }
            Err(Stop::Fault(fault)) => Err(*fault),
            Err(Stop::Break | Stop::Continue) => {
                let name = state.source.name.clone();
                Err(Fault::new(name, "break or continue outside of range"))
            }
        }
    }

    fn walk(&mut self, state: &mut State, list: &ListNode) -> Result<(), Stop> {
        self.nested += 1;
        let walked = if self.nested > self.dialect.limits().nested {
            Err(state.fault(list.pos, "templates are nested too deeply").into())
        } else {
            list.nodes.iter().try_for_each(|node| self.node(state, node))
        };
        self.nested -= 1;
        walked
    }

    /// Walks a list with another dot, if there is one.
    fn walk_with(
        &mut self,
        state: &mut State,
        list: &ListNode,
        dot: Option<Value>,
    ) -> Result<(), Stop> {
        let outer = dot.map(|dot| std::mem::replace(&mut state.dot, dot));
        let walked = self.walk(state, list);
        if let Some(outer) = outer {
            state.dot = outer;
        }
        walked
    }

    fn node(&mut self, state: &mut State, node: &Node) -> Result<(), Stop> {
        match node {
            Node::Text(text) => self.write(state, text.pos, &text.text)?,
            Node::Action(action) => {
                let value = self.pipeline(state, &action.pipe)?;
                if action.pipe.decl.is_empty() {
                    match value {
                        Value::Nil => self.write(state, action.pos, "<no value>")?,
                        Value::Text(text) => self.write(state, action.pos, &text)?,
                        other => self.write(state, action.pos, &print::show(&other))?,
                    }
                }
            }
            Node::If(branch) => self.branch(state, branch, false)?,
            Node::With(branch) => self.branch(state, branch, true)?,
            Node::Range(branch) => self.range(state, branch)?,
            Node::Template(call) => self.call_template(state, call)?,
            Node::List(list) => self.walk(state, list)?,
            Node::Define(_) => {}
            Node::Break(_) => return Err(Stop::Break),
            Node::Continue(_) => return Err(Stop::Continue),
        }
        Ok(())
    }

    fn write(&self, state: &mut State, pos: Pos, text: &str) -> Result<(), Fault> {
        if state.out.len().saturating_add(text.len()) > LONGEST_TEXT {
            let message = format!("the template writes more than {LONGEST_TEXT} bytes");
            return Err(state.fault(pos, message));
        }
        state.out.push_str(text);
        Ok(())
    }

    fn branch(&mut self, state: &mut State, branch: &BranchNode, with: bool) -> Result<(), Stop> {
        let mark = state.variables.len();
        let value = self.pipeline(state, &branch.pipe)?;
        let walked = if value.is_true() {
            self.walk_with(state, &branch.body, with.then_some(value))
        } else if let Some(body) = &branch.else_body {
            self.walk(state, body)
        } else {
            Ok(())
        };
        state.variables.truncate(mark);
        walked
    }

    fn range(&mut self, state: &mut State, branch: &BranchNode) -> Result<(), Stop> {
        let mark = state.variables.len();
        let value = self.commands(state, &branch.pipe)?;
        let most = self.dialect.limits().turns;
        let turns = turns(&value, most).map_err(|message| state.fault(branch.pos, message))?;
        if turns.is_empty() {
            if let Some(body) = &branch.else_body {
                self.walk(state, body)?;
            }
            return Ok(());
        }
        for (key, item) in turns {
            self.turns += 1;
            if self.turns > most {
                let message = format!("the loops take more than {most} iterations");
                return Err(state.fault(branch.pos, message).into());
            }
            let names = branch.pipe.decl.as_slice();
            let values = match names {
                [] => vec![],
                [_] => vec![item.clone()],
                _ => vec![key, item.clone()],
            };
            for (name, value) in names.iter().zip(values) {
                if !branch.pipe.is_assign || !state.assign(name, value.clone()) {
                    state.variables.push((name.clone(), value));
                }
            }
            let walked = self.walk_with(state, &branch.body, Some(item));
            state.variables.truncate(mark);
            match walked {
                Ok(()) | Err(Stop::Continue) => {}
                Err(Stop::Break) => break,
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    fn call_template(&mut self, state: &mut State, call: &TemplateNode) -> Result<(), Stop> {
        let data = match &call.pipe {
            Some(pipe) => self.pipeline(state, pipe)?,
            None => Value::Nil,
        };
        let place = |fault: Fault| fault.within(state.source.place(call.pos));
        let template = self.find(&call.name).map_err(place)?;
        let text = self.execute(&template, &data).map_err(place)?;
        self.write(state, call.pos, &text)?;
        Ok(())
    }

    /// Evaluates a pipeline and sets the variables it declares.
    fn pipeline(&mut self, state: &mut State, pipe: &PipeNode) -> Result<Value, Fault> {
        let value = self.commands(state, pipe)?;
        for name in &pipe.decl {
            if !pipe.is_assign {
                state.variables.push((name.clone(), value.clone()));
            } else if !state.assign(name, value.clone()) {
                return Err(state.fault(pipe.pos, format!("undefined variable {name:?}")));
            }
        }
        Ok(value)
    }

    fn commands(&mut self, state: &mut State, pipe: &PipeNode) -> Result<Value, Fault> {
        self.nested += 1;
        if self.nested > self.dialect.limits().nested {
            self.nested -= 1;
            return Err(state.fault(pipe.pos, "templates are nested too deeply"));
        }
        let mut value = Ok(None);
        for command in &pipe.commands {
            value = match value {
                Ok(piped) => self.command(state, command, piped).map(Some),
                failed => failed,
            };
        }
        self.nested -= 1;
        Ok(value?.unwrap_or(Value::Nil))
    }

    fn command(
        &mut self,
        state: &mut State,
        command: &CommandNode,
        piped: Option<Value>,
    ) -> Result<Value, Fault> {
        let Some((first, rest)) = command.args.split_first() else {
            return Ok(Value::Nil);
        };
        match first {
            Expr::Identifier(pos, name) => self.call(state, *pos, name, rest, piped),
            Expr::Chain(pos, inner, fields) => {
                if let Expr::Identifier(at, name) = inner.as_ref() {
                    let value = self.call(state, *at, name, &[], None)?;
                    let arguments = self.arguments(state, rest, piped)?;
                    return self.fields(state, *pos, value, fields, &arguments);
                }
                let value = self.expression(state, inner)?;
                let arguments = self.arguments(state, rest, piped)?;
                self.fields(state, *pos, value, fields, &arguments)
            }
            Expr::Field(pos, fields) => {
                let arguments = self.arguments(state, rest, piped)?;
                self.fields(state, *pos, state.dot.clone(), fields, &arguments)
            }
            Expr::Variable(pos, name, fields) if !fields.is_empty() => {
                let value = self.variable(state, *pos, name)?;
                let arguments = self.arguments(state, rest, piped)?;
                self.fields(state, *pos, value, fields, &arguments)
            }
            Expr::Nil(pos) => Err(state.fault(*pos, "nil is not a command")),
            other if piped.is_some() || !rest.is_empty() => {
                Err(state.fault(other.pos(), "can't give argument to non-function"))
            }
            other => self.expression(state, other),
        }
    }

    fn arguments(
        &mut self,
        state: &mut State,
        expressions: &[Expr],
        piped: Option<Value>,
    ) -> Result<Vec<Value>, Fault> {
        let mut values = Vec::with_capacity(expressions.len() + 1);
        for expression in expressions {
            values.push(self.expression(state, expression)?);
        }
        values.extend(piped);
        Ok(values)
    }

    fn expression(&mut self, state: &mut State, expression: &Expr) -> Result<Value, Fault> {
        Ok(match expression {
            Expr::Dot(_) => state.dot.clone(),
            Expr::Field(pos, fields) => self.fields(state, *pos, state.dot.clone(), fields, &[])?,
            Expr::Variable(pos, name, fields) => {
                let value = self.variable(state, *pos, name)?;
                self.fields(state, *pos, value, fields, &[])?
            }
            Expr::Identifier(pos, name) => self.call(state, *pos, name, &[], None)?,
            Expr::String(_, text) => Value::text(text),
            Expr::Number(_, Number::Int(int)) => Value::Int(*int),
            Expr::Number(_, Number::Float(float)) => Value::Float(*float),
            Expr::Number(pos, Number::Uint(uint)) => {
                return Err(state.fault(*pos, format!("{uint} overflows int")));
            }
            Expr::Bool(_, bool) => Value::Bool(*bool),
            Expr::Nil(_) => Value::Nil,
            Expr::Pipe(_, pipe) => self.pipeline(state, pipe)?,
            Expr::Chain(pos, inner, fields) => {
                let value = self.expression(state, inner)?;
                self.fields(state, *pos, value, fields, &[])?
            }
        })
    }

    fn variable(&self, state: &State, pos: Pos, name: &SmolStr) -> Result<Value, Fault> {
        let found = state.variables.iter().rev().find(|(n, _)| n == name);
        found
            .map(|(_, value)| value.clone())
            .ok_or_else(|| state.fault(pos, format!("undefined variable {name:?}")))
    }

    /// Follows `.a.b.c`; `arguments` apply to the last element, if it is a method. As in Go, a nil
    /// start value stays nil; [`Missing`] says what becomes of a nil value along the path.
    fn fields(
        &self,
        state: &State,
        pos: Pos,
        start: Value,
        fields: &[SmolStr],
        arguments: &[Value],
    ) -> Result<Value, Fault> {
        if matches!(start, Value::Nil) {
            return Ok(Value::Nil);
        }
        let mut value = start;
        for (index, name) in fields.iter().enumerate() {
            let last = index + 1 == fields.len();
            let arguments = if last { arguments } else { &[] };
            let found = match &value {
                Value::Map(map) => match (helm::method(map, name, arguments), map.get(name)) {
                    (Some(called), _) => called,
                    _ if !arguments.is_empty() => {
                        Err(format!("{name} is not a method but has arguments"))
                    }
                    (None, None) if self.missing == Missing::Error => {
                        let message = format!("map has no entry for key {name:?}");
                        let hint = format!("set `{name}` (-e {name}=…)");
                        return Err(state.fault(pos, message).hint(hint));
                    }
                    (None, member) => Ok(member.unwrap_or(Value::Nil)),
                },
                Value::Nil if self.missing != Missing::Zero => Ok(Value::Nil),
                Value::Nil => {
                    let path = fields[..index].join(".");
                    Err(format!("nil pointer: .{path} is not set, so it has no {name}"))
                }
                other => {
                    let member = match other {
                        Value::Object(object) => object.member(name, arguments),
                        _ => None,
                    };
                    member.unwrap_or_else(|| {
                        let of = other.type_name();
                        Err(format!("can't evaluate field {name} in type {of}"))
                    })
                }
            };
            value = found.map_err(|message| state.fault(pos, message))?;
        }
        Ok(value)
    }

    fn call(
        &mut self,
        state: &mut State,
        pos: Pos,
        name: &SmolStr,
        expressions: &[Expr],
        piped: Option<Value>,
    ) -> Result<Value, Fault> {
        if name == "and" || name == "or" {
            return self.and_or(state, pos, name == "and", expressions, piped);
        }
        let arguments = self.arguments(state, expressions, piped)?;
        let called = match name.as_str() {
            "include" | "tpl" if self.dialect == Dialect::Chart => {
                self.run_text(state, name, &arguments)
            }
            _ => functions::call(self.dialect, self.environment.as_ref(), name, &arguments),
        };
        let value = called.map_err(|mut fault| {
            if fault.at.is_empty()
                && !matches!(name.as_str(), "include" | "tpl" | "fail" | "required")
            {
                fault.message = format!("error calling {name}: {}", fault.message);
            }
            fault.within(state.source.place(pos))
        })?;
        let size = match &value {
            Value::Text(text) => text.len(),
            Value::List(list) => list.items().len().saturating_mul(8),
            _ => 0,
        };
        if size > LONGEST_TEXT {
            return Err(state.fault(pos, format!("{name} makes more than {LONGEST_TEXT} bytes")));
        }
        self.made(size).map_err(|fault| fault.within(state.source.place(pos)))?;
        Ok(value)
    }

    /// `include NAME DATA` and `tpl TEXT DATA`.
    fn run_text(&mut self, state: &State, name: &str, a: &[Value]) -> Result<Value, Fault> {
        functions::typed(name, "s*", a)?;
        match a {
            [Value::Text(template), data] if name == "include" => self.include(template, data),
            [Value::Text(text), data] => self.tpl(&state.source.name, text, data),
            _ => Ok(String::new()),
        }
        .map(Value::text)
    }

    /// `and` and `or` evaluate only as many arguments as they need.
    fn and_or(
        &mut self,
        state: &mut State,
        pos: Pos,
        and: bool,
        expressions: &[Expr],
        piped: Option<Value>,
    ) -> Result<Value, Fault> {
        let mut last = None;
        for expression in expressions {
            let value = self.expression(state, expression)?;
            if value.is_true() != and {
                return Ok(value);
            }
            last = Some(value);
        }
        piped
            .or(last)
            .ok_or_else(|| state.fault(pos, "wrong number of args for and/or: want at least 1"))
    }
}

/// Keys and items that `range` iterates over.
fn turns(value: &Value, most: u64) -> Result<Vec<(Value, Value)>, String> {
    let numbered = |items: &[Value]| {
        let keys = (0..).map(Value::Int);
        keys.zip(items.iter().cloned()).collect()
    };
    Ok(match value {
        Value::Nil => Vec::new(),
        Value::List(list) => numbered(list.items()),
        Value::Map(map) => {
            let members = map.members().into_iter();
            members.map(|(key, item)| (Value::Text(key), item)).collect()
        }
        Value::Int(count) => {
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let numbers = 0..(*count).min(most.saturating_add(1));
            numbers.map(|n| (Value::Int(n), Value::Int(n))).collect()
        }
        Value::Bytes(bytes) => {
            let numbers: Vec<Value> = bytes.iter().map(|b| Value::Int((*b).into())).collect();
            numbered(&numbers)
        }
        Value::Object(object) if object.items().is_some() => return turns(&object.data(), most),
        other => return Err(format!("range can't iterate over {}", print::show(other))),
    })
}
