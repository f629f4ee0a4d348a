//! The Kubefile language: text to syntax tree, words, ignore patterns, lint.
//!
//! A Kubefile is a Dockerfile; the rules are those of BuildKit's Dockerfile reference. Everything
//! here is a pure function of its input: it must not open files, know images or build anything.

pub(crate) mod ast;
pub(crate) mod span;
