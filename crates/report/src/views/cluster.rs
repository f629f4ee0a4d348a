//! The page of a cluster's report.

use maud::{Markup, html};

use crate::model::cluster::{
    Backup, ClusterHost, ClusterReport, EndedUpgrade, HostCertificate, InstalledImage,
};
use crate::page::{Page, Section};
use crate::text::{LONGEST, count, counted, lines, shown, time};
use crate::views::parts::{Tile, badge, code, digest, headings, incomplete, nothing, table, tiles};
use imgctl_base::size::human;

/// Days before its end from which a certificate needs attention.
const SOON: i64 = 30;

/// Makes the page.
pub(crate) fn page(report: &ClusterReport) -> Page<'_> {
    let cluster = &report.cluster;
    let mut facts = vec![("Runtime", cluster.runtime.clone())];
    if let Some(phase) = &cluster.phase {
        facts.push(("Phase", phase.clone()));
    }
    if let Some(created) = &report.about.created {
        facts.push(("Asked", time(created)));
    }
    let embedded: usize = report.images.iter().map(|image| image.embedded.len()).sum();
    let section = Section::new;
    let sections = vec![
        section("overview", "Overview", None, overview(report)),
        section("hosts", "Hosts", Some(report.hosts.len()), hosts(report)),
        section("nodes", "Nodes", Some(report.nodes.len()), nodes(report)),
        section(
            "certificates",
            "Certificates",
            Some(report.certificates.len()),
            certificate_table(&report.certificates),
        ),
        section("registry", "Images and registry", Some(embedded), registry(report)),
        section("drift", "Drift", report.drift.as_ref().map(Vec::len), drift(report)),
        section("backups", "Backups", None, backup_details(report.backup.as_ref())),
        section("history", "History", Some(report.runs.len()), history(report)),
    ];
    Page {
        about: &report.about,
        kind: "Cluster",
        subject: cluster.name.clone(),
        facts,
        sections,
        script: "",
        data: "null".to_owned(),
    }
}

fn overview(report: &ClusterReport) -> Markup {
    let ill = report.hosts.iter().filter(|host| !host.healthy).count() as u64;
    let unready = report.nodes.iter().filter(|node| !node.ready).count() as u64;
    let soonest = report.certificates.iter().map(|one| one.days_left).min();
    let versions: std::collections::BTreeSet<&str> =
        report.nodes.iter().map(|node| node.version.as_str()).collect();
    let drifts = report.drift.as_ref().map(|drift| drift.len() as u64);
    let figures = [
        Tile::new("State", if report.cluster.healthy { "healthy" } else { "needs attention" })
            .tone(if report.cluster.healthy { "good" } else { "bad" }),
        Tile::new("Hosts", count(report.hosts.len() as u64))
            .tone(if ill > 0 { "bad" } else { "" })
            .note(if ill > 0 { format!("{ill} need attention") } else { String::new() }),
        Tile::new("Nodes", count(report.nodes.len() as u64))
            .tone(if unready > 0 { "bad" } else { "" })
            .note(if unready > 0 { format!("{unready} not ready") } else { String::new() }),
        Tile::new("Versions", versions.iter().copied().collect::<Vec<_>>().join(", "))
            .tone(if versions.len() > 1 { "warn" } else { "" }),
        Tile::new(
            "Certificates",
            soonest.map_or_else(|| "-".to_owned(), |days| format!("{days} d")),
        )
        .tone(soonest.map_or("", days_class))
        .note("until the first one expires"),
        Tile::new("Drift", drifts.map_or_else(|| "-".to_owned(), count)).tone(match drifts {
            Some(1..) => "warn",
            _ => "",
        }),
        Tile::new(
            "Last backup",
            report.backup.as_ref().map_or_else(|| "none".to_owned(), |last| human(last.bytes)),
        )
        .tone(if report.backup.is_none() { "warn" } else { "" })
        .note(report.backup.as_ref().map(|last| time(&last.created)).unwrap_or_default()),
    ];
    html! {
        (incomplete(&report.problems))
        (tiles(&figures))
    }
}

fn days_class(days: i64) -> &'static str {
    match days {
        ..=0 => "bad",
        1..=SOON => "warn",
        _ => "good",
    }
}

fn host_state(host: &ClusterHost) -> Markup {
    match (host.reachable, host.healthy) {
        (false, _) => badge("bad", "unreachable"),
        (true, false) => badge("bad", "not healthy"),
        (true, true) if !host.warnings.is_empty() => badge("warn", "warning"),
        (true, true) => badge("good", "well"),
    }
}

fn hosts(report: &ClusterReport) -> Markup {
    // Those that need attention first.
    let mut sorted: Vec<&ClusterHost> = report.hosts.iter().collect();
    sorted.sort_by_key(|host| (host.healthy, host.warnings.is_empty()));
    let rows = html! {
        @for host in sorted {
            tr {
                th scope="row" { (code(&host.host)) @if let Some(name) = &host.hostname { " " span.quiet { bdi { (shown(name)) } } } }
                td { (host_state(host)) }
                td { (shown(&host.roles.join(", "))) }
                td { (shown(host.system.as_deref().unwrap_or_default())) " " span.quiet { (shown(host.architecture.as_deref().unwrap_or_default())) } }
                td.number { @if let Some(free) = host.free_bytes { (human(free)) } }
                td { @if let Some(tree) = &host.tree { (digest(tree)) } }
                td.text {
                    @for problem in &host.problems { p.message { bdi { (lines(problem, LONGEST)) } } }
                    @for warning in &host.warnings { p.message.quiet { bdi { (lines(warning, LONGEST)) } } }
                }
            }
        }
    };
    table(
        "Hosts",
        report.hosts.len() > 12,
        &headings(&["Host", "State", "Roles", "System", "Free#", "Files", "Attention"]),
        &rows,
    )
}

fn nodes(report: &ClusterReport) -> Markup {
    if report.nodes.is_empty() {
        return nothing("The cluster has no API server, or it could not be asked.");
    }
    let rows = html! {
        @for node in &report.nodes {
            tr {
                th scope="row" { (code(&node.name)) }
                td { (if node.ready { badge("good", "ready") } else { badge("bad", "not ready") }) }
                td { (code(&node.version)) }
                td { (shown(&node.container_runtime)) }
                td { @if let Some(host) = &node.host { (code(host)) } }
                td.text { bdi { (shown(node.reason.as_deref().unwrap_or_default())) } }
            }
        }
    };
    table(
        "Nodes",
        report.nodes.len() > 12,
        &headings(&["Node", "State", "Version", "Container runtime", "Host", "Reason"]),
        &rows,
    )
}

/// Certificates, the first to expire first.
pub(crate) fn certificate_table(certificates: &[HostCertificate]) -> Markup {
    if certificates.is_empty() {
        return nothing("No certificates could be read.");
    }
    let mut sorted: Vec<&HostCertificate> = certificates.iter().collect();
    sorted.sort_by_key(|one| one.days_left);
    let rows = html! {
        @for one in sorted {
            tr {
                td.number { (badge(days_class(one.days_left), &format!("{} d", one.days_left))) }
                td { (time(&one.not_after)) }
                td { (code(&one.host)) }
                th scope="row" { (code(&one.file)) }
                td { bdi { (shown(&one.subject)) } @if one.authority { " " (badge("info", "authority")) } }
                td { bdi { (shown(&one.issuer)) } }
            }
        }
    };
    html! {
        p.quiet { "The first to expire first." }
        (table("Certificates", certificates.len() > 12, &headings(&["Left#", "Expires", "Host", "File", "Subject", "Issuer"]), &rows))
    }
}

fn registry(report: &ClusterReport) -> Markup {
    let holders: Vec<&ClusterHost> =
        report.hosts.iter().filter(|host| host.registry.is_some()).collect();
    html! {
        (installed_images(&report.images))
        h3 { "Hosts that serve the registry" }
        @if holders.is_empty() { (nothing("No host serves a registry of this cluster.")) }
        ul.plain {
            @for host in holders {
                li { (code(&host.host)) " " (if host.registry == Some(true) { badge("good", "answers") } else { badge("bad", "does not answer") }) }
            }
        }
    }
}

/// Installed images, and what they bring to the cluster's registry.
pub(crate) fn installed_images(installed: &[InstalledImage]) -> Markup {
    let images = html! {
        @for image in installed {
            tr {
                th scope="row" { (code(&image.name)) }
                td { (shown(&image.kind)) }
                td { (digest(&image.digest)) }
                td.number { (image.embedded.len()) }
            }
        }
    };
    let content = html! {
        @for image in installed {
            @for one in &image.embedded {
                tr {
                    th scope="row" { (code(&one.name)) }
                    td { (digest(&one.digest)) }
                    td { (code(&image.name)) }
                }
            }
        }
    };
    let number: usize = installed.iter().map(|image| image.embedded.len()).sum();
    html! {
        h3 { "Installed images" }
        (table("Installed images", false, &headings(&["Image", "Type", "Digest", "Brings#"]), &images))
        h3 { "Content of the registry" }
        @if number == 0 { (nothing("The installed images record no embedded images.")) } @else {
            p.quiet { "What the installed images bring. Images that were pushed to the registry otherwise are not listed." }
            (table("Content of the registry", number > 12, &headings(&["Container image", "Digest", "Brought by"]), &content))
        }
    }
}

fn drift(report: &ClusterReport) -> Markup {
    let Some(drift) = &report.drift else {
        return nothing("The API could not be asked.");
    };
    if drift.is_empty() {
        return nothing("All Pods run the images of their templates.");
    }
    let rows = html! {
        @for one in drift {
            tr {
                th scope="row" { (code(&one.workload)) }
                td { (code(&one.container)) }
                td { (code(&one.template)) }
                td.text { (shown(&one.pods.join(", "))) }
            }
        }
    };
    table(
        "Workloads that drift",
        drift.len() > 12,
        &headings(&["Workload", "Container", "Template", "Pods run"]),
        &rows,
    )
}

/// The last backup.
pub(crate) fn backup_details(last: Option<&Backup>) -> Markup {
    let Some(last) = last else {
        return nothing("No backup is recorded. Run imgctl backup.");
    };
    html! {
        dl.details {
            div { dt { "Made" } dd { (time(&last.created)) } }
            div { dt { "Place" } dd { (code(&last.place)) } }
            div { dt { "Digest" } dd { (code(&last.digest)) } }
            div { dt { "Size" } dd { (human(last.bytes)) } }
            div { dt { "Encrypted" } dd { (if last.encrypted { "yes" } else { "no" }) } }
        }
    }
}

fn history(report: &ClusterReport) -> Markup {
    let runs = html! {
        @for run in &report.runs {
            tr {
                td { (run.started.as_deref().map(time).unwrap_or_default()) }
                td { (shown(&run.verb)) }
                td { (badge(super::run::class_of(Some(&run.state)), &run.state)) }
                td.number { (count(run.steps)) }
                td { bdi { (shown(&run.controller)) } }
                th scope="row" { (code(&run.id)) }
            }
        }
    };
    html! {
        @if report.runs.is_empty() { (nothing("No run is recorded on this machine.")) } @else {
            (table("Runs", report.runs.len() > 12, &headings(&["Started", "Verb", "Result", "Steps#", "Controller", "Run"]), &runs))
        }
        @if !report.upgrades.is_empty() {
            h3 { "Upgrades and rollbacks" }
            (ended_upgrades(&report.upgrades))
        }
    }
}

/// Upgrades and rollbacks that ended.
pub(crate) fn ended_upgrades(upgrades: &[EndedUpgrade]) -> Markup {
    if upgrades.is_empty() {
        return nothing("No upgrade has ended.");
    }
    let rows = html! {
        @for one in upgrades {
            tr {
                td { (time(&one.time)) }
                td { (shown(&one.verb)) }
                td { (code(&one.from)) }
                td { (code(&one.to)) }
                td { (badge(if one.end == "committed" { "good" } else { "warn" }, &one.end)) }
                td { (counted(one.hosts, "host", "hosts")) }
                th scope="row" { (code(&one.id)) }
            }
        }
    };
    table(
        "Upgrades and rollbacks",
        upgrades.len() > 12,
        &headings(&["Ended", "Verb", "From", "To", "Result", "Hosts", "Name"]),
        &rows,
    )
}
