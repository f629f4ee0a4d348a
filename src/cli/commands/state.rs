//! What this machine stores of a cluster, as files: `imgctl state`.

use clap::{Args, Subcommand};
use serde_json::json;

use imgctl_base::error::Result;
use imgctl_base::text::Lines;
use imgctl_frontend::cluster_options::ClusterArg;
use imgctl_frontend::context::Context;
use imgctl_ops::state;
use imgctl_ui::table::counted;

/// Show, encrypt and decrypt what this machine stores of a cluster
#[derive(Args, Debug)]
#[command(
    after_help = "The state of a cluster is what the controller stores of it: the Clusterfile with its passwords, the
cluster's keys, the administrator's kubeconfig (docs/state.md).

Examples:
  imgctl state show --cluster prod
  imgctl state encrypt --to age1… --to recovery.txt
  imgctl state cat etc/admin.conf --state-identity key.txt > kubeconfig"
)]
pub(crate) struct StateCommand {
    #[command(subcommand)]
    command: StateVerb,
}

#[derive(Debug, Subcommand)]
enum StateVerb {
    Show(ShowArgs),
    Encrypt(EncryptArgs),
    Decrypt(DecryptArgs),
    Cat(CatArgs),
}

/// Show the recipients of the state of a cluster
#[derive(Args, Debug)]
#[command(after_help = "Needs no identity, and queries no host.

Examples:
  imgctl state show
  imgctl state show --cluster prod --state-identity key.txt --json")]
struct ShowArgs {
    #[command(flatten)]
    cluster: ClusterArg,
}

/// Encrypt the state of a cluster, or change its recipients
#[derive(Args, Debug)]
#[command(
    after_help = "The recipients replace the former ones, if there are any; this needs the identity of one of those.
All files change together: after a crash, either none of them has changed, or the next command
on the cluster completes the change.

Examples:
  imgctl state encrypt --to age1…
  imgctl state encrypt --to age1… --to recovery.txt --cluster prod --state-identity old-key.txt"
)]
struct EncryptArgs {
    /// Recipient that can decrypt the state (age1…), or a file of recipients (may be repeated)
    #[arg(long, value_name = "RECIPIENT|FILE", required = true)]
    to: Vec<String>,

    #[command(flatten)]
    cluster: ClusterArg,
}

/// Decrypt the state of a cluster: it is stored in plain text from then on
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl state decrypt --cluster prod --state-identity key.txt")]
struct DecryptArgs {
    #[command(flatten)]
    cluster: ClusterArg,
}

/// Print a file of the state of a cluster, decrypted
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl state cat etc/admin.conf > kubeconfig
  imgctl state cat Clusterfile --cluster prod --state-identity key.txt")]
struct CatArgs {
    /// Path below the state directory
    #[arg(value_name = "FILE")]
    file: String,

    #[command(flatten)]
    cluster: ClusterArg,
}

pub(crate) fn run(args: &StateCommand, context: &Context) -> Result<()> {
    let session = context.plain_session()?;
    match &args.command {
        StateVerb::Show(args) => {
            show(&state::summary(&args.cluster.name(context)?, &session)?, context)
        }
        StateVerb::Encrypt(args) => {
            let cluster = &args.cluster.name(context)?;
            let files = state::encrypt(cluster, &args.to, &session)?;
            let line =
                format!("the state of cluster {cluster} is encrypted ({})", counted(files, "file"));
            context
                .ui
                .result(&json!({"cluster": cluster, "files": files, "encrypted": true}), &line)
        }
        StateVerb::Decrypt(args) => {
            let cluster = &args.cluster.name(context)?;
            let files = state::decrypt(cluster, &session)?;
            let line = format!(
                "the state of cluster {cluster} is in plain text ({})",
                counted(files, "file")
            );
            context
                .ui
                .result(&json!({"cluster": cluster, "files": files, "encrypted": false}), &line)
        }
        StateVerb::Cat(args) => {
            context.ui.content(state::read(&args.cluster.name(context)?, &args.file, &session)?)
        }
    }
}

fn show(found: &state::StateSummary, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(&json!({
            "cluster": found.cluster,
            "directory": found.directory,
            "encrypted": !found.recipients.is_empty(),
            "recipients": found.recipients,
            "readable": found.readable,
            "files": {"encrypted": found.encrypted, "plain": found.plain},
            "unfinished": found.unfinished,
        }));
    }
    let mut text = Lines::default();
    text.line(format_args!("cluster {}: {}", found.cluster, found.directory));
    if found.recipients.is_empty() {
        text.line(format_args!("not encrypted ({})", counted(found.plain, "private file")));
    } else {
        for recipient in &found.recipients {
            text.line(format_args!("encrypted to {recipient}"));
        }
        text.line(if found.readable {
            "the given identity decrypts it"
        } else {
            "no given identity decrypts it"
        });
        let are = if found.encrypted == 1 { "is" } else { "are" };
        let plain = match found.plain {
            0 => String::new(),
            plain => {
                format!(", {plain} in plain text: `imgctl state encrypt` encrypts what is plain")
            }
        };
        text.line(format_args!("{} {are} encrypted{plain}", counted(found.encrypted, "file")));
    }
    if found.unfinished {
        text.line("a change of recipients was interrupted: the next command completes it");
    }
    context.ui.print(&text)
}
