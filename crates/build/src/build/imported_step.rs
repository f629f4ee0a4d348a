//! Layers of imported caches. A record that its reader trusts is used as the store's own would be: the
//! step's key says that the layer is the right one. Of any other record, every claim is verified: the
//! build makes the layer again, of embedded images with the blobs in the fetched layer, and compares
//! digests, size and form. What a command has made cannot be made again, so it is only used if it is
//! trusted.
//!
//! If the result goes to a registry only, trusted layers stay in the registry of the cache.

use std::sync::Arc;

use crate::build::items::Item;
use crate::build::layer_step::LayerMaker;
use crate::build::step_cache::{Basis, CachedLayer};
use crate::cache::import::{Candidate, Import};
use crate::cache::records::{RecordedLayer, Step};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::LayerKind;
use imgctl_layer::chunked;
use imgctl_layer::{Compression, Mtime, Toc, planned};

/// How the build recreates a layer of a record that is not trusted.
pub(crate) struct Recreate<'a> {
    /// A blob that is larger, in bytes, is not fetched.
    pub(crate) largest: u64,
    /// Makes the layer that the build would have made, with content of the fetched layer according to
    /// its table of contents; every content is verified.
    pub(crate) make: &'a dyn Fn(&CachedLayer, &Toc) -> Result<CachedLayer>,
}

impl LayerMaker<'_> {
    /// Returns the layer of `items` as a cache has it, with the times that it has there: so the layer
    /// keeps its digest on a machine where the files have other times. All digests of `items` are known.
    pub(super) fn imported(
        &self,
        kind: LayerKind,
        key: &str,
        items: &[Item],
    ) -> Result<Option<CachedLayer>> {
        for candidate in self.cache.imported().find(key, Basis::Content) {
            let [recorded] = candidate.step.layers.as_slice() else { continue };
            let Some(items) = self.timed(recorded, items, candidate.is_trusted) else {
                continue;
            };
            match self.reuse(kind, &candidate, recorded, items)? {
                Some(layer) => {
                    self.record(key, &layer)?;
                    return Ok(Some(layer));
                }
                None => lies(candidate.import, "it names another layer than the build makes"),
            }
        }
        Ok(None)
    }

    /// Returns the layer of a record, stored or left in its registry; `None` if the record lies.
    fn reuse(
        &self,
        kind: LayerKind,
        candidate: &Candidate<'_>,
        recorded: &RecordedLayer,
        items: Vec<Item>,
    ) -> Result<Option<CachedLayer>> {
        let remotes = self.cache.remotes();
        let expected = recorded.layer();
        if expected.descriptor.layer_kind() != Some(kind) || self.check_form(&expected).is_err() {
            return Ok(None);
        }
        if !candidate.is_trusted || !remotes.allows(candidate.import, recorded) {
            let (_, layer) = self.write(kind, items, recorded.newest)?;
            return Ok((layer == expected).then_some(layer));
        }
        let entry = |item: &Item| (item.entry.clone(), item.digest.unwrap_or_default());
        let toc = planned(items.iter().map(entry))?;
        remotes.leave(candidate.import, recorded, Some(toc));
        Ok(Some(expected))
    }

    /// Returns `items` with the times of a record, if this build could have set them. A build
    /// with fixed times does not take other times from an untrusted record.
    fn timed(
        &self,
        recorded: &RecordedLayer,
        items: &[Item],
        is_trusted: bool,
    ) -> Option<Vec<Item>> {
        let times = recorded.times(items.len())?;
        let newest = times.iter().max()?;
        let allowed = self.timestamp.is_none_or(|limit| *newest <= limit);
        if *newest != recorded.newest || !allowed {
            return None;
        }
        let mut own = items.to_vec();
        let mut items = items.to_vec();
        for (item, seconds) in items.iter_mut().zip(&times) {
            item.entry.mtime = Mtime { seconds: *seconds, nanoseconds: 0 };
        }
        if self.timestamp.is_some() && !is_trusted {
            self.settle_times(&mut own);
            let same = |(a, b): (&Item, &Item)| a.entry.mtime == b.entry.mtime;
            return own.iter().zip(&items).all(same).then_some(items);
        }
        Some(items)
    }

    /// Returns the layers of a step that an imported cache has, left where they are or fetched. A
    /// record that is not trusted must name the layers that `recreate` makes of the fetched ones.
    /// `None` if no cache has layers that can be used.
    pub(crate) fn fetched(
        &self,
        key: &str,
        basis: Basis,
        recreate: Option<&Recreate<'_>>,
    ) -> Option<Vec<CachedLayer>> {
        for Candidate { import, step, is_trusted } in self.cache.imported().find(key, basis) {
            let used = match (is_trusted, recreate) {
                (true, _) if self.can_stay(import, step) => self.leave_all(import, step),
                (true, _) => self.fetch_all(import, step, None),
                (false, Some(recreate)) => self.fetch_all(import, step, Some(recreate)),
                (false, None) => Err(Error::bad_content("nobody vouches for it")),
            };
            match used {
                Ok(layers) => return Some(layers),
                Err(error) => lies(import, &error.chain().join(": ")),
            }
        }
        None
    }

    fn can_stay(&self, import: &Import, step: &Step) -> bool {
        step.layers.iter().all(|layer| self.cache.remotes().allows(import, layer))
    }

    fn leave_all(&self, import: &Arc<Import>, step: &Step) -> Result<Vec<CachedLayer>> {
        let layers: Vec<CachedLayer> = step.layers.iter().map(RecordedLayer::layer).collect();
        layers.iter().try_for_each(|layer| self.check_form(layer))?;
        for layer in &step.layers {
            self.cache.remotes().leave(import, layer, None);
        }
        Ok(layers)
    }

    fn fetch_all(
        &self,
        import: &Import,
        step: &Step,
        recreate: Option<&Recreate<'_>>,
    ) -> Result<Vec<CachedLayer>> {
        let mut layers = Vec::new();
        for recorded in &step.layers {
            self.check_form(&recorded.layer())?;
            if recreate.is_some_and(|recreate| recorded.size > recreate.largest) {
                return Err(wrong(&recorded.layer(), "is larger than what the build makes"));
            }
            let (layer, toc) = import.fetch(recorded, self.store, self.reporter)?;
            self.check_content(&layer, &toc)?;
            if let Some(recreate) = recreate
                && (recreate.make)(&layer, &toc)? != layer
            {
                return Err(wrong(&layer, "is not what the build makes"));
            }
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
        let is_zstd = matches!(self.compression_of(kind), Compression::Zstd { .. });
        if !is_zstd
            && chunked::ANNOTATIONS
                .iter()
                .any(|name| layer.descriptor.annotations.contains_key(*name))
        {
            return Err(wrong(layer, "cannot have the list of frames that its record names"));
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
