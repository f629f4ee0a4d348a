//! Applications on a cluster that is reached through a kubeconfig: the stand-in API, real registries, and stand-ins
//! for kubectl and Helm (Debian has neither in a version of today).

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use imgctl_kube::testing::stand_in::StandIn;
use imgctl_kube::testing::stand_in::serve::{Served, serve};
use serde_json::{Value, json};

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;

/// A cluster, a registry with an image to embed, and another one that Nodes would pull from.
struct Scene {
    env: TestEnv,
    api: StandIn,
    served: Served,
    upstream: Registry,
    target: Registry,
}

/// Sends the objects of JSON documents on stdin to the API, as `kubectl apply -f -` does.
const KUBECTL: &str = r#"#!/usr/bin/perl
# Stand-in for kubectl: apply, create and delete of JSON documents; `get` prints one object.
use strict; use warnings; use JSON::PP; use MIME::Base64; use File::Temp 'tempfile';
sub slurp { open my $f, '<', shift or die "$!"; local $/; <$f> }
my $k = decode_json(slurp($ENV{KUBECONFIG}));
my $server = $k->{clusters}[0]{cluster}{server};
my ($f, $ca) = tempfile(UNLINK => 1);
print $f decode_base64($k->{clusters}[0]{cluster}{'certificate-authority-data'}); close $f;
my $token = $k->{users}[0]{user}{token};
my $namespace = 'default'; my @rest;
while (@ARGV) { my $w = shift @ARGV; if ($w eq '-n') { $namespace = shift @ARGV } else { push @rest, $w } }
my $verb = shift @rest;
sub ask {
  my ($method, $path, $body, $type) = @_;
  my ($b, $name) = tempfile(UNLINK => 1); print $b $body // ''; close $b;
  my @words = ('curl', '-sS', '--http2', '--cacert', $ca, '-X', $method, '-w', '\n%{http_code}', '-H', "Authorization: Bearer $token");
  push @words, '-H', 'Content-Type: ' . ($type // 'application/json'), '--data-binary', "\@$name" if defined $body;
  open my $p, '-|', @words, "$server$path" or die; local $/; my $out = <$p>;
  my ($text, $code) = $out =~ /^(.*)\n(\d+)$/s; return ($code, $text);
}
sub paths {
  my $o = shift; my $v = $o->{apiVersion}; my $root = $v =~ m{/} ? "/apis/$v" : "/api/$v";
  my $plural = lc($o->{kind}) . 's';
  my $global = $o->{kind} =~ /^(Namespace|CustomResourceDefinition|ClusterRole)$/;
  my $ns = $o->{metadata}{namespace} // $namespace;
  my $all = $global ? "$root/$plural" : "$root/namespaces/$ns/$plural";
  return ($all, "$all/$o->{metadata}{name}");
}
if ($verb eq 'get') { my ($c, $t) = ask('GET', $rest[0]); print $t; exit($c == 200 ? 0 : 1) }
my $file = $rest[-1]; local $/; my $text = $file eq '-' ? <STDIN> : slurp($file);
for my $document (split /^---$/m, $text) {
  next unless $document =~ /\S/;
  my $o = decode_json($document); my ($all, $one) = paths($o);
  if ($verb eq 'delete') { ask('DELETE', $one); next }
  my ($code) = ask('GET', $one);
  if ($code == 200) {
    die "AlreadyExists: $o->{metadata}{name}\n" if $verb eq 'create';
    ($code) = ask('PATCH', $one, encode_json($o), 'application/merge-patch+json');
  } else { ($code, my $said) = ask('POST', $all, encode_json($o)); die "$said\n" if $code >= 300 }
  die "$one: $code\n" if $code >= 300;
  print lc($o->{kind}), "/$o->{metadata}{name} applied\n";
}
"#;

/// `helm upgrade --install RELEASE FILE`: the chart is a file of manifests.
const HELM: &str = r#"#!/usr/bin/env bash
# Stand-in for Helm 3: the chart is a file of manifests, and goes through the post-renderer.
set -euo pipefail
if [[ $1 == version ]]; then echo v3.15.0; exit; fi
[[ $1 == upgrade && $2 == --install && $5 == --post-renderer ]] || { echo "helm: $*" >&2; exit 1; }
"$6" <"$4" | "$(dirname "$0")/kubectl" -n "${IMGCTL_NAMESPACE:-default}" apply -f -
"#;

impl Scene {
    fn new() -> Self {
        let env = TestEnv::new();
        let api = StandIn::new();
        api.add(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}),
        );
        let served = serve(&api);
        let (upstream, target) = (Registry::start(), Registry::start());
        let context = env.context("web", "FROM scratch\nCOPY f /f\n", &[("f", "web\n")]);
        let image = format!("{}/team/web:v1", upstream.host);
        env.imgctl(["build", "-t", &image, context.to_str().unwrap()]).ok();
        env.imgctl(["push", &image]).ok();
        Self { env, api, served, upstream, target }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.served.path("token.kubeconfig")
    }

    /// Builds an application of these manifests and files; its image is `localhost/shop:VERSION`.
    fn build(
        &self,
        version: &str,
        manifests: &[Value],
        more: &str,
        files: &[(&str, &str)],
    ) -> String {
        let manifests: Vec<String> = manifests.iter().map(ToString::to_string).collect();
        let manifests = manifests.join("\n---\n");
        let list = format!("{}/team/web:v1\n", self.upstream.host);
        let kubefile = format!("FROM scratch\nCOPY . .\n{more}");
        let mut all = vec![
            ("deploy/all.json", manifests.as_str()),
            ("images/shim/list", &list),
            ("opt/kubectl", KUBECTL),
            ("opt/helm", HELM),
        ];
        all.extend(files);
        let name = format!("shop-{version}");
        let context = self.env.context(&name, &kubefile, &all);
        for program in ["kubectl", "helm"] {
            use std::os::unix::fs::PermissionsExt;
            let path = context.join("opt").join(program);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let image = format!("localhost/shop:{version}");
        self.env.build(&image, &context);
        image
    }

    fn imgctl(&self, words: &[&str]) -> Ran {
        let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        words.extend(["--kubeconfig".to_owned(), self.kubeconfig().display().to_string()]);
        self.env.imgctl(words)
    }

    fn deployment(&self, name: &str) -> Value {
        self.api.peek(&format!("/apis/apps/v1/namespaces/default/deployments/{name}")).unwrap()
    }

    fn has(&self, path: &str) -> bool {
        self.api.peek(path).is_some()
    }

    fn record(&self) -> Value {
        let all =
            imgctl_kube::api::Api::list(&self.api, "/api/v1/namespaces/imgctl-system/configmaps");
        let all = all.unwrap();
        assert_eq!(all.len(), 1);
        serde_json::from_str(all[0]["data"]["application.json"].as_str().unwrap()).unwrap()
    }

    /// The files that runs leave on this machine.
    fn left(&self) -> Vec<String> {
        let walked = walkdir::WalkDir::new(self.env.path(".sealos")).into_iter().flatten();
        walked.map(|entry| entry.path().display().to_string()).collect()
    }
}

fn deployment(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
        },
    })
}

fn object(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
}

const CMD: &str = "CMD [\"kubectl apply -f deploy/all.json\"]\n";

fn image_of(deployment: &Value) -> &str {
    deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap()
}

const MAP: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn an_application_is_installed_on_a_cluster_of_somebody_else_and_removed() {
    let scene = Scene::new();
    let image = format!("{}/team/web:v1", scene.upstream.host);
    let manifests = [deployment("web", &image), object("ConfigMap", "settings")];
    let more = format!("ENV greeting=hello who=image\n{CMD}");
    let shop = scene.build("v1", &manifests, &more, &[]);
    let registry = format!("{}/mirror", scene.target.host);
    let command = "kubectl get /version >/dev/null; echo $greeting $who $registryPort $HOST_IP. $PATH; test -w .";
    let words = ["run", &*shop, "--registry", &registry, "--env", "who=flag", "--cmd", command];
    let words = [&words[..], &["--cmd", "kubectl apply -f deploy/all.json"]].concat();

    let dry = scene.imgctl(&[&words[..], &["--dry-run"]].concat()).ok();
    let text = dry.stdout();
    for part in ["push the images embedded in", "kubectl apply -f deploy/all.json", &registry] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(scene.api.writes().is_empty(), "a dry run changes nothing");

    let ran = scene.imgctl(&[&["--json"][..], &words].concat()).ok();
    let said = ran.stdout();
    let port = scene.target.host.rsplit_once(':').unwrap().1;
    assert!(said.contains(&format!("hello flag {port} .")), "{said}");
    assert!(said.contains("/wrappers:") && said.contains("/usr/bin"), "{said}");
    scene.target.assert_serves("mirror/team/web:v1");
    assert_eq!(image_of(&scene.deployment("web")), image, "references stay unless asked for");
    let record = scene.record();
    assert_eq!(record["state"], "installed");
    assert_eq!(record["objects"].as_array().unwrap().len(), 2);
    let label = &scene.deployment("web")["metadata"]["labels"]["applyset.kubernetes.io/part-of"];
    assert!(label.as_str().unwrap().starts_with("applyset-"), "{label}");
    let left = scene.left();
    assert!(!left.iter().any(|path| path.ends_with("etc/kubeconfig")), "{left:?}");
    assert!(!left.iter().any(|path| path.contains("docker/registry/v2")), "{left:?}");

    let again = scene.imgctl(&words).ok();
    assert!(again.report().contains("is installed already"), "{}", again.report());

    scene.imgctl(&["uninstall", "localhost/other"]).fails(NOT_FOUND);
    let dry = scene.imgctl(&["uninstall", &shop, "--dry-run"]).ok();
    assert!(dry.report().contains("Deployment.apps default/web"), "{}", dry.report());
    scene.imgctl(&["--yes", "uninstall", "localhost/shop"]).ok();
    assert!(!scene.has("/apis/apps/v1/namespaces/default/deployments/web"));
    assert!(!scene.has(&format!("{MAP}/settings")));
    scene.imgctl(&["--yes", "uninstall", &shop]).fails(NOT_FOUND);
}

#[test]
fn references_to_pushed_images_are_rewritten_in_manifests_and_charts() {
    let scene = Scene::new();
    let image = format!("{}/team/web:v1", scene.upstream.host);
    let chart = deployment("chart", &image).to_string();
    let piped = deployment("piped", &image).to_string();
    let more = "CMD [\"kubectl apply -f deploy\", \"cat piped.json | kubectl apply -n default -f -\", \
                \"helm upgrade --install r chart.json\"]\n";
    let manifests = [deployment("web", &image), deployment("other", "quay.io/not/ours:v1")];
    let shop =
        scene.build("v1", &manifests, more, &[("chart.json", &chart), ("piped.json", &piped)]);
    let registry = format!("{}/mirror", scene.target.host);
    scene.imgctl(&["run", &shop, "--registry", &registry, "--rewrite-images"]).ok();
    let new = format!("{registry}/team/web:v1");
    for name in ["web", "piped", "chart"] {
        assert_eq!(image_of(&scene.deployment(name)), new, "{name}");
    }
    assert_eq!(image_of(&scene.deployment("other")), "quay.io/not/ours:v1");
    assert_eq!(scene.record()["objects"].as_array().unwrap().len(), 4);
    scene.imgctl(&["run", &shop, "--rewrite-images"]).fails(USAGE);
}

#[test]
fn what_a_newer_version_does_not_have_is_removed() {
    let scene = Scene::new();
    let data = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {}});
    let kept = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "kept", "annotations": {"helm.sh/resource-policy": "keep"}}});
    let first = [
        object("ConfigMap", "both"),
        object("ConfigMap", "old"),
        object("ConfigMap", "stolen"),
        kept,
        data,
    ];
    let v1 = scene.build("v1", &first, CMD, &[]);
    let v2 =
        scene.build("v2", &[object("ConfigMap", "both"), object("ConfigMap", "new")], CMD, &[]);
    scene.imgctl(&["run", &v1]).ok();
    scene.api.change(&format!("{MAP}/stolen"), |object| {
        object["metadata"]["labels"]["applyset.kubernetes.io/part-of"] = json!("another");
    });
    scene.imgctl(&["run", &v2]).ok();
    assert!(scene.has(&format!("{MAP}/old")), "nothing is removed unless asked for");
    let dry = scene.imgctl(&["run", &v2, "--prune", "--dry-run"]).ok();
    assert!(dry.report().contains("ConfigMap default/old"), "{}", dry.report());
    scene.imgctl(&["--yes", "run", &v2, "--prune"]).ok();
    let has = |name: &str| scene.has(&format!("{MAP}/{name}"));
    assert!(has("both") && has("new") && has("kept") && has("stolen") && !has("old"));
    let claim = "/api/v1/namespaces/default/persistentvolumeclaims/data";
    assert!(scene.has(claim), "data stays");
    scene.imgctl(&["--yes", "run", &v2, "--prune=all"]).ok();
    assert!(!scene.has(claim) && has("kept"));
}

#[test]
fn an_image_may_have_a_command_for_its_removal() {
    let scene = Scene::new();
    let more = format!("LABEL uninstall=\"remove.sh \\$who\"\nENV who=me\n{CMD}");
    let script = "echo removed by $1; kubectl delete -f deploy/all.json";
    let manifests = [object("ConfigMap", "settings")];
    let shop = scene.build("v1", &manifests, &more, &[("remove.sh", script)]);
    scene.imgctl(&["run", &shop]).ok();
    let said = scene.imgctl(&["--yes", "--json", "uninstall", &shop]).ok().stdout();
    assert!(said.contains("removed by me"), "{said}");
    assert!(!scene.has(&format!("{MAP}/settings")));
    let left = scene.left();
    assert!(!left.iter().any(|path| path.ends_with("remove.sh")), "{left:?}");
}

/// The record as the cluster has it, changed by somebody who may write ConfigMaps.
fn forge(scene: &Scene, change: impl Fn(&mut Value)) {
    let list = "/api/v1/namespaces/imgctl-system/configmaps";
    let all = imgctl_kube::api::Api::list(&scene.api, list).unwrap();
    let name = all[0]["metadata"]["name"].as_str().unwrap();
    scene.api.change(&format!("{list}/{name}"), |object| {
        let text = object["data"]["application.json"].as_str().unwrap();
        let mut record: Value = serde_json::from_str(text).unwrap();
        change(&mut record);
        object["data"]["application.json"] = json!(record.to_string());
    });
}

/// The same, from a machine that has installed nothing on this cluster.
fn elsewhere(scene: &Scene, words: &[&str]) -> Ran {
    let mut command = scene.env.command(words);
    command.arg("--kubeconfig").arg(scene.kubeconfig());
    command.env("SEALOS_RUNTIME_ROOT", scene.env.path("elsewhere"));
    Ran::new(command)
}

#[test]
fn a_record_does_not_choose_which_command_runs_here() {
    let scene = Scene::new();
    let ran = scene.env.path("ran");
    let more = format!("LABEL uninstall=remove.sh\n{CMD}");
    let script = format!("touch {}; kubectl delete -f deploy/all.json", ran.display());
    let manifests = [object("ConfigMap", "settings")];
    let files = [("remove.sh", script.as_str())];
    let v1 = scene.build("v1", &manifests, &more, &files);
    let v2 = scene.build("v2", &manifests, &format!("ENV v=2\n{more}"), &files);
    let digest = |image: &str| {
        let all = scene.env.imgctl(["images", "--json", image]).ok().json();
        all[0]["digest"].as_str().unwrap().to_owned()
    };
    let other = digest(&v2);
    scene.imgctl(&["run", &v1]).ok();
    let honest = scene.record();
    let digest_of_v1 = honest["digest"].as_str().unwrap().to_owned();
    assert_ne!(other, digest_of_v1);

    // Records whose parts contradict each other are refused.
    for (member, value) in [
        ("image", "127.0.0.1:1/evil/x:1"),
        ("image", "localhost/shopper:v1"),
        ("image", "\u{1b}[2J"),
        ("application", "localhost/other"),
        ("application", "docker.io/library/shop"),
    ] {
        forge(&scene, |record| record[member] = json!(value));
        for words in [&["uninstall", "localhost/shop", "--yes"][..], &["run", &v1]] {
            let refused = scene.imgctl(words);
            assert!(!refused.success(), "{member}: {}", refused.report());
            assert!(refused.report().contains("not a record that imgctl has written"));
            assert!(!refused.report().contains('\u{1b}'));
        }
        forge(&scene, |record| *record = honest.clone());
    }

    // Neither does a command of another version run, whatever tag the record claims for it.
    forge(&scene, |record| record["digest"] = json!(other));
    for words in [["uninstall", "localhost/shop"], ["uninstall", &v1]] {
        let dry = scene.imgctl(&[&words[..], &["--dry-run"]].concat()).ok();
        assert!(dry.report().contains("ConfigMap default/settings"), "{}", dry.report());
        assert!(!dry.report().contains("remove.sh"), "{}", dry.report());
    }
    forge(&scene, |record| *record = honest.clone());

    // Nobody can see the plan and agree.
    let asked = scene.imgctl(&["uninstall", "localhost/shop"]).fails(USAGE);
    for part in [&*digest_of_v1, "remove.sh", "on this machine", "--yes"] {
        assert!(asked.report().contains(part), "{part}: {}", asked.report());
    }

    // A machine that has not installed the application runs a command of an image that it names.
    let dry = elsewhere(&scene, &["uninstall", "localhost/shop", "--dry-run"]).ok();
    assert!(!dry.report().contains("remove.sh"), "{}", dry.report());
    assert!(dry.report().contains("has not installed it"), "{}", dry.report());
    for named in [v1.clone(), format!("localhost/shop@{digest_of_v1}")] {
        let dry = elsewhere(&scene, &["uninstall", &named, "--dry-run"]).ok();
        assert!(dry.report().contains("remove.sh"), "{}", dry.report());
    }
    assert!(!ran.exists());
    elsewhere(&scene, &["uninstall", "localhost/shop", "--yes"]).ok();
    assert!(!ran.exists() && !scene.has(&format!("{MAP}/settings")));

    // The machine that has installed it does so by the digest.
    scene.imgctl(&["run", &v1, "--force"]).ok();
    scene.imgctl(&["uninstall", "localhost/shop", "--yes"]).ok();
    assert!(ran.exists());
}

#[test]
fn killed_after_each_record_the_next_run_finishes() {
    let scene = Scene::new();
    let manifests = [object("ConfigMap", "settings")];
    let more = "CMD [\"echo x >>$HOME/ran\", \"kubectl apply -f deploy/all.json\"]\n";
    let shop = scene.build("v1", &manifests, more, &[]);
    let registry = format!("{}/mirror", scene.target.host);
    let words = ["run", &*shop, "--force", "--registry", &*registry];
    scene.imgctl(&words).ok();
    let journal = scene.left().into_iter().find(|path| path.ends_with(".jsonl")).unwrap();
    let records = std::fs::read_to_string(journal).unwrap().lines().count();
    assert!(records > 12, "{records}");
    for limit in (1..records).step_by(if crate::common::long() { 1 } else { 2 }) {
        let _ = std::fs::remove_file(scene.env.path("ran"));
        let kubeconfig = scene.kubeconfig();
        let limit = limit.to_string();
        let mut killed = scene.env.command(words);
        killed.args(["--die-after", &limit, "--kubeconfig"]).arg(&kubeconfig);
        assert_eq!(killed.output().unwrap().status.signal(), Some(9), "record {limit}");
        scene.imgctl(&words).ok();
        let ran = std::fs::read_to_string(scene.env.path("ran")).unwrap();
        assert_eq!(ran, "x\n", "a command that is complete does not run again ({limit})");
        assert_eq!(scene.record()["state"], "installed");
        assert_eq!(scene.record()["objects"].as_array().unwrap().len(), 1, "{limit}");
    }
}

#[test]
fn a_failed_installation_is_finished_by_the_next_run() {
    let scene = Scene::new();
    let more = "CMD [\"kubectl apply -f deploy/all.json\", \"test -e $HOME/fixed\"]\n";
    let shop = scene.build("v1", &[object("ConfigMap", "settings")], more, &[]);
    let failed = scene.imgctl(&["run", &shop]);
    assert!(!failed.success());
    assert!(failed.stderr().contains("test -e"), "{}", failed.report());
    assert_eq!(scene.record()["state"], "installing");
    scene.env.write("fixed", "");
    scene.imgctl(&["run", &shop]).ok();
    assert_eq!(scene.record()["objects"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_used_is_refused_before_anything_changes() {
    let scene = Scene::new();
    let shop = scene.build("v1", &[object("ConfigMap", "settings")], CMD, &[]);
    let ran = scene.imgctl(&["run", &shop, "--context", "nowhere"]).fails(NOT_FOUND);
    assert!(ran.stderr().contains("it has t"), "{}", ran.report());
    scene.imgctl(&["run", &shop, "--masters", "10.0.0.1"]).fails(USAGE);
    scene.imgctl(&["run", &shop, "--cluster", "c"]).fails(USAGE);
    scene.env.imgctl(["run", &shop, "--registry", "x.io"]).fails(USAGE);
    scene.env.imgctl(["run", &shop, "--kubeconfig", "/nonexistent"]).fails(NOT_FOUND);
    let wrong = scene.served.path("wrong.kubeconfig");
    let denied = scene.env.imgctl(["run", &shop, "--kubeconfig", wrong.to_str().unwrap()]);
    assert!(denied.stderr().contains("401"), "{}", denied.report());
    let more = "LABEL sealos.io.type=rootfs sealos.io.version=v1beta1\n";
    let context = scene.env.context("rootfs", &format!("FROM scratch\n{more}"), &[]);
    scene.env.build("localhost/rootfs:v1", &context);
    let ran = scene.imgctl(&["run", "localhost/rootfs:v1"]).fails(USAGE);
    assert!(ran.stderr().contains("only applications"), "{}", ran.report());
    // A registry that refuses: nothing is installed.
    let closed = Registry::with_login();
    let refused = scene.imgctl(&["run", &shop, "--registry", &closed.host]);
    assert!(!refused.success() && !scene.has(&format!("{MAP}/settings")), "{}", refused.report());
    assert!(!refused.report().contains("testtoken"));
    scene.imgctl(&["run", &shop, "--registry", &closed.host, "--creds", "me:secret"]).ok();
    assert!(scene.has(&format!("{MAP}/settings")));
}
