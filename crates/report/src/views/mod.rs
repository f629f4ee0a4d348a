//! The pages' content, a file or folder for each kind of report: values of the model to markup.

pub(crate) mod cluster;
pub(crate) mod image;
pub(crate) mod parts;
pub(crate) mod plan;
pub(crate) mod run;
