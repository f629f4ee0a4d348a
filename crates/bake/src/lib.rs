//! Bake files: what several builds have in common and where they differ, in the language of `docker buildx bake`
//! (HCL and JSON) and in compose files.
//!
//! Reads texts and yields targets with all their settings. Must not know how images are built, which flags a
//! build has, files or the environment: a caller passes texts and a function that looks up variables.

mod budget;
mod compose;
mod definitions;
mod env_file;
mod eval;
mod format;
mod functions;
mod overrides;
mod resolve;
mod spec;
mod target;
mod value;

pub use definitions::{Form, Source};
pub use env_file::dotenv;
pub use overrides::Override;
pub use resolve::{Bake, Variable, read};
pub use spec::Spec;
pub use target::Target;
