//! Access to the API of a cluster, its hosts and registries: through the cluster's Clusterfile, or
//! a kubeconfig.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::{AccessArgs, PrePull};
use crate::cli::cluster_options::runtime_root;
use crate::cli::cluster_work::{Work, WorkArgs};
use crate::cli::context::Context;
use crate::cli::host_pool::Agents;
use imgctl_base::error::{Error, Result};
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::cluster::host::Host;
use imgctl_cluster::cluster::state::Held;
use imgctl_cluster::inplace::host_puller::HostPuller;
use imgctl_cluster::inplace::job_puller::JobPuller;
use imgctl_cluster::inplace::object::Node;
use imgctl_cluster::inplace::pre_pull::{OrWithSecrets, Puller};
use imgctl_cluster::inplace::target::{Images, RegistryImages};
use imgctl_cluster::inplace::world::World;
use imgctl_cluster::upgrade::nodes;
use imgctl_kube::api::Api;
use imgctl_kube::client;
use imgctl_registry::credentials::Login;
use imgctl_registry::{Client, ClientOptions};

/// Connections to a cluster: its API, hosts and registries.
pub(super) struct Reach {
    pub(super) api: Arc<dyn Api>,
    pub(super) images: Box<dyn Images>,
    /// Directory of the run journals.
    pub(super) journals: PathBuf,
    hosts: Option<Hosts>,
    _held: Option<Held>,
}

struct Hosts {
    crew: Agents,
    hosts: Vec<Host>,
    runs: String,
}

impl Reach {
    /// `changes`: holds the cluster's lock for the lifetime of the value.
    pub(super) fn new(
        verb: &str,
        access: &AccessArgs,
        changes: bool,
        context: &Context,
    ) -> Result<Self> {
        if let Some(file) = &access.kubeconfig {
            return Ok(Self {
                api: client::connect_kubeconfig(file)?,
                images: Box::new(RegistryImages {
                    embedded: Vec::new(),
                    embedded_client: None,
                    client: client_of(access, context)?,
                    options: options_of(access, context)?,
                }),
                // Cluster names never begin with a dot.
                journals: runtime_root(&context.environment)?.join(".inplace"),
                hosts: None,
                _held: None,
            });
        }
        let looking = WorkArgs::look();
        let work = Work::begin(verb, &access.cluster, &looking, context)?;
        let prepared = work.recorded(work.existing()?.clone())?;
        let scene = prepared.scene;
        let now = jiff::Timestamp::now().as_second();
        let held = changes.then(|| work.state.lock(verb, now)).transpose()?;
        let (_, settings) = access.ssh.resolve(context)?;
        let crew = Agents::new(settings, context)?;
        Ok(Self {
            api: api(&scene, &crew)?,
            images: Box::new(images(&scene, access, context)?),
            journals: work.state.directory().join("inplace"),
            hosts: Some(Hosts { crew, runs: scene.paths.runs(), hosts: scene.hosts }),
            _held: held,
        })
    }

    /// Returns the puller for Nodes; `None` if images are not pulled beforehand.
    pub(super) fn puller<'a>(
        &'a self,
        how: Option<PrePull>,
        world: &World,
    ) -> Result<Option<Box<dyn Puller + 'a>>> {
        let how = how.unwrap_or(match self.hosts {
            Some(_) => PrePull::Ssh,
            None => PrePull::Job,
        });
        let job = JobPuller { api: &*self.api, poll: Duration::from_secs(1) };
        Ok(match (how, &self.hosts) {
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
                        crew: &hosts.crew,
                        hosts: nodes.collect(),
                        runs: hosts.runs.clone(),
                    },
                    secrets: job,
                }))
            }
        })
    }
}

/// Returns the host that a Node runs on.
fn host_of<'a>(hosts: &'a [Host], node: &Node) -> Option<&'a Host> {
    let addresses = &node.status.addresses;
    hosts.iter().find(|host| {
        addresses.iter().any(|one| one.address == host.ip()) || node.metadata.name == host.ip()
    })
}

/// Returns the API of the first control plane that answers.
fn api(scene: &ClusterContext, crew: &Agents) -> Result<Arc<dyn Api>> {
    nodes::api(scene, crew)
        .map_err(|error| error.hint("pass --kubeconfig FILE to use an API directly"))
}

/// Client options for clients that use other logins.
fn options_of(access: &AccessArgs, context: &Context) -> Result<ClientOptions> {
    let mut options = access.registry.options(context, None)?;
    options.retries.get_or_insert(1);
    Ok(options)
}

/// Digests are useful but not worth a long wait: a plan works without them.
fn client_of(access: &AccessArgs, context: &Context) -> Result<Client> {
    let mut registry = access.registry.clone();
    registry.retry.get_or_insert(1);
    registry.client(context)
}

fn images(
    scene: &ClusterContext,
    access: &AccessArgs,
    context: &Context,
) -> Result<RegistryImages> {
    let client = client_of(access, context)?;
    let Some(own) = &scene.registry else {
        return Ok(RegistryImages {
            embedded: Vec::new(),
            embedded_client: None,
            client,
            options: options_of(access, context)?,
        });
    };
    let login = Login::Password { user: own.username.clone(), password: own.password.clone() };
    let mut options = access.registry.options(context, Some(login))?;
    // The registry runs on the cluster's own hosts, usually without TLS.
    options.tls_verify = Some(false);
    options.retries = Some(1);
    let hosts = scene.registry_hosts();
    Ok(RegistryImages {
        embedded: hosts.iter().map(|host| format!("{}:{}", host.ip(), own.port)).collect(),
        embedded_client: Some(Client::new(options)?),
        client,
        options: options_of(access, context)?,
    })
}
