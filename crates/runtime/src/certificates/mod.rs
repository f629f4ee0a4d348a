//! A Kubernetes cluster's certificates: authorities, signed certificates, kubeconfigs and expiry
//! dates.
//!
//! Every field matches what kubeadm would generate. Must not depend on hosts: values in, PEM out.
//! The authorities are stored in a directory of the controller.

pub(crate) mod again;
pub mod authority;
pub mod control_plane;
pub mod declared;
pub mod host_kubeconfig;
pub mod inspect;
pub(crate) mod kubeconfig;
pub mod pki;
pub mod rotation;
#[cfg(test)]
mod tests;
pub mod validity;
