//! `--on-failure rollback`: the hosts that an upgrade failed on go back to what they were, each as
//! `imgctl rollback --scope node=HOST` would take it.

use crate::cli::cluster_options::state;
use crate::cli::cluster_work::WorkArgs;
use crate::cli::commands::rollback::{self, RollbackArgs};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::error::{Kind, Result};
use crate::pipeline::event::Outcome;
use crate::upgrade::book::{Book, Stand};
use crate::upgrade::document::{Direction, Document, OnFailure};

/// What hosts are reached with.
pub(crate) struct Reaching<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) ssh: &'a SshArgs,
    pub(crate) work: &'a WorkArgs,
    pub(crate) registry: &'a RegistryArgs,
}

/// Hands `outcome` on; where it is a failure of an upgrade that is to take back what failed, that is
/// done first, and the error says how it went. The cluster's lock must be free.
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
            return Err(failure.hint(format!(
                "nothing was taken back: {}",
                error.chain().join(": ")
            )));
        }
    };
    // One question was answered already: what fails goes back.
    for host in hosts {
        context.ui.note(&format!(
            "{host} failed: it goes back to {}",
            open.from.version
        ));
        let args = RollbackArgs::of_host(&host, &open.choices, reaching);
        if let Err(error) = rollback::run_agreed(&args, context) {
            return Err(failure.hint(format!(
                "{host} could not be taken back: {}",
                error.chain().join(": ")
            )));
        }
        context.ui.note(&format!(
            "{host} is back at {}; put right what failed, then `imgctl upgrade resume`",
            open.from.version
        ));
    }
    Err(failure)
}

/// The upgrade that failed, with the hosts on which it did; `None` where nothing goes back.
fn failed(reaching: &Reaching<'_>, context: &Context) -> Result<Option<(Document, Vec<String>)>> {
    let state = state(reaching.cluster, context)?;
    let book = Book::of(state.directory());
    let Some(open) = book.open()? else {
        return Ok(None);
    };
    if open.choices.on_failure != OnFailure::Rollback
        || open.direction != Direction::Forward
        || book.stand(&open.id)? != Some(Stand::Failed)
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
            && past
                .order
                .iter()
                .any(|other| other.ends_with(&format!("/{host}/switch")))
        {
            hosts.push(host.to_owned());
        }
    }
    Ok((!hosts.is_empty()).then_some((open, hosts)))
}
