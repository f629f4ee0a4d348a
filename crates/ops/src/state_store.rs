//! Records the state of a cluster: the stored Clusterfile, and the copies on hosts.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use imgctl_base::error::Result;
use imgctl_cluster::cluster::clusterfile::{
    Clusterfile, CommandCondition, Condition, Mount, Phase,
};
use imgctl_cluster::cluster::context::{ClusterContext, RegistryAccess};
use imgctl_cluster::cluster::{registry_access, state::State};
use imgctl_cluster::pipeline::execution_context::{PhaseUpdate, StateStore};
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_host::host::address::Address;

/// Maximum number of recorded command outcomes; the oldest ones are dropped.
const MOST_CONDITIONS: usize = 50;

/// Records the state of one cluster.
pub(crate) struct ClusterStateStore {
    state: State,
    /// The current cluster; it remains the stored one until the command has succeeded.
    current: Option<Clusterfile>,
    desired: Mutex<Clusterfile>,
    mounts: Vec<Mount>,
    /// Hosts that are clean when the command has succeeded.
    leaving: Vec<Address>,
    /// A registry whose password has just been generated.
    new_registry: Option<RegistryAccess>,
    /// Access data used by the registry's hosts, whatever their origin.
    registry: Option<RegistryAccess>,
}

impl ClusterStateStore {
    pub(crate) fn new(
        state: State,
        current: Option<Clusterfile>,
        desired: Clusterfile,
        context: &ClusterContext,
        registry_is_new: bool,
    ) -> Self {
        Self {
            state,
            current,
            desired: Mutex::new(desired),
            mounts: context.images.iter().map(Mount::of).collect(),
            leaving: context.leaving.iter().map(|host| host.address.clone()).collect(),
            new_registry: context.registry.clone().filter(|_| registry_is_new),
            registry: context.registry.clone(),
        }
    }

    /// Returns what to store until the command has succeeded: an existing cluster stays as it was
    /// stored, so that the next command finds the same difference.
    fn unfinished(&self, phase: Phase) -> Clusterfile {
        let desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stored = match &self.current {
            Some(current) if current.exists() => current.clone(),
            _ => desired.clone(),
        };
        stored.cluster.status.phase = Some(phase);
        stored
    }
}

impl StateStore for ClusterStateStore {
    fn mark(&self, mark: &PhaseUpdate) -> Result<()> {
        let now = Timestamp::now();
        let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        match mark {
            PhaseUpdate::InProcess => {
                self.state.prepare()?;
                if let Some(access) = &self.new_registry {
                    registry_access::remember(access, self.state.directory())?;
                }
                let stored = self.unfinished(Phase::InProcess);
                {
                    let desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
                    let mut named = vec![&desired.cluster];
                    named.extend(self.current.as_ref().map(|current| &current.cluster));
                    self.state.touch(&named, &stored.cluster)?;
                }
                self.state.save(&stored)
            }
            PhaseUpdate::Success => {
                let mut desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
                desired.cluster.created.get_or_insert_with(|| time.clone());
                let status = &mut desired.cluster.status;
                status.phase = Some(Phase::Success);
                status.mounts.clone_from(&self.mounts);
                status.conditions = vec![condition("ApplyClusterSuccess", "Ready", &time, "")];
                self.state.save(&desired)?;
                self.state.untouch(&desired.cluster, &self.leaving)
            }
            PhaseUpdate::Commands { images, failed } => {
                let mut desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
                let (kind, message) = match failed {
                    None => ("ApplyCommandSuccess", ""),
                    Some(message) => ("ApplyCommandError", message.as_str()),
                };
                let conditions = &mut desired.cluster.status.command_conditions;
                conditions.push(CommandCondition {
                    condition: condition(kind, "Apply Command", &time, message),
                    images: images.clone(),
                });
                let surplus = conditions.len().saturating_sub(MOST_CONDITIONS);
                conditions.drain(..surplus);
                Ok(())
            }
            PhaseUpdate::Failed(message) => {
                // A run that failed before it began leaves nothing behind.
                if !self.state.clusterfile().exists() {
                    return Ok(());
                }
                // A cluster that existed before keeps its phase.
                let phase = if self.current.as_ref().is_some_and(Clusterfile::exists) {
                    Phase::Success
                } else {
                    Phase::Failed
                };
                let mut stored = self.unfinished(phase);
                stored.cluster.status.conditions =
                    vec![condition("ApplyClusterError", "Apply Cluster", &time, message)];
                self.state.save(&stored)
            }
            PhaseUpdate::Gone => {
                self.state.untouch_all()?;
                self.state.archive(now.as_second()).map(|_| ())
            }
        }
    }

    fn copies(&self) -> Result<Vec<FileToWrite>> {
        let mut files = vec![FileToWrite {
            path: "Clusterfile".to_owned(),
            mode: 0o600,
            content: self.clusterfile()?.into_bytes(),
        }];
        // Hosts have the password in their trees anyway, and a controller that replaces this one
        // finds it here. A password chosen by the user is not copied.
        let used = self.registry.as_ref().map(|access| &access.password);
        if let Some(password) = registry_access::kept(self.state.directory())?
            && Some(&password) == used
        {
            files.push(FileToWrite {
                path: registry_access::KEPT_PASSWORD.to_owned(),
                mode: 0o600,
                content: format!("{}\n", password.expose()).into_bytes(),
            });
        }
        Ok(files)
    }

    fn clusterfile(&self) -> Result<String> {
        let desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
        desired.without_secrets().write()
    }
}

fn condition(kind: &str, reason: &str, time: &str, message: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: "True".to_owned(),
        time: Some(time.to_owned()),
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}
