//! What must be so before an upgrade begins: checks with stable ids, each a pure function of what
//! was observed and planned.
//!
//! Must not ask hosts nor the API.

mod api;
mod applications;
mod certificates;
mod etcd;
mod hosts;
mod look;
mod nodes;
mod notes;
mod runtimes;
mod table;
#[cfg(test)]
mod tests;
mod workloads;

pub(crate) use table::{check_skips, run};
