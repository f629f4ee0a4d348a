//! Functions that templates can call, as one table of name, types and body, with one file for each
//! group. The semantics are those of Go, sprig (v3), sealos and Helm.
//!
//! What a function can make of its arguments is part of its entry (`growth.rs`): it is counted on the budget of
//! the rendering before the function runs.
//!
//! Types are `s` a string, `i` an integer, `b` a boolean, `m` a map, `l` a list, `*` any value; `+`
//! repeats the last type. Charts have their arguments checked as in Go; elsewhere they are converted.
//! Functions that are random or depend on time exist for charts alone, with fixed results: the
//! placeholders must not pass for passwords and keys in the files of a cluster.

#[cfg(test)]
mod attack;
mod call;
mod collections;
mod decimal;
mod encoding;
mod environment;
mod fixed;
mod format;
mod growth;
mod net;
mod numbers;
mod regexes;
mod strings;
#[cfg(test)]
mod tests;
mod urls;
mod values;
mod versions;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use crate::budget::{Budget, Size};
use crate::dialect::Dialect;
use crate::print::to_text;
use crate::source::Fault;
use crate::value::Value;
use call::{Body, Call, Group};
use growth::Growth;

pub(crate) use call::typed;

/// Types, growth and body of a function.
type Entry = (&'static str, Growth, Body);
type Table = HashMap<&'static str, Entry>;

const SPRIG: [Group; 7] = [
    collections::GROUP,
    encoding::GROUP,
    numbers::GROUP,
    regexes::GROUP,
    strings::GROUP,
    values::GROUP,
    versions::GROUP,
];

static CLUSTER_IMAGE: LazyLock<Table> = LazyLock::new(|| table(&SPRIG, &[net::GROUP]));
static CHART: LazyLock<Table> = LazyLock::new(|| table(&SPRIG, &[fixed::GROUP]));
static FORMAT: LazyLock<Table> = LazyLock::new(|| table(&[], &[format::GROUP]));
static ENVIRONMENT: LazyLock<Table> = LazyLock::new(|| table(&[], &[environment::GROUP]));

fn table(groups: &[Group], more: &[Group]) -> Table {
    let entries = [values::GO].iter().chain(groups).chain(more).copied().flatten();
    entries.map(|(name, types, growth, body)| (*name, (*types, *growth, *body))).collect()
}

/// Calls a function by name. The message of an error does not include the function name.
pub(crate) fn call(
    budget: &mut Budget,
    dialect: Dialect,
    environment: Option<&BTreeMap<String, String>>,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Fault> {
    let table = match dialect {
        Dialect::ClusterImage => &CLUSTER_IMAGE,
        Dialect::Format => &FORMAT,
        Dialect::Chart => &CHART,
    };
    // `mustX` is the variant of `X` that fails; here every variant fails.
    let plain = || {
        let mut plain = name.strip_prefix("must")?.to_owned();
        plain.get_mut(..1)?.make_ascii_lowercase();
        table.get(plain.as_str())
    };
    let given = || environment.and_then(|_| ENVIRONMENT.get(name).copied());
    let Some((types, growth, body)) = table.get(name).or_else(plain).copied().or_else(given) else {
        let hint = format!("imgctl has Go's own functions and most of sprig, not `{name}`");
        return Err(Fault::from(format!("function {name:?} not defined")).hint(hint));
    };
    begin(budget, growth, arguments)?;
    if !dialect.is_typed() {
        let texts = call::made_texts(types, arguments).map(std::slice::from_ref);
        budget.once(texts.map(growth::full::<48, 2>).fold(0, usize::saturating_add))?;
    }
    let value =
        body(&Call::new(dialect, environment, &budget.patterns, (name, types), arguments)?)?;
    if let Growth::Fresh(_) | Growth::Searches(_) = growth {
        budget.made(Size::of(std::slice::from_ref(&value)).bytes())?;
    }
    Ok(value)
}

/// Counts what a call will take, or refuses it.
fn begin(budget: &mut Budget, growth: Growth, arguments: &[Value]) -> Result<(), Fault> {
    budget.steps(1)?;
    match growth {
        Growth::Flat => {
            let read = arguments.iter().map(|value| match value {
                Value::Text(text) => text.len(),
                _ => 0,
            });
            budget.work(read.sum())
        }
        Growth::Fresh(bound) => budget.once(bound(arguments)),
        Growth::Searches(bound) => {
            budget.once(bound(arguments))?;
            let pattern = match arguments.first() {
                Some(Value::Text(pattern)) => Cow::Borrowed(&**pattern),
                Some(other) => Cow::Owned(to_text(other)),
                None => Cow::Borrowed(""),
            };
            let length = growth::length(arguments, 1);
            let steps = budget.patterns.steps(&pattern, length);
            // Those with a third argument search for all: from each match, a search may read to the end.
            let times = if arguments.len() > 2 { 1 + length / 1024 } else { 1 };
            budget.steps(steps.saturating_mul(u64::try_from(times).unwrap_or(u64::MAX)))
        }
        Growth::Shares(bound) => {
            let bytes = bound(arguments);
            budget.once(bytes)?;
            budget.made(bytes)
        }
        Growth::Pairs(bound) => {
            let items = bound(arguments);
            budget.once(items)?;
            budget.made(items)?;
            // Each of the items is compared with each, with all that is in them.
            let all = Size::of(arguments).bytes();
            budget.once(all)?;
            budget.work(all.saturating_mul(items / 64))
        }
    }
}
