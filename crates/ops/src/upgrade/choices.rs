//! The choices of an operator, and which of them were given explicitly.

use imgctl_base::error::{IoContext, Result};
use imgctl_upgrade::document::{Choices, HopMode};

/// Choices for an upgrade or a rollback, with the options that set them.
#[derive(Clone, Debug, Default)]
pub struct GivenChoices {
    pub choices: Choices,
    /// Whether to go through several images; by default, if several are given.
    pub hop: Option<HopMode>,
    /// Each given option, with the member of [`Choices`] that it sets.
    pub options: Vec<(&'static str, &'static str)>,
}

/// Checks that a host which has just failed cannot pass.
const OF_A_FAILED_HOST: [&str; 7] = [
    "etcd",
    "leftovers",
    "mixed-versions",
    "node-not-ready",
    "static-manifests",
    "unavailable-budget",
    "unhealthy-workloads",
];

impl GivenChoices {
    /// Returns the choices for rolling back a host that failed in an upgrade with `choices`.
    pub(crate) fn of_failed(choices: &Choices) -> Self {
        let mut skip_checks = choices.skip_checks.clone();
        skip_checks.extend(OF_A_FAILED_HOST.map(str::to_owned));
        let choices = Choices {
            max_unavailable: choices.max_unavailable.clone(),
            kubelet_swap: choices.kubelet_swap,
            drain_timeout_seconds: choices.drain_timeout_seconds,
            drain_on_timeout: choices.drain_on_timeout,
            delete_emptydir_data: choices.delete_emptydir_data,
            force_unmanaged: choices.force_unmanaged,
            keep_containers: choices.keep_containers,
            skip_checks,
            ..Choices::default()
        };
        Self { choices, ..Self::default() }
    }

    /// Returns the choices for an upgrade through this number of rootfs images.
    pub fn decide(&self, images: usize) -> Choices {
        let usual = if images > 1 { HopMode::Auto } else { HopMode::Single };
        Choices { hop: self.hop.unwrap_or(usual), ..self.choices.clone() }
    }

    /// Returns the given options that differ from the recorded choices.
    pub fn against(&self, decided: &Choices, images: usize) -> Result<Vec<&'static str>> {
        let value = |choices: &Choices| {
            serde_json::to_value(choices).doing(|| "cannot compare options".to_owned())
        };
        let (wanted, decided) = (value(&self.decide(images))?, value(decided)?);
        let differs =
            |(_, member): &&(&'static str, &'static str)| wanted[*member] != decided[*member];
        Ok(self.options.iter().filter(differs).map(|(name, _)| *name).collect())
    }
}
