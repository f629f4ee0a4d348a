//! A pipeline as a value: phases of steps over hosts. What is printed is what is executed.
//!
//! Must not know what clusters are made of: create, install, scale and reset write these plans.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Serialize;

use crate::cluster::host::Host;
use crate::error::Result;
use crate::image::Digest;
use crate::runtime::action::{Action, Crew, Repeat};
use crate::secret::Redactor;

/// Where steps of the controller itself stand in a list of hosts.
pub(crate) const CONTROLLER: &str = "controller";

/// What a step of the controller works with.
pub(crate) struct Desk<'a> {
    pub(crate) crew: &'a dyn Crew,
    /// Something worth a line in the step's log and on the screen.
    pub(crate) note: &'a (dyn Fn(&str) + Sync),
    /// Something that the operator must see, whatever else is shown.
    pub(crate) announce: &'a (dyn Fn(&str) + Sync),
}

/// What is done on the controller, or by it through several agents.
pub(crate) type LocalWork = dyn Fn(&Desk<'_>) -> Result<()> + Send + Sync;

/// How a step is done.
#[derive(Clone)]
pub(crate) enum Work {
    /// On the step's host, through its agent.
    Action(Action),
    Local(Arc<LocalWork>),
    /// By the phase's [`Together`].
    Together,
}

/// One thing to do.
#[derive(Clone)]
pub(crate) struct Step {
    /// `phase/host/name`; the same in every run that does the same.
    pub(crate) id: String,
    pub(crate) name: String,
    /// Commands and files as they will be. Without secrets.
    pub(crate) says: Vec<String>,
    pub(crate) fingerprint: String,
    pub(crate) repeat: Repeat,
    pub(crate) timeout: Option<Duration>,
    /// Looks at what is true now, so it is never skipped as done before.
    pub(crate) always: bool,
    /// Files and blobs that it moves, where that is known.
    pub(crate) bytes: u64,
    pub(crate) work: Work,
}

impl Step {
    /// Something the controller does.
    pub(crate) fn local(
        name: &str,
        says: impl Into<String>,
        inputs: &str,
        work: impl Fn(&Desk<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let says = says.into();
        Self {
            id: String::new(),
            name: name.to_owned(),
            fingerprint: Digest::of(format!("{name}\0{inputs}").as_bytes()).to_string(),
            says: says.lines().map(str::to_owned).collect(),
            repeat: Repeat::Safe,
            timeout: None,
            always: false,
            bytes: 0,
            work: Work::Local(Arc::new(work)),
        }
    }

    /// A host's share of what its phase does for all hosts together.
    pub(crate) fn together(name: &str, says: Vec<String>, bytes: u64) -> Self {
        Self {
            id: String::new(),
            name: name.to_owned(),
            fingerprint: Digest::of(says.join("\n").as_bytes()).to_string(),
            says,
            repeat: Repeat::Safe,
            timeout: None,
            always: true,
            bytes,
            work: Work::Together,
        }
    }

    /// The same, done in every run.
    pub(crate) fn always(mut self) -> Self {
        self.always = true;
        self
    }
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
            bytes: 0,
            work: Work::Action(action),
        }
    }
}

/// The steps of one host in one phase, done in order.
#[derive(Clone)]
pub(crate) struct Lane {
    /// `None`: the controller.
    pub(crate) host: Option<Host>,
    pub(crate) steps: Vec<Step>,
}

impl Lane {
    /// What happens on `host`.
    pub(crate) fn on(host: &Host, steps: impl IntoIterator<Item = impl Into<Step>>) -> Self {
        Self {
            host: Some(host.clone()),
            steps: steps.into_iter().map(Into::into).collect(),
        }
    }

    /// What the controller does.
    pub(crate) fn controller(steps: Vec<Step>) -> Self {
        Self { host: None, steps }
    }

    /// As in identifiers.
    pub(crate) fn id(&self) -> String {
        self.host
            .as_ref()
            .map_or_else(|| CONTROLLER.to_owned(), Host::id)
    }
}

/// In which order the hosts of a phase go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Several at once, up to the limit.
    Parallel,
    /// One after the other, as listed.
    Serial,
}

/// What a failure in a phase keeps from being begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// Everything.
    Stop,
    /// The rest of that host, and the next phase: all problems of all hosts are told at once.
    FinishPhase,
    /// Nothing but a phase that stops: taking down goes as far as it gets.
    GoOn,
    /// The rest of that host, and all phases that are of another kind. When more hosts than this have
    /// failed in phases of this kind, everything.
    Tolerate(usize),
}

/// Work that concerns several hosts at once: moving files in waves.
pub(crate) trait Together: Send + Sync {
    /// Does it for `hosts`, those of the phase's steps; calls `ended` once for each of them.
    fn run(
        &self,
        desk: &Desk<'_>,
        hosts: &[String],
        moved: &(dyn Fn(&str, u64) + Sync),
        ended: &(dyn Fn(&str, Result<()>) + Sync),
        cancel: &Arc<AtomicBool>,
    );
}

/// Steps between which hosts wait for each other.
#[derive(Clone)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) order: Order,
    pub(crate) on_failure: OnFailure,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) together: Option<Arc<dyn Together>>,
}

impl Phase {
    /// An empty phase.
    pub(crate) fn new(name: &str, order: Order) -> Self {
        Self {
            name: name.to_owned(),
            order,
            on_failure: OnFailure::Stop,
            lanes: Vec::new(),
            together: None,
        }
    }

    /// The same with another answer to failures.
    pub(crate) fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Adds a lane unless it is empty.
    pub(crate) fn lane(mut self, lane: Lane) -> Self {
        if !lane.steps.is_empty() {
            self.lanes.push(lane);
        }
        self
    }
}

/// What will be done, in order.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) verb: String,
    pub(crate) cluster: String,
    /// What makes two runs the same undertaking, besides verb and cluster: the hosts that come or
    /// go, the images.
    pub(crate) intent: String,
    pub(crate) phases: Vec<Phase>,
    /// Worth knowing, in the way of nothing.
    pub(crate) notes: Vec<String>,
    /// It undoes what earlier runs did: those that did not finish cannot be taken up after it.
    pub(crate) destroys: bool,
    /// More phases are to follow in a later run: the journal is not brought to its end.
    pub(crate) is_partial: bool,
    /// It undoes a part of an earlier run, which is taken up again after it.
    pub(crate) aside: bool,
    /// How a run that stopped goes on, for hints.
    pub(crate) goes_on: &'static str,
}

impl Plan {
    /// An empty plan.
    pub(crate) fn new(verb: &str, cluster: &str, intent: &str) -> Self {
        Self {
            verb: verb.to_owned(),
            cluster: cluster.to_owned(),
            intent: Digest::of(format!("{verb}\0{cluster}\0{intent}").as_bytes()).to_string(),
            phases: Vec::new(),
            notes: Vec::new(),
            destroys: false,
            is_partial: false,
            aside: false,
            goes_on: "run the same command again",
        }
    }

    /// Adds a phase unless it is empty; names its steps.
    pub(crate) fn push(&mut self, mut phase: Phase) {
        phase.lanes.retain(|lane| !lane.steps.is_empty());
        if phase.lanes.is_empty() {
            return;
        }
        for lane in &mut phase.lanes {
            let host = lane.id();
            let mut used = std::collections::BTreeMap::<String, usize>::new();
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

    /// Takes known secrets out of what the plan says.
    pub(crate) fn redact(&mut self, redactor: &Redactor) {
        for step in self.steps_mut() {
            for line in &mut step.says {
                if let std::borrow::Cow::Owned(clean) = redactor.redact(line) {
                    *line = clean;
                }
            }
        }
    }

    /// All steps, in order.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.phases
            .iter()
            .flat_map(|phase| &phase.lanes)
            .flat_map(|lane| &lane.steps)
    }

    fn steps_mut(&mut self) -> impl Iterator<Item = &mut Step> {
        self.phases
            .iter_mut()
            .flat_map(|phase| &mut phase.lanes)
            .flat_map(|lane| &mut lane.steps)
    }

    /// Names this very list of steps.
    pub(crate) fn digest(&self) -> String {
        let mut text = String::new();
        for step in self.steps() {
            text.push_str(&step.id);
            text.push('\0');
            text.push_str(&step.fingerprint);
            text.push('\n');
        }
        Digest::of(text.as_bytes()).to_string()
    }

    /// How many hosts it touches.
    pub(crate) fn hosts(&self) -> usize {
        let hosts: std::collections::BTreeSet<String> = self
            .phases
            .iter()
            .flat_map(|phase| &phase.lanes)
            .filter(|lane| lane.host.is_some())
            .map(Lane::id)
            .collect();
        hosts.len()
    }
}

/// A plan for machines to read (docs/operations.md has the schema).
#[derive(Debug, Serialize)]
pub(crate) struct PlanView {
    pub(crate) verb: String,
    pub(crate) cluster: String,
    pub(crate) phases: Vec<PhaseView>,
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PhaseView {
    pub(crate) phase: String,
    pub(crate) order: Order,
    pub(crate) hosts: Vec<LaneView>,
}

#[derive(Debug, Serialize)]
pub(crate) struct LaneView {
    pub(crate) host: String,
    pub(crate) steps: Vec<StepView>,
}

#[derive(Debug, Serialize)]
pub(crate) struct StepView {
    pub(crate) id: String,
    pub(crate) says: Vec<String>,
    /// May not be repeated when it is not known how it ended.
    pub(crate) once: bool,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) bytes: u64,
    /// Will be skipped: an earlier run that did not finish has done it.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) done_before: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl PlanView {
    /// Of `plan`; `done` says which steps will be skipped.
    pub(crate) fn of(plan: &Plan, done: &dyn Fn(&Step) -> bool) -> Self {
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

/// Where the journals of a cluster lie.
pub(crate) fn journals(state: &Path) -> std::path::PathBuf {
    state.join("journal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_get_names_of_their_own_and_secrets_go() {
        let mut plan = Plan::new("run", "c", "");
        let step = |says: &str| Step::local("save", says, says, |_| Ok(()));
        plan.push(
            Phase::new("record", Order::Serial)
                .lane(Lane::controller(vec![step("one hidden9"), step("two")])),
        );
        plan.push(Phase::new("empty", Order::Parallel));
        let ids: Vec<_> = plan.steps().map(|step| step.id.as_str()).collect();
        assert_eq!(ids, ["record/controller/save", "record/controller/save-2"]);
        let mut redactor = Redactor::default();
        redactor.add(&crate::secret::Secret::new("hidden9"));
        let before = plan.digest();
        plan.redact(&redactor);
        assert_eq!(plan.steps().next().unwrap().says, ["one ***"]);
        assert_eq!(plan.digest(), before);
    }
}
