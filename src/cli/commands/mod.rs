//! The verbs, those of one kind in one file: their arguments (the doc comments are the help), one call,
//! presentation.

pub(crate) mod about;
pub(crate) mod agent;
pub(crate) mod archives;
pub(crate) mod attach;
pub(crate) mod blobs;
pub(crate) mod build;
pub(crate) mod build_args;
pub(crate) mod build_cache;
pub(crate) mod build_embedding;
pub(crate) mod build_options;
pub(crate) mod build_output;
mod build_overrides;
mod build_reports;
pub(crate) mod bundle;
mod bundle_verify;
pub(crate) mod cache;
pub(crate) mod cluster;
pub(crate) mod diff;
pub(crate) mod edit;
pub(crate) mod files;
pub(crate) mod history;
pub(crate) mod hosts;
pub(crate) mod images;
pub(crate) mod inplace;
pub(crate) mod inspect;
pub(crate) mod keys;
pub(crate) mod login;
pub(crate) mod manifest;
mod manifest_members;
pub(crate) mod mounts;
pub(crate) mod preview;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod records;
pub(crate) mod registry;
pub(crate) mod sign;
#[cfg(feature = "testing")]
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod upgrade;
pub(crate) mod working;
