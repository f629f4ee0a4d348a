//! `imgctl backup` and `imgctl restore`.

use std::path::PathBuf;

use clap::Args;

use imgctl_base::error::Result;
use imgctl_frontend::cluster_options::{ClusterArg, HostsArgs, StateArgs, WaitArgs, WorkArgs};
use imgctl_frontend::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use imgctl_ops::backup::{self, BackupRequest};
use imgctl_ops::restore::{self, RestoreRequest};

/// Back up a cluster: its data, keys and Clusterfile, as one OCI artifact
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "A control plane takes a snapshot of the data while the cluster runs; the backup is verified after it
was written. `imgctl restore` makes the cluster again from it, also on other hosts. The backup
contains all keys and secrets of the cluster: encrypt it with --encrypt-to (the format of age), and
keep the identity elsewhere.

Places:
  oci:DIR[:TAG], DIR               an OCI image layout
  docker://REPOSITORY[:TAG]        a registry
Without a tag, each backup gets one of its own: CLUSTER-TIME.

Examples:
  imgctl backup --to /srv/backups --encrypt-to age1… --keep 14
  imgctl backup --cluster prod --to docker://registry.example.com/backups/prod --encrypt-to keys.txt
  imgctl backup --to docker://registry.example.com/backups/prod --encrypt-to age1… --keep 30 --schedule '*-*-* 02:00:00'
  imgctl backup --to oci:/mnt/usb:before-the-move --passphrase-file passphrase"
)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Place to keep the backup [default: a directory beside the cluster's state]
    #[arg(long, value_name = "PLACE")]
    to: Option<String>,

    /// Recipient that can decrypt the backup (age1…), or a file of recipients (may be repeated)
    /// [default: the recipients of the cluster's state, if it is encrypted]
    #[arg(long, value_name = "RECIPIENT|FILE")]
    encrypt_to: Vec<String>,

    /// Encrypt with the passphrase in the first line of a file
    #[arg(long, value_name = "FILE", conflicts_with = "encrypt_to")]
    passphrase_file: Option<PathBuf>,

    /// Remove older backups of this cluster from the place, so that N remain
    #[arg(long, value_name = "N")]
    keep: Option<usize>,

    /// Have the first control plane do this at these times, without a controller: a calendar expression
    /// of systemd
    #[arg(long, value_name = "ONCALENDAR", conflicts_with = "unschedule")]
    schedule: Option<String>,

    /// Remove the timer that --schedule has installed
    #[arg(long, conflicts_with_all = ["to", "encrypt_to", "passphrase_file", "keep"])]
    unschedule: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn backup(args: &BackupArgs, context: &Context) -> Result<()> {
    let request = BackupRequest {
        cluster: args.cluster.name(context)?,
        to: args.to.clone(),
        encrypt_to: args.encrypt_to.clone(),
        passphrase_file: args.passphrase_file.clone(),
        keep: args.keep,
        schedule: args.schedule.clone(),
        unschedule: args.unschedule,
        tls_verify: args.registry.tls_verify,
        options: args.work.options(context)?,
    };
    backup::backup(&request, &context.session(&args.ssh, &args.registry)?)
}

/// Restore a cluster from a backup, on the same or on other hosts
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Reads and verifies the whole backup before any host is touched. Then the cluster is made on the
hosts as `imgctl run` makes one, with the data and keys of the backup. The hosts need not have the
addresses or names of the former ones, and must not belong to a cluster. After a failure, run the
same command again.

Examples:
  imgctl restore oci:/srv/backups:prod-20261123T020000Z --identity key.txt --masters 10.0.1.1,10.0.1.2,10.0.1.3
  imgctl restore docker://registry.example.com/backups/prod:prod-20261123T020000Z --identity key.txt --masters 10.0.1.1 --nodes 10.0.1.2-10.0.1.9 --dry-run"
)]
pub(crate) struct RestoreArgs {
    /// Backup: oci:DIR:TAG, docker://REPOSITORY:TAG, oci-archive:FILE, or a directory with one backup
    #[arg(value_name = "BACKUP")]
    artifact: String,

    #[command(flatten)]
    hosts: HostsArgs,

    /// File with an age identity that decrypts the backup
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,

    /// File with the passphrase that decrypts the backup, in its first line
    #[arg(long, value_name = "FILE", conflicts_with = "identity")]
    passphrase_file: Option<PathBuf>,

    /// Rootfs image for a cluster that was adopted and had none
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Use images of the same names even if their digests are not those of the backup
    #[arg(long)]
    other_images: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn restore(args: &RestoreArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &args.registry)?;
    let request = RestoreRequest {
        artifact: args.artifact.clone(),
        hosts: args.hosts.of(&session),
        identity: args.identity.clone(),
        passphrase_file: args.passphrase_file.clone(),
        encrypt_state: args.state.encrypt_state.clone(),
        image: args.image.clone(),
        other_images: args.other_images,
        wait: args.wait.wait()?,
        options: args.work.options(context)?,
    };
    restore::restore(&request, &session)
}
