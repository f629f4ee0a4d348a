//! Runs of in-place updates as reports show them: a Node is a host, and a Pod is a step on it. Reads
//! journals of older versions, which lack Nodes and restarts, as far as they go.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use crate::report::progress::ProgressEvent;
use imgctl_inplace::journal::{Phase, Record, TemplatePhase};
use imgctl_inplace::object::Role;
use imgctl_inplace::plan::{ContainerPlan, Plan, PodPlan, Verdict};
use imgctl_inplace::restarts::After;
use imgctl_report::model::run::{HostRestarts, RestartResult};

/// Phase of Pods that are in no batch.
const NEWCOMERS: &str = "new Pods";
/// Phase of Pods that get their former images back.
const RESTORED: &str = "restored";
const TEMPLATES: &str = "templates";
/// Host of the steps that imgctl performs itself, as in runs over hosts.
const CONTROLLER: &str = "controller";

/// Phase, host and name of a step.
type Step = (String, String, String);

/// Turns records into events of steps, and collects what the comparison of restarts needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Reader {
    /// Server and kind of the run, of the first plan.
    pub(super) server: String,
    is_rollback: bool,
    pods: HashMap<String, PodState>,
    /// UIDs in the order of the plan, then in that of their first record.
    order: Vec<String>,
    /// Number of attempts at steps.
    attempts: HashMap<Step, u32>,
    /// When the steps in progress began.
    open: HashMap<Step, Timestamp>,
    is_old: bool,
}

/// What is known of a Pod.
#[derive(Clone, Debug, Default)]
struct PodState {
    name: String,
    node: String,
    batch: Option<usize>,
    plan: Option<PodPlan>,
    after: BTreeMap<String, After>,
    /// Former and new images of changed containers, for Pods that are in no plan.
    images: BTreeMap<String, (String, String)>,
    phase: Option<Phase>,
    message: Option<String>,
}

impl Reader {
    /// Returns the verb of the run.
    pub(super) fn verb(&self) -> &'static str {
        verb_of(self.is_rollback)
    }

    /// Returns the event of a record; `None` for one that begins and ends nothing.
    pub(super) fn take(&mut self, record: Record) -> Option<ProgressEvent> {
        match record {
            Record::Start { time, plan, controller, version } => {
                self.plan(*plan);
                Some(ProgressEvent::Start { time: time.to_string(), controller, version })
            }
            Record::Pod { time, uid, pod, phase, node, batch, before, after, message } => {
                let state = self.pod(&uid);
                state.name = pod;
                if !node.is_empty() {
                    state.node = node;
                    state.batch = batch;
                }
                state.phase = Some(phase);
                if message.is_some() {
                    state.message.clone_from(&message);
                }
                for (name, one) in before {
                    state.images.entry(name).or_insert((one.image, one.to));
                }
                if !after.is_empty() {
                    state.after = after;
                }
                let (host, name) = (state.node.clone(), state.name.clone());
                let place = match state.batch {
                    Some(number) => format!("batch {number}"),
                    None => NEWCOMERS.to_owned(),
                };
                self.is_old |= phase == Phase::Ready && self.pod(&uid).after.is_empty();
                let step = (place, host, name);
                let outcome = match phase {
                    Phase::Intent => return Some(self.begin(time, step)),
                    Phase::Patched => return None,
                    Phase::Ready => "done",
                    Phase::Failed => "failed",
                    Phase::Gone => "gone",
                    Phase::Skipped => "skipped",
                    // The change itself ends with this, or has ended before.
                    Phase::Restored if self.open.contains_key(&step) => RESTORED,
                    Phase::Restored => {
                        let (_, host, name) = step;
                        return Some(self.end(
                            time,
                            (RESTORED.to_owned(), host, name),
                            "done",
                            None,
                        ));
                    }
                };
                Some(self.end(time, step, outcome, message))
            }
            Record::Template { time, workload, phase, .. } => {
                let step = (TEMPLATES.to_owned(), CONTROLLER.to_owned(), workload);
                let kept = || Some("the template keeps its former images".to_owned());
                Some(match phase {
                    TemplatePhase::Begin => self.begin(time, step),
                    TemplatePhase::Done => self.end(time, step, "done", None),
                    TemplatePhase::Kept => self.end(time, step, "done", kept()),
                })
            }
            Record::Finish { time, outcome, message } => Some(ProgressEvent::Finish {
                time: time.to_string(),
                outcome: outcome.word().to_owned(),
                message,
            }),
        }
    }

    fn plan(&mut self, plan: Plan) {
        if self.server.is_empty() {
            self.server = plan.server;
            self.is_rollback = plan.rollback;
        }
        for pod in plan.pods {
            let batch = plan.batches.iter().position(|uids| uids.contains(&pod.uid));
            let uid = pod.uid.clone();
            let state = self.pod(&uid);
            state.name = pod.full_name();
            state.node.clone_from(&pod.node);
            // The plan of a resumed run has the former images, but not what is already done.
            if state.plan.is_none() {
                state.batch = batch.map(|batch| batch + 1);
                state.plan = Some(pod);
            }
        }
        // Steps that an earlier command began are no longer in progress.
        self.open.clear();
    }

    fn pod(&mut self, uid: &str) -> &mut PodState {
        if !self.pods.contains_key(uid) {
            self.order.push(uid.to_owned());
            let state = PodState { node: "unknown Node".to_owned(), ..PodState::default() };
            self.pods.insert(uid.to_owned(), state);
        }
        self.pods.entry(uid.to_owned()).or_default()
    }

    fn begin(&mut self, time: Timestamp, step: Step) -> ProgressEvent {
        let attempts = self.attempts.entry(step.clone()).or_default();
        *attempts += 1;
        let attempt = *attempts;
        self.open.insert(step.clone(), time);
        let (phase, host, step) = step;
        ProgressEvent::Begin { time: time.to_string(), host, phase, step, attempt }
    }

    fn end(
        &mut self,
        time: Timestamp,
        step: Step,
        outcome: &str,
        message: Option<String>,
    ) -> ProgressEvent {
        let attempt = self.attempts.get(&step).copied().unwrap_or(1);
        let began = self.open.remove(&step).unwrap_or(time);
        let duration = time.duration_since(began).as_millis();
        let (phase, host, step) = step;
        ProgressEvent::End {
            time: time.to_string(),
            host,
            phase,
            step,
            attempt,
            outcome: outcome.to_owned(),
            duration_ms: u64::try_from(duration).unwrap_or(0),
            message,
        }
    }

    /// Returns what was predicted of the containers and what they did, by Node, and what is not known.
    pub(super) fn restarts(&self) -> (Vec<HostRestarts>, Vec<String>) {
        let mut nodes: Vec<HostRestarts> = Vec::new();
        for state in self.order.iter().filter_map(|uid| self.pods.get(uid)) {
            let compared = state.compared();
            if compared.is_empty() {
                continue;
            }
            let place = nodes.iter().position(|node| node.host == state.node);
            let place = place.unwrap_or_else(|| {
                nodes.push(HostRestarts { host: state.node.clone(), ..HostRestarts::default() });
                nodes.len() - 1
            });
            let Some(node) = nodes.get_mut(place) else { continue };
            for (result, is_agreed) in compared {
                if !is_agreed {
                    node.others.push(result);
                    continue;
                }
                node.as_predicted += 1;
                if result.predicted != "keep" {
                    node.agreed.push(result);
                }
            }
        }
        let mut problems = Vec::new();
        if self.is_old {
            problems.push(
                "the journal is of an older version of imgctl, which did not record what containers did"
                    .to_owned(),
            );
        }
        (nodes, problems)
    }
}

impl PodState {
    /// Returns what was predicted of each container and what it did, and whether that is the same. Empty
    /// as long as the Pod has not ended.
    fn compared(&self) -> Vec<(RestartResult, bool)> {
        let replaced = match self.phase {
            None | Some(Phase::Intent | Phase::Patched) => return Vec::new(),
            Some(Phase::Gone) => Some("gone"),
            Some(Phase::Skipped) => Some("kept"),
            Some(_) => None,
        };
        let planned = self.plan.iter().flat_map(|plan| &plan.containers);
        let mut expected: BTreeMap<&str, (&str, String)> = planned
            .map(|one| (one.name.as_str(), (prediction(one), changes(&one.from, &one.to))))
            .collect();
        for (name, (from, to)) in &self.images {
            expected.entry(name).or_insert_with(|| ("restart", changes(from, to)));
        }
        let is_known = self.plan.is_some() || !self.images.is_empty();
        for name in self.after.keys() {
            expected.entry(name).or_insert_with(|| {
                if is_known {
                    ("keep", "the run does not change it".to_owned())
                } else {
                    ("unknown", "the plan is missing".to_owned())
                }
            });
        }
        let (namespace, pod) = self.name.split_once('/').unwrap_or(("", &self.name));
        let result = |(name, (predicted, reason)): (&str, (&str, String))| {
            let after = self.after.get(name);
            let restarts = after.map(|after| after.restarts);
            let actual = match (replaced, after) {
                (Some(word), _) => word,
                (None, Some(After { is_running: false, .. })) => "gone",
                (None, Some(After { restarts: 0, .. })) => "kept",
                (None, Some(_)) => "restarted",
                // The journal does not say.
                (None, None) => return None,
            };
            let is_agreed = match predicted {
                "restart" => actual == "restarted" && restarts == Some(1) && self.is_changed(),
                predicted => predicted == "keep" && actual == "kept",
            };
            let result = RestartResult {
                namespace: namespace.to_owned(),
                pod: pod.to_owned(),
                container: name.to_owned(),
                predicted: predicted.to_owned(),
                reason,
                actual: actual.to_owned(),
                restarts,
                why: (!is_agreed).then(|| self.why()).flatten(),
            };
            Some((result, is_agreed))
        };
        expected.into_iter().filter_map(result).collect()
    }

    fn is_changed(&self) -> bool {
        self.phase == Some(Phase::Ready)
    }

    fn why(&self) -> Option<String> {
        let told = match self.phase {
            Some(Phase::Gone) => "another Pod took its place".to_owned(),
            Some(Phase::Restored) => "the Pod has its former images again".to_owned(),
            _ => return self.message.clone(),
        };
        Some(match &self.message {
            Some(message) => format!("{told}: {message}"),
            None => told,
        })
    }
}

/// Returns the verb that such runs have in reports.
pub(super) fn verb_of(is_rollback: bool) -> &'static str {
    if is_rollback { "inplace rollback" } else { "inplace apply" }
}

/// Returns what the plan predicts of a container.
fn prediction(one: &ContainerPlan) -> &'static str {
    match one.verdict {
        // Takes effect when the Pod is recreated.
        _ if one.role == Role::Init => "keep",
        Verdict::Change | Verdict::RestartOnly => "restart",
        // Whether resources need a restart is up to the container.
        Verdict::Noop if one.resize.is_some() => "unknown",
        Verdict::Noop | Verdict::Refuse => "keep",
    }
}

fn changes(from: &str, to: &str) -> String {
    if from == to { format!("it has {to} already") } else { format!("{from} → {to}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_inplace::journal::record;
    use serde_json::{Value, json};

    fn start(second: u32) -> Value {
        let container = |from: &str| json!({"name": "app", "role": "main", "from": from, "imageId": "i", "to": "a:2", "verdict": "CHANGE"});
        let pod = |uid: &str| {
            json!({"namespace": "shop", "name": format!("web-{uid}"), "uid": uid, "group": "g", "node": "n1",
                "architecture": "amd64", "ready": true, "verdict": "CHANGE", "containers": [container("a:1")], "stopSeconds": 30})
        };
        json!({"record": "start", "time": time(second), "version": "1", "controller": "me", "plan": {
            "schema": 1, "digest": "d", "server": "https://api", "images": {}, "groups": {}, "problems": [], "notes": [],
            "request": {"selection": {"by": "pods", "namespace": "shop", "names": ["web-a"]}, "template": "keep",
                "batches": ["1"], "maxUnavailable": "1", "verify": "image"},
            "pods": [pod("a"), pod("b"), pod("c"), pod("d")], "batches": [["a"], ["b", "c", "d"]]}})
    }

    fn time(second: u32) -> String {
        format!("2026-01-01T00:00:{second:02}Z")
    }

    fn pod(second: u32, uid: &str, phase: &str, more: &Value) -> Value {
        let batch = if uid == "a" { json!(1) } else { json!(2) };
        let mut record = json!({"record": "pod", "time": time(second), "uid": uid, "pod": format!("shop/web-{uid}"),
            "phase": phase, "node": "n1", "batch": batch});
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record
    }

    fn events(reader: &mut Reader, lines: &[Value]) -> Vec<ProgressEvent> {
        let read = |line: &Value| record(line.to_string().as_bytes()).unwrap().0;
        lines.iter().filter_map(|line| reader.take(read(line))).collect()
    }

    #[test]
    fn what_containers_did_is_compared_with_the_plan() {
        let after = |app: u64, side: u64, running: bool| {
            json!({"after": {"app": {"restarts": app, "running": running, "imageID": "x"},
                "side": {"restarts": side, "running": true, "imageID": "y"}}})
        };
        let none = json!({});
        let mut failed = after(0, 0, false);
        failed["message"] = json!("ImagePullBackOff");
        let mut reader = Reader::default();
        let seen = events(
            &mut reader,
            &[
                start(0),
                pod(1, "a", "intent", &none),
                pod(1, "a", "patched", &none),
                pod(4, "a", "ready", &after(1, 0, true)),
                pod(5, "b", "intent", &none),
                pod(5, "c", "intent", &none),
                pod(6, "b", "ready", &after(2, 1, true)),
                pod(7, "c", "failed", &failed),
                pod(8, "c", "restored", &none),
                start(20),
                pod(21, "c", "intent", &none),
            ],
        );
        let ends: Vec<(String, String, u64)> = seen
            .iter()
            .filter_map(|event| match event {
                ProgressEvent::End { phase, step, outcome, duration_ms, .. } => {
                    Some((format!("{phase}/{step}"), outcome.clone(), *duration_ms))
                }
                _ => None,
            })
            .collect();
        let end = |step: &str, outcome: &str, ms| (step.to_owned(), outcome.to_owned(), ms);
        assert_eq!(
            ends,
            [
                end("batch 1/shop/web-a", "done", 3000),
                end("batch 2/shop/web-b", "done", 1000),
                end("batch 2/shop/web-c", "failed", 2000),
                end("restored/shop/web-c", "done", 0),
            ]
        );
        assert!(matches!(seen.last(), Some(ProgressEvent::Begin { attempt: 2, .. })), "{seen:?}");

        let (nodes, problems) = reader.restarts();
        assert_eq!((nodes.len(), problems.len()), (1, 0));
        let told = |results: &[RestartResult]| -> Vec<String> {
            let one = |one: &RestartResult| {
                format!("{} {} {} {}", one.pod, one.container, one.predicted, one.actual)
            };
            results.iter().map(one).collect()
        };
        // web-a's side container kept running; web-c begins again, and web-d was never begun.
        assert_eq!(
            (nodes[0].as_predicted, told(&nodes[0].agreed)),
            (2, vec!["web-a app restart restarted".to_owned()])
        );
        assert_eq!(
            told(&nodes[0].others),
            ["web-b app restart restarted", "web-b side keep restarted"]
        );
    }

    #[test]
    fn a_failed_pod_says_why_and_an_old_journal_what_is_not_known() {
        let mut reader = Reader::default();
        let failed = json!({"message": "no such image", "after":
            {"app": {"restarts": 0, "running": false, "imageID": ""}}});
        events(
            &mut reader,
            &[start(0), pod(1, "a", "intent", &json!({})), pod(2, "a", "failed", &failed)],
        );
        let other = reader.restarts().0.remove(0).others.remove(0);
        assert_eq!((&*other.actual, other.why.as_deref()), ("gone", Some("no such image")));

        let mut old = pod(2, "a", "ready", &json!({}));
        old.as_object_mut().unwrap().remove("node");
        let mut reader = Reader::default();
        let seen = events(&mut reader, &[start(0), old]);
        assert!(
            matches!(&seen[1], ProgressEvent::End { host, phase, .. } if host == "n1" && phase == "batch 1"),
            "{seen:?}"
        );
        let (nodes, problems) = reader.restarts();
        assert!(nodes.is_empty() && problems[0].contains("older version"), "{problems:?}");
    }
}
