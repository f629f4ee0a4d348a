//! Templates in the Go dialect, with the functions cluster images use. Must not depend on the
//! source of a text, or on files, environment or clock: the same text and values always give the
//! same result.

mod functions;
pub mod go;
pub mod semver;
pub mod toml;
pub mod value;
pub mod yaml;

pub use functions::of as functions;
pub use go::{Dialect, Missing, Template};
pub use value::Value;
