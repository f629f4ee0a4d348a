//! What this controller has recorded of its clusters, their runs and their plans: for the console, which
//! asks no host. A file that cannot be read is a problem that is told, and the rest is shown.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::inplace::KUBECONFIG_JOURNALS;
use crate::maintain::{KEPT_CERTIFICATES, LastBackup, read_certificate};
use crate::report::cluster::{backup, certificate, embedded, upgrade};
use crate::report::follow::Follower;
use crate::report::journals::{Found, Kind as JournalKind, Places, absent};
use crate::report::plan::{ReadPlan, read_plan};
use crate::report::run::{RunRequest, of_journal};
use crate::report::summary::summary;
use crate::session::Controller;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::directory;
use imgctl_model::clusterfile::Clusterfile;
use imgctl_model::state::{State, States};
use imgctl_model::state_identity::StateIdentity;
use imgctl_report::model::cluster::{HostCertificate, InstalledImage};
use imgctl_report::model::recorded::{
    ClusterSummary, ControllerReport, PlanSummary, RecordedHost, RecordedReport, RunSummary,
};
use imgctl_report::model::run::RunReport;
use imgctl_report::model::{About, Kind};
use imgctl_upgrade::document::Document;
use imgctl_upgrade::upgrade_store::{UpgradeStore, word};

/// Maximum number of runs that are listed of each cluster.
const MOST_RUNS: usize = 200;
/// Maximum size of a file with a plan, in bytes.
const LONGEST_PLAN: u64 = 256 << 20;
/// Folders of a state, besides journals, whose files are listed.
const LISTED: [&str; 3] = ["upgrade", "backup", "pki"];
/// Label of a rootfs image with its version.
const VERSION: &str = "version";

/// The records of a controller.
#[derive(Clone, Debug)]
pub struct Recorded {
    root: Option<PathBuf>,
    identity: StateIdentity,
    /// Files with plans, which the operator named.
    plans: Vec<PathBuf>,
    /// Program and version that asks.
    generator: String,
}

impl Recorded {
    /// Reads the state that `controller` names, and the plans in `plans`. Opens nothing yet.
    pub fn new(controller: &Controller, plans: Vec<PathBuf>, generator: &str) -> Self {
        Self {
            root: controller.state_root.clone(),
            identity: controller.state_identity.clone(),
            plans,
            generator: generator.to_owned(),
        }
    }

    /// Lists clusters, runs and plans.
    pub fn all(&self) -> Result<ControllerReport> {
        let mut report = ControllerReport {
            about: self.about(Kind::Controller),
            clusters: Vec::new(),
            runs: Vec::new(),
            plans: self.plan_files(),
            problems: Vec::new(),
        };
        for name in self.names()? {
            let state = self.state(&name)?;
            let (runs, problems) = runs(&state);
            let (plans, more) = plans(&state);
            report.problems.extend(
                problems.into_iter().chain(more).map(|problem| format!("{name}: {problem}")),
            );
            let summary = ClusterSummary { runs: runs.len() as u64, ..ClusterSummary::default() };
            let summary = match state.load() {
                // After a reset, only the records are left.
                Ok(None) => ClusterSummary { name: name.clone(), ..summary },
                Ok(Some((clusterfile, _))) => summarized(&clusterfile, summary),
                Err(error) => {
                    ClusterSummary { name: name.clone(), problem: Some(told(&error)), ..summary }
                }
            };
            report.clusters.push(summary);
            report.runs.extend(runs);
            report.plans.extend(plans);
        }
        if let Some(root) = &self.root {
            let (runs, problems) = summaries(&Places::of_kubeconfigs(root), KUBECONFIG_JOURNALS);
            report.runs.extend(runs);
            report.problems.extend(problems);
        }
        sort(&mut report.runs);
        Ok(report)
    }

    /// Describes one cluster.
    pub fn cluster(&self, name: &str) -> Result<RecordedReport> {
        let state = self.existing(name)?;
        let mut problems = Vec::new();
        let clusterfile = match state.load() {
            Ok(found) => found.map(|(clusterfile, _)| clusterfile),
            Err(error) => {
                problems.push(told(&error));
                None
            }
        };
        let (runs, more) = runs(&state);
        problems.extend(more);
        let (plans, more) = plans(&state);
        problems.extend(more);
        let mut summary = ClusterSummary {
            name: name.to_owned(),
            runs: runs.len() as u64,
            ..ClusterSummary::default()
        };
        let (mut hosts, mut images) = (Vec::new(), Vec::new());
        if let Some(clusterfile) = &clusterfile {
            summary = summarized(clusterfile, summary);
            images = installed(clusterfile);
            match recorded_hosts(clusterfile) {
                Ok(found) => hosts = found,
                Err(error) => problems.push(format!("hosts of the Clusterfile: {error}")),
            }
        }
        let certificates = certificates(&state, &mut problems);
        let backup = match LastBackup::read(state.directory()) {
            Ok(last) => last.as_ref().map(backup),
            Err(error) => {
                problems.push(told(&error));
                None
            }
        };
        let upgrades = match UpgradeStore::of(state.files()).history() {
            Ok(ended) => ended.into_iter().rev().map(upgrade).collect(),
            // Told with the plans.
            Err(_) => Vec::new(),
        };
        Ok(RecordedReport {
            about: self.about(Kind::Recorded),
            cluster: summary,
            hosts,
            images,
            certificates,
            backup,
            runs,
            plans,
            upgrades,
            problems,
        })
    }

    /// Describes a run, which may still be going on, and returns the position up to which its journal
    /// was read, in bytes: from there it can be followed.
    pub fn run(&self, cluster: &str, run: &str) -> Result<(RunReport, u64)> {
        let (found, state) = self.journal(cluster, run)?;
        let request = RunRequest {
            cluster: cluster.to_owned(),
            run: Some(run.to_owned()),
            generator: self.generator.clone(),
            created: Some(now()),
        };
        of_journal(&request, &found, state.as_ref())
    }

    /// Follows the journal of a run from byte `at` on.
    pub fn follow(&self, cluster: &str, run: &str, at: u64) -> Result<Follower> {
        Ok(Follower::new(self.journal(cluster, run)?.0, at))
    }

    /// Returns the journal of a run, and the state of its cluster, which runs through a kubeconfig do not
    /// have.
    fn journal(&self, cluster: &str, run: &str) -> Result<(Found, Option<State>)> {
        let (places, state) = match &self.root {
            Some(root) if cluster == KUBECONFIG_JOURNALS => (Places::of_kubeconfigs(root), None),
            _ => {
                let state = self.existing(cluster)?;
                (Places::of_cluster(state.directory()), Some(state))
            }
        };
        let found = places.find(run)?.ok_or_else(|| absent(cluster, Some(run)))?;
        Ok((found, state))
    }

    /// Reads the plan of the upgrade `id` that a cluster keeps.
    pub fn kept_plan(&self, cluster: &str, id: &str) -> Result<ReadPlan> {
        let document = UpgradeStore::of(self.existing(cluster)?.files()).document(id)?;
        Ok(ReadPlan::of_document(document))
    }

    /// Reads the plan in one of the files, by its number.
    pub fn plan_in_file(&self, number: usize) -> Result<ReadPlan> {
        let path = self.plans.get(number).ok_or_else(|| {
            Error::not_found(format!("there is no plan number {number}"))
                .hint("name its file as an argument of imgctl ui")
        })?;
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).path("open", path)?;
        file.take(LONGEST_PLAN + 1).read_to_end(&mut bytes).path("read", path)?;
        if bytes.len() as u64 > LONGEST_PLAN {
            return Err(Error::bad_content(format!(
                "{} exceeds {LONGEST_PLAN} bytes",
                path.display()
            )));
        }
        read_plan(&bytes, &path.display().to_string())
    }

    /// Returns the directories whose entries decide what is listed of all clusters, or of one.
    pub fn directories(&self, cluster: Option<&str>) -> Vec<PathBuf> {
        let Some(root) = &self.root else { return Vec::new() };
        let mut all = vec![root.clone()];
        // Before the first cluster, the directory of states does not exist.
        all.extend(root.parent().filter(|_| !root.is_dir()).map(Path::to_owned));
        if cluster.is_none() {
            let others = Places::of_kubeconfigs(root);
            all.extend(others.directories().map(Path::to_owned));
        }
        let names = match cluster {
            Some(name) => vec![name.to_owned()],
            None => self.names().unwrap_or_default(),
        };
        for state in names.iter().filter_map(|name| self.state(name).ok()) {
            let directory = state.directory();
            let of_cluster = Places::of_cluster(directory);
            all.push(directory.to_owned());
            all.extend(of_cluster.directories().map(Path::to_owned));
            all.extend(LISTED.map(|name| directory.join(name)));
        }
        all
    }

    /// Returns who asks, and when, for data of a kind.
    pub fn about(&self, kind: Kind) -> About {
        About::new(kind, &self.generator, Some(now()))
    }

    fn names(&self) -> Result<Vec<String>> {
        let Some(root) = &self.root else { return Ok(Vec::new()) };
        let mut names: Vec<String> = directory::list(root)?
            .iter()
            .filter(|path| is_state(path))
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            // What is no name of a cluster is something else.
            .filter(|name| self.state(name).is_ok())
            .collect();
        names.sort();
        Ok(names)
    }

    fn state(&self, name: &str) -> Result<State> {
        let root = self.root.clone().ok_or_else(|| {
            Error::not_found("the place of clusters' state is not known: HOME is not set")
                .hint("set SEALOS_RUNTIME_ROOT")
        })?;
        States::new(root, self.identity.clone()).of(name)
    }

    fn existing(&self, name: &str) -> Result<State> {
        let state = self.state(name)?;
        if is_state(state.directory()) { Ok(state) } else { Err(state.missing()) }
    }

    fn plan_files(&self) -> Vec<PlanSummary> {
        let summary = |(number, path): (usize, &PathBuf)| PlanSummary {
            cluster: None,
            id: number.to_string(),
            title: path.display().to_string(),
            state: None,
        };
        self.plans.iter().enumerate().map(summary).collect()
    }
}

/// Returns whether a directory holds the state of a cluster, or what a reset left of it.
fn is_state(path: &Path) -> bool {
    path.join("Clusterfile").exists() || Places::of_cluster(path).directories().any(Path::is_dir)
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns an error with its hints, on one line.
pub(crate) fn told(error: &Error) -> String {
    let hints: String = error.hints().iter().map(|hint| format!(" ({hint})")).collect();
    format!("{error}{hints}")
}

pub(crate) fn summarized(clusterfile: &Clusterfile, summary: ClusterSummary) -> ClusterSummary {
    let cluster = &clusterfile.cluster;
    let rootfs = cluster.status.mounts.iter().find(|mount| mount.kind == "rootfs");
    let adopted = cluster.status.adopted.as_ref().map(|adopted| adopted.version.clone());
    ClusterSummary {
        name: cluster.name.clone(),
        phase: cluster.status.phase.map(|phase| phase.as_str().to_owned()),
        version: rootfs.and_then(|mount| mount.labels.get(VERSION).cloned()).or(adopted),
        hosts: recorded_hosts(clusterfile).map_or(0, |hosts| hosts.len() as u64),
        ..summary
    }
}

fn recorded_hosts(clusterfile: &Clusterfile) -> Result<Vec<RecordedHost>> {
    let mut hosts = Vec::new();
    for group in &clusterfile.cluster.hosts {
        for address in clusterfile.cluster.addresses_of(group)? {
            hosts.push(RecordedHost { host: address.to_string(), roles: group.roles.clone() });
        }
    }
    Ok(hosts)
}

fn installed(clusterfile: &Clusterfile) -> Vec<InstalledImage> {
    let image = |mount: &imgctl_model::clusterfile::Mount| InstalledImage {
        name: mount.image.clone(),
        digest: mount.digest.clone().unwrap_or_default(),
        kind: mount.kind.clone(),
        embedded: embedded(&mount.labels),
    };
    clusterfile.cluster.status.mounts.iter().map(image).collect()
}

/// Returns the newest runs of a cluster, newest first, and what cannot be read.
pub(crate) fn runs(state: &State) -> (Vec<RunSummary>, Vec<String>) {
    summaries(&Places::of_cluster(state.directory()), state.name())
}

fn summaries(places: &Places, cluster: &str) -> (Vec<RunSummary>, Vec<String>) {
    let found = match places.list() {
        Ok(found) => found,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let (mut runs, mut problems) = (Vec::new(), Vec::new());
    let mut counts: HashMap<JournalKind, usize> = HashMap::new();
    let mut more = 0;
    for journal in &found {
        let count = counts.entry(journal.kind).or_default();
        *count += 1;
        if *count > MOST_RUNS {
            more += 1;
            continue;
        }
        match summary(journal, cluster) {
            Ok(run) => runs.push(run),
            Err(error) => problems.push(format!("run {}: {error}", journal.id)),
        }
    }
    if more > 0 {
        problems.push(format!("{more} older runs are not listed"));
    }
    sort(&mut runs);
    (runs, problems)
}

/// Sorts runs, newest first; those whose beginning cannot be read by their name.
fn sort(runs: &mut [RunSummary]) {
    let time = |run: &RunSummary| {
        let started = run.started.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
        // The form of the times in IDs.
        let started = started.map(|time| time.strftime("%Y%m%dT%H%M%S").to_string());
        started.unwrap_or_else(|| run.id.clone())
    };
    runs.sort_by_cached_key(|run| std::cmp::Reverse((time(run), run.id.clone())));
}

/// Returns the plans of upgrades that the cluster keeps, the open one first, then newest first.
fn plans(state: &State) -> (Vec<PlanSummary>, Vec<String>) {
    let store = UpgradeStore::of(state.files());
    let (mut plans, mut problems) = (Vec::new(), Vec::new());
    let summary = |id: String, title: String, end: &str| PlanSummary {
        cluster: Some(state.name().to_owned()),
        id,
        title,
        state: Some(end.to_owned()),
    };
    match store.open() {
        Ok(Some(document)) => {
            plans.push(summary(document.id.clone(), title(&document), "open"));
        }
        Ok(None) => {}
        Err(error) => problems.push(format!("the open upgrade: {error}")),
    }
    match store.history() {
        Ok(ended) => {
            for one in ended.into_iter().rev() {
                let title =
                    format!("{} {} → {}", one.direction.verb(), one.from.version, one.to.version);
                // An upgrade that was repeated has one plan.
                if plans.iter().all(|plan| plan.id != one.id) {
                    plans.push(summary(one.id, title, word(one.end)));
                }
            }
        }
        Err(error) => problems.push(format!("the history of upgrades: {error}")),
    }
    (plans, problems)
}

fn title(document: &Document) -> String {
    let (from, to) = (&document.from.version, &document.target().version);
    format!("{} {from} → {to}", document.direction.verb())
}

fn certificates(state: &State, problems: &mut Vec<String>) -> Vec<HostCertificate> {
    let now = Timestamp::now().as_second();
    let mut found = Vec::new();
    for file in KEPT_CERTIFICATES {
        match read_certificate(state.files(), file) {
            Ok(Some(read)) => found.push(certificate("controller", file, &read, now)),
            Ok(None) => {}
            Err(error) => problems.push(format!("{file}: {}", told(&error))),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_and_the_rest_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let controller = Controller { state_root: Some(root.to_owned()), ..Controller::default() };
        let recorded = Recorded::new(&controller, vec![root.join("absent.json")], "test");
        for (file, text) in [
            ("broken/Clusterfile", "{{{"),
            ("broken/journal/1.jsonl", "nonsense\n"),
            ("broken/upgrade/state.json", "nonsense"),
            ("broken/pki/ca.crt", "nonsense"),
            ("logs/journal/1.jsonl", "x"),
            (".inplace/journal/1.jsonl", "x"),
        ] {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let all = recorded.all().unwrap();
        let names: Vec<&str> = all.clusters.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["broken"], "{all:?}");
        assert!(all.clusters[0].problem.is_some() && all.runs[0].problem.is_some(), "{all:?}");
        assert_eq!((all.plans.len(), all.problems.is_empty()), (1, false), "{all:?}");
        let one = recorded.cluster("broken").unwrap();
        let problems = one.problems.join("\n");
        for told in ["upgrade", "pki/ca.crt"] {
            assert!(problems.contains(told), "{told}: {problems}");
        }
        let (run, at) = recorded.run("broken", "1").unwrap();
        assert_eq!((run.run.state.as_str(), at), ("unfinished", 9));
        for (cluster, run) in [("broken", "../1"), ("broken", "2"), ("logs", "1"), ("..", "1")] {
            assert!(recorded.run(cluster, run).is_err(), "{cluster} {run}");
            assert!(recorded.follow(cluster, run, 0).is_err(), "{cluster} {run}");
        }
        assert!(recorded.plan_in_file(0).is_err() && recorded.plan_in_file(7).is_err());
    }
}
