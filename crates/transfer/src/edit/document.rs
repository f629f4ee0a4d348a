//! An image being edited, and its output: config and manifest are written, layers stay as they are.
//! Env lists, labels and history are merged.

use std::collections::BTreeMap;

use imgctl_base::error::{Error, Result};
use imgctl_base::image::{
    Descriptor, Digest, History, ImageConfig, Index, Manifest, Platform, media_type,
};
use imgctl_store::store::{Image, Store};

/// A finished image that has no name yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Edited {
    /// Manifest or index.
    pub descriptor: Descriptor,
    /// Docker's image ID: the digest of the config; for an index, that of the first image.
    pub id: Digest,
    /// Notes for the user about the result.
    pub notes: Vec<String>,
}

/// Parts of an image.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) config: ImageConfig,
    /// Each layer with its diff ID, lowest first.
    pub(super) layers: Vec<(Descriptor, Digest)>,
    pub(super) annotations: BTreeMap<String, String>,
    /// Use Docker's media types instead of OCI media types.
    pub(super) docker: bool,
}

impl Draft {
    /// Returns the parts of a stored image.
    pub(super) fn of(image: &Image) -> Self {
        Self {
            config: image.config.clone(),
            layers: image
                .layers()
                .map(|(layer, diff_id)| (layer.clone(), diff_id.clone()))
                .collect(),
            annotations: image.manifest.annotations.clone(),
            docker: is_docker(image),
        }
    }

    /// Stores the config and the manifest.
    pub(super) fn write(mut self, store: &Store) -> Result<Edited> {
        let (manifest_type, config_type) = if self.docker {
            (media_type::DOCKER_MANIFEST, media_type::DOCKER_CONFIG)
        } else {
            (media_type::OCI_MANIFEST, media_type::OCI_CONFIG)
        };
        self.config.rootfs.diff_ids = self.layers.iter().map(|(_, id)| id.clone()).collect();
        let platform = self.config.platform();
        let config = store.put_document(config_type, &self.config)?;
        let mut layers: Vec<Descriptor> = self.layers.into_iter().map(|(layer, _)| layer).collect();
        for layer in &mut layers {
            layer.media_type = media_type::in_family(&layer.media_type, self.docker)?.to_owned();
        }
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(manifest_type.to_owned()),
            artifact_type: None,
            config: config.clone(),
            layers,
            subject: None,
            // Docker manifests have no annotations.
            annotations: if self.docker { BTreeMap::new() } else { self.annotations },
        };
        let mut descriptor = store.put_document(manifest_type, &manifest)?;
        descriptor.platform = Some(platform);
        Ok(Edited { descriptor, id: config.digest, notes: Vec::new() })
    }
}

/// Whether an image's manifest has a Docker media type.
pub(super) fn is_docker(image: &Image) -> bool {
    image.descriptor.media_type == media_type::DOCKER_MANIFEST
}

/// Stores an index over images for several platforms; a single image is returned unchanged.
pub fn write_index(store: &Store, images: Vec<Edited>) -> Result<Edited> {
    let notes = images.iter().flat_map(|image| image.notes.clone()).collect();
    let mut images = images;
    let Some(first) = images.first().cloned() else {
        return Err(Error::failed("there is no image to put into an index"));
    };
    if images.len() == 1 {
        return Ok(images.remove(0));
    }
    let index = Index::new(images.into_iter().map(|image| image.descriptor).collect());
    Ok(Edited {
        descriptor: store.put_document(media_type::OCI_INDEX, &index)?,
        id: first.id,
        notes,
    })
}

/// Returns the name of an env entry.
pub(super) fn name_of(pair: &str) -> &str {
    pair.split('=').next().unwrap_or_default()
}

/// Sets one variable: replaces it if it exists, otherwise appends it.
pub(super) fn set_env(env: &mut Vec<String>, pair: String) {
    match env.iter_mut().find(|old| name_of(old) == name_of(&pair)) {
        Some(old) => *old = pair,
        None => env.push(pair),
    }
}

/// Returns the history entries, each with the index of the layer that it created; `None` for an
/// empty entry. If the config's history does not fit the layers, returns one generated entry per
/// layer instead.
pub(super) fn history_by_layer(image: &Image) -> Vec<(Option<usize>, History)> {
    let layers = image.manifest.layers.len();
    let history = &image.config.history;
    if history.iter().filter(|entry| !entry.empty_layer).count() != layers {
        let made_up = |number| {
            let entry = History { comment: Some("no history".to_owned()), ..History::default() };
            (Some(number), entry)
        };
        return (0..layers).map(made_up).collect();
    }
    let mut number = 0;
    let mut listed = Vec::new();
    for entry in history {
        if entry.empty_layer {
            listed.push((None, entry.clone()));
        } else {
            listed.push((Some(number), entry.clone()));
            number += 1;
        }
    }
    listed
}

/// Returns the platform of all images, which must be the same.
pub(super) fn common_platform(images: &[(String, &ImageConfig)]) -> Result<Platform> {
    let Some((first_name, first)) = images.first() else {
        return Err(Error::usage("there is no image"));
    };
    let platform = first.platform();
    for (name, config) in &images[1..] {
        let other = config.platform();
        if (&other.os, &other.architecture) != (&platform.os, &platform.architecture) {
            return Err(Error::usage(format!(
                "{first_name} is for {platform}, but {name} is for {other}"
            ))
            .hint("choose one with --platform, or use images of the same platform"));
        }
    }
    Ok(platform)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_keeps_its_place() {
        let mut env = vec!["A=1".to_owned(), "B=2".to_owned()];
        set_env(&mut env, "A=3".to_owned());
        set_env(&mut env, "C=4".to_owned());
        assert_eq!(env, ["A=3", "B=2", "C=4"]);
    }
}
