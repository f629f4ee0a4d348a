//! Builds an image from a Kubefile: plan, steps, cache, output.
//!
//! Must not print or read the environment: all inputs come in [`Options`], and all messages go to a
//! `Reporter`.

mod addresses;
mod archive;
mod attest;
pub mod base_image;
mod checked;
mod chmod;
mod context;
mod context_files;
mod copy;
mod copy_sources;
pub mod deliver;
mod download;
pub mod embedding;
mod engine;
mod file;
mod git;
mod imported_step;
mod instructions;
mod items;
mod layer_step;
mod lint;
mod local_paths;
pub mod lock_file;
mod materials;
pub mod mirrors;
pub mod options;
pub mod outline;
mod output;
mod percent;
mod plan;
pub mod publisher;
mod run_mounts;
mod run_step;
mod scope;
mod shared;
mod ssh_mount;
mod stage;
mod step_cache;
#[cfg(test)]
mod tests;
mod turns;
pub mod update;

pub use base_image::BaseImages;
pub use checked::Checked;
pub use engine::build;
pub use git::commit_time;
pub use lint::check;
pub use local_paths::LocalPaths;
pub use options::{Built, Format, Options, StepCounts};
pub use turns::Turns;
