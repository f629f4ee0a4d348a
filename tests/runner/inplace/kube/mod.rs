//! API servers of the tests: one in memory, or a real one where `KUBEBUILDER_ASSETS` names it.

pub(crate) mod client;

pub(crate) use imgctl_kube::{api, testing};
