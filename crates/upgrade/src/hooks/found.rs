//! Finds an image's hooks and sealer scripts from the tables of contents of its layers; nothing is
//! unpacked.

use std::{io::Read as _, sync::Arc};

use crate::hooks::{legacy, legacy::Script};
use imgctl_base::error::{IoContext, Result};
use imgctl_layer::{ContentReader, EntryKind, LayerPath, Tree};
use imgctl_model::context::ClusterContext;
use imgctl_store::store::Store;
use imgctl_workflow::hooks::{OfMoments, is_hook};
use imgctl_workflow::image_tree;

/// The directories searched, without `.d`.
const MOMENTS: [&str; 6] = [
    "pre-cluster",
    "pre-control-plane",
    "pre-node",
    "post-node",
    "post-control-plane",
    "post-cluster",
];

/// Maximum size of a plugin file, in bytes.
const LONGEST_PLUGIN: u64 = 4 << 20;

/// The hooks of a rootfs image and its patch images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    moments: OfMoments,
    can_upgrade: bool,
    /// In the order of their files.
    plugins: Vec<Script>,
}

impl Hooks {
    /// Finds the hooks in a cluster's images.
    ///
    /// # Errors
    /// If a layer is not in the store, or a name cannot be printed in a log line.
    pub fn of(context: &ClusterContext, store: &Store) -> Result<Self> {
        let (tree, layers) = image_tree::of(context, store, "hooks")?;
        let mut hooks = Self::in_tree(&tree)?;
        for (name, found) in tree.children(&LayerPath::parse(b"plugins")?) {
            let name = String::from_utf8_lossy(name);
            let is_file =
                matches!(found.entry().kind, EntryKind::File { size } if size <= LONGEST_PLUGIN);
            let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml");
            let layer = found.layer.and_then(|index| layers.get(index));
            let Some(layer) = layer.filter(|_| is_file && is_yaml) else {
                continue;
            };
            let mut text = String::new();
            ContentReader::new(store.open_blob(&layer.blob)?, Arc::clone(&layer.toc))?
                .open(found.entry)?
                .take(LONGEST_PLUGIN)
                .read_to_string(&mut text)
                .doing(|| format!("cannot read plugins/{name}"))?;
            hooks.plugins.extend(legacy::read(&name, &text)?);
        }
        Ok(hooks)
    }

    /// sealer scripts for an upgrade.
    pub(super) fn plugins(&self) -> &[Script] {
        &self.plugins
    }

    /// Returns whether the image has sealer upgrade scripts.
    pub fn is_legacy(&self) -> bool {
        !self.plugins.is_empty()
    }

    /// The warning to show in a plan.
    pub fn warning(&self) -> Option<String> {
        let of = |action| {
            let all = self.plugins.iter().filter(|one| one.action == action);
            all.map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        self.is_legacy().then(|| {
            format!(
                "unsafe-legacy: the image contains sealer scripts. On every host, right after its \
                 files are switched: {}; on the first control plane, when all hosts are done: {}. \
                 It is unknown whether they can run twice or be undone",
                some(&of(legacy::UPGRADE_HOST)),
                some(&of(legacy::UPGRADE)),
            )
        })
    }

    fn in_tree(tree: &Tree) -> Result<Self> {
        let mut hooks = Self { moments: OfMoments::in_tree(tree, &MOMENTS)?, ..Self::default() };
        let can_upgrade = LayerPath::parse(b"hooks")?;
        hooks.can_upgrade = is_hook(tree, &can_upgrade, b"can-upgrade")?;
        Ok(hooks)
    }

    /// Names of the hooks of a moment, in order.
    pub(super) fn of_moment(&self, moment: &str) -> &[String] {
        self.moments.names(moment)
    }

    pub(super) fn has_can_upgrade(&self) -> bool {
        self.can_upgrade
    }
}

fn some(names: &str) -> &str {
    if names.is_empty() { "none" } else { names }
}
