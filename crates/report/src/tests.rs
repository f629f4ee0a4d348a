//! Pages of hostile and of large reports, and the published schemas.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use crate::model::cluster::{
    Backup, ClusterHost, ClusterIdentity, ClusterNode, ClusterReport, Drift, EndedUpgrade,
    HostCertificate, InstalledImage, RecordedRun, RegistryImage,
};
use crate::model::comparison::{
    Amount, Change, ChartChange, Comparison, FileChange, FileChanges, ImageChange, ImageVersion,
    LayerChange, NamedChange, ObjectChange, Transfer,
};
use crate::model::files::FilesReport;
use crate::model::image::{
    Attachment, Detail, EmbeddedImage, FileTree, Identity, ImageReport, Layer, Package, Packages,
    Setting, Totals,
};
use crate::model::plan::{
    PlanIdentity, PlanReport, PlannedHost, PlannedLane, PlannedPhase, PlannedRestart, PlannedStep,
    RestartCounts,
};
use crate::model::recorded::{ControllerReport, RecordedReport};
use crate::model::run::{
    Attempt, HostRestarts, HostRun, Link, Log, RestartResult, RunIdentity, RunReport, RunSession,
    StepRun,
};
use crate::model::store::StoreReport;
use crate::model::{About, Finding, Kind, Severity};
use crate::{Loaded, Report};

/// Text that must not be taken for anything else. `tests/runner/report` opens the same in a browser.
pub(crate) fn hostile() -> Vec<String> {
    let corpus = include_str!("../hostile.json");
    let mut texts: Vec<String> = serde_json::from_str(corpus).unwrap();
    texts.push("x".repeat(64 << 10));
    texts.push("\u{1f9e8}".repeat(16 << 10));
    texts
}

fn about(kind: Kind) -> About {
    About::new(kind, "imgctl test", Some("2026-01-02T03:04:05Z".to_owned()))
}

/// An image in which every text is `text`.
fn image(text: &str) -> ImageReport {
    let some = || Some(text.to_owned());
    let all = || text.to_owned();
    ImageReport {
        about: about(Kind::Image),
        image: Identity {
            name: some(),
            digest: all(),
            platform: all(),
            created: some(),
            image_type: some(),
            base: some(),
            entrypoint: vec![all()],
            command: vec![all()],
            labels: [(all(), all())].into(),
        },
        settings: vec![Setting {
            name: all(),
            kind: all(),
            description: all(),
            default: some(),
            required: true,
            secret: true,
        }],
        totals: Totals {
            compressed: 10,
            content: 20,
            files: 1,
            directories: 1,
            other: 0,
            hidden: 1,
        },
        layers: vec![Layer {
            digest: all(),
            diff_id: all(),
            kind: some(),
            compression: all(),
            size: 10,
            content: 20,
            files: 1,
            hidden: 1,
            instruction: all(),
            shared_with: vec![all(), all()],
        }],
        files: FileTree {
            names: vec![String::new(), all(), all()],
            parents: vec![0, 0, 1],
            sizes: vec![0, 0, 20],
            layers: vec![-1, 0, 0],
            types: "ddf".to_owned(),
            omitted: 1,
        },
        embedded: vec![EmbeddedImage {
            name: all(),
            digest: all(),
            platforms: vec![all()],
            size: 5,
            own_size: 5,
        }],
        packages: Packages {
            distribution: some(),
            list: vec![Package { kind: all(), name: all(), version: all(), architecture: all() }],
        },
        attachments: vec![Attachment {
            kind: all(),
            artifact_type: all(),
            digest: all(),
            subject: all(),
            size: 1,
            details: vec![Detail { name: all(), value: all() }],
        }],
        findings: vec![finding(text)],
        comparison: Some(Comparison {
            name: some(),
            digest: all(),
            compressed: 5,
            forward: Transfer { layers: 1, whole: 10, missing: 3 },
            back: Transfer::default(),
            layers_kept: 0,
            layers: vec![LayerChange {
                change: Change::Added,
                digest: all(),
                kind: some(),
                size: 10,
                missing: 3,
                instruction: all(),
            }],
            files: FileChanges {
                added: Amount { count: 1, bytes: 20 },
                list: vec![FileChange { change: Change::Added, path: all(), before: 0, after: 20 }],
                ..FileChanges::default()
            },
            configuration: vec![named(text)],
            embedded: vec![ImageChange {
                change: Change::Changed,
                repository: all(),
                before: Some(ImageVersion { tag: some(), digest: all() }),
                after: None,
                packages: vec![named(text)],
                unread: None,
            }],
            charts: vec![ChartChange {
                change: Change::Changed,
                name: all(),
                path: all(),
                before: some(),
                after: some(),
                values: vec![named(text)],
            }],
            objects: vec![ObjectChange {
                change: Change::Changed,
                kind: all(),
                api_version: all(),
                namespace: some(),
                name: all(),
                file: all(),
                members: vec![all()],
            }],
            packages: vec![named(text)],
        }),
    }
}

fn named(text: &str) -> NamedChange {
    let some = || Some(text.to_owned());
    NamedChange { change: Change::Changed, name: text.to_owned(), before: some(), after: some() }
}

fn finding(text: &str) -> Finding {
    Finding {
        severity: Severity::Warning,
        rule: text.to_owned(),
        message: text.to_owned(),
        place: Some(text.to_owned()),
        hint: Some(text.to_owned()),
    }
}

/// A plan in which every text is `text`.
fn plan(text: &str) -> PlanReport {
    let some = || Some(text.to_owned());
    let all = || text.to_owned();
    PlanReport {
        about: about(Kind::Plan),
        plan: PlanIdentity {
            verb: all(),
            cluster: all(),
            runtime: some(),
            id: some(),
            digest: some(),
            from: some(),
            to: some(),
            hops: vec![all()],
        },
        hosts: vec![
            PlannedHost {
                host: all(),
                node: some(),
                roles: vec![all()],
                architecture: some(),
                version: some(),
                group: some(),
                skipped: None,
                restarts: Some(RestartCounts { keep: 3, restart: 1, ..RestartCounts::default() }),
            },
            PlannedHost { host: all(), skipped: some(), ..PlannedHost::default() },
        ],
        phases: vec![PlannedPhase {
            name: all(),
            order: all(),
            lanes: vec![PlannedLane {
                host: all(),
                steps: vec![PlannedStep {
                    name: all(),
                    says: vec![all()],
                    once: true,
                    bytes: Some(7),
                    done_before: false,
                }],
            }],
        }],
        restarts: vec![PlannedRestart {
            host: all(),
            namespace: all(),
            pod: all(),
            container: all(),
            owner: some(),
            verdict: all(),
            reason: all(),
        }],
        findings: vec![finding(text)],
        irreversible: vec![all()],
        notes: vec![all()],
    }
}

/// A run in which every text is `text`.
pub(crate) fn run(text: &str) -> RunReport {
    let some = || Some(text.to_owned());
    let all = || text.to_owned();
    let restart = || RestartResult {
        namespace: all(),
        pod: all(),
        container: all(),
        predicted: all(),
        reason: all(),
        actual: all(),
        restarts: Some(u64::MAX),
        why: some(),
    };
    RunReport {
        about: about(Kind::Run),
        run: RunIdentity {
            id: all(),
            verb: all(),
            cluster: all(),
            state: all(),
            arguments: vec![all()],
            started: some(),
            last: some(),
        },
        sessions: vec![RunSession {
            started: all(),
            last: all(),
            outcome: some(),
            message: some(),
            controller: all(),
            version: all(),
        }],
        hosts: vec![HostRun {
            host: all(),
            steps: vec![StepRun {
                phase: all(),
                name: all(),
                attempts: vec![Attempt {
                    number: 1,
                    began: some(),
                    ended: some(),
                    duration_ms: Some(u64::MAX),
                    outcome: Some("failed".to_owned()),
                    message: some(),
                }],
                log: Some(Log { path: all(), text: all(), omitted: 3 }),
            }],
        }],
        links: vec![Link { from: all(), to: all(), bytes: u64::MAX }],
        restarts: vec![HostRestarts {
            host: all(),
            as_predicted: 1,
            agreed: vec![restart()],
            others: vec![restart()],
            problems: vec![all()],
        }],
        problems: vec![all()],
    }
}

/// A cluster in which every text is `text`.
fn cluster(text: &str) -> ClusterReport {
    let some = || Some(text.to_owned());
    let all = || text.to_owned();
    ClusterReport {
        about: about(Kind::Cluster),
        cluster: ClusterIdentity { name: all(), runtime: all(), phase: some(), healthy: false },
        hosts: vec![ClusterHost {
            host: all(),
            roles: vec![all()],
            reachable: true,
            healthy: false,
            hostname: some(),
            architecture: some(),
            system: some(),
            free_bytes: Some(7),
            tree: some(),
            registry: Some(true),
            problems: vec![all()],
            warnings: vec![all()],
        }],
        nodes: vec![ClusterNode {
            name: all(),
            ready: false,
            version: all(),
            container_runtime: all(),
            host: some(),
            reason: some(),
        }],
        certificates: vec![HostCertificate {
            host: all(),
            file: all(),
            subject: all(),
            issuer: all(),
            authority: true,
            not_after: all(),
            days_left: -3,
        }],
        images: vec![InstalledImage {
            name: all(),
            digest: all(),
            kind: all(),
            embedded: vec![RegistryImage { name: all(), digest: all() }],
        }],
        drift: Some(vec![Drift {
            workload: all(),
            container: all(),
            template: all(),
            pods: vec![all()],
        }]),
        backup: Some(Backup {
            created: all(),
            place: all(),
            digest: all(),
            bytes: 7,
            encrypted: false,
        }),
        runs: vec![RecordedRun {
            id: all(),
            verb: all(),
            started: some(),
            last: some(),
            state: all(),
            steps: 3,
            controller: all(),
        }],
        upgrades: vec![EndedUpgrade {
            id: all(),
            verb: all(),
            from: all(),
            to: all(),
            end: all(),
            time: all(),
            hosts: 1,
        }],
        problems: vec![all()],
    }
}

/// Elements that a page has whatever its text is. A count that depends on the text is an injection.
pub(crate) fn elements(html: &str) -> Vec<usize> {
    let names =
        ["<script", "</script", "<style", "<img", "<iframe", "<svg", "<a ", "<details", "<!--"];
    names.iter().map(|name| html.matches(name).count()).collect()
}

#[test]
fn hostile_text_stays_text() {
    let plain = (image("x"), plan("x"), run("x"), cluster("x"));
    for text in hostile() {
        let reports = (image(&text), plan(&text), run(&text), cluster(&text));
        for (hostile, plain) in [
            (Report::Image(&reports.0), Report::Image(&plain.0)),
            (Report::Plan(&reports.1), Report::Plan(&plain.1)),
            (Report::Run(&reports.2), Report::Run(&plain.2)),
            (Report::Cluster(&reports.3), Report::Cluster(&plain.3)),
        ] {
            let html = hostile.to_html();
            let start: String = text.chars().take(60).collect();
            assert_eq!(elements(&html), elements(&plain.to_html()), "{start:?}");
            let is_unsafe = |c: char| {
                (c.is_control() && !matches!(c, '\n' | '\t'))
                    || ('\u{202a}'..='\u{202e}').contains(&c)
            };
            // Data for the script are JSON; their text is made visible when it is shown.
            let (shown, data) = html.split_once("id=\"data\">").unwrap();
            assert!(!shown.contains(is_unsafe), "{start:?}");
            assert!(!data.contains(['\0', '\u{2028}']), "{start:?}");
            assert!(html.len() < 6 << 20, "{start:?}: {} bytes", html.len());
        }
    }
}

#[test]
fn a_page_is_a_function_of_its_json() {
    for text in hostile().iter().take(3) {
        let (image, plan, run, cluster) = (image(text), plan(text), run(text), cluster(text));
        let html = [
            Report::Image(&image),
            Report::Plan(&plan),
            Report::Run(&run),
            Report::Cluster(&cluster),
        ]
        .map(Report::to_html);
        let json = [
            serde_json::to_vec(&image).unwrap(),
            serde_json::to_vec(&plan).unwrap(),
            serde_json::to_vec(&run).unwrap(),
            serde_json::to_vec(&cluster).unwrap(),
        ];
        for (html, json) in html.iter().zip(&json) {
            assert_eq!(Loaded::parse(json).unwrap().report().to_html(), *html);
        }
    }
    assert!(Loaded::parse(b"{}").is_err());
    let mut newer = image("x");
    newer.about.schema_version = 99;
    let error = Loaded::parse(&serde_json::to_vec(&newer).unwrap()).unwrap_err();
    assert!(error.to_string().contains("version 99"), "{error}");
}

#[test]
fn files_that_do_not_fit_together_are_left_out() {
    let mut report = image("x");
    report.files.parents[1] = 7;
    assert!(Report::Image(&report).to_html().contains("No files are listed"));
    report.files.parents.clear();
    report.files.layers = vec![99; 3];
    assert!(Report::Image(&report).to_html().contains("No files are listed"));
}

#[test]
fn a_plan_of_500_hosts_is_below_a_megabyte() {
    let mut report = plan("x");
    let host = |number: usize| format!("10.0.{}.{}:22", number / 250, number % 250 + 1);
    report.hosts = (0..500)
        .map(|number| PlannedHost {
            host: host(number),
            node: Some(format!("worker-{number}")),
            group: Some(format!("batch {}", number / 50 + 1)),
            version: Some("v1.33.5".to_owned()),
            architecture: Some("amd64".to_owned()),
            restarts: Some(RestartCounts {
                keep: 20,
                restart: 3,
                moved: 8,
                ..RestartCounts::default()
            }),
            ..PlannedHost::default()
        })
        .collect();
    let phase = |number: usize| PlannedPhase {
        name: format!("phase-{number}"),
        order: "parallel".to_owned(),
        lanes: (0..500)
            .map(|number| PlannedLane {
                host: host(number),
                steps: (0..5)
                    .map(|step| PlannedStep {
                        name: format!("step-{step}"),
                        says: vec![
                            format!("run a command of some length on {} now", host(number));
                            3
                        ],
                        once: false,
                        bytes: Some(1 << 20),
                        done_before: false,
                    })
                    .collect(),
            })
            .collect(),
    };
    report.phases = (0..20).map(phase).collect();
    report.restarts = (0..500)
        .flat_map(|number| {
            (0..3).map(move |container| PlannedRestart {
                host: host(number),
                namespace: "kube-system".to_owned(),
                pod: format!("kube-proxy-{number}"),
                container: format!("container-{container}"),
                owner: Some("DaemonSet/kube-proxy".to_owned()),
                verdict: "restart".to_owned(),
                reason: "the formula of the hash changes".to_owned(),
            })
        })
        .collect();
    let html = Report::Plan(&report).to_html();
    assert!(html.len() < 1_000_000, "{} bytes", html.len());
    assert!(html.contains("500\u{a0}containers") || html.contains("500 containers"));
}

#[test]
fn a_page_of_100_000_files_takes_little_time() {
    let mut report = image("x");
    let tree = &mut report.files;
    for file in 3..100_000_u32 {
        tree.names.push(format!("file-{file}"));
        tree.parents.push(if file % 100 == 0 { 0 } else { file / 100 * 100 }.min(file - 1));
        tree.sizes.push(u64::from(file));
        tree.layers.push(0);
        tree.types.push(if file % 100 == 0 { 'd' } else { 'f' });
    }
    assert!(report.files.is_sound());
    let begun = std::time::Instant::now();
    let html = Report::Image(&report).to_html();
    assert!(html.len() < 8 << 20, "{} bytes", html.len());
    // A quadratic step would take minutes. docs/performance.md has figures.
    assert!(begun.elapsed().as_secs() < 30);
}

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas")
}

/// Compares a published schema with the types; if they differ, writes the new one beside it.
fn published<T: schemars::JsonSchema>(name: &str) {
    let mut text = serde_json::to_string_pretty(&schemars::schema_for!(T)).unwrap();
    text.push('\n');
    let path = schemas().join(format!("{name}.schema.json"));
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    if found != text {
        let new = path.with_extension("json.new");
        std::fs::write(&new, &text).unwrap();
        panic!("{} is out of date: move {} there", path.display(), new.display());
    }
}

#[test]
fn the_published_schemas_are_those_of_the_types() {
    published::<ImageReport>("report-image-v1");
    published::<PlanReport>("report-plan-v1");
    published::<RunReport>("report-run-v1");
    published::<ClusterReport>("report-cluster-v1");
    published::<StoreReport>("console-store-v1");
    published::<FilesReport>("console-files-v1");
    published::<ControllerReport>("console-controller-v1");
    published::<RecordedReport>("console-recorded-v1");
}

/// Reports are read from files, of which pages are made.
#[test]
fn any_file_is_a_report_or_refused() {
    let valid = [
        serde_json::to_vec(&image("<x>")).unwrap(),
        serde_json::to_vec(&plan("<x>")).unwrap(),
        serde_json::to_vec(&run("<x>")).unwrap(),
        serde_json::to_vec(&cluster("<x>")).unwrap(),
    ];
    bolero::check!().for_each(|input: &[u8]| {
        let Some((which, input)) = input.split_first() else { return };
        let changed =
            imgctl_base::testing::damaged(&valid[usize::from(*which) % valid.len()], input);
        for bytes in [input, &changed] {
            if let Ok(report) = Loaded::parse(bytes) {
                let page = report.report().to_html();
                assert!(!page.contains("<x>"));
            }
        }
    });
}
