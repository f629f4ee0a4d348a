//! The progress of a running command: a table that the page's script keeps up to date.

use jiff::Timestamp;
use maud::html;
use serde::Serialize;

use crate::escape::json_for_html;
use crate::model::run::{HostRun, RunReport, StepRun};
use crate::page::Section;
use crate::text::{count, shown};
use crate::views::parts::{badge, code, headings, table};
use crate::views::run::{class_of, outcome};

pub(super) const SCRIPT: &str =
    concat!(include_str!("../assets/refresh.js"), include_str!("../assets/live.js"));

/// Where a host is.
#[derive(Serialize)]
struct HostState<'a> {
    host: &'a str,
    /// Steps that began and have not ended.
    open: Vec<String>,
    done: usize,
    /// Names of the steps whose last attempt failed.
    failed: Vec<String>,
}

#[derive(Serialize)]
struct Data<'a> {
    hosts: Vec<HostState<'a>>,
}

/// Returns where the hosts are. What an earlier command began and did not end is no longer running.
fn states(report: &RunReport) -> Vec<HostState<'_>> {
    let time = |text: &str| text.parse::<Timestamp>().ok();
    let since = report.sessions.last().and_then(|session| time(&session.started));
    let is_open = |step: &StepRun| {
        let last = step.attempts.last();
        let began = last.and_then(|last| last.began.as_deref()).and_then(time);
        outcome(step).is_none() && began >= since
    };
    let named = |step: &StepRun| format!("{}/{}", step.phase, step.name);
    let state = |host: &HostRun| {
        let class = |step: &StepRun| class_of(outcome(step));
        let failed = host.steps.iter().filter(|step| matches!(class(step), "bad" | "warn"));
        (
            host.steps.iter().filter(|step| is_open(step)).map(named).collect(),
            host.steps.iter().filter(|step| class(step) == "good").count(),
            failed.map(named).collect(),
        )
    };
    let states = report.hosts.iter().map(|host| {
        let (open, done, failed) = state(host);
        HostState { host: &host.host, open, done, failed }
    });
    states.collect()
}

/// Returns what the script begins with.
pub(super) fn data(report: &RunReport) -> String {
    json_for_html(&Data { hosts: states(report) })
}

/// Makes the section; `events` is the address of the events that follow.
pub(super) fn section(report: &RunReport, events: &str) -> Section {
    let hosts = states(report);
    let done: usize = hosts.iter().map(|host| host.done).sum();
    let failed: usize = hosts.iter().map(|host| host.failed.len()).sum();
    let busy = hosts.iter().filter(|host| !host.open.is_empty()).count();
    let tiles = [
        ("busy", "Hosts at work", busy),
        ("hosts", "Hosts so far", hosts.len()),
        ("done", "Steps done", done),
        ("failed", "Steps not done", failed),
    ];
    let rows = html! {
        @for host in &hosts {
            tr {
                th scope="row" { (code(host.host)) }
                td.now { bdi { (shown(&host.open.join(", "))) } }
                td.number { (host.done) }
                td.failed { @for step in &host.failed { (badge("bad", step)) " " } }
            }
        }
    };
    let body = html! {
        div #progress data-events=(events) {
            p.status #progress-status role="status" { "The run is in progress." }
            dl.tiles {
                @for (id, name, number) in tiles {
                    div.tile.bad[id == "failed" && number > 0] {
                        dt { (name) }
                        dd { span.value id={ "progress-" (id) } { (count(number as u64)) } }
                    }
                }
            }
            (table("Progress by host", false, &headings(&["Host", "Now", "Done#", "Not done"]), &rows))
            ul #progress-log.plain aria-label="Messages" {}
            noscript { p.quiet { "Without scripts the page shows the run up to the time at which it was opened." } }
        }
    };
    Section::new("live", "Progress", None, body)
}
