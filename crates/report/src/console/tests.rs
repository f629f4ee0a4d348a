//! Pages of the console with hostile text, and their policies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use crate::console;
use crate::model::files::{Content, FileEntry, FilesReport, PathPart};
use crate::model::recorded::{
    ClusterSummary, ControllerReport, PlanSummary, RecordedHost, RecordedReport, RunSummary,
};
use crate::model::store::{StoreReport, StoredImage};
use crate::model::{About, Kind};
use crate::page::Rendered;
use crate::tests::{elements, hostile, run};

/// Every page with every text `text`.
fn pages(text: &str) -> Vec<Rendered> {
    let (all, some) = (|| text.to_owned(), || Some(text.to_owned()));
    let about = |kind| About::new(kind, text, some());
    let image = StoredImage {
        name: some(),
        digest: all(),
        image_type: some(),
        created: some(),
        platforms: vec![all()],
        problem: some(),
        ..StoredImage::default()
    };
    let usable = StoredImage { problem: None, ..image.clone() };
    let store = StoreReport { about: about(Kind::Store), images: vec![image, usable] };
    let part = || PathPart { name: all(), encoded: console::encode(text.as_bytes()) };
    let entry = |kind: &str| FileEntry {
        name: part(),
        kind: kind.to_owned(),
        mode: all(),
        modified: all(),
        target: some(),
        layer: Some(1),
        ..FileEntry::default()
    };
    let files = |kind: &str| FilesReport {
        about: about(Kind::Files),
        image: all(),
        digest: all(),
        platform: all(),
        path: vec![part(), part()],
        this: entry(kind),
        entries: vec![entry("directory"), entry("symlink"), entry(text)],
        omitted: 1,
        content: Some(Content { text: some(), omitted: 1 }),
    };
    let cluster = ClusterSummary {
        name: all(),
        phase: some(),
        version: some(),
        problem: some(),
        ..ClusterSummary::default()
    };
    let run_of = |state: &str| RunSummary {
        cluster: all(),
        server: some(),
        id: all(),
        verb: all(),
        state: state.to_owned(),
        started: some(),
        last: some(),
        controller: some(),
        problem: some(),
    };
    let plan = |cluster| PlanSummary { cluster, id: all(), title: all(), state: some() };
    let controller = ControllerReport {
        about: about(Kind::Controller),
        clusters: vec![cluster.clone()],
        runs: vec![run_of("running"), run_of(text)],
        plans: vec![plan(some()), plan(None)],
        problems: vec![all()],
    };
    let recorded = RecordedReport {
        about: about(Kind::Recorded),
        cluster,
        hosts: vec![RecordedHost { host: all(), roles: vec![all()] }],
        images: Vec::new(),
        certificates: Vec::new(),
        backup: None,
        runs: vec![run_of(text)],
        plans: vec![plan(some())],
        upgrades: Vec::new(),
        problems: vec![all()],
    };
    let mut live = run(text);
    live.run.state = "running".to_owned();
    let message = console::Message { title: "T", text, hints: vec![all()] };
    vec![
        console::store(&store, 7, "/b"),
        console::files(&files("directory"), "/b"),
        console::files(&files("file"), "/b"),
        console::clusters(&controller, 7, "/b"),
        console::runs(&controller, 7, "/b"),
        console::plans(&controller, 7, "/b"),
        console::cluster(&recorded, 7, "/b"),
        // Names of clusters never begin with a dot.
        console::run(&live, text.trim_start_matches('.'), 7, "/b"),
        message.page(&controller.about, Some("/b")),
        message.page(&controller.about, None),
    ]
}

#[test]
fn hostile_text_stays_text_and_leads_nowhere_else() {
    let plain = pages("x");
    for text in hostile() {
        for (hostile, plain) in pages(&text).iter().zip(&plain) {
            let start: String = text.chars().take(60).collect();
            assert_eq!(elements(&hostile.html), elements(&plain.html), "{start:?}");
            // Addresses lead to the console itself.
            for (at, _) in hostile.html.match_indices("href=\"") {
                let rest = &hostile.html[at + 6..];
                let own = ["/b/", "#", "?", "data:,\""];
                assert!(own.iter().any(|own| rest.starts_with(own)), "{}", &rest[..40]);
            }
            assert_eq!(hostile.policy, plain.policy);
        }
    }
    for page in plain {
        let is_live =
            ["data-events=\"", "data-changes=\""].iter().any(|one| page.html.contains(one));
        assert_eq!(page.policy.contains("connect-src 'self'"), is_live);
        assert!(page.policy.ends_with("frame-ancestors 'none'") && !page.policy.contains("unsafe"));
    }
}
