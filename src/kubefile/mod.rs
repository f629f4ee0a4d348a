//! The Kubefile language: text to syntax tree, words, ignore patterns, lint. Pure: must not open files.
