//! Derives the plan from the observation: a pure function.

use std::{cmp::Ordering, collections::BTreeMap};

use crate::batches::{canaries, cut, size};
use crate::document::{
    Direction, Document, Finding, HopMode, HostBefore, Identity, Release, SCHEMA, Strategy, few,
};
use crate::observation::{HostSeen, Observation};
use crate::request::{Request, SCRIPT, Target};
use crate::{preflight, probes, rehash, restarts, settings, skew::may_lag};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_runtime::version::{chain, order, order_of, parse};

#[derive(Clone, Debug, PartialEq)]
pub enum Planned {
    /// The cluster already matches the target; the findings may still be of interest.
    Nothing(Vec<Finding>),
    Upgrade(Box<Document>),
}

/// Makes the plan.
///
/// # Errors
/// For problems that cannot be skipped: an impossible version path, an image that lacks an
/// architecture, invalid options. All others are in [`Document::findings`].
pub fn plan(observation: &Observation, request: &Request<'_>) -> Result<Planned> {
    preflight::check_skips(&request.choices.skip_checks)?;
    check_id(request.id.as_deref())?;
    check_scope(observation, request)?;
    check_spares(observation, request)?;
    rehash::check(request)?;
    check_path(request)?;
    let same = is_same(observation, request) && request.settings.is_empty();
    let hosts = hosts_before(observation, request, same)?;
    check_architectures(&hosts, request)?;
    settings::check_reach(&hosts, request)?;

    let is_in = |host: &&HostSeen| hosts.get(&host.id).is_some_and(|it| it.skipped.is_none());
    let workers: Vec<&HostSeen> =
        observation.hosts.iter().filter(|host| !host.is_control_plane()).filter(is_in).collect();
    let canary = choose_canaries(&workers, observation, request)?;
    let rest = || workers.iter().filter(|host| !canary.contains(&host.id));
    let ids = |healthy: bool| -> Vec<String> {
        rest()
            .filter(|host| observation.is_healthy(host) == healthy)
            .map(|host| host.id.clone())
            .collect()
    };
    let size = size(observation, request)?;
    let batches = cut(&ids(true), &ids(false), size.together);
    let versions: Vec<String> =
        workers.iter().filter_map(|host| observation.version_of(host)).collect();
    let mut document = Document {
        schema: SCHEMA,
        id: String::new(),
        cluster: request.cluster.to_owned(),
        runtime: request.runtime.to_owned(),
        direction: request.direction,
        from: request.from.release(),
        hops: releases(request, &versions),
        choices: request.choices.clone(),
        settings: request.settings.clone(),
        control_planes: control_planes(observation, request, &hosts),
        canary,
        batches,
        hosts,
        identity: Identity {
            kube_system: observation.api.as_ref().and_then(|api| api.kube_system.clone()),
            external_etcd: observation.external_etcd(),
        },
        findings: Vec::new(),
        notes: Vec::new(),
        restarts: BTreeMap::new(),
    };
    for (id, one) in restarts::foretell(&document, observation, request) {
        let value = serde_json::to_value(one).doing(|| "cannot write the plan".to_owned())?;
        document.restarts.insert(id, value);
    }
    preflight::run(&mut document, observation, request);
    if document.is_reconfiguration() {
        document.notes = settings::notes(&document);
    }
    document.notes.extend(probes::notes(&document, request)?);
    document.notes.extend(rehash::notes(&document));
    let nobody = document.hosts.values().all(|host| host.skipped.is_some());
    if same && nobody {
        return Ok(Planned::Nothing(document.findings));
    }
    if nobody {
        return Err(Error::network("no host of the cluster can be upgraded now")
            .hint("run `imgctl status` to see why"));
    }
    document.id = match &request.id {
        Some(id) => id.clone(),
        None => id(&document)?,
    };
    Ok(Planned::Upgrade(Box::new(document)))
}

/// `v1.34.9-1a2b3c4d`, `settings-1a2b3c4d`.
fn id(document: &Document) -> Result<String> {
    let digest = document.digest()?;
    if document.is_reconfiguration() {
        return Ok(format!("settings-{}", &digest.hex()[..8]));
    }
    let version: String = document.target().version.chars().map(safe).collect();
    Ok(format!("{version}-{}", &digest.hex()[..8]))
}

fn safe(letter: char) -> char {
    match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => letter,
        _ => '-',
    }
}

fn check_id(id: Option<&str>) -> Result<()> {
    let Some(id) = id else { return Ok(()) };
    let good = !id.is_empty()
        && id.len() <= 64
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.chars().all(|letter| safe(letter) == letter);
    good.then_some(()).ok_or_else(|| {
        Error::usage(format!("`{id}` is not a valid upgrade name"))
            .hint("use letters, digits, `.`, `-` and `_`, at most 64, a letter or digit first")
    })
}

fn check_scope(observation: &Observation, request: &Request<'_>) -> Result<()> {
    match request.only.iter().find(|id| observation.host(id).is_none()) {
        None => Ok(()),
        Some(id) => {
            Err(Error::usage(format!("`{id}` is not a host of cluster {}", request.cluster)))
        }
    }
}

fn check_spares(observation: &Observation, request: &Request<'_>) -> Result<()> {
    let spares = &request.choices.spares;
    match (request.choices.strategy, spares.is_empty()) {
        (Strategy::Replace, true) => {
            Err(Error::usage("the strategy `replace` needs replacement hosts")
                .hint("name them with --spare"))
        }
        (Strategy::InOrder, false) => {
            Err(Error::usage("spare hosts are given, but no host is replaced")
                .hint("add --strategy replace"))
        }
        _ => {
            let member =
                |spare: &&String| observation.hosts.iter().any(|host| host.is_called(spare));
            match spares.iter().find(member) {
                None => Ok(()),
                Some(spare) => Err(Error::usage(format!(
                    "{spare} is already a host of cluster {}: it cannot be a spare",
                    request.cluster
                ))),
            }
        }
    }
}

/// Returns whether the cluster already has the target image.
fn is_same(observation: &Observation, request: &Request<'_>) -> bool {
    let Some(target) = request.targets.last() else {
        return false;
    };
    let mut known = false;
    for host in &observation.hosts {
        let Some(architecture) = architecture(observation, host) else {
            continue;
        };
        let digest = |image: &Target| image.images.get(&architecture).map(|it| it.digest.clone());
        if digest(target) != digest(&request.from) {
            return false;
        }
        known = known || digest(target).is_some();
    }
    known
}

fn architecture(observation: &Observation, host: &HostSeen) -> Option<String> {
    let told = host.facts.as_ref().map(|facts| facts.architecture.clone());
    let node = || {
        let node = observation.node_of(host)?;
        Some(node.architecture.clone())
    };
    told.or_else(node).filter(|word| !word.is_empty())
}

fn hosts_before(
    observation: &Observation,
    request: &Request<'_>,
    same: bool,
) -> Result<BTreeMap<String, HostBefore>> {
    let mut hosts = BTreeMap::new();
    for host in &observation.hosts {
        let node = observation.node_of(host);
        let before = HostBefore {
            roles: host.roles.clone(),
            architecture: architecture(observation, host).unwrap_or_default(),
            node: host.node.clone(),
            version: observation.version_of(host),
            // A cordon set by an upgrade of imgctl does not count as an administrator's.
            was_unschedulable: node.is_some_and(|node| {
                node.unschedulable && !node.annotations.contains_key(imgctl_kube::drain::MARK)
            }),
            skipped: skipped(observation, request, host, same),
        };
        if hosts.insert(host.id.clone(), before).is_some() {
            return Err(Error::bad_content(format!(
                "host {} is twice in the Clusterfile",
                host.id
            )));
        }
    }
    Ok(hosts)
}

pub use crate::document::CANNOT_BE_REACHED;

fn skipped(
    observation: &Observation,
    request: &Request<'_>,
    host: &HostSeen,
    same: bool,
) -> Option<String> {
    if !request.only.is_empty() && !request.only.contains(&host.id) {
        let target = request.targets.last().map(|target| &target.version);
        return Some(match (&host.unreachable, &host.version, target) {
            (None, Some(version), Some(target)) if version == target => {
                format!("it is already at {target}")
            }
            (None, ..) => "it is not in the scope".to_owned(),
            (Some(_), ..) => "it is not in the scope, and cannot be reached".to_owned(),
        });
    }
    if !settings::touch(observation, request, host) {
        return Some("nothing of it changes".to_owned());
    }
    if let Some(why) = &host.unreachable {
        return Some(format!("{CANNOT_BE_REACHED}: {why}"));
    }
    if same {
        let target = &request.targets.last()?.version;
        let version = observation.version_of(host);
        let behind = version
            .as_deref()
            .and_then(|version| order_of(version, target))
            .is_some_and(Ordering::is_lt);
        return (!behind).then(|| format!("it is already at {target}"));
    }
    None
}

fn check_architectures(hosts: &BTreeMap<String, HostBefore>, request: &Request<'_>) -> Result<()> {
    for target in &request.targets {
        let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (id, host) in hosts.iter().filter(|(_, host)| host.skipped.is_none()) {
            if !target.images.contains_key(&host.architecture) {
                missing.entry(&host.architecture).or_default().push(id);
            }
        }
        if let Some((architecture, ids)) = missing.first_key_value() {
            let has: Vec<&str> = target.images.keys().map(String::as_str).collect();
            return Err(Error::not_found(format!(
                "image {} has no {architecture}, which {} {}; it has {}",
                target.name,
                few(ids),
                if ids.len() == 1 { "is" } else { "are" },
                if has.is_empty() { "none".to_owned() } else { has.join(", ") }
            ))
            .hint(
                "build it for all architectures of the cluster (`imgctl build --platform`), \
                 or pull the missing one",
            ));
        }
    }
    Ok(())
}

/// The Clusterfile's first control plane goes first; among the others, the etcd leader goes last,
/// so that leadership moves only once. A rollback uses the reverse order.
fn control_planes(
    observation: &Observation,
    request: &Request<'_>,
    hosts: &BTreeMap<String, HostBefore>,
) -> Vec<String> {
    let leader = observation.etcd.as_ref().and_then(|etcd| {
        let member = etcd.members.iter().find(|member| member.leader)?;
        let lives = |host: &&HostSeen| {
            host.node.as_deref() == Some(&member.name) || member.is_at(&host.address)
        };
        observation.hosts.iter().find(lives).map(|host| &host.id)
    });
    let mut ids: Vec<String> = observation
        .hosts
        .iter()
        .filter(|host| host.is_control_plane())
        .filter(|host| hosts.get(&host.id).is_some_and(|it| it.skipped.is_none()))
        .map(|host| host.id.clone())
        .collect();
    if let Some(at) = ids.iter().skip(1).position(|id| Some(id) == leader) {
        ids[at + 1..].rotate_left(1);
    }
    if request.direction == Direction::Back {
        ids.reverse();
    }
    ids
}

fn choose_canaries(
    workers: &[&HostSeen],
    observation: &Observation,
    request: &Request<'_>,
) -> Result<Vec<String>> {
    let choices = &request.choices;
    if choices.no_canary {
        return Ok(Vec::new());
    }
    let healthy: Vec<&HostSeen> =
        workers.iter().filter(|host| observation.is_healthy(host)).copied().collect();
    let by_number = |count| {
        let chosen = canaries(&healthy, observation, count);
        Ok(chosen.iter().map(|host| host.id.clone()).collect())
    };
    match &choices.canary[..] {
        // A single worker is its own canary; a rollback needs no canary.
        [] if workers.len() < 2 || request.direction == Direction::Back => Ok(Vec::new()),
        [] => by_number(1),
        [word] if word.bytes().all(|byte| byte.is_ascii_digit()) => {
            by_number(word.parse().unwrap_or(usize::MAX))
        }
        words => {
            let mut chosen: Vec<String> = Vec::new();
            for word in words {
                let Some(host) = workers.iter().find(|host| host.is_called(word)) else {
                    return Err(no_canary(word, observation, request));
                };
                if !chosen.contains(&host.id) {
                    chosen.push(host.id.clone());
                }
            }
            Ok(chosen)
        }
    }
}

fn no_canary(word: &str, observation: &Observation, request: &Request<'_>) -> Error {
    let known = observation.hosts.iter().find(|host| host.is_called(word));
    let why = match known {
        None => format!("it is not a host of cluster {}", request.cluster),
        Some(host) if host.is_control_plane() => "it is a control plane".to_owned(),
        Some(_) => "this upgrade skips it".to_owned(),
    };
    Error::usage(format!("`{word}` cannot be the canary: {why}"))
        .hint("name a worker, or pass the number of workers that go first")
}

/// Checks that each step is allowed.
///
/// # Errors
/// If a version is in the wrong direction, or a step is too long; hints suggest an alternative.
fn check_path(request: &Request<'_>) -> Result<()> {
    match (&request.targets[..], request.choices.hop) {
        ([], _) => {
            return Err(Error::usage("no target image is given"));
        }
        ([_, _, ..], HopMode::Single) => {
            return Err(Error::usage(
                "several images are given, but an upgrade takes one at a time",
            )
            .hint("pass --hop auto to take them one after the other"));
        }
        _ => {}
    }
    let mut before = &request.from;
    for target in &request.targets {
        step(request, before, target)?;
        before = target;
    }
    Ok(())
}

fn step(request: &Request<'_>, before: &Target, target: &Target) -> Result<()> {
    let read = |image: &Target| parse(&image.version, &format!("image {}", image.name));
    let turn = order(&read(target)?, &read(before)?);
    let (old, new) = (&before.version, &target.version);
    match (request.direction, turn) {
        (Direction::Forward, Ordering::Less) => Err(Error::usage(format!(
            "{} contains {new}, which is older than {old}: an upgrade cannot go back",
            target.name
        ))
        .hint("run `imgctl rollback` to restore the version before the last upgrade")),
        (Direction::Back, Ordering::Greater) => Err(Error::usage(format!(
            "{} contains {new}, which is newer than {old}: a rollback cannot go forward",
            target.name
        ))
        .hint(format!("run `imgctl upgrade {}` to go forward", target.name))),
        (Direction::Forward, Ordering::Greater) => {
            (request.permits)(old, new).map_err(|error| with_chain(error, request, before))
        }
        _ => Ok(()),
    }
}

/// Adds the required intermediate images to the error, if there are any.
fn with_chain(error: Error, request: &Request<'_>, before: &Target) -> Error {
    let Some(last) = request.targets.last() else {
        return error;
    };
    let minors = chain(&before.version, &last.version);
    if request.runtime == SCRIPT || minors.len() < 2 {
        return error;
    }
    let error = Error::usage("the versions are too far apart for one step").caused_by(error);
    error.hint(format!(
        "control planes upgrade one minor at a time: {} → {}. Name an image of each: `imgctl \
         upgrade IMAGE-OF-{} … {} --hop auto`",
        before.version,
        minors.join(" → "),
        minors[0],
        last.name
    ))
}

/// Returns the releases on the path. `workers` are the versions of the workers in scope: workers
/// move as late as the allowed skew to the API servers permits.
pub(super) fn releases(request: &Request<'_>, workers: &[String]) -> Vec<Release> {
    let mut hops: Vec<Release> = request.targets.iter().map(Target::release).collect();
    if request.runtime == SCRIPT || request.direction == Direction::Back {
        return hops;
    }
    let last = hops.len().saturating_sub(1);
    let mut behind: Vec<String> = workers.to_vec();
    for at in 0..last {
        let next = hops[at + 1].version.clone();
        let needed = behind.iter().any(|kubelet| !may_lag(kubelet, &next));
        hops[at].workers = needed;
        if needed {
            behind = vec![hops[at].version.clone()];
        }
    }
    hops
}
