//! The Clusterfile (`apps.sealos.io/v1beta1`): several documents that describe the desired cluster
//! and, below `status`, its current state. Format and rules: docs/clusterfile.md.
//!
//! Converts text to values and back. Must not depend on file locations, hosts or images.

mod documents;
mod fields;
mod hosts;
mod login;
mod model;
mod read;
mod template;
#[cfg(test)]
mod tests;
mod write;

pub use documents::MAX_LENGTH;
pub use hosts::Surroundings;
pub use login::{SecretSource, Ssh};
#[allow(unused_imports, reason = "what pipelines write is read here only")]
pub use model::{
    Adopted, ClusterDocument, Clusterfile, CommandCondition, Condition, FAILED, HostGroup, Mount,
    Phase, Status, is_confidential,
};
pub use read::{read, read_additions, read_stored};
pub use template::{Values, escape, render};
