//! `imgctl rehearse`: tries a change on a copy of a cluster.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::{Args, Subcommand};
use serde::Deserialize;

use crate::cli::commands::testbed;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_frontend::cluster_options::{ClusterArg, HostsArgs, WaitArgs, WorkArgs};
use imgctl_frontend::context::Context;
use imgctl_frontend::registry_options::RegistryArgs;
use imgctl_frontend::ssh_options::SshArgs;
use imgctl_frontend::upgrade_choices::ChoiceArgs;
use imgctl_model::clusterfile::Ssh;
use imgctl_model::desired::HostFlags;
use imgctl_ops::rehearsal::{self, CopyHosts, RehearsalRequest, RequestAddress};
use imgctl_ops::session::Session;

/// Try a change on a copy of a cluster
#[derive(Args, Clone, Debug)]
pub(crate) struct RehearseArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    Upgrade(Box<UpgradeArgs>),
}

/// Try an upgrade and its rollback on a copy of the cluster, and measure both
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "The last backup of the cluster is restored on other hosts: those of a test bed on this machine, which
go afterwards, or those of --masters and --nodes, which are reset. The upgrade runs there with the same
steps as on the cluster, then the rollback. The cluster itself is not touched. The record says how long
each phase took, which containers restarted, what a client saw and whether the copy was well; the plan of
the same upgrade shows it. Copies on a test bed reach nothing outside of this machine.

Examples:
  imgctl rehearse upgrade kubernetes:v1.35
  imgctl rehearse upgrade etcd:v2 --from oci:/srv/backups:prod-20261123T020000Z --identity key.txt
  imgctl rehearse upgrade web:v2 --requests 'http://{host}:8080/' --workers 2
  imgctl rehearse upgrade kubernetes:v1.35 --masters 10.9.0.1 --nodes 10.9.0.2"
)]
struct UpgradeArgs {
    /// Target rootfs image (one for each minor version on the way), and images to install with it
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    #[command(flatten)]
    cluster: ClusterArg,

    /// Backup to restore, as `imgctl restore` takes it [default: the last one of the cluster]
    #[arg(long, value_name = "BACKUP")]
    from: Option<String>,

    /// File with an age identity that decrypts the backup
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,

    /// File with the passphrase that decrypts the backup, in its first line
    #[arg(long, value_name = "FILE", conflicts_with = "identity")]
    passphrase_file: Option<PathBuf>,

    /// Rootfs image for a cluster that was adopted and had none
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Maximum number of workers of the copy
    #[arg(long, value_name = "N", default_value_t = 2)]
    workers: usize,

    /// Request that a client sends to the hosts during both: http://{host}:PORT/PATH or tcp://{host}:PORT
    #[arg(long, value_name = "ADDRESS")]
    requests: Option<String>,

    /// End after the upgrade
    #[arg(long)]
    no_rollback: bool,

    /// Leave the copy in place
    #[arg(long)]
    keep: bool,

    #[command(flatten)]
    hosts: HostsArgs,

    #[command(flatten)]
    choices: ChoiceArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn run(args: &RehearseArgs, context: &Context) -> Result<()> {
    let Verb::Upgrade(args) = &args.verb;
    let session = context.session(&args.ssh, &args.registry)?;
    let request = RehearsalRequest {
        cluster: args.cluster.name(context)?,
        backup: args.from.clone(),
        identity: args.identity.clone(),
        passphrase_file: args.passphrase_file.clone(),
        base: args.image.clone(),
        images: args.images.clone(),
        choices: args.choices.of_upgrade()?,
        workers: args.workers,
        requests: args.requests.as_deref().map(RequestAddress::parse).transpose()?,
        rollback: !args.no_rollback,
        keep: args.keep,
        wait: args.wait.wait()?,
        options: args.work.options(context)?,
    };
    let named = args.hosts.of(&session);
    let hosts_for = |cluster: &str| -> Box<dyn CopyHosts + '_> {
        if named.is_empty() {
            let owner = (!args.keep).then(std::process::id);
            Box::new(Bed { name: bed_of(cluster), owner, registry: &args.registry, context })
        } else {
            Box::new(Named { flags: named.clone(), args, context })
        }
    };
    rehearsal::rehearse(&request, &hosts_for, &session)
}

/// Hosts of the user, which are reset afterwards.
struct Named<'a> {
    flags: HostFlags,
    args: &'a UpgradeArgs,
    context: &'a Context,
}

impl CopyHosts for Named<'_> {
    fn name(&self) -> String {
        "the hosts that were named".to_owned()
    }

    fn named(&self) -> Option<&HostFlags> {
        Some(&self.flags)
    }

    fn make(&self, _: usize, _: usize) -> Result<HostFlags> {
        Ok(self.flags.clone())
    }

    fn session(&self, state_root: PathBuf) -> Result<Session<'_>> {
        self.context.session_of_copies(&self.args.ssh, &self.args.registry, state_root)
    }

    fn remove(&self) -> Result<()> {
        Ok(())
    }
}

/// Returns the name of the test bed for copies of a cluster.
fn bed_of(cluster: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    format!("rehearsal-{}", cluster.chars().take(20).map(plain).collect::<String>())
}

/// A test bed on this machine.
struct Bed<'a> {
    name: String,
    /// Process whose exit takes the bed down; `None`: the bed stays.
    owner: Option<u32>,
    registry: &'a RegistryArgs,
    context: &'a Context,
}

/// What `testbed list --json` says.
#[derive(Deserialize)]
struct Listed {
    key: PathBuf,
    known_hosts: PathBuf,
    hosts: Vec<ListedHost>,
}

#[derive(Deserialize)]
struct ListedHost {
    ip: String,
}

impl Bed<'_> {
    fn program(&self, words: &[&str]) -> Result<Command> {
        let mut command = testbed::program(self.context)?;
        command.args(["--name", &self.name]).args(words).stdin(Stdio::null());
        Ok(command)
    }

    /// What the program says goes to the user, but not to stdout, which has results alone.
    fn does(&self, words: &[&str]) -> Result<()> {
        let mut command = self.program(&[&["--quiet"], words].concat())?;
        let ended =
            command.stdout(Stdio::null()).status().doing(|| "cannot start python3".into())?;
        if ended.success() {
            return Ok(());
        }
        Err(Error::failed(format!("the test bed {} could not be made or removed", self.name))
            .hint(format!("`imgctl testbed --name {} down` removes what is there", self.name)))
    }

    fn list(&self) -> Result<Listed> {
        let listed = self.program(&["list", "--json"])?.stderr(Stdio::inherit()).output();
        let listed = listed.doing(|| "cannot start python3".into())?;
        serde_json::from_slice(&listed.stdout).map_err(|error| {
            Error::failed(format!("the test bed {} cannot be listed", self.name)).caused_by(error)
        })
    }

    fn ssh(&self) -> Result<SshArgs> {
        let listed = self.list()?;
        Ok(SshArgs {
            pk: vec![listed.key],
            known_hosts: Some(listed.known_hosts),
            ssh_config: Some("none".into()),
            ..SshArgs::default()
        })
    }
}

impl CopyHosts for Bed<'_> {
    fn name(&self) -> String {
        "a test bed of this machine".to_owned()
    }

    fn make(&self, control_planes: usize, workers: usize) -> Result<HostFlags> {
        // Of a rehearsal that was killed.
        self.does(&["down"])?;
        let number = (control_planes + workers).to_string();
        let owner = self.owner.map(|pid| pid.to_string());
        let words: Vec<&str> = match &owner {
            Some(owner) => vec!["up", &number, "--owner", owner],
            None => vec!["up", &number],
        };
        self.does(&words)?;
        let ips: Vec<String> = self.list()?.hosts.into_iter().map(|host| host.ip).collect();
        let (masters, nodes) = ips.split_at(control_planes.min(ips.len()));
        let (login, _) = self.ssh()?.resolve(self.context)?;
        Ok(HostFlags {
            masters: Some(masters.join(",")),
            nodes: (!nodes.is_empty()).then(|| nodes.join(",")),
            registry: None,
            ssh: Ssh::of_login(&login, None),
            local: false,
        })
    }

    fn session(&self, state_root: PathBuf) -> Result<Session<'_>> {
        self.context.session_of_copies(&self.ssh()?, self.registry, state_root)
    }

    fn remove(&self) -> Result<()> {
        self.does(&["down"])
    }
}
