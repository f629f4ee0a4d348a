//! The certificates of a cluster that its controller keeps.

use std::path::Path;

use crate::session::Session;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_cluster::runtime::certificates::inspect::{self, Certificate};
use imgctl_cluster::runtime::certificates::kubeconfig;

/// Returns the certificates, with their files below the cluster's directory.
pub fn list(cluster: &str, session: &Session<'_>) -> Result<Vec<(&'static str, Certificate)>> {
    let state = session.state(cluster)?;
    let mut found = Vec::new();
    for file in ["pki/ca.crt", "pki/etcd/ca.crt", "pki/front-proxy-ca.crt", "etc/admin.conf"] {
        if let Some(certificate) = read(&state.directory().join(file))? {
            found.push((file, certificate));
        }
    }
    if found.is_empty() {
        let what = format!("{} contains no certificates", state.directory().display());
        return Err(Error::not_found(what).hint(
            "only clusters that imgctl or sealos made with kubeadm keep certificates with their \
             controller",
        ));
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Option<Certificate>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).path("read", path),
    };
    let text = if path.extension().is_some_and(|end| end == "conf") {
        kubeconfig::read(&text)?.certificate
    } else {
        Some(text)
    };
    text.map(|text| inspect::read(&text)).transpose()
}
