//! The executor with simulated hosts: failures, lost connections, crashes, requests to stop.

mod lost;

use std::sync::{Arc, Mutex};
use std::{path::Path, time::Duration};

use super::*;
use crate::pipeline::change::{self, Change, Planned};
use crate::pipeline::step::{Order, Step, Work};
use crate::pipeline::testing::{
    Bare, Behaviour, SimulatedFiles, SimulatedPool, SimulatedStateStore, Simulation, hosts,
    sample_context,
};
use crate::pipeline::{execution_context::ExecutionContext, maintain};
use imgctl_base::image::Digest;
use imgctl_model::context::ClusterContext;
use imgctl_model::redact::of_cluster;

/// Events in the order of arrival.
#[derive(Default)]
struct Heard(Mutex<Vec<Event>>);

impl Listener for Heard {
    fn event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

struct Stage {
    simulation: Arc<Simulation>,
    state_store: Arc<SimulatedStateStore>,
    heard: Heard,
    interrupt: Interrupt,
    options: Options,
    force: bool,
}

impl Stage {
    fn new(behaviour: Behaviour) -> Self {
        Self {
            simulation: Simulation::new(behaviour),
            state_store: Arc::default(),
            heard: Heard::default(),
            interrupt: Interrupt::default(),
            options: Options {
                backoff: Duration::from_millis(1),
                grace: Duration::from_millis(50),
                sync: false,
                ..Options::default()
            },
            force: false,
        }
    }

    fn planned(
        &self,
        make: impl FnOnce(&ExecutionContext<'_>) -> Result<Planned>,
    ) -> Result<Planned> {
        make(&ExecutionContext {
            pool: Arc::new(SimulatedPool(Arc::clone(&self.simulation))),
            runtime: &Bare,
            files: &SimulatedFiles(Arc::clone(&self.simulation)),
            applications: None,
            registry: &|_, _| Ok(Vec::new()),
            clean_registry: &|_, _| Ok(Vec::new()),
            state_store: self.state_store.clone(),
            validity: imgctl_runtime::certificates::validity::Validity::default(),
            parallel: 8,
            copy_state: true,
            draining: imgctl_kube::drain::Options::default(),
            force: self.force,
        })
    }

    fn execute(&self, planned: &Planned) -> Result<Summary> {
        let redactor = of_cluster(&planned.context);
        let surroundings = Surroundings {
            context: &planned.context,
            pool: Arc::clone(&planned.pool),
            redactor: &redactor,
            listener: &self.heard,
            interrupt: &self.interrupt,
        };
        execute(&planned.plan, &surroundings, &self.options)
    }

    fn change(&self, context: &ClusterContext, change: &Change) -> Result<Summary> {
        let planned = self.planned(|execution| change::plan(execution, context, change))?;
        self.execute(&planned)
    }

    fn create(&self, context: &ClusterContext) -> Result<Summary> {
        self.change(context, &creation())
    }

    /// Returns every command that was executed, without the journal's name, and checks that each
    /// ran once.
    fn once_each(&self) -> Vec<String> {
        let executed = self.simulation.executed();
        assert!(executed.values().all(|times| *times == 1), "{executed:?}");
        executed
            .into_keys()
            .map(|(host, key)| {
                let name = key.split_once('Z').unwrap().1.split_once('.').unwrap().1;
                format!("{host} {name}")
            })
            .collect()
    }
}

fn creation() -> Change {
    Change { verb: "run".to_owned(), create: true, ..Change::default() }
}

fn state() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn cluster(directory: &Path) -> ClusterContext {
    sample_context("c", hosts(3, 2), directory)
}

#[test]
fn a_creation_goes_through_all_phases_in_order() {
    let directory = state();
    let stage = Stage::new(Behaviour { lacks: 5, ..Behaviour::default() });
    let context = cluster(directory.path());
    let summary = stage.create(&context).unwrap();
    assert_eq!(summary.skipped, 0);
    let phases: Vec<String> = stage
        .heard
        .0
        .lock()
        .unwrap()
        .iter()
        .filter_map(|event| match event {
            Event::PhaseStart { phase, .. } => Some(phase.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(
        phases,
        [
            "check",
            "prepare",
            "sync",
            "preflight",
            "registry",
            "bootstrap",
            "init",
            "join",
            "join-workers",
            "settle",
            "guest",
            "guest",
            "certificates",
            "record",
            "copy"
        ]
    );
    let ran = stage.once_each();
    for expected in [
        "10.77.0.1 init.init-cluster",
        "10.77.0.2 join.join-master",
        "10.77.0.5 join-workers.join-worker",
        "10.77.0.5 guest.patch-v1-1",
        "10.77.0.1 guest.app-v1-2",
    ] {
        assert!(ran.iter().any(|one| one == expected), "{expected} in {ran:?}");
    }
    assert!(!ran.iter().any(|one| one == "10.77.0.2 guest.app-v1-1"));
    let marks = stage.state_store.0.lock().unwrap().clone();
    assert_eq!(marks.len(), 2);
    // Commands are expanded.
    let planned =
        stage.planned(|execution| change::plan(execution, &context, &creation())).unwrap();
    let says = planned.plan.steps().flat_map(|step| &step.says);
    assert!(says.into_iter().any(|line| line.ends_with("deploy hello")));
}

#[test]
fn a_failure_stops_what_has_not_begun_and_the_next_run_goes_on_from_there() {
    let directory = state();
    let context = cluster(directory.path());
    let stage = Stage::new(Behaviour {
        fails: Some(("join-master".into(), "0.3".into())),
        ..Behaviour::default()
    });
    let error = stage.create(&context).unwrap_err();
    assert_eq!(error.kind(), Kind::CommandFailed);
    let text = error.to_string();
    assert!(text.contains("step join/10.77.0.3/join-master failed on 10.77.0.3"), "{text}");
    assert!(text.contains("exit code 3"), "{text}");
    assert!(
        error.hints().iter().any(|hint| hint.contains("read the log: `less ")),
        "{:?}",
        error.hints()
    );
    let before = stage.once_each();
    assert!(!before.iter().any(|one| one.contains("join-worker")));

    // The same hosts without the failure; commands that ran before are not run again.
    let healed = Stage::new(Behaviour::default());
    let summary = healed.create(&context).unwrap();
    let after = healed.once_each();
    assert_eq!(summary.skipped, before.len() - 1 + 5, "hosts entries are steps too");
    let again: Vec<_> = after.iter().filter(|one| before.contains(one)).collect();
    assert!(again.is_empty(), "{again:?}");
    assert!(after.contains(&"10.77.0.3 join.join-master.2".to_owned()), "{after:?}");
    // One journal: the second run resumed the first one's journal and finished it.
    let all = past::list(&journals(directory.path())).unwrap();
    assert_eq!(all.len(), 1);
    let past = Past::read(&past::path_of(&journals(directory.path()), &all[0])).unwrap();
    assert!(past.is_done());
    assert_eq!(past.runs, 2);
}

/// An image was rebuilt under the same name: steps that use its content run again, the others do
/// not.
#[test]
fn a_corrected_image_has_its_steps_done_again() {
    let directory = state();
    let context = cluster(directory.path());
    let stage = Stage::new(Behaviour {
        fails: Some(("init-cluster".into(), "0.1".into())),
        ..Behaviour::default()
    });
    stage.create(&context).unwrap_err();
    let before = stage.once_each();
    let check = |ran: &[String], attempt: &str| {
        let wanted = format!("preflight.check{attempt}");
        ran.iter().filter(|one| one.ends_with(&wanted)).count()
    };
    assert_eq!(check(&before, ""), 5, "{before:?}");

    let mut corrected = context.clone();
    corrected.images[0].layers[0].diff_id = Digest::of(b"corrected");
    let second = Stage::new(Behaviour {
        fails: Some(("init-cluster".into(), "0.1".into())),
        ..Behaviour::default()
    });
    second.create(&corrected).unwrap_err();
    let ran = second.once_each();
    assert_eq!(check(&ran, ".2"), 5, "{ran:?}");
    assert!(!ran.iter().any(|one| one.contains("prepare-host")), "{ran:?}");

    // A change of embedded container images alone changes no script.
    let mut other = corrected.clone();
    let mut layer = other.images[0].layers[0].clone();
    layer.registry = true;
    layer.diff_id = Digest::of(b"container images");
    other.images[0].layers.push(layer);
    let third = Stage::new(Behaviour::default());
    third.create(&other).unwrap();
    let ran = third.once_each();
    assert_eq!(check(&ran, ".3"), 0, "{ran:?}");
    assert!(ran.iter().any(|one| one.ends_with("init.init-cluster.3")), "{ran:?}");
}

#[test]
fn lost_connections_are_tried_again_and_nothing_runs_twice() {
    let directory = state();
    let stage = Stage::new(Behaviour { loses_every: 3, lacks: 10, ..Behaviour::default() });
    stage.create(&cluster(directory.path())).unwrap();
    stage.once_each();
}

#[test]
fn an_end_that_nobody_saw_is_repeated_only_where_that_is_safe() {
    let directory = state();
    let context = cluster(directory.path());
    let safe = Stage::new(Behaviour { reboots: Some("settle".into()), ..Behaviour::default() });
    safe.create(&context).unwrap();
    assert!(safe.once_each().contains(&"10.77.0.1 settle.settle.2".to_owned()));

    let directory = state();
    let context = cluster(directory.path());
    let once =
        || Stage::new(Behaviour { reboots: Some("init-cluster".into()), ..Behaviour::default() });
    let stage = once();
    let error = stage.create(&context).unwrap_err();
    assert!(
        error.to_string().contains("the outcome of step init/10.77.0.1/init-cluster is unknown"),
        "{error}"
    );
    assert!(
        error.hints().iter().any(|hint| hint.contains("--assume-done init/10.77.0.1/init-cluster"))
    );
    // The result is still unknown: nothing runs.
    let stage = once();
    assert!(stage.create(&context).is_err());
    assert!(stage.simulation.executed().is_empty());
    let mut stage = once();
    stage.options.assume_done = vec!["init/10.77.0.1/init-cluster".into()];
    stage.create(&context).unwrap();
    assert!(!stage.once_each().iter().any(|one| one.contains("init-cluster")));
    stage.options.redo = vec!["nothing/like/this".into()];
    assert_eq!(stage.create(&context).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn a_request_to_stop_ends_running_commands_and_the_next_run_goes_on() {
    let directory = state();
    let context = cluster(directory.path());
    let stage = Stage::new(Behaviour { duration: Duration::from_secs(30), ..Behaviour::default() });
    let (interrupt, simulation) = (stage.interrupt.clone(), Arc::clone(&stage.simulation));
    let asker = std::thread::spawn(move || {
        let first = |host: &str| host == "10.77.0.1";
        while !simulation.executed().keys().any(|(host, _)| first(host)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        interrupt.ask();
        Instant::now()
    });
    let error = stage.create(&context).unwrap_err();
    let asked = asker.join().unwrap();
    assert_eq!(error.kind(), Kind::Interrupted, "{error}");
    assert!(asked.elapsed() < Duration::from_secs(20));
    let next = Stage::new(Behaviour::default());
    next.create(&context).unwrap();
    let ran = next.once_each();
    assert!(ran.contains(&"10.77.0.1 preflight.check.2".to_owned()), "{ran:?}");
}

#[test]
fn secrets_reach_neither_errors_nor_logs_nor_journals() {
    let directory = state();
    let mut context = cluster(directory.path());
    context.environment.insert("DB_PASSWORD".into(), "hunter22".into());
    context.environment.insert("NAME".into(), "hunter22".into());
    let stage = Stage::new(Behaviour {
        fails: Some(("deploy".into(), "0.1".into())),
        ..Behaviour::default()
    });
    let error = stage.create(&context).unwrap_err();
    let events = format!("{:?}", stage.heard.0.lock().unwrap());
    assert!(events.contains("deploy ***") && !events.contains("hunter22"));
    let shown = format!("{error} {:?}", error.hints());
    assert!(shown.contains("the secret is ***"), "{shown}");
    assert!(!shown.contains("hunter22"), "{shown}");
    let mut files = 0;
    let entries = walkdir::WalkDir::new(directory.path()).into_iter().map(Result::unwrap);
    for file in entries.filter(|entry| entry.file_type().is_file()) {
        files += 1;
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(!text.contains("hunter22"), "{}: {text}", file.path().display());
    }
    assert!(files >= 2);
}

#[test]
fn hosts_come_and_go_in_one_run_and_a_lost_one_is_only_taken_out() {
    let directory = state();
    let mut context = cluster(directory.path());
    let lost = context.hosts.remove(4);
    context.leaving = vec![context.hosts.remove(1), lost.clone()];
    let new = hosts(3, 3).remove(5);
    context.hosts.push(new.clone());
    let mut stage = Stage::new(Behaviour {
        unreachable: vec![lost.address.name.clone()],
        ..Behaviour::default()
    });
    let change = Change { verb: "apply".into(), add: vec![new], ..Change::default() };
    let error = stage.change(&context, &change).unwrap_err();
    assert!(error.hints().iter().any(|hint| hint.contains("--force")), "{error}");
    stage.force = true;
    stage.change(&context, &change).unwrap();
    let ran = stage.once_each();
    for expected in [
        "10.77.0.2 leave.leave",
        "10.77.0.2 leave-clean.reset",
        "10.77.0.6 join-workers.join-worker",
        "10.77.0.6 guest.patch-v1-1",
        "10.77.0.1 settle.settle",
    ] {
        assert!(ran.contains(&expected.to_owned()), "{expected} in {ran:?}");
    }
    assert!(!ran.iter().any(|one| one.starts_with("10.77.0.5 ")), "{ran:?}");
    assert!(!ran.iter().any(|one| one.contains("app-v1")), "{ran:?}");
}

#[test]
fn a_reset_goes_as_far_as_it_gets_and_says_what_is_left() {
    let directory = state();
    let context = cluster(directory.path());
    let stage = Stage::new(Behaviour {
        fails: Some(("reset --on".into(), "0.4".into())),
        ..Behaviour::default()
    });
    let planned = stage.planned(|execution| maintain::reset(execution, &context)).unwrap();
    let error = stage.execute(&planned).unwrap_err();
    assert!(error.to_string().contains("workers/10.77.0.4/reset"), "{error}");
    let ran = stage.once_each();
    assert!(ran.contains(&"10.77.0.4 workers.clean".to_owned()), "{ran:?}");
    assert!(ran.contains(&"10.77.0.1 control-planes.clean".to_owned()), "{ran:?}");
    assert!(stage.state_store.0.lock().unwrap().is_empty(), "the Clusterfile stays");
    let healed = Stage::new(Behaviour::default());
    let planned = healed.planned(|execution| maintain::reset(execution, &context)).unwrap();
    healed.execute(&planned).unwrap();
    assert_eq!(healed.once_each(), ["10.77.0.4 workers.reset.2"]);
}

#[test]
fn problems_of_all_hosts_are_told_before_anything_is_done() {
    let directory = state();
    let context = cluster(directory.path());
    let stage = Stage::new(Behaviour {
        unreachable: vec!["10.77.0.2".into(), "10.77.0.4".into()],
        ..Behaviour::default()
    });
    let error = stage.create(&context).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("2 steps failed"), "{text}");
    assert!(text.contains("10.77.0.2") && text.contains("10.77.0.4"), "{text}");
    assert!(stage.simulation.executed().is_empty());
    assert!(stage.state_store.0.lock().unwrap().is_empty());
}

/// Runs batches of two hosts, some of which fail. Returns the outcome and the steps that were done.
fn batches(most: usize, ill: &[usize]) -> (Outcome, Vec<String>) {
    use crate::pipeline::step::{Lane, Order, Phase, Step};
    let directory = tempfile::tempdir().unwrap();
    let stage = Stage::new(Behaviour::default());
    let context = sample_context("c", hosts(1, 6), directory.path());
    let done: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut plan = Plan::new("upgrade", "c", "");
    let step = |name: String, fails: bool| {
        let done = Arc::clone(&done);
        Step::local("do", "do", &name.clone(), move |_| {
            if fails {
                return Err(Error::failed("ill"));
            }
            done.lock().unwrap().push(name.clone());
            Ok(())
        })
    };
    for batch in 0..3 {
        let mut phase = Phase::new(&format!("workers-{}", batch + 1), Order::Parallel)
            .on_failure(OnFailure::Tolerate(most));
        for number in [batch * 2 + 1, batch * 2 + 2] {
            phase = phase.lane(Lane {
                host: Some(context.hosts[number].clone()),
                steps: vec![step(number.to_string(), ill.contains(&number))],
            });
        }
        plan.push(phase);
    }
    plan.push(Phase::local("verify", vec![step("end".into(), false)]));
    let redactor = of_cluster(&context);
    let outcome = execute(
        &plan,
        &Surroundings {
            context: &context,
            pool: Arc::new(SimulatedPool(Arc::clone(&stage.simulation))),
            redactor: &redactor,
            listener: &stage.heard,
            interrupt: &stage.interrupt,
        },
        &stage.options,
    );
    let outcome = outcome.map_or(Outcome::Failed, |_| Outcome::Done);
    let mut done = done.lock().unwrap().clone();
    done.sort();
    (outcome, done)
}

#[test]
fn failures_are_borne_up_to_a_number() {
    let all = ["1", "2", "3", "4", "5", "6", "end"];
    assert_eq!(batches(1, &[]), (Outcome::Done, all.map(str::to_owned).into()));
    // The other batches continue; the phase after them does not run.
    let (outcome, done) = batches(1, &[2]);
    assert_eq!(
        (outcome, &done[..]),
        (Outcome::Failed, &["1", "3", "4", "5", "6"].map(str::to_owned)[..])
    );
    // Host 4 runs in parallel with host 3, so whether its step has started by then varies.
    let (outcome, mut done) = batches(1, &[1, 3]);
    done.retain(|one| one != "4");
    assert_eq!((outcome, &done[..]), (Outcome::Failed, &["2"].map(str::to_owned)[..]));
    let (_, done) = batches(2, &[1, 3]);
    assert_eq!(done, ["2", "4", "5", "6"]);
}

/// Two phases of hosts that wait for admission, before one that does not; each step closes what
/// `closes` names and counts itself.
fn held_plan(context: &ClusterContext, stage: &Stage, open: &Arc<AtomicBool>) -> Planned {
    let mut planned =
        stage.planned(|execution| change::plan(execution, context, &creation())).unwrap();
    let mut plan = Plan::new("upgrade", "c", "held");
    let step = |name: &str, open: &Arc<AtomicBool>, closes: bool| {
        let open = Arc::clone(open);
        Step::local(name, name, name, move |_| {
            if closes {
                open.store(false, Ordering::SeqCst);
            }
            Ok(())
        })
    };
    plan.push(Phase::local("stage", vec![step("files", open, false)]));
    let mut phase = Phase::new("control-plane", Order::Serial).while_admitted();
    for (number, host) in context.hosts.iter().take(3).enumerate() {
        // The window closes in the middle of the second host.
        let steps = [step("drain", open, number == 1), step("kubelet", open, false)];
        phase = phase.lane(Lane::on(host, steps));
    }
    plan.push(phase);
    plan.push(Phase::local("workers-1", vec![step("w", open, false)]).while_admitted());
    plan.push(Phase::local("commit", vec![step("close", open, false)]));
    planned.plan = plan;
    planned
}

#[test]
fn hosts_begin_only_while_they_are_admitted_and_are_finished() {
    let directory = state();
    let context = cluster(directory.path());
    let mut stage = Stage::new(Behaviour::default());
    let open = Arc::new(AtomicBool::new(false));
    let admits = Arc::clone(&open);
    stage.interrupt = Interrupt::gentle().admitting(move || admits.load(Ordering::SeqCst));
    let planned = held_plan(&context, &stage, &open);
    // Closed: what touches no host runs, and nothing else.
    let summary = stage.execute(&planned).unwrap();
    assert!(summary.is_held);
    assert_eq!((summary.done, summary.skipped), (1, 0));
    // It closes within the second host, which is finished; the third does not begin.
    open.store(true, Ordering::SeqCst);
    let summary = stage.execute(&planned).unwrap();
    assert!(summary.is_held);
    assert_eq!((summary.done, summary.skipped), (4, 1));
    let begun = |id: &str| {
        let past = unfinished(&planned.plan, &planned.context).unwrap().unwrap();
        past.steps.keys().any(|step| step.contains(id))
    };
    let third = context.hosts[2].id();
    assert!(!begun(&format!("control-plane/{third}")));
    let summary = stage.execute(&planned).unwrap();
    assert!(summary.is_held && summary.done == 0);
    open.store(true, Ordering::SeqCst);
    let summary = stage.execute(&planned).unwrap();
    assert!(!summary.is_held);
    assert_eq!((summary.done, summary.skipped), (4, 5));
    let ends: Vec<Outcome> = stage
        .heard
        .0
        .lock()
        .unwrap()
        .iter()
        .filter_map(|event| match event {
            Event::End { outcome, .. } => Some(*outcome),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [Outcome::Paused, Outcome::Paused, Outcome::Paused, Outcome::Done]);
}

#[test]
fn a_host_that_was_cut_off_is_finished_whatever_the_window() {
    let directory = state();
    let context = cluster(directory.path());
    let mut stage = Stage::new(Behaviour::default());
    let open = Arc::new(AtomicBool::new(true));
    let admits = Arc::clone(&open);
    stage.interrupt = Interrupt::gentle().admitting(move || admits.load(Ordering::SeqCst));
    let planned = held_plan(&context, &stage, &open);
    // The second host is cut off after its first step.
    let pause = stage.interrupt.clone();
    let mut cut = held_plan(&context, &stage, &open);
    let second = context.hosts[1].id();
    let lanes = &mut cut.plan.phases[1].lanes;
    let lane = lanes.iter_mut().find(|lane| lane.id() == second).unwrap();
    lane.steps[0].work = Work::Local(Arc::new(move |_| {
        pause.pause();
        Ok(())
    }));
    assert_eq!(stage.execute(&cut).unwrap_err().kind(), Kind::Interrupted);
    open.store(false, Ordering::SeqCst);
    let admits = Arc::clone(&open);
    stage.interrupt = Interrupt::gentle().admitting(move || admits.load(Ordering::SeqCst));
    let summary = stage.execute(&planned).unwrap();
    assert!(summary.is_held);
    assert_eq!((summary.done, summary.skipped), (1, 4));
    // What was undone meanwhile begins anew, and waits.
    stage.options.redo = planned
        .plan
        .steps()
        .map(|step| step.id.clone())
        .filter(|id| id.contains(&second))
        .collect();
    let summary = stage.execute(&planned).unwrap();
    assert!(summary.is_held && summary.done == 0);
}
