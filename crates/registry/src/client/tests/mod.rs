//! Tests the client against Debian's docker-registry and against a faulty fake.

mod access;
mod bounds;
mod elsewhere;
mod fake;
mod faults;
mod files;
mod forms;
mod given;
mod own;
mod ranges;
mod real;
mod referrers;
mod uploads;

use std::io::Read;
use std::time::Duration;

use super::*;
use crate::credentials::Login;
use crate::registries::Certificates;
use imgctl_base::error::Kind;

/// Returns short timeouts for tests.
fn quick() -> Pace {
    Pace {
        connect: Duration::from_secs(5),
        answer: Duration::from_secs(2),
        write_answer: Duration::from_secs(5),
        silence: Duration::from_millis(700),
        least: 1,
        first_pause: Duration::from_millis(5),
        mirror_tries: 2,
    }
}

fn client(login: Option<Login>) -> Client {
    let mut options = ClientOptions::default();
    options.credentials.explicit = login;
    Client::with_pace(options, quick())
}

fn endpoint(host: &str, repository: &str) -> Endpoint {
    Endpoint {
        host: host.to_owned(),
        repository: repository.to_owned(),
        path: "v2".to_owned(),
        headers: Vec::new(),
        insecure: true,
        by_digest: true,
        by_tag: true,
        certificates: Certificates::default(),
    }
}

/// Returns a repository at one place without mirrors.
fn on(client: &Client, host: &str, repository: &str) -> Repository {
    behind(client, &[], host, repository)
}

/// Returns a repository at `host`, read through `mirrors`.
fn behind(client: &Client, mirrors: &[&str], host: &str, repository: &str) -> Repository {
    let mut read: Vec<Endpoint> = mirrors.iter().map(|host| endpoint(host, repository)).collect();
    read.push(endpoint(host, repository));
    let write = endpoint(host, repository);
    let route = Route { read, write };
    client.routed(format!("{host}/{repository}"), &route).unwrap()
}

/// Returns bytes that do not repeat for a long stretch.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn blob(bytes: &[u8]) -> Descriptor {
    Descriptor::new(media_type::OCI_LAYER, Digest::of(bytes), bytes.len() as u64)
}

fn read(repository: &Repository, descriptor: &Descriptor, offset: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut reader = repository.blob(descriptor, offset)?;
    reader.read_to_end(&mut bytes).map_err(|error| Error::io("cannot read", error))?;
    Ok(bytes)
}

fn push(repository: &Repository, bytes: &[u8], mount_from: &[&str]) -> Result<Pushed> {
    let mount_from: Vec<String> = mount_from.iter().map(|&name| name.to_owned()).collect();
    let whole = bytes.to_vec();
    let sent = std::sync::atomic::AtomicU64::new(0);
    let pushed = repository.push_blob(
        &blob(bytes),
        &mount_from,
        &move |offset| Ok(Box::new(std::io::Cursor::new(whole[offset as usize..].to_vec()))),
        &|more| {
            sent.fetch_add(more, std::sync::atomic::Ordering::Relaxed);
        },
    )?;
    let expected = if pushed == Pushed::Uploaded { bytes.len() as u64 } else { 0 };
    assert_eq!(sent.into_inner(), expected, "progress told");
    Ok(pushed)
}

fn tag(name: &str) -> Target {
    Target::Tag(name.to_owned())
}
