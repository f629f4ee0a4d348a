//! Builds an image from a Kubefile: plan, steps, cache, output.
//!
//! Must not print or read the environment: all inputs come in [`Options`], and all messages go to a
//! `Reporter`.

mod archive;
pub(crate) mod base_image;
mod cache_mounts;
mod check;
mod chmod;
mod context;
mod copy;
mod download;
pub(crate) mod embedding;
mod engine;
mod file;
mod image_tree;
mod instructions;
mod items;
mod layer_step;
pub(crate) mod options;
mod output;
mod plan;
pub(crate) mod run;
mod run_mounts;
mod run_step;
mod scope;
mod squash;
mod stage;
mod stat_cache;
mod step_cache;
#[cfg(test)]
mod tests;
mod transfer_step;

pub(crate) use check::check;
pub(crate) use engine::build;
pub(crate) use options::{Built, Format, Options};
