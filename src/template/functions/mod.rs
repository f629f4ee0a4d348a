//! The functions templates can call, as tables of name and body; each group in a file.
//!
//! Semantics are sprig's (v3) where its documentation speaks. Functions that would make the same
//! template give different results (`now`, `randAlpha`, `genCA`) do not exist here (`env` only with
//! an environment that is part of the data), nor do those that change a value in place (`set`, `unset`): values are immutable.

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

use crate::template::Dialect;
use arguments::Arguments;

pub(crate) use environment::of as environment;

/// The result of a function; the error is told with the template's name by [`super::go`].
type Answer = Result<Value, TemplateError>;
/// A function's body.
type Body = fn(&Arguments<'_>) -> Answer;
/// Part of a dialect: names and bodies.
type Group = &'static [(&'static str, Body)];

/// The functions of a dialect.
pub(crate) fn of(dialect: Dialect) -> FuncMap {
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

/// An error in a function's own words.
fn refuse(message: impl Into<String>) -> TemplateError {
    TemplateError::Exec(message.into())
}
