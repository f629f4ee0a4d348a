//! Functions that templates can call, as one table of name, types and body, with one file for each
//! group. The semantics are those of Go, sprig (v3), sealos and Helm.
//!
//! Types are `s` a string, `i` an integer, `b` a boolean, `m` a map, `l` a list, `*` any value; `+`
//! repeats the last type. Charts have their arguments checked as in Go; elsewhere they are converted.
//! Functions that are random or depend on time exist for charts alone, with fixed results: the
//! placeholders must not pass for passwords and keys in the files of a cluster.

mod call;
mod collections;
mod encoding;
mod environment;
mod fixed;
mod format;
mod net;
mod numbers;
mod strings;
#[cfg(test)]
mod tests;
mod values;
mod versions;

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use crate::dialect::Dialect;
use crate::source::Fault;
use crate::value::Value;
use call::{Body, Call, Group};

pub(crate) use call::typed;

type Table = HashMap<&'static str, (&'static str, Body)>;

const SPRIG: [Group; 6] = [
    collections::GROUP,
    encoding::GROUP,
    numbers::GROUP,
    strings::GROUP,
    values::GROUP,
    versions::GROUP,
];

static CLUSTER_IMAGE: LazyLock<Table> = LazyLock::new(|| table(&SPRIG, &[net::GROUP]));
static CHART: LazyLock<Table> = LazyLock::new(|| table(&SPRIG, &[fixed::GROUP]));
static FORMAT: LazyLock<Table> = LazyLock::new(|| table(&[], &[format::GROUP]));

fn table(groups: &[Group], more: &[Group]) -> Table {
    let entries = [values::GO].iter().chain(groups).chain(more).copied().flatten();
    entries.map(|(name, types, body)| (*name, (*types, *body))).collect()
}

/// Calls a function by name. The message of an error does not include the function name.
pub(crate) fn call(
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
    let given = || environment.and_then(|_| environment::find(name));
    let Some((types, body)) = table.get(name).or_else(plain).copied().or_else(given) else {
        let hint = format!("imgctl has Go's own functions and most of sprig, not `{name}`");
        return Err(Fault::from(format!("function {name:?} not defined")).hint(hint));
    };
    Ok(body(&Call::new(dialect, environment, (name, types), arguments)?)?)
}
