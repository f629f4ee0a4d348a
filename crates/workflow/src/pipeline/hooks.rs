//! Hooks of a cluster's image around the phases in which hosts are prepared, join and leave.
//!
//! Must not know how a hook runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::hooks::{self, OfMoments, readable};
use crate::image_tree;
use crate::pipeline::asked::Asked;
use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::step::{Lane, Phase, Step};
use imgctl_base::error::{Kind, Result};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::variables::Variables;
use imgctl_runtime::action::Line;
use imgctl_store::store::Store;

/// The directories below `hooks/` that a change runs, without `.d`.
const MOMENTS: [&str; 10] = [
    "pre-bootstrap",
    "post-bootstrap",
    "pre-init",
    "post-init",
    "pre-join",
    "post-join",
    "pre-settle",
    "post-settle",
    "pre-leave",
    "post-leave",
];

/// Returns the hooks of a cluster's images for the moments of a change; `None` if the store lacks an image.
///
/// # Errors
/// If a name cannot be printed in a log line, or a layer cannot be read.
pub fn of_images(context: &ClusterContext, store: &Store) -> Result<Option<OfMoments>> {
    match image_tree::of(context, store, "hooks") {
        Ok((tree, _)) => OfMoments::in_tree(&tree, &MOMENTS).map(Some),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where the names of hooks come from.
enum Source {
    /// From the images in the store; the same for all hosts.
    Images(OfMoments),
    /// From the trees of the members that answer: the store does not have the images. Hosts that are not here run
    /// none.
    Trees(BTreeMap<String, OfMoments>),
}

/// The hooks of the hosts of a change.
pub(crate) struct Hooks<'a> {
    context: &'a ClusterContext,
    source: Source,
    lost: &'a BTreeSet<String>,
}

impl<'a> Hooks<'a> {
    /// Finds the hooks. `lost` hosts do not answer and run none.
    pub(crate) fn find(
        execution: &ExecutionContext<'_>,
        context: &'a ClusterContext,
        lost: &'a BTreeSet<String>,
    ) -> Result<Self> {
        let source = match execution.files.hooks(context)? {
            Some(hooks) => Source::Images(hooks),
            None => {
                let hosts = context.hosts.iter().chain(&context.leaving);
                let answering = hosts.filter(|host| !lost.contains(&host.id()));
                let asked = answering.map(|host| Ok((host.id(), ask(execution, context, host)?)));
                Source::Trees(asked.collect::<Result<_>>()?)
            }
        };
        Ok(Self { context, source, lost })
    }

    fn names(&self, host: &Host, moment: &str) -> &[String] {
        match &self.source {
            Source::Images(hooks) => hooks.names(moment),
            Source::Trees(trees) => trees.get(&host.id()).map_or(&[], |hooks| hooks.names(moment)),
        }
    }

    /// Returns a phase with those before and after it, in which the hooks of `hosts` run.
    pub(crate) fn around<'h>(
        &self,
        phase: Phase,
        moment: &str,
        hosts: impl IntoIterator<Item = &'h Host>,
    ) -> [Phase; 3] {
        let hosts: Vec<&Host> = hosts.into_iter().collect();
        let [before, after] = ["pre", "post"].map(|when| {
            let hooks = Phase::new(&format!("{when}-{}", phase.name), phase.order);
            hosts.iter().fold(hooks, |hooks, host| {
                hooks.lane(Lane::on(host, self.steps(host, &format!("{when}-{moment}"))))
            })
        });
        [before, phase, after]
    }

    fn steps(&self, host: &Host, moment: &str) -> Vec<Step> {
        if self.lost.contains(&host.id()) {
            return Vec::new();
        }
        let names = self.names(host, moment);
        let environment = environment(self.context, host, moment);
        hooks::actions(moment, names, &environment).into_iter().map(Step::from).collect()
    }
}

/// Asks a member which hooks its tree has.
fn ask(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    host: &Host,
) -> Result<OfMoments> {
    let agent = execution.pool.agent(host)?;
    let asked = Asked { context, host, agent: &*agent, pool: execution.pool.as_ref() };
    let mut found = OfMoments::default();
    for moment in MOMENTS {
        let line = Line::script(&[include_str!("../hooks/scripts/list-hooks.sh")])
            .with([("IMGCTL_ROOTFS", context.paths.rootfs().as_str()), ("IMGCTL_PHASE", moment)]);
        let answer = asked.line(&format!("hooks.{moment}"), &Line { quiet: true, ..line })?;
        let names = answer.lines().map(|name| readable(moment, name.as_bytes()));
        found.insert(moment, names.collect::<Result<_>>()?);
    }
    Ok(found)
}

fn environment(context: &ClusterContext, host: &Host, moment: &str) -> Variables {
    let mut environment = context.environment_on(host, context.cleaning_rootfs());
    let role = if host.is_control_plane() { "control-plane" } else { "worker" };
    environment.extend(
        [
            ("IMGCTL_PHASE", moment.to_owned()),
            ("IMGCTL_NODE", host.id()),
            ("IMGCTL_ROLE", role.to_owned()),
            ("IMGCTL_ROOTFS", context.paths.rootfs()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    environment
}
