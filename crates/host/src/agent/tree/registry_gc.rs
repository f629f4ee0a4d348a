//! Garbage of the embedded registry on this host: what registry layers of former releases have brought,
//! and neither a kept layer, nor a running container, nor a push by somebody else needs.
//!
//! Only files that the records of layers name are removed, and the record goes last, so that a killed
//! collection is repeated and a layer that comes back is applied again.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::tree::registry_layers::{self, Brought};
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::Digest;
use imgctl_registry::layout::{Layout, retire::Retire};

/// What stays.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CollectRequest {
    /// `<data>/<cluster>`.
    pub root: String,
    /// Layers of the images to keep, registry layers and others.
    pub keep: Vec<Digest>,
    /// Images of containers: names with tag or digest, and digests.
    pub running: Vec<String>,
    /// Content younger than this stays, in seconds.
    pub grace_seconds: u64,
    pub dry_run: bool,
}

/// What was removed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// `repository@digest`.
    pub manifests: Vec<String>,
    pub blobs: u64,
    /// Total size of the blobs, in bytes.
    pub bytes: u64,
    /// Number of former registry layers of which nothing is left.
    pub layers: usize,
}

/// Removes what `request` does not keep, or determines it.
pub fn collect(request: &CollectRequest) -> Result<Collected> {
    let root = Path::new(&request.root);
    let registry = root.join("registry");
    let _lock = Lock::of_directory(root, Mode::Exclusive)?;
    let mut old = Retire { grace: Duration::from_secs(request.grace_seconds), ..Retire::default() };
    let mut kept = Retire::default();
    let mut former = Vec::new();
    for layer in registry_layers::applied(root)? {
        let files = registry_layers::brought(root, &layer);
        if request.keep.contains(&layer) {
            let files = files.ok_or_else(|| {
                Error::check_failed(format!(
                    "the record of layer {layer} in {} does not list its files: nothing was removed",
                    root.display()
                ))
                .hint("run `imgctl apply`, which applies the layer again, and then the same command")
            })?;
            files.iter().for_each(|file| note(file, &mut kept));
        } else if let Some(files) = files {
            let mut own = Retire::default();
            files.iter().for_each(|file| note(file, &mut own));
            old.manifests.extend(own.manifests.iter().cloned());
            old.tags.extend(own.tags);
            old.blobs.extend(own.blobs);
            former.push((layer, own.manifests));
        }
    }
    if former.is_empty() {
        return Ok(Collected::default());
    }
    old.manifests.retain(|manifest| !kept.manifests.contains(manifest));
    old.tags.retain(|tag| !kept.tags.contains(tag));
    old.blobs.retain(|blob| !kept.blobs.contains(blob));
    for name in &request.running {
        note_running(name, &mut old);
    }
    let layout = Layout::open(&registry, true)?;
    let retired = layout.retire(&old, request.dry_run)?;
    // What a container still runs is for a later collection, and so is what is too young.
    let mut gone = Vec::new();
    for (layer, manifests) in &former {
        let mut left = retired.young > 0;
        for manifest in manifests.iter().filter(|one| !kept.manifests.contains(one)) {
            left |= !retired.manifests.contains(manifest)
                && layout.has_revision(&manifest.0, &manifest.1)?;
        }
        if !left {
            gone.push(layer);
        }
    }
    for layer in gone.iter().filter(|_| !request.dry_run) {
        registry_layers::forget(root, layer)?;
    }
    Ok(Collected {
        manifests: retired
            .manifests
            .iter()
            .map(|(repository, digest)| format!("{repository}@{digest}"))
            .collect(),
        blobs: retired.blobs,
        bytes: retired.bytes,
        layers: gone.len(),
    })
}

/// Adds a file of a registry layer to what is retired, by its kind: blob, manifest or tag.
fn note(file: &Brought, to: &mut Retire) {
    let Ok(text) = std::str::from_utf8(file.path.as_bytes()) else { return };
    let Some(text) = text.strip_prefix("docker/registry/v2/") else { return };
    if let Some(rest) = text.strip_prefix("blobs/") {
        let parts: Vec<&str> = rest.split('/').collect();
        if let [algorithm, _, hex, "data"] = parts[..]
            && let Ok(digest) = Digest::parse(&format!("{algorithm}:{hex}"))
        {
            to.blobs.insert(digest);
        }
        return;
    }
    let Some((repository, rest)) =
        text.strip_prefix("repositories/").and_then(|rest| rest.split_once("/_manifests/"))
    else {
        return;
    };
    let parts: Vec<&str> = rest.split('/').collect();
    match parts[..] {
        ["revisions", algorithm, hex, "link"] => {
            if let Ok(digest) = Digest::parse(&format!("{algorithm}:{hex}")) {
                to.manifests.insert((repository.to_owned(), digest));
            }
        }
        ["tags", tag, "current", "link"] => {
            to.tags.insert((repository.to_owned(), tag.to_owned()));
        }
        _ => {}
    }
}

/// Notes an image of a container by all that may name it here: digests, and its name without the
/// registry.
fn note_running(name: &str, to: &mut Retire) {
    let digest = name.split_once('@').map_or(name, |(_, digest)| digest);
    if let Ok(digest) = Digest::parse(digest) {
        to.digests.insert(digest);
    }
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let (name, tag) = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (name, "latest"),
    };
    let repository = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => rest,
        _ => name,
    };
    to.names.insert((repository.to_owned(), tag.to_owned()));
    if !repository.contains('/') {
        to.names.insert((format!("library/{repository}"), tag.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::image::media_type;
    use imgctl_layer::LayerPath;
    use imgctl_registry::layout::Facts;
    use serde_json::json;

    /// Puts an image into the registry and records it as brought by a layer.
    fn image(root: &Path, tag: &str) -> (Digest, Digest) {
        let layout = Layout::create(&root.join("registry"), false).unwrap();
        let repository = "library/app";
        let put = |text: &str| {
            let digest = Digest::of(text.as_bytes());
            layout.put_blob(&mut text.as_bytes(), &digest, text.len() as u64).unwrap();
            layout.link_layer(repository, &digest).unwrap();
            json!({"mediaType": "application/octet-stream", "digest": digest, "size": text.len()})
        };
        let (config, layer, shared) = (put(&format!("config {tag}")), put(tag), put("shared"));
        let text = serde_json::to_vec(&json!({
            "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "config": config,
            "layers": [layer, shared],
        }))
        .unwrap();
        let digest = Digest::of(&text);
        let facts = Facts::parse(&text).unwrap();
        layout.put_manifest(repository, &[tag], &digest, &text, &facts).unwrap();
        let blobs = [Digest::of(format!("config {tag}").as_bytes()), Digest::of(tag.as_bytes())];
        let blobs = blobs.into_iter().chain([Digest::of(b"shared"), digest.clone()]);
        let mut paths: Vec<String> = blobs
            .map(|digest| {
                format!(
                    "docker/registry/v2/blobs/sha256/{}/{}/data",
                    &digest.hex()[..2],
                    digest.hex()
                )
            })
            .collect();
        let manifests = format!("docker/registry/v2/repositories/{repository}/_manifests");
        paths.push(format!("{manifests}/revisions/sha256/{}/link", digest.hex()));
        paths.push(format!("{manifests}/tags/{tag}/current/link"));
        let files: Vec<Brought> = paths
            .iter()
            .map(|path| Brought { path: LayerPath::parse(path.as_bytes()).unwrap(), size: None })
            .collect();
        let layer = Digest::of(format!("layer {tag}").as_bytes());
        registry_layers::record(root, &layer, &files).unwrap();
        (layer, digest)
    }

    #[test]
    fn former_layers_go_and_kept_and_running_images_stay() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let (first, first_manifest) = image(root, "1");
        let (second, _) = image(root, "2");
        let (third, third_manifest) = image(root, "3");
        let request = |running: &[&str], dry_run| CollectRequest {
            root: root.to_str().unwrap().to_owned(),
            keep: vec![second.clone()],
            running: running.iter().map(|&name| name.to_owned()).collect(),
            grace_seconds: 0,
            dry_run,
        };
        // The first release runs, under the name of another registry.
        let running = ["registry.example.com:5000/app:1", "docker.io/other/thing@sha256:x"];
        let planned = collect(&request(&running, true)).unwrap();
        assert_eq!(planned.manifests, [format!("library/app@{third_manifest}")]);
        assert_eq!((planned.blobs, planned.layers), (3, 1));
        assert!(registry_layers::was_applied(root, &third));
        let by_digest = format!("sealos.hub:5000/library/app@{first_manifest}");
        assert_eq!(collect(&request(&[&by_digest], true)).unwrap(), planned);
        let all = collect(&request(&[], true)).unwrap();
        assert_eq!((all.manifests.len(), all.blobs), (2, 6), "{all:?}");

        assert_eq!(collect(&request(&running, false)).unwrap(), planned);
        let layout = Layout::open(&root.join("registry"), false).unwrap();
        for (tag, there) in [("1", true), ("2", true), ("3", false)] {
            assert_eq!(layout.resolve_tag("library/app", tag).unwrap().is_some(), there, "{tag}");
        }
        assert!(layout.blob_size(&Digest::of(b"shared")).unwrap().is_some());
        assert!(!registry_layers::was_applied(root, &third));
        assert!(registry_layers::is_applied(root, &second));
        // It goes when it no longer runs.
        assert!(registry_layers::was_applied(root, &first));
        let rest = collect(&request(&[], false)).unwrap();
        assert_eq!((rest.manifests.len(), rest.blobs, rest.layers), (1, 3, 1), "{rest:?}");
        assert_eq!(collect(&request(&[], false)).unwrap(), Collected::default());
    }
}
