//! Container images inside cluster images: found in contexts, taken from a real registry, written as
//! registry layers, and served by Debian's docker-registry.

mod cached;
mod found;
mod layers;
mod lock;
mod served;
pub(crate) mod support;
mod update;
