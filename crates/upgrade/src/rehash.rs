//! `--keep-containers rehash`: the step in which no kubelet runs on a host and the hashes in
//! containerd's records become those of the next kubelet; back, those from before.
//!
//! Which containers are touched was decided with the plan. Must not depend on how hashes are computed.

use std::time::Duration;

use crate::document::{Direction, Document, KeepContainers};
use crate::request::Request;
use crate::restarts;
use imgctl_base::error::{Error, Result};
use imgctl_host::containerd::SOCKET;
use imgctl_host::containerd::rehash::{Change, Rehash, Rehashed, Task, check_version};
use imgctl_kube::hash::ANNOTATION;
use imgctl_kube::restart::{Prediction, Verdict};
use imgctl_runtime::action::{Action, Line, Site};
use imgctl_runtime::upgrade::Move;
use imgctl_runtime::wait::until_well;

/// File of former hashes in the host's backup of the upgrade.
const FORMER: &str = "container-hashes.json";
const KUBEADM: &str = "kubeadm";
const LIMIT: Duration = Duration::from_secs(600);
/// Time for containerd to answer after its restart.
const PATIENCE: Duration = Duration::from_secs(120);

/// Stops the kubelet, unless containers would not survive a restart of containerd.
const STOP: &str = include_str!("scripts/stop-kubelet.sh");
const START: &str = "systemctl start kubelet";
/// Restarts containerd; shims and containers go on.
const RESTART: &str = "systemctl restart containerd";

/// Checks the options of a plan.
pub(super) fn check(request: &Request<'_>) -> Result<()> {
    if request.choices.keep_containers == KeepContainers::None {
        return Ok(());
    }
    if request.runtime != KUBEADM {
        return Err(Error::usage(format!(
            "--keep-containers rehash is for clusters of kubeadm, and this is one of {}",
            request.runtime
        ))
        .hint("omit it"));
    }
    if request.targets.len() > 1 {
        return Err(Error::usage(
            "--keep-containers rehash goes one image at a time: each kubelet on the way has hashes of \
             its own",
        )
        .hint("upgrade to the first image, then to the next"));
    }
    Ok(())
}

/// Returns why a container runtime's records are not touched; `None` if they are, or if nothing is to
/// be done with them.
pub(super) fn refusal(document: &Document, name: &str, version: &str) -> Option<String> {
    if document.choices.keep_containers == KeepContainers::None {
        return None;
    }
    match name {
        "containerd" => check_version(version).err().map(|error| error.to_string()),
        _ => Some("--keep-containers rehash knows the records of containerd alone".to_owned()),
    }
}

/// Returns what the plan says about records that are changed.
pub(super) fn notes(document: &Document) -> Vec<String> {
    if document.choices.keep_containers == KeepContainers::None {
        return Vec::new();
    }
    let mut notes = Vec::new();
    for id in document.restarts.keys() {
        let Some(prediction) = restarts::forward(document, id) else { continue };
        for one in &prediction.containers {
            let Some(hash) = &one.rehash else { continue };
            let what = match one.verdict {
                Verdict::Keep => "keeps running",
                _ => "does not restart for its hash",
            };
            notes.push(format!(
                "{id}: {}/{} {} {what}: its record is changed from {} to {}",
                one.namespace, one.pod, one.container, hash.from, hash.to
            ));
        }
    }
    // The way back also finds containers in the files of the hosts.
    let what = if notes.is_empty() && document.direction == Direction::Forward {
        "no container needs --keep-containers rehash: no record is changed, and containerd is not \
         restarted"
    } else {
        "--keep-containers rehash is experimental: records of containerd are not an interface. containerd \
         is restarted on each host whose records change, which ends every `kubectl exec` there; containers \
         that started after the plan was made restart"
    };
    notes.insert(0, what.to_owned());
    notes
}

/// Inserts the step before the kubelet of a host is replaced, or restored.
///
/// # Errors
/// If the runtime has no such step.
pub(super) fn insert(
    actions: &mut Vec<Action>,
    step: &Move<'_>,
    document: &Document,
) -> Result<()> {
    if document.choices.keep_containers == KeepContainers::None {
        return Ok(());
    }
    let prediction = restarts::forward(document, &step.host.id());
    let containers: Vec<Change> = prediction
        .iter()
        .flat_map(Prediction::rehashed)
        .map(|(id, hash)| Change {
            id: id.to_owned(),
            from: hash.from.clone(),
            to: hash.to.clone(),
        })
        .collect();
    let back = document.direction == Direction::Back;
    // The way back also knows containers from the file.
    if containers.is_empty() && !back {
        return Ok(());
    }
    let (kubelet, task) =
        if back { ("restore-files", Task::Back) } else { ("kubelet", Task::Write) };
    let request = Rehash {
        socket: SOCKET.to_owned(),
        annotation: ANNOTATION.to_owned(),
        containers,
        former: format!("{}/{FORMER}", step.backup()),
        task,
    };
    let place = actions.iter().position(|action| action.name == kubelet).ok_or_else(|| {
        Error::failed(format!("host {} has no step {kubelet}", step.host.id()))
            .hint("omit --keep-containers")
    })?;
    actions.insert(place, action(request));
    Ok(())
}

fn action(request: Rehash) -> Action {
    let what = match request.task {
        Task::Back => format!("as {} and the plan have them", request.former),
        _ => format!(
            "of {} containers; keep the former in {}",
            request.containers.len(),
            request.former
        ),
    };
    let says = format!(
        "systemctl stop kubelet; change {ANNOTATION} in containerd's records {what}; systemctl restart \
         containerd"
    );
    let inputs = format!("{request:?}");
    Action::depending_on("rehash", says, &inputs, move |site| rehash(site, &request)).within(LIMIT)
}

/// Changes the records and restarts containerd. The kubelet is left stopped: the next step starts it.
/// If something fails on the way forward, the records are as before and the former kubelet runs again.
fn rehash(site: &Site<'_>, request: &Rehash) -> Result<()> {
    // Refuses before anything is stopped.
    let look = Rehash { task: Task::Look, ..request.clone() };
    let before = site.agent.rehash(&look)?;
    let has_file = site.agent.read_file(&request.former, 1 << 24)?.is_some();
    let is_open =
        |seen: &Rehashed| seen.containers.iter().any(|one| one.is_due() || one.is_hidden());
    let may_go_back = request.task == Task::Back && has_file;
    if !may_go_back && !is_open(&before) {
        site.say("no record is to be changed");
        return Ok(());
    }
    site.run_on(site.agent, &Line::script(&[STOP]), "-stop")?;
    let went = change(site, request);
    if went.is_err() && request.task == Task::Back {
        site.say("the kubelet is stopped: with these records, it would restart containers");
    } else if went.is_err() {
        // Nothing is lost if this fails as well: a resumed run goes on from here.
        let undo = undo(request);
        let undone = site.agent.rehash(&undo).and_then(|seen| restart(site, &seen, "-undo"));
        if let Err(error) = undone {
            site.say(&format!("the former hashes are not back: {error}"));
        }
        let started = site.run_on(site.agent, &Line::repeatable(START), "-start");
        if let Err(error) = started {
            site.say(&format!("the kubelet does not start: {error}"));
        }
    }
    went.map_err(|error| {
        error.hint(
            "resume without it: `imgctl upgrade abort` or `imgctl rollback`, then upgrade without \
             --keep-containers",
        )
    })
}

fn change(site: &Site<'_>, request: &Rehash) -> Result<()> {
    let written = site.agent.rehash(request)?;
    let before: Vec<(String, u64)> = written
        .containers
        .iter()
        .filter(|one| one.is_running)
        .map(|one| (one.change.id.clone(), one.started))
        .collect();
    for one in &written.containers {
        match (&one.stored, one.is_written()) {
            (_, true) => {}
            (None, _) => site.say(&format!("container {} is gone", one.change.id)),
            (Some(stored), false) => site.say(&format!(
                "container {} is not touched: its hash is {stored}, and not {}: it has changed since \
                 the plan was made",
                one.change.id, one.change.from
            )),
        }
    }
    restart(site, &written, "-restart")?;
    // What the CRI shows now is what the next kubelet compares.
    let containers = written.containers.iter().filter(|one| one.is_written());
    let containers = containers.map(|one| one.change.clone()).collect();
    let look = Rehash { task: Task::Look, containers, ..request.clone() };
    let after = site.agent.rehash(&look)?;
    for one in &after.containers {
        if one.is_hidden() {
            return Err(Error::check_failed(format!(
                "{}: the CRI still shows the hash {} of container {}",
                site.agent.host(),
                one.shown.as_deref().unwrap_or("-"),
                one.change.id
            )));
        }
        let was = before.iter().find(|(id, _)| *id == one.change.id);
        if was.is_some_and(|(_, started)| !one.is_running || *started != one.started) {
            return Err(Error::check_failed(format!(
                "{}: container {} did not outlive the restart of containerd",
                site.agent.host(),
                one.change.id
            )));
        }
    }
    let (changed, version) = (after.containers.len(), &after.version);
    site.say(&format!("{changed} records of containerd {version} are changed"));
    Ok(())
}

/// Restarts containerd if the CRI does not show what the records say, and waits until it answers.
fn restart(site: &Site<'_>, seen: &Rehashed, suffix: &str) -> Result<()> {
    if !seen.containers.iter().any(imgctl_host::containerd::rehash::Seen::is_hidden) {
        return Ok(());
    }
    site.run_on(site.agent, &Line::repeatable(RESTART), suffix)?;
    let look = Rehash {
        socket: SOCKET.to_owned(),
        annotation: ANNOTATION.to_owned(),
        containers: seen.containers.iter().map(|one| one.change.clone()).collect(),
        ..Rehash::default()
    };
    let hint = "see `journalctl -u containerd` on that host; then `imgctl upgrade resume`";
    until_well(site, PATIENCE, hint, &|| site.agent.rehash(&look).map(|_| None))
}

/// The request that takes `request` back; the file of former hashes stays as it is.
fn undo(request: &Rehash) -> Rehash {
    let containers = request.containers.iter().map(|one| Change {
        id: one.id.clone(),
        from: one.to.clone(),
        to: one.from.clone(),
    });
    Rehash {
        containers: containers.collect(),
        task: Task::Write,
        former: String::new(),
        ..request.clone()
    }
}

#[cfg(test)]
mod tests;
