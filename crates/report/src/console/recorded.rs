//! Lists of clusters, runs and plans, and one cluster, as the controller has recorded them.

use maud::{Markup, html};

use crate::console::{Links, link, plain};
use crate::model::recorded::{
    ClusterSummary, ControllerReport, PlanSummary, RecordedReport, RunSummary,
};
use crate::page::{Page, Section};
use crate::text::{shown, time};
use crate::views::cluster::{backup_details, certificate_table, ended_upgrades, installed_images};
use crate::views::parts::{badge, code, headings, incomplete, nothing, table};
use crate::views::run::class_of;

pub(super) fn clusters<'a>(report: &'a ControllerReport, links: Links<'_>) -> Page<'a> {
    let rows = html! {
        @for cluster in &report.clusters {
            tr {
                th scope="row" { (link(&links.cluster(&cluster.name), &cluster.name)) }
                td { (shown(cluster.version.as_deref().unwrap_or_default())) }
                td { (shown(phase(cluster))) }
                td.number { @if cluster.problem.is_none() { (cluster.hosts) } }
                td.number { (cluster.runs) }
                td.text { @if let Some(problem) = &cluster.problem { (badge("warn", "unreadable")) " " bdi { (shown(problem)) } } }
            }
        }
    };
    let body = html! {
        (incomplete(&report.problems))
        @if report.clusters.is_empty() { (nothing("No cluster is recorded on this machine.")) } @else {
            (table("Clusters", report.clusters.len() > 12, &headings(&["Cluster", "Version", "Phase", "Hosts#", "Runs#", "Attention"]), &rows))
        }
    };
    let sections = vec![Section::new("clusters", "Clusters", Some(report.clusters.len()), body)];
    plain(&report.about, "Console", "Clusters", Vec::new(), sections)
}

/// Word for a cluster that a reset has left the records of.
fn phase(cluster: &ClusterSummary) -> &str {
    match (&cluster.phase, &cluster.problem, cluster.hosts) {
        (Some(phase), ..) => phase,
        (None, None, 0) => "removed",
        _ => "",
    }
}

pub(super) fn cluster<'a>(report: &'a RecordedReport, links: Links<'_>) -> Page<'a> {
    let cluster = &report.cluster;
    let mut facts = vec![("Phase", phase(cluster).to_owned())];
    if let Some(version) = &cluster.version {
        facts.push(("Version", version.clone()));
    }
    let hosts = html! {
        @for host in &report.hosts {
            tr {
                th scope="row" { (code(&host.host)) }
                td { (shown(&host.roles.join(", "))) }
            }
        }
    };
    let overview = html! {
        (incomplete(&report.problems))
        p.quiet { "This is what this machine has recorded. No host was asked: " (code("imgctl status")) " and " (code("imgctl report cluster")) " do." }
        @if report.hosts.is_empty() { (nothing("The Clusterfile lists no hosts, or cannot be read.")) } @else {
            (table("Hosts", report.hosts.len() > 12, &headings(&["Host", "Roles"]), &hosts))
        }
    };
    let embedded: usize = report.images.iter().map(|image| image.embedded.len()).sum();
    let section = Section::new;
    let sections = vec![
        section("hosts", "Hosts", Some(report.hosts.len()), overview),
        section("runs", "Runs", Some(report.runs.len()), run_table("Runs", &report.runs, links)),
        section("plans", "Plans", Some(report.plans.len()), plan_table(&report.plans, links)),
        section(
            "upgrades",
            "Upgrades and rollbacks",
            Some(report.upgrades.len()),
            ended_upgrades(&report.upgrades),
        ),
        section("images", "Images and registry", Some(embedded), installed_images(&report.images)),
        section(
            "certificates",
            "Certificates on this machine",
            Some(report.certificates.len()),
            certificate_table(&report.certificates),
        ),
        section("backups", "Backups", None, backup_details(report.backup.as_ref())),
    ];
    plain(&report.about, "Cluster", &cluster.name, facts, sections)
}

pub(super) fn runs<'a>(report: &'a ControllerReport, links: Links<'_>) -> Page<'a> {
    let (going, ended): (Vec<RunSummary>, Vec<RunSummary>) =
        report.runs.iter().cloned().partition(|run| run.state == "running");
    let past = html! { (incomplete(&report.problems)) (run_table("Past runs", &ended, links)) };
    let running = if going.is_empty() {
        nothing("No run is in progress.")
    } else {
        run_table("Runs in progress", &going, links)
    };
    let sections = vec![
        Section::new("running", "Running", Some(going.len()), running),
        Section::new("past", "Past", Some(ended.len()), past),
    ];
    plain(&report.about, "Console", "Runs", Vec::new(), sections)
}

fn run_table(caption: &str, runs: &[RunSummary], links: Links<'_>) -> Markup {
    if runs.is_empty() {
        return nothing("No run is recorded.");
    }
    let rows = html! {
        @for run in runs {
            tr {
                th scope="row" { (link(&links.run(&run.cluster, &run.id), &run.id)) }
                td { (badge(if run.state == "unfinished" { "warn" } else { class_of(Some(&run.state)) }, &run.state)) }
                td { (shown(&run.verb)) }
                td { (code(run.server.as_deref().unwrap_or(&run.cluster))) }
                td.digest { (run.started.as_deref().map(time).unwrap_or_default()) }
                td.digest { (run.last.as_deref().map(time).unwrap_or_default()) }
                td.text { @if let Some(problem) = &run.problem { bdi { (shown(problem)) } } }
            }
        }
    };
    table(
        caption,
        runs.len() > 12,
        &headings(&["Run", "Result", "Verb", "Cluster", "Started", "Last record", "Attention"]),
        &rows,
    )
}

pub(super) fn plans<'a>(report: &'a ControllerReport, links: Links<'_>) -> Page<'a> {
    let body = html! { (incomplete(&report.problems)) (plan_table(&report.plans, links)) };
    let sections = vec![Section::new("plans", "Plans", Some(report.plans.len()), body)];
    plain(&report.about, "Console", "Plans", Vec::new(), sections)
}

fn plan_table(plans: &[PlanSummary], links: Links<'_>) -> Markup {
    if plans.is_empty() {
        return nothing("No plan of an upgrade is kept, and no file with a plan was named.");
    }
    let rows = html! {
        @for plan in plans {
            tr {
                th scope="row" {
                    @match &plan.cluster {
                        Some(cluster) => (link(&links.plan(cluster, &plan.id), &plan.title)),
                        None => (link(&links.plan_file(&plan.id), &plan.title)),
                    }
                }
                td { (code(plan.cluster.as_deref().unwrap_or("(file)"))) }
                td {
                    @if let Some(state) = &plan.state {
                        (badge(match state.as_str() { "committed" => "good", "open" => "info", _ => "warn" }, state))
                    }
                }
                td { @if plan.cluster.is_some() { (code(&plan.id)) } }
            }
        }
    };
    table("Plans", plans.len() > 12, &headings(&["Plan", "Cluster", "Result", "Name"]), &rows)
}
