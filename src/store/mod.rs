//! The content store of one machine.
