//! A sync to hosts that exist in memory alone and move no bytes: what planning and scheduling cost the
//! controller, and how much its uplink would carry.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::sync::brief::{Brief, Images, Surroundings, Wants};
use crate::sync::execute::{Blobs, Limits, Origin, Watch, execute};
use crate::sync::plan::{Target, plan};
use crate::sync::recipe::Delta;
use crate::sync::source::Source;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, media_type};
use imgctl_base::workers::lock;
use imgctl_host::agent::protocol::{
    CheckedOut, Checkout, Facts, Inventory, InventoryQuestion, PeerSource,
};
use imgctl_host::agent::{Agent, BlobOpener};
use imgctl_model::context::Host;
use imgctl_model::image::{ClusterImage, ImageKind, ImageLayer};

/// What a sync took, and what it would have moved.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub planning: Duration,
    pub executing: Duration,
    /// Number of bytes that the controller sends.
    pub uplink: u64,
    /// Number of bytes that all hosts receive.
    pub moved: u64,
}

/// Syncs an image of `layers` layers of `size` bytes each to `hosts`.
pub fn simulate(hosts: &[Host], layers: usize, size: u64) -> Result<Figures> {
    let brief = Arc::new(brief(layers, size));
    let targets: Vec<Target> = hosts
        .iter()
        .map(|host| Target {
            host: host.clone(),
            agent: Arc::new(Idle { name: host.id() }),
            wants: Wants { rootfs: true, ..Wants::default() },
        })
        .collect();
    let started = Instant::now();
    let planned = plan(&brief, &targets, &AtomicBool::new(false))?;
    let planning = started.elapsed();
    let tally = Tally::default();
    let started = Instant::now();
    for synced in execute(planned, &Nothing, Limits::default(), &tally, &Arc::default())? {
        synced.result?;
    }
    if let Some(host) = lock(&tally.failed).first() {
        return Err(Error::failed(format!("host {host} was not synced")));
    }
    Ok(Figures {
        planning,
        executing: started.elapsed(),
        uplink: tally.uplink.into_inner(),
        moved: tally.moved.into_inner(),
    })
}

fn brief(layers: usize, size: u64) -> Brief {
    let layer = |number: usize| {
        let digest = Digest::of(number.to_string().as_bytes());
        ImageLayer {
            descriptor: Descriptor::new(media_type::OCI_LAYER_ZSTD, digest.clone(), size),
            diff_id: digest,
            registry: false,
        }
    };
    let image = ClusterImage {
        name: "simulated:v1".to_owned(),
        mount_name: "simulated-v1".to_owned(),
        kind: ImageKind::Rootfs,
        digest: Digest::of(b"simulated"),
        labels: BTreeMap::new(),
        environment: BTreeMap::new(),
        entrypoint: Vec::new(),
        command: Vec::new(),
        layers: (0..layers).map(layer).collect(),
    };
    Brief {
        root: "/var/lib/sealos/data/simulated".to_owned(),
        images: Images::from([("amd64".to_owned(), vec![image])]),
        configs: Vec::new(),
        strict: false,
        keep: 1,
        stage: false,
        delta: Delta::Never,
        source: Source::Controller,
        surroundings: Arc::new(Bare),
    }
}

/// Hosts without variables and facts.
struct Bare;

impl Surroundings for Bare {
    fn environment(&self, _: &Host) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn facts(&self, _: &Host, _: &Facts) -> Map<String, Value> {
        Map::new()
    }
}

/// A host that takes everything at once.
struct Idle {
    name: String,
}

impl Agent for Idle {
    fn host(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> Result<Facts> {
        Ok(Facts { architecture: "amd64".to_owned(), ..Facts::default() })
    }

    fn inventory(&self, _: &InventoryQuestion) -> Result<Inventory> {
        Ok(Inventory::default())
    }

    fn send_blob(
        &self,
        blob: &Descriptor,
        _: &BlobOpener<'_>,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        sent(blob.size);
        Ok(())
    }

    fn offer(&self) -> Result<PeerSource> {
        Ok(PeerSource { addresses: vec![self.name.clone()], port: 1, token: String::new() })
    }

    fn withdraw(&self) -> Result<()> {
        Ok(())
    }

    fn fetch(
        &self,
        _: &PeerSource,
        blobs: &[Descriptor],
        fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Digest>> {
        fetched(blobs.iter().map(|blob| blob.size).sum());
        Ok(Vec::new())
    }

    fn checkout(&self, _: &Checkout, _: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut> {
        Ok(CheckedOut::default())
    }
}

/// No bytes are read.
struct Nothing;

impl Blobs for Nothing {
    fn open(&self, blob: &Descriptor, _: u64) -> Result<Box<dyn std::io::Read + Send + 'static>> {
        Err(Error::failed(format!("blob {} is simulated", blob.digest)))
    }
}

#[derive(Default)]
struct Tally {
    uplink: AtomicU64,
    moved: AtomicU64,
    failed: Mutex<Vec<String>>,
}

impl Watch for Tally {
    fn moved(&self, _: &str, from: Origin<'_>, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        if from == Origin::Controller {
            self.uplink.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn lost(&self, _: &str, bytes: u64) {
        self.moved.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn checkout(&self, _: &str, _: &str) {}

    fn unpacked(&self, _: &str, _: u64) {}

    fn ended(&self, host: &str, well: bool) {
        if !well {
            lock(&self.failed).push(host.to_owned());
        }
    }
}
