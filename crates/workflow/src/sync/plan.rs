//! Determines which host lacks which blobs: one request to each host, and the conclusions from the
//! responses, for people and for programs. Must not depend on how blobs are transferred.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::ser::{Serialize, Serializer};
use serde_json::json;

use crate::sync::brief::{Brief, Wants};
use crate::sync::recipe::{Delta, Held};
use crate::sync::tree::{self, Tree};
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_base::workers::{lock, map};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::{Checkout, CheckoutLayer, Facts, Inventory, InventoryQuestion};
use imgctl_model::{context::Host, image::ImageKind};
use imgctl_store::mount::layers::LayerOf;

/// Maximum number of hosts to query at the same time.
const QUESTIONS: usize = 32;

/// A host and the content for it.
#[derive(Clone)]
pub struct Target {
    pub host: Host,
    pub agent: Arc<dyn Agent>,
    pub(crate) wants: Wants,
}

/// Work needed for every host to have its content. Shown through `Display` and serde.
pub struct SyncPlan {
    pub(crate) brief: Arc<Brief>,
    /// All layers that any host needs.
    pub blobs: Vec<Descriptor>,
    /// Their diff IDs.
    pub(super) diff_ids: Vec<Digest>,
    /// The repositories that they come from; none if the controller sends them.
    repositories: Vec<Vec<String>>,
    /// Hosts in the order of the targets, without those in `failed`.
    pub hosts: Vec<HostPlan>,
    /// Hosts that did not respond or that have no suitable image.
    pub failed: Vec<(Host, Error)>,
}

pub struct HostPlan {
    pub host: Host,
    pub agent: Arc<dyn Agent>,
    pub(super) facts: Facts,
    pub(super) registry: bool,
    /// Indexes in [`SyncPlan::blobs`] of the blobs to transfer, largest first.
    pub(super) lacks: Vec<u32>,
    /// Indexes in [`SyncPlan::blobs`] of the blobs that the host can give to others.
    pub(super) holds: Vec<u32>,
    /// Layers of the current trees that the host has.
    pub(super) held: Vec<LayerOf>,
    /// Number of bytes that the host will probably receive, if that is known and not all.
    pub(super) differing: Option<u64>,
    /// Trees with work to do.
    pub(super) changes: Vec<TreeChange>,
    /// IDs of all its trees after the sync, changed or not.
    pub trees: BTreeMap<String, String>,
    /// Whether the host's rootfs will be switched from the tree of another rootfs image.
    pub(crate) leaves_rootfs: bool,
}

/// Work for one tree of a host.
pub(super) struct TreeChange {
    pub(super) tree: Arc<Tree>,
    pub(super) id: String,
    /// ID of the current tree.
    pub(super) former: Option<String>,
    /// Whether the tree already exists, current or not.
    pub(super) is_made: bool,
    /// Whether the tree stays beside the current one.
    pub(super) stage: bool,
    /// Registry layers that have not been applied yet.
    pub(super) apply: BTreeSet<Digest>,
}

impl TreeChange {
    /// Reports whether the tree itself must be created or switched to.
    pub(super) fn makes(&self) -> bool {
        !self.is_made || self.switches()
    }

    /// Reports whether the tree replaces another.
    fn switches(&self) -> bool {
        !self.stage && self.former.as_ref() != Some(&self.id)
    }
}

impl HostPlan {
    /// Reports whether there is nothing to transfer and nothing to create.
    pub fn is_done(&self) -> bool {
        self.changes.is_empty()
    }

    pub fn bytes(&self, plan: &SyncPlan) -> u64 {
        self.missing(plan).map(|blob| blob.size).sum()
    }

    /// Returns the number of bytes that the host will probably receive.
    pub fn expected(&self, plan: &SyncPlan) -> u64 {
        self.differing.unwrap_or_else(|| self.bytes(plan))
    }

    /// Returns the layers of the host that a blob of the plan may resemble: those that the new
    /// images no longer have, of its kind.
    pub(super) fn resembled(&self, plan: &SyncPlan, blob: &Descriptor) -> Held {
        let is_new = |layer: &LayerOf| plan.blobs.iter().any(|b| b.digest == layer.blob.digest);
        let is_like =
            |layer: &&LayerOf| layer.blob.layer_kind() == blob.layer_kind() && !is_new(layer);
        let layers = self.held.iter().filter(is_like).cloned().collect();
        Held { layers, ..Held::default() }
    }

    pub fn missing<'a>(&'a self, plan: &'a SyncPlan) -> impl Iterator<Item = &'a Descriptor> {
        self.lacks.iter().map(|&blob| &plan.blobs[blob as usize])
    }

    /// Returns the request that creates one of the host's trees.
    pub(super) fn request(&self, plan: &SyncPlan, change: &TreeChange) -> Checkout {
        let inputs = change.tree.inputs(&plan.brief, &self.host, &self.facts);
        change.tree.request(&plan.brief, inputs, &change.id, self.registry, &change.apply)
    }
}

impl SyncPlan {
    /// Reports whether no host has work to do and none failed.
    #[cfg(test)]
    pub fn is_done(&self) -> bool {
        self.failed.is_empty() && self.hosts.iter().all(HostPlan::is_done)
    }

    /// Returns the total number of bytes that hosts must receive, from any source.
    pub fn bytes(&self) -> u64 {
        self.hosts.iter().map(|host| host.bytes(self)).sum()
    }
}

/// Queries every target once for its content, many at a time. A host that does not respond is a
/// failure of that host; only a problem that affects all hosts is an error here.
pub fn plan(brief: &Arc<Brief>, targets: &[Target], cancel: &AtomicBool) -> Result<SyncPlan> {
    let trees = Trees::default();
    let answers = map(targets, QUESTIONS, |target| {
        let answer = if cancel.load(Ordering::Relaxed) {
            Err(Error::failed("interrupted"))
        } else {
            ask(brief, target, &trees)
        };
        answer.context(|| format!("cannot plan the layers of {}", target.host.id()))
    });
    let mut blobs = Blobs::default();
    let (mut hosts, mut failed) = (Vec::new(), Vec::new());
    for (target, answer) in targets.iter().zip(answers) {
        match answer {
            Ok(answer) => hosts.push(host_plan(brief, target, answer, &mut blobs)),
            Err(error) => failed.push((target.host.clone(), error)),
        }
    }
    for host in &mut hosts {
        host.lacks.sort_by_key(|&blob| std::cmp::Reverse(blobs.list[blob as usize].size));
    }
    let Blobs { list: blobs, diff_ids, .. } = blobs;
    let names = |blob: &Descriptor| brief.source.names(&brief.images, &blob.digest);
    let repositories = blobs.iter().map(names).collect();
    Ok(SyncPlan { brief: Arc::clone(brief), blobs, diff_ids, repositories, hosts, failed })
}

/// Cache of trees: hosts of one architecture with the same content share them.
#[derive(Default)]
struct Trees {
    known: Mutex<Vec<(String, Wants, SharedTrees)>>,
}

type SharedTrees = Arc<[Arc<Tree>]>;

impl Trees {
    fn of(&self, brief: &Brief, architecture: &str, wants: &Wants) -> Result<SharedTrees> {
        let mut known = lock(&self.known);
        let found =
            known.iter().find(|(other, theirs, _)| other == architecture && theirs == wants);
        if let Some((_, _, trees)) = found {
            return Ok(Arc::clone(trees));
        }
        let trees: SharedTrees = tree::trees(brief, architecture, wants)?.into();
        known.push((architecture.to_owned(), wants.clone(), Arc::clone(&trees)));
        Ok(trees)
    }
}

/// Response of a host, and the IDs of the trees that it should have.
struct Answer {
    facts: Facts,
    trees: SharedTrees,
    ids: Vec<String>,
    inventory: Inventory,
}

fn ask(brief: &Brief, target: &Target, trees: &Trees) -> Result<Answer> {
    let facts = target.agent.facts()?;
    let trees = trees.of(brief, &facts.architecture, &target.wants)?;
    let blobs = |layers: &dyn Fn(&Tree) -> Vec<Digest>| -> Vec<Digest> {
        let all: BTreeSet<Digest> = trees.iter().flat_map(|tree| layers(tree)).collect();
        all.into_iter().collect()
    };
    let registry_layers = blobs(&|tree| {
        let mixed = tree.mixed_layers().filter(|_| target.wants.registry);
        digests(tree.registry_layers.iter().chain(mixed))
    });
    let inventory = target.agent.inventory(&InventoryQuestion {
        root: brief.root.clone(),
        blobs: blobs(&|tree| {
            let mut all = digests(&tree.layers);
            all.extend(digests(&tree.registry_layers));
            all
        }),
        registry_layers,
        trees: trees.iter().map(|tree| tree.name.clone()).collect(),
        registry_files: Vec::new(),
    })?;
    let ids = trees
        .iter()
        .map(|tree| id(brief, target, tree, &facts, &inventory))
        .collect::<Result<_>>()?;
    Ok(Answer { facts, trees, ids, inventory })
}

/// Returns the ID of the tree that the host should have. A current tree that would be made the same again (a
/// member joins, and no template mentions members) stays, and keeps its ID.
fn id(
    brief: &Brief,
    target: &Target,
    tree: &Tree,
    facts: &Facts,
    inventory: &Inventory,
) -> Result<String> {
    let registry = target.wants.registry;
    let inputs = tree.inputs(brief, &target.host, facts);
    let id = tree.id(&inputs, registry)?;
    let current = inventory.trees.get(&tree.name).filter(|current| **current != id);
    let (Some(current), Some(made_from)) = (current, inventory.made_from.get(&tree.name)) else {
        return Ok(id);
    };
    let request = tree.request(brief, inputs, &id, registry, &BTreeSet::new());
    Ok(if made_from.is_same(&request)? { current.clone() } else { id })
}

fn digests<'l>(layers: impl IntoIterator<Item = &'l CheckoutLayer>) -> Vec<Digest> {
    layers.into_iter().map(|layer| layer.descriptor.digest.clone()).collect()
}

/// All layers without duplicates, each with a number.
#[derive(Default)]
struct Blobs {
    list: Vec<Descriptor>,
    diff_ids: Vec<Digest>,
    numbers: BTreeMap<Digest, u32>,
}

impl Blobs {
    fn number(&mut self, blob: &Descriptor, diff_id: &Digest) -> u32 {
        if let Some(number) = self.numbers.get(&blob.digest) {
            return *number;
        }
        // There are never 2^32 layers.
        let number = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        self.numbers.insert(blob.digest.clone(), number);
        self.list.push(blob.clone());
        self.diff_ids.push(diff_id.clone());
        number
    }
}

fn host_plan(brief: &Brief, target: &Target, answer: Answer, blobs: &mut Blobs) -> HostPlan {
    let Answer { facts, trees, ids, inventory } = answer;
    let has: BTreeSet<&Digest> = inventory.blobs.iter().collect();
    let applied: BTreeSet<&Digest> = inventory.registry_layers.iter().collect();
    let held = inventory
        .held
        .iter()
        .map(|layer| LayerOf { blob: layer.descriptor.clone(), diff_id: layer.diff_id.clone() });
    let (mut lacks, mut holds) = (BTreeSet::new(), BTreeSet::new());
    let mut changes = Vec::new();
    let mut leaves_rootfs = false;
    for (tree, id) in trees.iter().zip(&ids) {
        let is_made = inventory.made.get(&tree.name).is_some_and(|made| made.contains(id));
        // The maker of the tree adds the registry data of the tree's own layers.
        let mixed = tree.mixed_layers().filter(|_| is_made && target.wants.registry);
        let apply: BTreeSet<Digest> = digests(tree.registry_layers.iter().chain(mixed))
            .into_iter()
            .filter(|digest| !applied.contains(digest))
            .collect();
        let change = TreeChange {
            tree: Arc::clone(tree),
            id: id.clone(),
            former: inventory.trees.get(&tree.name).cloned(),
            is_made,
            stage: brief.stage,
            apply,
        };
        if tree.name == tree::ROOTFS && change.switches() {
            let now = inventory.layers.get(&tree.name);
            leaves_rootfs = now.is_some_and(|now| !has_rootfs(brief, &facts.architecture, now));
        }
        for layer in tree.layers.iter().chain(&tree.registry_layers) {
            let digest = &layer.descriptor.digest;
            let is_needed = change.apply.contains(digest) || !layer.registry && !change.is_made;
            let number = blobs.number(&layer.descriptor, &layer.diff_id);
            if has.contains(digest) {
                holds.insert(number);
            } else if is_needed {
                lacks.insert(number);
            }
        }
        if change.makes() || !change.apply.is_empty() {
            changes.push(change);
        }
    }
    HostPlan {
        host: target.host.clone(),
        agent: Arc::clone(&target.agent),
        facts,
        registry: target.wants.registry,
        lacks: lacks.into_iter().collect(),
        holds: holds.into_iter().collect(),
        held: held.collect(),
        differing: None,
        changes,
        trees: trees.iter().zip(ids).map(|(tree, id)| (tree.name.clone(), id)).collect(),
        leaves_rootfs,
    }
}

/// Reports whether a tree of these layers contains the rootfs image. Patches and Config documents
/// also change the tree, but keep the rootfs image's layers.
fn has_rootfs(brief: &Brief, architecture: &str, layers: &[Digest]) -> bool {
    brief
        .images
        .get(architecture)
        .into_iter()
        .flatten()
        .filter(|image| image.kind == ImageKind::Rootfs)
        .flat_map(|image| image.layers.iter().filter(|layer| !layer.registry))
        .all(|layer| layers.contains(&layer.diff_id))
}

/// Number of characters of a tree's ID that are shown.
const SHORT: usize = 12;

/// Change to one tree, for people and programs.
#[derive(serde::Serialize)]
struct Change<'a> {
    tree: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    former: Option<&'a str>,
    registry_layers: usize,
}

impl<'a> From<&'a TreeChange> for Change<'a> {
    fn from(change: &'a TreeChange) -> Self {
        Self {
            tree: &change.tree.name,
            id: &change.id,
            former: change.former.as_deref(),
            registry_layers: change.apply.len(),
        }
    }
}

impl SyncPlan {
    /// Determines how many bytes each host will probably receive. `differing` gives those of a layer
    /// that a host with certain others lacks, if it can be known.
    pub fn estimate(&mut self, differing: &dyn Fn(&LayerOf, &Held) -> Option<u64>) {
        if self.brief.delta == Delta::Never {
            return;
        }
        let mut known: BTreeMap<(u32, Vec<Digest>), Option<u64>> = BTreeMap::new();
        for number in 0..self.hosts.len() {
            let host = &self.hosts[number];
            if host.host.local || host.held.is_empty() {
                continue;
            }
            let mut total = 0;
            for &blob in &host.lacks {
                let layer = self.layer(blob);
                let held = host.resembled(self, &layer.blob);
                let key = held.layers.iter().map(|layer| layer.blob.digest.clone()).collect();
                let part = known.entry((blob, key)).or_insert_with(|| {
                    if held.is_empty() { None } else { differing(&layer, &held) }
                });
                total += part.unwrap_or(layer.blob.size);
            }
            let is_less = total < host.bytes(self);
            self.hosts[number].differing = is_less.then_some(total);
        }
    }

    /// Returns a layer of the plan.
    pub(super) fn layer(&self, number: u32) -> LayerOf {
        let number = number as usize;
        LayerOf { blob: self.blobs[number].clone(), diff_id: self.diff_ids[number].clone() }
    }

    /// Returns the repositories from which a host gets the layers that no other host has.
    fn repositories_of(&self, host: &HostPlan) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        for name in host.lacks.iter().flat_map(|&blob| &self.repositories[blob as usize]) {
            if !found.contains(&name.as_str()) {
                found.push(name);
            }
        }
        found
    }

    /// Returns the work on one host, one line each; empty if there is none.
    pub fn says(&self, host: &HostPlan) -> Vec<String> {
        let mut lines = Vec::new();
        let count = host.missing(self).count();
        if count > 0 {
            let layers = if count == 1 { "layer" } else { "layers" };
            let differ = host
                .differing
                .map(|bytes| {
                    format!(", of which {} differ from the layers of the host", amount(bytes))
                })
                .unwrap_or_default();
            let from = self.repositories_of(host);
            let (verb, from) = if from.is_empty() {
                ("send", String::new())
            } else {
                ("pull", format!(" from {}", from.join(" and ")))
            };
            let size = amount(host.bytes(self));
            lines.push(format!("{verb} {count} {layers}, {size}{from}{differ}"));
        }
        for change in &host.changes {
            let short = |id: &str| id.get(..SHORT).unwrap_or(id).to_owned();
            if change.makes() {
                let instead = change
                    .former
                    .as_deref()
                    .map(|id| format!(" instead of {}", short(id)))
                    .unwrap_or_default();
                let verb = match (change.is_made, change.stage) {
                    (true, _) => "use",
                    (false, true) => "stage",
                    (false, false) => "make",
                };
                lines.push(format!("{verb} {} {}{instead}", change.tree.name, short(&change.id)));
            }
            match change.apply.len() {
                0 => {}
                1 => lines.push("add 1 layer to the registry".to_owned()),
                count => lines.push(format!("add {count} layers to the registry")),
            }
        }
        lines
    }
}

/// Prints one line per host: `10.0.0.11: send 3 layers, 120 MB; make rootfs 0a1b…`.
impl fmt::Display for SyncPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for host in &self.hosts {
            let says = self.says(host);
            let says = if says.is_empty() { "nothing to do".to_owned() } else { says.join("; ") };
            writeln!(f, "{}: {says}", host.host.id())?;
        }
        for (host, error) in &self.failed {
            writeln!(f, "{}: {error}", host.id())?;
        }
        Ok(())
    }
}

impl Serialize for SyncPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let hosts: Vec<_> = self
            .hosts
            .iter()
            .map(|host| {
                json!({
                    "host": host.host.id(),
                    "layers": host.missing(self).count(),
                    "bytes": host.bytes(self),
                    "differing": host.expected(self),
                    "repositories": self.repositories_of(host),
                    "changes": host.changes.iter().map(Change::from).collect::<Vec<_>>(),
                })
            })
            .collect();
        let failed = self.failed.iter();
        let failed: Vec<_> = failed
            .map(|(host, error)| json!({ "host": host.id(), "error": error.to_string() }))
            .collect();
        json!({ "bytes": self.bytes(), "hosts": hosts, "failed": failed }).serialize(serializer)
    }
}

/// Formats a size for people: `12.3 MB`.
pub(super) fn amount(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let value = bytes as f64;
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}
