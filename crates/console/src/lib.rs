//! The console: a web page on this machine that shows the store, clusters, runs and plans.
//!
//! It shows the data of reports (`report`, `transfer::describe`, `ops::report`) and changes nothing: there is
//! no request that could. It listens on loopback, admits who has its token, and answers nobody whose
//! browser was sent by another page ([`guard`]). It serves no file by its name on this machine: images'
//! files are looked up in the tables of images, runs among the listed ones. Must not know the command line.
//!
//! Without a client it does nothing at all: no timer runs. A page that follows a run costs one look at the
//! length of its journal a second, and the run nothing.

mod answer;
mod browse;
mod changes;
mod events;
mod guard;
mod reply;
mod routes;
mod server;
mod source;
#[cfg(test)]
mod tests;

pub use server::{Console, Options};
