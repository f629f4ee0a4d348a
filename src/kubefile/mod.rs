//! The Kubefile language: parsing, word expansion, ignore patterns and lint.
//!
//! A Kubefile is a Dockerfile and follows BuildKit's Dockerfile reference. Everything here is a
//! pure function of its input. Must not open files, depend on images or build anything.

pub(crate) mod ast;
#[cfg(test)]
mod buildkit;
pub(crate) mod check;
pub(crate) mod diagnostic;
mod directive;
pub(crate) mod expand;
mod flags;
pub(crate) mod glob;
mod health;
mod heredoc;
pub(crate) mod ignore;
mod instruction;
mod lexer;
mod mount;
pub(crate) mod parser;
mod pattern;
pub(crate) mod predefined;
pub(crate) mod problem;
mod run;
pub(crate) mod span;
pub(crate) mod suggest;
mod words;

pub(crate) use parser::{parse, parse_instruction};
