//! `--on-failure rollback`: hosts on which an upgrade failed are rolled back, each as with `imgctl
//! rollback --scope node=HOST`.

use crate::cli::cluster_options::state;
use crate::cli::cluster_work::WorkArgs;
use crate::cli::commands::rollback::{self, RollbackArgs};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use imgctl_base::error::{Kind, Result};
use imgctl_cluster::pipeline::event::Outcome;
use imgctl_cluster::upgrade::document::{Direction, Document, OnFailure};
use imgctl_cluster::upgrade::upgrade_store::{UpgradeStatus, UpgradeStore};

/// Flags for reaching the hosts.
pub(crate) struct Reaching<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) ssh: &'a SshArgs,
    pub(crate) work: &'a WorkArgs,
    pub(crate) registry: &'a RegistryArgs,
}

/// Returns `outcome`. If it is the failure of an upgrade with `--on-failure rollback`, first rolls
/// back the failed hosts, and adds the result to the error. The cluster's lock must be free.
pub(crate) fn take_back<T>(
    outcome: Result<T>,
    reaching: &Reaching<'_>,
    context: &Context,
) -> Result<T> {
    let failure = match outcome {
        Err(failure) if failure.kind() != Kind::Interrupted => failure,
        other => return other,
    };
    let (open, hosts) = match failed(reaching, context) {
        Ok(Some(found)) => found,
        Ok(None) => return Err(failure),
        Err(error) => {
            return Err(
                failure.hint(format!("nothing was rolled back: {}", error.chain().join(": ")))
            );
        }
    };
    // The operator has already agreed to roll back failed hosts.
    for host in hosts {
        context.ui.note(&format!("{host} failed: rolling it back to {}", open.from.version));
        let args = RollbackArgs::of_host(&host, &open.choices, reaching);
        if let Err(error) = rollback::run_agreed(&args, context) {
            return Err(
                failure.hint(format!("cannot roll back {host}: {}", error.chain().join(": ")))
            );
        }
        context.ui.note(&format!(
            "{host} is back at {}; fix what failed, then run `imgctl upgrade resume`",
            open.from.version
        ));
    }
    Err(failure)
}

/// Returns the failed upgrade and the hosts on which it failed; `None` if there is nothing to roll
/// back.
fn failed(reaching: &Reaching<'_>, context: &Context) -> Result<Option<(Document, Vec<String>)>> {
    let state = state(reaching.cluster, context)?;
    let book = UpgradeStore::of(state.directory());
    let Some(open) = book.open()? else {
        return Ok(None);
    };
    if open.choices.on_failure != OnFailure::Rollback
        || open.direction != Direction::Forward
        || book.stand(&open.id)? != Some(UpgradeStatus::Failed)
    {
        return Ok(None);
    }
    let Some(past) = book.journal(state.directory(), &open)? else {
        return Ok(None);
    };
    let is_failed = |step: &&String| {
        let of_host = ["control-plane", "canary", "workers"];
        of_host.iter().any(|phase| step.starts_with(phase))
            && past.steps.get(*step).and_then(|step| step.outcome) == Some(Outcome::Failed)
    };
    let mut hosts: Vec<String> = Vec::new();
    for step in past.order.iter().filter(is_failed) {
        if let Some(host) = step.split('/').nth(1)
            && !hosts.iter().any(|known| known == host)
            && past.order.iter().any(|other| other.ends_with(&format!("/{host}/switch")))
        {
            hosts.push(host.to_owned());
        }
    }
    Ok((!hosts.is_empty()).then_some((open, hosts)))
}
