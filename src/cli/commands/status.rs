//! `imgctl status`: the state of a cluster.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use imgctl_base::error::Result;
use imgctl_frontend::cluster_options::ClusterArg;
use imgctl_frontend::context::Context;
use imgctl_frontend::{
    front_end, registry_options::RegistryArgs, ssh_options::SshArgs, status_view,
};
use imgctl_journal::interrupt::Interrupt;
use imgctl_ops::{maintain, maintain::ClusterStatus, session::Session, watch};

/// Show the status of a cluster
#[derive(Args, Debug)]
#[command(
    after_help = "Queries every host, from any machine with SSH access. The exit code says whether all are healthy.

With --watch the status is refreshed until q or Ctrl-C, and the exit code is 0: on a terminal on
the whole screen, unreachable and ill hosts first; elsewhere one after the other, with --- between
them; with --json one object a line.

Examples:
  imgctl status
  imgctl status --cluster prod --json
  imgctl status --watch 2"
)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Refresh the status every 5 seconds, or as often as given
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    watch: Option<u64>,

    #[command(flatten)]
    ssh: SshArgs,
}

pub(crate) fn status(args: &StatusArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &RegistryArgs::default())?;
    let cluster = args.cluster.name(context)?;
    if let Some(seconds) = args.watch {
        return repeated(&cluster, session, Duration::from_secs(seconds), context);
    }
    let found = maintain::status(&cluster, &session)?;
    if context.ui.is_json() {
        context.ui.json(&status_view::json(&found))?;
    } else {
        status_view::text(&found, context)?;
    }
    found.check()
}

/// Shows the status again and again. The last one remains on the normal screen.
fn repeated(
    cluster: &str,
    session: Session<'_>,
    interval: Duration,
    context: &Context,
) -> Result<()> {
    let interrupt = Interrupt::default();
    front_end::listen(&interrupt)?;
    let quit = interrupt.clone();
    let screen = context.ui.status_screen(move || quit.ask());
    let (mut is_first, mut last) = (true, None);
    let outcome = watch::watch(cluster, session, interval, &interrupt, &mut |found| {
        match &screen {
            Some(screen) => {
                screen.show(status_view::on_screen(&found, Timestamp::now()));
                last = Some(found);
            }
            None => line_or_text(&found, is_first, context)?,
        }
        is_first = false;
        Ok(())
    });
    drop(screen);
    if let Some(found) = last {
        status_view::text(&found, context)?;
    }
    outcome
}

/// Prints one of several statuses.
fn line_or_text(found: &ClusterStatus, is_first: bool, context: &Context) -> Result<()> {
    let now = Timestamp::now();
    if context.ui.is_json() {
        return context.ui.json_line(&status_view::at(found, now));
    }
    if !is_first {
        context.ui.line("---")?;
    }
    context.ui.line(&now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())?;
    status_view::text(found, context)
}
