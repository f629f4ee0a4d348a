//! Bad input and faults, against the built binary: killed commands, commands side by side, hostile
//! archives and contexts, full disks, and what the binary needs of its surroundings.
//!
//! Whatever happens, the store must stay sound, and nothing may be written where it does not
//! belong. The long loops run with `IMGCTL_TEST_LONG=1`.

pub(crate) mod archive;
mod binary;
mod builds;
mod cache_crash;
mod concurrency;
mod crash;
mod images;
mod layers;
mod names;
mod power;
mod space;
pub(crate) mod support;
mod templates;
