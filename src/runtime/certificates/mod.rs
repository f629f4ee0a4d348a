//! A Kubernetes cluster's certificates: authorities, signed certificates, kubeconfigs and expiry
//! dates.
//!
//! Every field matches what kubeadm would generate. Must not depend on hosts: values in, PEM out.
//! The authorities are stored in a directory of the controller.

pub(crate) mod authority;
pub(crate) mod control_plane;
pub(crate) mod inspect;
pub(crate) mod key;
pub(crate) mod kubeconfig;
pub(crate) mod leaf;
pub(crate) mod pki;
#[cfg(test)]
mod tests;
pub(crate) mod validity;
