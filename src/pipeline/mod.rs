//! Operations on clusters: lists of steps over hosts that are planned, recorded in a journal, and
//! executed.
//!
//! The top layer of the logic. Must not print, prompt or read the environment.

pub(crate) mod bootstrap;
pub(crate) mod change;
pub(crate) mod check;
pub(crate) mod commands;
pub(crate) mod event;
pub(crate) mod executor;
pub(crate) mod files;
pub(crate) mod guest;
pub(crate) mod interrupt;
pub(crate) mod journal;
pub(crate) mod look;
pub(crate) mod means;
pub(crate) mod members;
pub(crate) mod nodes;
pub(crate) mod record;
pub(crate) mod redact;
pub(crate) mod renew;
pub(crate) mod reset;
pub(crate) mod simulation;
pub(crate) mod status;
pub(crate) mod step;
pub(crate) mod uninstall;
