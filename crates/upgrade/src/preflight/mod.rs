//! Preconditions of an upgrade: checks with stable IDs, each a pure function of the observation and
//! the plan.
//!
//! Must not query hosts or the API.

mod corefile;
mod etcd;
mod gates;
mod hosts;
mod look;
mod manifests;
mod nodes;
mod notes;
mod runtimes;
#[cfg(test)]
mod settings_tests;
mod table;
#[cfg(test)]
mod tests;
mod workloads;

pub use table::may_be_skipped;
pub(crate) use table::{check_skips, run};
