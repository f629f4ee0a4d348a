//! Recipes: what imgctl ships to make cluster images from, and the folder that choices among them become.
//!
//! [`catalogue`] reads the recipes that the library carries, [`choice`] decides which versions a request means, [`compose`]
//! turns them into the files of a build context, and [`init`] does all of it. Only [`chart`], [`init`] and [`write`] touch the
//! disk. Must not print, know the command
//! line, or build anything.

pub mod catalogue;
pub mod chart;
pub mod choice;
mod compose;
pub mod composition;
pub mod declaration;
mod documents;
pub mod init;
mod kubefile;
mod record;
#[cfg(test)]
mod tests;
pub mod write;

/// A file of a folder: its path below it, its mode and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub path: String,
    pub mode: u32,
    pub bytes: Vec<u8>,
}

impl File {
    /// An ordinary text file.
    pub(crate) fn text(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), mode: 0o644, bytes: text.into().into_bytes() }
    }

    /// A script.
    pub(crate) fn script(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { mode: 0o755, ..Self::text(path, text) }
    }
}
