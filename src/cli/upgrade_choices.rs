//! The flags by which an operator says how an upgrade is to go.

use clap::{Args, ValueEnum};

use crate::cli::duration;
use crate::error::{Error, Result};
use crate::runtime::upgrade::Renewal;
use crate::upgrade::document::{
    Choices, HopMode, KubeletSwap, OnFailure, OnTimeout, PauseAfter, Strategy,
};

/// How hosts are moved, on the way there and on the way back. All are optional, so that it can be
/// told what was said and what was not.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Upgrade options")]
pub(crate) struct MovingArgs {
    /// Workers per batch: a number or 10% [default: 1]
    #[arg(long, value_name = "N")]
    batch: Option<String>,

    /// Workers that may be out of service at once: a number or 10% [default: 1]
    #[arg(long, value_name = "N")]
    max_unavailable: Option<String>,

    /// Drain a Node before its kubelet is swapped, or swap it under its Pods [default: drain]
    #[arg(long, value_enum)]
    kubelet_swap: Option<KubeletSwapArg>,

    /// How long the Pods of a Node get to go elsewhere; 0: as long as they want [default: 10m]
    #[arg(long, value_name = "DURATION")]
    drain_timeout: Option<String>,

    /// What becomes of Pods that do not go in time [default: abort]
    #[arg(long, value_enum)]
    drain_on_timeout: Option<OnTimeoutArg>,

    /// Evict Pods with emptyDir volumes, too: what is in those is lost
    #[arg(long)]
    delete_emptydir_data: bool,

    /// Evict Pods that nothing makes again, too
    #[arg(long)]
    force_unmanaged: bool,

    /// Go on in spite of what this check finds (may be repeated)
    #[arg(long, value_name = "CHECK")]
    skip_check: Vec<String>,

    /// Refuse when more containers than this would restart outside of drained Nodes
    #[arg(long, value_name = "N")]
    max_restarts: Option<u64>,

    /// The same as --max-restarts 0
    #[arg(long, conflicts_with = "max_restarts")]
    no_restart: bool,

    /// Workers of batches that may fail before no further one is begun; the upgrade stops behind them [default: 0]
    #[arg(long, value_name = "N")]
    max_failed: Option<usize>,

    /// How long a host must stay well before the next is touched: 30s, 5m [default: 0]
    #[arg(long, value_name = "DURATION")]
    bake: Option<String>,
}

/// How an upgrade is to go.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Upgrade options")]
pub(crate) struct ChoiceArgs {
    /// Move the hosts that are there, or have spares join and the old hosts leave [default: in-order]
    #[arg(long, value_enum)]
    strategy: Option<StrategyArg>,

    /// In the strategy `replace`: a spare, and the host that it takes over from (may be repeated)
    #[arg(long = "spare", value_name = "NEW=OLD")]
    spares: Vec<String>,

    /// Worker that goes alone before the others (may be repeated), or how many; `none` for no canary
    #[arg(long, value_name = "HOST|N|none")]
    canary: Vec<String>,

    /// Go one version further, or through all images given, one after the other
    #[arg(long, value_enum)]
    hop: Option<HopArg>,

    /// Stop after this part; `imgctl upgrade resume` goes on
    #[arg(long, value_enum)]
    pub(crate) pause_after: Option<PauseArg>,

    /// Certificates of kubeadm: renew them all, none, or those good for less than ten years [default: auto]
    #[arg(long, value_enum)]
    certificate_renewal: Option<RenewalArg>,

    /// What becomes of a host that fails: it stays as it is, or goes back to its former version [default: stop]
    #[arg(long, value_enum)]
    on_failure: Option<OnFailureArg>,

    #[command(flatten)]
    moving: MovingArgs,
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident => $of:ident { $($variant:ident),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, ValueEnum)]
        pub(crate) enum $name { $($variant),* }

        impl Default for $name {
            /// The first.
            fn default() -> Self {
                [$(Self::$variant),*][0]
            }
        }

        impl From<$name> for $of {
            fn from(argument: $name) -> Self {
                match argument { $($name::$variant => Self::$variant),* }
            }
        }
    };
}

choice!(
    /// `--strategy`.
    StrategyArg => Strategy { InOrder, Replace }
);
choice!(
    /// `--kubelet-swap`.
    KubeletSwapArg => KubeletSwap { Drain, InPlace }
);
choice!(
    /// `--drain-on-timeout`.
    OnTimeoutArg => OnTimeout { Abort, Wait, Delete }
);
choice!(
    /// `--on-failure`.
    OnFailureArg => OnFailure { Stop, Rollback }
);
choice!(
    /// `--hop`.
    HopArg => HopMode { Auto, Single }
);
choice!(
    /// `--pause-after`.
    PauseArg => PauseAfter { Stage, ControlPlane, Canary, Batch }
);
choice!(
    /// `rollback --pause-after`: there is no canary on the way back, and control planes are last.
    BackPauseArg => PauseAfter { Stage, Batch }
);
choice!(
    /// `--certificate-renewal`.
    RenewalArg => Renewal { Auto, True, False }
);

/// Checks that a host which has just failed does not pass.
const OF_A_FAILED_HOST: [&str; 7] = [
    "etcd",
    "leftovers",
    "mixed-versions",
    "node-not-ready",
    "static-manifests",
    "unavailable-budget",
    "unhealthy-workloads",
];

impl MovingArgs {
    /// For a host that failed in an upgrade with these choices: it goes back as it went.
    pub(crate) fn of_failed(choices: &Choices) -> Self {
        let mut skip_check = choices.skip_checks.clone();
        skip_check.extend(OF_A_FAILED_HOST.map(str::to_owned));
        Self {
            batch: None,
            max_unavailable: Some(choices.max_unavailable.clone()),
            kubelet_swap: Some(match choices.kubelet_swap {
                KubeletSwap::Drain => KubeletSwapArg::Drain,
                KubeletSwap::InPlace => KubeletSwapArg::InPlace,
            }),
            drain_timeout: Some(format!("{}s", choices.drain_timeout_seconds)),
            drain_on_timeout: Some(match choices.drain_on_timeout {
                OnTimeout::Abort => OnTimeoutArg::Abort,
                OnTimeout::Wait => OnTimeoutArg::Wait,
                OnTimeout::Delete => OnTimeoutArg::Delete,
            }),
            delete_emptydir_data: choices.delete_emptydir_data,
            force_unmanaged: choices.force_unmanaged,
            skip_check,
            max_restarts: None,
            no_restart: false,
            max_failed: None,
            bake: None,
        }
    }

    /// The choices of somebody who says nothing else.
    pub(crate) fn choices(&self) -> Result<Choices> {
        let usual = Choices::default();
        let seconds = |text: &Option<String>, usual: u64| match text {
            Some(text) => Ok::<_, Error>(duration::parse(text)?.as_secs()),
            None => Ok(usual),
        };
        Ok(Choices {
            batch: self.batch.clone().unwrap_or(usual.batch.clone()),
            max_unavailable: self
                .max_unavailable
                .clone()
                .unwrap_or(usual.max_unavailable.clone()),
            kubelet_swap: self.kubelet_swap.unwrap_or_default().into(),
            drain_timeout_seconds: seconds(&self.drain_timeout, usual.drain_timeout_seconds)?,
            drain_on_timeout: self.drain_on_timeout.unwrap_or_default().into(),
            delete_emptydir_data: self.delete_emptydir_data,
            force_unmanaged: self.force_unmanaged,
            skip_checks: self.skip_check.clone(),
            max_restarts: match self.no_restart {
                true => Some(0),
                false => self.max_restarts,
            },
            bake_seconds: seconds(&self.bake, usual.bake_seconds)?,
            max_failed: self.max_failed.unwrap_or(usual.max_failed),
            ..usual
        })
    }

    /// Options that were given, with the member of [`Choices`] that each is about.
    fn given(&self) -> Vec<(&'static str, &'static str)> {
        given([
            ("--batch", "batch", self.batch.is_some()),
            (
                "--max-unavailable",
                "maxUnavailable",
                self.max_unavailable.is_some(),
            ),
            ("--kubelet-swap", "kubeletSwap", self.kubelet_swap.is_some()),
            (
                "--drain-timeout",
                "drainTimeoutSeconds",
                self.drain_timeout.is_some(),
            ),
            (
                "--drain-on-timeout",
                "drainOnTimeout",
                self.drain_on_timeout.is_some(),
            ),
            (
                "--delete-emptydir-data",
                "deleteEmptydirData",
                self.delete_emptydir_data,
            ),
            ("--force-unmanaged", "forceUnmanaged", self.force_unmanaged),
            ("--skip-check", "skipChecks", !self.skip_check.is_empty()),
            ("--max-restarts", "maxRestarts", self.max_restarts.is_some()),
            ("--no-restart", "maxRestarts", self.no_restart),
            ("--bake", "bakeSeconds", self.bake.is_some()),
            ("--max-failed", "maxFailed", self.max_failed.is_some()),
        ])
    }

    /// Options that were given and say something else than what was decided.
    pub(crate) fn against(&self, decided: &Choices) -> Result<Vec<&'static str>> {
        against(self.given(), &self.choices()?, decided)
    }
}

impl ChoiceArgs {
    /// The choices; `images` is how many rootfs images were named.
    pub(crate) fn choices(&self, images: usize) -> Result<Choices> {
        let no_canary = self.canary.iter().any(|host| host == "none");
        if no_canary && self.canary.len() > 1 {
            return Err(Error::usage("--canary none stands beside --canary HOST"));
        }
        let hop = match self.hop {
            Some(hop) => hop.into(),
            None if images > 1 => HopMode::Auto,
            None => HopMode::Single,
        };
        Ok(Choices {
            strategy: self.strategy.unwrap_or_default().into(),
            canary: match no_canary {
                true => Vec::new(),
                false => self.canary.clone(),
            },
            no_canary,
            hop,
            pause_after: self.pause_after.map(Into::into),
            certificate_renewal: self.certificate_renewal.unwrap_or_default().into(),
            on_failure: self.on_failure.unwrap_or_default().into(),
            spares: self.spares.clone(),
            ..self.moving.choices()?
        })
    }

    /// See [`MovingArgs::given`].
    fn given(&self) -> Vec<(&'static str, &'static str)> {
        let mut all = given([
            ("--strategy", "strategy", self.strategy.is_some()),
            ("--spare", "spares", !self.spares.is_empty()),
            (
                "--canary",
                "canary",
                self.canary.iter().any(|host| host != "none"),
            ),
            (
                "--canary",
                "noCanary",
                self.canary.iter().any(|host| host == "none"),
            ),
            ("--hop", "hop", self.hop.is_some()),
            ("--on-failure", "onFailure", self.on_failure.is_some()),
            (
                "--certificate-renewal",
                "certificateRenewal",
                self.certificate_renewal.is_some(),
            ),
        ]);
        all.extend(self.moving.given());
        all
    }

    /// A plan that was saved has its options in it: others beside it would not count.
    pub(crate) fn check_none(&self) -> Result<()> {
        let mut names: Vec<&str> = self.given().into_iter().map(|(name, _)| name).collect();
        if self.pause_after.is_some() {
            names.push("--pause-after");
        }
        match names.first() {
            None => Ok(()),
            Some(name) => Err(Error::usage(format!(
                "{name} does not count beside --plan-file: the plan holds the options that it was made with"
            ))
            .hint(format!("leave it out; or make the plan anew: `imgctl upgrade IMAGE {name} … --save-plan FILE`"))),
        }
    }

    /// Options that were given and say something else than what was decided.
    pub(crate) fn against(&self, decided: &Choices, images: usize) -> Result<Vec<&'static str>> {
        against(self.given(), &self.choices(images)?, decided)
    }
}

fn given<const N: usize>(
    all: [(&'static str, &'static str, bool); N],
) -> Vec<(&'static str, &'static str)> {
    all.into_iter()
        .filter(|(_, _, is_given)| *is_given)
        .map(|(name, member, _)| (name, member))
        .collect()
}

fn against(
    given: Vec<(&'static str, &'static str)>,
    wanted: &Choices,
    decided: &Choices,
) -> Result<Vec<&'static str>> {
    let value = |choices: &Choices| {
        serde_json::to_value(choices)
            .map_err(|error| Error::failed("cannot compare options").caused_by(error))
    };
    let (wanted, decided) = (value(wanted)?, value(decided)?);
    Ok(given
        .into_iter()
        .filter(|(_, member)| wanted[*member] != decided[*member])
        .map(|(name, _)| name)
        .collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        choices: ChoiceArgs,
    }

    fn args(line: &str) -> ChoiceArgs {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace()))
            .unwrap()
            .choices
    }

    #[test]
    fn who_says_nothing_gets_what_the_plan_takes_for_usual() {
        let none = args("");
        assert_eq!(none.choices(1).unwrap(), Choices::default());
        none.check_none().unwrap();
    }

    #[test]
    fn what_is_said_is_known_and_compared() {
        for (line, name) in [
            ("--strategy in-order", "--strategy"),
            ("--canary none", "--canary"),
            ("--canary 2", "--canary"),
            ("--batch 1", "--batch"),
            ("--drain-timeout 10m", "--drain-timeout"),
            ("--no-restart", "--no-restart"),
            ("--skip-check swap", "--skip-check"),
            ("--pause-after stage", "--pause-after"),
            ("--bake 0", "--bake"),
            ("--on-failure stop", "--on-failure"),
        ] {
            let error = args(line).check_none().unwrap_err().to_string();
            assert!(error.starts_with(name), "{line}: {error}");
        }
        let decided = args("--batch 3 --canary none").choices(1).unwrap();
        for (line, differ) in [
            ("", vec![]),
            ("--batch 3", vec![]),
            ("--batch 3 --canary none", vec![]),
            ("--batch 2 --bake 1m", vec!["--batch", "--bake"]),
            ("--canary 10.0.0.1", vec!["--canary"]),
            ("--on-failure stop", vec![]),
            ("--on-failure rollback", vec!["--on-failure"]),
        ] {
            assert_eq!(args(line).against(&decided, 1).unwrap(), differ, "{line}");
        }
    }
}
