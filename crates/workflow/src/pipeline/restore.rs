//! A new cluster that begins with the data of a backup instead of empty: what takes the place of
//! `init`, and what must hold before.
//!
//! Everything else of the run (files, registry, joins, journal) is that of a creation.

use std::path::PathBuf;

use crate::pipeline::check::{Findings, Problem};
use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::step::{Lane, OnFailure, Order, Phase};
use crate::pipeline::{files_of_hosts, look::Looks};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Digest;
use imgctl_base::quote::quote as quoted;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::Action;
use imgctl_runtime::action::Line;
use imgctl_runtime::upgrade::{Move, Place, Renewal, Restoration};

/// The backup that a cluster is restored from.
#[derive(Clone, Debug)]
pub struct Restore {
    /// Digest of the backup's manifest.
    pub digest: Digest,
    /// Files on this machine whose content control planes get: zstd frames, with the suffix `.zst`.
    pub files: Vec<PathBuf>,
    /// An earlier run of this restore has begun: its hosts carry the cluster already.
    pub is_resumed: bool,
}

impl Restore {
    /// Identifies the restore on hosts and for scripts.
    fn id(&self) -> String {
        format!("restore-{}", &self.digest.hex()[..12])
    }

    /// Returns the step's surroundings on a host.
    fn step<'a>(&self, context: &'a ClusterContext, host: &'a Host, id: &'a str) -> Move<'a> {
        Move {
            from: context,
            to: context,
            host,
            tree: context.paths.rootfs(),
            place: match (host.is_control_plane(), context.first() == Some(host)) {
                (true, true) => Place::First,
                (true, false) => Place::ControlPlane,
                (false, _) => Place::Worker,
            },
            id,
            renewal: Renewal::default(),
            external_etcd: false,
            keeps_corefile: false,
            back: true,
        }
    }

    /// Reports hosts on which the cluster, or what is left of it, still is.
    pub(crate) fn refuse_survivors(
        &self,
        context: &ClusterContext,
        looks: &Looks,
        found: &mut Findings,
    ) {
        if self.is_resumed {
            return;
        }
        for host in &context.hosts {
            if let Some(Ok(facts)) = looks.get(&host.id())
                && facts.clusters.contains(&context.name)
            {
                let problem = Problem {
                    kind: Kind::CheckFailed,
                    what: format!("it still carries cluster {}", context.name),
                    hint: Some(format!(
                        "remove what is left of it with `imgctl reset --cluster {} --force`, or \
                         restore onto other hosts",
                        context.name
                    )),
                };
                found.problems.entry(host.id()).or_default().push(problem);
            }
        }
    }

    /// Returns the phases that take the place of `init`, and the hosts that join then.
    pub fn phases<'a>(
        &self,
        execution: &ExecutionContext<'_>,
        context: &'a ClusterContext,
    ) -> Result<(Vec<Phase>, Vec<&'a Host>)> {
        let id = self.id();
        let upgrader = execution.runtime.upgrader()?;
        let first = context.first().ok_or_else(|| Error::usage("there is no control plane"))?;
        let folder = self.step(context, first, &id).backup();
        let of = |host: &'a Host| upgrader.restore_cluster(&self.step(context, host, &id), &folder);
        let bring = |host: &Host| Lane::on(host, self.bring(&folder));
        let clear = |host: &Host| Lane::on(host, [clear(&folder)]);
        let mut send = Phase::new("backup-send", Order::Parallel);
        let mut end =
            Phase::new("backup-clear", Order::Parallel).on_failure(OnFailure::FinishPhase);
        let health = |host: &Host| execution.runtime.health(context, host);
        match of(first)? {
            Restoration::First(mut actions) => {
                actions.extend(health(first)?);
                send = send.lane(bring(first));
                end = end.lane(clear(first));
                let init = Phase::on("init", first, actions);
                let others = context.hosts.iter().filter(|host| *host != first).collect();
                Ok((vec![send, init, end], others))
            }
            Restoration::Together(_) => {
                let [mut stop, mut restore, mut start, mut gate] =
                    ["restore-stop", "restore", "restore-start", "restore-health"]
                        .map(|name| Phase::new(name, Order::Parallel));
                for host in context.control_planes() {
                    let Restoration::Together([stops, restores, starts]) = of(host)? else {
                        return Err(Error::failed("control planes are restored in different ways"));
                    };
                    send = send.lane(bring(host));
                    stop = stop.lane(Lane::on(host, stops));
                    restore = restore.lane(Lane::on(host, restores));
                    start = start.lane(Lane::on(host, starts));
                    gate = gate.lane(Lane::on(host, health(host)?));
                    end = end.lane(clear(host));
                }
                Ok((vec![send, stop, restore, start, gate, end], context.workers().collect()))
            }
        }
    }

    fn bring(&self, folder: &str) -> Vec<Action> {
        let make = format!("mkdir -p -m 0700 {0} && chmod 0700 {0}", quoted(folder));
        let mut actions = vec![Action::command("backup-folder", Line::repeatable(make))];
        for file in &self.files {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let there = format!("{folder}/{name}");
            actions.push(files_of_hosts::bring_content("backup-file", file, &there));
        }
        actions
    }
}

/// The files hold all secrets of the cluster.
fn clear(folder: &str) -> Action {
    let folder = folder.to_owned();
    Action::new("backup-clear", format!("remove {folder}"), move |site| site.remove(&folder))
}
