//! Writes the caches of `--cache-to` after the result has been delivered, so that pushed layers are
//! not sent again.

use crate::build::options::{Built, Options};
use crate::cache::Exported;
use crate::cache::export::export;
use imgctl_base::error::{Context as _, Result};
use imgctl_base::progress::Reporter;
use imgctl_store::store::Store;

/// Writes the caches of `--cache-to`. A failure is a warning, unless the cache's options say otherwise.
pub fn export_cache(
    store: &Store,
    options: &Options,
    built: &Built,
    reporter: &dyn Reporter,
) -> Result<Vec<Exported>> {
    let client = options.base_images.client.as_ref();
    let today = u32::try_from(options.now / 86_400).unwrap_or(0);
    let mut exported = Vec::new();
    for target in &options.cache.to {
        let place = &target.place;
        let written = export(target, &built.cache, &built.imported, store, client, today)
            .context(|| format!("cannot write the build cache {place}"));
        match written {
            Ok(cache) => {
                let how = if cache.unchanged { "is up to date" } else { "is written" };
                reporter.note(&format!("the build cache {place} {how}: {} steps", cache.steps));
                exported.push(cache);
            }
            Err(error) if target.ignore_error => tracing::warn!("{}", error.chain().join(": ")),
            Err(error) => return Err(error),
        }
    }
    Ok(exported)
}
