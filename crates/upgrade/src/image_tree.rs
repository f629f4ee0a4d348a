//! The patches of static Pods among the files of a cluster's images, which `kubeadm upgrade` applies.

use std::{collections::BTreeMap, io::Read as _, sync::Arc};

use imgctl_base::error::{IoContext, Result};
use imgctl_layer::{ContentReader, EntryKind, LayerPath};
use imgctl_model::context::ClusterContext;
use imgctl_store::store::Store;
use imgctl_workflow::image_tree;

/// The static Pods that kubeadm patches.
const PATCHED: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"];
/// Maximum size of a patch file, in bytes.
const LONGEST: u64 = 1 << 20;

/// Returns the patches by static Pod; several files for one Pod are joined in name order, as in the
/// observation of a host. Returns `None` if the patches are outside the image's tree, so that
/// another image does not change them.
pub fn patches_of(
    context: &ClusterContext,
    store: &Store,
) -> Result<Option<BTreeMap<String, String>>> {
    let documents = context.documents.iter();
    let configured = documents
        .filter(|document| document["kind"] == "InitConfiguration")
        .find_map(|document| document["patches"]["directory"].as_str());
    let folder = match configured {
        None => "patches",
        Some(folder) => match folder.strip_prefix(&format!("{}/", context.paths.rootfs())) {
            Some(inside) => inside,
            None => return Ok(None),
        },
    };
    let (tree, layers) = image_tree::of(context, store, "patches")?;
    let mut patches = BTreeMap::<String, String>::new();
    let Ok(folder) = tree.resolve(&LayerPath::parse(folder.as_bytes())?) else {
        return Ok(Some(patches));
    };
    for (name, found) in tree.children(&folder) {
        let name = String::from_utf8_lossy(name);
        let pod = PATCHED.iter().find(|pod| name.starts_with(**pod));
        let is_file = matches!(found.entry().kind, EntryKind::File { size } if size <= LONGEST);
        let layer = found.layer.and_then(|index| layers.get(index));
        let (Some(pod), Some(layer), true) = (pod, layer, is_file) else {
            continue;
        };
        let mut bytes = Vec::new();
        ContentReader::new(store.open_blob(&layer.blob)?, Arc::clone(&layer.toc))?
            .open(found.entry)?
            .take(LONGEST)
            .read_to_end(&mut bytes)
            .doing(|| format!("cannot read {folder}/{name}"))?;
        patches.entry((*pod).to_owned()).or_default().push_str(&String::from_utf8_lossy(&bytes));
    }
    Ok(Some(patches))
}
