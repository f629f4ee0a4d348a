//! For tests only: an API server in memory, a real one if it is installed, and answers that a real one
//! gave.

pub mod credentials;
#[cfg(test)]
mod real;
pub mod real_server;
#[cfg(test)]
mod recorded;
pub mod stand_in;
