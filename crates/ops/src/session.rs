//! One command of a front end: this machine as a controller of clusters, the way to hosts and
//! registries, the store.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

use crate::front_end::{FrontEnd, Logins};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Platform, Reference, Verdict};
use imgctl_base::quote::quote;
use imgctl_host::agent::Agent;
use imgctl_host::agent::install::{self, Binaries};
use imgctl_host::agent::remote::{Launch, Remote};
use imgctl_host::host::login::{self, Settings};
use imgctl_host::host::{connect::Connections, reactor::reactor};
use imgctl_layer::LayerPath;
use imgctl_model::clusterfile::{Clusterfile, Surroundings};
use imgctl_model::state::{State, States};
use imgctl_model::state_identity::StateIdentity;
use imgctl_model::{
    context::{ClusterContext, Host},
    image::ClusterImage,
    local_addresses, name,
};
use imgctl_registry::Client;
use imgctl_runtime::{HostPool, ImageFiles};
use imgctl_store::store::Store;
use imgctl_store::store::{
    images::content, remote_layers::tree_without_registry, resolve::misspelled,
};
use imgctl_transfer::transfer::pull::{Layers, Policy, PullOptions, pull};
use imgctl_transfer::transfer::{
    self, Input, LoadOptions, arbiter::Arbiter, location, plan::Selection,
};

/// This machine.
#[derive(Clone, Debug, Default)]
pub struct Controller {
    /// Directory of the clusters' state; `None` if it is not known.
    pub state_root: Option<PathBuf>,
    /// Decrypts the state of clusters, if it is encrypted.
    pub state_identity: StateIdentity,
    /// Directory of clusters' data on their hosts.
    pub data_root: String,
    /// Directory that `~` in a Clusterfile means.
    pub home: Option<PathBuf>,
    /// Variables that a Clusterfile may refer to.
    pub variables: BTreeMap<String, String>,
    /// Agent binary to install on hosts instead of this program, and directory of agent binaries
    /// for other architectures.
    pub agent: Option<PathBuf>,
    pub agent_directory: Option<PathBuf>,
    /// Who runs this program, for other controllers to read.
    pub user: Option<String>,
    /// Whether control planes get a copy of the state.
    pub copy_state: bool,
    /// Whether records must survive power loss.
    pub sync: bool,
}

impl Controller {
    /// Returns the directory of all clusters' state.
    pub fn state_root(&self) -> Result<&PathBuf> {
        self.state_root.as_ref().ok_or_else(|| {
            Error::usage("cannot locate the state of clusters: HOME is not set")
                .hint("set SEALOS_RUNTIME_ROOT")
        })
    }

    /// Returns the state of all clusters.
    pub(crate) fn states(&self) -> Result<States> {
        Ok(States::new(self.state_root()?.clone(), self.state_identity.clone()))
    }

    /// Returns the existing cluster that a command means: the one that was named, otherwise the only one,
    /// otherwise `default`.
    pub fn cluster_meant(&self, named: Option<&str>) -> Result<String> {
        let names = match (named, self.states()) {
            (Some(named), _) => return Ok(named.to_owned()),
            (None, Ok(states)) => states.names()?,
            // The command that needs the state says so.
            (None, Err(_)) => Vec::new(),
        };
        match names.as_slice() {
            [only] => Ok(only.clone()),
            _ => Ok(name::DEFAULT.to_owned()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct SshAccess {
    /// Login for new hosts; most operations also use it instead of recorded logins.
    pub login: login::Login,
    /// Port of hosts without a port of their own; `None`: 22.
    pub port: Option<u16>,
    pub settings: Settings,
}

/// Layers that an operation needs in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// All of them: this machine sends them.
    Layers,
    /// Those whose files this machine reads.
    FilesRead,
}

/// Opened once for each operation.
pub struct Session<'a> {
    pub front: Box<dyn FrontEnd + 'a>,
    pub controller: Controller,
    pub ssh: SshAccess,
    /// The hosts, unless they are reached over SSH or as this machine.
    pub pool: Option<Arc<dyn HostPool + Send>>,
}

impl Session<'_> {
    pub fn store(&self) -> Result<&Store> {
        self.front.store()
    }

    /// Returns the directory of all clusters' state.
    pub fn state_root(&self) -> Result<&PathBuf> {
        self.controller.state_root()
    }

    pub fn state(&self, cluster: &str) -> Result<State> {
        self.controller.states()?.of(cluster)
    }

    /// Calls `then` with the environment that a Clusterfile's references are resolved in.
    pub fn with_surroundings<T>(&self, then: impl FnOnce(&Surroundings<'_>) -> T) -> T {
        let lookup = |name: &str| self.controller.variables.get(name).cloned();
        then(&Surroundings {
            variable: &lookup,
            home: self.controller.home.clone(),
            local: local_addresses::all(),
        })
    }

    /// Reads `names` for `platform` as images of `cluster`. Pulls what is `needed` and not in the store.
    pub fn images(
        &self,
        names: &[String],
        cluster: &str,
        platform: Option<&Platform>,
        needed: Needed,
    ) -> Result<Vec<ClusterImage>> {
        let store = self.store()?;
        let mut client: Option<Client> = None;
        let mut images = Vec::new();
        for name in names {
            let loaded = ClusterImage::load(store, cluster, name, platform);
            let is_here = match &loaded {
                Err(error) => error.kind() != Kind::NotFound,
                Ok(_) => !store.resolve(name)?.has_remote_layers(),
            };
            if is_here {
                images.push(loaded?);
                continue;
            }
            if let (Err(_), Some(near)) = (&loaded, store.slip(name, true)?) {
                return Err(misspelled(name, &near));
            }
            let client = match &client {
                Some(client) => client,
                None => client.insert(Client::new(self.front.registry_options(Logins::OfUser)?)?),
            };
            let options = PullOptions {
                selection: Selection::default(),
                policy: Policy::Missing,
                layers: match needed {
                    Needed::Layers => Layers::All,
                    Needed::FilesRead => Layers::Only(ClusterImage::layers_read),
                },
                ..PullOptions::default()
            };
            let reference = Reference::parse(name)?;
            pull(store, client, &reference, &options, self.front.reporter()).context(|| {
                match loaded {
                    Ok(_) => format!("layers of image {name} are not in the store"),
                    Err(_) => format!("image {name} is not in the store"),
                }
            })?;
            images.push(ClusterImage::load(store, cluster, name, platform)?);
        }
        Ok(images)
    }

    /// Fails unless the policy admits each of these images of the store.
    pub(crate) fn admit(&self, names: &[String]) -> Result<()> {
        let (arbiter, store) = (self.arbiter()?, self.store()?);
        for name in names {
            let image = store.resolve(name)?;
            let _admitted: Verdict =
                arbiter.admit(store, &image).context(|| format!("cannot use image {name}"))?;
        }
        Ok(())
    }

    /// Returns who decides about images of the store and of archives.
    fn arbiter(&self) -> Result<Arbiter> {
        if !self.front.has_policy() {
            return Ok(Arbiter::everything());
        }
        let client = Client::new(self.front.registry_options(Logins::OfUser)?)?;
        Ok(Arbiter::policy(&client))
    }

    /// Loads archives among the arguments and replaces them with the images they contain: files whose
    /// name ends as that of an archive, paths that begin with `/`, `./` or `../`, and what
    /// `oci-archive:` and the like name.
    pub(crate) fn loaded(&self, images: &[String]) -> Result<Vec<String>> {
        const ENDS: [&str; 8] =
            [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".oci", ".tzst"];
        const STARTS: [&str; 3] = ["/", "./", "../"];
        let mut names = Vec::new();
        for image in images {
            if image.parse::<IpAddr>().is_ok() || image.parse::<SocketAddr>().is_ok() {
                return Err(Error::usage(format!("`{image}` is an address, not an image"))
                    .hint("separate hosts with commas: --masters 10.0.0.11,10.0.0.12"));
            }
            let place = location::archive(image.as_ref())?;
            let is_plain = place.path == Path::new(image);
            let is_path = STARTS.iter().any(|start| image.starts_with(start))
                || ENDS.iter().any(|end| image.ends_with(end));
            if is_plain && !is_path {
                names.push(Reference::parse(image).map(|_| image.clone())?);
                continue;
            }
            if !place.path.exists() {
                return Err(Error::not_found(format!("there is no file {image}"))
                    .hint("name an image, or the path of an archive that `imgctl save` wrote"));
            }
            let choice = place.name.clone();
            let options = LoadOptions { choice, ..LoadOptions::new(self.arbiter()?) };
            let input = Input::Path(&place.path);
            let found = transfer::load(self.store()?, input, &options, self.front.reporter())?;
            let before = names.len();
            for image in &found {
                names.extend(image.references.first().map(ToString::to_string));
            }
            if names.len() == before {
                return Err(Error::bad_content(format!(
                    "cannot run {image}: it contains no image with a name"
                ))
                .hint(format!("name it with imgctl load {} --tag NAME", quote(image))));
            }
        }
        Ok(names)
    }

    /// Returns the cluster of `clusterfile` with its images.
    pub fn cluster_context(
        &self,
        clusterfile: &Clusterfile,
        images: Vec<ClusterImage>,
    ) -> Result<ClusterContext> {
        let state = self.state(&clusterfile.cluster.name)?.files().clone();
        let data_root = &self.controller.data_root;
        self.with_surroundings(|around| {
            ClusterContext::new(clusterfile, images, data_root, state, around)
        })
    }

    /// Returns access to the files of images, for runtimes.
    pub(crate) fn image_files(&self) -> Result<StoreFiles<'_>> {
        Ok(StoreFiles { store: self.store()?, platform: None })
    }

    /// Returns the hosts of clusters, without connecting.
    pub(crate) fn hosts(&self) -> Result<Arc<dyn HostPool + Send>> {
        match &self.pool {
            Some(pool) => Ok(Arc::clone(pool)),
            None => Ok(Arc::new(Agents::new(self.ssh.settings.clone(), &self.controller)?)),
        }
    }
}

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
        let own = PathBuf::from("/proc/self/exe");
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

/// Maximum size of a configuration file, in bytes.
const LONGEST: u64 = 4 << 20;

/// Reads from the layers of the store.
pub(crate) struct StoreFiles<'a> {
    pub(crate) store: &'a Store,
    pub(crate) platform: Option<Platform>,
}

impl ImageFiles for StoreFiles<'_> {
    fn read(&self, image: &ClusterImage, path: &str) -> Result<Option<Vec<u8>>> {
        let what = || format!("cannot read {path} of image {}", image.name);
        let found = match self.store.image(&image.name, self.platform.as_ref()) {
            Ok(found) => found,
            // The cluster's image may be missing from this store, for example when a cluster is
            // only inspected.
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(error.context(what())),
        };
        let tree = tree_without_registry(self.store, &found)?;
        let path = LayerPath::parse(path.as_bytes()).context(what)?;
        let Ok(resolved) = tree.resolve(&path) else {
            return Ok(None);
        };
        let Some(entry) = tree.lookup(&resolved) else {
            return Ok(None);
        };
        content(self.store, &found, &entry, LONGEST).context(what)
    }
}
