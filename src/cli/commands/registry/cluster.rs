//! `imgctl registry passwd --cluster` and `imgctl registry gc --cluster`: the embedded registry of a
//! running cluster.

use std::time::Duration;

use clap::{Arg, Args};

use imgctl_base::error::{Error, Result};
use imgctl_frontend::cluster_options::WorkArgs;
use imgctl_frontend::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use imgctl_ops::registry::{self, NewPassword};

/// The cluster whose registry is meant, and how its hosts are reached.
#[derive(Args, Debug)]
pub(super) struct OfCluster {
    /// Work on the registry of this cluster
    #[arg(short, long, value_name = "NAME")]
    pub(super) cluster: Option<String>,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,
}

impl OfCluster {
    pub(super) fn is_dry_run(&self) -> bool {
        self.work.dry_run
    }
}

/// Fails if an argument that is for files is given together with `--cluster`.
pub(super) fn refuse(argument: &str, is_given: bool) -> Result<()> {
    if is_given {
        return Err(Error::usage(format!("{argument} cannot be used with --cluster")));
    }
    Ok(())
}

/// Makes flags of clusters require `--cluster`, and leaves `-p` to sealos' `--htpasswd-path`.
pub(super) fn only_with_cluster(argument: Arg) -> Arg {
    const OWN: [&str; 10] = [
        "registry_user",
        "file",
        "password_stdin",
        "generate",
        "cluster",
        "directory",
        "dry_run",
        "untagged",
        "grace",
        "keep_releases",
    ];
    let is_own = OWN.contains(&argument.get_id().as_str()) || argument.is_global_set();
    if is_own {
        return argument;
    }
    match argument.get_short() {
        Some('p') => argument.short(None).requires("cluster"),
        _ => argument.requires("cluster"),
    }
}

/// Changes the password of the registry of `cluster`.
pub(super) fn change_password(
    cluster: &str,
    of: &OfCluster,
    new: NewPassword<'_>,
    context: &Context,
) -> Result<()> {
    let session = context.session(&of.ssh, &RegistryArgs::default())?;
    let options = of.work.options(context)?;
    let request = registry::Password { cluster: cluster.to_owned(), new, options };
    registry::change_password(&request, &session)
}

/// Collects the garbage of the registry of a cluster.
pub(super) fn gc(
    of: &OfCluster,
    keep_releases: usize,
    grace: Duration,
    context: &Context,
) -> Result<()> {
    let session = context.session(&of.ssh, &RegistryArgs::default())?;
    let request = registry::Collection {
        cluster: of.cluster.clone().unwrap_or_default(),
        keep_releases,
        grace,
        options: of.work.options(context)?,
    };
    registry::collect(&request, &session)
}
