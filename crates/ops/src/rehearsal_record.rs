//! What was measured in a rehearsal, and where it is recorded: plans of the same upgrade show it. Must not know how
//! a rehearsal is carried out.

use std::path::{Path, PathBuf};

use jiff::{SpanRound, Timestamp, Unit};
use serde::{Deserialize, Serialize};

use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::fs::atomic::{make_private, write_private};
use imgctl_base::fs::directory;
use imgctl_model::state::State;
use imgctl_report::model::run::RunReport;
use imgctl_upgrade::document::{Document, Release};
use imgctl_upgrade::report::Report;

/// Below the directory of all clusters' state. No cluster has such a name.
const DIRECTORY: &str = ".rehearsals";
/// Schema of records; others are not read.
const SCHEMA: u32 = 1;
/// Maximum size of a record, in bytes.
const LONGEST: u64 = 16 << 20;

/// A rehearsal of an upgrade.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rehearsal {
    schema: u32,
    pub cluster: String,
    /// When it began, RFC 3339.
    pub created: String,
    /// Place of the backup, and when it began, RFC 3339.
    pub backup: String,
    pub backed_up: String,
    /// Description of the hosts.
    pub on: String,
    pub control_planes: usize,
    pub workers: usize,
    pub parts: Vec<Part>,
    /// Of the upgrade; absent if it did not end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Release>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<Release>,
    /// The copy after the upgrade, compared with the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<Answers>,
    /// Why it failed, with its causes; absent if it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What a client of the copy saw during the upgrade and the rollback.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answers {
    pub asked: u64,
    /// Requests that no host answered.
    pub failed: u64,
    /// Longest time without an answer of any host, in seconds.
    pub longest_gap: f64,
}

/// A part of a rehearsal: `restore`, `upgrade`, `rollback`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub name: String,
    pub seconds: f64,
    /// From the first step of each phase to its last, on any host.
    pub phases: Vec<Phase>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    pub seconds: f64,
}

impl Part {
    pub(crate) fn new(name: &str, seconds: f64, run: Option<&RunReport>) -> Self {
        let phases = run.map(phases).unwrap_or_default();
        Self { name: name.to_owned(), seconds, phases }
    }
}

fn phases(run: &RunReport) -> Vec<Phase> {
    let mut found: Vec<(String, Timestamp, Timestamp)> = Vec::new();
    for step in run.hosts.iter().flat_map(|host| &host.steps) {
        let time = |text: &Option<String>| text.as_ref()?.parse::<Timestamp>().ok();
        let began = step.attempts.iter().filter_map(|one| time(&one.began)).min();
        let ended = step.attempts.iter().filter_map(|one| time(&one.ended)).max();
        let (Some(began), Some(ended)) = (began, ended) else { continue };
        match found.iter_mut().find(|(name, ..)| *name == step.phase) {
            Some((_, first, last)) => {
                *first = (*first).min(began);
                *last = (*last).max(ended);
            }
            None => found.push((step.phase.clone(), began, ended)),
        }
    }
    found.sort_by_key(|(_, began, _)| *began);
    let phase = |(name, began, ended): (String, Timestamp, Timestamp)| Phase {
        name,
        seconds: ended.duration_since(began).as_secs_f64(),
    };
    found.into_iter().map(phase).collect()
}

impl Rehearsal {
    pub(crate) fn new(
        cluster: &str,
        backup: &str,
        backed_up: &str,
        on: &str,
        control_planes: usize,
        workers: usize,
    ) -> Self {
        Self {
            schema: SCHEMA,
            cluster: cluster.to_owned(),
            created: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            backup: backup.to_owned(),
            backed_up: backed_up.to_owned(),
            on: on.to_owned(),
            control_planes,
            workers,
            parts: Vec::new(),
            from: None,
            hops: Vec::new(),
            report: None,
            answers: None,
            problem: None,
        }
    }

    /// Records the upgrade and the state of the copy after it.
    pub(crate) fn record_upgrade(&mut self, document: &Document, report: Option<Report>) {
        self.from = Some(document.from.clone());
        self.hops = document.hops.clone();
        self.report = report;
    }

    pub(crate) fn end(&mut self, went: &Result<()>) {
        self.problem = went.as_ref().err().map(|error| error.chain().join(": "));
    }

    fn seconds(&self, name: &str) -> Option<f64> {
        self.parts.iter().find(|part| part.name == name).map(|part| part.seconds)
    }

    /// Returns whether it rehearsed the upgrade of `document`: both sides have the same content.
    fn is_of(&self, document: &Document) -> bool {
        let same = |one: &Release, other: &Release| {
            one.digests.iter().any(|(platform, digest)| other.digests.get(platform) == Some(digest))
        };
        self.from.as_ref().is_some_and(|from| same(from, &document.from))
            && self.hops.len() == document.hops.len()
            && self.hops.iter().zip(&document.hops).all(|(one, other)| same(one, other))
    }

    /// Returns its summary in one line, for a plan.
    fn line(&self) -> String {
        let mut line = format!(
            "rehearsed on {} on {} (control planes: {}, workers: {}), from the backup of {}",
            self.created, self.on, self.control_planes, self.workers, self.backed_up
        );
        if let Some(problem) = &self.problem {
            return format!("{line}: it failed ({problem})");
        }
        let parts = ["upgrade", "rollback"].into_iter();
        let parts = parts.filter_map(|name| Some(format!("{name} {}", time(self.seconds(name)?))));
        line.push_str(&format!(": {}", parts.collect::<Vec<_>>().join(", ")));
        if let Some(answers) = &self.answers {
            line.push_str(&format!(", {} of {} requests failed", answers.failed, answers.asked));
        }
        line
    }
}

/// Formats seconds as people say them: `4.2s`, `1m 4s`.
pub fn time(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{seconds:.1}s");
    }
    let span = jiff::Span::new().milliseconds((seconds * 1000.0) as i64);
    let largest = SpanRound::new().largest(Unit::Hour).smallest(Unit::Second);
    span.round(largest).map_or_else(|_| format!("{seconds:.0}s"), |span| format!("{span:#}"))
}

/// The files of the rehearsals of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn of(state_root: &Path, cluster: &str) -> Self {
        Self(state_root.join(DIRECTORY).join(cluster))
    }

    pub(crate) fn make(&self) -> Result<()> {
        make_private(&self.0)
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// The directory of the copy's state, in place of that of all clusters.
    pub(crate) fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    /// Records a rehearsal; returns the file.
    pub(crate) fn write(&self, rehearsal: &Rehearsal) -> Result<PathBuf> {
        let text = serde_json::to_string_pretty(rehearsal)
            .doing(|| "cannot write the record of the rehearsal".to_owned())?;
        let path = self.0.join(format!("{}.json", rehearsal.created.replace(':', "")));
        write_private(&path, &text)?;
        Ok(path)
    }

    /// Returns the records that can be read, oldest first.
    fn all(&self) -> Result<Vec<Rehearsal>> {
        let files = directory::list(&self.0)?;
        let mut found: Vec<Rehearsal> = Vec::new();
        for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
            let text = directory::read_text(path, LONGEST)?.unwrap_or_default();
            match serde_json::from_str::<Rehearsal>(&text) {
                Ok(rehearsal) if rehearsal.schema == SCHEMA => found.push(rehearsal),
                Ok(_) => {}
                Err(error) => tracing::info!("{}: {error}", path.display()),
            }
        }
        found.sort_by(|one, other| one.created.cmp(&other.created));
        Ok(found)
    }
}

/// Returns the summary of the last rehearsal of an upgrade, if there is one.
pub fn of_upgrade(state: &State, document: &Document) -> Result<Option<String>> {
    let Some(root) = state.directory().parent() else { return Ok(None) };
    let records = Place::of(root, &document.cluster).all()?;
    Ok(records.iter().rfind(|record| record.is_of(document)).map(Rehearsal::line))
}
