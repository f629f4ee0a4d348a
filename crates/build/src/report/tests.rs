//! Tests of the reports: what services that read them rely on.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::build::{Built, StepCounts};
use crate::report::{
    Before, BuildSummary, Finding, ImageFacts, LayerFacts, code_quality, dotenv,
    findings_of_places, github_outputs, markdown, sarif_document, summary_of_build,
    summary_of_failure, tekton_results,
};
use imgctl_base::error::Error;
use imgctl_base::image::{Descriptor, Digest, LayerKind, Platform, Reference, media_type};
use imgctl_base::place::Place;
use imgctl_trust::provenance::Invocation;

fn place(file: &str, line: usize) -> Place {
    Place {
        file: file.into(),
        line,
        column: 3,
        end_line: line,
        end_column: 6,
        message: "unknown <b>`word`".to_owned(),
        hint: Some("correct it".to_owned()),
        ..Place::default()
    }
}

fn findings(places: &[Place]) -> Vec<Finding> {
    findings_of_places(places, Path::new("/"))
}

#[test]
fn sarif_has_a_rule_and_a_region_for_each_result() {
    let found = findings(&[place("a dir/Kubefile#1", 2)]);
    let document: Value = serde_json::from_str(&sarif_document(&found).unwrap()).unwrap();
    assert_eq!(document["version"], "2.1.0");
    let run = &document["runs"][0];
    let result = &run["results"][0];
    let index = result["ruleIndex"].as_u64().unwrap() as usize;
    assert_eq!(run["tool"]["driver"]["rules"][index]["id"], result["ruleId"]);
    assert_eq!(result["level"], "error");
    assert_eq!(result["message"]["text"], "unknown <b>`word`: correct it");
    let physical = &result["locations"][0]["physicalLocation"];
    assert_eq!(physical["artifactLocation"]["uri"], "a%20dir/Kubefile%231");
    assert_eq!(physical["artifactLocation"]["uriBaseId"], "%SRCROOT%");
    let region = json!({"startLine": 2, "startColumn": 3, "endLine": 2, "endColumn": 6});
    assert_eq!(physical["region"], region);
    for rule in run["tool"]["driver"]["rules"].as_array().unwrap() {
        assert!(!rule["help"]["text"].as_str().unwrap().is_empty());
    }
}

#[test]
fn messages_of_findings_are_no_links_and_reorder_nothing() {
    let mut hostile = place("K", 2);
    hostile.message = "unknown [words](https://example.com) \\ \u{202e}\u{1b}".to_owned();
    hostile.hint = None;
    let found = findings(&[hostile]);
    let document: Value = serde_json::from_str(&sarif_document(&found).unwrap()).unwrap();
    let text = document["runs"][0]["results"][0]["message"]["text"].as_str().unwrap();
    assert!(
        text.starts_with(r"unknown \[words\](https://example.com) \\ \\u{202e}\\u{1b}"),
        "{text}"
    );
    let text = code_quality(&found).unwrap();
    assert!(!text.contains(['\u{202e}', '\u{1b}']), "{text}");
}

#[test]
fn fingerprints_are_stable_and_unlike_each_other() {
    let once = findings(&[place("K", 2), place("K", 9)]);
    let moved = findings(&[place("K", 4), place("K", 11)]);
    assert_eq!(once[0].fingerprint, moved[0].fingerprint);
    assert_eq!(once[1].fingerprint, moved[1].fingerprint);
    assert_ne!(once[0].fingerprint, once[1].fingerprint);
    assert_ne!(once[0].fingerprint, findings(&[place("L", 2)])[0].fingerprint);
    let document: Value = serde_json::from_str(&code_quality(&once).unwrap()).unwrap();
    let issue = &document[0];
    assert_eq!(issue["severity"], "blocker");
    assert_eq!(issue["location"], json!({"path": "K", "lines": {"begin": 2, "end": 2}}));
    assert_eq!(issue["check_name"], "KubefileError");
}

#[test]
fn foreign_text_is_not_markup() {
    assert_eq!(markdown::code("a*b\n"), "`a*b `");
    // No span and no cell ends early, whichever way a renderer reads backslashes.
    let odd = "a`\\|<b>";
    assert_eq!(markdown::code(odd), "<code>a&#96;&#92;&#124;&#60;b&#62;</code>");
    assert_eq!(markdown::code("\u{202e}x"), "`\\u{202e}x`");
    assert_eq!(markdown::plain("- hint: x\u{2066}"), "\\- hint: x\\\\u{2066}");
    assert_eq!(markdown::plain("<b>[x](y) @all"), "&lt;b&gt;\\[x\\](y) &#64;all");
    let text =
        summary_of_failure(&Error::usage("a <img src=x>").hint("do"), &findings(&[place("K|", 2)]));
    assert!(!text.contains("<img") && !text.contains("<b>"), "{text}");
    assert!(text.contains("<code>K&#124;&#58;2</code>"), "{text}");
}

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn built() -> Built {
    Built {
        is_list: false,
        descriptor: Descriptor::new(media_type::OCI_MANIFEST, digest("m"), 1),
        image_id: digest("c"),
        manifests: Vec::new(),
        names: vec![Reference::parse("r.example.com/a/b:v2").unwrap()],
        origins: BTreeMap::new(),
        attested: Vec::new(),
        file: "Kubefile".to_owned(),
        invocation: Invocation::default(),
        steps: StepCounts { cached: 2, total: 3 },
        cache: Default::default(),
        imported: Default::default(),
        checked: None,
    }
}

fn image(id: &str, layers: &[(&str, Option<LayerKind>, u64)], list: &[(&str, &str)]) -> ImageFacts {
    let layer = |(name, kind, size): &(&str, Option<LayerKind>, u64)| LayerFacts {
        digest: digest(name),
        kind: *kind,
        size: *size,
        created_by: format!("COPY {name} /"),
    };
    let pair = |(name, digest): &(&str, &str)| ((*name).to_owned(), (*digest).to_owned());
    ImageFacts {
        platform: Platform::new("linux", "amd64", None),
        digest: digest(id),
        layers: layers.iter().map(layer).collect(),
        embedded: list.iter().map(pair).collect::<BTreeMap<_, _>>(),
    }
}

#[test]
fn a_summary_tells_what_changed() {
    let rootfs = Some(LayerKind::Rootfs);
    let registry = Some(LayerKind::Registry);
    let now = image(
        "now",
        &[("a", rootfs, 1_000), ("new", registry, 5_000)],
        &[("x/new:1", "sha256:1"), ("x/changed:1", "sha256:2"), ("x/same:1", "sha256:3")],
    );
    let then = image(
        "then",
        &[("a", rootfs, 1_000), ("old", registry, 3_000)],
        &[("x/gone:1", "sha256:0"), ("x/changed:1", "sha256:9"), ("x/same:1", "sha256:3")],
    );
    let before = Before { name: "b:v1".to_owned(), images: Ok(vec![then]) };
    let built = built();
    let images = [now];
    let mut about = BuildSummary {
        built: &built,
        images: &images,
        before: Some(&before),
        findings: &[],
        time: Duration::from_millis(1234),
    };
    let text = summary_of_build(&about);
    for line in [
        "| Steps from the cache | 2 of 3 |",
        "| Time | 1.2 s |",
        "| Against `b:v1` | +2.0 kB, 1 of 2 layers new (5.0 kB), 1 embedded changed, 1 embedded \
         added, 1 embedded removed |",
        "| registry | 1 | 5.0 kB | +2.0 kB |",
        "| rootfs | 1 | 1.0 kB | ±0 B |",
        "| `x/changed:1` | `sha256:2` | changed, was `sha256:9` |",
        "| `x/gone:1` | `sha256:0` | removed |",
        "| `x/same:1` | `sha256:3` |  |",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let none = Before { name: "b:v1".to_owned(), images: Ok(Vec::new()) };
    about.before = Some(&none);
    assert!(summary_of_build(&about).contains("| Against `b:v1` | there is none yet |"));
    let broken = Before { name: "b".to_owned(), images: Err(Error::failed("no | answer")) };
    about.before = Some(&broken);
    assert!(summary_of_build(&about).contains("not possible: no \\| answer"));
}

#[test]
fn an_image_with_thousands_of_images_has_a_short_summary() {
    let names: Vec<String> = (0..5_000).map(|n| format!("registry.example.com/x/{n}:1")).collect();
    let list: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "sha256:1")).collect();
    let images = [image("now", &[], &list)];
    let built = built();
    let about = BuildSummary {
        built: &built,
        images: &images,
        before: None,
        findings: &[],
        time: Duration::ZERO,
    };
    let text = summary_of_build(&about);
    assert!(text.contains("and 4800 more") && text.len() < 100_000);
}

#[test]
fn values_for_later_steps_are_lines() {
    let built = built();
    let metadata = json!({"a": "line\nline", "b": "digest=sha256:evil"});
    let text = github_outputs(&built, &metadata);
    assert_eq!(text.lines().count(), 3);
    assert!(text.starts_with(&format!("digest={}\nimageid={}\n", digest("m"), digest("c"))));
    let env = dotenv(&built);
    assert!(env.contains("IMGCTL_IMAGE=r.example.com/a/b:v2\n"));
    assert!(env.contains(&format!("IMGCTL_REFERENCE=r.example.com/a/b@{}\n", digest("m"))));
    let results = tekton_results(&built);
    assert_eq!(results[0], ("IMAGE_URL", "r.example.com/a/b:v2".to_owned()));
    assert_eq!(results[1], ("IMAGE_DIGEST", digest("m").to_string()));
}
