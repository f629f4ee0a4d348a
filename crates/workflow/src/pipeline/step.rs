//! A pipeline as a value: phases of steps over hosts. The printed plan is the executed plan.
//!
//! Must not depend on the parts of a cluster: create, install, scale and reset build these plans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, atomic::AtomicBool};
use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::sync::execute::Origin;
use imgctl_base::{error::Result, image::Digest, secret::Redactor};
use imgctl_journal::event::CONTROLLER;
use imgctl_model::context::Host;
use imgctl_runtime::action::{Action, HostPool, Repeat};

/// Step context: what a step on the controller works with.
pub struct StepContext<'a> {
    pub pool: &'a dyn HostPool,
    /// Reports a message in the step's log and on the screen.
    pub note: &'a (dyn Fn(&str) + Sync),
    /// Reports a message that the operator must see regardless of the verbosity.
    pub announce: &'a (dyn Fn(&str) + Sync),
}

/// Work on the controller, or by the controller through several agents.
pub(crate) type LocalWork = dyn Fn(&StepContext<'_>) -> Result<()> + Send + Sync;

/// How a step is executed.
#[derive(Clone)]
pub enum Work {
    /// On the step's host, through its agent.
    Action(Action),
    Local(Arc<LocalWork>),
    /// By the phase's [`BatchWork`].
    BatchWork,
}

#[derive(Clone)]
pub struct Step {
    /// `phase/host/name`. The same in every run that does the same.
    pub id: String,
    pub name: String,
    /// Commands and files as they are executed and written, without secrets.
    pub says: Vec<String>,
    pub fingerprint: String,
    pub(crate) repeat: Repeat,
    pub timeout: Option<Duration>,
    /// The step depends on the current state, so it is never skipped as already done.
    pub always: bool,
    /// The step removes what the other steps of its lane need: it is not executed after a failure of
    /// one of them, also where the lane goes on.
    pub(crate) concludes: bool,
    /// Nothing is left to resume once the step is done, whatever else has failed: what the operator is told
    /// then.
    pub(crate) closes: Option<&'static str>,
    /// Size of the files and blobs that the step moves, if known.
    pub bytes: u64,
    pub work: Work,
}

impl Step {
    /// Creates a step that the controller executes.
    pub fn local(
        name: &str,
        says: impl Into<String>,
        inputs: &str,
        work: impl Fn(&StepContext<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let says = says.into().lines().map(str::to_owned).collect();
        let identity = format!("{name}\0{inputs}");
        Self::new(name, says, &identity, Work::Local(Arc::new(work)))
    }

    /// Creates a host's share of work that its phase does for all hosts together.
    pub fn together(name: &str, says: Vec<String>, bytes: u64) -> Self {
        let identity = says.join("\n");
        Self { always: true, bytes, ..Self::new(name, says, &identity, Work::BatchWork) }
    }

    fn new(name: &str, says: Vec<String>, identity: &str, work: Work) -> Self {
        Self {
            id: String::new(),
            name: name.to_owned(),
            says,
            fingerprint: Digest::of(identity.as_bytes()).to_string(),
            repeat: Repeat::Safe,
            timeout: None,
            always: false,
            concludes: false,
            closes: None,
            bytes: 0,
            work,
        }
    }

    /// Marks the step to be executed in every run.
    pub fn always(mut self) -> Self {
        self.always = true;
        self
    }
}

/// Marks the last step of a lane, which removes what the others need to be repeated. It is executed in
/// every run: repeated steps may leave something again.
pub(crate) fn concluding(steps: impl IntoIterator<Item = impl Into<Step>>) -> Vec<Step> {
    let mut steps: Vec<Step> = steps.into_iter().map(Into::into).collect();
    if let Some(last) = steps.last_mut() {
        (last.concludes, last.always) = (true, true);
    }
    steps
}

impl From<Action> for Step {
    fn from(action: Action) -> Self {
        Self {
            id: String::new(),
            name: action.name.clone(),
            says: action.says.clone(),
            fingerprint: action.fingerprint.clone(),
            repeat: action.repeat,
            timeout: action.timeout,
            always: false,
            concludes: false,
            closes: None,
            bytes: 0,
            work: Work::Action(action),
        }
    }
}

/// Steps of one host in one phase, executed in order.
#[derive(Clone)]
pub struct Lane {
    /// `None`: the controller.
    pub host: Option<Host>,
    pub steps: Vec<Step>,
}

impl Lane {
    /// Returns the lane with these steps of `host`.
    pub fn on(host: &Host, steps: impl IntoIterator<Item = impl Into<Step>>) -> Self {
        Self { host: Some(host.clone()), steps: steps.into_iter().map(Into::into).collect() }
    }

    /// Returns the host's part of step identifiers.
    pub fn id(&self) -> String {
        self.host.as_ref().map_or_else(|| CONTROLLER.to_owned(), Host::id)
    }
}

/// Order in which the hosts of a phase run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Several at once, up to the limit.
    Parallel,
    /// One after the other, as listed.
    Serial,
}

/// What a failure in a phase prevents from starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// All further steps.
    Stop,
    /// The rest of that host and the next phase. The phase finishes on all hosts, so that all
    /// problems are reported at once.
    FinishPhase,
    /// Only phases with another setting: removal proceeds as far as possible.
    GoOn,
    /// The rest of that host and all phases with another setting. All further steps, if more than
    /// this number of hosts have failed in phases with this setting.
    Tolerate(usize),
}

/// Called with a host, the source of its bytes, and their number.
pub type Moved<'a> = dyn Fn(&str, Origin<'_>, u64) + Sync + 'a;

/// Work that handles several hosts at once, such as moving files in waves.
pub trait BatchWork: Send + Sync {
    /// Executes the work for `hosts`, the hosts of the phase's steps. Calls `ended` once for each
    /// of them.
    fn run(
        &self,
        step: &StepContext<'_>,
        hosts: &[String],
        moved: &Moved<'_>,
        ended: &(dyn Fn(&str, Result<()>) + Sync),
        cancel: &Arc<AtomicBool>,
    );
}

/// A group of steps. All hosts finish a phase before the next one starts.
#[derive(Clone)]
pub struct Phase {
    pub name: String,
    pub order: Order,
    pub on_failure: OnFailure,
    pub lanes: Vec<Lane>,
    pub together: Option<Arc<dyn BatchWork>>,
    /// Its hosts begin only while the run admits it; see [`Phase::while_admitted`].
    pub(crate) waits: bool,
}

impl Phase {
    pub fn new(name: &str, order: Order) -> Self {
        Self {
            name: name.to_owned(),
            order,
            on_failure: OnFailure::Stop,
            lanes: Vec::new(),
            together: None,
            waits: false,
        }
    }

    /// Hosts of this phase begin only while [`imgctl_journal::interrupt::Interrupt::admitting`]
    /// admits it; otherwise the run pauses before them.
    pub fn while_admitted(mut self) -> Self {
        self.waits = true;
        self
    }

    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Adds a lane unless it is empty.
    pub fn lane(mut self, lane: Lane) -> Self {
        if !lane.steps.is_empty() {
            self.lanes.push(lane);
        }
        self
    }

    /// Adds a lane for each host, with what `steps` returns for it.
    pub fn over<'h, S: Into<Step>>(
        self,
        hosts: impl IntoIterator<Item = &'h Host>,
        mut steps: impl FnMut(&'h Host) -> Result<Vec<S>>,
    ) -> Result<Self> {
        let mut hosts = hosts.into_iter();
        hosts.try_fold(self, |phase, host| Ok(phase.lane(Lane::on(host, steps(host)?))))
    }

    /// Returns a phase of steps on the controller.
    pub fn local(name: &str, steps: Vec<Step>) -> Self {
        Self::new(name, Order::Serial).lane(Lane { host: None, steps })
    }

    /// Returns a phase of steps on one host.
    pub fn on(name: &str, host: &Host, steps: impl IntoIterator<Item = impl Into<Step>>) -> Self {
        Self::new(name, Order::Serial).lane(Lane::on(host, steps))
    }
}

/// Ordered phases of a run.
#[derive(Clone)]
pub struct Plan {
    pub verb: String,
    pub cluster: String,
    /// Identifies runs of the same operation, together with verb and cluster: the hosts that are
    /// added or removed, and the images.
    pub intent: String,
    pub phases: Vec<Phase>,
    /// Information that does not block the run.
    pub notes: Vec<String>,
    /// The run undoes what earlier runs did: unfinished runs before it cannot be resumed.
    pub destroys: bool,
    /// More phases follow in a later run, so the journal is not finished.
    pub is_partial: bool,
    /// The run undoes a part of an earlier run, which is resumed after it.
    pub aside: bool,
    /// IDs of hosts that have nothing of the cluster: what earlier runs did there counts no longer.
    pub(crate) blank: BTreeSet<String>,
    /// machine-ids of hosts, as far as they are known.
    pub(crate) machines: BTreeMap<String, String>,
    /// Hint on how to resume a run that stopped.
    pub goes_on: String,
}

impl Plan {
    pub fn new(verb: &str, cluster: &str, intent: &str) -> Self {
        Self {
            verb: verb.to_owned(),
            cluster: cluster.to_owned(),
            intent: Digest::of(format!("{verb}\0{cluster}\0{intent}").as_bytes()).to_string(),
            phases: Vec::new(),
            notes: Vec::new(),
            destroys: false,
            is_partial: false,
            aside: false,
            blank: BTreeSet::new(),
            machines: BTreeMap::new(),
            goes_on: "run the same command again".to_owned(),
        }
    }

    /// Adds a phase unless it is empty, and names its steps.
    pub fn push(&mut self, mut phase: Phase) {
        phase.lanes.retain(|lane| !lane.steps.is_empty());
        if phase.lanes.is_empty() {
            return;
        }
        for lane in &mut phase.lanes {
            let host = lane.id();
            let mut used = BTreeMap::<String, usize>::new();
            for step in &mut lane.steps {
                let times = used.entry(step.name.clone()).or_default();
                *times += 1;
                if *times > 1 {
                    step.name = format!("{}-{times}", step.name);
                }
                step.id = format!("{}/{host}/{}", phase.name, step.name);
            }
        }
        self.phases.push(phase);
    }

    /// Adds phases as [`Plan::push`] does.
    pub fn extend(&mut self, phases: impl IntoIterator<Item = Phase>) {
        phases.into_iter().for_each(|phase| self.push(phase));
    }

    /// Removes known secrets from the plan's text.
    pub fn redact(&mut self, redactor: &Redactor) {
        for step in self.steps_mut() {
            for line in &mut step.says {
                if let std::borrow::Cow::Owned(clean) = redactor.redact(line) {
                    *line = clean;
                }
            }
        }
    }

    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.phases.iter().flat_map(|phase| &phase.lanes).flat_map(|lane| &lane.steps)
    }

    fn steps_mut(&mut self) -> impl Iterator<Item = &mut Step> {
        self.phases.iter_mut().flat_map(|phase| &mut phase.lanes).flat_map(|lane| &mut lane.steps)
    }

    /// Returns a digest that identifies this list of steps.
    pub fn digest(&self) -> String {
        let mut text = String::new();
        for step in self.steps() {
            text.push_str(&step.id);
            text.push('\0');
            text.push_str(&step.fingerprint);
            text.push('\n');
        }
        Digest::of(text.as_bytes()).to_string()
    }

    pub fn hosts(&self) -> usize {
        let hosts: BTreeSet<String> = self
            .phases
            .iter()
            .flat_map(|phase| &phase.lanes)
            .filter(|lane| lane.host.is_some())
            .map(Lane::id)
            .collect();
        hosts.len()
    }
}

/// Machine-readable form of a plan (docs/operations.md has the schema).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanView {
    pub verb: String,
    pub cluster: String,
    pub phases: Vec<PhaseView>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PhaseView {
    pub phase: String,
    pub order: Order,
    pub hosts: Vec<LaneView>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaneView {
    pub host: String,
    pub steps: Vec<StepView>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepView {
    pub id: String,
    pub says: Vec<String>,
    /// The step must not be repeated if its result is unknown.
    pub once: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// The step is skipped because an earlier, unfinished run has done it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub done_before: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl PlanView {
    /// Creates the view of `plan`; `done` returns whether a step is skipped.
    pub fn of(plan: &Plan, done: &dyn Fn(&Step) -> bool) -> Self {
        let step = |step: &Step| StepView {
            id: step.id.clone(),
            says: step.says.clone(),
            once: step.repeat == Repeat::Once,
            bytes: step.bytes,
            done_before: done(step),
        };
        Self {
            verb: plan.verb.clone(),
            cluster: plan.cluster.clone(),
            notes: plan.notes.clone(),
            phases: plan
                .phases
                .iter()
                .map(|phase| PhaseView {
                    phase: phase.name.clone(),
                    order: phase.order,
                    hosts: phase
                        .lanes
                        .iter()
                        .map(|lane| LaneView {
                            host: lane.id(),
                            steps: lane.steps.iter().map(step).collect(),
                        })
                        .collect(),
                })
                .collect(),
        }
    }
}

pub fn journals(state: &Path) -> std::path::PathBuf {
    state.join("journal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_get_names_of_their_own_and_secrets_go() {
        let mut plan = Plan::new("run", "c", "");
        let step = |says: &str| Step::local("save", says, says, |_| Ok(()));
        plan.push(Phase::local("record", vec![step("one hidden9"), step("two")]));
        plan.push(Phase::new("empty", Order::Parallel));
        let ids: Vec<_> = plan.steps().map(|step| step.id.as_str()).collect();
        assert_eq!(ids, ["record/controller/save", "record/controller/save-2"]);
        let mut redactor = Redactor::default();
        redactor.add(&imgctl_base::secret::Secret::new("hidden9"));
        let before = plan.digest();
        plan.redact(&redactor);
        assert_eq!(plan.steps().next().unwrap().says, ["one ***"]);
        assert_eq!(plan.digest(), before);
    }
}
