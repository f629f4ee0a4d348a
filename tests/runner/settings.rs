//! Settings that images describe: part of the image, shown, asked for, and checked before anything is changed.

use std::path::PathBuf;

use crate::common::{IMGCTL, TestEnv};
use crate::login::on_a_terminal;

/// Exit code of docs/cli.md.
const USAGE: i32 = 2;

const SCHEMA: &str = r#"{
  "type": "object",
  "required": ["adminPassword"],
  "properties": {
    "webPort": {"type": "integer", "minimum": 1, "maximum": 65535, "description": "Port of the page"},
    "level": {"enum": ["low", "high"], "default": "low"},
    "adminPassword": {"type": "string", "minLength": 6, "writeOnly": true, "description": "Login of the page"}
  }
}"#;

/// A rootfs image with settings.
fn machine() -> (TestEnv, PathBuf) {
    let env = TestEnv::new();
    let labels = "sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script init=i join=j";
    let kubefile = format!("FROM scratch\nENV webPort=80\nLABEL {labels}\nCOPY etc /etc\n");
    let template = "{{ .webPort }} {{ .level }} {{ .adminPassword }}\n";
    let files = [("etc/page.tmpl", template), ("settings.schema.json", SCHEMA)];
    let context = env.context("base", &kubefile, &files);
    env.build("localhost/base:1", &context);
    (env, context)
}

#[test]
fn a_build_takes_the_schema_and_refuses_a_broken_one() {
    let (env, context) = machine();
    let found = env.imgctl(["inspect", "base:1"]).ok().json()["Settings"].clone();
    let names: Vec<&str> =
        found.as_array().unwrap().iter().map(|one| one["Name"].as_str().unwrap()).collect();
    assert_eq!(names, ["webPort", "level", "adminPassword"]);
    assert_eq!(found[2]["Required"], true);
    assert_eq!(found[2]["Secret"], true);
    assert_eq!((&found[1]["Default"], &found[0]["Type"]), (&"low".into(), &"integer".into()));
    let template = "{{range .Settings}}{{.Name}} {{end}}";
    let shown = env.imgctl(["inspect", "-f", template, "base:1"]).ok().stdout();
    assert_eq!(shown.trim(), names.join(" "));
    let page = env.path("page.html");
    env.imgctl(["report", "image", "base:1", "-o", page.to_str().unwrap()]).ok();
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["Settings", "Port of the page", "required", "secret"] {
        assert!(page.contains(part), "{part}");
    }
    // An image that builds on it has the same settings.
    let derived = env.context("derived", "FROM localhost/base:1\nENV level=high\n", &[]);
    env.build("localhost/derived:1", &derived);
    let inherited = env.imgctl(["inspect", "derived:1"]).ok().json()["Settings"].clone();
    assert_eq!(inherited, found);
    for wrong in ["{", "{}", r#"{"properties": {"a": {"type": "text"}}}"#] {
        std::fs::write(context.join("settings.schema.json"), wrong).unwrap();
        let words = ["build", "-t", "localhost/base:2", context.to_str().unwrap()];
        let said = env.imgctl(words).fails(4).stderr();
        assert!(said.contains("settings.schema.json"), "{said}");
    }
    let plain = env.context("plain", "FROM scratch\nCOPY f /f\n", &[("f", "x")]);
    env.build("localhost/plain:1", &plain);
    assert!(env.imgctl(["inspect", "plain:1"]).ok().json().get("Settings").is_none());
}

#[test]
fn variables_are_checked_before_anything_is_changed() {
    let (env, _) = machine();
    let clusterfile = "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: c\nspec:\n  \
                       image: [localhost/base:1]\n  hosts:\n  - ips: [\"127.0.0.1:1\"]\n    roles: [master]\n";
    env.write("Clusterfile", clusterfile);
    let verbs: [&[&str]; 4] = [
        &["run", "base:1", "--masters", "127.0.0.1:1"],
        &["apply", "-f", "Clusterfile"],
        &["gen", "base:1", "--masters", "127.0.0.1"],
        &["render", "base:1", "--host", "127.0.0.1"],
    ];
    let with = |verb: &[&str], variables: &[&str]| {
        let flags = variables.iter().flat_map(|variable| ["-e", variable]);
        env.imgctl(verb.iter().copied().chain(flags))
    };
    let good = "adminPassword=long enough";
    for verb in verbs {
        let said = with(verb, &[]).fails(USAGE).stderr();
        for part in ["requires adminPassword (Login of the page)", "--env adminPassword=VALUE"] {
            assert!(said.contains(part), "{verb:?}: {said}");
        }
        for (variable, part) in [
            ("webPort=http", "webPort: "),
            ("webPort=70000", "webPort: "),
            ("level=middle", "level: "),
            ("levle=high", "the image has no variable levle; it has level"),
        ] {
            let said = with(verb, &[good, variable]).fails(USAGE).stderr();
            assert!(said.contains(part), "{verb:?} {variable}: {said}");
        }
        let said = with(verb, &["adminPassword=hush"]).fails(USAGE).stderr();
        assert!(said.contains("adminPassword: ") && !said.contains("hush"), "{verb:?}: {said}");
    }
    assert!(!env.path(".sealos/c/Clusterfile").exists());
    // The default of the schema counts as ENV does.
    let render = ["render", "base:1", "--host", "127.0.0.1", "--path", "etc/page"];
    let page = with(&render, &[good]).ok().stdout();
    assert_eq!(page.trim(), "80 low long enough");
    with(verbs[2], &[good, "webPort=8080", "level=high"]).ok();
}

#[test]
fn what_is_required_is_asked_for_at_a_terminal() {
    let (env, _) = machine();
    let run = format!(
        "{IMGCTL} --root {} run base:1 --masters 127.0.0.1:1 -c asked",
        env.root().display()
    );
    let question = "adminPassword (string): Login of the page: ";
    let screen = on_a_terminal(&env, &run, &[(question, "open sesame\n")]);
    assert!(!screen.contains("sesame") && !screen.contains("requires"), "{screen}");
    let screen = on_a_terminal(&env, &run, &[(question, "hush\n")]);
    assert!(screen.contains("the variables do not fit base:1"), "{screen}");
    assert!(!screen.contains("hush"), "{screen}");
}
