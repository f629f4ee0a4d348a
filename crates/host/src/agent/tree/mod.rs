//! Trees on a host: the rendered files of one or more images in a directory of their own, a link to
//! the current one, and the registry's data beside them.
//!
//! ```text
//! <root>/rootfs -> rootfs.<id>        the current tree
//! <root>/rootfs.<id>/                 a complete, rendered tree: never changed again by imgctl
//! <root>/rootfs.<id>.partial/         an unfinished one; removed by the next checkout
//! <root>/trees/<tree>.json            the trees that were made, newest first
//! <root>/registry/                    the content of `registry/` of all images
//! <root>/registry-layers/<digest>     one for each layer that has been applied there
//! ```
//!
//! Must not depend on clusters, connections or where layers come from: they are in the store.

mod history;
mod inventory;
mod keep;
mod make;
mod names;
mod registry_data;
mod registry_layers;
mod space;
mod switch;

pub use inventory::inventory;
pub use make::{checkout, switch_tree};
