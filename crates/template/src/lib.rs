//! Templates in the Go dialect, with the functions of cluster images and of Helm charts. Must not
//! depend on the source of a text, or on files, environment or clock: the same text and values always
//! give the same result.
//!
//! [`Template`] is one text on its own; [`Engine`] is the templates of a chart, which call each other.
//! Both have the same evaluator and one table of functions.

mod budget;
mod dialect;
pub mod encode;
mod engine;
mod eval;
mod functions;
mod helm;
mod patterns;
mod print;
mod source;
mod toml;
pub mod value;
pub mod yaml;

pub use dialect::{CHART_STACK, Dialect, Missing};
pub use engine::{Engine, Template};
pub use print::float as go_float;
pub use value::Value;
