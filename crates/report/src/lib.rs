//! Reports as one HTML file each: of an image, a plan, a run, a cluster; and the pages of the console.
//!
//! A report is a value of [`model`], which others collect, and a page that is a function of that value
//! alone. The value as JSON has a published schema (`docs/schemas/`). Pages need no network and no
//! script to be read: the script that a page carries draws charts and searches in lists.
//!
//! All text is hostile. Templates escape what they insert, scripts only ever set `textContent`, and the
//! Content-Security-Policy of a page admits its own style and script by their hashes and nothing else.
//! Must not read files, clocks or the environment, and must not know where data come from.

pub mod console;
mod escape;
mod links;
mod loaded;
pub mod model;
mod page;
pub mod release_note;
mod report;
mod text;
mod views;

pub use loaded::Loaded;
pub use page::Rendered;
pub use report::Report;

#[cfg(test)]
mod tests;
