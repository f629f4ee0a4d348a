//! `imgctl apply`: makes a cluster what a Clusterfile says.

use std::path::PathBuf;

use clap::Args;

use imgctl_base::error::Result;
use imgctl_frontend::cluster_options::{
    DesiredArgs, PeersArgs, StateArgs, ValuesArgs, WaitArgs, WorkArgs,
};
use imgctl_frontend::source_options::SourceArgs;
use imgctl_frontend::upgrade_choices::checked_windows;
use imgctl_frontend::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use imgctl_ops::install::{self, Application};
use imgctl_ops::upgrade::SettingsChoices;

/// Create or change a cluster to match a Clusterfile
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Creates the cluster if it does not exist. Otherwise, installs missing images, adds hosts that are
new in the file and removes hosts that are no longer in it, all in one run.

Changed settings of kubeadm, kubelets, kube-proxy, containerd and k3s are tried first, then change
host by host (docs/reconfigure.md).

Examples:
  imgctl apply -f Clusterfile --dry-run
  imgctl apply -f Clusterfile --set replicas=3 --env LOG=debug"
)]
pub(crate) struct ApplyArgs {
    /// Path of the Clusterfile; `-` is stdin
    #[arg(
        short = 'f',
        long = "file",
        visible_alias = "Clusterfile",
        value_name = "FILE",
        default_value = "Clusterfile"
    )]
    file: PathBuf,

    #[command(flatten)]
    values: ValuesArgs,

    #[command(flatten)]
    desired: DesiredArgs,

    #[command(flatten)]
    peers: PeersArgs,

    #[command(flatten)]
    ssh: SshArgs,

    /// Continue even if hosts to be removed do not answer
    #[arg(long)]
    force: bool,

    /// Change settings despite the findings of this check (may be repeated)
    #[arg(long, value_name = "CHECK")]
    skip_check: Vec<String>,

    /// Keep changed settings on a host where they fail, instead of restoring the former ones
    #[arg(long)]
    keep_failed: bool,

    /// Begin to change settings of hosts only at these times, such as 'Sat 02:00-05:00 Europe/Berlin'
    /// (may be repeated)
    #[arg(long, value_name = "WINDOW")]
    window: Vec<String>,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn apply(args: &ApplyArgs, context: &Context) -> Result<()> {
    let request = Application {
        clusterfile: args.values.clusterfile(&args.file, context)?,
        additions: args.peers.with(args.desired.additions(context)?),
        encrypt_state: args.state.encrypt_state.clone(),
        force: args.force,
        wait: args.wait.wait()?,
        settings: SettingsChoices {
            skip_checks: args.skip_check.clone(),
            stops: args.keep_failed,
            windows: checked_windows(&args.window)?,
        },
        options: args.source.with(args.work.options(context)?),
    };
    install::apply(&request, &context.session(&args.ssh, &args.registry)?)
}
