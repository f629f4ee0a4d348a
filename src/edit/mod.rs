//! Image surgery: images made out of images without building: merged, rebased, annotated, shipped
//! as a difference.
//!
//! Works on the store alone and re-uses layers wherever that gives the right files. What comes out
//! is a function of what went in: no clock, no random names. Must not know the command line.

pub(crate) mod annotate;
pub(crate) mod bundle;
mod config;
mod document;
pub(crate) mod merge;
mod overlap;
pub(crate) mod rebase;

pub(crate) use document::{Edited, write_index};
