//! Upgrades of clusters: observed, planned, carried out host by host, and taken back.
//!
//! [`document`] is the plan as a value, a pure function of what was observed; pipelines are made
//! from it and from nothing else, so that a resumed upgrade is the one that was begun. Must not
//! print, prompt or read the environment.

pub(crate) mod document;
