//! Certificates of a real etcd with TLS on hosts of the test bed: renewed by the timers of the hosts, and
//! their authority rotated, while clients work.

mod client;
mod renewal;
mod rotation;
