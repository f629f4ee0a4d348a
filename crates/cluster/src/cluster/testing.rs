//! Cluster contexts and images for unit tests.

use std::collections::BTreeMap;

use crate::cluster::context::{ClusterContext, DATA_ROOT, Host, Paths, RegistryAccess};
use crate::cluster::image::{ClusterImage, ImageKind};
use imgctl_base::{image::Digest, secret::Secret};
use imgctl_host::host::address::Address;

/// Returns a cluster context with one host per element, from 10.0.0.1 on, with these roles
/// (separated by commas).
pub fn context(roles: &[&str]) -> ClusterContext {
    ClusterContext {
        adopted: None,
        name: "test".into(),
        hosts: (1..).zip(roles).map(|(at, roles)| host(at, roles)).collect(),
        leaving: Vec::new(),
        images: Vec::new(),
        paths: Paths::new(DATA_ROOT, "test"),
        state_directory: "/nowhere".into(),
        environment: BTreeMap::new(),
        flag_environment: BTreeMap::new(),
        registry: Some(RegistryAccess {
            domain: "sealos.hub".into(),
            port: 5000,
            username: "admin".into(),
            password: Secret::new("drawn-pass"),
            data: "/var/lib/registry".into(),
        }),
        vip: None,
        documents: Vec::new(),
    }
}

fn host(at: u32, roles: &str) -> Host {
    Host {
        address: Address { name: format!("10.0.0.{at}"), port: 22 },
        roles: roles.split(',').map(str::to_owned).collect(),
        environment: BTreeMap::new(),
        login: imgctl_host::host::login::Login::default(),
        local: false,
    }
}

/// Returns an image without layers, labels and commands.
pub fn image(name: &str, kind: ImageKind) -> ClusterImage {
    ClusterImage {
        name: name.into(),
        mount_name: format!("test-{}", &Digest::of(name.as_bytes()).hex()[..8]),
        kind,
        digest: Digest::of(name.as_bytes()),
        labels: BTreeMap::new(),
        environment: BTreeMap::new(),
        entrypoint: Vec::new(),
        command: Vec::new(),
        layers: Vec::new(),
    }
}
