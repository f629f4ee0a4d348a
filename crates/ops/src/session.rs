//! One command of a front end: this machine's clusters, the way to hosts and registries, the store.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::controller::Controller;
use crate::front_end::FrontEnd;
use crate::host_pool::Agents;
use crate::image_files::StoreFiles;
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Platform, Reference};
use imgctl_cluster::cluster::clusterfile::{Clusterfile, Surroundings};
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::cluster::image::ClusterImage;
use imgctl_cluster::cluster::local_addresses;
use imgctl_cluster::cluster::state::{State, States};
use imgctl_cluster::runtime::HostPool;
use imgctl_host::host::login;
use imgctl_registry::credentials::Login;
use imgctl_registry::{Client, ClientOptions};
use imgctl_store::store::Store;
use imgctl_transfer::transfer::plan::Selection;
use imgctl_transfer::transfer::pull::{Policy, PullOptions, pull};
use imgctl_transfer::transfer::{self, Input, LoadOptions};

/// The way to hosts.
#[derive(Clone, Debug)]
pub struct SshAccess {
    /// Login for new hosts, and instead of stored logins.
    pub login: login::Login,
    /// Port of hosts without a port of their own; `None`: 22.
    pub port: Option<u16>,
    pub settings: login::Settings,
}

/// Logins for a registry client.
pub enum Logins {
    /// All of the user's; a front end may ask for a password.
    OfUser,
    /// This one for every registry; without it, those in the user's files.
    Only(Option<Login>),
}

/// Creates a client's options. Called only if a registry is needed.
pub type RegistryAccess<'a> = Box<dyn Fn(Logins) -> Result<ClientOptions> + 'a>;
/// Opens the store on first use.
pub type StoreAccess<'a> = Box<dyn Fn() -> Result<Store> + 'a>;

/// Opened once for each operation.
pub struct Session<'a> {
    pub front: Box<dyn FrontEnd + 'a>,
    pub controller: Controller,
    pub ssh: SshAccess,
    registries: RegistryAccess<'a>,
    open_store: StoreAccess<'a>,
    store: OnceCell<Store>,
    pool: Option<Arc<dyn HostPool + Send>>,
}

impl<'a> Session<'a> {
    /// Opens nothing: `open_store` and `registries` are called on first use.
    pub fn new(
        front: Box<dyn FrontEnd + 'a>,
        controller: Controller,
        ssh: SshAccess,
        registries: RegistryAccess<'a>,
        open_store: StoreAccess<'a>,
    ) -> Self {
        let store = OnceCell::new();
        Self { front, controller, ssh, registries, open_store, store, pool: None }
    }

    /// Uses these hosts, which are not reached over SSH.
    #[must_use]
    pub fn with_hosts(self, pool: Arc<dyn HostPool + Send>) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// Returns the store.
    pub fn store(&self) -> Result<&Store> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = (self.open_store)()?;
        Ok(self.store.get_or_init(|| store))
    }

    /// Returns options of a registry client.
    pub(crate) fn client_options(&self, logins: Logins) -> Result<ClientOptions> {
        (self.registries)(logins)
    }

    /// Returns the directory of all clusters' state.
    pub fn state_root(&self) -> Result<&PathBuf> {
        self.controller.state_root.as_ref().ok_or_else(|| {
            Error::usage("cannot locate the state of clusters: HOME is not set")
                .hint("set SEALOS_RUNTIME_ROOT")
        })
    }

    /// Returns the state of `cluster`.
    pub fn state(&self, cluster: &str) -> Result<State> {
        States::new(self.state_root()?.clone()).of(cluster)
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

    /// Reads `names` for `platform` as images of `cluster`; images that are not in the store are
    /// pulled.
    pub fn images(
        &self,
        names: &[String],
        cluster: &str,
        platform: Option<&Platform>,
    ) -> Result<Vec<ClusterImage>> {
        let store = self.store()?;
        let mut client: Option<Client> = None;
        let mut images = Vec::new();
        for name in names {
            let loaded = match ClusterImage::load(store, cluster, name, platform) {
                Err(error) if error.kind() == Kind::NotFound => {
                    let client = match &client {
                        Some(client) => client,
                        None => client.insert(Client::new(self.client_options(Logins::OfUser)?)?),
                    };
                    let options = PullOptions {
                        selection: Selection::default(),
                        policy: Policy::Missing,
                        ..PullOptions::default()
                    };
                    let reference = Reference::parse(name)?;
                    pull(store, client, &reference, &options, self.front.reporter())
                        .context(|| format!("image {name} is not in the store"))?;
                    ClusterImage::load(store, cluster, name, platform)
                }
                loaded => loaded,
            };
            images.push(loaded?);
        }
        Ok(images)
    }

    /// Loads archives among the arguments and replaces them with the images they contain.
    pub(crate) fn loaded(&self, images: &[String]) -> Result<Vec<String>> {
        const ENDS: [&str; 8] =
            [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".oci", ".tzst"];
        let mut names = Vec::new();
        for image in images {
            let path = Path::new(image);
            if !ENDS.iter().any(|end| image.ends_with(end)) || !path.exists() {
                names.push(Reference::parse(image).map(|_| image.clone())?);
                continue;
            }
            let found = transfer::load(
                self.store()?,
                Input::Path(path),
                &LoadOptions::default(),
                self.front.reporter(),
            )?;
            let before = names.len();
            for image in &found {
                names.extend(image.references.first().map(ToString::to_string));
            }
            if names.len() == before {
                return Err(Error::bad_content(format!(
                    "cannot run {image}: it contains no image with a name"
                ))
                .hint(format!("name it with imgctl load {image} --tag NAME")));
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
        let directory = self.state(&clusterfile.cluster.name)?.directory().to_owned();
        let data_root = &self.controller.data_root;
        self.with_surroundings(|around| {
            ClusterContext::new(clusterfile, images, data_root, directory, around)
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
