//! What is done to clusters: lists of steps over hosts, planned, journalled, executed.
//!
//! The top of the logic; must not print, prompt or read the environment.
