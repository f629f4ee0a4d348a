//! Registries on a full disk: a push says so and leaves the tree sound, and works once there is
//! room.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, needs_root};
use crate::registry_faults::bench::{NETWORK, at, make, says};
use crate::registry_faults::server::{Server, assert_tree_scrubs_clean};

/// A tree on a file system of its own.
struct Small {
    env: TestEnv,
    tree: PathBuf,
}

impl Small {
    fn new() -> Self {
        let env = TestEnv::new();
        let tree = env.path("tree");
        std::fs::create_dir(&tree).unwrap();
        mount("tmpfs", &tree, "tmpfs", MountFlags::empty(), c"size=32m,mode=755").unwrap();
        make(&env, "maker", "team/app:v1", 3);
        Self { env, tree }
    }

    fn push(&self, host: &str) -> Ran {
        let root = self.env.path("maker");
        let name = format!("{host}/team/app:v1");
        Ran::new(at(&root, ["push", "--retry=2", "localhost/team/app:v1", &name]))
    }

    /// Leaves so little of the disk that a layer of [`crate::registry_faults::bench::BIG`] bytes does not fit, sees
    /// the push fail, and makes room again.
    fn fill_and_free(&self, host: &str, words: &[&str]) {
        let ballast = self.tree.join("ballast");
        std::fs::write(&ballast, vec![1; 30 << 20]).unwrap();
        let ran = self.push(host);
        println!("{}", ran.report());
        let ran = ran.fails(NETWORK);
        says("full", &ran, &["cannot push blob sha256:", host, "team/app"]);
        says("full", &ran, words);
        Ran::new(at(&self.env.path("maker"), ["scrub", "--deep"])).ok();
        std::fs::remove_file(ballast).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(Path::new(&self.tree), UnmountFlags::DETACH);
    }
}

#[test]
fn docker_registry_is_full() {
    if !needs_root() {
        return;
    }
    let small = Small::new();
    let registry = Registry::over(&small.tree);
    small.fill_and_free(&registry.host, &["500"]);
    // It may have left links that are empty, and trips over them.
    let _ = std::fs::remove_dir_all(small.tree.join("docker/registry/v2/repositories"));
    small.push(&registry.host).ok();
    registry.assert_serves("team/app:v1");
}

#[test]
fn our_own_server_is_full() {
    if !needs_root() {
        return;
    }
    let small = Small::new();
    let server = Server::start(&small.tree);
    small.fill_and_free(&server.host, &["507", "no room"]);
    small.push(&server.host).ok();
    server.stop();
    assert_tree_scrubs_clean(&small.tree);
    Registry::over(&small.tree).assert_serves("team/app:v1");
}
