//! Shared state of a plan's actions, and the configuration as seen on the host that they run on.

use serde_json::Value;

use crate::action::Site;
use crate::certificates::{pki::Pki, validity::Validity};
use crate::kubeadm::config::{Config, Inputs};
use crate::kubeadm::{host_state::HostState, version::Version};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::ClusterContext;

/// Maximum size of a configuration file, in bytes. kubeadm has a similar limit.
/// Names that were added to the API's certificate, below the state directory.
pub(super) const ALT_NAMES: &str = "etc/alt-names";
const LONGEST_FILE: u64 = 1 << 20;

/// Settings that actions capture.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) version: Version,
    pub(super) validity: Validity,
}

impl Settings {
    /// Returns the configuration of the host that the action runs on. Reads `etc/kubeadm.yml` on
    /// that host, where it is rendered with the host's variables.
    pub(super) fn config(&self, site: &Site<'_>) -> Result<(HostState, Config)> {
        self.config_with(site, None)
    }

    /// Like [`Self::config`], with the KubeletConfiguration of a backup.
    pub(super) fn config_with(
        &self,
        site: &Site<'_>,
        kubelet: Option<&Value>,
    ) -> Result<(HostState, Config)> {
        let state = HostState::observe(site)?;
        let path = format!("{}/etc/kubeadm.yml", site.context.paths.rootfs());
        let file = site.agent.read_file(&path, LONGEST_FILE)?;
        let text = file.map(|bytes| text_of(bytes, &path, site.agent.host())).transpose()?;
        let config = Config::build(
            site.context,
            site.host,
            &state,
            &Inputs {
                version: &self.version,
                image: text.as_deref(),
                kubelet,
                alt_names: &alt_names(site.context)?,
                validity: self.validity,
            },
        )?;
        Ok((state, config))
    }

    /// Returns the cluster's authorities; creates missing ones.
    pub(super) fn pki(&self, context: &ClusterContext, config: &Config) -> Result<Pki> {
        Pki::open(&context.state, config.algorithm()?, self.validity.authorities)
    }
}

fn text_of(bytes: Vec<u8>, path: &str, host: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::bad_content(format!("{host}: {path} is not text")))
}

/// Returns the names that `imgctl cert --alt-names` added, one per line.
pub(super) fn alt_names(context: &ClusterContext) -> Result<Vec<String>> {
    let text = context.state.read(ALT_NAMES, LONGEST_FILE)?.unwrap_or_default();
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Returns the path of a file in the host's directory of generated configuration.
pub(super) fn etc(context: &ClusterContext, name: &str) -> String {
    format!("{}/{name}", context.paths.etc())
}
