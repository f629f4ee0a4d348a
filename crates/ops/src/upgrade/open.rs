//! Operations on an open upgrade: show its progress, pause, resume and abort it.

use crate::operation::Operation;
use crate::session::Session;
use crate::upgrade::images::{UpgradeImages, is_recorded, know};
use crate::upgrade::resume::{Continuing, Copy, check_home, here, release_nodes, resume_in};
use crate::upgrade::{close::abandon, finish::finish};
use crate::work::{RunOptions, Work};
use imgctl_base::error::{Error, Result};
use imgctl_journal::Past;
use imgctl_model::state_files::StateFiles;
use imgctl_upgrade::document::{Direction, Document, PauseAfter};
use imgctl_upgrade::upgrade_store::{Ended, UpgradeStatus, UpgradeStore};

#[derive(Clone, Debug)]
pub struct ResumeRequest {
    pub cluster: String,
    pub pause_after: Option<PauseAfter>,
    /// Change hosts now, whatever the windows of the upgrade.
    pub ignore_windows: bool,
    pub options: RunOptions,
}

pub fn resume(request: &ResumeRequest, session: &Session<'_>) -> Result<()> {
    let name = &request.cluster;
    check_home(name, session)?;
    let work = Work::begin_asking_hosts(Operation::Upgrade, name, &request.options, session)?;
    let open = UpgradeStore::of(work.state.files()).open()?.ok_or_else(|| {
        Error::not_found(format!("cluster {name} has no upgrade to resume"))
            .hint("start one with `imgctl upgrade IMAGE`")
    })?;
    let continuing =
        Continuing { pause_after: request.pause_after, ignores_windows: request.ignore_windows };
    let went = resume_in(&work, &open, &continuing);
    drop(work);
    finish(went, name, &open.choices, &request.options, session).map(|_| ())
}

/// Asks the running upgrade to pause.
pub fn pause(cluster: &str, session: &Session<'_>) -> Result<()> {
    check_home(cluster, session)?;
    let state = session.state(cluster)?;
    let upgrades = UpgradeStore::of(state.files());
    let Some(open) = upgrades.open()? else {
        return Err(Error::not_found(format!("cluster {cluster} has no upgrade to pause")));
    };
    upgrades.ask_pause(&open.id)?;
    session.front.say(&format!("{} pauses when the running steps are done", open.id));
    Ok(())
}

pub struct Progress {
    pub open: Option<Document>,
    pub status: Option<UpgradeStatus>,
    /// Journal of the open upgrade.
    pub past: Option<Past>,
    pub history: Vec<Ended>,
    /// The copy that all this comes from, if this machine does not run the cluster's upgrades.
    pub copy: Option<Copy>,
}

pub fn progress(cluster: &str, session: &Session<'_>) -> Result<Progress> {
    let state = session.state(cluster)?;
    let copy = if state.clusterfile().exists() { None } else { here(cluster, session)? };
    let files = match &copy {
        Some(copy) => StateFiles::plain(&copy.directory),
        // Nothing here needs the Clusterfile, which may be encrypted.
        None if state.clusterfile().exists() => state.files().clone(),
        None => return Err(state.missing()),
    };
    let upgrades = UpgradeStore::of(&files);
    let open = upgrades.open()?;
    let (past, status) = match &open {
        Some(open) => (upgrades.journal(files.directory(), open)?, upgrades.status(&open.id)?),
        None => (None, None),
    };
    Ok(Progress { open, status, past, history: upgrades.history()?, copy })
}

#[derive(Clone, Debug)]
pub struct AbortRequest {
    pub cluster: String,
    /// Aborts even if hosts have been touched; they stay as they are.
    pub force: bool,
}

pub fn abort(request: &AbortRequest, session: &Session<'_>) -> Result<()> {
    let name = &request.cluster;
    check_home(name, session)?;
    let options = RunOptions::default();
    let work = Work::begin(Operation::Upgrade, name, &options, session)?;
    let upgrades = UpgradeStore::of(work.state.files());
    let open = upgrades
        .open()?
        .ok_or_else(|| Error::not_found(format!("cluster {name} has no upgrade to abort")))?;
    let past = upgrades.journal(work.state.directory(), &open)?;
    let current = work.existing()?.clone();
    let forward = open.direction == Direction::Forward;
    if forward && is_recorded(&open, &work)? {
        return Err(Error::check_failed(format!(
            "cannot abort the upgrade {}: all hosts are at {}, and that is recorded",
            open.id,
            open.target().version
        ))
        .hint(
            "run `imgctl upgrade resume` to close it; after that, `imgctl rollback` to roll \
               back",
        ));
    }
    let mut touched: Vec<String> = past
        .iter()
        .flat_map(|past| &past.order)
        .filter(|step| step.ends_with("/switch"))
        .filter_map(|step| step.split('/').nth(1).map(str::to_owned))
        .collect();
    touched.dedup();
    if !touched.is_empty() && !request.force {
        let (ways, leaves) = if forward {
            (
                "run `imgctl rollback` to roll them back, or `imgctl upgrade resume` to continue",
                "leaves them as they are, with the cluster at two versions",
            )
        } else {
            ("run `imgctl upgrade resume` to continue the rollback", "leaves them as they are")
        };
        return Err(Error::check_failed(format!(
            "cannot abort the {} {}: it has touched {}",
            open.direction.verb(),
            open.id,
            touched.join(", ")
        ))
        .hint(format!("{ways}; --force {leaves}")));
    }
    let prepared = work.recorded(current)?;
    let reopened = work.with_execution(&prepared, false, |execution| {
        let sides = UpgradeImages {
            from: work.recorded(work.existing()?.clone())?,
            hops: Vec::new(),
            install: Vec::new(),
        };
        let known = know(&sides, &work, execution)?;
        release_nodes(&known)?;
        if let Some(past) = past.as_ref().filter(|_| touched.is_empty()) {
            upgrades.close_journal(work.state.directory(), past)?;
        }
        abandon(&open, &known)
    })?;
    session.front.say(&format!(
        "{} is aborted; its files stay on the hosts and are reused if it starts again",
        open.id
    ));
    if let Some(id) = reopened {
        session.front.say(&format!(
            "the upgrade {id}, which it was to roll back, is open again: run `imgctl upgrade \
             resume` to continue it"
        ));
    }
    Ok(())
}
