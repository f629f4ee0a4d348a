//! Templates in the Go dialect, with the functions cluster images use. Must not depend on the
//! source of a text, or on files, environment or clock: the same text and values always give the
//! same result.

mod functions;
pub(crate) mod go;
pub(crate) mod semver;
pub(crate) mod toml;
pub(crate) mod value;
pub(crate) mod yaml;

pub(crate) use functions::of as functions;
pub(crate) use go::{Dialect, Missing, Template};
pub(crate) use value::Value;
