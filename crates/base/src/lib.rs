//! What every other crate stands on: errors and their kinds, progress, secrets, the OCI image model,
//! semantic versions, JSON schemas, settings of images, sizes, suggestions, characters that are unsafe to show or to paste, and file system primitives
//! that survive crashes and hostile names.
//!
//! Must not depend on any other crate of the workspace.

pub mod address;
pub mod error;
pub mod fs;
pub mod image;
pub mod place;
pub mod progress;
pub mod quote;
pub mod re2;
pub mod re2_size;
pub mod schema;
pub mod secret;
pub mod semver;
pub mod settings;
pub mod size;
pub mod suggest;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod wire;
pub mod workers;
