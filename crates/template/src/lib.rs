//! Templates in the Go dialect, with the functions of cluster images and of Helm charts. Must not
//! depend on the source of a text, or on files, environment or clock: the same text and values always
//! give the same result.
//!
//! [`Template`] is one text on its own; [`Engine`] is the templates of a chart, which call each other.
//! Both have the same evaluator and one table of functions.

mod dialect;
pub mod encode;
mod engine;
mod eval;
mod functions;
mod limits;
mod print;
mod printf;
mod scalar;
mod source;
mod template;
mod toml;
pub mod value;
pub mod yaml;

pub use dialect::{Dialect, Missing};
pub use engine::Engine;
pub use limits::CHART_STACK;
pub use template::Template;
pub use value::Value;
