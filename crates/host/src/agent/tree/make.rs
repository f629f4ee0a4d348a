//! Turns layers into a rendered tree and makes it the current one. A call that is repeated after a
//! crash at any point leads to the same result; if everything is done already, it writes nothing.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, Cursor};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::agent::protocol::{CheckedOut, Checkout, CheckoutLayer, MadeFrom, SwitchTree};
use crate::agent::tree::history::{self, History};
use crate::agent::tree::names::{TreePaths, check_id};
use crate::agent::tree::registry_data::{RegistryData, is_registry};
use crate::agent::tree::registry_layers::{self, Brought};
use crate::render::{self, BUILT_IN, BuiltIn, Mentions};
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::{remove_tree, sync_directory};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::fs::{directory, space};
use imgctl_base::image::{Digest, LayerKind};
use imgctl_base::progress::Task;
use imgctl_layer::unpack::{Form, NoLowerFiles, Unpacker};
use imgctl_layer::{Entry, EntryKind};
use imgctl_store::mount::layers::{LayerOf, stream};
use imgctl_store::mount::privilege::Privileges;
use imgctl_store::store::Store;

/// Maximum size of a `config.yml` in an image's root that is read as a list of Config documents.
const LONGEST_BUILT_IN: u64 = 4 << 20;

/// Makes the tree of `request` the current one; `done` receives the number of layer bytes as they
/// are unpacked. Only one checkout at a time runs below one root; others wait.
pub fn checkout(
    store: &Store,
    request: &Checkout,
    done: &(dyn Fn(u64) + Sync),
) -> Result<CheckedOut> {
    check_id(&request.id)?;
    let paths = TreePaths::new(&request.root, &request.tree)?;
    std::fs::create_dir_all(&paths.root).path("create the directory", &paths.root)?;
    let _lock = Lock::of_directory(&paths.root, Mode::Exclusive)?;
    let made = Making { store, request, paths: &paths, done: Done(done) }.run();
    made.map_err(|error| match error.kind() {
        // The cause stays in the chain; the message adds which file system is full and how much is
        // free.
        Kind::NoSpace if !error.message().starts_with("not enough space") => {
            let full = no_space(&paths.root, None).caused_by(error);
            // Frees the space for the operator to see; the next attempt starts over anyway.
            for leftover in paths.leftovers() {
                if let Err(error) = remove_tree(&leftover) {
                    tracing::warn!("cannot remove an unfinished tree: {error}");
                }
            }
            full
        }
        _ => error,
    })
    .context(|| format!("cannot make {}", paths.link().display()))
}

/// Makes an existing tree the current one. Former trees stay until the next checkout removes them.
pub fn switch_tree(request: &SwitchTree) -> Result<Vec<String>> {
    check_id(&request.id)?;
    let paths = TreePaths::new(&request.root, &request.tree)?;
    let directory = paths.directory(&request.id);
    if !directory.is_dir() {
        return Err(Error::not_found(format!(
            "cannot make {} the current tree: it does not exist",
            directory.display()
        ))
        .hint("run the same command again to recreate the tree"));
    }
    let _lock = Lock::of_directory(&paths.root, Mode::Exclusive)?;
    if paths.current().as_deref() == Some(&request.id) {
        return Ok(Vec::new());
    }
    let mut history = History::read(&paths);
    if history.use_now(&request.id) {
        history.write(&paths)?;
    }
    Ok(history::switch(&paths, &request.id)?.into_iter().collect())
}

/// The files added by each registry layer.
type Applied = HashMap<Digest, Vec<Brought>>;

struct Making<'a> {
    store: &'a Store,
    request: &'a Checkout,
    paths: &'a TreePaths,
    done: Done<'a>,
}

impl Making<'_> {
    fn run(&self) -> Result<CheckedOut> {
        let (request, paths) = (self.request, self.paths);
        let directory = paths.directory(&request.id);
        let is_made = directory.is_dir();
        let missing = self.missing_registry_layers();
        // A tree that is only staged does not become current.
        let is_current = request.stage || paths.current().as_deref() == Some(&request.id);
        if is_made && is_current && missing.is_empty() {
            return Ok(CheckedOut::default());
        }
        for leftover in paths.leftovers() {
            remove_tree(&leftover)?;
        }
        registry_layers::forget_if_gone(&paths.root)?;
        let needed = request.layers.iter().filter(|layer| {
            missing.contains(&layer.descriptor.digest) || !is_made && !layer.registry
        });
        check_space(&paths.root, needed)?;
        let mut history = History::read(paths);
        let is_news = if request.stage {
            history.keep_too(&request.id)
        } else {
            history.use_now(&request.id)
        };
        if is_news {
            history.write(paths)?;
        }
        let mut answer = CheckedOut { changed: true, ..CheckedOut::default() };
        let (brought, mentions) = self.fill(is_made, &missing, &mut answer)?;
        if let Some(mentions) = mentions {
            // Before the tree is complete: nobody reads the record of an incomplete one.
            history.made_from.insert(request.id.clone(), MadeFrom::of(request, mentions)?);
            history.write(paths)?;
        }
        if !is_made {
            let partial = paths.partial(&request.id);
            std::fs::rename(&partial, &directory).path("rename", &partial)?;
            sync_directory(&paths.parent)?;
        }
        if !is_current {
            answer.notes.extend(history::switch(paths, &request.id)?);
        }
        for (layer, files) in &brought {
            registry_layers::record(&paths.root, layer, files)?;
        }
        if !request.stage {
            history::remove_old(self.store, paths, &mut history, request.keep)?;
        }
        self.drop_registry_layers()?;
        Ok(answer)
    }

    /// Returns the layers whose registry data is missing on this host; none if the request excludes
    /// the registry.
    fn missing_registry_layers(&self) -> HashSet<Digest> {
        let layers = self.request.layers.iter();
        layers
            .filter(|layer| self.request.registry && may_hold_registry(layer))
            .map(|layer| &layer.descriptor.digest)
            .filter(|digest| !registry_layers::is_applied(&self.paths.root, digest))
            .cloned()
            .collect()
    }

    /// Writes the tree, unless it exists, and the missing registry data; both are durable
    /// afterwards. Returns the files added by each missing layer, and what the templates of a new
    /// tree mention.
    fn fill(
        &self,
        is_made: bool,
        missing: &HashSet<Digest>,
        answer: &mut CheckedOut,
    ) -> Result<(Applied, Option<Mentions>)> {
        let (request, paths) = (self.request, self.paths);
        let mut registry = if request.registry {
            Some(RegistryData::open(&paths.root.join("registry"))?)
        } else {
            None
        };
        let partial = paths.partial(&request.id);
        let mut tree = if is_made { None } else { Some(TreeInMaking::start(&partial, request)?) };
        let is_side = |layer: &&CheckoutLayer| layer.registry;
        let mut layers = request.layers.iter();
        let is_mixed =
            |layer: &CheckoutLayer| !layer.registry && missing.contains(&layer.descriptor.digest);
        let applied = if tree.is_none() || registry.is_none() || layers.any(is_mixed) {
            let layers = request.layers.iter();
            self.apply(layers, tree.as_mut(), registry.as_mut(), missing)?
        } else {
            // Registry and tree are separate, independent directories.
            std::thread::scope(|scope| {
                let registry = registry.as_mut();
                let side = std::thread::Builder::new()
                    .name("registry-layers".to_owned())
                    .spawn_scoped(scope, || {
                        let layers = request.layers.iter().filter(is_side);
                        self.apply(layers, None, registry, missing)
                    })
                    .doing(|| "cannot start a thread".to_owned())?;
                let layers = request.layers.iter().filter(|layer| !is_side(layer));
                let own = self.apply(layers, tree.as_mut(), None, missing);
                let side = side
                    .join()
                    .map_err(|_| Error::failed("the thread that fills the registry has died"))?;
                own.and(side)
            })?
        };
        if let Some(registry) = registry {
            answer.notes.extend(registry.notes);
        }
        let mut mentions = None;
        if let Some(tree) = tree {
            mentions = Some(tree.finish(&partial, request, answer)?);
            if request.registry && paths.depth() == 0 {
                let link = partial.join("registry");
                std::os::unix::fs::symlink("../registry", &link).path("create", &link)?;
            }
            history::keep(self.store, paths, &request.id, &request.layers)?;
        }
        let root = std::fs::File::open(&paths.root).path("open", &paths.root)?;
        rustix::fs::syncfs(&root).path("sync the file system of", &paths.root)?;
        Ok((applied, mentions))
    }

    /// Unpacks layers in order: registry data that is missing into `registry`, everything else into
    /// `tree`.
    fn apply<'l>(
        &self,
        layers: impl Iterator<Item = &'l CheckoutLayer>,
        mut tree: Option<&mut TreeInMaking>,
        mut registry: Option<&mut RegistryData>,
        missing: &HashSet<Digest>,
    ) -> Result<Applied> {
        let mut applied = Applied::new();
        for layer in layers {
            let digest = &layer.descriptor.digest;
            let mut registry = registry
                .as_mut()
                .filter(|_| missing.contains(digest) && !applied.contains_key(digest));
            if let Some(registry) = &mut registry {
                registry.begin(registry_layers::was_applied(&self.paths.root, digest));
            }
            let mut tree = tree.as_mut().filter(|_| !layer.registry);
            if registry.is_none() && tree.is_none() {
                continue;
            }
            self.layer(layer, &mut |entry, content| {
                if is_registry(&entry.path) {
                    return match &mut registry {
                        Some(registry) => registry.apply(entry, content),
                        None => Ok(()),
                    };
                }
                match &mut tree {
                    Some(tree) => tree.apply(entry, content, layer.image),
                    None => Ok(()),
                }
            })?;
            if let Some(registry) = registry {
                applied.insert(digest.clone(), registry.end());
            }
            if let Some(tree) = tree {
                tree.unpacker.next_layer();
            }
        }
        Ok(applied)
    }

    fn layer(
        &self,
        layer: &CheckoutLayer,
        on_entry: &mut dyn FnMut(&Entry, &mut dyn BufRead) -> Result<()>,
    ) -> Result<()> {
        let of = LayerOf { blob: layer.descriptor.clone(), diff_id: layer.diff_id.clone() };
        stream(self.store, &of, &self.done, on_entry)
            .context(|| format!("cannot unpack layer {}", layer.descriptor.digest))
    }

    /// Removes registry-only layers from the store: their data is in the registry directory.
    fn drop_registry_layers(&self) -> Result<()> {
        let layers = self.request.layers.iter();
        let digests: Vec<_> = layers
            .filter(|layer| layer.registry)
            .map(|layer| layer.descriptor.digest.clone())
            .filter(|digest| self.store.blob_path(digest).exists())
            .collect();
        if !self.request.registry || digests.is_empty() {
            return Ok(());
        }
        self.store.discard(&digests)
    }
}

/// Whether a layer may hold registry data. Layers from other builders do not declare it.
fn may_hold_registry(layer: &CheckoutLayer) -> bool {
    let kind = layer.descriptor.layer_kind();
    layer.registry || kind.is_none_or(|kind| kind == LayerKind::Registry)
}

struct TreeInMaking {
    unpacker: Unpacker,
    /// Image of each file that rendering asks about.
    origins: HashMap<Vec<u8>, usize>,
    /// Paths of Config documents, whose origins are requested, too.
    asked: HashSet<Vec<u8>>,
    built_in: Vec<BuiltIn>,
}

impl TreeInMaking {
    fn start(partial: &Path, request: &Checkout) -> Result<Self> {
        std::fs::create_dir_all(partial).path("create the directory", partial)?;
        let privilege = Privileges::current().unpacking();
        let asked = request.inputs.configs.iter();
        Ok(Self {
            unpacker: Unpacker::new(directory::open_path(partial)?, Form::Flat, privilege)?,
            origins: HashMap::new(),
            asked: asked
                .map(|config| config.path.trim_start_matches('/').as_bytes().to_vec())
                .collect(),
            built_in: Vec::new(),
        })
    }

    fn apply(&mut self, entry: &Entry, content: &mut dyn BufRead, image: usize) -> Result<()> {
        let path = entry.path.as_bytes();
        if render::is_template(path) || self.asked.contains(path) {
            self.origins.insert(path.to_vec(), image);
        }
        if path == BUILT_IN.as_bytes()
            && let EntryKind::File { size } = entry.kind
            && size <= LONGEST_BUILT_IN
        {
            // A later image's file replaces this one in the tree, but this image's Configs still
            // count.
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes).doing(|| format!("cannot read {}", entry.path))?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            self.built_in.retain(|built_in| built_in.image != image);
            self.built_in.push(BuiltIn { image, text });
            return self.unpacker.apply(entry, &mut Cursor::new(bytes), &NoLowerFiles).map(drop);
        }
        self.unpacker.apply(entry, content, &NoLowerFiles).map(drop)
    }

    /// Renders the tree; returns what its templates mention.
    fn finish(
        self,
        partial: &Path,
        request: &Checkout,
        answer: &mut CheckedOut,
    ) -> Result<Mentions> {
        answer.notes.extend(self.unpacker.finish()?);
        // Every user of the host may access the tree, whatever the mode of the image's root.
        let mode = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(partial, mode).path("set the mode of", partial)?;
        let origins = self.origins;
        let rendered = render::tree(partial, &request.inputs, &self.built_in, &|path| {
            origins.get(path).copied()
        })?;
        answer.rendered = rendered.files;
        answer.notes.extend(rendered.notes);
        Ok(rendered.mentions)
    }
}

/// Forwards progress.
struct Done<'a>(&'a (dyn Fn(u64) + Sync));

impl Task for Done<'_> {
    fn advance(&self, amount: u64) {
        (self.0)(amount);
    }

    fn done(&self, _summary: &str) {}
}

/// Rejects a checkout whose layers alone are larger than the free space.
pub(super) fn check_space<'a>(
    root: &Path,
    layers: impl Iterator<Item = &'a CheckoutLayer>,
) -> Result<()> {
    let needed = layers.map(|layer| layer.descriptor.size).fold(0, u64::saturating_add);
    match space::free(root)? {
        Some(free) if needed > free => Err(no_space(root, Some(needed))),
        _ => Ok(()),
    }
}

/// Returns the error for a full file system, with the known details.
pub(super) fn no_space(root: &Path, needed: Option<u64>) -> Error {
    let free = space::free(root).ok().flatten().unwrap_or(0);
    let needed = needed.map_or(String::new(), |needed| {
        format!("the layers need at least {} and ", megabytes(needed))
    });
    Error::new(
        Kind::NoSpace,
        format!(
            "not enough space for {}: {needed}{} are free on the file system at {}",
            root.display(),
            megabytes(free),
            mount_point(root).display()
        ),
    )
    .hint("free space there, or put the data elsewhere (SEALOS_DATA_ROOT)")
}

/// Returns the topmost directory above `path` on the same file system.
fn mount_point(path: &Path) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let own = device(path);
    path.ancestors()
        .take_while(|ancestor| device(ancestor) == own)
        .last()
        .unwrap_or(path)
        .to_owned()
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}
