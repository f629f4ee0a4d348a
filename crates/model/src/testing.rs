//! Cluster contexts and images for unit tests.

use std::collections::BTreeMap;
use std::path::Path;

use crate::context::{ClusterContext, DATA_ROOT, Host, Paths, RegistryAccess};
use crate::image::{ClusterImage, ImageKind};
use crate::state_files::StateFiles;
use crate::state_identity::StateIdentity;
use imgctl_age::Recipients;
use imgctl_base::{image::Digest, secret::Secret};
use imgctl_host::host::address::Address;

/// An identity that nothing else uses, and its recipient.
pub const IDENTITY: &str =
    "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX";
pub const RECIPIENT: &str = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";

/// Returns the files of a state directory that is encrypted; the identity lies beside it.
pub fn encrypted_state(directory: &Path) -> StateFiles {
    let identity = directory.with_extension("identity");
    std::fs::write(&identity, IDENTITY).unwrap();
    let state = StateFiles::new(directory, StateIdentity::file(Some(identity)));
    let recipients = Recipients::parse(RECIPIENT, "the test").unwrap();
    state.change_recipients(Some(&recipients)).unwrap();
    state
}

/// Returns a cluster context with one host per element, from 10.0.0.1 on, with these roles
/// (separated by commas).
pub fn context(roles: &[&str]) -> ClusterContext {
    ClusterContext {
        adopted: None,
        unfinished: None,
        in_process: false,
        uid: None,
        renew_certificates: None,
        share_images: None,
        shared: crate::variables::SharedCache::default(),
        name: "test".into(),
        hosts: (1..).zip(roles).map(|(at, roles)| host(at, roles)).collect(),
        leaving: Vec::new(),
        images: Vec::new(),
        paths: Paths::new(DATA_ROOT, "test"),
        state: StateFiles::plain("/nowhere"),
        environment: BTreeMap::new(),
        flag_environment: BTreeMap::new(),
        registry: Some(registry()),
        vip: None,
        documents: Vec::new(),
    }
}

/// Returns the access to a registry of the cluster.
pub fn registry() -> RegistryAccess {
    RegistryAccess {
        domain: "sealos.hub".into(),
        port: 5000,
        username: "admin".into(),
        password: Secret::new("drawn-pass"),
        data: "/var/lib/registry".into(),
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
