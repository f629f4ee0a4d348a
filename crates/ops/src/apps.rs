//! Applications on a cluster that is reached through a kubeconfig: installed, replaced by newer
//! versions, removed. The commands of their images run on this machine.

mod installed_here;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::apps::installed_here::InstalledHere;
use crate::front_end::Logins;
use crate::install::Additions;
use crate::operation::Operation;
use crate::session::{Needed, Session};
use crate::settings;
use crate::state_store::Unrecorded;
use crate::work::{RunOptions, Work, hold, replacement};
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic;
use imgctl_base::image::{Digest, Platform, Reference};
use imgctl_host::render::ConfigEdit;
use imgctl_kube::api::Api;
use imgctl_kube::client::narrow::{Narrowed, narrow};
use imgctl_kube::lease::Outage;
use imgctl_model::image::ClusterImage;
use imgctl_model::redact::of_cluster;
use imgctl_registry::Client;
use imgctl_runtime::ImageFiles as _;
use imgctl_transfer::transfer::mirror_place::{Place, PlaceName};
use imgctl_workflow::apps::here::{Here, Pool};
use imgctl_workflow::apps::objects::ObjectAccess;
use imgctl_workflow::apps::prune::Prune;
use imgctl_workflow::apps::record::{Installed, Records, State, application};
use imgctl_workflow::apps::target::{Registry, Target};
use imgctl_workflow::apps::{
    plan,
    plan::{Item, Way},
};
use imgctl_workflow::pipeline::change::Planned;
use imgctl_workflow::pipeline::image_commands::{UNINSTALL_SCRIPTS, uninstall_label};
use imgctl_workflow::pipeline::step::Plan;

/// The cluster, as the user names it.
#[derive(Clone, Debug)]
pub struct Access {
    pub kubeconfig: PathBuf,
    /// `None`: the current one.
    pub context: Option<String>,
}

/// Where embedded images go.
#[derive(Clone, Debug)]
pub struct Push {
    /// `HOST[:PORT][/PREFIX]`.
    pub registry: String,
    /// Whether references to them get their new names.
    pub rewrite: bool,
}

#[derive(Clone, Debug)]
pub struct AppInstallation {
    pub access: Access,
    /// Images or image archives, in installation order.
    pub images: Vec<String>,
    pub push: Option<Push>,
    pub prune: Prune,
    pub additions: Additions,
    /// Also run the commands of images that are installed.
    pub force: bool,
    pub options: RunOptions,
}

#[derive(Clone, Debug)]
pub struct AppRemoval {
    pub access: Access,
    /// Image, as it was installed, or its name without a tag.
    pub image: String,
    /// Also removes Namespaces, PersistentVolumeClaims and CustomResourceDefinitions.
    pub purge: bool,
    pub options: RunOptions,
}

/// Installs images on a cluster.
pub fn run(request: &AppInstallation, session: &Session<'_>) -> Result<()> {
    if request.additions.share_images.is_some() {
        return Err(Error::usage("--peers cannot be used with --kubeconfig")
            .hint("the hosts of that cluster are not imgctl's: nothing is done on them"));
    }
    if !request.additions.documents.iter().all(|one| one.documents.is_empty()) {
        return Err(Error::usage(
            "documents of kubeadm and k3s do not apply to a cluster that is reached through a \
             kubeconfig",
        )
        .hint("leave only Config documents in the file"));
    }
    let reached = Reached::new(&request.access)?;
    let work = Work::begin(Operation::Run, &reached.name, &request.options, session)?;
    let names = session.loaded(&request.images)?;
    let images = session.images(&names, &reached.name, None, Needed::Layers)?;
    session.admit(&names)?;
    plan::check(&images)?;
    let given = &request.additions.environment;
    settings::tell_misspelled(given, &images, session.front.as_ref())?;
    settings::check_images(&images, given)?;
    let registry = request.push.as_ref().map(|push| registry(&push.registry, session));
    let settings = Settings {
        registry: registry.transpose()?,
        rewrite: request.push.as_ref().is_some_and(|push| push.rewrite),
        environment: request.additions.environment.clone(),
        configs: request.additions.documents.iter().flat_map(|one| one.configs.clone()).collect(),
        strict: request.options.strict_templates,
    };
    if let Some(note) = foreign_architectures(&*reached.api, &images) {
        session.front.note(&note);
    }
    let mut known = Records::new(Arc::clone(&reached.api)).all()?;
    let mut items = Vec::new();
    let mut seen = BTreeSet::new();
    for image in &images {
        let application = application(&image.name)?;
        if !seen.insert(application.clone()) {
            return Err(Error::usage(format!("{application} is named twice"))
                .hint("a cluster has one version of an application"));
        }
        let installed = Installed {
            application: application.clone(),
            image: image.name.clone(),
            digest: image.digest.clone(),
            state: State::Installing,
            time: String::new(),
            registry: settings.registry.as_ref().map(Registry::name),
            objects: Vec::new(),
            former: Vec::new(),
            releases: BTreeSet::new(),
        };
        items.push(Item { image: image.clone(), installed, known: known.remove(&application) });
    }
    let replaced = replacement(&request.additions.command, &names)?;
    let operation = AppsOperation::new(reached, images, settings, &work)?;
    let plan =
        plan::install(&operation.target, &items, replaced.as_ref(), request.prune, request.force)?;
    if !request.options.dry_run {
        let mut here = InstalledHere::read(work.state.files())?;
        for Item { installed, .. } in &items {
            here.add(&installed.application, &installed.digest);
        }
        here.write(work.state.files())?;
    }
    operation.carry_out(plan, &work)
}

/// Removes an application from a cluster.
pub fn uninstall(request: &AppRemoval, session: &Session<'_>) -> Result<()> {
    let reached = Reached::new(&request.access)?;
    let work = Work::begin(Operation::Uninstall, &reached.name, &request.options, session)?;
    let known = Records::new(Arc::clone(&reached.api)).all()?;
    let installed = find(&known, &request.image)?;
    let here = InstalledHere::read(work.state.files())?;
    let way = way(installed, &request.image, &here, &reached.name, session)?;
    let images = match &way {
        Way::Command(image) => vec![(**image).clone()],
        Way::Objects(_) => Vec::new(),
    };
    let operation = AppsOperation::new(reached, images, Settings::default(), &work)?;
    let prune = if request.purge { Prune::All } else { Prune::Objects };
    let plan = plan::uninstall(&operation.target, installed, &way, prune)?;
    operation.carry_out(plan, &work)?;
    if request.options.dry_run {
        return Ok(());
    }
    let mut here = here;
    here.forget(&installed.application);
    here.write(work.state.files())
}

/// Returns whether an argument names one version: a tag or a digest.
fn is_version(image: &str) -> bool {
    image.rsplit('/').next().is_some_and(|last| last.contains([':', '@']))
}

/// Returns the installed application that an image or a name without a tag means.
fn find<'a>(known: &'a BTreeMap<String, Installed>, image: &str) -> Result<&'a Installed> {
    let reference = Reference::parse(image)?.on_docker_hub();
    let is_meant = |one: &&Installed| {
        !is_version(image)
            || reference.digest() == Some(&one.digest)
            || Reference::parse(&one.image).is_ok_and(|other| other.on_docker_hub() == reference)
    };
    known.get(&reference.name()).filter(is_meant).ok_or_else(|| {
        let names: Vec<&str> = known.values().map(|one| one.image.as_str()).collect();
        Error::not_found(format!("{image} is not installed on this cluster")).hint(
            if names.is_empty() {
                "imgctl has installed nothing there through a kubeconfig".to_owned()
            } else {
                format!("it has {}", names.join(", "))
            },
        )
    })
}

/// Decides how an application is removed. The image says so, but anybody with access to the cluster can
/// write into its record which image that is. So it must be one that the user has named (`named`), or
/// that this machine has installed.
fn way(
    installed: &Installed,
    named: &str,
    here: &InstalledHere,
    cluster: &str,
    session: &Session<'_>,
) -> Result<Way> {
    let mut names = Vec::new();
    if is_version(named) {
        names.push(named.to_owned());
    }
    let is_own = here.has(&installed.application, &installed.digest);
    if is_own {
        // Nothing is pulled by a tag that only the record knows.
        let stored = ClusterImage::load(session.store()?, cluster, &installed.image, None);
        if stored.is_ok_and(|stored| stored.digest == installed.digest) {
            names.push(installed.image.clone());
        }
        names.push(format!("{}@{}", installed.application, installed.digest));
    }
    let mut failure = None;
    for name in &names {
        match session.images(std::slice::from_ref(name), cluster, None, Needed::Layers) {
            Ok(images) => {
                let image = images.into_iter().find(|image| image.digest == installed.digest);
                let Some(image) = image else { continue };
                session.admit(std::slice::from_ref(name))?;
                let files = session.image_files()?;
                let mut has_own = uninstall_label(&image).is_some();
                for script in UNINSTALL_SCRIPTS {
                    has_own = has_own || files.read(&image, script)?.is_some();
                }
                return Ok(if has_own {
                    Way::Command(Box::new(image))
                } else {
                    Way::Objects("the image has no command for its removal")
                });
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        None if names.is_empty() => Ok(Way::Objects(
            "this machine has not installed it, so a command of its image does not run (name the \
             image with its tag or digest to run it)",
        )),
        None => Ok(Way::Objects(
            "the image of that name is another one here, so its command does not run",
        )),
        Some(error) => Err(error
            .context(format!(
                "cannot tell how {} ({}) is removed",
                installed.image, installed.digest
            ))
            .hint(
                "pull or load that image (imgctl pull, imgctl load): it may have a command for it",
            )),
    }
}

/// Opens the registry for pushes.
fn registry(name: &str, session: &Session<'_>) -> Result<Registry> {
    let PlaceName::Registry { host, prefix } =
        PlaceName::parse(format!("docker://{name}").as_ref())
            .context(|| "cannot use --registry".to_owned())?
    else {
        return Err(Error::usage(format!("--registry {name} is not a registry")));
    };
    let client = Client::new(session.front.registry_options(Logins::OfUser)?)?;
    let place = Place::Registry { client, host: host.clone(), prefix: prefix.clone() };
    Ok(Registry { place, host, prefix })
}

/// Returns a note if Nodes have architectures that the images were not loaded for.
fn foreign_architectures(api: &dyn Api, images: &[ClusterImage]) -> Option<String> {
    if !images.iter().any(|image| image.layers.iter().any(|layer| layer.registry)) {
        return None;
    }
    // Users without access to Nodes may install applications all the same.
    let nodes = api.list("/api/v1/nodes").ok()?;
    let own = Platform::host().architecture;
    let others: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| node["status"]["nodeInfo"]["architecture"].as_str())
        .filter(|architecture| *architecture != own)
        .collect();
    let others: Vec<&str> = others.into_iter().collect();
    (!others.is_empty()).then(|| {
        format!(
            "some Nodes are {}, but the embedded images are those for {own}, the architecture of \
             this machine",
            others.join(", ")
        )
    })
}

/// A cluster whose API server has answered.
struct Reached {
    narrowed: Narrowed,
    api: Arc<dyn Api>,
    /// Name of the cluster's state on this machine.
    name: String,
    version: String,
}

impl Reached {
    fn new(access: &Access) -> Result<Self> {
        let narrowed = narrow(&access.kubeconfig, access.context.as_deref())?;
        let doing = || {
            format!(
                "cannot reach the cluster of {} (context {})",
                access.kubeconfig.display(),
                narrowed.context
            )
        };
        let api = narrowed.connect().context(doing)?;
        let system = api.get("/api/v1/namespaces/kube-system").map_err(|error| {
            let is_forbidden = error.code == 403;
            let error = Error::from(error).context(doing());
            if !is_forbidden {
                return error;
            }
            error.hint(
                "imgctl identifies a cluster by the UID of Namespace kube-system, locks them with \
                 a Lease there, and keeps records in imgctl-system: docs/applications.md lists the \
                 permissions that it needs",
            )
        })?;
        let uid = system["metadata"]["uid"].as_str().unwrap_or_default();
        if uid.is_empty() {
            return Err(Error::bad_content("Namespace kube-system has no UID").context(doing()));
        }
        let version = api.get("/version").map_err(Error::from).context(doing)?;
        let version = version["gitVersion"].as_str().unwrap_or_default().to_owned();
        let digest = Digest::of(uid.as_bytes());
        Ok(Self { name: format!("kube-{}", &digest.hex()[..12]), narrowed, api, version })
    }
}

#[derive(Default)]
struct Settings {
    registry: Option<Registry>,
    rewrite: bool,
    environment: BTreeMap<String, String>,
    configs: Vec<ConfigEdit>,
    strict: bool,
}

/// An operation that is planned and then carried out.
struct AppsOperation {
    target: Arc<Target>,
    narrowed: Narrowed,
    here: Arc<Here>,
}

impl AppsOperation {
    fn new(
        reached: Reached,
        images: Vec<ClusterImage>,
        settings: Settings,
        work: &Work<'_>,
    ) -> Result<Self> {
        let Reached { narrowed, api, name, version } = reached;
        let session = work.session;
        let held = work.held();
        if let Some(held) = held {
            let api = Arc::clone(&api);
            let taken = hold(api, held, work.operation, false, Outage::Fail, session)?;
            work.keep_lease(taken);
        }
        let directory = work.state.directory().to_owned();
        let program = own_program(session.controller.agent.as_deref());
        let variables = &session.controller.variables;
        let here = Here::new(session.store()?.clone(), program.clone(), variables);
        let target = Target {
            context: Arc::new(Target::context(
                &name,
                images,
                directory.clone(),
                settings.environment,
            )),
            access: ObjectAccess::new(api),
            version,
            namespace: narrowed.namespace.clone(),
            kubeconfig: directory.join("etc").join("kubeconfig"),
            program,
            architecture: Platform::host().architecture,
            registry: settings.registry,
            rewrite: settings.rewrite,
            configs: settings.configs,
            strict: settings.strict,
        };
        Ok(Self { target: Arc::new(target), narrowed, here })
    }

    fn carry_out(&self, mut plan: Plan, work: &Work<'_>) -> Result<()> {
        let context = &self.target.context;
        plan.redact(&of_cluster(context));
        if !work.options.dry_run && !plan.destroys {
            plan.notes.iter().for_each(|note| work.session.front.note(note));
        }
        let planned = Planned {
            plan,
            context: Arc::clone(context),
            pool: Arc::new(Pool(Arc::clone(&self.here))),
            behind: BTreeSet::new(),
            refusal: None,
        };
        let file = &self.target.kubeconfig;
        // Commands of a run that was killed may still use it.
        let _removed = (!work.options.dry_run).then(|| Removed(file));
        if !work.options.dry_run {
            atomic::write_private(file, self.narrowed.text.expose())?;
        }
        let outcome = work.carry_out_with(&planned, &Unrecorded, false)?;
        work.session.front.show(&outcome)
    }
}

/// A file that is removed at the end.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        match std::fs::remove_file(self.0).path("remove", self.0) {
            Err(error) if error.kind() != Kind::NotFound => tracing::warn!("{error}"),
            _ => {}
        }
    }
}

/// Returns the program that supervises commands and wraps kubectl: this one, by a name that outlives
/// this process.
fn own_program(given: Option<&Path>) -> PathBuf {
    if let Some(given) = given {
        return given.to_owned();
    }
    let own = Path::new("/proc/self/exe");
    let named = own.read_link().ok().filter(|path| path.is_absolute() && path.is_file());
    named.unwrap_or_else(|| PathBuf::from(format!("/proc/{}/exe", std::process::id())))
}
