//! The report: what is found, where, and what is left out.

use serde_json::json;

use crate::common::TestEnv;
use crate::support::{Upstream, build, listing, registry_layers};

#[test]
fn the_report_names_what_is_found_and_left_out_with_file_and_line() {
    let upstream = Upstream::new();
    upstream.index("team/app:v1", "base", "own");
    let app = upstream.name("team/app:v1");
    let env = TestEnv::new();
    let manifest = format!(
        "kind: Deployment\nspec:\n  template:\n    spec:\n      containers:\n      - image: {app}\n      - image: '{{{{ .Values.x }}}}'\n"
    );
    let list = format!("# mine\n{app}\n{}\n", upstream.name("left/out:v1"));
    let context = env.context(
        "context",
        "FROM scratch\nCOPY . .\n",
        &[
            ("manifests/app.yaml", &manifest),
            ("images/shim/list", &list),
            (".sealignore", &upstream.name("left/out:v1")),
        ],
    );
    let path = context.to_str().unwrap();
    let missing = upstream.name("team/missing:v1");
    let flags = ["build", "--images-report", "--image", &missing];
    let report = env
        .imgctl(flags.iter().chain(&["--json", path]))
        .ok()
        .json();
    let images = report["images"].as_array().unwrap();
    assert_eq!(images.len(), 2, "{report}");
    assert_eq!(images[0]["name"], app);
    assert_eq!(images[0]["digest"], upstream.digest("team/app:v1"));
    assert_eq!(images[0]["repository"], "team/app");
    assert_eq!(
        images[0]["places"],
        json!([
            {"file": "images/shim/list", "line": 2, "how": "list"},
            {"file": "manifests/app.yaml", "line": 6, "how": "podSpec"},
        ])
    );
    assert_eq!(images[1]["name"], missing);
    assert!(
        images[1]["error"].as_str().unwrap().contains("404"),
        "{report}"
    );
    let skipped: Vec<(&str, u64)> = report["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skipped| {
            let file = skipped["file"].as_str().unwrap();
            (file, skipped["line"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(
        skipped,
        [("images/shim/list", 3), ("manifests/app.yaml", 7)]
    );
    let text = env.imgctl(flags.iter().chain(&[path])).ok().stdout();
    for part in [
        &*app,
        "images/shim/list:2, manifests/app.yaml:6",
        "manifests/app.yaml:7",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(
        !env.imgctl(["inspect", "context"]).success(),
        "nothing is built"
    );
}

#[test]
fn images_that_cannot_be_had_fail_the_build_unless_none_are_wanted() {
    let upstream = Upstream::new();
    let env = TestEnv::new();
    let missing = upstream.name("team/missing:v1");
    let context = listing(&env, "context", std::slice::from_ref(&missing));
    let error = build(&env, "cluster", &context, &[]).fails(3).stderr();
    assert!(error.contains(&missing), "{error}");
    assert!(error.contains("images/shim/list:1"), "{error}");
    assert!(error.contains(".sealignore"), "{error}");
    build(&env, "cluster", &context, &["--save-image=false"]).ok();
    assert!(registry_layers(&env, "cluster").is_empty());
}
