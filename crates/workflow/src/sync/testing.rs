//! Fake hosts that are directories of this machine, without SSH and agents. Blobs are moved between
//! real stores; "checking out" a tree records its ID once all its layers are there.
//!
//! The tests with real agents, on hosts with their own addresses, are in tests/sync/.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::sync::execute::{Origin, Watch};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_base::workers::lock;
use imgctl_host::agent::protocol::{
    Assemble, CheckedOut, Checkout, Facts, FileToWrite, HeldLayer, HostsBlock, Inventory,
    InventoryQuestion, MadeFrom, Outcome, OutputLine, PeerSource, RegistryPull, Run,
};
use imgctl_host::agent::{Agent, BlobOpener};
use imgctl_store::store::{Options, Store};

/// The network of the fake hosts.
pub(super) struct Lan {
    hosts: Mutex<Vec<Arc<TestHost>>>,
    /// Part of the network for each host: only hosts in the same part reach each other.
    pub(super) part: fn(usize) -> usize,
    /// What the registry answers to a host; by default, that there is none.
    pub(super) registry: Mutex<Box<Registry>>,
    /// Number of pulls that hosts have tried.
    pub(super) pulls: AtomicUsize,
    /// Number of running fetches and sends, and the maximum so far.
    now: AtomicUsize,
    pub(super) most: AtomicUsize,
    _directory: tempfile::TempDir,
}

/// Returns the bytes of a blob for the host with this number.
pub(super) type Registry = dyn Fn(usize, &Digest) -> Result<Vec<u8>> + Send;

pub(super) struct TestHost {
    name: String,
    number: usize,
    lan: std::sync::Weak<Lan>,
    pub(super) store: Store,
    pub(super) architecture: Mutex<String>,
    pub(super) trees: Mutex<BTreeMap<String, String>>,
    /// What is recorded about the current trees.
    pub(super) made_from: Mutex<BTreeMap<String, MadeFrom>>,
    /// Layers of the current trees.
    pub(super) held: Mutex<Vec<HeldLayer>>,
    pub(super) applied: Mutex<BTreeSet<Digest>>,
    pub(super) checkouts: Mutex<Vec<Checkout>>,
    offering: AtomicBool,
    pub(super) offers: AtomicUsize,
    pub(super) asked: AtomicUsize,
    pub(super) sent: AtomicU64,
    pub(super) fetched: AtomicU64,
    /// Number of transferring or creating calls that still succeed; after them, the host is dead.
    pub(super) life: AtomicUsize,
    /// Whether the host fails to become a peer source.
    pub(super) is_dumb: AtomicBool,
}

impl Lan {
    pub(super) fn new(count: usize, part: fn(usize) -> usize) -> Arc<Self> {
        let directory = tempfile::tempdir().unwrap();
        let lan = Arc::new(Self {
            hosts: Mutex::default(),
            part,
            registry: Mutex::new(Box::new(|_, _| Err(Error::failed("no registry")))),
            pulls: AtomicUsize::new(0),
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            _directory: directory,
        });
        let hosts = (0..count).map(|number| {
            let root = lan._directory.path().join(number.to_string());
            Arc::new(TestHost {
                name: name(number),
                number,
                lan: Arc::downgrade(&lan),
                store: Store::open(&root, Options { sync: false }).unwrap(),
                architecture: Mutex::new("amd64".to_owned()),
                trees: Mutex::default(),
                made_from: Mutex::default(),
                held: Mutex::default(),
                applied: Mutex::default(),
                checkouts: Mutex::default(),
                offering: AtomicBool::new(false),
                offers: AtomicUsize::new(0),
                asked: AtomicUsize::new(0),
                sent: AtomicU64::new(0),
                fetched: AtomicU64::new(0),
                life: AtomicUsize::new(usize::MAX),
                is_dumb: AtomicBool::new(false),
            })
        });
        *lock(&lan.hosts) = hosts.collect();
        lan
    }

    pub(super) fn host(&self, number: usize) -> Arc<TestHost> {
        Arc::clone(&lock(&self.hosts)[number])
    }
}

pub(super) fn name(number: usize) -> String {
    format!("10.9.{}.{}", number / 250, number % 250 + 1)
}

impl TestHost {
    fn live(&self) -> Result<()> {
        let left = self.life.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left > 0).then(|| if left == usize::MAX { left } else { left - 1 })
        });
        match left {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::network(format!("{}: lost", self.name))),
        }
    }

    fn busy<T>(&self, work: impl FnOnce() -> T) -> T {
        let lan = self.lan.upgrade().unwrap();
        let now = lan.now.fetch_add(1, Ordering::SeqCst) + 1;
        lan.most.fetch_max(now, Ordering::SeqCst);
        let result = work();
        lan.now.fetch_sub(1, Ordering::SeqCst);
        result
    }

    pub(super) fn has(&self, blob: &Digest) -> bool {
        self.store.blob_size(blob).unwrap().is_some()
    }
}

impl Agent for TestHost {
    fn host(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> Result<Facts> {
        Ok(Facts {
            hostname: format!("h{}", self.number),
            architecture: lock(&self.architecture).clone(),
            ..Facts::default()
        })
    }

    fn inventory(&self, question: &InventoryQuestion) -> Result<Inventory> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.life.load(Ordering::Relaxed) == 0 {
            return Err(Error::network(format!("{}: lost", self.name)));
        }
        let trees = lock(&self.trees);
        let applied = lock(&self.applied);
        Ok(Inventory {
            blobs: question.blobs.iter().filter(|blob| self.has(blob)).cloned().collect(),
            registry_layers: question
                .registry_layers
                .iter()
                .filter(|layer| applied.contains(layer))
                .cloned()
                .collect(),
            trees: question
                .trees
                .iter()
                .filter_map(|tree| Some((tree.clone(), trees.get(tree)?.clone())))
                .collect(),
            made: question
                .trees
                .iter()
                .filter_map(|tree| Some((tree.clone(), vec![trees.get(tree)?.clone()])))
                .collect(),
            made_from: lock(&self.made_from).clone(),
            held: lock(&self.held).clone(),
            ..Inventory::default()
        })
    }

    fn send_blob(
        &self,
        blob: &Descriptor,
        open: &BlobOpener<'_>,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        self.live()?;
        self.busy(|| {
            self.store.complete_blob(&blob.digest, blob.size, &|offset| Ok(open(offset)? as _))
        })?;
        sent(blob.size);
        self.sent.fetch_add(blob.size, Ordering::Relaxed);
        Ok(())
    }

    fn pull(
        &self,
        request: &RegistryPull,
        fetched: &(dyn Fn(u64) + Sync),
        _: &AtomicBool,
    ) -> Result<()> {
        self.live()?;
        let lan = self.lan.upgrade().unwrap();
        lan.pulls.fetch_add(1, Ordering::Relaxed);
        assert!(!request.from.is_empty(), "{request:?}");
        let bytes = (lock(&lan.registry))(self.number, &request.blob.digest)?;
        fetched(bytes.len() as u64);
        self.store.import_blob(&mut &bytes[..], &request.blob.digest, request.blob.size)
    }

    fn assemble(&self, request: &Assemble) -> Result<()> {
        self.live()?;
        imgctl_host::agent::assembly::assemble(&self.store, request)
    }

    fn offer(&self) -> Result<PeerSource> {
        self.live()?;
        if self.is_dumb.load(Ordering::Relaxed) {
            return Err(Error::failed("no port"));
        }
        self.offers.fetch_add(1, Ordering::Relaxed);
        self.offering.store(true, Ordering::Relaxed);
        Ok(PeerSource {
            addresses: vec!["192.0.2.1".to_owned()],
            port: u16::try_from(self.number).unwrap(),
            token: self.name.clone(),
        })
    }

    fn withdraw(&self) -> Result<()> {
        assert!(self.offering.swap(false, Ordering::Relaxed));
        Ok(())
    }

    fn fetch(
        &self,
        from: &PeerSource,
        blobs: &[Descriptor],
        fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Digest>> {
        self.live()?;
        let lan = self.lan.upgrade().unwrap();
        let source = lan.host(usize::from(from.port));
        assert_eq!(from.addresses[0], source.name, "the address that we know comes first");
        let all = || blobs.iter().map(|blob| blob.digest.clone()).collect();
        let reaches = (lan.part)(self.number) == (lan.part)(source.number);
        if !reaches || !source.offering.load(Ordering::Relaxed) || source.live().is_err() {
            return Ok(all());
        }
        let mut missing = Vec::new();
        for blob in blobs {
            let Ok(mut file) = source.store.open_blob(&blob.digest) else {
                missing.push(blob.digest.clone());
                continue;
            };
            self.busy(|| self.store.import_blob(&mut file, &blob.digest, blob.size))?;
            fetched(blob.size);
            self.fetched.fetch_add(blob.size, Ordering::Relaxed);
        }
        Ok(missing)
    }

    fn checkout(&self, request: &Checkout, done: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut> {
        self.live()?;
        let is_current = lock(&self.trees).get(&request.tree) == Some(&request.id);
        for layer in &request.layers {
            let digest = &layer.descriptor.digest;
            if (layer.registry || !is_current) && !self.has(digest) {
                return Err(Error::not_found(format!("{}: no blob {digest}", self.name)));
            }
            if layer.registry || request.registry && layer.descriptor.layer_kind().is_none() {
                lock(&self.applied).insert(digest.clone());
            }
            if layer.registry {
                self.store.discard(std::slice::from_ref(digest))?;
            }
            done(layer.descriptor.size);
        }
        lock(&self.trees).insert(request.tree.clone(), request.id.clone());
        let kept = request.layers.iter().filter(|layer| !layer.registry);
        *lock(&self.held) = kept
            .map(|layer| HeldLayer {
                descriptor: layer.descriptor.clone(),
                diff_id: layer.diff_id.clone(),
            })
            .collect();
        lock(&self.checkouts).push(request.clone());
        Ok(CheckedOut { changed: !is_current, ..CheckedOut::default() })
    }

    fn run(&self, _: &Run, _: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        Err(Error::failed("not here"))
    }

    fn cancel(&self, _: &str, _: &str) -> Result<()> {
        Err(Error::failed("not here"))
    }

    fn write_file(&self, _: &FileToWrite) -> Result<bool> {
        Err(Error::failed("not here"))
    }

    fn read_file(&self, _: &str, _: u64) -> Result<Option<Vec<u8>>> {
        Err(Error::failed("not here"))
    }

    fn remove(&self, _: &[String]) -> Result<Vec<String>> {
        Err(Error::failed("not here"))
    }

    fn set_hosts(&self, _: &HostsBlock) -> Result<bool> {
        Err(Error::failed("not here"))
    }
}

/// A watch that ignores all events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn moved(&self, _host: &str, _from: Origin<'_>, _bytes: u64) {}

    fn lost(&self, _host: &str, _bytes: u64) {}

    fn checkout(&self, _host: &str, _tree: &str) {}

    fn unpacked(&self, _host: &str, _bytes: u64) {}

    fn ended(&self, _host: &str, _well: bool) {}
}
