//! The flags by which an operator says how an upgrade is to go.

use clap::{Args, ValueEnum};

use crate::cli::duration;
use crate::error::{Error, Result};
use crate::runtime::upgrade::Renewal;
use crate::upgrade::document::{Choices, HopMode, KubeletSwap, OnTimeout, PauseAfter, Strategy};

/// How an upgrade is to go.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Upgrade options")]
pub(crate) struct ChoiceArgs {
    /// Move the hosts that are there, or have spares join and the old hosts leave
    #[arg(long, value_enum, default_value_t)]
    strategy: StrategyArg,

    /// In the strategy `replace`: a spare, and the host that it takes over from (may be repeated)
    #[arg(long = "spare", value_name = "NEW=OLD")]
    spares: Vec<String>,

    /// Worker that goes alone before the others (may be repeated); `none` for no canary
    #[arg(long, value_name = "HOST|none")]
    canary: Vec<String>,

    /// Workers per batch: a number or 10%
    #[arg(long, value_name = "N", default_value = "1")]
    batch: String,

    /// Workers that may be out of service at once: a number or 10%
    #[arg(long, value_name = "N", default_value = "1")]
    max_unavailable: String,

    /// Drain a Node before its kubelet is swapped, or swap it under its Pods
    #[arg(long, value_enum, default_value_t)]
    kubelet_swap: KubeletSwapArg,

    /// How long the Pods of a Node get to go elsewhere; 0: as long as they want
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    drain_timeout: String,

    /// What becomes of Pods that do not go in time
    #[arg(long, value_enum, default_value_t)]
    drain_on_timeout: OnTimeoutArg,

    /// Evict Pods with emptyDir volumes, too: what is in those is lost
    #[arg(long)]
    delete_emptydir_data: bool,

    /// Evict Pods that nothing makes again, too
    #[arg(long)]
    force_unmanaged: bool,

    /// Go one version further, or through all images given, one after the other
    #[arg(long, value_enum)]
    hop: Option<HopArg>,

    /// Stop after this part; `imgctl upgrade resume` goes on
    #[arg(long, value_enum)]
    pub(crate) pause_after: Option<PauseArg>,

    /// Certificates of kubeadm: renew them all, none, or those good for less than ten years
    #[arg(long, value_enum, default_value_t)]
    certificate_renewal: RenewalArg,

    /// Go on in spite of what this check finds (may be repeated)
    #[arg(long, value_name = "CHECK")]
    skip_check: Vec<String>,

    /// Refuse when more containers than this would restart outside of drained Nodes
    #[arg(long, value_name = "N")]
    max_restarts: Option<u64>,

    /// The same as --max-restarts 0
    #[arg(long, conflicts_with = "max_restarts")]
    no_restart: bool,

    /// How long a host must stay well before the next is touched: 30s, 5m
    #[arg(long, value_name = "DURATION", default_value = "0")]
    bake: String,
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
    /// `--hop`.
    HopArg => HopMode { Auto, Single }
);
choice!(
    /// `--pause-after`.
    PauseArg => PauseAfter { Stage, ControlPlane, Canary, Batch }
);
choice!(
    /// `--certificate-renewal`.
    RenewalArg => Renewal { Auto, True, False }
);

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
            strategy: self.strategy.into(),
            canary: match no_canary {
                true => Vec::new(),
                false => self.canary.clone(),
            },
            no_canary,
            batch: self.batch.clone(),
            max_unavailable: self.max_unavailable.clone(),
            kubelet_swap: self.kubelet_swap.into(),
            drain_timeout_seconds: duration::parse(&self.drain_timeout)?.as_secs(),
            drain_on_timeout: self.drain_on_timeout.into(),
            delete_emptydir_data: self.delete_emptydir_data,
            force_unmanaged: self.force_unmanaged,
            hop,
            pause_after: self.pause_after.map(Into::into),
            certificate_renewal: self.certificate_renewal.into(),
            skip_checks: self.skip_check.clone(),
            max_restarts: match self.no_restart {
                true => Some(0),
                false => self.max_restarts,
            },
            bake_seconds: duration::parse(&self.bake)?.as_secs(),
            spares: self.spares.clone(),
        })
    }
}
