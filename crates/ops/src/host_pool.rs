//! The hosts of a cluster, reached over SSH or as the local machine, each with its agent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

use crate::controller::Controller;
use imgctl_base::error::{Error, Result};
use imgctl_cluster::cluster::host::Host;
use imgctl_cluster::runtime::action::HostPool;
use imgctl_host::agent::Agent;
use imgctl_host::agent::install::{self, Binaries};
use imgctl_host::agent::remote::{Launch, Remote};
use imgctl_host::host::connect::Connections;
use imgctl_host::host::login::Settings;
use imgctl_host::host::reactor::reactor;

/// Connects to a host on first use, and keeps its agent.
pub(crate) struct Agents {
    connections: Connections,
    launch: Launch,
    runtime: Handle,
    /// One slot per host: hosts are called in parallel, and each only once.
    known: Mutex<BTreeMap<String, Arc<Place>>>,
}

type Place = Mutex<Option<Arc<dyn Agent>>>;

impl Agents {
    /// Creates the host pool without connecting.
    pub(crate) fn new(settings: Settings, controller: &Controller) -> Result<Self> {
        // Not current_exe(): the file may be replaced during the run.
        let own = std::path::PathBuf::from("/proc/self/exe");
        let binaries =
            Binaries::new(own, controller.agent.clone(), controller.agent_directory.clone());
        Ok(Self {
            connections: Connections::new(settings)?,
            launch: Launch {
                binaries: Arc::new(binaries),
                directory: install::DIRECTORY.to_owned(),
                root: None,
                data_root: controller.data_root.clone(),
            },
            runtime: reactor()?.handle().clone(),
            known: Mutex::default(),
        })
    }
}

impl HostPool for Agents {
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
        let place = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(host.id()).or_default())
        };
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = &*place {
            return Ok(Arc::clone(agent));
        }
        let transport = self
            .connections
            .connect(&host.address, &host.login, host.local)
            .map_err(|error| unreachable(host, error))?;
        let agent: Arc<dyn Agent> =
            Arc::new(Remote::new(transport, self.launch.clone(), self.runtime.clone()));
        *place = Some(Arc::clone(&agent));
        Ok(agent)
    }
}

/// Adds the host to an error whose message does not name it.
fn unreachable(host: &Host, error: Error) -> Error {
    if error.message().contains(&host.address.name) {
        return error;
    }
    error.context(format!("host {} cannot be reached", host.id()))
}
