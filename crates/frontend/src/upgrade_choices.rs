//! Flags with which an operator controls an upgrade.

use clap::Args;

use crate::choice::choice;
use crate::drain_options::DrainArgs;
use crate::duration;
use imgctl_base::error::{Error, Result};
use imgctl_ops::upgrade::GivenChoices;
use imgctl_runtime::upgrade::Renewal;
use imgctl_upgrade::document::{
    Choices, HopMode, KeepContainers, KubeletSwap, OnFailure, PauseAfter, Strategy,
};
use imgctl_upgrade::window::Windows;

/// How hosts are moved, during upgrades and rollbacks. All flags are optional, so that given values
/// can be told from defaults.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Upgrade options")]
pub struct MovingArgs {
    /// Workers per batch: a number or 10% [default: 1]
    #[arg(long, value_name = "N")]
    batch: Option<String>,

    /// Maximum number of workers out of service at once: a number or 10% [default: 1]
    #[arg(long, value_name = "N")]
    max_unavailable: Option<String>,

    /// Drain a Node before its kubelet is replaced, or replace it under its Pods [default: drain]
    #[arg(long, value_parser = choice::<KubeletSwap>(["drain", "in-place"]))]
    kubelet_swap: Option<KubeletSwap>,

    #[command(flatten)]
    drain: DrainArgs,

    /// Also evict Pods with emptyDir volumes, whose data is lost
    #[arg(long)]
    delete_emptydir_data: bool,

    /// Continue despite the findings of this check (may be repeated)
    #[arg(long, value_name = "CHECK")]
    skip_check: Vec<String>,

    /// Refuse if more containers than this would restart outside of drained Nodes
    #[arg(long, value_name = "N")]
    max_restarts: Option<u64>,

    /// Same as --max-restarts 0
    #[arg(long, conflicts_with = "max_restarts")]
    no_restart: bool,

    /// Number of workers in batches that may fail before the upgrade stops starting further ones
    /// [default: 0]
    #[arg(long, value_name = "N")]
    max_failed: Option<usize>,

    /// Time that a host must stay healthy before the next one is changed: 30s, 5m [default: 0]
    #[arg(long, value_name = "DURATION")]
    bake: Option<String>,

    /// Begin with hosts only at these times, such as 'Sat 02:00-05:00 Europe/Berlin' (may be repeated)
    #[arg(long, value_name = "WINDOW")]
    window: Vec<String>,

    /// Keep containers running whose hash alone would make the new kubelet restart them: `rehash`
    /// changes the hash in containerd's records to the new one while no kubelet runs (experimental)
    #[arg(long, value_parser = choice::<KeepContainers>(["none", "rehash"]))]
    keep_containers: Option<KeepContainers>,

    /// Before a Node is opened again, run a Pod there that is scheduled, pulls, resolves and reaches
    /// the API [default image: the one that the rootfs image names, otherwise its pause image]
    #[arg(
        long,
        value_name = "IMAGE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    probe: Option<String>,
}

/// Flags that control an upgrade.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Upgrade options")]
pub struct ChoiceArgs {
    /// Upgrade the existing hosts, or let spare hosts join and the old ones leave [default:
    /// in-order]
    #[arg(long, value_parser = choice::<Strategy>(["in-order", "replace"]))]
    strategy: Option<Strategy>,

    /// With the strategy `replace`: a spare host, and the host that it replaces (may be repeated)
    #[arg(long = "spare", value_name = "NEW=OLD")]
    spares: Vec<String>,

    /// Worker to upgrade alone before the others (may be repeated), or how many; `none` for no
    /// canary
    #[arg(long, value_name = "HOST|N|none")]
    canary: Vec<String>,

    /// Upgrade by one version, or through all given images one after the other
    #[arg(long, value_parser = choice::<HopMode>(["auto", "single"]))]
    hop: Option<HopMode>,

    /// Stop after this part; `imgctl upgrade resume` continues
    #[arg(long, value_parser = choice::<PauseAfter>(PAUSES))]
    pub pause_after: Option<PauseAfter>,

    /// Renew all kubeadm certificates, none, or those valid for less than ten years [default: auto]
    #[arg(long, value_parser = choice::<Renewal>(["auto", "true", "false"]))]
    certificate_renewal: Option<Renewal>,

    /// Action for a host that fails: leave it unchanged, or roll it back to its former version
    /// [default: stop]
    #[arg(long, value_parser = choice::<OnFailure>(["stop", "rollback"]))]
    on_failure: Option<OnFailure>,

    #[command(flatten)]
    moving: MovingArgs,
}

/// Values of `--pause-after`.
pub const PAUSES: [&str; 4] = ["stage", "control-plane", "canary", "batch"];
/// Those of `rollback`: it has no canary, and control planes are last.
pub const PAUSES_BACK: [&str; 2] = ["stage", "batch"];

/// Returns the windows as given, all of which are valid.
pub fn checked_windows(given: &[String]) -> Result<Vec<String>> {
    Windows::parse(given)?;
    Ok(given.to_vec())
}

impl MovingArgs {
    /// Returns the choices of a rollback, which has no canary.
    pub fn of_rollback(&self, pause_after: Option<PauseAfter>) -> Result<GivenChoices> {
        let choices = Choices { no_canary: true, pause_after, ..self.choices()? };
        Ok(GivenChoices { choices, hop: None, options: self.given() })
    }

    /// Returns the choices, with defaults for all other options.
    fn choices(&self) -> Result<Choices> {
        let usual = Choices::default();
        let seconds = |text: &Option<String>, usual: u64| match text {
            Some(text) => Ok::<_, Error>(duration::parse(text)?.as_secs()),
            None => Ok(usual),
        };
        Ok(Choices {
            batch: self.batch.clone().unwrap_or(usual.batch.clone()),
            max_unavailable: self.max_unavailable.clone().unwrap_or(usual.max_unavailable.clone()),
            kubelet_swap: self.kubelet_swap.unwrap_or_default(),
            drain_timeout_seconds: seconds(&self.drain.drain_timeout, usual.drain_timeout_seconds)?,
            drain_on_timeout: self.drain.drain_on_timeout.unwrap_or_default(),
            delete_emptydir_data: self.delete_emptydir_data,
            force_unmanaged: self.drain.force_unmanaged,
            skip_checks: self.skip_check.clone(),
            max_restarts: if self.no_restart { Some(0) } else { self.max_restarts },
            bake_seconds: seconds(&self.bake, usual.bake_seconds)?,
            max_failed: self.max_failed.unwrap_or(usual.max_failed),
            windows: self.windows()?,
            probe: self.probe.clone(),
            keep_containers: self.keep_containers.unwrap_or_default(),
            ..usual
        })
    }

    fn windows(&self) -> Result<Vec<String>> {
        checked_windows(&self.window)
    }

    /// Returns the given options, each with the member of [`Choices`] that it sets.
    fn given(&self) -> Vec<(&'static str, &'static str)> {
        given([
            ("--batch", "batch", self.batch.is_some()),
            ("--max-unavailable", "maxUnavailable", self.max_unavailable.is_some()),
            ("--kubelet-swap", "kubeletSwap", self.kubelet_swap.is_some()),
            ("--drain-timeout", "drainTimeoutSeconds", self.drain.drain_timeout.is_some()),
            ("--drain-on-timeout", "drainOnTimeout", self.drain.drain_on_timeout.is_some()),
            ("--delete-emptydir-data", "deleteEmptydirData", self.delete_emptydir_data),
            ("--force-unmanaged", "forceUnmanaged", self.drain.force_unmanaged),
            ("--skip-check", "skipChecks", !self.skip_check.is_empty()),
            ("--max-restarts", "maxRestarts", self.max_restarts.is_some()),
            ("--no-restart", "maxRestarts", self.no_restart),
            ("--bake", "bakeSeconds", self.bake.is_some()),
            ("--max-failed", "maxFailed", self.max_failed.is_some()),
            ("--window", "windows", !self.window.is_empty()),
            ("--probe", "probe", self.probe.is_some()),
            ("--keep-containers", "keepContainers", self.keep_containers.is_some()),
        ])
    }
}

impl ChoiceArgs {
    /// Returns the choices of an upgrade.
    pub fn of_upgrade(&self) -> Result<GivenChoices> {
        let no_canary = self.canary.iter().any(|host| host == "none");
        if no_canary && self.canary.len() > 1 {
            return Err(Error::usage("--canary none cannot be combined with --canary HOST"));
        }
        let is_replacing = self.strategy == Some(Strategy::Replace) || !self.spares.is_empty();
        if is_replacing && !self.moving.window.is_empty() {
            return Err(Error::usage("--window cannot be combined with --strategy replace")
                .hint("spares join and hosts leave when the others have moved, at any time"));
        }
        let choices = Choices {
            strategy: self.strategy.unwrap_or_default(),
            canary: if no_canary { Vec::new() } else { self.canary.clone() },
            no_canary,
            pause_after: self.pause_after,
            certificate_renewal: self.certificate_renewal.unwrap_or_default(),
            on_failure: self.on_failure.unwrap_or_default(),
            spares: self.spares.clone(),
            ..self.moving.choices()?
        };
        Ok(GivenChoices { choices, hop: self.hop, options: self.given() })
    }

    /// See [`MovingArgs::given`].
    fn given(&self) -> Vec<(&'static str, &'static str)> {
        let mut all = given([
            ("--strategy", "strategy", self.strategy.is_some()),
            ("--spare", "spares", !self.spares.is_empty()),
            ("--canary", "canary", self.canary.iter().any(|host| host != "none")),
            ("--canary", "noCanary", self.canary.iter().any(|host| host == "none")),
            ("--hop", "hop", self.hop.is_some()),
            ("--on-failure", "onFailure", self.on_failure.is_some()),
            ("--certificate-renewal", "certificateRenewal", self.certificate_renewal.is_some()),
        ]);
        all.extend(self.moving.given());
        all
    }

    /// Fails if options are given beside a saved plan: the plan contains its options, and others
    /// would have no effect.
    pub fn check_none(&self) -> Result<()> {
        let mut names: Vec<&str> = self.given().into_iter().map(|(name, _)| name).collect();
        if self.pause_after.is_some() {
            names.push("--pause-after");
        }
        match names.first() {
            None => Ok(()),
            Some(name) => Err(Error::usage(format!(
                "{name} cannot be combined with --plan-file: the plan contains the options that \
                 it was made with"
            ))
            .hint(format!(
                "omit it, or make a new plan: `imgctl upgrade IMAGE {name} … \
                           --save-plan FILE`"
            ))),
        }
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
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap().choices
    }

    #[test]
    fn who_says_nothing_gets_what_the_plan_takes_for_usual() {
        let none = args("");
        assert_eq!(none.of_upgrade().unwrap().decide(1), Choices::default());
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
            ("--window sat_02:00-05:00", "--window"),
        ] {
            let error = args(line).check_none().unwrap_err().to_string();
            assert!(error.starts_with(name), "{line}: {error}");
        }
        let decided = args("--batch 3 --canary none").of_upgrade().unwrap().decide(1);
        for (line, differ) in [
            ("", vec![]),
            ("--batch 3", vec![]),
            ("--batch 3 --canary none", vec![]),
            ("--batch 2 --bake 1m", vec!["--batch", "--bake"]),
            ("--canary 10.0.0.1", vec!["--canary"]),
            ("--on-failure stop", vec![]),
            ("--on-failure rollback", vec!["--on-failure"]),
            ("--keep-containers none", vec![]),
            ("--keep-containers rehash", vec!["--keep-containers"]),
            ("--probe", vec!["--probe"]),
            ("--probe=busybox:1.36", vec!["--probe"]),
        ] {
            let given = args(line).of_upgrade().unwrap();
            assert_eq!(given.against(&decided, 1).unwrap(), differ, "{line}");
        }
    }
}
