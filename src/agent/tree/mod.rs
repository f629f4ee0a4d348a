//! Trees on a host: the files of one or several images in a directory of their own, rendered, and
//! a link that says which of them is current; and the registry's data beside them.
//!
//! ```text
//! <root>/rootfs -> rootfs.<id>        the current tree
//! <root>/rootfs.<id>/                 a whole, rendered tree: never changed again by us
//! <root>/rootfs.<id>.partial/         one in the making; swept
//! <root>/trees/<tree>.json            the trees that were made, newest first
//! <root>/registry/                    what all images have below `registry/`
//! <root>/registry-layers/<digest>     one for each layer that has been applied there
//! ```
//!
//! Must not know clusters, connections or where layers come from: they are in the store.

mod history;
mod inventory;
mod keep;
mod make;
mod names;
mod registry_data;
mod registry_layers;
mod space;
mod switch;

pub(crate) use inventory::inventory;
pub(crate) use make::{checkout, switch_tree};
