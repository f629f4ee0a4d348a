//! The step `rehash` on a made-up host, whose controller dies at each call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use super::*;
use crate::restarts::HostRestarts;
use crate::testing::{document, kubernetes};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::{Outcome, OutputLine, Run};
use imgctl_host::containerd::rehash::Seen;
use imgctl_kube::hash::{Minor, container_hash};
use imgctl_kube::restart::{KubeletChange, RunningContainer, predict_both};
use imgctl_model::context::Host;
use imgctl_runtime::action::HostPool;
use imgctl_runtime::shell;
use imgctl_runtime::upgrade::{Place, Renewal};
use imgctl_workflow::pipeline::testing::{hosts, sample_context};

/// What a host with containerd and a kubelet is in.
#[derive(Clone, Debug, PartialEq)]
struct State {
    kubelet: bool,
    /// Stored and shown hash of the container `c1`.
    stored: &'static str,
    shown: &'static str,
    former: bool,
    calls: usize,
}

/// A host that dies with one of its calls, before or after its effect.
struct Fake {
    state: Mutex<State>,
    dies_at: Option<(usize, bool)>,
    fails: Option<&'static str>,
    version: &'static str,
}

impl Fake {
    fn new() -> Self {
        let state = State { kubelet: true, stored: "old", shown: "old", former: false, calls: 0 };
        Self { state: Mutex::new(state), dies_at: None, fails: None, version: "1.7.27" }
    }

    /// Does something, unless the controller dies with it.
    fn call<T>(&self, effect: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.calls += 1;
        let dies = |after: bool| self.dies_at == Some((state.calls, after));
        let (before, after) = (dies(false), dies(true));
        assert!(!before, "killed");
        let answer = effect(&mut state);
        assert!(!after, "killed");
        answer
    }

    fn now(&self) -> State {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl Agent for Fake {
    fn host(&self) -> &str {
        "h"
    }

    fn read_file(&self, _path: &str, _limit: u64) -> Result<Option<Vec<u8>>> {
        Ok(self.now().former.then(Vec::new))
    }

    fn run(&self, request: &Run, _output: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        if self.fails.is_some_and(|word| request.line.contains(word)) {
            return Err(Error::failed("it does not work"));
        }
        let stop = shell::program(&[STOP]);
        self.call(|state| match request.line.as_str() {
            line if line == stop => state.kubelet = false,
            START => state.kubelet = true,
            RESTART => {
                assert!(!state.kubelet, "containerd restarts while no kubelet runs");
                state.shown = state.stored;
            }
            other => panic!("{other}"),
        });
        Ok(Outcome {
            code: Some(0),
            reason: None,
            duration_ms: 1,
            recalled: false,
            log: "/log".to_owned(),
        })
    }

    fn rehash(&self, request: &Rehash) -> Result<Rehashed> {
        check_version(self.version)?;
        self.call(|state| {
            let mut change = request.containers.first().cloned().unwrap_or(Change {
                id: "c1".into(),
                from: "new".into(),
                to: "old".into(),
            });
            if request.task == Task::Back && state.former {
                (change.from, change.to) = ("new".into(), "old".into());
            }
            if request.task != Task::Look && state.stored == change.from {
                assert!(!state.kubelet, "records change while no kubelet runs");
                state.former |= request.task == Task::Write && !request.former.is_empty();
                state.stored = if change.to == "new" { "new" } else { "old" };
            }
            let seen = Seen {
                change,
                stored: Some(state.stored.into()),
                shown: Some(state.shown.into()),
                is_running: true,
                started: 7,
            };
            Ok(Rehashed { version: self.version.into(), containers: vec![seen] })
        })
    }
}

struct Nobody;

impl HostPool for Nobody {
    fn agent(&self, _host: &Host) -> Result<Arc<dyn Agent>> {
        Err(Error::failed("there is nobody else"))
    }
}

fn request(task: Task) -> Rehash {
    let (from, to) = if task == Task::Back { ("new", "old") } else { ("old", "new") };
    Rehash {
        socket: SOCKET.into(),
        annotation: ANNOTATION.into(),
        containers: vec![Change { id: "c1".into(), from: from.into(), to: to.into() }],
        former: "/backup/container-hashes.json".into(),
        task,
    }
}

fn run(fake: &Fake, task: Task) -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let context = sample_context("c", hosts(1, 0), directory.path());
    let site = Site {
        host: &context.hosts[0],
        agent: fake,
        pool: &Nobody,
        context: &context,
        key: "k",
        attempt: 1,
        timeout: None,
        output: &|_| {},
    };
    (action(request(task)).does)(&site)
}

fn after(stored: &'static str) -> State {
    State { kubelet: false, stored, shown: stored, former: true, calls: 0 }
}

#[test]
fn a_kill_at_each_step_is_made_good_by_the_next_run() {
    for task in [Task::Write, Task::Back] {
        let (from, to) = if task == Task::Back { ("new", "old") } else { ("old", "new") };
        let start = || {
            let fake = Fake::new();
            *fake.state.lock().unwrap() =
                State { kubelet: true, former: task == Task::Back, ..after(from) };
            fake
        };
        let whole = start();
        run(&whole, task).unwrap();
        assert_eq!(State { calls: 0, ..whole.now() }, after(to));
        let calls = whole.now().calls;
        assert!(calls >= 5, "{calls}");
        for call in 1..=calls {
            for late in [false, true] {
                let mut fake = start();
                fake.dies_at = Some((call, late));
                let died = catch_unwind(AssertUnwindSafe(|| run(&fake, task)));
                assert!(died.is_err(), "{task:?} {call} {late}");
                fake.dies_at = None;
                run(&fake, task).unwrap();
                let now = fake.now();
                assert_eq!((now.stored, now.shown), (to, to), "{task:?} {call} {late}");
                // Nothing was left to do: the kubelet of then has nothing to restart either.
                assert!(!now.kubelet || now.shown == to, "{task:?} {call} {late}");
            }
        }
    }
}

#[test]
fn what_fails_on_the_way_is_as_before() {
    let mut fake = Fake::new();
    fake.fails = Some("restart containerd");
    run(&fake, Task::Write).unwrap_err();
    let now = fake.now();
    assert_eq!((now.stored, now.shown, now.kubelet), ("old", "old", true));
    // A unit that would end containers: nothing was stopped.
    let mut fake = Fake::new();
    fake.fails = Some("KillMode");
    run(&fake, Task::Write).unwrap_err();
    assert_eq!(State { calls: 0, ..fake.now() }, Fake::new().now());
}

#[test]
fn an_unknown_containerd_is_refused_before_anything_is_stopped() {
    let mut fake = Fake::new();
    fake.version = "1.5.18";
    let error = run(&fake, Task::Write).unwrap_err().to_string();
    assert!(error.contains("1.5.18"), "{error}");
    assert_eq!(fake.now(), Fake::new().now());
}

#[test]
fn only_records_that_the_plan_names_are_touched_and_only_once() {
    let fake = Fake::new();
    *fake.state.lock().unwrap() = State { kubelet: true, ..after("other") };
    run(&fake, Task::Write).unwrap();
    let now = fake.now();
    assert_eq!((now.stored, now.kubelet), ("other", true));
    // Already done, and the new kubelet runs.
    *fake.state.lock().unwrap() = State { kubelet: true, ..after("new") };
    run(&fake, Task::Write).unwrap();
    assert!(fake.now().kubelet);
}

/// What a host's containers are predicted to do between 1.30 and 1.31.
fn predicted() -> HostRestarts {
    let list = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"web","namespace":"default","uid":"11111111-2222-3333-4444-555555555555"},"spec":{"containers":[{"name":"main","image":"web:1","resources":{}}]}}]}"#;
    let pods = imgctl_kube::hash::pods(list.as_bytes()).unwrap();
    let spec = &pods[0].containers[0].spec;
    let change = KubeletChange::new(Minor(30), Minor(31));
    let running = [RunningContainer {
        namespace: "default".into(),
        pod: "web".into(),
        uid: pods[0].uid.clone(),
        container: "main".into(),
        id: "c1".into(),
        running: true,
        hash_annotation: Some(container_hash(spec, Minor(30)).unwrap().to_string()),
        hash_without_resources: None,
        is_static: false,
    }];
    let mut ways = predict_both(&running, &pods, &change);
    ways.rehash(&running, &pods, &change);
    HostRestarts { ways, moved: 0 }
}

#[test]
fn the_step_comes_right_before_the_kubelet() {
    let directory = tempfile::tempdir().unwrap();
    let context = sample_context("c", hosts(1, 1), directory.path());
    let worker = &context.hosts[1];
    let names = |names: &[&str]| -> Vec<Action> {
        names.iter().map(|name| Action::new(name, "", |_| Ok(()))).collect()
    };
    let request = crate::testing::request("v1.30.4", &["v1.31.2"]);
    let mut plan = document(&kubernetes(1, 1, "v1.30.4"), &request);
    let step = |back: bool| Move {
        from: &context,
        to: &context,
        host: worker,
        tree: "/tree".into(),
        place: Place::Worker,
        id: if back { "v1.31.2-1a2b3c4d-back-1" } else { "v1.31.2-1a2b3c4d" },
        renewal: Renewal::Auto,
        external_etcd: false,
        keeps_corefile: false,
        back,
    };
    let after = |plan: &Document, back: bool, given: &[&str]| {
        let mut actions = names(given);
        insert(&mut actions, &step(back), plan)?;
        Ok::<_, Error>(actions)
    };
    let of = |actions: Vec<Action>| -> Vec<String> {
        actions.into_iter().map(|action| action.name).collect()
    };
    let forward = ["switch", "kubeadm-upgrade", "kubelet"];
    // The operator does not want it; nothing qualifies.
    assert_eq!(of(after(&plan, false, &forward).unwrap()), forward);
    plan.choices.keep_containers = KeepContainers::Rehash;
    assert_eq!(of(after(&plan, false, &forward).unwrap()), forward);
    plan.restarts.insert(worker.id(), serde_json::to_value(predicted()).unwrap());
    let actions = after(&plan, false, &forward).unwrap();
    let says = actions[2].says.join("\n");
    assert!(
        says.contains("of 1 containers") && says.contains("backup/v1.31.2-1a2b3c4d/"),
        "{says}"
    );
    assert_eq!(of(actions), ["switch", "kubeadm-upgrade", "rehash", "kubelet"]);
    assert!(after(&plan, false, &["switch"]).is_err());
    // Back, the file has what the plan does not know.
    plan.direction = Direction::Back;
    plan.restarts.clear();
    let actions = after(&plan, true, &["switch", "restore-files"]).unwrap();
    // The backup is that of the upgrade.
    let says = actions[1].says.join("\n");
    assert!(says.contains("backup/v1.31.2-1a2b3c4d/container-hashes.json"), "{says}");
    assert_eq!(of(actions), ["switch", "rehash", "restore-files"]);
}

#[test]
fn the_plan_says_whether_records_change() {
    let request = crate::testing::request("v1.33.4", &["v1.34.2"]);
    let mut plan = document(&kubernetes(1, 1, "v1.33.4"), &request);
    assert!(notes(&plan).is_empty(), "it was not asked for");
    plan.choices.keep_containers = KeepContainers::Rehash;
    let told = notes(&plan);
    assert!(told.len() == 1 && told[0].contains("containerd is not restarted"), "{told:?}");
    plan.restarts.insert("h".to_owned(), serde_json::to_value(predicted()).unwrap());
    let told = notes(&plan);
    assert!(told[0].contains("ends every `kubectl exec`"), "{told:?}");
    assert!(told[1].starts_with("h: default/web main keeps running"), "{told:?}");
    plan.direction = Direction::Back;
    plan.restarts.clear();
    let told = notes(&plan);
    assert!(told.len() == 1 && told[0].contains("experimental"), "{told:?}");
}
