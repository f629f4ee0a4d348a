//! Image editing without building: images that are merged, rebased, annotated, or shipped as a
//! difference.
//!
//! Works on the store alone and reuses layers wherever this yields the right files. The output
//! depends only on the input: no clock, no random names. Must not depend on the command line.

pub mod annotate;
pub mod bundle;
pub mod check;
mod deltas;
mod document;
pub mod merge;
pub mod rebase;

pub use document::{Edited, write_index};
