//! Functions that templates can call, as tables of name and body; one file per group.
//!
//! The semantics are those documented for sprig (v3). Functions that would make a template's output
//! nondeterministic (`now`, `randAlpha`, `genCA`) do not exist (`env` only with an environment that
//! is part of the data). Functions that modify a value (`set`, `unset`) do not exist either: values
//! are immutable.

mod arguments;
mod encoding;
mod environment;
mod format;
mod lists;
mod maps;
mod net;
mod numbers;
mod strings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use gotmpl::{FuncMap, TemplateError, Value};

use crate::Dialect;
use arguments::Arguments;

pub(crate) use environment::of as environment;

/// Result of a function; [`super::go`] reports the error with the template's name.
type Answer = Result<Value, TemplateError>;
/// A function's body.
type Body = fn(&Arguments<'_>) -> Answer;
/// Part of a dialect: function names and bodies.
type Group = &'static [(&'static str, Body)];

/// Returns the functions of a dialect.
pub fn of(dialect: Dialect) -> FuncMap {
    let groups: &[Group] = match dialect {
        Dialect::ClusterImage => &[
            strings::GROUP,
            lists::GROUP,
            maps::GROUP,
            numbers::GROUP,
            encoding::GROUP,
            net::GROUP,
        ],
        Dialect::Format => &[format::GROUP],
    };
    let mut map = FuncMap::new();
    for (name, body) in groups.iter().flat_map(|group| group.iter()) {
        let (name, body) = (*name, *body);
        map.insert(
            name.to_owned(),
            Arc::new(move |values: &[Value]| body(&Arguments::new(name, values))),
        );
    }
    map
}

/// Returns an error with the function's own message.
fn refuse(message: impl Into<String>) -> TemplateError {
    TemplateError::Exec(message.into())
}
