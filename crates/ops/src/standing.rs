//! How a cluster stands by the records of this machine: what commands began on it and did not complete, and
//! which commands go on. Asks no host, and must not know who shows it.

use serde::Serialize;

use imgctl_base::error::Result;
use imgctl_base::fs::lock;
use imgctl_base::quote::quote;
use imgctl_journal::event::Outcome;
use imgctl_journal::{Past, past};
use imgctl_model::clusterfile::Clusterfile;
use imgctl_model::state::State;
use imgctl_upgrade::document::{Direction, Document, few};
use imgctl_upgrade::upgrade_store::{UpgradeStatus, UpgradeStore, word};
use imgctl_workflow::pipeline::step::journals;

/// How a cluster stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// `created`, `incomplete`, `run failed`, `upgrade paused`, `upgrade running`, …
    pub word: String,
    pub unfinished: Option<Unfinished>,
}

/// What a command began on a cluster and did not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    pub what: String,
    /// Commands that go on, go back, or tell more; the first one goes on where that is known.
    pub next: Vec<String>,
}

/// Reads how a cluster stands: its open upgrade decides, otherwise its last run.
pub fn standing(state: &State, clusterfile: &Clusterfile) -> Result<Standing> {
    match UpgradeStore::of(state.files()).open()? {
        Some(open) => of_upgrade(state, &open),
        None => of_last_run(state, clusterfile),
    }
}

fn of_upgrade(state: &State, open: &Document) -> Result<Standing> {
    let upgrades = UpgradeStore::of(state.files());
    let progress = match upgrades.status(&open.id)? {
        // The record of an upgrade whose process was killed.
        Some(UpgradeStatus::Running) if !state.is_locked() => "interrupted",
        Some(status) => word(status),
        None => "begun",
    };
    let is_running = progress == word(UpgradeStatus::Running);
    let word = format!("{} {progress}", open.direction.verb());
    if is_running {
        return Ok(Standing { word, unfinished: None });
    }
    let cluster = format!("--cluster {}", state.name());
    let mut next = vec![format!("imgctl upgrade resume {cluster}")];
    if open.direction == Direction::Forward {
        next.push(format!("imgctl rollback {cluster}"));
    }
    next.push(format!("imgctl upgrade status {cluster}"));
    let past = upgrades.journal(state.directory(), open)?;
    let what = told(open, progress, past.as_ref());
    Ok(Standing { word, unfinished: Some(Unfinished { what, next }) })
}

/// Says how far an open upgrade is, and on which hosts.
fn told(open: &Document, progress: &str, past: Option<&Past>) -> String {
    let is_done = |step: &&String| {
        let step = past.and_then(|past| past.steps.get(*step));
        step.is_some_and(|step| matches!(step.outcome, Some(Outcome::Done | Outcome::Assumed)))
    };
    let steps = past.iter().flat_map(|past| &past.order);
    let switches = steps.filter(|step| step.ends_with("/switch")).filter(is_done);
    let changed: Vec<&str> = switches.filter_map(|step| step.split('/').nth(1)).collect();
    let members = open.hosts.iter().filter(|(_, host)| host.skipped.is_none());
    let (done, left): (Vec<&String>, Vec<&String>) =
        members.map(|(id, _)| id).partition(|id| changed.contains(&id.as_str()));
    let hosts = match (done.as_slice(), left.as_slice()) {
        ([], _) => "no host has changed".to_owned(),
        (_, []) => "all hosts have changed".to_owned(),
        (done, left) => {
            let all = done.len() + left.len();
            format!("{} of {all} hosts changed ({}), not {}", done.len(), few(done), few(left))
        }
    };
    let way = if open.is_reconfiguration() {
        String::new()
    } else {
        format!(" {} -> {}", open.from.version, open.target().version)
    };
    let why = past.and_then(failure).map(|why| format!("; {why}")).unwrap_or_default();
    format!("{}{way} ({}) {progress}: {hosts}{why}", open.kind(), open.id)
}

fn of_last_run(state: &State, clusterfile: &Clusterfile) -> Result<Standing> {
    let settled = if clusterfile.exists() { "created" } else { "incomplete" };
    let directory = journals(state.directory());
    let last = past::list(&directory)?.into_iter().next();
    let path = last.map(|id| past::path_of(&directory, &id));
    let last = path.as_deref().map(Past::read).transpose()?;
    let (verb, ended) = match &last {
        Some(run) if path.as_deref().is_some_and(lock::is_held) => {
            return Ok(Standing { word: format!("{} running", run.verb), unfinished: None });
        }
        Some(run) => (run.verb.as_str(), run.finished),
        None => ("run", None),
    };
    let is_settled = match ended {
        Some(Outcome::Done | Outcome::Aborted | Outcome::Paused) => true,
        None => last.is_none(),
        Some(_) => false,
    };
    if is_settled && clusterfile.exists() {
        return Ok(Standing { word: settled.to_owned(), unfinished: None });
    }
    let progress = match ended {
        Some(Outcome::Failed) => "failed",
        Some(outcome) if !is_settled => outcome.word(),
        _ => "interrupted",
    };
    let cluster = format!("--cluster {}", state.name());
    let mut next = Vec::new();
    if !clusterfile.exists() {
        let images = &clusterfile.cluster.images;
        let images: Vec<String> = images.iter().map(|image| quote(image)).collect();
        next.push(format!("imgctl run {} {cluster}", images.join(" ")));
    }
    if last.is_some() {
        next.push(format!("imgctl journal last --failed {cluster}"));
    }
    let why = last.as_ref().and_then(failure).map(|why| format!(": {why}")).unwrap_or_default();
    let what = if clusterfile.exists() {
        format!("the last run, `imgctl {verb}`, {progress}{why}")
    } else {
        format!("the cluster is incomplete: `imgctl {verb}` {progress}{why}")
    };
    let word = if last.is_some() { format!("{verb} {progress}") } else { settled.to_owned() };
    Ok(Standing { word, unfinished: Some(Unfinished { what, next }) })
}

/// Returns the first line of the message of the last step that failed.
fn failure(past: &Past) -> Option<String> {
    let failed = past.order.iter().rev().find_map(|id| {
        let step = past.steps.get(id)?;
        (step.outcome == Some(Outcome::Failed)).then_some((id, step))
    });
    let (id, step) = failed?;
    let line = step.message.as_deref().and_then(|message| message.lines().next());
    Some(line.map_or_else(|| format!("step {id} failed"), |line| format!("{id}: {line}")))
}
