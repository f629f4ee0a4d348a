//! `imgctl agent --stdio`, spoken to as the controller does: a real process, its pipes, HTTP/2.

mod conversation;
mod host;
mod registry;
mod stdio;
