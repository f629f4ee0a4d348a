//! `imgctl inplace` as its user runs it: against an API server in memory that behaves as the real
//! one was seen to, or against a real one where `KUBEBUILDER_ASSETS` names it. Kubelets and
//! controllers are played ([`actors`]).

mod actors;
mod care;
mod cluster;
mod contract;
mod kube;
mod losses;
mod registries;
mod runs;
mod templates;
mod tutorial;
