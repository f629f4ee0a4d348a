//! The Clusterfile (`apps.sealos.io/v1beta1`): several documents that say what a cluster is to be
//! and, below `status`, what has become of it. Format and rules: docs/clusterfile.md.
//!
//! Text to value and back. Must not know where files lie, nor reach hosts or images.

mod documents;
mod fields;
mod hosts;
mod login;
mod model;
mod node;
mod read;
mod read_status;
mod template;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use documents::MAX_LENGTH;
pub(crate) use hosts::Surroundings;
pub(crate) use login::{SecretSource, Ssh};
#[allow(unused_imports, reason = "what pipelines write is read here only")]
pub(crate) use model::{
    ClusterDocument, Clusterfile, CommandCondition, Condition, HostGroup, Mount, Phase, Status,
};
pub(crate) use read::{read, read_additions, read_stored};
pub(crate) use template::{Values, escape, render};
