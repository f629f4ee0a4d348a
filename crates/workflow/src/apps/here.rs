//! This machine as the one host on which commands run: in this process, by the user who runs it,
//! with that user's environment. Must not depend on clusters.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use imgctl_base::error::{Error, Result};
use imgctl_base::fs::atomic;
use imgctl_host::agent::execution::{self, Caller};
use imgctl_host::agent::protocol::{CheckedOut, Checkout, Outcome, OutputLine, Run};
use imgctl_host::agent::{Agent, tree};
use imgctl_host::host::{address::Address, address::SSH_PORT, login::Login};
use imgctl_model::context::Host;
use imgctl_runtime::HostPool;
use imgctl_store::store::Store;

/// Name of this machine in plans and journals.
const NAME: &str = "this-machine";
const PATH: &str = "PATH";
/// Search path of a user who has none.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Longest variable that is passed on, in bytes: the kernel's limit, less the name.
const LONGEST: usize = 100 << 10;

/// The pool of one host.
pub struct Here {
    store: Store,
    /// imgctl itself, which supervises commands.
    program: PathBuf,
    /// The user's environment, without what must not reach commands.
    inherited: BTreeMap<String, String>,
    path: String,
}

impl Here {
    /// `variables` is the environment of the user.
    pub fn new(store: Store, program: PathBuf, variables: &BTreeMap<String, String>) -> Arc<Self> {
        let is_own = |name: &str| {
            ["IMGCTL_", "SEALOS_", "BASH_", "LD_"].iter().any(|start| name.starts_with(start))
                || [PATH, "KUBECONFIG", "PWD", "OLDPWD", "SHLVL", "ENV", "_"].contains(&name)
        };
        let inherited = variables
            .iter()
            .filter(|(name, value)| !is_own(name) && value.len() < LONGEST && !name.is_empty())
            .map(|(name, value)| (name.clone(), value.clone()));
        let path = variables.get(PATH).filter(|path| !path.is_empty());
        Arc::new(Self {
            store,
            program,
            inherited: inherited.collect(),
            path: path.cloned().unwrap_or_else(|| USUAL_PATH.to_owned()),
        })
    }

    /// Returns this machine as a host of plans.
    pub fn host() -> Host {
        Host {
            address: Address { name: NAME.to_owned(), port: SSH_PORT },
            roles: Vec::new(),
            environment: BTreeMap::new(),
            login: Login::default(),
            local: true,
        }
    }
}

/// Hands out one agent to several owners.
pub struct Pool(pub Arc<Here>);

impl HostPool for Pool {
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
        if host.address.name == NAME {
            return Ok(Arc::<Here>::clone(&self.0));
        }
        Err(Error::failed(format!("{} is not a host of this cluster", host.id())))
    }
}

impl Agent for Here {
    fn host(&self) -> &str {
        NAME
    }

    /// The request's own `PATH` comes before that of the user.
    fn run(&self, request: &Run, output: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        let mut environment = self.inherited.clone();
        environment.extend(request.environment.clone());
        let path = match request.environment.get(PATH) {
            Some(first) => format!("{first}:{}", self.path),
            None => self.path.clone(),
        };
        environment.insert(PATH.to_owned(), path);
        let request = Run { environment, ..request.clone() };
        let caller = Caller { program: &self.program, gone: &|| false };
        execution::run(&request, &caller, output)
    }

    fn cancel(&self, directory: &str, key: &str) -> Result<()> {
        execution::cancel(directory, key)
    }

    fn checkout(&self, request: &Checkout, done: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut> {
        tree::checkout(&self.store, request, done)
    }

    fn remove(&self, paths: &[String]) -> Result<Vec<String>> {
        for path in paths {
            atomic::remove_tree(path.as_ref())?;
        }
        Ok(Vec::new())
    }
}
