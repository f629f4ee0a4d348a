//! Several hosts on the loopback interface: 127.0.0.1 is containerd of each, the others have an address each.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;

use crate::agent::peers::answer::Node;
use crate::agent::peers::inventory::Holdings;
use crate::agent::peers::search::Search;
use crate::agent::peers::{Settings, exchange};
use imgctl_base::error::Result;
use imgctl_base::image::Digest;
use imgctl_base::workers::lock;
use imgctl_registry::serving::{Limits, Listener};

const TOKEN: &str = "a-token";

/// What a containerd has. Bytes under another digest are a damaged blob.
#[derive(Default)]
struct Shelf {
    blobs: Mutex<HashMap<Digest, Vec<u8>>>,
}

impl Holdings for Shelf {
    fn all(&self) -> Result<HashSet<Digest>> {
        Ok(lock(&self.blobs).keys().cloned().collect())
    }

    fn open(&self, digest: &Digest) -> Result<Option<(File, u64)>> {
        let blobs = lock(&self.blobs);
        let Some(bytes) = blobs.get(digest) else { return Ok(None) };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Ok(Some((file, bytes.len() as u64)))
    }
}

struct Bed {
    runtime: tokio::runtime::Runtime,
    hosts: Vec<(Arc<Node>, Arc<Shelf>, tokio::task::JoinHandle<()>)>,
    client: reqwest::Client,
    port: u16,
    directory: tempfile::TempDir,
}

fn address(at: usize) -> String {
    format!("127.0.7.{}", at + 1)
}

impl Bed {
    /// Starts hosts whose containerds have these blobs.
    fn new(held: &[&[(&Digest, &[u8])]]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let first = TcpListener::bind((address(0), 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let client = imgctl_registry::tls::builder().unwrap().no_proxy().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut bed = Self { runtime, hosts: Vec::new(), client, port, directory };
        let mut listeners = vec![first];
        for at in 1..held.len() {
            listeners.push(TcpListener::bind((address(at), port)).unwrap());
        }
        for (at, (listener, held)) in listeners.into_iter().zip(held).enumerate() {
            bed.start(at, held.len().max(1), listener, held);
        }
        bed
    }

    fn start(&mut self, at: usize, _: usize, listener: TcpListener, held: &[(&Digest, &[u8])]) {
        let shelf = Arc::new(Shelf::default());
        lock(&shelf.blobs)
            .extend(held.iter().map(|(digest, bytes)| ((*digest).clone(), bytes.to_vec())));
        let content: PathBuf = self.directory.path().join(at.to_string());
        std::fs::create_dir_all(content.join("blobs/sha256")).unwrap();
        let settings = Settings {
            cluster: "test".to_owned(),
            domain: "sealos.hub".to_owned(),
            address: address(at),
            port: self.port,
            peers: (0..4).map(address).collect(),
            token: Some(TOKEN.to_owned()),
            socket: PathBuf::new(),
            content: content.clone(),
        };
        let own: IpAddr = settings.address.parse().unwrap();
        let source: Arc<dyn Holdings> = Arc::clone(&shelf) as Arc<dyn Holdings>;
        let mut node = Node::new(settings.clone(), Arc::clone(&source)).unwrap();
        node.search = Search::over(&settings, Some(own)).unwrap();
        node.is_local = |address| address == IpAddr::V4(Ipv4Addr::LOCALHOST);
        let node = Arc::new(node);
        let entered = self.runtime.enter();
        let listener = Listener::new(listener, None, Limits::default(), Arc::clone(&node)).unwrap();
        drop(entered);
        let (tells, blobs) = (Arc::clone(&node), content.join("blobs/sha256"));
        let task = self.runtime.spawn(async move {
            tokio::select! {
                _ = listener.serve(std::future::pending()) => {}
                () = exchange::run(tells, source, blobs) => {}
            }
        });
        self.hosts.push((node, shelf, task));
    }

    /// Waits until `host` answers containerd's request for `digest` like this; returns the body.
    fn wait(&self, host: usize, digest: &Digest, expected: StatusCode) -> Vec<u8> {
        for _ in 0..1200 {
            let (status, body) = self.get(host, &format!("/v2/team/app/blobs/{digest}"), TOKEN, 0);
            if status == expected {
                return body.unwrap_or_default();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("host {host} never answers {expected}");
    }

    /// A request of containerd on `host`; the body is `None` if it breaks off.
    fn get(
        &self,
        host: usize,
        path: &str,
        token: &str,
        from: u64,
    ) -> (StatusCode, Option<Vec<u8>>) {
        self.runtime.block_on(async {
            let url = format!("http://{}:{}{path}", address(host), self.port);
            let mut request = self.client.get(url).bearer_auth(token);
            if from > 0 {
                request = request.header("range", format!("bytes={from}-"));
            }
            let answer = request.send().await.unwrap();
            let status = answer.status();
            (status, answer.bytes().await.ok().map(|body| body.to_vec()))
        })
    }

    fn fetched(&self, host: usize) -> u64 {
        self.hosts[host].0.fetched.load(Ordering::Relaxed)
    }
}

fn blob(seed: u8, length: usize) -> (Digest, Vec<u8>) {
    let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8 ^ seed).collect();
    (Digest::of(&bytes), bytes)
}

#[test]
fn what_another_host_has_comes_from_there() {
    let (digest, bytes) = blob(1, 3 << 20);
    let (other, _) = blob(2, 10);
    let bed = Bed::new(&[&[], &[(&digest, &bytes)], &[], &[]]);
    assert_eq!(bed.wait(0, &digest, StatusCode::OK), bytes);
    assert_eq!(bed.wait(3, &digest, StatusCode::OK), bytes);
    assert_eq!(bed.fetched(0), bytes.len() as u64);
    // containerd continues a blob that broke off.
    let path = format!("/v2/team/app/blobs/{digest}");
    let (status, body) = bed.get(2, &path, TOKEN, 1 << 20);
    assert_eq!((status, body.as_deref()), (StatusCode::PARTIAL_CONTENT, bytes.get(1 << 20..)));
    // Nobody has it, or it is a tag, or the client is none of the cluster's.
    let nothing = |path: &str, token: &str| bed.get(0, path, token, 0).0 == StatusCode::NOT_FOUND;
    assert!(nothing(&format!("/v2/team/app/blobs/{other}"), TOKEN));
    assert!(nothing("/v2/team/app/manifests/v1", TOKEN) && nothing(&path, "wrong"));
    // The only host that has it removes it.
    lock(&bed.hosts[1].1.blobs).clear();
    assert!(nothing(&path, TOKEN));
}

#[test]
fn new_content_is_told_when_the_directory_changes() {
    let (digest, bytes) = blob(3, 1000);
    let bed = Bed::new(&[&[], &[], &[], &[]]);
    bed.wait(0, &digest, StatusCode::NOT_FOUND);
    lock(&bed.hosts[2].1.blobs).insert(digest.clone(), bytes.clone());
    std::fs::write(bed.directory.path().join("2/blobs/sha256/x"), "").unwrap();
    assert_eq!(bed.wait(0, &digest, StatusCode::OK), bytes);
}

#[test]
fn other_bytes_never_make_a_complete_blob() {
    let (digest, bytes) = blob(4, 1 << 20);
    let mut damaged = bytes.clone();
    damaged[5] ^= 1;
    let bed = Bed::new(&[&[], &[(&digest, &damaged)], &[], &[]]);
    let path = format!("/v2/team/app/blobs/{digest}");
    let broken = (0..1200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let (status, body) = bed.get(0, &path, TOKEN, 0);
        (status == StatusCode::OK).then_some(body)
    });
    assert_eq!(broken, Some(None), "the damaged blob came to its end");
    // containerd goes on, and to a registry host from now on.
    assert_eq!(bed.get(0, &path, TOKEN, 100).0, StatusCode::NOT_FOUND);
}

#[test]
fn a_host_that_goes_is_replaced_by_another() {
    let (digest, bytes) = blob(5, 100_000);
    let bed = Bed::new(&[&[], &[(&digest, &bytes)], &[(&digest, &bytes)], &[]]);
    bed.wait(0, &digest, StatusCode::OK);
    bed.hosts[1].2.abort();
    for _ in 0..4 {
        assert_eq!(bed.wait(3, &digest, StatusCode::OK), bytes);
    }
}
