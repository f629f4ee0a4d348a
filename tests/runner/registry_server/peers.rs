//! Other people's clients against our server, and other people's server over our tree.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Ran, TestEnv};
use crate::registry_server::http::sha256;
use crate::registry_server::server::{INDEX, MANIFEST, Server};

/// Runs a peer with a home of its own; gives what it printed.
pub(crate) fn peer(env: &TestEnv, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command
        .env("HOME", env.path("home"))
        .env("TMPDIR", "/tmp")
        .env_remove("REGISTRY_AUTH_FILE")
        .args(arguments);
    if matches!(program, "podman" | "buildah") {
        std::fs::create_dir_all(env.path("home")).unwrap();
        let (root, runroot) = (env.path("containers"), env.path("runroot"));
        let mut own = Command::new(program);
        own.env("HOME", env.path("home"))
            .arg("--root")
            .arg(root)
            .arg("--runroot")
            .arg(runroot)
            .args(["--storage-driver", "vfs"])
            .args(arguments);
        command = own;
    }
    Ran::new(command).ok().stdout()
}

/// An image layout on disk with two platforms under `image`; gives its path.
pub(crate) fn layout(env: &TestEnv) -> PathBuf {
    let directory = env.path("layout");
    let add = |content: &[u8]| {
        let digest = sha256(content);
        env.write(format!("layout/blobs/{}", digest.replace(':', "/")), content);
        json!({"digest": digest, "size": content.len()})
    };
    let typed = |mut descriptor: Value, media_type: &str| {
        descriptor["mediaType"] = json!(media_type);
        descriptor
    };
    let mut children = Vec::new();
    for architecture in ["amd64", "arm64"] {
        env.write(format!("files-{architecture}/etc/arch"), architecture);
        let tar = env.path(format!("{architecture}.tar"));
        let mut command = Command::new("tar");
        command.args(["--format=ustar", "-cf"]).arg(&tar).arg("-C");
        command.arg(env.path(format!("files-{architecture}"))).arg(".");
        Ran::new(command).ok();
        let tar = std::fs::read(tar).unwrap();
        let config = json!({
            "architecture": architecture, "os": "linux", "config": {"Cmd": ["/x"]},
            "rootfs": {"type": "layers", "diff_ids": [sha256(&tar)]},
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": typed(add(config.to_string().as_bytes()), "application/vnd.oci.image.config.v1+json"),
            "layers": [typed(add(&tar), "application/vnd.oci.image.layer.v1.tar")],
        });
        let mut child = typed(add(manifest.to_string().as_bytes()), MANIFEST);
        child["platform"] = json!({"architecture": architecture, "os": "linux"});
        children.push(child);
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": children});
    let mut entry = typed(add(index.to_string().as_bytes()), INDEX);
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": "image"});
    let table = json!({"schemaVersion": 2, "manifests": [entry]});
    env.write("layout/index.json", table.to_string());
    env.write("layout/oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    directory
}

pub(crate) fn skopeo_push(env: &TestEnv, layout: &Path, address: &str, name: &str) {
    let source = format!("oci:{}:image", layout.display());
    let to = format!("docker://{address}/{name}");
    peer(
        env,
        "skopeo",
        &["copy", "-q", "--all", "--preserve-digests", "--dest-tls-verify=false", &source, &to],
    );
}

/// The manifest behind a name, as skopeo sees it.
pub(crate) fn raw(env: &TestEnv, address: &str, name: &str) -> String {
    let name = format!("docker://{address}/{name}");
    peer(env, "skopeo", &["inspect", "--raw", "--tls-verify=false", &name])
}

#[test]
fn skopeo_podman_and_buildah_push_and_pull() {
    let env = TestEnv::new();
    let layout = layout(&env);
    let server = Server::start(&env.path("r"), &["--delete"]);
    let address = server.address.as_str();
    skopeo_push(&env, &layout, address, "team/app:v1");
    let index = raw(&env, address, "team/app:v1");
    let digest = sha256(index.as_bytes());
    assert_eq!(raw(&env, address, &format!("team/app@{digest}")), index);
    let tags = peer(
        &env,
        "skopeo",
        &["list-tags", "--tls-verify=false", &format!("docker://{address}/team/app")],
    );
    assert!(tags.contains("\"v1\""), "{tags}");
    let name = format!("{address}/team/app:v1");
    peer(&env, "podman", &["pull", "-q", "--tls-verify=false", &name]);
    let pushed = format!("{address}/from/podman:v1");
    peer(&env, "podman", &["push", "-q", "--tls-verify=false", &name, &pushed]);
    let pulled = peer(&env, "buildah", &["from", "--tls-verify=false", "--name", "c", &pushed]);
    assert_eq!(pulled, "c");
    let docker = format!("docker://{address}/from/buildah:v1");
    peer(&env, "buildah", &["commit", "-q", "--tls-verify=false", "-f", "docker", "c", &docker]);
    let manifest: Value = serde_json::from_str(&raw(&env, address, "from/buildah:v1")).unwrap();
    assert_eq!(manifest["mediaType"], "application/vnd.docker.distribution.manifest.v2+json");
    let gone = format!("docker://{address}/from/buildah:v1");
    peer(&env, "skopeo", &["delete", "--tls-verify=false", &gone]);
    server.ask("GET", "/v2/from/buildah/manifests/v1").is(404);
    env.imgctl(["registry", "scrub", env.path("r").to_str().unwrap()]).ok();
}

#[test]
fn docker_registry_serves_our_tree_and_we_serve_its() {
    let env = TestEnv::new();
    let layout = layout(&env);
    let ours = env.path("ours");
    let server = Server::start(&ours, &[]);
    skopeo_push(&env, &layout, &server.address, "team/app:v1");
    let index = raw(&env, &server.address, "team/app:v1");
    server.stop();
    let docker = Server::docker(&ours);
    assert_eq!(raw(&env, &docker.address, "team/app:v1"), index);
    let by_digest = format!("team/app@{}", sha256(index.as_bytes()));
    assert_eq!(raw(&env, &docker.address, &by_digest), index);
    let theirs = env.path("theirs");
    let other = Server::docker(&theirs);
    let from = format!("docker://{}/team/app:v1", docker.address);
    let to = format!("docker://{}/team/copy:v2", other.address);
    peer(
        &env,
        "skopeo",
        &[
            "copy",
            "-q",
            "--all",
            "--preserve-digests",
            "--src-tls-verify=false",
            "--dest-tls-verify=false",
            &from,
            &to,
        ],
    );
    drop((docker, other));
    env.imgctl(["registry", "scrub", theirs.to_str().unwrap()]).ok();
    let server = Server::start(&theirs, &[]);
    assert_eq!(raw(&env, &server.address, "team/copy:v2"), index);
    // And what its blobs hold comes through us unchanged.
    let target = format!("oci:{}:copy", env.path("again").display());
    let from = format!("docker://{}/team/copy:v2", server.address);
    peer(
        &env,
        "skopeo",
        &["copy", "-q", "--all", "--preserve-digests", "--src-tls-verify=false", &from, &target],
    );
    let names = |path: PathBuf| {
        let entries = std::fs::read_dir(path.join("blobs/sha256")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(env.path("again")), names(layout));
}

struct Containerd(Child);

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn containerd_pulls_and_pushes_through_hosts_toml() {
    if !crate::common::needs_root() {
        return;
    }
    let env = TestEnv::new();
    let layout = layout(&env);
    let server = Server::start(&env.path("r"), &[]);
    skopeo_push(&env, &layout, &server.address, "library/app:v1");
    // The name says docker.io; hosts.toml says where it really is.
    let hosts = format!(
        "server = \"http://{0}\"\n[host.\"http://{0}\"]\ncapabilities = [\"pull\", \"resolve\", \"push\"]\n",
        server.address
    );
    env.write("hosts/docker.io/hosts.toml", hosts);
    let socket = env.path("c.sock");
    let config = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n[grpc]\naddress = {:?}\n[ttrpc]\naddress = {:?}\n",
        env.path("c-root"),
        env.path("c-state"),
        socket,
        env.path("c.ttrpc"),
    );
    let config = env.write("containerd.toml", config);
    let child = Command::new("containerd")
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("containerd is missing (scripts/setup installs it)");
    let _containerd = Containerd(child);
    let ctr = |arguments: &[&str]| {
        let mut command = Command::new("ctr");
        command.arg("-a").arg(&socket).args(arguments);
        Ran::new(command)
    };
    let begun = Instant::now();
    while !ctr(&["version"]).success() {
        assert!(begun.elapsed() < Duration::from_secs(120), "containerd does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    let hosts = env.path("hosts");
    let hosts = hosts.to_str().unwrap();
    let name = "docker.io/library/app:v1";
    ctr(&["content", "fetch", "--all-platforms", "--hosts-dir", hosts, name]).ok();
    let other = "docker.io/library/app:from-ctr";
    ctr(&["images", "tag", name, other]).ok();
    ctr(&["images", "push", "--hosts-dir", hosts, other]).ok();
    let index = raw(&env, &server.address, "library/app:v1");
    assert_eq!(raw(&env, &server.address, "library/app:from-ctr"), index);
    let log = server.stop();
    assert!(log.contains("ns=docker.io"), "{log}");
}
