//! New images for running Pods, without rescheduling them.
//!
//! Must not print, prompt or read the environment.
