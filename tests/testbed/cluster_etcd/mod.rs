//! Clusters of real etcd on hosts of the test bed: a whole life of one, and every way to interrupt it.

mod encrypted;
mod kills;
mod life;
mod local;
pub(crate) mod support;
