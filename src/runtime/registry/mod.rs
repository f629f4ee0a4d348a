//! The embedded registry on its hosts: its users, its data directory, its start, and the proof
//! that every image answers. Registry hosts only; other hosts get a name for it.
//!
//! Its content is there already: syncing applied the registry layers to `<root>/registry`.

mod lines;
mod steps;
mod unit;

#[cfg(test)]
mod tests;

pub(crate) use steps::{clean_steps, registry_steps};
