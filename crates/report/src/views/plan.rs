//! The page of a plan's report.

use std::collections::{BTreeMap, HashMap};

use maud::{Markup, html};

use crate::model::plan::{
    PlanReport, PlannedHost, PlannedPhase, PlannedRestart, PlannedStep, RestartCounts,
};
use crate::page::{Page, Section};
use crate::text::{count, counted, shown};
use crate::views::parts::{
    Tile, badge, code, finding_note, findings, headings, nothing, table, tiles,
};
use imgctl_base::size::human;

/// Stands for the host in the steps that several hosts have in common.
const HOST: &str = "HOST";
/// Maximum number of groups of containers that are listed.
const MOST_RESTARTS: usize = 1500;
/// Maximum number of hosts that are named in one place.
const MOST_NAMED: usize = 12;
/// Maximum number of lines of a step.
const MOST_LINES: usize = 40;

/// Makes the page.
pub(crate) fn page(report: &PlanReport) -> Page<'_> {
    let plan = &report.plan;
    let mut facts = vec![("Cluster", plan.cluster.clone())];
    for (name, value) in [
        ("Runtime", &plan.runtime),
        ("Name", &plan.id),
        ("From", &plan.from),
        ("To", &plan.to),
        ("Digest", &plan.digest),
    ] {
        if let Some(value) = value {
            facts.push((name, value.clone()));
        }
    }
    let section = Section::new;
    let mut sections = vec![section("overview", "Overview", None, overview(report))];
    sections.push(section(
        "findings",
        "Findings",
        Some(report.findings.len()),
        findings(&report.findings),
    ));
    sections.push(section("hosts", "Hosts", Some(report.hosts.len()), hosts(report)));
    if !report.phases.is_empty() {
        sections.push(section("phases", "Phases", Some(report.phases.len()), phases(report)));
    }
    sections.push(section(
        "restarts",
        "Restarts of containers",
        Some(report.restarts.len()),
        restarts(&report.restarts),
    ));
    Page {
        about: &report.about,
        kind: "Plan",
        subject: format!("{} {}", plan.verb, plan.cluster),
        facts,
        sections,
        script: "",
        data: "null".to_owned(),
    }
}

fn overview(report: &PlanReport) -> Markup {
    let skipped = report.hosts.iter().filter(|host| host.skipped.is_some()).count() as u64;
    let steps = report.phases.iter().flat_map(|phase| &phase.lanes).flat_map(|lane| &lane.steps);
    let (mut all, mut done, mut bytes) = (0_u64, 0_u64, 0_u64);
    for step in steps {
        all += 1;
        done += u64::from(step.done_before);
        bytes = bytes.saturating_add(step.bytes.unwrap_or(0));
    }
    let sum = sums(&report.hosts);
    let (note, tone) = finding_note(&report.findings);
    let mut figures =
        vec![Tile::new("Hosts", count(report.hosts.len() as u64 - skipped)).note(match skipped {
            0 => String::new(),
            skipped => format!("{skipped} left out"),
        })];
    if !report.phases.is_empty() {
        figures.push(Tile::new("Steps", count(all)).note(match done {
            0 => counted(report.phases.len() as u64, "phase", "phases"),
            done => format!("{} done by an earlier run", count(done)),
        }));
        figures.push(Tile::new("To transfer", human(bytes)).note("files and layers"));
    }
    if report.hosts.iter().any(|host| host.restarts.is_some()) {
        let disturbed = sum.restart + sum.recreate + sum.unknown;
        figures.push(
            Tile::new("Containers disturbed", count(disturbed))
                .tone(if disturbed > 0 { "warn" } else { "good" })
                .note(format!("{} go on running, {} move", count(sum.keep), count(sum.moved))),
        );
    }
    figures.push(Tile::new("Findings", report.findings.len().to_string()).note(note).tone(tone));
    html! {
        (tiles(&figures))
        @if !report.plan.hops.is_empty() {
            h3 { "Hops" }
            ol { @for hop in &report.plan.hops { li { bdi { (shown(hop)) } } } }
        }
        h3 { "What cannot be undone" }
        @if report.irreversible.is_empty() {
            (nothing("Nothing of this plan is known to be irreversible."))
        } @else {
            ul.plain { @for line in &report.irreversible { li { bdi { (shown(line)) } } } }
        }
        @if !report.notes.is_empty() {
            h3 { "Notes" }
            ul.plain { @for line in &report.notes { li { bdi { (shown(line)) } } } }
        }
    }
}

fn sums(hosts: &[PlannedHost]) -> RestartCounts {
    let mut sum = RestartCounts::default();
    for counts in hosts.iter().filter_map(|host| host.restarts) {
        sum.keep = sum.keep.saturating_add(counts.keep);
        sum.restart = sum.restart.saturating_add(counts.restart);
        sum.recreate = sum.recreate.saturating_add(counts.recreate);
        sum.unknown = sum.unknown.saturating_add(counts.unknown);
        sum.moved = sum.moved.saturating_add(counts.moved);
    }
    sum
}

/// The columns of the lanes: phases or, without them, groups of hosts. For each the hosts that have
/// work in it.
fn columns(report: &PlanReport) -> Vec<(String, HashMap<&str, bool>)> {
    if !report.phases.is_empty() {
        let column = |phase: &'_ PlannedPhase| phase.name.clone();
        return report
            .phases
            .iter()
            .map(|phase| {
                let lanes = phase.lanes.iter().map(|lane| {
                    (lane.host.as_str(), lane.steps.iter().all(|step| step.done_before))
                });
                (column(phase), lanes.collect())
            })
            .collect();
    }
    let mut columns: Vec<(String, HashMap<&str, bool>)> = Vec::new();
    for host in &report.hosts {
        let (Some(group), None) = (&host.group, &host.skipped) else { continue };
        match columns.iter_mut().find(|(name, _)| name == group) {
            Some((_, members)) => {
                members.insert(&host.host, false);
            }
            None => columns.push((group.clone(), HashMap::from([(host.host.as_str(), false)]))),
        }
    }
    columns
}

fn hosts(report: &PlanReport) -> Markup {
    if report.hosts.is_empty() {
        return nothing("The plan has no hosts.");
    }
    let columns = columns(report);
    let what = if report.phases.is_empty() { "Group" } else { "Phase" };
    // A column that is empty for every host is left out.
    let any = |says: fn(&PlannedHost) -> bool| report.hosts.iter().any(says);
    let has_order =
        any(|host| host.skipped.is_some() || host.group.is_some() || !host.roles.is_empty());
    let has_version = any(|host| host.version.is_some() || host.architecture.is_some());
    let has_restarts = any(|host| host.restarts.is_some());
    let rows = html! {
        @for host in &report.hosts {
            tr {
                th scope="row" { (code(&host.host)) @if let Some(node) = &host.node { " " span.quiet { bdi { (shown(node)) } } } }
                @if has_order { td { @match (&host.skipped, &host.group) {
                    (Some(_), _) => (badge("warn", "left out")),
                    (None, Some(group)) => (badge("info", group)),
                    (None, None) => (shown(&host.roles.join(", "))),
                } } }
                @if has_version { td { (shown(host.version.as_deref().unwrap_or_default())) @if let Some(architecture) = &host.architecture { " " span.quiet { (shown(architecture)) } } } }
                td.lane {
                    @match &host.skipped {
                        Some(why) => bdi { (shown(why)) },
                        None => (strip(&columns, &host.host)),
                    }
                }
                @if has_restarts { td { (restart_words(host.restarts)) } }
            }
        }
    };
    let names: Vec<&str> = [
        (true, "Host"),
        (has_order, "Order"),
        (has_version, "Version"),
        (true, what),
        (has_restarts, "Containers"),
    ]
    .into_iter()
    .filter_map(|(is_there, name)| is_there.then_some(name))
    .collect();
    html! {
        p.quiet { "Each lane shows in which " (what.to_lowercase()) " the host has work, from left to right:" }
        ol.columns-key {
            @for (name, members) in &columns { li { bdi { (shown(name)) } " " span.count { (counted(members.len() as u64, "host", "hosts")) } } }
        }
        (table("Hosts in their order", report.hosts.len() > 12, &headings(&names), &rows))
    }
}

/// A host's lane: a mark for each column that the host has work in.
fn strip(columns: &[(String, HashMap<&str, bool>)], host: &str) -> Markup {
    let width = 1000 / columns.len().max(1);
    let (mut todo, mut done) = (String::new(), String::new());
    let mut names = Vec::new();
    for (index, (name, members)) in columns.iter().enumerate() {
        if let Some(is_done) = members.get(host) {
            let path = if *is_done { &mut done } else { &mut todo };
            path.push_str(&format!("M{} 2h{}v12h-{}z", index * width, width - 2, width - 2));
            names.push(shown(name));
        }
    }
    let label = match names.len() {
        0..=4 => names.join(", "),
        more => format!("{more} of {}", columns.len()),
    };
    html! {
        svg.strip viewBox="0 0 1000 16" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.track width="1000" height="16" {}
            @if !todo.is_empty() { path.accent d=(todo) {} }
            @if !done.is_empty() { path.good d=(done) {} }
        }
    }
}

fn restart_words(counts: Option<RestartCounts>) -> String {
    let Some(counts) = counts else { return String::new() };
    let words = [
        (counts.keep, "keep"),
        (counts.restart, "restart"),
        (counts.recreate, "recreate"),
        (counts.unknown, "unknown"),
        (counts.moved, "move"),
    ];
    let words = words.iter().filter(|(number, _)| *number > 0);
    words.map(|(number, word)| format!("{number} {word}")).collect::<Vec<_>>().join(", ")
}

fn phases(report: &PlanReport) -> Markup {
    html! {
        p.quiet { "All hosts finish a phase before the next one begins. Hosts whose steps differ only in the host's own name are shown together, with " code { (HOST) } " in its place." }
        @for (number, phase) in report.phases.iter().enumerate() {
            details.phase open[number == 0] {
                summary {
                    (number + 1) ". " bdi { (shown(&phase.name)) } " "
                    span.count { (counted(phase.lanes.len() as u64, "host", "hosts")) ", " (order_word(&phase.order)) }
                }
                @for (hosts, steps) in patterns(phase) {
                    div.pattern {
                        p { (named(&hosts)) }
                        ol { @for step in &steps { li { (planned_step(step)) } } }
                    }
                }
            }
        }
    }
}

fn order_word(order: &str) -> &str {
    match order {
        "serial" => "one after the other",
        "parallel" => "several at once",
        _ => "",
    }
}

/// Returns the hosts of a phase by what they do, in their order.
fn patterns(phase: &PlannedPhase) -> Vec<(Vec<&str>, Vec<PlannedStep>)> {
    let mut groups: Vec<(Vec<&str>, Vec<PlannedStep>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for lane in &phase.lanes {
        let without_host = |text: &String| {
            if lane.host.len() > 3 { text.replace(&lane.host, HOST) } else { text.clone() }
        };
        let steps: Vec<PlannedStep> = lane
            .steps
            .iter()
            .map(|step| PlannedStep {
                says: step.says.iter().take(MOST_LINES + 1).map(without_host).collect(),
                ..step.clone()
            })
            .collect();
        let key = format!("{steps:?}");
        match places.get(&key) {
            Some(place) => groups[*place].0.push(&lane.host),
            None => {
                places.insert(key, groups.len());
                groups.push((vec![&lane.host], steps));
            }
        }
    }
    groups
}

fn named(hosts: &[&str]) -> Markup {
    html! {
        @if hosts.len() > 1 { strong { (counted(hosts.len() as u64, "host", "hosts")) } ": " }
        @for (number, host) in hosts.iter().take(MOST_NAMED).enumerate() {
            @if number > 0 { ", " }
            (code(host))
        }
        @if hosts.len() > MOST_NAMED { " and " (count((hosts.len() - MOST_NAMED) as u64)) " more" }
    }
}

fn planned_step(step: &PlannedStep) -> Markup {
    html! {
        span.step { bdi { (shown(&step.name)) } }
        @if let Some(bytes) = step.bytes { " " span.count { (human(bytes)) } }
        @if step.once { " " (badge("warn", "not repeatable")) }
        @if step.done_before { " " (badge("good", "done before")) }
        @if !step.says.is_empty() {
            pre.says {
                @for (number, line) in step.says.iter().take(MOST_LINES).enumerate() { @if number > 0 { "\n" } (shown(line)) }
                @if step.says.len() > MOST_LINES { "\n…" }
            }
        }
    }
}

fn restarts(restarts: &[PlannedRestart]) -> Markup {
    if restarts.is_empty() {
        return nothing("No container is known to restart.");
    }
    // The Pods of a DaemonSet are one row.
    let mut groups: BTreeMap<(&str, &str, &str, &str, &str), Vec<&PlannedRestart>> =
        BTreeMap::new();
    for one in restarts {
        let who = one.owner.as_deref().unwrap_or(&one.pod);
        let key = (&*one.verdict, &*one.namespace, who, &*one.container, &*one.reason);
        groups.entry(key).or_default().push(one);
    }
    let rows = html! {
        @for ((verdict, namespace, who, container, reason), members) in groups.iter().take(MOST_RESTARTS) {
            tr {
                td { (badge(verdict_class(verdict), verdict)) }
                th scope="row" { (code(&format!("{namespace}/{who}"))) }
                td { (code(container)) }
                td { @match &members[..] { [one] => (code(&one.host)), many => (counted(many.len() as u64, "container", "containers")) } }
                td.text { bdi { (shown(reason)) } }
            }
        }
    };
    let more = groups.len().saturating_sub(MOST_RESTARTS);
    html! {
        p.quiet {
            "Containers of one controller with the same verdict are one row. Containers that go on running are only counted."
            @if more > 0 { " " (count(more as u64)) " more rows are only in the JSON form." }
        }
        (table("Containers that restart", groups.len() > 12, &headings(&["Verdict", "Pod or controller", "Container", "Host", "Reason"]), &rows))
    }
}

fn verdict_class(verdict: &str) -> &'static str {
    match verdict {
        "recreate" | "refuse" => "bad",
        "restart" | "change" | "restart-only" => "warn",
        _ => "info",
    }
}
