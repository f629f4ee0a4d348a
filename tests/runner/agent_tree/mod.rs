//! What the agent does on a host: commands that outlive everything, and trees of images.

mod checkout;
mod execution;
mod support;
