//! Access to the API of a cluster, its hosts and registries: through the cluster's Clusterfile, or
//! a kubeconfig.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::inplace::pullers::{HostPuller, JobPuller};
use crate::inplace::{JOURNALS, KUBECONFIG_JOURNALS};
use crate::operation::Operation;
use crate::work::{RunOptions, Work, hold};
use crate::{front_end::Logins, session::Session};
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::make_private;
use imgctl_base::image::Digest;
use imgctl_inplace::pre_pull::{OrWithSecrets, Puller};
use imgctl_inplace::target::{Images, RegistryImages};
use imgctl_inplace::{object::Node, world::World};
use imgctl_journal::interrupt::Interrupt;
use imgctl_kube::lease::{self, Outage};
use imgctl_kube::{api::Api, client};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::state::Held;
use imgctl_registry::{Client, ClientOptions, credentials::Login};
use imgctl_runtime::{HostPool, nodes};

/// The cluster whose Pods to change.
#[derive(Clone, Debug)]
pub struct ClusterAccess {
    pub cluster: String,
    /// The API to use instead, whatever the cluster.
    pub kubeconfig: Option<PathBuf>,
}

/// How to pull new images to Nodes beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrePull {
    /// On the hosts with crictl.
    Ssh,
    /// With a short-lived Pod on each Node.
    Job,
    /// Not at all: pulling adds to the time out of service.
    None,
}

/// Connections to a cluster: its API, hosts and registries.
pub(super) struct Reach {
    pub(super) api: Arc<dyn Api>,
    pub(super) images: Box<dyn Images>,
    /// Name of the cluster; without a meaning if a kubeconfig is used.
    pub(super) cluster: String,
    /// Directory of the run journals.
    pub(super) journals: PathBuf,
    hosts: Option<Hosts>,
    lease: Option<lease::Held>,
    _held: Option<Held>,
}

struct Hosts {
    pool: Arc<dyn HostPool + Send>,
    hosts: Vec<Host>,
    runs: String,
}

impl Reach {
    /// `changes`: holds the cluster's locks for the lifetime of the value, here and in the API.
    pub(super) fn new(
        operation: Operation,
        access: &ClusterAccess,
        changes: bool,
        session: &Session<'_>,
    ) -> Result<Self> {
        let now = jiff::Timestamp::now().as_second();
        if let Some(file) = &access.kubeconfig {
            let journals = session.state_root()?.join(KUBECONFIG_JOURNALS);
            let held = changes.then(|| lock_of(file, &journals, operation, now)).transpose()?;
            let api = client::connect_kubeconfig(file)?;
            return Ok(Self {
                cluster: access.cluster.clone(),
                lease: match &held {
                    Some(held) => lease_if_allowed(Arc::clone(&api), held, operation, session)?,
                    None => None,
                },
                api,
                images: Box::new(images(None, session)?),
                journals,
                hosts: None,
                _held: held,
            });
        }
        let looking = RunOptions::look();
        let work = Work::begin(operation, &access.cluster, &looking, session)?;
        let context = work.recorded(work.existing()?.clone())?.context;
        let held = changes.then(|| work.state.lock(operation.name(), now)).transpose()?;
        let pool = session.hosts()?;
        let api = nodes::api(&context, &*pool)
            .map_err(|error| error.hint("pass --kubeconfig FILE to use an API directly"))?;
        let every = || Arc::new(nodes::any_api(&context, &pool));
        let lease = |held| hold(every(), held, operation, false, Outage::Fail, session);
        Ok(Self {
            cluster: access.cluster.clone(),
            api,
            images: Box::new(images(Some(&context), session)?),
            journals: work.state.directory().join(JOURNALS),
            lease: held.as_ref().map(lease).transpose()?,
            hosts: Some(Hosts { pool, runs: context.paths.runs(), hosts: context.hosts }),
            _held: held,
        })
    }

    /// Stops a run when another controller takes the cluster over.
    pub(super) fn stop_on_loss(&self, interrupt: &Interrupt) {
        if let Some(lease) = &self.lease {
            let interrupt = interrupt.clone();
            lease.on_loss(move || interrupt.pause());
        }
    }

    /// Fails if another controller has taken the cluster over.
    pub(super) fn check_lease(&self) -> Result<()> {
        self.lease.as_ref().map_or(Ok(()), lease::Held::check)
    }

    /// Returns the puller for Nodes; `None` if images are not pulled beforehand.
    pub(super) fn puller<'a>(
        &'a self,
        how: Option<PrePull>,
        world: &World,
    ) -> Result<Option<Box<dyn Puller + 'a>>> {
        let usual = if self.hosts.is_some() { PrePull::Ssh } else { PrePull::Job };
        let job = JobPuller { api: &*self.api, poll: Duration::from_secs(1) };
        Ok(match (how.unwrap_or(usual), &self.hosts) {
            (PrePull::None, _) => None,
            (PrePull::Job, _) => Some(Box::new(job)),
            (PrePull::Ssh, None) => {
                return Err(Error::usage("--pre-pull ssh needs a cluster whose hosts are known")
                    .hint("pass --pre-pull job, or --cluster instead of --kubeconfig"));
            }
            (PrePull::Ssh, Some(hosts)) => {
                let nodes = world.nodes.values().filter_map(|node| {
                    let host = host_of(&hosts.hosts, node)?;
                    Some((node.metadata.name.clone(), host))
                });
                Some(Box::new(OrWithSecrets {
                    node: HostPuller {
                        pool: &*hosts.pool,
                        hosts: nodes.collect(),
                        runs: hosts.runs.clone(),
                    },
                    secrets: job,
                }))
            }
        })
    }
}

fn host_of<'a>(hosts: &'a [Host], node: &Node) -> Option<&'a Host> {
    let addresses = &node.status.addresses;
    hosts.iter().find(|host| {
        addresses.iter().any(|one| one.address == host.ip()) || node.metadata.name == host.ip()
    })
}

/// Keeps apart the runs of this machine that use the same kubeconfig.
fn lock_of(kubeconfig: &Path, journals: &Path, operation: Operation, now: i64) -> Result<Held> {
    let path = std::path::absolute(kubeconfig).path("use", kubeconfig)?;
    let name = Digest::of(path.as_os_str().as_encoded_bytes());
    let directory = journals.join("locks").join(name.short());
    make_private(&directory)?;
    Held::acquire(&directory, &format!("the cluster of {}", path.display()), operation.name(), now)
}

/// Takes the cluster's Lease, or does without it if the user may not write Leases in `kube-system`.
fn lease_if_allowed(
    api: Arc<dyn Api>,
    held: &Held,
    operation: Operation,
    session: &Session<'_>,
) -> Result<Option<lease::Held>> {
    match hold(api, held, operation, false, Outage::Fail, session) {
        Err(error) if error.kind() == Kind::Denied => {
            let why = error.chain().join(": ");
            session.front.note(&format!("other controllers are not locked out: {why}"));
            Ok(None)
        }
        lease => lease.map(Some),
    }
}

/// Digests are useful but not worth a long wait: a plan works without them.
fn trying_once(session: &Session<'_>, logins: Logins) -> Result<ClientOptions> {
    let mut options = session.front.registry_options(logins)?;
    options.attempts.get_or_insert(1);
    Ok(options)
}

/// `cluster`: the cluster whose own registry is asked first.
fn images(cluster: Option<&ClusterContext>, session: &Session<'_>) -> Result<RegistryImages> {
    let mut images = RegistryImages {
        embedded: Vec::new(),
        embedded_client: None,
        client: Client::new(trying_once(session, Logins::OfUser)?)?,
        options: trying_once(session, Logins::Only(None))?,
    };
    if let Some(context) = cluster
        && let Some(own) = &context.registry
    {
        let login = Login::Password { user: own.username.clone(), password: own.password.clone() };
        let mut options = session.front.registry_options(Logins::Only(Some(login)))?;
        // The registry runs on the cluster's own hosts, usually without TLS.
        options.tls_verify = Some(false);
        options.attempts = Some(1);
        let hosts = context.registry_hosts();
        images.embedded = hosts.iter().map(|host| format!("{}:{}", host.ip(), own.port)).collect();
        images.embedded_client = Some(Client::new(options)?);
    }
    Ok(images)
}
