//! Creates a plan from the current and the requested state. Pure: makes no requests.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::{Pod, Role};
use crate::plan::{BudgetView, Group, Plan, PodPlan, Problem, SCHEMA, Verdict};
use crate::request::{Desired, Request, Selection, TemplatePolicy, WorkloadKind};
use crate::world::{Known, Owner, World};
use crate::{batches, marks, rollout, target::Target, verdict};
use crate::{pull_access, pull_access::Accesses};
use imgctl_base::error::Result;

pub struct Inputs<'a> {
    pub world: &'a World,
    pub request: &'a Request,
    pub desired: &'a Desired,
    pub targets: &'a BTreeMap<String, Target>,
    /// Runs that this one resumes or undoes: their unfinished changes do not block it.
    pub ids: &'a [String],
    /// UIDs of Pods that the run has already finished.
    pub done: &'a BTreeSet<String>,
    pub rollback: bool,
    /// Whether the Pods may pull their images from the registries.
    pub access: &'a Accesses,
    /// Images are not pulled in advance: the operator asserts that they are present.
    pub is_there: bool,
}

pub fn plan(inputs: &Inputs<'_>) -> Result<Plan> {
    let (world, request) = (inputs.world, inputs.request);
    let mut plan = Plan {
        schema: SCHEMA,
        digest: String::new(),
        request: request.clone(),
        rollback: inputs.rollback,
        server: world.server.version.clone(),
        images: inputs.targets.clone(),
        groups: BTreeMap::new(),
        pods: Vec::new(),
        batches: Vec::new(),
        problems: Vec::new(),
        notes: Vec::new(),
    };
    let chosen = world.pods.iter().filter(|pod| world.selected.contains(&pod.metadata.uid));
    for pod in chosen {
        if pod.is_finished() || pod.is_going() {
            let state = if pod.is_going() { "is terminating" } else { "has ended" };
            plan.notes.push(format!("Pod {} {state}: skipped", pod.full_name()));
            continue;
        }
        let wanted = inputs.desired.of(&pod.metadata.uid);
        let taken_up = if inputs.done.contains(&pod.metadata.uid) { &[] } else { inputs.ids };
        let planned = verdict::pod(world, pod, wanted, request, inputs.targets, taken_up);
        if planned.verdict == Verdict::Refuse {
            plan.problems.push(Problem {
                subject: format!("Pod {}", pod.full_name()),
                reason: planned.reason.clone().unwrap_or_default(),
                hint: None,
            });
        }
        plan.pods.push(planned);
    }
    if !request.resize.is_empty() && !world.server.resize {
        plan.problems.push(Problem {
            subject: "--resize".to_owned(),
            reason: format!(
                "the API server{} has no `pods/resize`",
                version(&world.server.version)
            ),
            hint: Some(
                "changing the resources of running Pods needs Kubernetes 1.33 or newer".to_owned(),
            ),
        });
    }
    plan.pods.sort_by_key(|pod| (pod.ready, pod.name.clone()));
    groups(inputs, &mut plan);
    let (problems, logins) =
        pull_access::findings(inputs.access, world, &plan.pods, inputs.is_there);
    plan.problems.extend(problems);
    plan.notes.extend(logins);
    notes(inputs, &mut plan);
    let work: Vec<&PodPlan> = plan.pods.iter().filter(|pod| pod.is_work()).collect();
    let unready = work.iter().filter(|pod| !pod.ready).count();
    let mut rest = work.iter().map(|pod| pod.uid.clone());
    plan.batches = batches::sizes(unready, work.len() - unready, &request.batches)
        .into_iter()
        .map(|size| rest.by_ref().take(size).collect())
        .collect();
    plan.seal()?;
    Ok(plan)
}

fn version(version: &str) -> String {
    match version {
        "" => String::new(),
        version => format!(" ({version})"),
    }
}

/// Plans what concerns all Pods of one owner together.
fn groups(inputs: &Inputs<'_>, plan: &mut Plan) {
    let world = inputs.world;
    let keys: BTreeSet<String> = plan.pods.iter().map(|pod| pod.group.clone()).collect();
    for key in keys {
        let mine: Vec<&PodPlan> = plan.pods.iter().filter(|pod| pod.group == key).collect();
        let Some(first) = mine.first().and_then(|pod| world.pod(&pod.uid)) else {
            continue;
        };
        let owner = world.owner(first);
        let busy = mine.iter().any(|pod| pod.is_work());
        let members: Vec<&Pod> = world.members(&key).collect();
        let mut group = describe(&owner, first, members.len());
        group.ready = members.iter().filter(|pod| pod.is_ready()).count();
        group.max_unavailable = inputs.request.max_unavailable.down(group.desired.max(1));
        group.budgets = budgets(world, &mine);
        let name = group.full_name();
        if let Owner::Workload(known) = &owner {
            group.template = template_differs(inputs, known, &mine);
            group.consequence = consequence(inputs.request.template, known.kind);
            if busy || inputs.rollback || !group.template.is_empty() {
                plan.problems.extend(workload_problems(inputs, world, known, &group, &mine));
            }
        }
        let single =
            matches!(&owner, Owner::Workload(known) if known.kind != WorkloadKind::DaemonSet);
        if busy && single && group.desired <= 1 && !inputs.request.allow_single_replica {
            plan.problems.push(Problem {
                subject: name.clone(),
                reason: "it has a single replica, which will be out of service for a while"
                    .to_owned(),
                hint: Some("pass --allow-single-replica to accept that".to_owned()),
            });
        }
        let (problems, notes) = budget_findings(world, &mine);
        plan.problems.extend(problems);
        plan.notes.extend(notes);
        plan.groups.insert(key, group);
    }
}

fn describe(owner: &Owner<'_>, first: &Pod, members: usize) -> Group {
    let (kind, name, desired, consequence) = match owner {
        Owner::Nobody => (
            "Pod".to_owned(),
            first.metadata.name.clone(),
            1,
            "no controller manages it: the change is permanent".to_owned(),
        ),
        Owner::Workload(known) => {
            let object = &known.object;
            let desired = match known.kind {
                WorkloadKind::DaemonSet => object.status.desired_number_scheduled,
                WorkloadKind::Job => 0,
                _ => object.spec.replicas.unwrap_or(1),
            };
            let desired = usize::try_from(desired).unwrap_or(0);
            let desired = if desired == 0 { members } else { desired };
            (known.kind.as_str().to_owned(), object.metadata.name.clone(), desired, String::new())
        }
        Owner::Stranger { kind, name, .. } => (
            kind.clone(),
            name.clone(),
            members,
            "its owner may undo the change or recreate its Pods at any time".to_owned(),
        ),
    };
    Group {
        kind,
        namespace: first.metadata.namespace.clone(),
        name,
        desired,
        ready: 0,
        max_unavailable: 1,
        budgets: Vec::new(),
        template: BTreeMap::new(),
        consequence,
    }
}

/// Returns the images of the template that differ from the requested ones.
fn template_differs(
    inputs: &Inputs<'_>,
    known: &Known,
    pods: &[&PodPlan],
) -> BTreeMap<String, String> {
    let mut differs = BTreeMap::new();
    for pod in pods {
        for (container, to) in inputs.desired.of(&pod.uid) {
            if let Some(place) = known.object.spec.template.spec.container(container)
                && place.spec.image != *to
            {
                differs.insert(container.clone(), place.spec.image.clone());
            }
        }
    }
    differs
}

fn consequence(policy: TemplatePolicy, kind: WorkloadKind) -> String {
    match (policy, kind) {
        (_, WorkloadKind::Job) => "Pods that the Job recreates have the old image".to_owned(),
        (TemplatePolicy::Sync, _) => {
            "the template is updated when all Pods are done; no Pod is recreated".to_owned()
        }
        _ => "the template is not changed: every Pod that is recreated (eviction, scaling, \
              rollout) has the old image"
            .to_owned(),
    }
}

fn workload_problems(
    inputs: &Inputs<'_>,
    world: &World,
    known: &Known,
    group: &Group,
    pods: &[&PodPlan],
) -> Vec<Problem> {
    let name = known.full_name();
    let problem = |reason: String, hint: Option<&str>| Problem {
        subject: name.clone(),
        reason,
        hint: hint.map(str::to_owned),
    };
    let mut problems = Vec::new();
    let resized = pods.iter().any(|pod| pod.containers.iter().any(|one| one.resize.is_some()));
    match inputs.request.template {
        TemplatePolicy::Refuse if resized || !group.template.is_empty() => problems.push(problem(
            "its template would bring the old image back with every recreated Pod".to_owned(),
            Some(
                "pass --template sync to update the template after the Pods, or --template keep to \
                 leave it unchanged and record that",
            ),
        )),
        TemplatePolicy::Sync if !known.kind.syncs() => problems.push(problem(
            format!("the template of a {} cannot be updated", known.kind.as_str()),
            Some("--template keep"),
        )),
        TemplatePolicy::Sync => {
            let mut images: BTreeMap<&String, &String> = BTreeMap::new();
            for pod in pods {
                for (container, to) in inputs.desired.of(&pod.uid) {
                    if *images.entry(container).or_insert(to) != to {
                        problems.push(problem(
                            format!(
                                "its Pods get different images for `{container}`: the template can \
                                 have only one"
                            ),
                            Some("--template keep"),
                        ));
                        return problems;
                    }
                }
            }
            // A template applies to all Pods, including those that were not selected.
            if let Some(pod) = world.members(&group_key(known)).find(|pod| {
                !pods.iter().any(|plan| plan.uid == pod.metadata.uid)
                    && images.iter().any(|(container, to)| {
                        pod.spec.container(container).is_some_and(|place| place.spec.image != **to)
                    })
            }) {
                problems.push(problem(
                    format!(
                        "Pod {} does not change, but the template also applies to it",
                        pod.full_name()
                    ),
                    Some(
                        "name the workload with --workload, or leave the template unchanged with \
                         --template keep",
                    ),
                ));
            }
        }
        _ => {}
    }
    if let Some(reason) = rollout::in_progress(world, known, inputs.ids) {
        // Waiting does not finish an interrupted run.
        let held = marks::restore(&known.object.metadata).is_some();
        let hint = "wait until `kubectl rollout status` reports success";
        problems.push(problem(reason, (!held).then_some(hint)));
    }
    problems
}

fn group_key(known: &Known) -> String {
    known.object.metadata.uid.clone()
}

fn budgets(world: &World, pods: &[&PodPlan]) -> Vec<BudgetView> {
    let mut views: BTreeMap<String, BudgetView> = BTreeMap::new();
    for pod in pods.iter().filter_map(|pod| world.pod(&pod.uid)) {
        for budget in world.budgets_of(pod) {
            let status = &budget.status;
            let name = budget.metadata.name.clone();
            views.entry(name.clone()).or_insert(BudgetView {
                name,
                disruptions_allowed: status.disruptions_allowed,
                current_healthy: status.current_healthy,
                desired_healthy: status.desired_healthy,
            });
        }
    }
    views.into_values().collect()
}

/// Checks the budgets for taking ready Pods out of service.
fn budget_findings(world: &World, pods: &[&PodPlan]) -> (Vec<Problem>, Vec<String>) {
    let (mut problems, mut notes, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    let ready = pods.iter().filter(|pod| pod.ready && pod.is_work());
    for pod in ready.filter_map(|pod| world.pod(&pod.uid)) {
        for budget in world.budgets_of(pod) {
            if !seen.insert(&budget.metadata.name) {
                continue;
            }
            let (status, name) = (&budget.status, &budget.metadata.name);
            let subject = format!("PodDisruptionBudget {}/{name}", world.namespace);
            if status.expected_pods <= status.desired_healthy {
                problems.push(Problem {
                    subject,
                    reason: format!(
                        "it never allows a disruption: {} of {} Pods must be healthy. The API does \
                         not enforce it for patches; imgctl does",
                        status.desired_healthy, status.expected_pods
                    ),
                    hint: Some("add a replica, or change the budget".to_owned()),
                });
            } else if status.disruptions_allowed < 1 {
                notes.push(format!(
                    "{subject} allows no disruption now ({} healthy, {} needed): ready Pods wait for it",
                    status.current_healthy, status.desired_healthy
                ));
            }
        }
    }
    (problems, notes)
}

fn notes(inputs: &Inputs<'_>, plan: &mut Plan) {
    let world = inputs.world;
    let mut notes: BTreeSet<String> = BTreeSet::new();
    for planned in plan.pods.iter().filter(|pod| pod.is_work()) {
        let Some(pod) = world.pod(&planned.uid) else {
            continue;
        };
        for one in planned.containers.iter().filter(|one| one.verdict != Verdict::Noop) {
            let Some(place) = pod.spec.container(&one.name) else {
                continue;
            };
            if place.spec.image_pull_policy == "Always" {
                notes.insert(format!(
                    "`{}` has imagePullPolicy Always: its registry must be reachable when it \
                     restarts",
                    one.name
                ));
            }
            if one.role == Role::Init {
                notes.insert(format!(
                    "`{}` is an init container: no effect until the Pod is recreated",
                    one.name
                ));
            }
            if !inputs.targets.contains_key(&one.to) {
                notes
                    .insert(format!("no reachable registry has {}: its digest is unknown", one.to));
            }
        }
        if let Owner::Workload(known) = world.owner(pod)
            && let Some(tool) = managed_by(known)
        {
            notes.insert(format!(
                "{} is managed by {tool}: change the source as well, or it will undo the change",
                known.full_name()
            ));
        }
        if let Some(node) = world.nodes.get(&planned.node)
            && let Some(trouble) = node.trouble()
        {
            notes.insert(format!("{trouble}: {} waits until it recovers", planned.full_name()));
        }
    }
    let old_kubelet = plan.pods.iter().filter(|pod| pod.is_work()).any(|pod| {
        let node = world.nodes.get(&pod.node);
        node.is_some_and(|node| {
            minor(&node.status.node_info.kubelet_version).is_some_and(|minor| minor < 31)
        })
    });
    if old_kubelet && !inputs.request.resize.is_empty() {
        notes.insert(
            "kubelets before 1.31 restart a container when any part of its specification changes"
                .to_owned(),
        );
    }
    if let Selection::Pods { .. } | Selection::Labels { .. } = inputs.request.selection
        && plan.groups.len() > 1
    {
        notes.insert(format!("the Pods belong to {} owners", plan.groups.len()));
    }
    plan.notes.extend(notes);
}

fn minor(version: &str) -> Option<u32> {
    version.split('.').nth(1)?.parse().ok()
}

/// Returns the tool that manages the workload from its own source.
fn managed_by(known: &Known) -> Option<&'static str> {
    let meta = &known.object.metadata;
    let has = |prefix: &str| {
        let mut keys = meta.annotations.keys().chain(meta.labels.keys());
        keys.any(|key| key.starts_with(prefix))
    };
    if has("meta.helm.sh/release-name") {
        Some("Helm")
    } else if has("argocd.argoproj.io/") {
        Some("Argo CD")
    } else if has("kustomize.toolkit.fluxcd.io/") || has("helm.toolkit.fluxcd.io/") {
        Some("Flux")
    } else if has("kubectl.kubernetes.io/last-applied-configuration") {
        Some("a file of `kubectl apply`")
    } else {
        None
    }
}
