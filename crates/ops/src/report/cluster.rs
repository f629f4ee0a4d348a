//! The data of a cluster's report: its status as its hosts tell it, and what this machine recorded.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;

use crate::maintain::{self, ClusterStatus, LastBackup};
use crate::report::journals::{Found, Kind as JournalKind, Places};
use crate::report::summary::summary;
use crate::session::Session;
use imgctl_base::error::Result;
use imgctl_base::image::EMBEDDED_IMAGES;
use imgctl_inplace::{drift, journal};
use imgctl_journal::Past;
use imgctl_model::image::ClusterImage;
use imgctl_report::model::cluster::{
    Backup, ClusterHost, ClusterIdentity, ClusterNode, ClusterReport, Drift, EndedUpgrade,
    HostCertificate, InstalledImage, RecordedRun, RegistryImage,
};
use imgctl_report::model::{About, Kind};
use imgctl_runtime::certificates::inspect::Certificate;
use imgctl_upgrade::upgrade_store::{Ended, UpgradeStore, word};
use imgctl_workflow::pipeline::status::HostStatus;

/// Maximum number of runs that are listed.
const MOST_RUNS: usize = 200;
const DAY: i64 = 86_400;

/// Asks the hosts of `cluster`, and collects what is recorded of it.
pub fn of_cluster(
    cluster: &str,
    generator: &str,
    created: Option<String>,
    session: &Session<'_>,
) -> Result<ClusterReport> {
    let found = maintain::status(cluster, session)?;
    let now = Timestamp::now().as_second();
    let about = About::new(Kind::Cluster, generator, created);
    let mut report = of_status(about, &found, now);
    let state = session.state(cluster)?;
    let runs = Places::of_cluster(state.directory()).list()?;
    let more = runs.len().saturating_sub(MOST_RUNS);
    for found in runs.into_iter().take(MOST_RUNS) {
        let described = match found.kind {
            JournalKind::Hosts => Past::read(&found.path).map(run),
            JournalKind::InPlace => in_place_run(&found, cluster),
        };
        match described {
            Ok(run) => report.runs.push(run),
            Err(error) => report.problems.push(format!("run {}: {error}", found.id)),
        }
    }
    report.runs.sort_by(|a, b| b.started.cmp(&a.started));
    if more > 0 {
        report.problems.push(format!("{more} older runs are not listed"));
    }
    match UpgradeStore::of(state.files()).history() {
        Ok(ended) => report.upgrades = ended.into_iter().rev().map(upgrade).collect(),
        Err(error) => report.problems.push(format!("the history of upgrades: {error}")),
    }
    Ok(report)
}

/// Converts the status; `now` is in seconds since 1970.
fn of_status(about: About, found: &ClusterStatus, now: i64) -> ClusterReport {
    let status = &found.status;
    let certificates = status.hosts.iter().flat_map(|host| certificates(host, now));
    let nodes = status.nodes.iter().map(|node| ClusterNode {
        name: node.name.clone(),
        ready: node.ready,
        version: node.version.clone(),
        container_runtime: node.container_runtime.clone(),
        host: node.host.clone(),
        reason: node.reason.clone(),
    });
    ClusterReport {
        about,
        cluster: ClusterIdentity {
            name: status.cluster.clone(),
            runtime: status.runtime.clone(),
            phase: found.phase.map(|phase| phase.as_str().to_owned()),
            healthy: status.is_well(),
        },
        hosts: status.hosts.iter().map(host).collect(),
        nodes: nodes.collect(),
        certificates: certificates.collect(),
        images: found.installed.iter().map(image).collect(),
        drift: found.in_place.as_ref().map(drifts),
        backup: found.last_backup.as_ref().map(backup),
        runs: Vec::new(),
        upgrades: Vec::new(),
        problems: Vec::new(),
    }
}

fn host(host: &HostStatus) -> ClusterHost {
    let facts = host.facts.as_ref();
    ClusterHost {
        host: host.host.clone(),
        roles: host.roles.clone(),
        reachable: host.reachable,
        healthy: host.healthy,
        hostname: facts.map(|facts| facts.hostname.clone()),
        architecture: facts.map(|facts| facts.architecture.clone()),
        system: facts.map(|facts| facts.system.clone()),
        free_bytes: facts.map(|facts| facts.free_bytes),
        tree: host.trees.get("rootfs").cloned(),
        registry: host.registry,
        problems: host.problems.iter().map(|problem| on_one_line(problem)).collect(),
        warnings: host.warnings.iter().map(|warning| on_one_line(warning)).collect(),
    }
}

/// Returns a text of several lines, as commands print them, on one.
fn on_one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

fn certificates(host: &HostStatus, now: i64) -> impl Iterator<Item = HostCertificate> {
    let all = host.certificates.iter().flat_map(|of_host| &of_host.certificates);
    all.map(move |one| certificate(&host.host, &one.file, &one.certificate, now))
}

/// Converts a certificate; `now` is in seconds since 1970.
pub(super) fn certificate(
    host: &str,
    file: &str,
    found: &Certificate,
    now: i64,
) -> HostCertificate {
    let end = found.not_after;
    HostCertificate {
        host: host.to_owned(),
        file: file.to_owned(),
        subject: found.common_name.clone(),
        issuer: found.issuer.clone(),
        authority: found.is_authority,
        not_after: Timestamp::from_second(end)
            .map_or_else(|_| end.to_string(), |end| end.to_string()),
        days_left: end.saturating_sub(now).div_euclid(DAY),
    }
}

fn image(image: &ClusterImage) -> InstalledImage {
    InstalledImage {
        name: image.name.clone(),
        digest: image.digest.to_string(),
        kind: image.kind.as_str().to_owned(),
        embedded: embedded(&image.labels),
    }
}

/// Returns the embedded images that an image's labels record.
pub(super) fn embedded(labels: &BTreeMap<String, String>) -> Vec<RegistryImage> {
    let list = labels.get(EMBEDDED_IMAGES);
    // A foreign image may have anything there.
    let embedded: BTreeMap<String, String> =
        list.and_then(|list| serde_json::from_str(list).ok()).unwrap_or_default();
    embedded.into_iter().map(|(name, digest)| RegistryImage { name, digest }).collect()
}

/// Converts the last backup.
pub(super) fn backup(last: &LastBackup) -> Backup {
    Backup {
        created: last.created.clone(),
        place: last.place.clone(),
        digest: last.digest.to_string(),
        bytes: last.bytes,
        encrypted: last.encrypted,
    }
}

fn drifts(report: &drift::Report) -> Vec<Drift> {
    let mut drifts = Vec::new();
    for workload in &report.workloads {
        for one in &workload.containers {
            drifts.push(Drift {
                workload: format!("{} {}/{}", workload.kind, workload.namespace, workload.name),
                container: one.name.clone(),
                template: one.template.clone(),
                pods: one.pods.iter().map(|(image, number)| format!("{number}× {image}")).collect(),
            });
        }
    }
    drifts
}

fn run(past: Past) -> RecordedRun {
    RecordedRun {
        state: past.finished.map_or("unfinished", |outcome| outcome.word()).to_owned(),
        started: past.started.map(|time| time.to_string()),
        last: past.last.map(|time| time.to_string()),
        steps: past.steps.len() as u64,
        id: past.id,
        verb: past.verb,
        controller: past.controller,
    }
}

/// Describes an in-place update, whose steps are Pods.
fn in_place_run(found: &Found, cluster: &str) -> Result<RecordedRun> {
    let run = summary(found, cluster)?;
    let records = journal::read(&found.path)?.records;
    let pods: HashSet<&str> = records
        .iter()
        .filter_map(|record| match record {
            journal::Record::Pod { uid, .. } => Some(uid.as_str()),
            _ => None,
        })
        .collect();
    Ok(RecordedRun {
        id: run.id,
        verb: run.verb,
        started: run.started,
        last: run.last,
        state: run.state,
        steps: pods.len() as u64,
        controller: run.controller.unwrap_or_default(),
    })
}

/// Converts an upgrade that ended.
pub(super) fn upgrade(ended: Ended) -> EndedUpgrade {
    EndedUpgrade {
        verb: ended.direction.verb().to_owned(),
        from: ended.from.version,
        to: ended.to.version,
        end: word(ended.end).to_owned(),
        time: ended.time,
        hosts: ended.hosts.len() as u64,
        id: ended.id,
    }
}
