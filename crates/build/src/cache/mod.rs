//! The build cache that travels: the records of steps, with the layers that they name, as an artifact
//! in a registry or in a directory.
//!
//! A record is a hint, never content, unless the user trusts who wrote it: everybody else's layers are
//! verified before use. Must not know
//! Kubefiles, steps or how layers are made.

mod artifact;
pub(crate) mod directory;
pub(crate) mod export;
mod gha;
pub(crate) mod import;
pub(crate) mod inline;
pub(crate) mod maintain;
pub mod options;
pub(crate) mod place;
pub mod places;
pub(crate) mod records;
pub(crate) mod registry;
pub(crate) mod remote;
mod signed;

pub use export::Exported;
pub use gha::GhaCache;
pub use maintain::{Listing, Pruned, Record, list, list_store, prune, prune_store};
pub use options::{CacheOptions, Limits, Mode, Source, Target, Trust};
pub use places::Place;
pub use signed::Signer;
