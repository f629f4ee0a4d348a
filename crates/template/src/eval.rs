//! Evaluates a parsed template.

use std::rc::Rc;

use gotmpl::parse::{
    BranchNode, CommandNode, Expr, ListNode, Node, Number, PipeNode, Pos, SmolStr, TemplateNode,
};

use crate::budget::Size;
use crate::dialect::{Dialect, LONGEST_TEXT, Missing};
use crate::engine::Engine;
use crate::functions;
use crate::helm;
use crate::print;
use crate::source::{Fault, Source, Tree};
use crate::value::{List, Map, Value};

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

    /// Returns whether `map` is what `$` began as.
    fn is_data(&self, map: &Map) -> bool {
        matches!(self.variables.first(), Some((_, Value::Map(data))) if data.is(map))
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
            Ok(()) => Ok(state.out),
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
        self.budget.steps(1).map_err(|fault| fault.within(state.source.name.clone()))?;
        match node {
            Node::Text(text) => self.write(state, text.pos, &text.text)?,
            Node::Action(action) => {
                let value = self.pipeline(state, &action.pipe)?;
                if action.pipe.decl.is_empty() {
                    match value {
                        Value::Nil => self.write(state, action.pos, "<no value>")?,
                        Value::Text(text) => self.write(state, action.pos, &text)?,
                        other => {
                            let place = |fault: Fault| fault.within(state.source.place(action.pos));
                            let size = Size::of(std::slice::from_ref(&other));
                            self.budget.once(size.times(48, 3)).map_err(place)?;
                            self.write(state, action.pos, &print::show(&other))?;
                        }
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

    fn write(&mut self, state: &mut State, pos: Pos, text: &str) -> Result<(), Fault> {
        if state.out.len().saturating_add(text.len()) > LONGEST_TEXT {
            let message = format!("the template writes more than {} MiB", LONGEST_TEXT >> 20);
            return Err(state.fault(pos, message));
        }
        let place = |fault: Fault| fault.within(state.source.place(pos));
        self.budget.made(text.len()).map_err(place)?;
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
        let turns = Turns::of(&value).map_err(|message| state.fault(branch.pos, message))?;
        let place = |fault: Fault| fault.within(state.source.place(branch.pos));
        self.budget.made(turns.bytes()).map_err(place)?;
        if turns.is_empty() {
            if let Some(body) = &branch.else_body {
                self.walk(state, body)?;
            }
            return Ok(());
        }
        for index in 0.. {
            let Some((key, item)) = turns.at(index) else { break };
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
                let place = |fault: Fault| fault.within(state.source.place(pipe.pos));
                self.budget.made(size_of::<(SmolStr, Value)>()).map_err(place)?;
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
        let steps = u64::try_from(command.args.len()).unwrap_or(u64::MAX);
        self.budget.steps(steps).map_err(|fault| fault.within(state.source.place(command.pos)))?;
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
        &mut self,
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
                    (None, None) if self.missing == Missing::Field && state.is_data(map) => {
                        let members = map.members();
                        let known: Vec<&str> = members.iter().map(|(known, _)| &**known).collect();
                        let message = format!("can't evaluate field {name}");
                        let hint = format!("the fields are {}", known.join(", "));
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
            let found = found.map_err(|message| state.fault(pos, message))?;
            // Members of maps, and maps that objects hold, are shared; the rest is made for the caller.
            let is_made = match (&value, &found) {
                (_, Value::Map(_)) => false,
                (Value::Map(map), _) => map.is_values() && name == "YAML",
                (value, _) => matches!(value, Value::Object(_)),
            };
            let made = if is_made { Size::of(std::slice::from_ref(&found)).bytes() } else { 0 };
            let place = |fault: Fault| fault.within(state.source.place(pos));
            self.budget.made(made).map_err(place)?;
            value = found;
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
            _ => functions::call(
                &mut self.budget,
                self.dialect,
                self.environment.as_ref(),
                name,
                &arguments,
            ),
        };
        called.map_err(|mut fault| {
            if fault.at.is_empty()
                && !matches!(name.as_str(), "include" | "tpl" | "fail" | "required")
            {
                fault.message = format!("error calling {name}: {}", fault.message);
            }
            fault.within(state.source.place(pos))
        })
    }

    /// `include NAME DATA` and `tpl TEXT DATA`.
    fn run_text(&mut self, state: &State, name: &str, a: &[Value]) -> Result<Value, Fault> {
        functions::typed(name, "s*", a)?;
        match a {
            [Value::Text(template), data] if name == "include" => self.include(template, data),
            [Value::Text(text), data] => self.tpl(&state.source.name, text, data),
            _ => Ok(String::new()),
        }
        .and_then(|text| {
            self.budget.made(text.len())?;
            Ok(Value::text(text))
        })
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

/// What `range` iterates over.
enum Turns {
    List(List),
    Bytes(Rc<[u8]>),
    Count(i64),
    /// A loop may change the map that it iterates over.
    Members(Vec<(Rc<str>, Value)>),
}

impl Turns {
    fn of(value: &Value) -> Result<Self, String> {
        Ok(match value {
            Value::Nil => Self::Count(0),
            Value::List(list) => Self::List(list.clone()),
            Value::Map(map) => Self::Members(map.members()),
            Value::Int(count) => Self::Count(*count),
            Value::Bytes(bytes) => Self::Bytes(bytes.clone()),
            Value::Object(object) if object.items().is_some() => return Self::of(&object.data()),
            other => {
                return Err(format!("range can't iterate over {}", print::brief(other)));
            }
        })
    }

    /// Returns the memory that is not shared with the value.
    fn bytes(&self) -> usize {
        match self {
            Self::Members(members) => members.len() * size_of::<(Rc<str>, Value)>(),
            Self::List(_) | Self::Bytes(_) | Self::Count(_) => 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.at(0).is_none()
    }

    /// Returns key and item of a turn.
    fn at(&self, index: usize) -> Option<(Value, Value)> {
        let number = Value::Int(i64::try_from(index).ok()?);
        match self {
            Self::List(list) => Some((number, list.items().get(index)?.clone())),
            Self::Bytes(bytes) => Some((number, Value::Int((*bytes.get(index)?).into()))),
            Self::Count(count) => {
                matches!(number, Value::Int(at) if at < *count).then(|| (number.clone(), number))
            }
            Self::Members(members) => {
                members.get(index).map(|(key, item)| (Value::Text(key.clone()), item.clone()))
            }
        }
    }
}
