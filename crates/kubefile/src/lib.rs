//! The Kubefile language: parsing, word expansion, ignore patterns and lint.
//!
//! A Kubefile is a Dockerfile and follows BuildKit's Dockerfile reference. Everything here is a
//! pure function of its input. Must not open files, depend on images or build anything.

pub mod ast;
#[cfg(test)]
mod buildkit_tests;
pub mod check;
pub mod diagnostic;
pub mod expand;
pub mod expose;
pub mod glob;
mod health;
mod heredoc;
pub mod ignore;
mod instruction;
mod lexer;
mod mount;
pub mod parser;
mod reader;
mod words;

pub use parser::{parse, parse_instruction, parse_leniently};
