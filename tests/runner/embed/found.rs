//! The report: what is found, where, and what is left out.

use serde_json::json;

use crate::common::TestEnv;
use crate::embed::support::{Upstream, build, listing, registry_layers};

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
    let flags = ["build", "--images-report", "--update-lock", "--image", &missing];
    let report = env.imgctl(flags.iter().chain(&["--json", path])).ok().json();
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
    assert!(images[1]["error"].as_str().unwrap().contains("404"), "{report}");
    let skipped: Vec<(&str, u64)> = report["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skipped| {
            let file = skipped["file"].as_str().unwrap();
            (file, skipped["line"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(skipped, [("images/shim/list", 3), ("manifests/app.yaml", 7)]);
    let text = env.imgctl(flags.iter().chain(&[path])).ok().stdout();
    for part in [&*app, "images/shim/list:2, manifests/app.yaml:6", "manifests/app.yaml:7"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!env.imgctl(["inspect", "context"]).success(), "nothing is built");
    assert!(!context.join("imgctl.lock").exists(), "an image is missing");
    let flags = ["build", "--images-report", "--update-lock", "--json", path];
    env.imgctl(flags).ok();
    let lock = std::fs::read_to_string(context.join("imgctl.lock")).unwrap();
    assert!(lock.contains(&upstream.digest("team/app:v1")), "{lock}");
}

#[test]
fn the_report_asks_no_registry_unless_it_updates_the_lock() {
    let env = TestEnv::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let host = listener.local_addr().unwrap();
    let digest = format!("sha256:{}", "0".repeat(64));
    let names = [format!("{host}/a:v1"), format!("{host}/b@{digest}")];
    let context = listing(&env, "context", &names);
    let report = env.imgctl(["build", "--images-report", "--json", context.to_str().unwrap()]);
    let report = report.ok().json();
    let images = report["images"].as_array().unwrap();
    assert_eq!((&images[0]["name"], &images[1]["name"]), (&json!(names[0]), &json!(names[1])));
    assert_eq!((&images[0]["digest"], &images[1]["digest"]), (&json!(null), &json!(digest)));
    assert!(images.iter().all(|image| image.get("error").is_none()), "{report}");
    let text = env.imgctl(["build", "--images-report", context.to_str().unwrap()]).ok().stdout();
    assert!(text.contains(&names[0]) && text.contains("images/shim/list:1"), "{text}");
    let asked = listener.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(asked, Err(std::io::ErrorKind::WouldBlock));
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

/// A chart whose one template takes the image from its values.
const TEMPLATE: &str = "kind: Pod\nspec:\n  containers:\n  - image: {{ .Values.image.repository }}:{{ .Values.image.tag }}\n";

fn chart(name: &str) -> Vec<(String, String)> {
    let head = format!("apiVersion: v2\nname: {name}\nversion: 1.0.0\n");
    let values = format!("image:\n  repository: quay.io/team/{name}\n  tag: v1\n");
    let hook = "kind: Pod\nmetadata: {annotations: {helm.sh/hook: test}}\nspec:\n  containers: [{image: 'quay.io/team/test:v1'}]\n";
    [
        ("Chart.yaml", &*head),
        ("values.yaml", &values),
        ("templates/pod.yaml", TEMPLATE),
        ("templates/tests/test.yaml", hook),
    ]
    .map(|(file, text)| (file.to_owned(), text.to_owned()))
    .to_vec()
}

/// Names in the report, with their places; no registry is asked.
fn report(env: &TestEnv, arguments: &[&str]) -> Vec<String> {
    let flags = ["build", "--images-report", "--json"];
    let report = env.imgctl(flags.iter().chain(arguments)).ok().json();
    let images = report["images"].as_array().unwrap().iter();
    let told = images.map(|image| {
        let places = image["places"].as_array().unwrap().iter();
        let places: Vec<String> = places
            .map(|place| format!("{}:{}", place["file"].as_str().unwrap(), place["line"]))
            .collect();
        format!("{} {}", image["name"].as_str().unwrap(), places.join(" "))
    });
    told.collect()
}

#[test]
fn charts_are_rendered_with_their_values() {
    let env = TestEnv::new();
    let context = env.context("context", "FROM scratch\nCOPY . .\n", &[]);
    for (file, text) in chart("web") {
        env.write(format!("context/charts/some-directory/{file}"), text);
    }
    for (file, text) in chart("packed") {
        env.write(format!("packed/{file}"), text);
    }
    let archive = context.join("charts/packed-1.0.0.tgz");
    let pack = ["czf", archive.to_str().unwrap(), "packed"];
    let mut tar = crate::common::tool("tar", pack);
    tar.current_dir(env.path(""));
    crate::common::Ran::new(tar).ok();
    let path = context.to_str().unwrap();
    let in_directory = "charts/some-directory: web/templates";
    let in_archive = "charts/packed-1.0.0.tgz: packed/templates";
    let tests = format!(
        "quay.io/team/test:v1 {in_archive}/tests/test.yaml:4 {in_directory}/tests/test.yaml:4"
    );
    let expected = |packed: &str, web: &str| {
        vec![
            format!("quay.io/team/packed:{packed} {in_archive}/pod.yaml:4"),
            tests.clone(),
            format!("quay.io/team/web:{web} {in_directory}/pod.yaml:4"),
        ]
    };
    assert_eq!(report(&env, &[path]), expected("v1", "v1"));
    // By the chart's name, not its directory's.
    env.write("context/charts/web.values.yaml", "image: {tag: v2}\n");
    assert_eq!(report(&env, &[path]), expected("v1", "v2"));
    let values = env.write("more.yaml", "image: {tag: v3}\n");
    let values = values.to_str().unwrap();
    assert_eq!(report(&env, &["--values", values, path]), expected("v3", "v3"));
    let one = format!("packed={values}");
    assert_eq!(report(&env, &["--values", &one, path]), expected("v3", "v2"));
}

#[test]
fn a_chart_that_does_not_render_is_an_error_with_file_and_line() {
    let env = TestEnv::new();
    let context = env.context("context", "FROM scratch\nCOPY . .\n", &[]);
    for (file, text) in chart("web") {
        env.write(format!("context/charts/web/{file}"), text);
    }
    let template = "kind: Pod\nspec:\n  x: {{ required \"say x\" .Values.x }}\n";
    env.write("context/charts/web/templates/bad.yaml", template);
    let ran = build(&env, "cluster", &context, &[]);
    assert!(!ran.success());
    let error = ran.stderr();
    for part in ["charts/web", "bad.yaml:3", "say x", "charts/web.values.yaml"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// What Helm refuses, a build refuses.
#[test]
fn a_chart_that_helm_refuses_fails_the_build() {
    let schema = r#"{"properties": {"image": {"properties": {"tag": {"type": "integer"}}}}}"#;
    let dependent =
        "apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: [{name: gone, version: 1.x}]\n";
    let cases = [
        ("templates/broken.yaml", "a: b: c\n", "web/templates/broken.yaml renders to"),
        ("templates/text.yaml", "only text\n", "the document is not a table"),
        ("templates/NOTES.txt", "{{ fail \"set a password\" }}", "set a password"),
        ("values.schema.json", schema, "/image/tag: want integer"),
        ("Chart.yaml", dependent, "gone"),
    ];
    for (file, text, part) in cases {
        let env = TestEnv::new();
        let context = env.context("context", "FROM scratch\nCOPY . .\n", &[]);
        for (file, text) in chart("web") {
            env.write(format!("context/charts/web/{file}"), text);
        }
        env.write(format!("context/charts/web/{file}"), text);
        let error = build(&env, "cluster", &context, &[]).fails(2).stderr();
        assert!(error.contains("charts/web") && error.contains(part), "{file}: {error}");
    }
}
