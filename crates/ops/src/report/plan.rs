//! The data of a plan's report: from the steps of a dry run, from the document of an upgrade or a
//! rollback, from a plan of in-place updates, or from the JSON of any of them.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::front_end::Outcome;
use crate::operation::Operation;
use imgctl_base::error::{Error, Result};
use imgctl_inplace as inplace;
use imgctl_report::model::plan::{
    PlanIdentity, PlanReport, PlannedHost, PlannedLane, PlannedPhase, PlannedRestart, PlannedStep,
    RestartCounts,
};
use imgctl_report::model::{About, Finding, Kind, Severity};
use imgctl_upgrade::{
    document,
    document::{Direction, Document, HostBefore},
};
use imgctl_workflow::pipeline::step::{Order, PlanView};

/// A plan that was read.
#[derive(Debug)]
pub struct ReadPlan {
    steps: Option<PlanView>,
    upgrade: Option<Box<Document>>,
    in_place: Option<Box<inplace::plan::Plan>>,
}

/// Reads the JSON that `imgctl plan`, `--dry-run --json`, `upgrade --plan --json`, `--save-plan` or
/// `inplace plan --json` have written. `name` is the file, for errors.
pub fn read_plan(bytes: &[u8], name: &str) -> Result<ReadPlan> {
    let malformed = |error: serde_json::Error| {
        Error::bad_content(format!("{name} is not a plan"))
            .caused_by(error)
            .hint("write it with `imgctl plan … --json`, `upgrade --plan --json` or `inplace plan --json`")
    };
    let value: Value = serde_json::from_slice(bytes).map_err(malformed)?;
    let mut found = ReadPlan { steps: None, upgrade: None, in_place: None };
    if value.get("pods").is_some() && value.get("groups").is_some() {
        let plan = inplace::plan::Plan::deserialize(&value).map_err(malformed)?;
        found.in_place = Some(Box::new(plan));
    } else if value.get("hops").is_some() {
        found.upgrade = Some(Box::new(Document::parse(bytes, name)?));
    } else {
        if let Some(change) = value.get("change").filter(|change| !change.is_null()) {
            let document = Document::parse(change.to_string().as_bytes(), name)?;
            found.upgrade = Some(Box::new(document));
        }
        found.steps = Some(PlanView::deserialize(&value).map_err(malformed)?);
    }
    Ok(found)
}

impl ReadPlan {
    /// Wraps the document of an upgrade.
    pub(super) fn of_document(document: Document) -> Self {
        Self { steps: None, upgrade: Some(Box::new(document)), in_place: None }
    }

    /// Collects the data of the report.
    pub fn report(&self, generator: &str, created: Option<String>) -> PlanReport {
        match &self.in_place {
            Some(plan) => of_in_place(plan, generator, created),
            None => of(self.steps.as_ref(), self.upgrade.as_deref(), generator, created),
        }
    }
}

/// Collects the data of a dry run; `None` for an outcome that is not a plan.
pub fn of_outcome(
    outcome: &Outcome,
    generator: &str,
    created: Option<String>,
) -> Option<PlanReport> {
    Some(match outcome {
        Outcome::Steps { steps, upgrade, .. } => {
            of(Some(steps), upgrade.as_deref(), generator, created)
        }
        Outcome::Adoption { steps: Some(steps), .. } => of(Some(steps), None, generator, created),
        Outcome::UpgradePlan(document) => of(None, Some(document), generator, created),
        _ => return None,
    })
}

fn of(
    steps: Option<&PlanView>,
    upgrade: Option<&Document>,
    generator: &str,
    created: Option<String>,
) -> PlanReport {
    let mut plan = PlanIdentity::default();
    let (mut hosts, mut restarts, mut findings) = (Vec::new(), Vec::new(), Vec::new());
    let mut notes: Vec<String> = steps.map(|steps| steps.notes.clone()).unwrap_or_default();
    if let Some(steps) = steps {
        (plan.verb, plan.cluster) = (steps.verb.clone(), steps.cluster.clone());
    }
    if let Some(document) = upgrade {
        plan = identity(document);
        for note in &document.notes {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        hosts = upgraded_hosts(document);
        restarts = upgrade_restarts(document);
        findings = document.findings.iter().map(finding).collect();
    }
    let phases = steps.map(phases).unwrap_or_default();
    add_hosts(&mut hosts, &phases);
    PlanReport {
        about: About::new(Kind::Plan, generator, created),
        irreversible: irreversible(&plan.verb, upgrade)
            .iter()
            .map(|&line| line.to_owned())
            .collect(),
        plan,
        hosts,
        phases,
        restarts,
        findings,
        notes,
    }
}

/// What no command takes back.
fn irreversible(verb: &str, upgrade: Option<&Document>) -> &'static [&'static str] {
    if let Some(upgrade) = upgrade.filter(|document| !document.is_reconfiguration()) {
        return match upgrade.direction {
            Direction::Back => &[
                "Containers that restart lose what they hold in memory; recreated Pods also lose their emptyDir volumes.",
                "If the rollback restores a snapshot, everything written to the cluster since then is lost.",
            ],
            Direction::Forward => &[
                "Containers that restart lose what they hold in memory; recreated and drained Pods also lose their emptyDir volumes.",
                "Objects that the newer version stores in etcd in a newer form come back only with the snapshot that the upgrade makes; everything written after it is then lost.",
            ],
        };
    }
    // A saved plan may be of a version with other operations.
    Operation::of_name(verb).map_or(&[], Operation::irreversible)
}

fn identity(document: &Document) -> PlanIdentity {
    let release = |release: &document::Release| format!("{} ({})", release.version, release.image);
    let hops = match &document.hops[..] {
        [_, _, ..] => document.hops.iter().map(release).collect(),
        _ => Vec::new(),
    };
    PlanIdentity {
        verb: document.direction.verb().to_owned(),
        cluster: document.cluster.clone(),
        runtime: Some(document.runtime.clone()),
        id: Some(document.id.clone()),
        digest: document.digest().ok().map(|digest| digest.to_string()),
        from: Some(release(&document.from)),
        to: Some(release(document.target())),
        hops,
    }
}

fn finding(finding: &document::Finding) -> Finding {
    let severity = match (finding.severity, finding.skipped) {
        (_, true) | (document::Severity::Note, _) => Severity::Note,
        (document::Severity::Error, _) => Severity::Error,
        (document::Severity::Warning, _) => Severity::Warning,
    };
    let skipped = if finding.skipped { " (skipped with --skip-check)" } else { "" };
    Finding {
        severity,
        rule: finding.check.clone(),
        message: format!("{}{skipped}", finding.what),
        place: finding.host.clone(),
        hint: finding.hint.clone(),
    }
}

/// Returns the hosts in the order in which they are worked on, those that are left out last.
fn upgraded_hosts(document: &Document) -> Vec<PlannedHost> {
    let host = |id: &String, before: &HostBefore, group: Option<String>| PlannedHost {
        host: id.clone(),
        node: before.node.clone(),
        roles: before.roles.clone(),
        architecture: Some(before.architecture.clone()),
        version: before.version.clone(),
        group,
        skipped: before.skipped.clone(),
        restarts: counts(document, id),
    };
    let none = HostBefore::default();
    let mut hosts: Vec<PlannedHost> = document
        .order()
        .into_iter()
        .map(|(group, id)| host(id, document.hosts.get(id).unwrap_or(&none), Some(group)))
        .collect();
    let skipped = document.hosts.iter().filter(|(_, before)| before.skipped.is_some());
    hosts.extend(skipped.map(|(id, before)| host(id, before, None)));
    hosts
}

fn counts(document: &Document, id: &str) -> Option<RestartCounts> {
    let counts = document.prediction(id)?.get("counts")?;
    let number = |name: &str| counts.get(name).and_then(Value::as_u64).unwrap_or(0);
    let moved = document.restarts.get(id).and_then(|one| one.get("moved")?.as_u64());
    Some(RestartCounts {
        keep: number("keep"),
        restart: number("restart"),
        recreate: number("recreate"),
        unknown: number("unknown"),
        moved: moved.unwrap_or(0),
    })
}

fn upgrade_restarts(document: &Document) -> Vec<PlannedRestart> {
    let mut restarts = Vec::new();
    for id in document.restarts.keys() {
        let containers = document.prediction(id).and_then(|one| one.get("containers")?.as_array());
        for one in containers.into_iter().flatten() {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            let verdict = text("verdict").to_lowercase();
            if !matches!(verdict.as_str(), "keep" | "ended") {
                restarts.push(PlannedRestart {
                    host: id.clone(),
                    namespace: text("namespace"),
                    pod: text("pod"),
                    container: text("container"),
                    owner: one["owner"].as_str().map(str::to_owned),
                    verdict,
                    reason: text("reason"),
                });
            }
        }
    }
    restarts
}

fn phases(view: &PlanView) -> Vec<PlannedPhase> {
    let step = |step: &imgctl_workflow::pipeline::step::StepView| PlannedStep {
        name: step.id.rsplit('/').next().unwrap_or_default().to_owned(),
        says: step.says.clone(),
        once: step.once,
        bytes: (step.bytes > 0).then_some(step.bytes),
        done_before: step.done_before,
    };
    let phase = |phase: &imgctl_workflow::pipeline::step::PhaseView| PlannedPhase {
        name: phase.phase.clone(),
        order: match phase.order {
            Order::Parallel => "parallel",
            Order::Serial => "serial",
        }
        .to_owned(),
        lanes: phase
            .hosts
            .iter()
            .map(|lane| PlannedLane {
                host: lane.host.clone(),
                steps: lane.steps.iter().map(step).collect(),
            })
            .collect(),
    };
    view.phases.iter().map(phase).collect()
}

/// Adds the hosts of the phases that are not listed yet, in the order of their first step.
fn add_hosts(hosts: &mut Vec<PlannedHost>, phases: &[PlannedPhase]) {
    let mut known: HashMap<String, ()> = hosts.iter().map(|host| (host.host.clone(), ())).collect();
    for lane in phases.iter().flat_map(|phase| &phase.lanes) {
        if known.insert(lane.host.clone(), ()).is_none() {
            hosts.push(PlannedHost { host: lane.host.clone(), ..PlannedHost::default() });
        }
    }
}

/// Collects the data of a plan of in-place updates. Its hosts are the Nodes of the Pods, and its phases
/// the batches.
pub fn of_in_place(
    plan: &inplace::plan::Plan,
    generator: &str,
    created: Option<String>,
) -> PlanReport {
    let by_uid: HashMap<&str, &inplace::plan::PodPlan> =
        plan.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
    let phases: Vec<PlannedPhase> = plan
        .batches
        .iter()
        .zip(1..)
        .map(|(uids, number)| {
            let mut lanes: Vec<PlannedLane> = Vec::new();
            for pod in uids.iter().filter_map(|uid| by_uid.get(uid.as_str())) {
                let step = pod_step(pod);
                match lanes.iter_mut().find(|lane| lane.host == pod.node) {
                    Some(lane) => lane.steps.push(step),
                    None => {
                        lanes.push(PlannedLane { host: pod.node.clone(), steps: vec![step] });
                    }
                }
            }
            PlannedPhase { name: format!("batch {number}"), order: "parallel".to_owned(), lanes }
        })
        .collect();
    let restarts = plan.pods.iter().flat_map(|pod| {
        let owner =
            plan.groups.get(&pod.group).map(|group| format!("{}/{}", group.kind, group.name));
        let is_work =
            |one: &&inplace::plan::ContainerPlan| one.verdict != inplace::plan::Verdict::Noop;
        pod.containers.iter().filter(is_work).map(move |one| PlannedRestart {
            host: pod.node.clone(),
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: one.name.clone(),
            owner: owner.clone(),
            verdict: one.verdict.as_str().to_lowercase(),
            reason: match &pod.reason {
                Some(reason) => reason.clone(),
                None => format!("{} → {}", one.from, one.to),
            },
        })
    });
    let restarts = restarts.collect();
    let findings = plan.problems.iter().map(|problem| Finding {
        severity: Severity::Error,
        rule: "in-place".to_owned(),
        message: problem.reason.clone(),
        place: Some(problem.subject.clone()),
        hint: problem.hint.clone(),
    });
    let mut notes = plan.notes.clone();
    notes.extend(
        plan.groups.values().map(|group| format!("{}: {}", group.full_name(), group.consequence)),
    );
    let mut hosts = Vec::new();
    add_hosts(&mut hosts, &phases);
    let operation = if plan.rollback { Operation::InPlaceRollback } else { Operation::InPlace };
    PlanReport {
        about: About::new(Kind::Plan, generator, created),
        plan: PlanIdentity {
            verb: operation.name().to_owned(),
            cluster: plan.server.clone(),
            digest: Some(plan.digest.clone()),
            ..PlanIdentity::default()
        },
        hosts,
        findings: findings.collect(),
        phases,
        restarts,
        irreversible: vec![
            "Containers that restart lose what they hold in memory and in their own file system."
                .to_owned(),
        ],
        notes,
    }
}

fn pod_step(pod: &inplace::plan::PodPlan) -> PlannedStep {
    let says = pod
        .containers
        .iter()
        .map(|one| format!("{}: {} → {} ({})", one.name, one.from, one.to, one.verdict.as_str()));
    PlannedStep {
        name: pod.full_name(),
        says: says.collect(),
        once: false,
        bytes: None,
        done_before: false,
    }
}
