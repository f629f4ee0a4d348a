//! Records the state of a cluster: the stored Clusterfile, and the copies on hosts. Where no record has
//! the embedded registry's password (on a controller that replaces a lost one), the hosts have it.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use crate::session::Session;
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;
use imgctl_host::agent::{Agent, protocol::FileToWrite};
use imgctl_host::host::address::Address;
use imgctl_model::clusterfile::{Clusterfile, CommandCondition, Condition, FAILED, Mount, Phase};
use imgctl_model::context::{ClusterContext, RegistryAccess};
use imgctl_model::{registry_access, state::State};
use imgctl_workflow::pipeline::execution_context::{PhaseUpdate, StateStore};

/// Maximum number of recorded command outcomes; the oldest ones are dropped.
const MOST_CONDITIONS: usize = 50;

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
                    registry_access::remember(access, self.state.files())?;
                }
                let stored = self.unfinished(Phase::InProcess);
                {
                    let desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
                    let mut named = vec![&desired.cluster];
                    named.extend(self.current.as_ref().map(|current| &current.cluster));
                    self.state.touch(&named, &stored.cluster, &self.mounts)?;
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
                    vec![condition(FAILED, "Apply Cluster", &time, message)];
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
        if let Some(password) = registry_access::kept(self.state.files())?
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

    fn whole(&self) -> Result<String> {
        let mut desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner).clone();
        desired.forget_logins();
        desired.write()
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

/// Maximum size of a file to read, in bytes.
const LARGEST: u64 = 64 << 10;

/// Answer of a host about the registry's password.
enum Told {
    Password(Secret),
    /// The host has the registry's users but not their password.
    Hidden,
    /// The host has no registry that requires a password.
    Unused,
}

/// Returns the password with which the hosts of `context` use its registry; `None` if none of them
/// has a registry that requires one. Fails if they have one and no host knows its password, or if a
/// host that may have it does not answer: a new password would lock out the existing hosts.
pub(crate) fn password_of_hosts(
    context: &ClusterContext,
    session: &Session<'_>,
) -> Result<Option<Secret>> {
    let agents = session.hosts()?;
    let (masters, others): (Vec<_>, Vec<_>) =
        context.hosts.iter().partition(|host| host.is_control_plane());
    let mut problems = Vec::new();
    for host in masters.into_iter().chain(others) {
        let told = agents.agent(host).and_then(|agent| password_of_host(context, &*agent));
        match told {
            Ok(Told::Password(password)) => return Ok(Some(password)),
            Ok(Told::Hidden) => {
                problems.push(format!("{}: no file on it contains the password", host.id()));
            }
            Ok(Told::Unused) => {}
            Err(error) => problems.push(format!("{}: {error}", host.id())),
        }
    }
    if problems.is_empty() {
        return Ok(None);
    }
    let what = format!(
        "the registry password of cluster {} is not known on this machine, and no host provides \
         it:",
        context.name,
    );
    let lines = problems.iter().map(|problem| format!("  {problem}"));
    Err(Error::check_failed(what).lines(lines).hint(
        "pass the cluster's own password as --env registryPassword=PASSWORD or as a variable of \
         the Clusterfile: hosts have it in the configuration of their container runtime, and a \
         new one would lock them out",
    ))
}

/// Returns what one host knows: the password that its tree was rendered with, otherwise the one in
/// its copy of the controller's state.
fn password_of_host(context: &ClusterContext, agent: &dyn Agent) -> Result<Told> {
    let rootfs = context.paths.rootfs();
    let rendered = format!("{rootfs}/{}", registry_access::FILE);
    if let Some(text) = agent.read_file(&rendered, LARGEST)?
        && let Some(password) = registry_access::password_of(&String::from_utf8_lossy(&text))?
    {
        return Ok(Told::Password(password));
    }
    let copy = format!("{}/state/{}", context.paths.root(), registry_access::KEPT_PASSWORD);
    let text = agent.read_file(&copy, LARGEST)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    if !text.is_empty() {
        return Ok(Told::Password(Secret::new(text)));
    }
    let users = format!("{rootfs}/{}", registry_access::HTPASSWD);
    Ok(match agent.read_file(&users, LARGEST)? {
        Some(_) => Told::Hidden,
        None => Told::Unused,
    })
}

/// For operations that leave the record of the cluster as it is, or have none.
pub(crate) struct Unrecorded;

impl StateStore for Unrecorded {
    fn mark(&self, _mark: &PhaseUpdate) -> Result<()> {
        Ok(())
    }

    fn copies(&self) -> Result<Vec<FileToWrite>> {
        Ok(Vec::new())
    }

    fn clusterfile(&self) -> Result<String> {
        Ok(String::new())
    }
}
