//! Runs the lines with real bash against a real registry.

use std::process::{Command, Output};
use std::{collections::BTreeMap, path::Path, sync::Arc};

use crate::registry::{clean_steps, lines, registry_steps};
use crate::{ImageFiles, action::Line};
use imgctl_base::image::{Digest, media_type};
use imgctl_base::{error::Result, secret::Secret};
use imgctl_host::host::{address::Address, login::Login};
use imgctl_model::context::{ClusterContext, Host, Paths, RegistryAccess};
use imgctl_model::image::{ClusterImage, ImageKind};
use imgctl_model::state_files::StateFiles;
use imgctl_registry::layout::{Facts, Layout};
use imgctl_registry::server::{LayoutBackend, Limits, ServeOptions, Server, hash_password};

struct NoFiles;

impl ImageFiles for NoFiles {
    fn read(&self, _: &ClusterImage, _: &str) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

fn host(name: &str, roles: &[&str]) -> Host {
    Host {
        address: Address { name: name.to_owned(), port: 22 },
        roles: roles.iter().map(|&role| role.to_owned()).collect(),
        environment: BTreeMap::new(),
        login: Login::default(),
        local: false,
    }
}

fn context(directory: &Path, port: u16) -> ClusterContext {
    ClusterContext {
        name: "default".to_owned(),
        hosts: vec![
            host("10.0.0.1", &["master"]),
            host("10.0.0.2", &["master", "registry"]),
            host("10.0.0.3", &["node", "registry"]),
        ],
        images: vec![ClusterImage {
            name: "etcd:v1".to_owned(),
            mount_name: "default-1".to_owned(),
            kind: ImageKind::Rootfs,
            digest: Digest::of(b"x"),
            labels: BTreeMap::new(),
            environment: BTreeMap::new(),
            entrypoint: Vec::new(),
            command: Vec::new(),
            layers: Vec::new(),
        }],
        paths: Paths::new(directory.to_str().unwrap(), "default"),
        state: StateFiles::plain(directory.join("state")),
        registry: Some(RegistryAccess {
            domain: "sealos.hub".to_owned(),
            port,
            username: "admin".to_owned(),
            password: Secret::new("pa$$\"word"),
            data: directory.join("var/registry").to_str().unwrap().to_owned(),
        }),
        vip: None,
        ..imgctl_model::testing::context(&[])
    }
}

fn bash(line: &Line) -> Output {
    Command::new("timeout")
        .args(["60", "bash", "-e", "-c", &line.line])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(line.environment.to_map())
        .output()
        .unwrap()
}

fn errors(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_data_directory_becomes_a_link_and_nothing_foreign_is_harmed() {
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path(), 1);
    let access = context.registry.clone().unwrap();
    let data = Path::new(&access.data);
    let link = || bash(&lines::link_data(&context, &access));
    let tree = directory.path().join("data/default/registry");
    for _ in 0..2 {
        assert!(link().status.success());
        assert_eq!(std::fs::read_link(data).unwrap(), tree);
    }
    // The same directory through another path, as an image's script links it.
    let rootfs = directory.path().join("data/default/rootfs");
    std::fs::create_dir(&rootfs).unwrap();
    std::os::unix::fs::symlink("../registry", rootfs.join("registry")).unwrap();
    std::fs::remove_file(data).unwrap();
    std::os::unix::fs::symlink(rootfs.join("registry"), data).unwrap();
    assert!(link().status.success());
    assert_eq!(std::fs::read_link(data).unwrap(), rootfs.join("registry"));
    assert!(bash(&lines::unlink_data(&context, &access)).status.success());
    assert!(std::fs::symlink_metadata(data).is_err());
    assert!(bash(&lines::unlink_data(&context, &access)).status.success());
    // An empty directory and a dangling link can be replaced.
    std::fs::create_dir(data).unwrap();
    assert!(link().status.success());
    std::fs::remove_file(data).unwrap();
    std::os::unix::fs::symlink("/nonexistent/registry", data).unwrap();
    assert!(link().status.success());
    std::fs::remove_file(data).unwrap();
    // Data, a link and a file of others are kept.
    std::fs::create_dir(data).unwrap();
    std::fs::write(data.join("theirs"), "x").unwrap();
    let text = errors(&link());
    assert!(text.contains(&access.data) && text.contains("holds data"), "{text}");
    assert!(data.join("theirs").exists());
    std::fs::rename(data, directory.path().join("var/other")).unwrap();
    std::os::unix::fs::symlink("other", data).unwrap();
    assert!(errors(&link()).contains("is a link to other"));
    assert!(bash(&lines::unlink_data(&context, &access)).status.success());
    assert!(data.join("theirs").exists());
    std::fs::remove_file(data).unwrap();
    std::fs::write(data, "").unwrap();
    assert!(errors(&link()).contains("is not a directory"));
}

#[test]
fn a_registry_is_waited_for_with_its_login_and_each_image_has_to_answer() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("data/default/registry");
    std::fs::create_dir_all(&tree).unwrap();
    let users = directory.path().join("users");
    let mut context = context(directory.path(), 1);
    let access = context.registry.clone().unwrap();
    let hash = hash_password(&access.password).unwrap();
    std::fs::write(&users, format!("admin:{hash}\n")).unwrap();
    let layout = Layout::create(&tree, false).unwrap();
    let config = layout_blob(&layout, b"{}");
    let manifest = serde_json::to_vec(&serde_json::json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "layers": [],
        "config": {"mediaType": media_type::OCI_CONFIG, "digest": config, "size": 2},
    }))
    .unwrap();
    let options = ServeOptions {
        addresses: vec!["127.0.0.1:0".parse().unwrap()],
        tls: None,
        htpasswd: Some(users),
        token: None,
        anonymous_pull: false,
        read_only: true,
        deletion: false,
        sparse: false,
        limits: Limits::default(),
        names: None,
        log: None,
        candid: false,
    };
    let backend = LayoutBackend::new(Layout::open(&tree, false).unwrap());
    let server = Server::bind(&options, Arc::new(backend)).unwrap();
    context.registry.as_mut().unwrap().port = server.address().port();
    let access = context.registry.clone().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = std::thread::spawn(move || {
        server.run(async {
            let _ = stopped.await;
        })
    });
    let wait = bash(&lines::wait(&access, &lines::unit_name(&context)));
    assert!(wait.status.success(), "{wait:?}");
    let mut stranger = access.clone();
    stranger.password = Secret::new("other");
    let text = errors(&bash(&lines::wait(&stranger, &lines::unit_name(&context))));
    assert!(text.contains("401") && text.contains("registry_htpasswd"), "{text}");

    let verify = |access: &RegistryAccess| bash(&lines::verify(&context, access));
    let none = verify(&access);
    assert!(none.status.success(), "{none:?}");
    let digest = Digest::of(&manifest);
    let facts = Facts::parse(&manifest).unwrap();
    for repository in ["a", "library/b"] {
        for tag in ["1", "2"] {
            layout.link_layer(repository, &config).unwrap();
            layout.put_manifest(repository, &[tag], &digest, &manifest, &facts).unwrap();
        }
    }
    let output = verify(&access);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "4 images answer\n", "{output:?}");
    // An image that is listed but missing.
    let mut gone = manifest.clone();
    gone.push(b'\n');
    let digest = Digest::of(&gone);
    layout.put_manifest("library/b", &["3"], &digest, &gone, &facts).unwrap();
    let hex = digest.hex();
    let blob = format!("docker/registry/v2/blobs/sha256/{}/{hex}", &hex[..2]);
    std::fs::remove_dir_all(tree.join(blob)).unwrap();
    let text = errors(&verify(&access));
    assert!(text.contains("image library/b:3 does not answer: HTTP/1.1 404"), "{text}");
    assert!(text.contains("1 of 5 images"), "{text}");
    drop(stop);
    serving.join().unwrap().unwrap();
    let text = errors(&verify(&access));
    assert!(text.contains("no answer"), "{text}");
}

fn layout_blob(layout: &Layout, bytes: &[u8]) -> Digest {
    let digest = Digest::of(bytes);
    layout.put_blob(&mut &bytes[..], &digest, bytes.len() as u64).unwrap();
    digest
}

#[test]
fn registry_hosts_start_it_once_each_and_others_only_know_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path(), 5000);
    let [first, second, third] = &context.hosts[..] else { panic!() };
    assert!(registry_steps(&context, first, &NoFiles).unwrap().is_empty());
    let names = |actions: Vec<crate::Action>| -> Vec<String> {
        actions.into_iter().map(|action| action.name).collect()
    };
    let steps = registry_steps(&context, second, &NoFiles).unwrap();
    for step in &steps {
        let text = format!("{:?}", step.says);
        assert!(!text.contains("pa$$") && !text.contains("Basic"), "{text}");
    }
    assert_eq!(
        names(steps),
        [
            "registry-users",
            "registry-data",
            "registry-start",
            "registry-answers",
            "registry-images"
        ]
    );
    assert_eq!(
        names(clean_steps(&context, third, &NoFiles).unwrap()),
        ["registry-clean", "registry-unlink"]
    );
    let text = lines::unit_text(&context, context.registry.as_ref().unwrap());
    let start = text.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
    let root = context.paths.root();
    assert_eq!(
        start,
        format!(
            "ExecStart=\"{root}/bin/imgctl\" registry serve \"{root}/registry\" --port 5000 \
             --htpasswd \"{root}/etc/registry_htpasswd\""
        )
    );
}
