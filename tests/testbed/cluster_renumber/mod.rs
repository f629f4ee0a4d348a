//! Hosts of a running cluster get other addresses: real etcd on hosts of the test bed, each with a
//! second address in the bed's network.

mod etcd;
mod kills;
pub(crate) mod support;
