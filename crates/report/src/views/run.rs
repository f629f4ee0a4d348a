//! The page of a run's report.

mod timeline;

use maud::{Markup, html};

use crate::model::run::{
    Attempt, HostRestarts, HostRun, Link, Log, RestartResult, RunReport, StepRun,
};
use crate::page::{Page, Section};
use crate::text::{count, counted, duration, lines, shown, time};
use crate::views::parts::{Tile, badge, code, headings, incomplete, nothing, table, tiles};
use imgctl_base::size::human;
use timeline::Clock;

/// Maximum number of characters of a line of a log.
const LONGEST_LINE: usize = 2000;

/// Makes the page.
pub(crate) fn page(report: &RunReport) -> Page<'_> {
    let run = &report.run;
    let clock = Clock::new(report);
    let mut facts = vec![("Run", run.id.clone()), ("Cluster", run.cluster.clone())];
    if let Some(started) = &run.started {
        facts.push(("Started", time(started)));
    }
    if let Some(session) = report.sessions.last() {
        for (name, value) in [("Controller", &session.controller), ("imgctl", &session.version)] {
            if !value.is_empty() {
                facts.push((name, value.clone()));
            }
        }
    }
    let section = Section::new;
    let failures = failures(report);
    let mut sections = vec![section("overview", "Overview", None, overview(report, &clock))];
    if !failures.is_empty() {
        let body = html! { @for (host, step) in &failures { (failure(host, step)) } };
        sections.push(section("failures", "Failures", Some(failures.len()), body));
    }
    sections.push(section("timeline", "Timeline", None, timeline::body(report, &clock)));
    sections.push(section("steps", "Steps", Some(step_count(report)), steps(report)));
    if !is_in_place(report) {
        sections.push(section("links", "Transfers", None, links(&report.links)));
    }
    let is_known = |host: &HostRestarts| {
        host.as_predicted > 0 || !host.others.is_empty() || !host.problems.is_empty()
    };
    if report.restarts.iter().any(is_known) {
        let body = restarts(&report.restarts);
        let number: usize = report.restarts.iter().map(|host| host.others.len()).sum();
        let number = Some(number).filter(|number| *number > 0);
        sections.push(section("restarts", "Predicted and actual restarts", number, body));
    }
    sections.push(section("sessions", "Commands", Some(report.sessions.len()), sessions(report)));
    Page {
        about: &report.about,
        kind: "Run",
        subject: format!("{} {}", run.verb, run.cluster),
        facts,
        sections,
        script: "",
        data: "null".to_owned(),
    }
}

/// Returns whether Pods are changed, rather than hosts.
fn is_in_place(report: &RunReport) -> bool {
    report.run.verb.starts_with("inplace")
}

/// Returns how many containers restarted, how many of these were predicted to, and how many deviated from the
/// prediction; `None` if nothing is known about restarts.
fn restarted(report: &RunReport) -> Option<(u64, u64, u64)> {
    let known =
        report.restarts.iter().filter(|host| host.as_predicted > 0 || !host.others.is_empty());
    known
        .map(|host| (counts(host), host.others.len() as u64))
        .map(|((predicted, actual), others)| (actual, predicted, others))
        .reduce(|a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2))
}

fn step_count(report: &RunReport) -> usize {
    report.hosts.iter().map(|host| host.steps.len()).sum()
}

/// The class that colours an outcome.
pub(crate) fn class_of(outcome: Option<&str>) -> &'static str {
    match outcome {
        Some("done" | "assumed") => "good",
        Some("failed") => "bad",
        Some("lost" | "unknown" | "interrupted" | "aborted" | "restored" | "gone") => "warn",
        _ => "info",
    }
}

/// The outcome of a step: that of its last attempt.
pub(crate) fn outcome(step: &StepRun) -> Option<&str> {
    step.attempts.last().and_then(|attempt| attempt.outcome.as_deref())
}

fn failures(report: &RunReport) -> Vec<(&HostRun, &StepRun)> {
    let steps =
        report.hosts.iter().flat_map(|host| host.steps.iter().map(move |step| (host, step)));
    steps.filter(|(_, step)| matches!(class_of(outcome(step)), "bad" | "warn")).collect()
}

fn overview(report: &RunReport, clock: &Clock) -> Markup {
    let run = &report.run;
    let in_place = is_in_place(report);
    // Of an in-place update, Pods are counted: not those that went back, and not templates.
    let is_counted =
        |step: &&StepRun| !in_place || !matches!(&*step.phase, "restored" | "templates");
    let steps = report.hosts.iter().flat_map(|host| &host.steps).filter(is_counted);
    let begun = steps.clone().count() as u64;
    let done = steps.clone().filter(|step| class_of(outcome(step)) == "good").count() as u64;
    let retries: u64 = steps.map(|step| step.attempts.len().saturating_sub(1) as u64).sum();
    let bytes = report.links.iter().map(|link| link.bytes).fold(0, u64::saturating_add);
    let from_hosts = report.links.iter().filter(|link| link.from != "controller");
    let from_hosts = from_hosts.map(|link| link.bytes).fold(0, u64::saturating_add);
    let failed = failures(report).len() as u64;
    let nodes = report.hosts.iter().filter(|host| host.host != "controller").count();
    let state = match run.state.as_str() {
        "done" => "good",
        "failed" | "aborted" => "bad",
        "running" => "accent",
        _ => "warn",
    };
    let figures = [
        Tile::new("State", shown(&run.state)).tone(state).note(match run.state.as_str() {
            "running" => "this page shows the run up to its last record",
            "unfinished" if in_place => "it was killed; imgctl inplace apply --id continues it",
            "unfinished" => "it was killed; the same command resumes it",
            _ => "",
        }),
        Tile::new("Time", duration(clock.length())).note(match report.sessions.len() {
            0 | 1 => String::new(),
            more => format!("in {more} commands, without the time between them"),
        }),
        Tile::new(if in_place { "Nodes" } else { "Hosts" }, count(nodes as u64)),
        Tile::new(if in_place { "Pods done" } else { "Steps done" }, count(done))
            .note(format!("of {} begun", count(begun))),
        Tile::new("Failures", count(failed)).tone(if failed > 0 { "bad" } else { "" }),
        Tile::new("Retries", count(retries)).tone(if retries > 0 { "warn" } else { "" }),
    ];
    let restarts = restarted(report).map(|(actual, predicted, otherwise)| {
        let note = match otherwise {
            0 => format!("{} predicted, all as predicted", count(predicted)),
            _ => format!("{} predicted, {} otherwise", count(predicted), count(otherwise)),
        };
        let tone = if otherwise > 0 { "warn" } else { "" };
        Tile::new("Restarts", count(actual)).note(note).tone(tone)
    });
    let transferred = Tile::new("Transferred", human(bytes))
        .note(format!("{} from other hosts", human(from_hosts)));
    let figures: Vec<Tile> =
        figures.into_iter().chain((!in_place).then_some(transferred)).chain(restarts).collect();
    html! {
        (incomplete(&report.problems))
        (tiles(&figures))
        @if let Some(message) = report.sessions.last().and_then(|last| last.message.as_deref()) {
            pre.log { (lines(message, LONGEST_LINE)) }
        }
        @if !run.arguments.is_empty() {
            p { "Command: " (code(&format!("imgctl {}", run.arguments.join(" ")))) }
        }
    }
}

fn failure(host: &HostRun, step: &StepRun) -> Markup {
    let last = step.attempts.last();
    html! {
        div.failure {
            h3 { (badge(class_of(outcome(step)), outcome(step).unwrap_or("?"))) " " bdi { (shown(&step.name)) } " on " (code(&host.host)) }
            @if let Some(message) = last.and_then(|last| last.message.as_deref()) {
                pre.log { (lines(message, LONGEST_LINE)) }
            }
            @if let Some(log) = &step.log { (log_of(log)) }
        }
    }
}

fn log_of(log: &Log) -> Markup {
    let number = log.text.lines().count() as u64;
    html! {
        details.folded-log {
            summary { "Log, " (counted(number, "line", "lines")) @if log.omitted > 0 { " (the end; " (human(log.omitted)) " before it are left out)" } }
            p.quiet { (code(&log.path)) }
            pre.log tabindex="0" { (lines(&log.text, LONGEST_LINE)) }
        }
    }
}

fn steps(report: &RunReport) -> Markup {
    if report.hosts.is_empty() {
        return nothing("No step began.");
    }
    html! {
        @for host in &report.hosts {
            @let bad = host.steps.iter().filter(|step| matches!(class_of(outcome(step)), "bad" | "warn")).count();
            details.phase open[bad > 0 || report.hosts.len() == 1] {
                summary {
                    (code(&host.host)) " " span.count { (counted(host.steps.len() as u64, "step", "steps")) }
                    @if bad > 0 { " " (badge("bad", &format!("{bad} failed"))) }
                }
                (table(&format!("Steps of {}", shown(&host.host)), false, &headings(&["Phase", "Step", "Result", "Attempts#", "Began", "Time#", "Log"]), &html! {
                    @for step in &host.steps { (step_row(step)) }
                }))
            }
        }
    }
}

fn step_row(step: &StepRun) -> Markup {
    let first = step.attempts.first();
    let total: Option<u64> = step.attempts.iter().map(|attempt| attempt.duration_ms).sum();
    html! {
        tr {
            td { bdi { (shown(&step.phase)) } }
            th scope="row" { bdi { (shown(&step.name)) } }
            td { (badge(class_of(outcome(step)), outcome(step).unwrap_or("begun"))) }
            td.number { (step.attempts.len()) }
            td { (began(first)) }
            td.number { @if let Some(total) = total { (duration(total)) } }
            td.text {
                @if let Some(message) = step.attempts.last().and_then(|last| last.message.as_deref()) { p.message { (lines(message, LONGEST_LINE)) } }
                @if let Some(log) = &step.log { (log_of(log)) }
            }
        }
    }
}

fn began(attempt: Option<&Attempt>) -> String {
    attempt.and_then(|attempt| attempt.began.as_deref()).map(time).unwrap_or_default()
}

fn links(links: &[Link]) -> Markup {
    if links.is_empty() {
        return nothing("The journal records no transfers.");
    }
    let largest = links.iter().map(|link| link.bytes).max().unwrap_or(0);
    let rows = html! {
        @for link in links {
            tr {
                td { (code(&link.from)) }
                td { (code(&link.to)) }
                td.number { (human(link.bytes)) (super::image::meter(link.bytes, largest, if link.from == "controller" { "accent" } else { "good" })) }
            }
        }
    };
    table("Bytes by source", links.len() > 12, &headings(&["From", "To", "Bytes#"]), &rows)
}

/// Number of containers that restarted or were recreated, as predicted and actually.
fn counts(host: &HostRestarts) -> (u64, u64) {
    let all = || host.agreed.iter().chain(&host.others);
    let predicted = all().filter(|one| matches!(&*one.predicted, "restart" | "recreate"));
    let actual = all().filter(|one| matches!(&*one.actual, "restarted" | "recreated"));
    (predicted.count() as u64, actual.count() as u64)
}

fn restarts(hosts: &[HostRestarts]) -> Markup {
    let rows = html! {
        @for host in hosts {
            @let (predicted, actual) = counts(host);
            tr {
                th scope="row" { (code(&host.host)) }
                td.number { (count(predicted)) }
                td.number { (count(actual)) }
                td.number { (count(host.as_predicted)) }
                td.number { (count(host.others.len() as u64)) }
                td.text { @for problem in &host.problems { p { bdi { (shown(problem)) } } } }
            }
        }
    };
    let row = |host: &HostRestarts, one: &RestartResult, class: &'static str| {
        html! {
            tr {
                td { (code(&host.host)) }
                th scope="row" { (code(&format!("{}/{} {}", one.namespace, one.pod, one.container))) }
                td { (badge(if one.predicted == "keep" { "" } else { "info" }, &one.predicted)) }
                td {
                    (badge(class, &one.actual))
                    @if let Some(times) = one.restarts.filter(|times| *times > 1) { " " span.quiet { (count(times)) " times" } }
                }
                td.text { bdi { (shown(&one.reason)) } @if let Some(why) = &one.why { p.hint { bdi { (shown(why)) } } } }
            }
        }
    };
    let number: usize = hosts.iter().map(|host| host.agreed.len() + host.others.len()).sum();
    let containers = html! {
        @for host in hosts { @for one in &host.others { (row(host, one, "warn")) } }
        @for host in hosts { @for one in &host.agreed { (row(host, one, "good")) } }
    };
    html! {
        (table("Predicted and actual restarts by host", hosts.len() > 12, &headings(&["Host", "Predicted#", "Restarted#", "As predicted#", "Otherwise#", "Other deviations"]), &rows))
        @if number > 0 {
            h3 { "Containers" }
            p.quiet { "Those that did something else come first. Containers that kept running, as predicted, are only counted." }
            (table("Containers, predicted and actual", number > 12, &headings(&["Host", "Container", "Predicted", "Actual", "Why"]), &containers))
        }
    }
}

fn sessions(report: &RunReport) -> Markup {
    let rows = html! {
        @for session in &report.sessions {
            tr {
                td { (time(&session.started)) }
                td { (time(&session.last)) }
                td { (badge(class_of(session.outcome.as_deref()), session.outcome.as_deref().unwrap_or("no end recorded"))) }
                td { bdi { (shown(&session.controller)) } }
                td { bdi { (shown(&session.version)) } }
            }
        }
    };
    table(
        "Commands that began or resumed the run",
        false,
        &headings(&["Started", "Last record", "Result", "Controller", "imgctl"]),
        &rows,
    )
}
