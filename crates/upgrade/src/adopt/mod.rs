//! Adoption: what is known of a cluster that another program made, or whose controller was lost,
//! and whether imgctl can carry it on.
//!
//! [`read`] asks hosts and API and changes nothing, [`findings`] judges the answers, [`clusterfile`]
//! makes the Clusterfile. Must not depend on how the result is shown or stored.

pub mod clusterfile;
mod control_plane;
pub mod findings;
mod k3s;
#[cfg(test)]
mod k3s_tests;
pub mod read;
pub mod reading;
pub mod steps;
#[cfg(test)]
mod tests;
