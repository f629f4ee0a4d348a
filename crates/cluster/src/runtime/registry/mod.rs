//! The embedded registry on its hosts: users, data directory, start, and a check that every image
//! is served. Only for registry hosts; other hosts get a name for it.
//!
//! Its content is already in place: syncing applied the registry layers to `<root>/registry`.

mod lines;
mod steps;

#[cfg(test)]
mod tests;

pub use steps::{clean_steps, registry_steps};
