//! The command line as the front end of operations: their sessions, and their questions, events and
//! outcomes at the terminal.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::inplace_view;
use crate::{
    adopt_view, cluster_options, context::Context, registry_options::RegistryArgs, rehearsal_view,
    report_output::GENERATOR, requested_report::Noting, ssh_options::SshArgs, upgrade_view,
};
use imgctl_base::error::{IoContext, Result};
use imgctl_base::progress::Reporter;
use imgctl_base::quote::quote;
use imgctl_base::text::Lines;
use imgctl_journal::event::{CONTROLLER, Event, Listener, NullListener, Outcome as StepOutcome};
use imgctl_journal::interrupt::Interrupt;
use imgctl_model::context::Host;
use imgctl_ops::front_end::{
    Announcement, BackedUp, ClusterNow, Consent, FrontEnd, InPlace, Logins, Outcome, Upgraded,
};
use imgctl_ops::operation::Operation;
use imgctl_ops::report;
use imgctl_ops::session::{Session, SshAccess};
use imgctl_ops::upgrade::check_blockers;
use imgctl_registry::ClientOptions;
use imgctl_store::store::Store;
use imgctl_ui::{
    hosts_view::JsonEvents,
    table::{counted, human},
};
use imgctl_upgrade::document::{Direction, Document, HostBefore};
use imgctl_upgrade::plan::CANNOT_BE_REACHED;
use imgctl_upgrade::window::WindowState;
use imgctl_workflow::pipeline::step::{LaneView, PlanView, StepView};
use imgctl_workflow::pipeline::{change::Planned, executor::Summary};

/// The user at the terminal, or the reader of the output.
struct Terminal<'a> {
    context: &'a Context,
    registry: RegistryArgs,
    /// Whether nothing of the user's can be harmed, so that nobody is asked.
    agreed: bool,
    /// Notes of this session: a status that is watched has the same ones each time.
    noted: Mutex<BTreeSet<String>>,
}

impl FrontEnd for Terminal<'_> {
    fn note(&self, message: &str) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.insert(message.to_owned()) {
            self.context.ui.note(message);
        }
    }

    fn say(&self, message: &str) {
        self.context.ui.say(message);
    }

    fn store(&self) -> Result<&Store> {
        self.context.store()
    }

    fn registry_options(&self, logins: Logins) -> Result<ClientOptions> {
        match logins {
            Logins::OfUser => self.registry.client_options(self.context),
            Logins::Only(login) => self.registry.options(self.context, login),
        }
    }

    fn has_policy(&self) -> bool {
        self.registry.has_policy(self.context)
    }

    fn reporter(&self) -> &dyn Reporter {
        self.context.ui.reporter()
    }

    fn listener(&self) -> Box<dyn Listener + '_> {
        let listener: Box<dyn Listener + '_> = if self.context.ui.is_json() {
            Box::new(JsonEvents::default())
        } else {
            self.context.ui.run_view().unwrap_or_else(|| Box::new(NullListener))
        };
        Box::new(Noting { listener, report: self.context.report.clone() })
    }

    fn pass_interrupts(&self, interrupt: &Interrupt) -> Result<()> {
        listen(interrupt)
    }

    fn announce(&self, plan: &Announcement<'_>) -> Result<()> {
        match plan {
            Announcement::Change { operation, planned } => {
                summary(*operation, planned, self.context)
            }
            // JSON output consists of the events alone.
            Announcement::Upgrade(_) if self.context.ui.is_json() => Ok(()),
            Announcement::Upgrade(document) => upgrade_view::show(document, self.context),
            Announcement::Adoption(_) if self.context.ui.is_json() => Ok(()),
            Announcement::Adoption(adoption) => adopt_view::show(adoption, self.context),
            Announcement::Window { document, state } => window(document, state, self.context),
            Announcement::InPlace(plan) => inplace_view::plan(plan, self.context),
        }
    }

    fn confirm(&self, question: &str) -> Result<bool> {
        if self.agreed { Ok(true) } else { self.context.ui.confirm(question) }
    }

    fn confirm_here(&self, question: &str) -> Result<Option<bool>> {
        self.context.ui.confirm_here(question)
    }

    fn answer(&self, question: &str, is_secret: bool) -> Result<Option<String>> {
        let ui = &self.context.ui;
        if is_secret { ui.ask_secret(question) } else { ui.ask(question) }
    }

    fn consent(&self) -> Consent {
        if self.agreed || self.context.settings.ui.assume_yes {
            Consent::Given
        } else if !self.context.ui.can_ask() {
            Consent::Nobody
        } else {
            Consent::Asked
        }
    }

    fn show(&self, outcome: &Outcome) -> Result<()> {
        let page = |created| report::of_outcome(outcome, GENERATOR, created);
        self.context.report_plan(page)?;
        show_outcome(outcome, self.context)
    }

    fn in_place(&self, progress: &InPlace<'_>) -> Result<()> {
        if let InPlace::Begun { cluster, journal, .. } = progress {
            self.context.report.run_begins(cluster, journal.id());
        }
        inplace_view::progress(progress, self.context)
    }
}

impl Context {
    /// Returns a session for one operation with these flags.
    pub fn session(&self, ssh: &SshArgs, registry: &RegistryArgs) -> Result<Session<'_>> {
        self.session_with(ssh, registry, false)
    }

    fn session_with(
        &self,
        ssh: &SshArgs,
        registry: &RegistryArgs,
        agreed: bool,
    ) -> Result<Session<'_>> {
        let (login, settings) = ssh.resolve(self)?;
        Ok(Session {
            front: Box::new(Terminal {
                context: self,
                registry: registry.clone(),
                agreed,
                noted: Mutex::default(),
            }),
            controller: cluster_options::controller(self)?,
            ssh: SshAccess { login, port: ssh.port, settings },
            pool: None,
        })
    }

    /// Returns a session for copies of clusters, whose state is below `state_root`.
    pub fn session_of_copies(
        &self,
        ssh: &SshArgs,
        registry: &RegistryArgs,
        state_root: PathBuf,
    ) -> Result<Session<'_>> {
        let mut session = self.session_with(ssh, registry, true)?;
        session.controller.state_root = Some(state_root);
        session.controller.copy_state = false;
        Ok(session)
    }

    /// Returns a session for an operation that has no flags for hosts and registries.
    pub fn plain_session(&self) -> Result<Session<'_>> {
        self.session(&SshArgs::default(), &RegistryArgs::default())
    }
}

/// Listens for the rest of the process's lifetime: for Ctrl-C, for SIGTERM, and for the SIGHUP of a terminal
/// that disappears, unless the process ignores it because of `nohup`.
pub fn listen(interrupt: &Interrupt) -> Result<()> {
    let interrupt = interrupt.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "cannot listen for signals".to_owned())?;
    // Registered before returning, so that no signal is missed.
    let signals = {
        let _inside = runtime.enter();
        let hangup = (!is_hangup_ignored()).then(SignalKind::hangup);
        [SignalKind::terminate(), SignalKind::interrupt()]
            .into_iter()
            .chain(hangup)
            .map(|kind| signal(kind).doing(|| "cannot listen for signals".to_owned()))
            .collect::<Result<Vec<_>>>()?
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let waits = signals.into_iter().map(|mut signal| {
                let interrupt = interrupt.clone();
                async move {
                    while signal.recv().await.is_some() {
                        interrupt.ask();
                    }
                }
            });
            let tasks: Vec<_> = waits.map(|wait| runtime.spawn(wait)).collect();
            runtime.block_on(async {
                for task in tasks {
                    let _ = task.await;
                }
            });
        })
        .doing(|| "cannot start a thread".to_owned())?;
    Ok(())
}

/// Returns whether SIGHUP has been ignored since this process began (proc_pid_status(5)).
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

/// Prints all steps, as text or as one JSON object.
fn show_steps(view: &PlanView, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(view);
    }
    context.ui.notes(&view.notes);
    show_phases(view, context)
}

/// Prints the steps without the notes.
fn show_phases(view: &PlanView, context: &Context) -> Result<()> {
    if view.phases.is_empty() {
        return context
            .ui
            .line(&format!("cluster {}: nothing to do, every host is up to date", view.cluster));
    }
    let mut text = Lines::default();
    for phase in &view.phases {
        text.line(&phase.phase);
        for (hosts, steps) in alike(&phase.hosts) {
            text.line(format_args!("  {}", hosts.join(", ")));
            for step in steps {
                let mut marks = String::new();
                if step.done_before {
                    marks.push_str("  (done before)");
                }
                if step.bytes > 0 {
                    marks.push_str(&format!("  [{}]", human(step.bytes)));
                }
                let mut says = step.says.iter();
                let first = says.next().map_or("", String::as_str);
                text.line(format_args!("    - {first}{marks}"));
                for line in says {
                    text.line(format_args!("      {line}"));
                }
            }
        }
    }
    let lanes = || view.phases.iter().flat_map(|phase| &phase.hosts);
    let hosts: BTreeSet<&str> = lanes().map(|lane| lane.host.as_str()).collect();
    let hosts = hosts.iter().filter(|host| **host != CONTROLLER).count();
    let steps = || lanes().flat_map(|lane| &lane.steps);
    let bytes: u64 = steps().map(|step| step.bytes).sum();
    let sent = if bytes > 0 { format!(", {} to send", human(bytes)) } else { String::new() };
    let steps = counted(steps().count(), "step");
    text.line(format_args!("in all: {steps} on {}{sent}", counted(hosts, "host")));
    context.ui.print(&text)
}

/// Groups the hosts of a phase that have the same steps, in the order of the first of each.
fn alike(lanes: &[LaneView]) -> Vec<(Vec<&str>, &[StepView])> {
    let mut groups: Vec<(Vec<&str>, &[StepView])> = Vec::new();
    let same = |one: &StepView, other: &StepView| {
        (&one.says, one.bytes, one.done_before) == (&other.says, other.bytes, other.done_before)
    };
    for lane in lanes {
        let is_like = |(_, steps): &&mut (Vec<&str>, &[StepView])| {
            steps.len() == lane.steps.len()
                && steps.iter().zip(&lane.steps).all(|(one, other)| same(one, other))
        };
        match groups.iter_mut().find(is_like) {
            Some((hosts, _)) => hosts.push(&lane.host),
            None => groups.push((vec![&lane.host], &lane.steps)),
        }
    }
    groups
}

/// Shows what is about to happen, before a prompt.
fn summary(operation: Operation, planned: &Planned, context: &Context) -> Result<()> {
    context.ui.notes(&planned.plan.notes);
    let leaving: Vec<String> = planned.context.leaving.iter().map(Host::id).collect();
    let what = match (operation, leaving.is_empty()) {
        (Operation::Reset, _) => format!(
            "cluster {} is torn down: everything that belongs to it is removed from {}",
            planned.plan.cluster,
            counted(planned.plan.hosts(), "host")
        ),
        (_, false) => format!(
            "{} leaves cluster {}: everything that belongs to the cluster is removed there",
            leaving.join(", "),
            planned.plan.cluster
        ),
        (Operation::Renumber, _) => format!(
            "a host of cluster {} changes its address: {} hosts are told",
            planned.plan.cluster,
            planned.plan.hosts()
        ),
        (operation, true) => format!("{} on cluster {}", operation.name(), planned.plan.cluster),
    };
    context.ui.say(&what);
    Ok(())
}

/// Shows an outcome. Fails if it is a plan that cannot be carried out.
fn show_outcome(outcome: &Outcome, context: &Context) -> Result<()> {
    let ui = &context.ui;
    match outcome {
        Outcome::Steps { steps, upgrade: Some(document), .. } if document.is_reconfiguration() => {
            upgrade_view::show_settings(document, steps, context)?;
            if !ui.is_json() {
                show_phases(steps, context)?;
            }
            check_blockers(document)
        }
        Outcome::Steps { steps, upgrade, refusal } => {
            show_steps(steps, context)?;
            upgrade.as_deref().map_or(Ok(()), check_blockers)?;
            refusal.as_ref().map_or(Ok(()), |refusal| Err(refusal.error()))
        }
        Outcome::Changed { cluster, summary, now } => {
            changed(summary, cluster, context)?;
            if let Some(now) = now {
                ui.say(&stands(cluster, now));
            }
            Ok(())
        }
        Outcome::Adoption { adoption, steps } if ui.is_json() => {
            adopt_view::json(adoption, steps.as_ref(), context)
        }
        Outcome::Adoption { adoption, steps } => {
            adopt_view::show(adoption, context)?;
            steps.as_ref().map_or(Ok(()), |steps| show_steps(steps, context))
        }
        Outcome::TornDown { .. } if ui.is_json() => Ok(()),
        Outcome::TornDown { cluster } => ui.line(&format!("cluster {cluster} is gone")),
        Outcome::BackedUp(backup) => backed_up(backup, context),
        Outcome::Rehearsed { rehearsal, path } => rehearsal_view::show(rehearsal, path, context),
        Outcome::UpgradePlan(document) => {
            upgrade_view::show(document, context)?;
            check_blockers(document)
        }
        Outcome::UpgradeInProgress(document) => {
            ui.note(&format!("the upgrade {} is already in progress", document.id));
            upgrade_view::show(document, context)
        }
        Outcome::UpToDate { cluster, image, findings } => {
            upgrade_view::show_findings(findings, context)?;
            ui.say(&format!("cluster {cluster}: nothing to do, it is already {image}"));
            Ok(())
        }
        Outcome::Paused(document) => {
            let (verb, id) = (document.direction.verb(), &document.id);
            let goes_on = format!("imgctl upgrade resume --cluster {}", document.cluster);
            ui.say(&format!("{verb} {id} is paused: run `{goes_on}` to continue"));
            Ok(())
        }
        Outcome::Waiting { document, opens } => {
            let state = WindowState::Closed { opens: opens.clone() };
            window(document, &state, context)
        }
        Outcome::Upgraded(upgraded) => show_upgraded(upgraded, context),
        Outcome::NothingToRollBack => {
            ui.say("nothing to do: every host is at the former version");
            Ok(())
        }
    }
}

/// Shows that a run waits for a window, or that it goes on in one; with `--json`, as an event.
fn window(document: &Document, state: &WindowState, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        let mut event = json!({
            "event": "window",
            "time": jiff::Timestamp::now().to_string(),
            "id": document.id,
        });
        event["window"] = upgrade_view::window_json(state);
        return context.ui.json_line(&event);
    }
    let (kind, id) = (document.kind(), &document.id);
    context.ui.say(&match state {
        WindowState::Closed { opens } => format!(
            "{kind} {id} waits for its next window, which opens {opens}; it holds no lock meanwhile"
        ),
        WindowState::Open { closes } => {
            format!("{kind} {id} continues: its window is open until {closes}")
        }
        WindowState::Always => format!("{kind} {id} continues"),
    });
    Ok(())
}

/// Shows where a backup is; behind JSON events, as one more line.
fn backed_up(backup: &BackedUp, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        let object = json!({
            "event": "backup",
            "cluster": backup.cluster,
            "place": backup.place,
            "digest": backup.digest,
            "bytes": backup.bytes,
            "encrypted": backup.encrypted,
        });
        return context.ui.json_line(&object);
    }
    let how = if backup.encrypted { "encrypted" } else { "not encrypted" };
    context.ui.line(&format!(
        "cluster {} is backed up: {} ({}, {how}, {})",
        backup.cluster,
        backup.place,
        human(backup.bytes),
        backup.digest
    ))
}

/// Shows the summary of a run; JSON events have already shown it, unless there was nothing to do.
fn changed(summary: &Summary, cluster: &str, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        if summary.journal.is_empty() {
            JsonEvents::default().event(&Event::End {
                outcome: StepOutcome::Done,
                done: 0,
                skipped: 0,
                failed: 0,
                duration_ms: 0,
                journal: String::new(),
            });
        }
        return Ok(());
    }
    if summary.done == 0 {
        return context
            .ui
            .line(&format!("cluster {cluster}: nothing to do, every host is up to date"));
    }
    let before = match summary.skipped {
        0 => String::new(),
        skipped => format!(", {skipped} done before"),
    };
    context.ui.line(&format!("cluster {cluster}: {} done{before}", counted(summary.done, "step")))
}

/// Says what the user has now, and which command comes next.
fn stands(cluster: &str, now: &ClusterNow) -> String {
    let version = match &now.version {
        Some(version) => format!("runs {version} on "),
        None => "has ".to_owned(),
    };
    let kubectl = now
        .kubeconfig
        .as_ref()
        .map(|path| format!("; kubectl --kubeconfig {} get nodes", quote(&path.to_string_lossy())));
    format!(
        "cluster {cluster} {version}{}; next: imgctl status --cluster {cluster}{}",
        counted(now.hosts, "host"),
        kubectl.unwrap_or_default()
    )
}

fn show_upgraded(upgraded: &Upgraded, context: &Context) -> Result<()> {
    let (ui, document) = (&context.ui, &upgraded.document);
    changed(&upgraded.summary, &document.cluster, context)?;
    upgrade_view::show_report(&upgraded.report, context)?;
    let (gone, left): (Vec<_>, Vec<_>) =
        document.hosts.iter().partition(|(_, host)| host.skipped.is_none());
    let version = &document.target().version;
    for (id, host) in left.iter().filter(|_| !document.is_reconfiguration()) {
        let why = host.skipped.as_deref().unwrap_or_default();
        ui.say(&format!("host {id} was skipped: {why}"));
    }
    let is_back = document.direction == Direction::Back;
    if !is_back && left.iter().any(|(_, host)| is_away(host)) {
        ui.say(&format!(
            "when skipped hosts are reachable again, run `imgctl upgrade {}` to upgrade them",
            quote(&document.target().image)
        ));
    }
    // A rollback with a scope changes the version of its hosts, not of the cluster.
    if is_back && !left.is_empty() && !document.is_reconfiguration() {
        for (id, _) in gone {
            ui.say(&format!("host {id} is now {version}"));
        }
    } else if document.is_reconfiguration() {
        let which = if is_back { "former" } else { "new" };
        ui.say(&format!("cluster {} has the {which} settings", document.cluster));
    } else {
        ui.say(&format!("cluster {} is now {version}", document.cluster));
    }
    upgraded.notes.iter().for_each(|note| ui.say(note));
    Ok(())
}

fn is_away(host: &HostBefore) -> bool {
    host.skipped.as_deref().unwrap_or_default().starts_with(CANNOT_BE_REACHED)
}
