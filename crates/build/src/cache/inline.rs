//! Records that travel in an image's config, `--cache-to type=inline`: those whose layers the image has.
//!
//! They say nothing about when they were used: the same image always has the same ones, and keeps
//! its digest.

use std::collections::{BTreeMap, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::cache::place::{CachePlace, small_blob};
use crate::cache::records::{
    Basis, CachedLayer, MAX_COMPRESSED, RecordedLayer, Records, Step, Used,
};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Digest, ImageConfig, Manifest};

/// Member of the config with the records, compressed and in base64.
const MEMBER: &str = "io.imgctl.buildcache.v1";
/// Maximum size of the member: registries and daemons read configs into memory.
const MAX_MEMBER: usize = 8 << 20;

/// Returns the record of a step that the build has used.
pub(crate) type Recorded<'a> =
    dyn Fn(&str, Basis, &[CachedLayer]) -> Result<Option<Vec<RecordedLayer>>> + 'a;

/// Writes the records of those of `used` whose layers are all in `layers` into `config`.
pub(crate) fn write(
    config: &mut ImageConfig,
    used: &Used,
    layers: &[&Digest],
    recorded: &Recorded<'_>,
) -> Result<()> {
    let mut steps = BTreeMap::new();
    for (key, (basis, made)) in used {
        if !made.iter().all(|layer| layers.contains(&&layer.descriptor.digest)) {
            continue;
        }
        if let Some(layers) = recorded(key, *basis, made)? {
            steps.insert(key.clone(), Step::new(*basis, 0, layers));
        }
    }
    if steps.is_empty() {
        return Ok(());
    }
    let text = STANDARD.encode(Records::new(steps).encode()?);
    if text.len() > MAX_MEMBER {
        tracing::warn!(
            "the build cache is not in the image: it has {} bytes; use --cache-to type=registry",
            text.len()
        );
        return Ok(());
    }
    config.extra.insert(MEMBER.to_owned(), text.into());
    Ok(())
}

/// Removes the records of a base image, which are not about the image built on it.
pub(crate) fn remove(config: &mut ImageConfig) {
    config.extra.remove(MEMBER);
}

#[derive(Deserialize)]
struct Config {
    #[serde(rename = "io.imgctl.buildcache.v1")]
    cache: Option<String>,
}

/// Returns the records that an image carries; none if it has none. Records that name a layer of
/// another image are dropped.
pub(crate) fn records(place: &dyn CachePlace, manifest: &Manifest) -> Result<Records> {
    let config = &manifest.config;
    if !manifest.is_image() {
        return Ok(Records::default());
    }
    let malformed = || Error::bad_content("the build cache in the image's config is malformed");
    let bytes = small_blob(place, config, MAX_COMPRESSED)?;
    let parsed: Config =
        serde_json::from_slice(&bytes).map_err(|error| malformed().caused_by(error))?;
    let Some(text) = parsed.cache else {
        return Ok(Records::default());
    };
    let bytes = STANDARD.decode(text).map_err(|error| malformed().caused_by(error))?;
    let mut records = Records::decode(bytes)?;
    let layers: HashMap<&Digest, u64> =
        manifest.layers.iter().map(|layer| (&layer.digest, layer.size)).collect();
    records.steps.retain(|_, step| {
        step.layers.iter().all(|layer| layers.get(&layer.digest) == Some(&layer.size))
    });
    Ok(records)
}
