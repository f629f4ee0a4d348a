//! Layers of imported caches. Verifies every claim of a record that can be verified: recreates a layer
//! of known content with the times of the record and compares it; fetches and examines any other
//! layer before use.

use crate::build::items::Item;
use crate::build::layer_step::LayerMaker;
use crate::build::step_cache::{Basis, CachedLayer};
use crate::cache::import::Import;
use crate::cache::records::{RecordedLayer, Step};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::LayerKind;
use imgctl_store::layer::{Mtime, Toc};

impl LayerMaker<'_> {
    /// Recreates the layer of `items` as a cache has it, so that it keeps its digest on a machine
    /// where the files have other times. Nothing is fetched.
    pub(super) fn imported(
        &self,
        kind: LayerKind,
        key: &str,
        items: &[Item],
    ) -> Result<Option<CachedLayer>> {
        for (import, step) in self.cache.imported().find(key, Basis::Content) {
            let [recorded] = step.layers.as_slice() else { continue };
            let Some(times) = self.times(recorded, items.len()) else {
                lies(import, "its times are not those of the layer");
                continue;
            };
            let mut items = items.to_vec();
            for (item, seconds) in items.iter_mut().zip(&times) {
                item.entry.mtime = Mtime { seconds: *seconds, nanoseconds: 0 };
            }
            let layer = self.write(kind, &mut items, recorded.newest)?;
            if recorded.names(&layer) {
                self.record(key, &layer)?;
                return Ok(Some(layer));
            }
            lies(import, "it names another layer than the build makes");
        }
        Ok(None)
    }

    /// Returns the times of a record for `count` entries, if this build could have set them.
    fn times(&self, recorded: &RecordedLayer, count: usize) -> Option<Vec<i64>> {
        let times = recorded.times(count)?;
        let newest = times.iter().max()?;
        let allowed = self.timestamp.is_none_or(|limit| *newest <= limit);
        (*newest == recorded.newest && allowed).then_some(times)
    }

    /// Fetches the layers of a step that an imported cache has. `accept` examines each of them by
    /// its table of contents; `None` if no cache has layers that can be used.
    pub(crate) fn fetched(
        &self,
        key: &str,
        basis: Basis,
        accept: &dyn Fn(&CachedLayer, &Toc) -> Result<()>,
    ) -> Option<Vec<CachedLayer>> {
        for (import, step) in self.cache.imported().find(key, basis) {
            match self.fetch_all(import, step, accept) {
                Ok(layers) => return Some(layers),
                Err(error) => lies(import, &error.chain().join(": ")),
            }
        }
        None
    }

    fn fetch_all(
        &self,
        import: &Import,
        step: &Step,
        accept: &dyn Fn(&CachedLayer, &Toc) -> Result<()>,
    ) -> Result<Vec<CachedLayer>> {
        let mut layers = Vec::new();
        for recorded in &step.layers {
            self.check_form(&recorded.layer())?;
            let (layer, toc) = import.fetch(recorded, self.store, self.lease, self.reporter)?;
            self.check_content(&layer, &toc)?;
            accept(&layer, &toc)?;
            layers.push(layer);
        }
        Ok(layers)
    }

    /// Checks that this build would give the layer this form.
    fn check_form(&self, layer: &CachedLayer) -> Result<()> {
        let kind = layer.descriptor.layer_kind().ok_or_else(|| wrong(layer, "has no kind"))?;
        if layer.descriptor.media_type != self.compression_of(kind).media_type(self.docker)? {
            return Err(wrong(layer, "has another compression or format than the build's"));
        }
        Ok(())
    }

    /// Checks what holds for every layer that a build makes.
    fn check_content(&self, layer: &CachedLayer, toc: &Toc) -> Result<()> {
        let kind = layer.descriptor.layer_kind();
        let mut newest = None;
        for listed in &toc.entries {
            if Some(listed.entry.path.layer_kind()) != kind {
                return Err(wrong(layer, "has files of another kind"));
            }
            newest = newest.max(Some(listed.entry.mtime.seconds));
        }
        if newest != Some(layer.newest) || self.timestamp.is_some_and(|limit| layer.newest > limit)
        {
            return Err(wrong(layer, "has other times than its record says"));
        }
        Ok(())
    }
}

fn lies(import: &Import, why: &str) {
    tracing::warn!("a record of the build cache {} is not used: {why}", import.place());
}

fn wrong(layer: &CachedLayer, how: &str) -> Error {
    Error::bad_content(format!("layer {} {how}", layer.descriptor.digest))
}
