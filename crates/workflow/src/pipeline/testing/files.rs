//! The files of clusters on simulated hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{Simulation, lock};
use crate::pipeline::execution_context::{Files, FilesPlan, HostFiles, Then};
use crate::pipeline::step::{BatchWork, Moved, StepContext};
use crate::sync::execute::Origin;
use imgctl_base::error::{IoContext as _, Result};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::action::HostPool;

/// Simulated files: every host lacks the same number of bytes until it has received them.
pub struct SimulatedFiles(pub Arc<Simulation>);

impl Files for SimulatedFiles {
    fn plan(
        &self,
        context: &Arc<ClusterContext>,
        hosts: &[Host],
        pool: &Arc<dyn HostPool + Send>,
        _then: Then,
    ) -> Result<FilesPlan> {
        let bytes = self.0.behaviour.lacks;
        for host in hosts {
            pool.agent(host)?;
        }
        let lacks = |host: &&Host| {
            let agents = lock(&self.0.agents);
            bytes > 0 && agents.get(&host.id()).is_none_or(|agent| agent.tree().is_none())
        };
        Ok(FilesPlan {
            hosts: hosts
                .iter()
                .filter(lacks)
                .map(|host| HostFiles {
                    host: host.clone(),
                    says: vec![format!("send 1 layer, {bytes} bytes"), "make rootfs".to_owned()],
                    bytes,
                })
                .collect(),
            failed: Vec::new(),
            trees: hosts
                .iter()
                .map(|host| {
                    let trees = BTreeMap::from([("rootfs".to_owned(), "new".to_owned())]);
                    (host.id(), trees)
                })
                .collect(),
            leave_rootfs: BTreeSet::new(),
            work: Arc::new(SimulatedMoves(Arc::clone(&self.0), context.name.clone())),
        })
    }
}

/// Moves the files of a cluster.
struct SimulatedMoves(Arc<Simulation>, String);

impl BatchWork for SimulatedMoves {
    fn run(
        &self,
        _step: &StepContext<'_>,
        hosts: &[String],
        moved: &Moved<'_>,
        ended: &(dyn Fn(&str, Result<()>) + Sync),
        cancel: &Arc<AtomicBool>,
    ) {
        for host in hosts {
            if cancel.load(Ordering::SeqCst) {
                return;
            }
            moved(host, Origin::Controller, self.0.behaviour.lacks);
            let agent = lock(&self.0.agents).get(host).cloned();
            let done = agent.map_or(Ok(()), |agent| {
                agent.maybe_lose()?;
                *lock(&agent.tree) = Some(self.1.clone());
                match agent.place() {
                    None => Ok(()),
                    Some(place) => std::fs::create_dir_all(&place)
                        .and_then(|()| std::fs::write(place.join("synced"), &self.1))
                        .path("write", &place),
                }
            });
            ended(host, done);
        }
    }
}
