//! A Kubernetes cluster's certificates: authorities, what they sign, kubeconfigs, what runs out when.
//!
//! Field by field what kubeadm would make. Must not know hosts: values in, PEM out; the
//! authorities are kept in a directory of the controller.

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
