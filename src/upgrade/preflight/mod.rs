//! What must be so before an upgrade begins: checks with stable ids, each a pure function of what
//! was observed and planned.
//!
//! Must not ask hosts nor the API.

mod api;
mod applications;
mod certificates;
mod corefile;
mod etcd;
mod hosts;
mod kubelet;
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

pub(crate) use manifests::rewritten;
pub(crate) use table::{check_skips, run};
