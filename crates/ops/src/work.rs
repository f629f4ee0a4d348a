//! One operation on one cluster: its current and desired state, the plan between them, and its
//! execution.

mod afterwards;
mod attempts;
mod images;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;

use crate::adopted;
use crate::front_end::{Announcement, Consent, Outcome};
use crate::hosts::log_in;
use crate::operation::{Open, Operation};
pub use crate::run_options::RunOptions;
use crate::session::Session;
use crate::state_store::{ClusterStateStore, password_of_hosts};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Platform;
use imgctl_journal::event::{Both, Listener, NullListener};
use imgctl_journal::interrupt::Interrupt;
use imgctl_kube::api::Api;
use imgctl_kube::lease::{self, Outage};
use imgctl_model::clusterfile::{Clusterfile, HostGroup, Mount};
use imgctl_model::context::{ClusterContext, Host, RegistryAccess};
use imgctl_model::image::{ClusterImage, ImageKind};
use imgctl_model::redact::of_cluster;
use imgctl_model::registry_password;
use imgctl_model::state::{Held, State, own_name};
use imgctl_model::uid;
use imgctl_model::{diff, diff::diff};
use imgctl_model::{registry_access, registry_access::ImageSays};
use imgctl_runtime::certificates::rotation;
use imgctl_runtime::{ImageFiles as _, choice, nodes, registry};
use imgctl_upgrade::upgrade_store::refuse_while_open;
use imgctl_workflow::apps::{managed::Managed, prune::Prune};
use imgctl_workflow::pipeline::change::{Change, Planned};
use imgctl_workflow::pipeline::execution_context::{ExecutionContext, StateStore};
use imgctl_workflow::pipeline::executor::decision::{Decision, decide};
use imgctl_workflow::pipeline::step::{PlanView, Step};
use imgctl_workflow::pipeline::{
    executor,
    executor::{Options, Summary, Surroundings},
};
use imgctl_workflow::pipeline::{
    files::{KeptFiles, SyncedFiles},
    hooks,
    image_commands::Replacement,
    nodes::Wait,
};

/// A cluster to work on, locked for the lifetime of this value unless it is a dry run.
pub(crate) struct Work<'a> {
    pub(crate) session: &'a Session<'a>,
    pub(crate) options: &'a RunOptions,
    pub(crate) operation: Operation,
    pub(crate) state: State,
    /// The stored cluster; `None` if there is no such cluster.
    pub(crate) current: Option<Clusterfile>,
    /// Hosts that are not members but are treated as members, so that they are removed.
    pub(crate) also: Vec<HostGroup>,
    /// Which objects of applications are removed.
    pub(crate) prune: Prune,
    /// Whether hosts may be asked before there is a plan.
    asks_hosts: bool,
    /// The cluster's Lease, from the first access to its hosts on.
    lease: OnceLock<lease::Held>,
    /// The lock of the state directory; `None` for a dry run.
    held: Option<Held>,
}

/// Input of the planning.
pub(crate) struct Prepared {
    pub(crate) context: ClusterContext,
    pub(crate) change: diff::Change,
    pub(crate) desired: Clusterfile,
    registry_is_new: bool,
    /// Hosts keep the files that they have, because this machine lacks those of the images.
    pub(crate) keeps_files: bool,
}

impl Prepared {
    /// Removes `image` from the Clusterfile that is stored when the command has succeeded.
    pub(crate) fn forget_image(&mut self, image: &str) {
        let cluster = &mut self.desired.cluster;
        cluster.images.retain(|own| own != image);
        cluster.status.mounts.retain(|mount| mount.image != image);
    }

    /// Uses this access to the embedded registry in place of the recorded one.
    pub(crate) fn use_registry(&mut self, access: RegistryAccess) {
        self.context.registry = Some(access);
        self.registry_is_new = false;
    }
}

impl<'a> Work<'a> {
    /// Locks the cluster for the operation; a dry run takes no lock.
    pub(crate) fn begin(
        operation: Operation,
        cluster: &str,
        options: &'a RunOptions,
        session: &'a Session<'a>,
    ) -> Result<Self> {
        let state = session.state(cluster)?;
        let verb = operation.name();
        // A mistyped name must not leave a directory with a lock behind.
        if operation.needs_cluster() {
            state.require()?;
        }
        let lock = || state.lock(verb, Timestamp::now().as_second());
        let held = (!options.dry_run).then(lock).transpose()?;
        if !options.dry_run && !operation.may_run_beside(Open::Upgrade) {
            refuse_while_open(state.files(), verb)?;
        }
        if !options.dry_run && !operation.may_run_beside(Open::AuthorityRotation) {
            rotation::refuse_while_open(state.files(), verb)?;
        }
        if !options.dry_run && !operation.may_run_beside(Open::RegistryPassword) {
            registry_password::refuse_while_open(state.files(), verb)?;
        }
        let current = match state.load()? {
            Some((clusterfile, notes)) => {
                notes.iter().for_each(|note| session.front.note(note));
                Some(with_uid(clusterfile)?)
            }
            None => None,
        };
        Ok(Self {
            session,
            options,
            operation,
            state,
            current,
            also: Vec::new(),
            prune: Prune::Nothing,
            asks_hosts: false,
            lease: OnceLock::new(),
            held,
        })
    }

    /// Like [`Self::begin`]; hosts are asked for what this machine does not know about the cluster.
    pub(crate) fn begin_asking_hosts(
        operation: Operation,
        cluster: &str,
        options: &'a RunOptions,
        session: &'a Session<'a>,
    ) -> Result<Self> {
        Ok(Self { asks_hosts: true, ..Self::begin(operation, cluster, options, session)? })
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

    /// Returns whether the stored cluster was adopted and has no rootfs image.
    pub(crate) fn has_no_image(&self) -> bool {
        self.current.as_ref().is_some_and(adopted::has_no_image)
    }

    /// Returns the pipeline change from the stored cluster to the prepared one.
    pub(crate) fn change(&self, prepared: &Prepared, wait: Wait) -> Result<Change> {
        let found = &prepared.change;
        // The image has the same name but different content: the former tree is removed.
        let is_replaced = |mount: &&Mount| {
            mount.kind == ImageKind::Application.as_str()
                && prepared
                    .context
                    .images
                    .iter()
                    .any(|image| image.name == mount.image && image.mount_name != mount.name)
        };
        let mounts = self.current.iter().flat_map(|current| &current.cluster.status.mounts);
        let first_image = self.has_no_image() && prepared.context.has_rootfs_image();
        // Commands of a rootfs image make a cluster complete: an adopted one is.
        let rootfs = prepared.context.rootfs().filter(|_| first_image).map(|image| &image.name);
        let installs = found.install.iter().filter(|name| Some(*name) != rootfs);
        Ok(Change {
            verb: self.operation.name().to_owned(),
            create: found.create,
            add: found.add.clone(),
            install: installs.cloned().collect(),
            replacement: None,
            replaced: mounts.filter(is_replaced).map(|mount| mount.name.clone()).collect(),
            rerender: found.environment || found.configs,
            first_image,
            renewal: self.current.as_ref().is_some_and(|current| {
                current.exists()
                    && current.cluster.renew_certificates != prepared.context.renew_certificates
            }),
            sharing: self.current.as_ref().is_some_and(|current| {
                let shares = current.cluster.share_images.unwrap_or(false);
                current.exists() && shares != prepared.context.share_images.unwrap_or(false)
            }),
            prune: Vec::new(),
            begun: self.begun()?,
            wait,
            restore: None,
        })
    }

    /// Returns the IDs of hosts on which runs of this cluster have begun to work.
    fn begun(&self) -> Result<BTreeSet<String>> {
        let Some(current) = &self.current else { return Ok(BTreeSet::new()) };
        let mut document = current.cluster.clone();
        document.hosts.extend(self.state.touched()?);
        Ok(document.addresses()?.iter().map(ToString::to_string).collect())
    }

    /// Reads the images, computes the difference, and creates the cluster context.
    pub(crate) fn prepare(&self, desired: Clusterfile) -> Result<Prepared> {
        let images = self.images(&desired.cluster.images)?;
        self.session.admit(&desired.cluster.images)?;
        adopted::check_images(&desired, &images)?;
        adopted::check_first_image(self.current.as_ref(), &images)?;
        self.context(desired, images)
    }

    /// Prepares the cluster as stored, for removals: an image that is no longer in the store is
    /// used as it was recorded.
    pub(crate) fn recorded(&self, desired: Clusterfile) -> Result<Prepared> {
        let store = self.session.store()?;
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
        self.context(desired, images)
    }

    /// Like [`Self::prepare`], with images that have been read.
    pub(crate) fn context(
        &self,
        desired: Clusterfile,
        images: Vec<ClusterImage>,
    ) -> Result<Prepared> {
        let mut desired = desired;
        if let Some(current) = &self.current {
            desired.cluster.uid.clone_from(&current.cluster.uid);
        }
        let desired = with_uid(desired)?;
        let mut current = self.current.clone();
        if let Some(current) = &mut current {
            current.cluster.hosts.extend_from_slice(&self.also);
        }
        let change =
            self.session.with_surroundings(|around| diff(current.as_ref(), &desired, around))?;
        let mut context = self.session.cluster_context(&desired, images)?;
        context.leaving.clone_from(&change.remove);
        let exists = self.current.as_ref().is_some_and(Clusterfile::exists);
        let is_member = |host: &Host| exists && !change.add.contains(host);
        log_in(&mut context, self.operation.login(), &self.session.ssh.login, &is_member);
        context.unfinished = self.state.touched_rootfs()?.map(|mount| mount.image());
        let registry_is_new = self.fill_registry(&mut context)?;
        Ok(Prepared { context, change, desired, registry_is_new, keeps_files: false })
    }

    /// Determines the access to the embedded registry, if an image contains one.
    fn fill_registry(&self, context: &mut ClusterContext) -> Result<bool> {
        let Some(rootfs) = context.rootfs() else {
            return Ok(false);
        };
        if !rootfs.has_files() {
            return adopted::no_registry(context);
        }
        let has_script = rootfs.label(&["init-registry"]).is_some();
        let has_content =
            context.images.iter().any(|image| image.layers.iter().any(|layer| layer.registry));
        if !has_script && !has_content {
            return Ok(false);
        }
        let files = self.session.image_files()?;
        let text = |path: &str| -> Result<Option<String>> {
            Ok(files.read(rootfs, path)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        let file = text(registry_access::FILE)?;
        let template = text(registry_access::TEMPLATE)?;
        let mut user = context.environment.clone();
        user.extend(context.flag_environment.clone());
        let decide = |user: &BTreeMap<String, String>| {
            registry_access::decide(
                ImageSays { file: file.as_deref(), template: template.as_deref() },
                &rootfs.environment,
                user,
                &context.state,
            )
        };
        let mut decided = decide(&user)?;
        let exists = self.current.as_ref().is_some_and(Clusterfile::exists);
        if let Some(current) = self.current.as_ref().filter(|_| exists)
            && self.operation != Operation::RegistryPasswd
        {
            registry_password::refuse_other(current, &user, self.state.files())?;
            let mut former = current.cluster.environment.clone();
            former.extend(current.cluster.status.environment.clone());
            if let Ok(former) = decide(&former) {
                let name = &current.cluster.name;
                registry_access::refuse_other(&former.access, &decided.access, name)?;
            }
        }
        // Hosts that run a registry have its password.
        if self.asks_hosts
            && decided.is_new
            && exists
            && let Some(password) = password_of_hosts(context, self.session)?
        {
            let name = registry_access::PASSWORD_VARIABLE.to_owned();
            user.insert(name, password.expose().to_owned());
            decided.access = decide(&user)?.access;
        }
        context.registry = Some(decided.access);
        Ok(decided.is_new)
    }

    /// Plans with `plan`, and shows or executes the result.
    pub(crate) fn carry_out(
        &self,
        prepared: &Prepared,
        force: bool,
        plan: impl FnOnce(&ExecutionContext<'_>, &ClusterContext) -> Result<Planned>,
    ) -> Result<()> {
        let outcome = self.with_execution(prepared, force, |execution| {
            let planned = plan(execution, &prepared.context)?;
            self.carry_out_plan(&planned, execution)
        })?;
        self.session.front.show(&outcome)
    }

    /// Executes the plan, or describes its steps for a dry run.
    pub(crate) fn carry_out_plan(
        &self,
        planned: &Planned,
        execution: &ExecutionContext<'_>,
    ) -> Result<Outcome> {
        let front = &self.session.front;
        for host in &planned.behind {
            front.note(&format!(
                "{host} has a different rootfs image than the cluster and keeps its files; run \
                 `imgctl upgrade` to upgrade it"
            ));
        }
        self.carry_out_with(planned, &*execution.state_store, execution.force)
    }

    /// The same for a plan without an execution context.
    pub(crate) fn carry_out_with(
        &self,
        planned: &Planned,
        state_store: &dyn StateStore,
        force: bool,
    ) -> Result<Outcome> {
        let front = &self.session.front;
        if self.options.dry_run {
            let refusal = planned.refusal.clone();
            return Ok(Outcome::Steps { steps: steps(planned)?, upgrade: None, refusal });
        }
        if planned.plan.destroys && !planned.plan.phases.is_empty() {
            front.announce(&Announcement::Change { operation: self.operation, planned })?;
            let is_forced = force
                && self.operation.is_confirmed_by_force()
                && front.consent() == Consent::Nobody;
            if !is_forced && !front.confirm("Continue?")? {
                return Err(declined());
            }
        }
        let summary =
            self.execute(planned, state_store, &Interrupt::default(), &[], &NullListener)?;
        let now = self.operation.makes_members().then(|| self.now(&planned.context));
        Ok(Outcome::Changed { cluster: self.state.name().to_owned(), summary, now })
    }

    /// Calls `act` with the execution context of pipelines.
    pub(crate) fn with_execution<T>(
        &self,
        prepared: &Prepared,
        force: bool,
        act: impl FnOnce(&ExecutionContext<'_>) -> Result<T>,
    ) -> Result<T> {
        let (session, context) = (self.session, &prepared.context);
        let store = session.store()?;
        let files = session.image_files()?;
        let runtime = choice::of(context, &files, self.options.validity)?;
        let load = |context: &ClusterContext, architecture: &str| -> Result<Vec<ClusterImage>> {
            let platform = Platform::parse(&format!("linux/{architecture}"))?;
            context
                .images
                .iter()
                .map(|image| ClusterImage::load(store, &context.name, &image.name, Some(&platform)))
                .collect()
        };
        let (source, client) = (&self.options.source, self.options.source.client(session)?);
        let source =
            |context: &ClusterContext, hosts: &[Host]| source.find(client.as_ref(), context, hosts);
        let synced = SyncedFiles {
            images: &load,
            configs: prepared.desired.configs.clone(),
            strict: self.options.strict_templates,
            blobs: Arc::new(store.clone()),
            delta: self.options.delta,
            source: &source,
            hooks: &|context: &ClusterContext| hooks::of_images(context, store),
        };
        let state_store: Arc<dyn StateStore> = Arc::new(ClusterStateStore::new(
            self.state.clone(),
            self.current.clone(),
            prepared.desired.clone(),
            context,
            prepared.registry_is_new,
        ));
        let start =
            |context: &ClusterContext, host: &Host| registry::registry_steps(context, host, &files);
        let clean =
            |context: &ClusterContext, host: &Host| registry::clean_steps(context, host, &files);
        let pool = session.hosts()?;
        let applications = Managed { prune: self.prune, pool: Arc::clone(&pool) };
        let has_api = runtime.has_api();
        let execution = ExecutionContext {
            pool,
            runtime: &*runtime,
            files: if prepared.keeps_files { &KeptFiles } else { &synced },
            applications: has_api.then_some(&applications),
            registry: &start,
            clean_registry: &clean,
            state_store: Arc::clone(&state_store),
            validity: self.options.validity,
            parallel: self.options.execution.parallel.max(1),
            copy_state: session.controller.copy_state,
            draining: self.options.draining(&*runtime, self.state.name())?,
            force,
        };
        self.lock_out_others(context, &execution)?;
        act(&execution)
    }

    /// Takes the cluster's Lease, which keeps other controllers away, for the lifetime of this
    /// value.
    fn lock_out_others(
        &self,
        context: &ClusterContext,
        execution: &ExecutionContext<'_>,
    ) -> Result<()> {
        let Some(held) = self.held.as_ref().filter(|_| self.lease.get().is_none()) else {
            return Ok(());
        };
        if !execution.runtime.has_api() {
            return Ok(());
        }
        let exists = self.current.as_ref().is_some_and(Clusterfile::exists);
        let (operation, may_take_over) = (self.operation, self.operation.takes_over_by_force());
        let outage = operation.outage(exists, execution.force);
        let takes_over = execution.force && may_take_over;
        let api = Arc::new(nodes::any_api(context, &execution.pool));
        let taken = hold(api, held, operation, takes_over, outage, self.session);
        let taken = taken.map_err(|error| match error.kind() {
            Kind::Busy if may_take_over => {
                error.hint("pass --force to take the cluster over: the other command stops then")
            }
            _ => error,
        })?;
        // Nobody else can have set it: a `Work` is used by one thread.
        let _ = self.lease.set(taken);
        Ok(())
    }

    /// Returns the lock of this controller; `None` for a dry run.
    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Keeps the cluster's Lease for the lifetime of this value.
    pub(crate) fn keep_lease(&self, taken: lease::Held) {
        let _ = self.lease.set(taken);
    }

    /// Fails if another controller has taken the cluster over.
    pub(crate) fn check_lease(&self) -> Result<()> {
        self.lease.get().map_or(Ok(()), lease::Held::check)
    }

    /// Returns whether other controllers are locked out, or about to be.
    pub(crate) fn has_lease(&self) -> bool {
        self.lease.get().is_some()
    }

    /// Executes the plan; the front end may trigger `interrupt`. Repeats the steps in `again`
    /// whatever the journal says; `also` receives all events.
    pub(crate) fn execute(
        &self,
        planned: &Planned,
        state_store: &dyn StateStore,
        interrupt: &Interrupt,
        again: &[String],
        also: &dyn Listener,
    ) -> Result<Summary> {
        let (front, options) = (&self.session.front, self.options);
        front.pass_interrupts(interrupt)?;
        let listener = front.listener();
        let redactor = of_cluster(&planned.context);
        let surroundings = Surroundings {
            context: &planned.context,
            pool: Arc::clone(&planned.pool),
            redactor: &redactor,
            listener: &Both(&*listener, also),
            interrupt,
        };
        let options = Options {
            redo: [&options.execution.redo, again].concat(),
            sync: self.session.controller.sync,
            controller: own_name(),
            ..options.execution.clone()
        };
        if let Some(lease) = self.lease.get() {
            let interrupt = interrupt.clone();
            lease.on_loss(move || interrupt.pause());
        }
        let outcome = executor::execute(&planned.plan, &surroundings, &options);
        if let Err(error) = &outcome {
            self.check_lease()?;
            imgctl_workflow::pipeline::record::failed(state_store, error.message())?;
        }
        outcome.map_err(|error| self.with_way_out(error))
    }
}

/// Returns the cluster with a UID: the recorded one, if there is one.
fn with_uid(mut cluster: Clusterfile) -> Result<Clusterfile> {
    if cluster.cluster.uid.is_none() {
        cluster.cluster.uid = Some(uid::of(&cluster.cluster)?);
    }
    Ok(cluster)
}

/// Returns the steps of a plan, and which of them an unfinished run has done.
pub(crate) fn steps(planned: &Planned) -> Result<PlanView> {
    let past = executor::unfinished(&planned.plan, &planned.context)?;
    let done = |step: &Step| matches!(decide(step, past.as_ref(), &[], &[]), Decision::Skip);
    Ok(PlanView::of(&planned.plan, &done))
}

/// Returns the error for a question that the user answered with no.
pub(crate) fn declined() -> Error {
    Error::denied("declined; nothing was changed")
}

/// Takes the cluster's Lease. `held` is the lock of this controller.
pub(crate) fn hold(
    api: Arc<dyn Api>,
    held: &Held,
    operation: Operation,
    takes_over: bool,
    outage: Outage,
    session: &Session<'_>,
) -> Result<lease::Held> {
    let uid = || match rustix::process::getuid() {
        uid if uid.is_root() => "root".to_owned(),
        uid => format!("user {}", uid.as_raw()),
    };
    let holder = lease::Holder {
        identity: held.identity()?,
        host: own_name(),
        user: session.controller.user.clone().unwrap_or_else(uid),
        verb: operation.name().to_owned(),
    };
    let note = |what: &str| session.front.note(what);
    lease::hold(api, &holder, takes_over, outage, lease::Times::default(), &note)
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
