//! Many at once: pulls of one image, pulls beside prunes, pushes of the same blobs to one server
//! and to two servers of one tree.

use std::process::{Command, Stdio};

use crate::common::registry::Registry;
use crate::common::{TestEnv, long};
use crate::faults::support::{assert_prunes_clean, assert_scrubs_clean};
use crate::registry_faults::bench::{Bench, at, make};
use crate::registry_faults::server::{Server, assert_tree_scrubs_clean};

fn rounds() -> u32 {
    if long() { 30 } else { 2 }
}

/// Runs commands at the same time; each must succeed.
#[track_caller]
fn all(commands: impl IntoIterator<Item = Command>) {
    let running: Vec<_> = commands
        .into_iter()
        .map(|mut command| {
            command.stdout(Stdio::null()).stderr(Stdio::piped());
            (format!("{command:?}"), command.spawn().unwrap())
        })
        .collect();
    for (line, child) in running {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {}\n{said}", output.status);
    }
}

#[test]
fn pulls_of_one_image_and_prunes() {
    let bench = Bench::new();
    let (env, name) = (&bench.env, bench.name());
    for _ in 0..rounds() {
        all([
            env.command(["pull", &name]),
            env.command(["pull", "--unpack", &name]),
            env.command(["prune", "--all"]),
            env.command(["pull", &name]),
            env.command(["prune"]),
            env.command(["pull", "--unpack", "--policy=missing", &name]),
            env.command(["images"]),
        ]);
        bench.pulls(&["--policy=never"]);
        assert_prunes_clean(env);
        env.imgctl(["rmi", "--all", "--yes"]).ok();
        env.imgctl(["prune", "--all"]).ok();
    }
}

#[test]
fn pulls_of_one_image_fetch_its_layers_once() {
    let bench = Bench::new();
    let (env, name) = (&bench.env, bench.name());
    let path = format!("/blobs/{}", bench.layer());
    let pull = || env.command(["pull", &name]);
    all([pull(), pull(), pull(), pull(), pull()]);
    assert_eq!(bench.proxy.count("GET", &path), 1);
    bench.pulls(&[]);
}

/// Stores whose images share their large layer.
fn two_makers(env: &TestEnv) -> [std::path::PathBuf; 2] {
    ["first", "second"].map(|root| make(env, root, "team/app:v1", 1))
}

#[test]
fn pushes_of_the_same_blobs() {
    let env = TestEnv::new();
    let [first, second] = two_makers(&env);
    let docker = Registry::start();
    for _ in 0..rounds() {
        let tree = env.path("tree");
        let _ = std::fs::remove_dir_all(&tree);
        let ours = Server::start(&tree);
        let _ = std::fs::remove_dir_all(docker.data().join("docker"));
        let push = |root, host: &str, name: &str| {
            let name = format!("{host}/{name}");
            at(root, ["push", "localhost/team/app:v1", &name])
        };
        all([
            push(&first, &ours.host, "team/app:v1"),
            push(&second, &ours.host, "team/app:v1"),
            push(&first, &ours.host, "team/app:v2"),
            push(&second, &ours.host, "team/other:v1"),
            // Two at once in one repository it does not stand: it reads half-written links.
            push(&first, &docker.host, "team/app:v1"),
            push(&second, &docker.host, "team/other:v1"),
        ]);
        ours.stop();
        assert_tree_scrubs_clean(&tree);
        let served = Registry::over(&tree);
        for name in ["team/app:v1", "team/app:v2", "team/other:v1"] {
            served.assert_serves(name);
        }
        for name in ["team/app:v1", "team/other:v1"] {
            docker.assert_serves(name);
        }
    }
}

#[test]
fn two_servers_of_one_tree() {
    let env = TestEnv::new();
    let [first, second] = two_makers(&env);
    for _ in 0..rounds() {
        let tree = env.path("tree");
        let _ = std::fs::remove_dir_all(&tree);
        let (one, other) = (Server::start(&tree), Server::start(&tree));
        let push = |root, server: &Server| {
            let name = format!("{}/team/app:v1", server.host);
            at(root, ["push", "localhost/team/app:v1", &name])
        };
        all([push(&first, &one), push(&second, &other)]);
        // What one took the other has.
        for server in [&one, &other] {
            let pulled = TestEnv::new();
            let name = format!("{}/team/app:v1", server.host);
            pulled.imgctl(["pull", &name]).ok();
            assert_scrubs_clean(&pulled);
        }
        assert_tree_scrubs_clean(&tree);
    }
}
