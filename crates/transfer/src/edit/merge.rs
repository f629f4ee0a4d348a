//! `merge`: combines the layers of several images under one config, as if each image's tree had
//! been copied over those before it (`sealos merge` copies every file).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::edit::document::{Draft, Edited, common_platform, history_by_layer, name_of, set_env};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::descriptor::LAYER_KIND;
use imgctl_base::image::time::rfc3339;
use imgctl_base::image::{ContainerConfig, Descriptor, Digest, History, ImageConfig, LayerKind};
use imgctl_base::progress::Reporter;
use imgctl_layer::whiteout::{Marker, marker};
use imgctl_layer::{Compression, EntryKind, LayerPath, Toc, Tree};
use imgctl_store::mount::tar_export::merged_layer;
use imgctl_store::store::{Image, Store};

/// Label for the type of a cluster image, in both spellings (sealos).
const TYPE_LABELS: [&str; 2] = ["sealos.io.type", "apps.sealos.io/type"];
/// The type that takes precedence: with a rootfs among them, the result is a rootfs.
const ROOTFS: &str = "rootfs";
/// Number of layers beyond which a mount has to merge some of them (overlayfs limit: 500).
const MANY_LAYERS: usize = 500;

/// Additional settings of the merged image.
#[derive(Clone, Debug, Default)]
pub struct MergeOptions {
    pub labels: BTreeMap<String, String>,
    /// Variables as `NAME=value`.
    pub env: Vec<String>,
    pub annotations: BTreeMap<String, String>,
    /// Value of `created`, in seconds since 1970; the default is the latest of the inputs.
    pub timestamp: Option<i64>,
    /// Compression of newly created layers.
    pub compression: Compression,
}

/// Merges images of one platform, in order. Labels and env: later images win. ENTRYPOINT and CMD:
/// one after the other. Other container settings are not merged, as in sealos.
pub fn merge(
    store: &Store,
    inputs: &[(String, Image)],
    options: &MergeOptions,
    reporter: &dyn Reporter,
) -> Result<Edited> {
    let configs: Vec<(String, &ImageConfig)> =
        inputs.iter().map(|(name, image)| (name.clone(), &image.config)).collect();
    let platform = common_platform(&configs)?;
    let mut stack = Stack::new(store, options, reporter);
    for (name, image) in inputs {
        stack.add(name, image).context(|| format!("cannot merge {name}"))?;
    }
    let mut config = ImageConfig {
        created: match options.timestamp {
            Some(seconds) => Some(rfc3339(seconds)),
            None => configs.iter().filter_map(|(_, c)| c.created.clone()).max(),
        },
        architecture: platform.architecture,
        os: platform.os,
        variant: platform.variant,
        config: settings(&configs, options),
        ..ImageConfig::default()
    };
    config.history = stack.history;
    let mut notes = stack.notes;
    if stack.layers.len() > MANY_LAYERS {
        notes.push(format!(
            "the image has {} layers; mounting merges the smallest ones",
            stack.layers.len()
        ));
    }
    let draft = Draft {
        config,
        layers: stack.layers,
        annotations: options.annotations.clone(),
        docker: false,
    };
    let mut edited = draft.write(store)?;
    edited.notes = notes;
    Ok(edited)
}

/// Merges labels, env, entry points and commands of all images.
fn settings(configs: &[(String, &ImageConfig)], options: &MergeOptions) -> ContainerConfig {
    let mut all = ContainerConfig::default();
    let (mut entrypoint, mut cmd) = (Vec::new(), Vec::new());
    let mut is_rootfs = false;
    for (_, config) in configs {
        let one = &config.config;
        let label = |key: &str| one.labels.get(key).map(String::as_str);
        is_rootfs |= TYPE_LABELS.iter().any(|key| label(key) == Some(ROOTFS));
        all.labels.extend(one.labels.clone());
        for pair in one.env.iter().filter(|pair| name_of(pair) != "PATH") {
            set_env(&mut all.env, pair.clone());
        }
        entrypoint.extend(one.entrypoint.clone().unwrap_or_default());
        cmd.extend(one.cmd.clone().unwrap_or_default());
    }
    if is_rootfs {
        let both = TYPE_LABELS.map(|key| (key.to_owned(), ROOTFS.to_owned()));
        all.labels.extend(both);
    }
    all.labels.extend(options.labels.clone());
    for pair in &options.env {
        set_env(&mut all.env, pair.clone());
    }
    let given = |words: Vec<String>| (!words.is_empty()).then_some(words);
    all.entrypoint = given(entrypoint);
    all.cmd = given(cmd);
    all
}

/// The layers so far, and the resulting tree.
struct Stack<'a> {
    store: &'a Store,
    options: &'a MergeOptions,
    reporter: &'a dyn Reporter,
    tree: Tree,
    layers: Vec<(Descriptor, Digest)>,
    history: Vec<History>,
    /// Names of the images merged so far.
    names: Vec<String>,
    notes: Vec<String>,
}

impl<'a> Stack<'a> {
    fn new(store: &'a Store, options: &'a MergeOptions, reporter: &'a dyn Reporter) -> Self {
        Self {
            store,
            options,
            reporter,
            tree: Tree::new(),
            layers: Vec::new(),
            history: Vec::new(),
            names: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, image: &Image) -> Result<()> {
        let tocs = image
            .layers()
            .map(|(layer, diff_id)| self.store.toc(&layer.digest, diff_id).map(Arc::new))
            .collect::<Result<Vec<_>>>()?;
        let is_first = self.names.is_empty();
        if is_first {
            self.reuse(image, &tocs)?;
        } else {
            let own = Tree::from_layers(tocs.iter().cloned())?;
            check_types(&self.tree, &own, &self.names.join(", "), name)?;
            if hides(&self.tree, &tocs)? {
                self.flatten(name, image, &own)?;
            } else {
                self.reuse(image, &tocs)?;
            }
        }
        self.names.push(name.to_owned());
        Ok(())
    }

    /// Adds the image's layers unchanged; skips a layer that is already present and still fully
    /// visible.
    fn reuse(&mut self, image: &Image, tocs: &[Arc<Toc>]) -> Result<()> {
        let layers: Vec<_> = image.layers().collect();
        for (number, history) in history_by_layer(image) {
            let Some((layer, toc)) = number.and_then(|n| layers.get(n).zip(tocs.get(n))) else {
                self.history.push(history);
                continue;
            };
            let (descriptor, diff_id) = layer;
            let earlier = self.layers.iter().rposition(|(_, id)| id == *diff_id);
            if let Some(earlier) = earlier
                && shows(&self.tree, toc, earlier)?
            {
                continue;
            }
            self.tree.apply(Arc::clone(toc))?;
            self.layers.push(((*descriptor).clone(), (*diff_id).clone()));
            self.history.push(history);
        }
        Ok(())
    }

    /// Creates new layers from the image's tree, one per kind, that delete nothing.
    fn flatten(&mut self, name: &str, image: &Image, own: &Tree) -> Result<()> {
        self.notes.push(format!(
            "the layers of {name} delete files that other images bring; its files are stored again"
        ));
        for kind in [LayerKind::Rootfs, LayerKind::Addons, LayerKind::Registry] {
            let select = |path: &LayerPath| path.layer_kind() == kind;
            let root = LayerPath::root();
            let has_any = own.walk(&root).any(|(path, _)| !path.is_root() && select(&path));
            if !has_any {
                continue;
            }
            // The content of the embedded registry is already compressed.
            let compression = match kind {
                LayerKind::Registry => Compression::None,
                _ => self.options.compression,
            };
            let sink = self.store.ingest()?;
            let (ingest, layer) =
                merged_layer(self.store, image, &select, sink, compression, self.reporter)?;
            self.store.commit(ingest, &layer.digest)?;
            self.store.put_toc(&layer.digest, &layer.diff_id, &layer.toc)?;
            let media = compression.media_type(false)?;
            let mut descriptor = Descriptor::new(media, layer.digest, layer.size);
            let annotation = (LAYER_KIND.to_owned(), kind.as_str().to_owned());
            descriptor.annotations.extend(layer.annotations);
            descriptor.annotations.extend([annotation]);
            self.tree.apply(layer.toc.unpack()?)?;
            self.layers.push((descriptor, layer.diff_id));
            self.history.push(History {
                created: image.config.created.clone(),
                created_by: Some(format!("imgctl merge {name}")),
                comment: Some(format!("{kind} layer")),
                ..History::default()
            });
        }
        Ok(())
    }
}

/// Rejects inputs that cannot be merged, before anything is fetched.
pub fn check_inputs(names: &[String]) -> Result<()> {
    match names {
        [] => Err(Error::usage("there is nothing to merge").hint("name two or more images")),
        _ => Ok(()),
    }
}

/// Fails for conflicts that a copy over `below` cannot resolve: a directory in place of something
/// else, or the reverse.
pub(super) fn check_types(below: &Tree, own: &Tree, below_name: &str, name: &str) -> Result<()> {
    for (path, found) in own.walk(&LayerPath::root()) {
        let Some(other) = below.lookup(&path) else {
            continue;
        };
        let (is_directory, was_directory) =
            (found.entry().is_directory(), other.entry().is_directory());
        if is_directory != was_directory {
            let what = |directory: bool| if directory { "a directory" } else { "a file" };
            return Err(Error::usage(format!(
                "`{path}` is {} in {name} and {} in {below_name}",
                what(is_directory),
                what(was_directory)
            ))
            .hint("remove one of the two, or merge the images in a Kubefile with COPY --from"));
        }
    }
    Ok(())
}

/// Whether one of an image's layers would remove something of `below`: with a whiteout, an opaque
/// directory, or a file where `below` has a directory.
pub(super) fn hides(below: &Tree, layers: &[Arc<Toc>]) -> Result<bool> {
    for listed in layers.iter().flat_map(|toc| &toc.entries) {
        let entry = &listed.entry;
        let hidden = match marker(&entry.path)? {
            Marker::Whiteout(path) => below.lookup(&path).is_some(),
            Marker::Opaque(path) => below.children(&path).next().is_some(),
            Marker::Leftover => false,
            Marker::None => {
                !entry.is_directory()
                    && below.lookup(&entry.path).is_some_and(|found| found.entry().is_directory())
            }
        };
        if hidden {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether applying `toc` again to `tree`, which already has it as layer number `number`, changes
/// nothing: all of its entries are still visible.
pub(super) fn shows(tree: &Tree, toc: &Toc, number: usize) -> Result<bool> {
    for listed in &toc.entries {
        let entry = &listed.entry;
        if marker(&entry.path)? != Marker::None {
            return Ok(false);
        }
        let Some(found) = tree.lookup(&entry.path) else {
            return Ok(false);
        };
        let is_own = found.layer == Some(number);
        let is_link = matches!(entry.kind, EntryKind::HardLink { .. });
        // A hard link to a file of its own layer, or of a lower one.
        let is_below = found.layer.is_some_and(|layer| layer < number);
        if !(is_own || is_link && is_below) {
            return Ok(false);
        }
    }
    Ok(true)
}
