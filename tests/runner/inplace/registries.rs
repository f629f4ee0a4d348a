//! Names and digests: what a real registry says, and what admission makes of names.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::common::registry::{PASSWORD, Registry, USER};
use crate::common::{Ran, TestEnv, tool};
use crate::inplace::cluster::{Cluster, WEB, container, events, image, set};

/// Brings images `app:TAG` into the registry; those of one `content` have one digest.
fn push(env: &TestEnv, registry: &Registry, images: &[(&str, &str)]) {
    for (tag, content) in images {
        let context = env.context(content, "FROM scratch\nCOPY f /f\n", &[("f", content)]);
        let name = format!("app:{content}");
        if !env.imgctl(["inspect", &name]).success() {
            env.build(&name, &context);
        }
        let from = format!("oci:{}:localhost/{name}", env.root().join("store").display());
        let to = format!("docker://{}/app:{tag}", registry.host);
        let creds = format!("{USER}:{PASSWORD}");
        let words = [
            "--insecure-policy",
            "copy",
            "-q",
            "--all",
            "--dest-tls-verify=false",
            "--dest-creds",
            &creds,
            &from,
            &to,
        ];
        Ran::new(tool("skopeo", words)).ok();
    }
}

/// The digest of a tag as the registry keeps it.
fn digest(registry: &Registry, tag: &str) -> String {
    let link = format!("docker/registry/v2/repositories/app/_manifests/tags/{tag}/current/link");
    std::fs::read_to_string(registry.data().join(link)).unwrap()
}

#[test]
fn another_name_of_the_same_image_comes_to_its_end() {
    let cluster = Cluster::start();
    let registry = Registry::start();
    push(&cluster.env, &registry, &[("v1", "one"), ("same", "one"), ("v2", "two")]);
    let name = |tag: &str| format!("{}/app:{tag}", registry.host);
    for tag in ["v1", "same", "v2"] {
        cluster.actors.know(&name(tag), &digest(&registry, tag));
    }
    assert_eq!(digest(&registry, "v1"), digest(&registry, "same"));
    let mut app = container("app");
    app["image"] = json!(name("v1"));
    cluster.bare_pod("lone", &json!({"containers": [app]}));
    let before = cluster.pods()["lone"].clone();
    let plan = |tag: &str| {
        let new = format!("app={}", name(tag));
        let words =
            ["plan", "-n", "shop", "--pods", "lone", "--json", "--tls-verify=false", "--set", &new];
        cluster.inplace(&words).ok().json()["pods"][0]["verdict"].clone()
    };
    assert_eq!(
        (plan("v1"), plan("same"), plan("v2")),
        (json!("NOOP"), json!("RESTART-ONLY"), json!("CHANGE"))
    );
    let new = format!("app={}", name("same"));
    let words = ["-n", "shop", "--pods", "lone", "--tls-verify=false", "--set", &new];
    cluster.apply(&words).ok();
    let after = cluster.pods()["lone"].clone();
    assert_eq!((after.restarts, &after.image_id), (1, &before.image_id));
    // What runs is not what the registry has under that name.
    cluster.actors.know(&name("v2"), &digest(&registry, "v1"));
    let new = format!("app={}", name("v2"));
    let words = [
        "-n",
        "shop",
        "--pods",
        "lone",
        "--tls-verify=false",
        "--verify",
        "digest",
        "--pre-pull",
        "none",
        "--set",
        &new,
    ];
    let ran = cluster.apply(&words).fails(1);
    assert!(ran.stderr().contains("which is not the digest of"), "{}", ran.report());
}

#[test]
fn a_registry_that_wants_a_login_is_found_out_before() {
    let cluster = Cluster::start();
    let registry = Registry::with_login();
    push(&cluster.env, &registry, &[("v2", "two")]);
    let new = format!("app={}/app:v2", registry.host);
    cluster.actors.know(&format!("{}/app:v2", registry.host), &digest(&registry, "v2"));
    cluster.bare_pod("bare", &json!({}));
    let named =
        |names: &[&str]| -> Value { names.iter().map(|name| json!({"name": name})).collect() };
    cluster.bare_pod("wrong", &json!({"imagePullSecrets": named(&["gone", "wrong"])}));
    cluster.bare_pod("right", &json!({"imagePullSecrets": named(&["wrong", "right"])}));
    let secret = |name: &str, password: &str| {
        let login = STANDARD.encode(format!("{USER}:{password}"));
        let text = json!({"auths": {&registry.host: {"auth": login}}}).to_string();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": name, "namespace": "shop"},
            "data": {".dockerconfigjson": STANDARD.encode(text)},
        });
        cluster.api.create("/api/v1/namespaces/shop/secrets", &secret).unwrap();
    };
    secret("wrong", "guessed");
    secret("right", PASSWORD);
    let plan = |pod: &str, more: &[&str]| {
        let words = ["plan", "-n", "shop", "--pods", pod, "--tls-verify=false", "--set", &new];
        cluster.inplace(&[&words[..], more].concat())
    };
    let ran = plan("bare", &[]).fails(10);
    assert!(
        ran.stdout().contains("requires a login, and the Pod names no imagePullSecrets"),
        "{}",
        ran.report()
    );
    let ran = plan("wrong", &[]).fails(10);
    assert!(ran.stdout().contains("no matching login in gone, wrong"), "{}", ran.report());
    plan("right", &[]).ok();
    // The operator says that it is there.
    let ran = plan("bare", &["--pre-pull", "none"]).ok();
    assert!(ran.stdout().contains("the image must already be on its Node"), "{}", ran.report());
    for ran in [plan("wrong", &[]), plan("right", &["--json"])] {
        assert!(!ran.report().contains(PASSWORD) && !ran.report().contains("guessed"));
    }
    let words = ["-n", "shop", "--pods", "right", "--tls-verify=false", "--set", &new];
    cluster.apply(&words).ok();
}

#[test]
fn a_name_that_admission_rewrites_is_what_counts() {
    let cluster = Cluster::start();
    let Some(api) = cluster.stand_in() else {
        return;
    };
    cluster.workload("Deployment", 2);
    // As webhooks do that send every pull to a mirror.
    api.admit(|pod| {
        for container in pod["spec"]["containers"].as_array_mut().unwrap() {
            let name = container["image"].as_str().unwrap();
            container["image"] =
                json!(name.replace("127.0.0.1:9/app:2", "mirror.example:5000/app:2"));
        }
    });
    let words = [WEB[0], WEB[1], "--set", &set("2"), "--template", "sync", "--id", "one"];
    let ran = cluster.apply(&words).ok();
    assert_eq!(events(&ran).pop().unwrap()["changed"], 2);
    let pods = cluster.pods();
    assert!(
        pods.values().all(|pod| pod.image == "mirror.example:5000/app:2" && pod.restarts == 1),
        "{pods:?}"
    );
    assert_eq!(cluster.template("Deployment"), image("2"));
    // What admission makes of a name is no drift, and not changed again and again.
    cluster.inplace(&["status"]).ok();
    cluster.apply(&["--id", "one"]).ok();
    assert!(cluster.pods().values().all(|pod| pod.restarts == 1));
}
