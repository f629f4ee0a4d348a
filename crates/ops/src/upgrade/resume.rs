//! Resuming an open upgrade or rollback, on the machine that runs it: another one may have a copy of
//! its state, which can be inspected there, and taken over when the controller is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::upgrade::close::closing;
use crate::upgrade::execute::{Carrying, carry, pipeline_of};
use crate::upgrade::images::{
    After, ClusterSnapshot, Start, UpgradeImage, after_snapshot, know, settings_of, sides,
};
use crate::work::{Work, steps};
use crate::{front_end::Outcome, session::Session};
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::quote;
use imgctl_model::context::Paths;
use imgctl_model::state_files::StateFiles;
use imgctl_runtime::nodes;
use imgctl_upgrade::document::{Document, PauseAfter};
use imgctl_upgrade::mirror::{Copied, copied, directory};
use imgctl_upgrade::upgrade_store::UpgradeStore;

/// How an open document continues.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Continuing {
    pub(crate) pause_after: Option<PauseAfter>,
    /// Hosts begin at any time.
    pub(crate) ignores_windows: bool,
}

/// Resumes an open document, forward or back; returns `true` when it is done.
pub(crate) fn resume_in(work: &Work<'_>, open: &Document, continuing: &Continuing) -> Result<bool> {
    let session = work.session;
    let upgrades = UpgradeStore::of(work.state.files());
    let hops: Vec<UpgradeImage> = open.hops.iter().map(UpgradeImage::of).collect();
    let install = upgrades.install(&open.id)?;
    let start = Start::of_open(open, work)?;
    let snapshot = upgrades.snapshot(&open.id)?;
    let after = match (&snapshot, upgrades.instead(&open.id)?) {
        _ if open.is_reconfiguration() => After::unchanged(&settings_of(open, work)?.1),
        (Some(snapshot), Some(there)) => after_snapshot(work, &there, snapshot)?,
        _ => After::unchanged(work.existing()?),
    };
    let sides = sides(work, &after.cluster, &start, &hops, &install)?;
    // A partial rollback of a closed upgrade does not change the cluster's version.
    let prepared = match upgrades.part(&open.id)? {
        Some(None) => &sides.from,
        _ => sides.target(),
    };
    let outcome = work.with_execution(prepared, false, |execution| {
        let known = know(&sides, work, execution)?;
        let carrying = Carrying {
            document: open,
            pause_after: continuing.pause_after,
            ignores_windows: continuing.ignores_windows,
            commit: closing(&upgrades, open)?,
            again: upgrades.again(&open.id)?,
            snapshot,
            notes: after.told,
        };
        if work.options.dry_run {
            let planned = pipeline_of(&known, &carrying)?;
            return Ok(Outcome::Steps { steps: steps(&planned)?, upgrade: None, refusal: None });
        }
        carry(&known, &carrying)
    })?;
    session.front.show(&outcome)?;
    Ok(outcome.is_done())
}

/// Copy of the state on this machine.
pub struct Copy {
    /// Directory with the layout of the cluster's directory on a controller.
    pub directory: PathBuf,
    pub says: Copied,
}

/// Returns the copy that this machine has as a control plane of `cluster`, or `None`.
pub(crate) fn here(cluster: &str, session: &Session<'_>) -> Result<Option<Copy>> {
    // Checked because the name becomes part of a path.
    imgctl_model::name::check(cluster)?;
    let root = &session.controller.data_root;
    let directory = PathBuf::from(directory(&Paths::new(root, cluster)));
    Ok(copied(&directory).map(|says| Copy { directory, says }))
}

/// Fails if this machine has only a copy with an open upgrade: the copy must be taken over first,
/// and the error says how.
pub(crate) fn check_home(cluster: &str, session: &Session<'_>) -> Result<()> {
    let state = session.state(cluster)?;
    if state.clusterfile().exists() {
        return Ok(());
    }
    let Some(copy) = here(cluster, session)? else {
        return Ok(());
    };
    let Some(open) = UpgradeStore::of(&StateFiles::plain(&copy.directory)).open()? else {
        return Ok(());
    };
    let quoted = |path: &Path| quote(&path.to_string_lossy());
    let (from, to) = (quoted(&copy.directory), quoted(state.directory()));
    Err(Error::not_found(format!(
        "this machine has only a copy of upgrade {} of cluster {cluster}, which {} runs (as of {})",
        open.id, copy.says.controller, copy.says.time
    ))
    .hint(format!(
        "go on with it on {}. Only when that machine is lost for good: `mkdir -p -m 700 {to} && cp -a {from}/. {to}/`, then `imgctl upgrade resume --cluster {cluster} --pk KEY`",
        copy.says.controller
    )))
}

/// Uncordons the Nodes that an imgctl upgrade has cordoned, and deletes its probe Pods.
pub(crate) fn release_nodes(known: &ClusterSnapshot<'_>) -> Result<()> {
    let api = match &known.api {
        Some(Ok(api)) => Arc::clone(api),
        // It did not answer when the run began; it may do so now that the run has undone the cause.
        Some(Err(_)) => match nodes::api(&known.from, &*known.execution.pool) {
            Ok(api) => api,
            Err(_) => return Ok(()),
        },
        None => return Ok(()),
    };
    // A killed run may have left some.
    imgctl_kube::probe::clean(&*api)?;
    let nodes = api.list("/api/v1/nodes").map_err(Error::from)?;
    for node in &nodes {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let mark = &node["metadata"]["annotations"][imgctl_kube::drain::MARK];
        if mark.is_string() && imgctl_kube::drain::uncordon(&*api, name)? {
            known.work.session.front.say(&format!("Node {name} is schedulable again"));
        }
    }
    Ok(())
}
