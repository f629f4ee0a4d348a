//! Executes a plan: batch after batch, Pod after Pod, then the templates.
//!
//! Every action is written to the journal before it is executed. The current state of the cluster,
//! not the journal, determines what is done: an interrupted run is resumed by running it again.

use std::{collections::BTreeMap, time::Instant};

use jiff::Timestamp;

use crate::completion::{Changed, Judgement, judge};
use crate::journal::{Event, Journal, Outcome, Phase, Record};
use crate::plan::{Plan, PodPlan, Verdict};
use crate::pre_pull::{Puller, pre_pull};
use crate::request::{Desired, Pace, Selection, TemplatePolicy, Wanted, WorkloadKind};
use crate::{marks::Before, rollout, template, verdict};
use crate::{object, object::Pod};
use crate::{pod_change, pod_change::Started};
use crate::{
    restarts,
    restarts::{After, Counts},
};
use crate::{
    world,
    world::{Owner, World},
};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_journal::interrupt::Interrupt;
use imgctl_kube::api::Api;

/// Maximum number of passes that look for new Pods.
const ROUNDS: usize = 20;

pub struct Engine<'a> {
    pub api: &'a dyn Api,
    pub plan: &'a Plan,
    pub desired: &'a Desired,
    pub journal: &'a Journal,
    /// Runs whose unfinished templates this run may finish: itself, and the one it undoes.
    pub ids: &'a [String],
    /// `None`: `--pre-pull none`.
    pub puller: Option<&'a dyn Puller>,
    pub pace: Pace,
    pub rollback_all: bool,
    /// Host name of this machine, for the journal.
    pub controller: &'a str,
    pub interrupt: &'a Interrupt,
    pub listener: &'a dyn Fn(&Event),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub changed: usize,
    pub skipped: usize,
    /// Pods replaced during the run.
    pub gone: usize,
    /// Pods that another party has changed since the plan was made.
    pub left: Vec<String>,
    /// Workloads whose template was updated.
    pub synced: usize,
}

/// A Pod whose change is in progress.
struct Flight {
    plan: PodPlan,
    changed: Changed,
    /// Its containers before the change.
    counts: Counts,
    since: Instant,
    ready_since: Option<Instant>,
    /// The readiness gate that this run closed.
    gate: Option<String>,
}

pub fn run(engine: &Engine<'_>) -> Result<Summary> {
    engine.plan.check()?;
    engine.journal.append(&Record::Start {
        time: Timestamp::now(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plan: Box::new(engine.plan.clone()),
        controller: engine.controller.to_owned(),
    })?;
    let mut work = Work {
        engine,
        world: world::observe(engine.api, &engine.plan.request.selection)?,
        summary: Summary::default(),
        done: Vec::new(),
        known: engine.plan.pods.iter().map(|pod| pod.uid.clone()).collect(),
        batch: None,
    };
    let outcome = work.all();
    let (result, message) = match &outcome {
        Ok(()) => (Outcome::Done, None),
        Err(error) if error.kind() == Kind::Interrupted => (Outcome::Interrupted, None),
        Err(error) => (Outcome::Failed, Some(error.to_string())),
    };
    engine.journal.append(&Record::Finish { time: Timestamp::now(), outcome: result, message })?;
    outcome.map(|()| work.summary)
}

struct Work<'a> {
    engine: &'a Engine<'a>,
    world: World,
    summary: Summary,
    /// Pods of earlier batches that were changed by this run.
    done: Vec<Flight>,
    /// UIDs that need no further check.
    known: Vec<String>,
    /// Number of the batch in progress, from 1; `None` for Pods that are in no batch.
    batch: Option<usize>,
}

/// What a record says of a Pod besides its phase.
#[derive(Default)]
struct Details {
    message: Option<String>,
    before: BTreeMap<String, Before>,
    after: BTreeMap<String, After>,
}

impl Details {
    fn message(text: impl Into<String>) -> Self {
        Self { message: Some(text.into()), ..Self::default() }
    }
}

impl Work<'_> {
    fn all(&mut self) -> Result<()> {
        let engine = self.engine;
        let plan = engine.plan;
        self.pull(&plan.work().collect::<Vec<_>>())?;
        let total = plan.batches.len();
        for (number, uids) in plan.batches.iter().enumerate() {
            let pods: Vec<PodPlan> =
                plan.work().filter(|pod| uids.contains(&pod.uid)).cloned().collect();
            (engine.listener)(&Event::Batch { number: number + 1, of: total, pods: pods.len() });
            self.batch = Some(number + 1);
            self.batch(pods)?;
        }
        self.batch = None;
        self.newcomers()?;
        if !self.summary.left.is_empty() {
            return Err(Error::check_failed(format!(
                "another client changed these Pods after the plan was made; they were skipped: \
                     {}",
                self.summary.left.join(", ")
            ))
            .hint("inspect them, then make a new plan; templates were not changed"));
        }
        self.templates()?;
        self.newcomers()
    }

    fn pull(&self, pods: &[&PodPlan]) -> Result<()> {
        let Some(puller) = self.engine.puller else {
            return Ok(());
        };
        let pulled = pre_pull(pods, &self.engine.plan.images, puller)?;
        (self.engine.listener)(&Event::Pulled { images: pulled });
        Ok(())
    }

    /// Changes Pods that were created during the run; they have the old image while the template
    /// has it.
    fn newcomers(&mut self) -> Result<()> {
        if matches!(self.engine.plan.request.selection, Selection::Pods { .. }) {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            self.world.refresh_all(self.engine.api)?;
            let fresh: Vec<PodPlan> = self
                .world
                .pods
                .iter()
                .filter(|pod| !pod.is_finished() && !pod.is_going())
                .filter(|pod| !self.known.contains(&pod.metadata.uid))
                .filter(|pod| self.engine.plan.groups.contains_key(&self.world.group(pod)))
                .filter_map(|pod| self.planned(pod))
                .collect();
            if fresh.is_empty() {
                return Ok(());
            }
            let names: Vec<String> = fresh.iter().map(PodPlan::full_name).collect();
            (self.engine.listener)(&Event::Note {
                message: format!("new Pods with the old image: {}", names.join(", ")),
            });
            self.known.extend(fresh.iter().map(|pod| pod.uid.clone()));
            self.pull(&fresh.iter().collect::<Vec<_>>())?;
            self.batch(fresh)?;
        }
        Err(Error::failed("Pods with the old image keep appearing").hint(
            "something recreates them: see the workload's events, then run the same command \
                 again",
        ))
    }

    /// Plans the change of a Pod that is not in the plan; `None`: no change is needed.
    fn planned(&self, pod: &Pod) -> Option<PodPlan> {
        let plan = self.engine.plan;
        let common = wanted_of_group(plan, self.engine.desired, &self.world.group(pod));
        let planned = verdict::pod(&self.world, pod, &common, &plan.request, &plan.images, &[]);
        planned.is_work().then_some(planned)
    }

    /// Executes one batch; on failure, its Pods get their former images back.
    fn batch(&mut self, pods: Vec<PodPlan>) -> Result<()> {
        let mut flights: Vec<Flight> = Vec::new();
        let mut finished: Vec<Flight> = Vec::new();
        let flown = self.fly(pods, &mut flights, &mut finished);
        match flown {
            Ok(()) => {
                self.done.append(&mut finished);
                Ok(())
            }
            // Without the API, nothing can be restored; when the run is resumed, it sees the actual
            // state.
            Err(error) if matches!(error.kind(), Kind::Interrupted | Kind::Network) => Err(error),
            Err(error) => {
                flights.append(&mut finished);
                if self.engine.rollback_all {
                    flights.append(&mut self.done);
                }
                let restored = self.restore(&flights);
                Err(error.hint(restored))
            }
        }
    }

    fn fly(
        &mut self,
        pods: Vec<PodPlan>,
        flights: &mut Vec<Flight>,
        finished: &mut Vec<Flight>,
    ) -> Result<()> {
        let engine = self.engine;
        let mut queue: std::collections::VecDeque<PodPlan> = pods.into();
        let mut progress = Instant::now();
        let mut contact = Instant::now();
        let mut held = String::new();
        loop {
            if engine.interrupt.is_asked() {
                return Err(Error::new(
                    Kind::Interrupted,
                    format!(
                        "stopped; {} Pods are in progress, {} were not started",
                        flights.len(),
                        queue.len()
                    ),
                )
                .hint(format!("resume it with `--id {}`", engine.journal.id())));
            }
            let seen = if held.is_empty() {
                self.world.refresh(engine.api)
            } else {
                // The workload may have been scaled.
                self.world.refresh_all(engine.api)
            };
            match seen {
                Ok(()) => contact = Instant::now(),
                // An API server restart is not a reason to give up.
                Err(error)
                    if error.kind() == Kind::Network
                        && contact.elapsed() < engine.pace.ready_timeout =>
                {
                    std::thread::sleep(engine.pace.poll);
                    continue;
                }
                Err(error) => return Err(error),
            }
            let mut still = Vec::new();
            while let Some(mut flight) = flights.pop() {
                match self.look(&mut flight) {
                    Ok(Look::Flying) => still.push(flight),
                    Ok(Look::Landed) => {
                        progress = Instant::now();
                        self.summary.changed += 1;
                        let details = Details {
                            before: flight.changed.state.containers.clone(),
                            ..self.after(&flight)
                        };
                        self.note(&flight.plan, Phase::Ready, details)?;
                        finished.push(flight);
                    }
                    Ok(Look::Gone) => {
                        progress = Instant::now();
                        self.summary.gone += 1;
                        self.note(&flight.plan, Phase::Gone, Details::default())?;
                    }
                    Err(error) => {
                        let details = Details {
                            message: Some(error.message().to_owned()),
                            ..self.after(&flight)
                        };
                        self.note(&flight.plan, Phase::Failed, details)?;
                        still.push(flight);
                        flights.append(&mut still);
                        return Err(error);
                    }
                }
            }
            still.reverse();
            flights.append(&mut still);
            held.clear();
            while let Some(next) = queue.front() {
                let flying: Vec<&str> = flights.iter().map(|one| one.plan.uid.as_str()).collect();
                if let Err(why) = self.may_start(next, &flying) {
                    held = why;
                    break;
                }
                let Some(next) = queue.pop_front() else { break };
                progress = Instant::now();
                if let Some(flight) = self.start(next)? {
                    flights.push(flight);
                }
            }
            if queue.is_empty() && flights.is_empty() {
                return Ok(());
            }
            if flights.is_empty() && progress.elapsed() > engine.pace.ready_timeout {
                let next = queue.front().map(PodPlan::full_name).unwrap_or_default();
                return Err(Error::failed(format!("cannot start with Pod {next}: {held}")));
            }
            std::thread::sleep(engine.pace.poll);
        }
    }

    fn may_start(&self, plan: &PodPlan, flying: &[&str]) -> Result<(), String> {
        let (Some(pod), Some(group)) =
            (self.world.pod(&plan.uid), self.engine.plan.groups.get(&plan.group))
        else {
            return Ok(());
        };
        let mut group = group.clone();
        // The number of replicas requested now, not when the plan was made.
        let known = self.world.workloads.get(&plan.group);
        if let Some(wanted) = known.and_then(|known| known.object.spec.replicas) {
            group.desired = usize::try_from(wanted).unwrap_or(0);
        }
        rollout::may_start(&self.world, pod, &group, flying)
    }

    /// Changes one Pod; `None`: there was nothing to change.
    fn start(&mut self, plan: PodPlan) -> Result<Option<Flight>> {
        let engine = self.engine;
        self.note(&plan, Phase::Intent, Details::default())?;
        let counts = self.world.pod(&plan.uid).map(restarts::counts).unwrap_or_default();
        let gate = self.close_gate(&plan)?;
        let labels = self.labels(&plan);
        match pod_change::start(engine.api, &plan, engine.journal.id(), &labels)? {
            Started::Changed(changed) => {
                let before = changed.state.containers.clone();
                self.note(&plan, Phase::Patched, Details { before, ..Details::default() })?;
                Ok(Some(Flight {
                    plan,
                    changed: *changed,
                    counts,
                    since: Instant::now(),
                    ready_since: None,
                    gate,
                }))
            }
            Started::Nothing => {
                self.summary.skipped += 1;
                let details = Details::message("it already has the image");
                self.note(&plan, Phase::Skipped, details)?;
                Ok(None)
            }
            Started::Gone => {
                self.summary.gone += 1;
                self.note(&plan, Phase::Gone, Details::default())?;
                Ok(None)
            }
            Started::Edited(why) => {
                self.summary.left.push(plan.full_name());
                self.note(&plan, Phase::Skipped, Details::message(why))?;
                Ok(None)
            }
        }
    }

    /// If the template already has the new image, returns the labels that assign the Pod to its
    /// revision.
    fn labels(&self, plan: &PodPlan) -> BTreeMap<String, String> {
        let Some(Owner::Workload(known)) =
            self.world.pod(&plan.uid).map(|pod| self.world.owner(pod))
        else {
            return BTreeMap::new();
        };
        let spec = &known.object.spec.template.spec;
        let same = plan.containers.iter().all(|one| {
            spec.container(&one.name)
                .is_some_and(|place| place.spec.image == one.to && one.resize.is_none())
        });
        let revision = &known.object.status.update_revision;
        if known.kind == WorkloadKind::StatefulSet && same && !revision.is_empty() {
            BTreeMap::from([(crate::marks::REVISION.to_owned(), revision.clone())])
        } else {
            BTreeMap::new()
        }
    }

    fn look(&self, flight: &mut Flight) -> Result<Look> {
        let engine = self.engine;
        let pod = self.world.pod(&flight.plan.uid);
        let plan = engine.plan;
        let judgement = judge(&flight.changed, pod, &plan.images, plan.request.verify);
        let failed = |why: String| Error::failed(format!("Pod {}: {why}", flight.plan.full_name()));
        let waits = match judgement {
            Judgement::Gone => return Ok(Look::Gone),
            Judgement::Failed(why) => return Err(failed(why)),
            Judgement::Ready => {
                let since = *flight.ready_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= engine.pace.bake {
                    return Ok(Look::Landed);
                }
                return Ok(Look::Flying);
            }
            Judgement::ContainersReady => match flight.gate.take() {
                Some(gate) => {
                    if let Some(pod) = pod {
                        pod_change::set_gate(engine.api, pod, &gate, true)?;
                    }
                    return Ok(Look::Flying);
                }
                None => "its containers are ready, but the Pod is not".to_owned(),
            },
            Judgement::Waiting(why) => why,
        };
        flight.ready_since = None;
        if let Some(node) = self.world.nodes.get(&flight.plan.node)
            && let Some(trouble) = node.trouble()
            && trouble.ends_with("not Ready")
        {
            return Err(failed(trouble));
        }
        if flight.since.elapsed() > engine.pace.ready_timeout {
            return Err(failed(format!(
                "not ready after {} s: {waits}",
                engine.pace.ready_timeout.as_secs()
            )));
        }
        Ok(Look::Flying)
    }

    fn close_gate(&self, plan: &PodPlan) -> Result<Option<String>> {
        let Some(pod) = self.world.pod(&plan.uid) else {
            return Ok(None);
        };
        let named = self.engine.plan.request.gate.as_deref();
        let gate = pod.spec.readiness_gates.iter().find(|gate| {
            gate.condition_type == pod_change::GATE || Some(gate.condition_type.as_str()) == named
        });
        let Some(gate) = gate else { return Ok(None) };
        pod_change::set_gate(self.engine.api, pod, &gate.condition_type, false)?;
        pod_change::wait_out_of_service(self.engine.api, pod, self.engine.pace.poll);
        Ok(Some(gate.condition_type.clone()))
    }

    /// Restores the former images of Pods; returns the outcome as a message.
    fn restore(&mut self, flights: &[Flight]) -> String {
        let engine = self.engine;
        let (mut restored, mut not) = (Vec::new(), Vec::new());
        for flight in flights {
            match pod_change::restore(engine.api, &flight.changed, &flight.plan) {
                Ok(true) => restored.push(flight),
                Ok(false) => {}
                Err(error) => not.push(format!("{}: {error}", flight.plan.full_name())),
            }
            if let Some(gate) = &flight.gate
                && let Some(pod) = self.world.pod(&flight.plan.uid)
                && let Err(error) = pod_change::set_gate(engine.api, pod, gate, true)
            {
                not.push(format!("{}: {error}", flight.plan.full_name()));
            }
        }
        let until = Instant::now() + engine.pace.ready_timeout;
        let mut waiting: Vec<&&Flight> = restored.iter().filter(|one| one.plan.ready).collect();
        while !waiting.is_empty() && Instant::now() < until && !engine.interrupt.is_asked() {
            std::thread::sleep(engine.pace.poll);
            if self.world.refresh(engine.api).is_err() {
                continue;
            }
            waiting.retain(|flight| {
                let pod = self.world.pod(&flight.plan.uid);
                pod.is_some_and(|pod| !pod_change::is_back(pod, &flight.changed))
            });
        }
        for flight in &waiting {
            not.push(format!("{} is not ready yet", flight.plan.full_name()));
        }
        for flight in &restored {
            // The original error matters more than a failed journal write.
            let _ = self.note(&flight.plan, Phase::Restored, Details::default());
        }
        match (restored.len(), not.is_empty()) {
            (0, true) => "no Pod needed a rollback".to_owned(),
            (count, true) => format!("{count} Pods have their previous images again and are ready"),
            (count, false) => format!(
                "{count} Pods were set back to their previous images; check: {}",
                not.join("; ")
            ),
        }
    }

    fn templates(&mut self) -> Result<()> {
        let engine = self.engine;
        for (uid, group) in &engine.plan.groups {
            self.world.refresh_all(engine.api)?;
            let Some(known) = self.world.workloads.get(uid).cloned() else {
                continue;
            };
            let images = wanted_of_group(engine.plan, engine.desired, uid);
            let resources = resources_of_group(engine.plan, uid);
            let change = template::Change { images: &images, resources: &resources };
            let site = template::Site {
                api: engine.api,
                journal: engine.journal,
                ids: engine.ids,
                pace: engine.pace,
                interrupt: engine.interrupt,
            };
            let done = match engine.plan.request.template {
                TemplatePolicy::Sync => template::sync(&site, &self.world, &known, &change)?,
                TemplatePolicy::Keep => template::keep(&site, &known, &change)?,
                TemplatePolicy::Refuse => None,
            };
            if let Some(message) = done {
                self.summary.synced +=
                    usize::from(engine.plan.request.template == TemplatePolicy::Sync);
                (engine.listener)(&Event::Template { workload: group.full_name(), message });
            }
        }
        Ok(())
    }

    /// Returns what the containers of a Pod have done since they were changed.
    fn after(&self, flight: &Flight) -> Details {
        let pod = self.world.pod(&flight.plan.uid);
        let after = |pod| restarts::after(&flight.changed.state.containers, &flight.counts, pod);
        Details { after: pod.map(after).unwrap_or_default(), ..Details::default() }
    }

    fn note(&self, pod: &PodPlan, phase: Phase, details: Details) -> Result<()> {
        let Details { message, before, after } = details;
        (self.engine.listener)(&Event::Pod {
            pod: pod.full_name(),
            uid: pod.uid.clone(),
            phase,
            message: message.clone(),
        });
        self.engine.journal.append(&Record::Pod {
            time: Timestamp::now(),
            uid: pod.uid.clone(),
            pod: pod.full_name(),
            phase,
            node: pod.node.clone(),
            batch: self.batch,
            before,
            after,
            message,
        })
    }
}

enum Look {
    Flying,
    Landed,
    Gone,
}

/// Returns the images that all Pods of a group get.
fn wanted_of_group(plan: &Plan, desired: &Desired, group: &str) -> Wanted {
    let mut wanted = desired.common.clone();
    for pod in plan.pods.iter().filter(|pod| pod.group == group) {
        for one in &pod.containers {
            let asked = desired.of(&pod.uid).contains_key(&one.name);
            if asked && pod.verdict != Verdict::Refuse {
                wanted.entry(one.name.clone()).or_insert_with(|| one.to.clone());
            }
        }
    }
    wanted
}

fn resources_of_group(plan: &Plan, group: &str) -> BTreeMap<String, object::Resources> {
    let pods = plan.pods.iter().filter(|pod| pod.group == group);
    pods.flat_map(|pod| &pod.containers)
        .filter_map(|one| Some((one.name.clone(), one.resize.as_ref()?.to.clone())))
        .collect()
}
