//! What somebody types by mistake, or by the habit of another tool, and what answers it.

use std::path::Path;

use crate::common::{Ran, TestEnv};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;

/// A store with one image. No registry answers: a test that asks one fails.
fn store() -> TestEnv {
    let env = TestEnv::new();
    let labels = "sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script \
                  init=i version=v2.0.0";
    let context =
        env.context("web", &format!("FROM scratch\nLABEL {labels}\nCOPY f /\n"), &[("f", "")]);
    env.build("web:v2.0.0", &context);
    env
}

#[test]
fn verbs_of_other_tools_lead_to_those_of_imgctl() {
    let env = TestEnv::new();
    for (words, expected) in [
        (&["get", "nodes"][..], "`imgctl status`"),
        (&["logs"], "`imgctl journal last --failed`"),
        (&["up"], "`imgctl run IMAGE"),
        (&["new"], "`imgctl init`"),
        (&["install", "helm"], "`imgctl run IMAGE"),
        (&["destroy"], "`imgctl reset"),
        (&["down"], "`imgctl reset"),
        (&["describe", "x"], "`imgctl inspect"),
        (&["patch"], "`imgctl upgrade"),
        (&["top"], "`imgctl status --watch`"),
        (&["config"], "`imgctl env`"),
        (&["kubectl", "get", "pods"], "`imgctl exec"),
        (&["image", "ls"], "`imgctl images` does that"),
        (&["image", "rm", "x"], "`imgctl rmi` does that"),
        (&["image", "inspect", "x"], "`imgctl inspect` does that"),
        (&["cluster", "ls"], "`imgctl clusters` does that"),
        (&["compose", "build"], "`imgctl bake -f compose.yaml`"),
        (&["lint"], "`imgctl build --check`"),
        (&["doctor"], "`imgctl env`"),
        (&["import", "x.tar"], "`imgctl load`"),
        (&["buildx", "build"], "`imgctl build`"),
        (&["status", "-o", "json"], "`--json` prints JSON"),
        (&["images", "--output", "yaml"], "`--json` prints JSON"),
    ] {
        let ran = env.imgctl(words).fails(USAGE);
        assert!(ran.stderr().contains(&format!("tip: {expected}")), "{}", ran.report());
        assert_eq!(ran.stderr().matches("tip:").count(), 1, "{}", ran.report());
        let ran = env.imgctl([&["--json"], words].concat()).fails(USAGE);
        assert!(ran.stderr().contains("\"hints\":[\"`"), "{}", ran.report());
    }
    let ran = env.imgctl(["exec", "-it", "web", "bash"]).fails(USAGE);
    assert!(ran.stderr().contains("-i is the option --pk here"), "{}", ran.report());
    // Other slips are answered as before.
    let ran = env.imgctl(["buidl"]).fails(USAGE);
    assert!(ran.stderr().contains("build"), "{}", ran.report());
}

#[test]
fn tips_name_nothing_that_the_help_hides() {
    let env = TestEnv::new();
    for (words, hidden) in [
        (&["status", "--masters", "x"][..], "--max-entries"),
        (&["images", "--max-entrie", "1"], "--max-entries"),
        (&["lists"], "list"),
    ] {
        let ran = env.imgctl(words).fails(USAGE);
        assert!(!ran.stderr().contains(&format!("'{hidden}'")), "{}", ran.report());
    }
    let ran = env.imgctl(["run", "x", "--mastres", "y"]).fails(USAGE);
    assert!(ran.stderr().contains("'--masters'"), "{}", ran.report());
}

#[test]
fn a_field_that_no_row_has_is_an_error() {
    let env = store();
    let ran = env.imgctl(["images", "--format", "{{.Foo}}"]).fails(USAGE);
    assert!(ran.stderr().contains("can't evaluate field Foo"), "{}", ran.report());
    assert!(ran.stderr().contains("hint: the fields are Created, "), "{}", ran.report());
    let ran = env.imgctl(["images", "--format", "{{.Tag}} {{.Labels.none}}"]).ok();
    assert_eq!(ran.stdout(), "v2.0.0 <no value>");
}

#[test]
fn names_of_images_have_no_digest_and_are_no_ids() {
    let env = store();
    let hex = "a".repeat(64);
    for (name, why) in [
        (format!("x@sha256:{hex}"), "it has a digest"),
        (hex.clone(), "it is an image ID"),
        (format!("sha256:{hex}"), "it is an image ID"),
    ] {
        let ran = env.imgctl(["tag", "web:v2.0.0", &name]).fails(USAGE);
        assert!(ran.stderr().contains(why), "{}", ran.report());
    }
    env.imgctl(["tag", "web:v2.0.0", &format!("localhost/{hex}")]).ok();
}

#[test]
fn clusters_without_a_home_are_not_none() {
    let env = TestEnv::new();
    let mut command = env.command(["clusters"]);
    command.env_remove("HOME").env_remove("SEALOS_RUNTIME_ROOT");
    let ran = Ran::new(command).fails(USAGE);
    assert!(ran.stderr().contains("HOME is not set"), "{}", ran.report());
}

#[test]
fn slips_in_names_of_images_ask_no_registry() {
    let env = store();
    for (words, expected) in [
        (
            &["run", "wbe:v2.0.0", "--masters", "127.0.0.1:1"][..],
            "did you mean localhost/web:v2.0.0?",
        ),
        (&["run", "web:v2.0.1", "--masters", "127.0.0.1:1"], "did you mean localhost/web:v2.0.0?"),
    ] {
        let ran = env.imgctl(words).fails(NOT_FOUND);
        assert!(ran.stderr().contains(expected), "{}", ran.report());
        assert!(ran.stderr().contains("docker.io/library/w"), "{}", ran.report());
    }
    let context = env.context("on", "FROM wbe:v2.0.0\n", &[]);
    let ran = env.imgctl([Path::new("build"), &context]).fails(NOT_FOUND);
    assert!(ran.stderr().contains("did you mean localhost/web:v2.0.0?"), "{}", ran.report());
    assert!(ran.stderr().contains("no registry was asked"), "{}", ran.report());
}

#[test]
fn what_is_no_image_is_told_as_what_it_is() {
    let env = store();
    env.write("key", "no key");
    for (words, code, expected) in [
        (
            &["run", "web:v2.0.0", "--masters=10.0.0.1", "10.0.0.2"][..],
            USAGE,
            "is an address, not an image",
        ),
        (
            &["run", "web:v2.0.0", "fd00::1", "--masters=10.0.0.1"],
            USAGE,
            "separate hosts with commas",
        ),
        (
            &["run", "./nosuch.tar", "--masters=10.0.0.1"],
            NOT_FOUND,
            "there is no file ./nosuch.tar",
        ),
        (&["run", "nosuch.tar", "--masters=10.0.0.1"], NOT_FOUND, "there is no file nosuch.tar"),
        (
            &["run", "web:v2.0.0", "--masters=10.0.0.1", "--pk", "/nope"],
            USAGE,
            "--pk /nope: there is no such file",
        ),
        (&["pull", "./nosuch"], USAGE, "it is a path"),
        (&["rm", "web:v2.0.0"], NOT_FOUND, "run `imgctl rmi web:v2.0.0`"),
        (&["create", "cluster"], NOT_FOUND, "`imgctl run IMAGE --masters HOSTS`"),
        (&["search", "kubernetes"], USAGE, "`imgctl tags REPOSITORY`"),
        (&["inspect", "-f", "{{.Config.Labels}}", "web:v2.0.0"], USAGE, "{{.OCIv1.Config.Labels}}"),
        (&["rm", "other"], NOT_FOUND, "run `imgctl mounts`"),
    ] {
        let ran = env.imgctl(words).fails(code);
        assert!(ran.stderr().contains(expected), "{}", ran.report());
    }
}

#[test]
fn hosts_without_an_address_are_told_without_a_query() {
    let env = store();
    let ran = env.imgctl(["exec", "--ips", "no-such-host.invalid", "true"]);
    let told = ran.report();
    assert!(told.contains("cannot find the address of no-such-host.invalid"), "{told}");
    assert!(!told.contains("Query {"), "{told}");
}

#[test]
fn a_proxy_that_fails_is_named() {
    let env = store();
    let mut command = env.command(["pull", "registry.invalid/a:1", "--retry", "1"]);
    command.env("HTTPS_PROXY", "http://127.0.0.1:9");
    let ran = Ran::new(command).fails(7);
    assert!(ran.stderr().contains("the proxy 127.0.0.1"), "{}", ran.report());
}

#[test]
fn shells_are_offered_names_and_no_hidden_flags() {
    let env = store();
    env.write(
        ".sealos/prod/Clusterfile",
        "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: prod\nspec:\n  image: [web:v2.0.0]\n  hosts:\n  - ips: [10.0.0.1]\n    roles: [master]\n",
    );
    let offers = |words: &[&str]| {
        let ran = env.imgctl([&["complete", "--", "imgctl"], words].concat()).ok();
        let values = ran.stdout();
        values.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(offers(&["clus"]).contains(&"clusters".to_owned()));
    assert_eq!(offers(&["run", "we"]), ["web:v2.0.0"]);
    assert_eq!(offers(&["status", "--cluster", ""]), ["prod"]);
    assert_eq!(offers(&["journal", "la"]), ["last"]);
    assert_eq!(offers(&["run", "--ma"]), ["--masters"]);
    assert_eq!(offers(&["run", "--max-en"]), Vec::<String>::new());
    assert!(offers(&["run", ""]).iter().all(|offer| !offer.starts_with('-')));
    // The scripts are of the shells that read them.
    let script = env.write("script", env.imgctl(["completion", "bash"]).ok().stdout());
    assert!(std::process::Command::new("bash").arg("-n").arg(script).status().unwrap().success());
}
