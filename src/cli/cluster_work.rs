//! One command on one cluster: its current and desired state, the plan between them, and its
//! execution.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use crate::cli::cluster_keeper::ClusterKeeper;
use crate::cli::cluster_options::{self, data_root, state, with_surroundings};
use crate::cli::context::Context;
use crate::cli::duration;
use crate::cli::host_pool::Agents;
use crate::cli::image_files::StoreFiles;
use crate::cli::plan_view;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::registry_password;
use crate::cli::signals;
use crate::cli::ssh_options::SshArgs;
use crate::ui::events::JsonEvents;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Platform;
use imgctl_cluster::cluster::clusterfile::{Clusterfile, HostGroup};
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::cluster::diff::{self, diff};
use imgctl_cluster::cluster::image::{ClusterImage, ImageKind, check_together};
use imgctl_cluster::cluster::registry_access::{self, ImageSays};
use imgctl_cluster::cluster::state::{Held, State};
use imgctl_cluster::pipeline::change::Planned;
use imgctl_cluster::pipeline::event::{Both, Listener, NullListener};
use imgctl_cluster::pipeline::execution_context::{ExecutionContext, StateStore};
use imgctl_cluster::pipeline::executor::{Options, Summary, Surroundings, execute};
use imgctl_cluster::pipeline::files::SyncedFiles;
use imgctl_cluster::pipeline::image_commands::Replacement;
use imgctl_cluster::pipeline::interrupt::Interrupt;
use imgctl_cluster::pipeline::nodes::Wait;
use imgctl_cluster::pipeline::redact::of_scene;
use imgctl_cluster::runtime::certificates::validity::Validity;
use imgctl_cluster::runtime::{ImageFiles as _, choice, registry};
use imgctl_cluster::upgrade::nodes;
use imgctl_cluster::upgrade::upgrade_store::refuse_while_open;
use imgctl_kube::lease::{self, Outage};

/// Flags of every verb that changes a cluster.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run options")]
pub(crate) struct WorkArgs {
    /// Show the plan and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Maximum number of hosts to work on concurrently
    #[arg(long, value_name = "N", default_value_t = 32)]
    parallel: usize,

    /// Timeout of a command on a host: 90s, 10m, 2h; 0: none [env: SEALOS_EXECUTION_TIMEOUT]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,

    /// Number of retries after a lost connection [env: SEALOS_MAX_RETRY]
    #[arg(long, value_name = "N")]
    retries: Option<u32>,

    /// Treat a step with an unknown outcome as done (may be repeated)
    #[arg(long, value_name = "STEP")]
    assume_done: Vec<String>,

    /// Repeat a step, whatever its recorded outcome (may be repeated)
    #[arg(long, value_name = "STEP")]
    redo: Vec<String>,

    /// Treat a missing variable in a .tmpl file as an error
    #[arg(long)]
    strict_templates: bool,

    /// Validity of certificates: 90d, 10y; `sealos`: 100 years [default: CAs 10 years, others 1]
    #[arg(long, value_name = "DURATION")]
    certificate_validity: Option<String>,

    /// For crash tests: die after this number of journal records
    #[cfg(feature = "testing")]
    #[arg(long, hide = true, value_name = "N", env = "IMGCTL_DIE_AFTER")]
    die_after: Option<u64>,
}

impl WorkArgs {
    /// Returns the flags for another run, without those that name steps of this run.
    pub(crate) fn of_another_run(&self) -> Self {
        Self { assume_done: Vec::new(), redo: Vec::new(), ..self.clone() }
    }

    /// Returns the flags for verbs that only read.
    pub(crate) fn look() -> Self {
        Self { dry_run: true, ..Self::default() }
    }
}

/// Verbs that are rejected while an upgrade is in progress.
const CHANGES_HALF: [&str; 6] = ["run", "apply", "add", "delete", "uninstall", "cert"];

/// A cluster to work on, locked for the lifetime of this value unless it is a dry run.
pub(crate) struct Work<'a> {
    pub(crate) context: &'a Context,
    pub(crate) args: &'a WorkArgs,
    pub(crate) state: State,
    /// The stored cluster; `None` if there is no such cluster.
    pub(crate) current: Option<Clusterfile>,
    /// Hosts that are not members but are treated as members, so that they are removed.
    pub(crate) also: Vec<HostGroup>,
    /// SSH settings for asking hosts before there is a plan.
    ssh: Option<SshArgs>,
    verb: String,
    /// The cluster's Lease, from the first access to its hosts on.
    lease: OnceLock<lease::Held>,
    /// The lock of the state directory; `None` for a dry run.
    held: Option<Held>,
}

/// Input of the planning.
pub(crate) struct Prepared {
    pub(crate) scene: ClusterContext,
    pub(crate) change: diff::Change,
    pub(crate) desired: Clusterfile,
    registry_is_new: bool,
}

impl Prepared {
    /// Removes `image` from the Clusterfile that is stored when the command has succeeded.
    pub(crate) fn forget_image(&mut self, image: &str) {
        let cluster = &mut self.desired.cluster;
        cluster.images.retain(|own| own != image);
        cluster.status.mounts.retain(|mount| mount.image != image);
    }
}

impl<'a> Work<'a> {
    /// Locks the cluster for `verb`; a dry run takes no lock.
    pub(crate) fn begin(
        verb: &str,
        cluster: &str,
        args: &'a WorkArgs,
        context: &'a Context,
    ) -> Result<Self> {
        let state = state(cluster, context)?;
        let held = match args.dry_run {
            true => None,
            false => Some(state.lock(verb, Timestamp::now().as_second())?),
        };
        if !args.dry_run && CHANGES_HALF.contains(&verb) {
            refuse_while_open(state.directory(), verb)?;
        }
        let current = match state.load()? {
            Some((clusterfile, notes)) => {
                notes.iter().for_each(|note| context.ui.note(note));
                Some(clusterfile)
            }
            None => None,
        };
        Ok(Self {
            context,
            args,
            state,
            current,
            also: Vec::new(),
            ssh: None,
            verb: verb.to_owned(),
            lease: OnceLock::new(),
            held,
        })
    }

    /// Sets the SSH settings of a verb that changes hosts, so that hosts can be asked for what this
    /// machine does not know about the cluster.
    pub(crate) fn over(mut self, ssh: &SshArgs) -> Self {
        self.ssh = Some(ssh.clone());
        self
    }

    /// Returns the stored cluster, which must exist.
    pub(crate) fn existing(&self) -> Result<&Clusterfile> {
        match &self.current {
            Some(current) => Ok(current),
            None => Err(self.state.require().err().unwrap_or_else(|| {
                Error::not_found(format!("there is no cluster `{}`", self.state.name()))
            })),
        }
    }

    /// Reads the images, computes the difference, and creates the cluster context.
    pub(crate) fn prepare(
        &self,
        desired: Clusterfile,
        registry: &RegistryArgs,
    ) -> Result<Prepared> {
        let names = &desired.cluster.images;
        let images =
            cluster_options::images(names, self.state.name(), None, registry, self.context)?;
        check_together(&images)?;
        self.scene(desired, images)
    }

    /// Prepares the cluster as stored, for removals: an image that is no longer in the store is
    /// used as it was recorded.
    pub(crate) fn recorded(&self, desired: Clusterfile) -> Result<Prepared> {
        let store = self.context.store()?;
        let mut images = Vec::new();
        for name in &desired.cluster.images {
            let mount = desired.cluster.status.mounts.iter().find(|mount| mount.image == *name);
            let read = ClusterImage::load(store, self.state.name(), name, None);
            images.push(match (read, mount) {
                // The installed image counts, not the one that the name refers to now.
                (Ok(image), Some(mount))
                    if mount.digest.as_deref() != Some(&image.digest.to_string())
                        && mount.digest.is_some() =>
                {
                    mount.image()
                }
                (Ok(image), _) => image,
                (Err(_), Some(mount)) => mount.image(),
                (Err(error), None) => return Err(error),
            });
        }
        self.scene(desired, images)
    }

    /// Like [`Self::prepare`], with images that have been read.
    pub(crate) fn scene(
        &self,
        desired: Clusterfile,
        images: Vec<ClusterImage>,
    ) -> Result<Prepared> {
        let data_root = data_root(&self.context.environment)?;
        let directory = self.state.directory().to_owned();
        let (mut scene, change) = with_surroundings(self.context, |surroundings| -> Result<_> {
            let mut current = self.current.clone();
            if let Some(current) = &mut current {
                current.cluster.hosts.extend_from_slice(&self.also);
            }
            let change = diff(current.as_ref(), &desired, surroundings)?;
            let scene = ClusterContext::new(&desired, images, &data_root, directory, surroundings)?;
            Ok((scene, change))
        })?;
        scene.leaving.clone_from(&change.remove);
        let registry_is_new = self.fill_registry(&mut scene)?;
        Ok(Prepared { scene, change, desired, registry_is_new })
    }

    /// Determines the access to the embedded registry, if an image contains one.
    fn fill_registry(&self, scene: &mut ClusterContext) -> Result<bool> {
        let Some(rootfs) = scene.rootfs() else {
            return Ok(false);
        };
        let has_script = rootfs.label(&["init-registry"]).is_some();
        let has_content =
            scene.images.iter().any(|image| image.layers.iter().any(|layer| layer.registry));
        if !has_script && !has_content {
            return Ok(false);
        }
        let files = self.files()?;
        let text = |path: &str| -> Result<Option<String>> {
            Ok(files.read(rootfs, path)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        let file = text(registry_access::FILE)?;
        let template = text(registry_access::TEMPLATE)?;
        let mut user = scene.environment.clone();
        user.extend(scene.flag_environment.clone());
        let decide = |user: &BTreeMap<String, String>| {
            registry_access::decide(
                ImageSays { file: file.as_deref(), template: template.as_deref() },
                &rootfs.environment,
                user,
                &scene.state_directory,
            )
        };
        let mut decided = decide(&user)?;
        let exists = self.current.as_ref().is_some_and(Clusterfile::exists);
        if let Some(ssh) = self.ssh.as_ref().filter(|_| decided.is_new && exists) {
            // Hosts that run a registry have its password.
            if let Some(password) = registry_password::of_hosts(scene, ssh, self.context)? {
                let name = registry_access::PASSWORD_VARIABLE.to_owned();
                user.insert(name, password.expose().to_owned());
                decided.access = decide(&user)?.access;
            }
        }
        scene.registry = Some(decided.access);
        Ok(decided.is_new)
    }

    /// Returns access to the files of images, for runtimes.
    pub(crate) fn files(&self) -> Result<StoreFiles<'a>> {
        Ok(StoreFiles { store: self.context.store()?, platform: None })
    }

    /// Plans with `plan`, and shows or executes the result. Returns `None` if it was a dry run.
    pub(crate) fn carry_out(
        &self,
        prepared: &Prepared,
        ssh: &SshArgs,
        force: bool,
        plan: impl FnOnce(&ExecutionContext<'_>, &ClusterContext) -> Result<Planned>,
    ) -> Result<Option<Summary>> {
        self.with_means(prepared, ssh, force, |means| {
            let planned = plan(means, &prepared.scene)?;
            self.carry_out_plan(&planned, means)
        })
    }

    /// Shows or executes the plan. Returns `None` for a dry run.
    pub(crate) fn carry_out_plan(
        &self,
        planned: &Planned,
        means: &ExecutionContext<'_>,
    ) -> Result<Option<Summary>> {
        let context = self.context;
        for host in &planned.behind {
            context.ui.note(&format!(
                "{host} has a different rootfs image than the cluster and keeps its files; run \
                 `imgctl upgrade` to upgrade it"
            ));
        }
        if self.args.dry_run {
            plan_view::show(planned, context)?;
            return Ok(None);
        }
        if planned.plan.destroys && !planned.plan.phases.is_empty() {
            plan_view::summary(planned, context)?;
            if !context.ui.confirm("Continue?")? {
                return Err(Error::new(Kind::Denied, "declined; nothing was changed"));
            }
        }
        self.execute(planned, &*means.keeper, &Interrupt::default()).map(Some)
    }

    /// Calls `act` with the execution context of pipelines.
    pub(crate) fn with_means<T>(
        &self,
        prepared: &Prepared,
        ssh: &SshArgs,
        force: bool,
        act: impl FnOnce(&ExecutionContext<'_>) -> Result<T>,
    ) -> Result<T> {
        let (context, scene) = (self.context, &prepared.scene);
        let (_, settings) = ssh.resolve(context)?;
        let store = context.store()?;
        let files = self.files()?;
        let runtime = choice::of(scene, &files, self.validity()?)?;
        let load = |scene: &ClusterContext, architecture: &str| -> Result<Vec<ClusterImage>> {
            let platform = Platform::parse(&format!("linux/{architecture}"))?;
            scene
                .images
                .iter()
                .map(|image| ClusterImage::load(store, &scene.name, &image.name, Some(&platform)))
                .collect()
        };
        let synced = SyncedFiles {
            images: &load,
            configs: prepared.desired.configs.clone(),
            strict: self.args.strict_templates,
            blobs: Arc::new(store.clone()),
        };
        let keeper: Arc<dyn StateStore> = Arc::new(ClusterKeeper::new(
            self.state.clone(),
            self.current.clone(),
            prepared.desired.clone(),
            scene,
            prepared.registry_is_new,
        ));
        let start = |scene: &ClusterContext, host: &imgctl_cluster::cluster::host::Host| {
            registry::registry_steps(scene, host, &files)
        };
        let clean = |scene: &ClusterContext, host: &imgctl_cluster::cluster::host::Host| {
            registry::clean_steps(scene, host, &files)
        };
        let means = ExecutionContext {
            crew: Arc::new(Agents::new(settings, context)?),
            runtime: &*runtime,
            files: &synced,
            registry: &start,
            clean_registry: &clean,
            keeper: Arc::clone(&keeper),
            parallel: self.args.parallel.max(1),
            copy_state: context.environment.switch("SEALOS_SYNC_WORKDIR")?.unwrap_or(true),
            force,
        };
        self.lock_out_others(scene, &means)?;
        act(&means)
    }

    /// Takes the cluster's Lease, which keeps other controllers away, for the lifetime of this
    /// value.
    fn lock_out_others(&self, scene: &ClusterContext, means: &ExecutionContext<'_>) -> Result<()> {
        let Some(held) = self.held.as_ref().filter(|_| self.lease.get().is_none()) else {
            return Ok(());
        };
        if !means.runtime.has_api() {
            return Ok(());
        }
        let exists = self.current.as_ref().is_some_and(Clusterfile::exists);
        let outage = match self.verb.as_str() {
            _ if !exists => Outage::Expect,
            "run" | "apply" | "add" | "delete" if !means.force => Outage::Fail,
            _ => Outage::Warn,
        };
        // `run --force` only repeats commands of images.
        let takes_over = means.force && self.verb != "run";
        let taken = lease::hold(
            Arc::new(nodes::any_api(scene, &means.crew)),
            &lease_holder(&self.verb, held.identity()?, self.context)?,
            takes_over,
            outage,
            lease::Times::default(),
            &|what| self.context.ui.note(what),
        );
        let taken = taken.map_err(|error| match error.kind() {
            Kind::Busy if matches!(self.verb.as_str(), "apply" | "delete" | "reset") => {
                error.hint("pass --force to take the cluster over: the other command stops then")
            }
            _ => error,
        })?;
        // Nobody else can have set it: a `Work` is used by one thread.
        let _ = self.lease.set(taken);
        Ok(())
    }

    /// Fails if another controller has taken the cluster over.
    pub(crate) fn check_lease(&self) -> Result<()> {
        self.lease.get().map_or(Ok(()), lease::Held::check)
    }

    /// Returns whether other controllers are locked out, or about to be.
    pub(crate) fn has_lease(&self) -> bool {
        self.lease.get().is_some()
    }

    /// Executes the plan; signals also trigger `interrupt`.
    pub(crate) fn execute(
        &self,
        planned: &Planned,
        keeper: &dyn StateStore,
        interrupt: &Interrupt,
    ) -> Result<Summary> {
        self.execute_again(planned, keeper, interrupt, &[], &NullListener)
    }

    /// Like [`Self::execute`], but repeats the steps in `again` whatever the journal says; `also`
    /// receives all events.
    pub(crate) fn execute_again(
        &self,
        planned: &Planned,
        keeper: &dyn StateStore,
        interrupt: &Interrupt,
        again: &[String],
        also: &dyn Listener,
    ) -> Result<Summary> {
        let context = self.context;
        signals::listen(interrupt)?;
        let json = JsonEvents::default();
        let view = context.ui.hosts_view();
        let listener: &dyn Listener = match (&view, context.ui.is_json()) {
            (_, true) => &json,
            (Some(view), _) => view,
            (None, _) => &NullListener,
        };
        let redactor = of_scene(&planned.scene);
        let surroundings = Surroundings {
            scene: &planned.scene,
            crew: Arc::clone(&planned.crew),
            redactor: &redactor,
            listener: &Both(listener, also),
            interrupt,
        };
        let mut options = self.options()?;
        options.redo.extend_from_slice(again);
        if let Some(lease) = self.lease.get() {
            let interrupt = interrupt.clone();
            lease.on_loss(move || interrupt.pause());
        }
        let outcome = execute(&planned.plan, &surroundings, &options);
        if let Err(error) = &outcome {
            self.check_lease()?;
            imgctl_cluster::pipeline::record::failed(keeper, error.message())?;
        }
        outcome
    }

    fn options(&self) -> Result<Options> {
        let environment = &self.context.environment;
        let timeout = match &self.args.timeout {
            Some(text) => Some(text.as_str()),
            None => environment.text("SEALOS_EXECUTION_TIMEOUT")?,
        };
        let timeout =
            timeout.map(duration::parse).transpose()?.filter(|limit| *limit > Duration::ZERO);
        let retries = match self.args.retries {
            Some(retries) => retries,
            None => match environment.text("SEALOS_MAX_RETRY")? {
                Some(text) => text.parse().map_err(|_| {
                    Error::usage(format!("SEALOS_MAX_RETRY is `{text}`, not a number"))
                })?,
                None => Options::default().retries,
            },
        };
        Ok(Options {
            parallel: self.args.parallel.max(1),
            retries,
            timeout,
            assume_done: self.args.assume_done.clone(),
            redo: self.args.redo.clone(),
            sync: self.context.settings.sync,
            #[cfg(feature = "testing")]
            die_after: self.args.die_after,
            controller: controller(),
            ..Options::default()
        })
    }

    /// Returns the value of `--certificate-validity`.
    pub(crate) fn validity(&self) -> Result<Validity> {
        match self.args.certificate_validity.as_deref() {
            None => Ok(Validity::default()),
            Some("sealos") => Ok(Validity::sealos()),
            Some(text) => Validity::of_leaves(validity_duration(text)?),
        }
    }
}

/// Parses a duration in which `y` is a year of 365 days.
fn validity_duration(text: &str) -> Result<Duration> {
    let years = text.strip_suffix('y').and_then(|years| years.parse::<u64>().ok());
    match years {
        Some(years) => Ok(Duration::from_secs(years.saturating_mul(365 * 86_400))),
        None => duration::parse(text),
    }
}

/// Describes this controller in the cluster's Lease. `identity` is that of a lock of this controller.
pub(crate) fn lease_holder(
    verb: &str,
    identity: String,
    context: &Context,
) -> Result<lease::Holder> {
    let user = match context.environment.text("SUDO_USER")? {
        None => context.environment.text("USER")?,
        user => user,
    };
    let uid = || match rustix::process::getuid() {
        uid if uid.is_root() => "root".to_owned(),
        uid => format!("user {}", uid.as_raw()),
    };
    Ok(lease::Holder {
        identity,
        host: controller(),
        user: user.map_or_else(uid, str::to_owned),
        verb: verb.to_owned(),
    })
}

/// Returns this machine's name, for journals and leases.
pub(crate) fn controller() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Applies `--cmd` to the image that it is meant for: the last of the installed ones.
pub(crate) fn replacement(command: &[String], images: &[String]) -> Result<Option<Replacement>> {
    match (command.is_empty(), images.last()) {
        (true, _) => Ok(None),
        (false, Some(image)) => {
            Ok(Some(Replacement { image: image.clone(), command: command.to_vec() }))
        }
        (false, None) => Err(Error::usage("--cmd requires an image to run")
            .hint("name the image whose CMD to replace")),
    }
}

/// Builds a pipeline change from the difference between two Clusterfiles.
pub(crate) fn change_of(
    verb: &str,
    prepared: &Prepared,
    replacement: Option<Replacement>,
    force: &[String],
    current: Option<&Clusterfile>,
) -> imgctl_cluster::pipeline::change::Change {
    let found = &prepared.change;
    let mut install = found.install.clone();
    for image in force {
        if !install.contains(image) {
            install.push(image.clone());
        }
    }
    // The image has the same name but different content: the former tree is removed.
    let replaced = current.map_or_else(Vec::new, |current| {
        let application = ImageKind::Application.as_str();
        current
            .cluster
            .status
            .mounts
            .iter()
            .filter(|mount| mount.kind == application)
            .filter(|mount| {
                prepared
                    .scene
                    .images
                    .iter()
                    .any(|image| image.name == mount.image && image.mount_name != mount.name)
            })
            .map(|mount| mount.name.clone())
            .collect()
    });
    imgctl_cluster::pipeline::change::Change {
        verb: verb.to_owned(),
        create: found.create,
        add: found.add.clone(),
        install,
        replacement,
        replaced,
        rerender: found.environment || found.configs,
        wait: Wait::default(),
    }
}
