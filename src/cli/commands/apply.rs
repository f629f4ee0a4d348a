//! `imgctl apply`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::cluster_options::{DesiredArgs, ValuesArgs};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::wait_options::WaitArgs;
use crate::cli::work_options::WorkArgs;
use imgctl_base::error::Result;
use imgctl_ops::install::{self, Application};

/// Create or change a cluster to match a Clusterfile
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Creates the cluster if it does not exist. Otherwise, installs missing images, adds hosts that are new
in the file and removes hosts that are no longer in it, all in one run.

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
    ssh: SshArgs,

    /// Continue even if hosts to be removed do not answer
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Applies the Clusterfile.
pub(crate) fn run(args: &ApplyArgs, context: &Context) -> Result<()> {
    let request = Application {
        clusterfile: args.values.clusterfile(&args.file, context)?,
        additions: args.desired.additions(context)?,
        force: args.force,
        wait: args.wait.wait()?,
        options: args.work.options(context)?,
    };
    install::apply(&request, &context.session(&args.ssh, &args.registry)?)
}
