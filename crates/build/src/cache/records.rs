//! The records of a cache: for each step's key the layers that the step made, as compressed JSON of
//! bounded size. The same records always give the same bytes.

use std::collections::BTreeMap;
use std::io::{Cursor, Read as _};

use serde::{Deserialize, Serialize};

use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::image::descriptor::LAYER_KIND;
use imgctl_base::image::{Descriptor, Digest, LayerKind, media_type};
use imgctl_layer::chunked::{self, Position};
use imgctl_layer::decompress;
use imgctl_store::store::Store;

/// Artifact type of a build cache.
pub(crate) const ARTIFACT: &str = "application/vnd.imgctl.buildcache.v1";
const VERSION: u32 = 1;
/// Maximum size of compressed records, in bytes.
pub(crate) const MAX_COMPRESSED: u64 = 16 << 20;
/// Maximum size of records as JSON, in bytes.
const MAX_JSON: u64 = 64 << 20;
/// Maximum number of records that an export keeps: the least recently used are dropped first.
const MAX_STEPS: usize = 20_000;
const COMPRESSION_LEVEL: i32 = 6;

/// A layer as stored in the cache and used by a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CachedLayer {
    /// Media type, digest, size, and the layer's kind as an annotation.
    pub descriptor: Descriptor,
    pub diff_id: Digest,
    /// Newest modification time inside, in seconds since 1970; the source of `created`.
    pub newest: i64,
}

/// What a step's key covers, which decides how its record can be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Basis {
    /// The content of the layer, except for times: the layer can be recreated and compared.
    Content,
    /// The inputs of a command, whose result cannot be verified.
    Run,
    /// Paths and digests of embedded images: the layer can be recreated from their content, which the
    /// downloaded layer may have, and compared.
    Embedded,
}

impl Basis {
    /// Returns whether the build can recreate the layers of a record of this kind, and so verify a
    /// record that nobody vouches for: it is used only if the layers are the same to the byte.
    pub(crate) fn can_be_recreated(self) -> bool {
        match self {
            Self::Content | Self::Embedded => true,
            Self::Run => false,
        }
    }
}

/// The record of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) basis: Basis,
    /// Day of the last use, counted from 1970.
    pub(crate) used: u32,
    pub(crate) layers: Vec<RecordedLayer>,
    /// Signature of key, basis and layers, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signature: Option<String>,
}

/// A layer that a record names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecordedLayer {
    media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    kind: String,
    pub(crate) diff_id: Digest,
    pub(crate) newest: i64,
    /// Modification times of the entries, in order, as runs: how many entries, and by how many
    /// seconds their time differs from that of the run before. Only content records have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    times: Vec<(u64, i64)>,
    /// Annotations that say where the layer's list of frames is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    list: BTreeMap<String, String>,
}

impl Step {
    /// Returns a record that nobody has signed.
    pub(crate) fn new(basis: Basis, used: u32, layers: Vec<RecordedLayer>) -> Self {
        Self { basis, used, layers, signature: None }
    }

    /// Reports whether the record names exactly these layers.
    pub(crate) fn names(&self, layers: &[CachedLayer]) -> bool {
        self.layers.len() == layers.len()
            && self.layers.iter().zip(layers).all(|(recorded, layer)| recorded.names(layer))
    }
}

impl RecordedLayer {
    /// Describes a layer; `times` are the modification times of its entries.
    pub(crate) fn new(layer: &CachedLayer, times: impl Iterator<Item = i64>) -> Option<Self> {
        Some(Self {
            media_type: layer.descriptor.media_type.clone(),
            digest: layer.descriptor.digest.clone(),
            size: layer.descriptor.size,
            kind: layer.descriptor.layer_kind()?.as_str().to_owned(),
            diff_id: layer.diff_id.clone(),
            newest: layer.newest,
            times: runs(times),
            list: of_list(&layer.descriptor.annotations),
        })
    }

    /// Returns the layer that the record names, reduced to the members that a build sets.
    pub(crate) fn layer(&self) -> CachedLayer {
        let mut descriptor = self.descriptor();
        descriptor.annotations.clone_from(&self.list);
        descriptor.annotations.insert(LAYER_KIND.to_owned(), self.kind.clone());
        CachedLayer { descriptor, diff_id: self.diff_id.clone(), newest: self.newest }
    }

    /// Returns the layer's blob.
    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor::new(&self.media_type, self.digest.clone(), self.size)
    }

    /// Reports whether the record names this layer.
    pub(crate) fn names(&self, layer: &CachedLayer) -> bool {
        self.layer() == *layer
    }

    /// Returns the times of the entries if they are those of exactly `count` entries.
    pub(crate) fn times(&self, count: usize) -> Option<Vec<i64>> {
        let total = self.times.iter().try_fold(0_u64, |sum, (run, _)| sum.checked_add(*run))?;
        if total != count as u64 {
            return None;
        }
        let mut times = Vec::with_capacity(count);
        let mut time = 0_i64;
        for (run, difference) in &self.times {
            time = time.checked_add(*difference)?;
            times.extend(std::iter::repeat_n(time, usize::try_from(*run).ok()?));
        }
        Some(times)
    }

    fn is_sound(&self) -> bool {
        let is_list = self.list.is_empty()
            || (self.list == of_list(&self.list)
                && Position::of_annotations(&self.list, self.size).is_some());
        media_type::is_layer(&self.media_type) && LayerKind::parse(&self.kind).is_some() && is_list
    }
}

/// Returns the annotations that say where a layer's list of frames is.
fn of_list(annotations: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut all = annotations.clone();
    all.retain(|name, _| chunked::ANNOTATIONS.contains(&name.as_str()));
    all
}

fn runs(times: impl Iterator<Item = i64>) -> Vec<(u64, i64)> {
    let mut runs: Vec<(u64, i64)> = Vec::new();
    let mut last = 0;
    for time in times {
        match runs.last_mut() {
            Some((count, _)) if time == last => *count += 1,
            _ => runs.push((1, time.wrapping_sub(last))),
        }
        last = time;
    }
    runs
}

/// The steps that a build has used or made, by key.
pub(crate) type Used = BTreeMap<String, (Basis, Vec<CachedLayer>)>;

/// Describes the layers of a step; `None` if the store no longer has them or their
/// tables of contents.
pub(crate) fn recorded(
    store: &Store,
    basis: Basis,
    layers: &[CachedLayer],
) -> Result<Option<Vec<RecordedLayer>>> {
    let mut recorded = Vec::new();
    for layer in layers {
        let times = match basis {
            Basis::Content => match store.toc(&layer.descriptor.digest, &layer.diff_id) {
                Ok(toc) => toc.entries.iter().map(|e| e.entry.mtime.seconds).collect(),
                Err(error) if error.kind() == Kind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            },
            Basis::Run | Basis::Embedded => Vec::new(),
        };
        let Some(layer) = RecordedLayer::new(layer, times.into_iter()) else {
            return Ok(None);
        };
        recorded.push(layer);
    }
    Ok(Some(recorded))
}

/// All records of a cache, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Records {
    version: u32,
    pub(crate) steps: BTreeMap<String, Step>,
}

impl Records {
    /// Returns a cache of `steps`.
    pub(crate) fn new(steps: BTreeMap<String, Step>) -> Self {
        Self { version: VERSION, steps }
    }

    /// Returns every layer once, by digest.
    pub(crate) fn layers(&self) -> BTreeMap<&Digest, &RecordedLayer> {
        let layers = self.steps.values().flat_map(|step| &step.layers);
        layers.map(|layer| (&layer.digest, layer)).collect()
    }

    /// Merges `newer` into these records, where newer ones replace older ones, and drops those not
    /// used since the day `since`.
    pub(crate) fn merged(&self, newer: &Self, since: u32, today: u32) -> Self {
        let mut steps: BTreeMap<String, Step> = self
            .steps
            .iter()
            .filter(|(_, step)| step.used >= since)
            .map(|(key, step)| {
                // A clock that is ahead must not keep a record for ever.
                let used = step.used.min(today);
                (key.clone(), Step { used, ..step.clone() })
            })
            .collect();
        steps.extend(newer.steps.clone());
        if steps.len() > MAX_STEPS {
            let mut by_age: Vec<(u32, String)> =
                steps.iter().map(|(key, step)| (step.used, key.clone())).collect();
            by_age.sort();
            for (_, key) in by_age.iter().take(steps.len() - MAX_STEPS) {
                steps.remove(key);
            }
        }
        Self::new(steps)
    }

    /// Returns the records as they are stored.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(self).map_err(|error| {
            Error::failed("cannot write the build cache's records").caused_by(error)
        })?;
        zstd::stream::encode_all(json.as_slice(), COMPRESSION_LEVEL)
            .doing(|| "cannot compress the build cache's records".to_owned())
    }

    /// Parses the output of [`Records::encode`], which is untrusted.
    pub(crate) fn decode(bytes: Vec<u8>) -> Result<Self> {
        let refuse = |why: &str| Error::bad_content(format!("the build cache's records {why}"));
        let (_, reader) = decompress::decompress(Cursor::new(bytes))?;
        let mut json = Vec::new();
        reader
            .take(MAX_JSON + 1)
            .read_to_end(&mut json)
            .map_err(|error| refuse("are damaged").caused_by(error))?;
        if json.len() as u64 > MAX_JSON {
            return Err(refuse(&format!("are larger than {MAX_JSON} bytes")));
        }
        let records: Self = serde_json::from_slice(&json)
            .map_err(|error| refuse("are malformed").caused_by(error))?;
        if records.version != VERSION {
            return Err(refuse(&format!("have version {}, not {VERSION}", records.version)));
        }
        let is_key = |key: &str| key.len() == 64 && key.bytes().all(|b| b.is_ascii_hexdigit());
        let sound = |(key, step): (&String, &Step)| {
            is_key(key) && step.layers.iter().all(RecordedLayer::is_sound)
        };
        if !records.steps.iter().all(sound) {
            return Err(refuse("name something that is not a layer"));
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(content: &[u8]) -> RecordedLayer {
        let digest = Digest::of(content);
        let mut descriptor = Descriptor::new(media_type::OCI_LAYER_ZSTD, digest.clone(), 7);
        descriptor.annotations.insert(LAYER_KIND.to_owned(), "rootfs".to_owned());
        let layer = CachedLayer { descriptor, diff_id: digest, newest: 12 };
        RecordedLayer::new(&layer, [10, 10, 12, 10].into_iter()).unwrap()
    }

    fn records(steps: &[(u8, u32)]) -> Records {
        let step = |used: u32, number: u8| Step {
            basis: Basis::Content,
            used,
            layers: vec![layer(&[number])],
            signature: None,
        };
        let key = |number: u8| format!("{number:064x}");
        Records::new(steps.iter().map(|(n, used)| (key(*n), step(*used, *n))).collect())
    }

    #[test]
    fn what_is_written_is_read_and_the_same_records_give_the_same_bytes() {
        let some = records(&[(1, 5), (2, 6)]);
        let bytes = some.encode().unwrap();
        assert_eq!(bytes, records(&[(2, 6), (1, 5)]).encode().unwrap());
        assert_eq!(Records::decode(bytes).unwrap(), some);
    }

    #[test]
    fn times_are_those_of_all_entries_or_none() {
        let layer = layer(b"x");
        assert_eq!(layer.times(4), Some(vec![10, 10, 12, 10]));
        assert_eq!(layer.times(3), None);
        let lying = RecordedLayer { times: vec![(u64::MAX, 1), (5, 1)], ..layer.clone() };
        assert_eq!(lying.times(4), None);
        let lying = RecordedLayer { times: vec![(2, i64::MAX), (2, 1)], ..layer };
        assert_eq!(lying.times(4), None);
    }

    #[test]
    fn annotations_of_a_list_are_kept_and_no_others() {
        let list = |position: &str| {
            BTreeMap::from([
                (chunked::CHECKSUM.to_owned(), Digest::of(b"list").to_string()),
                (chunked::POSITION.to_owned(), position.to_owned()),
                (chunked::HEADERS_POSITION.to_owned(), "4:1:1".to_owned()),
            ])
        };
        let digest = Digest::of(b"x");
        let mut descriptor = Descriptor::new(media_type::OCI_LAYER_ZSTD, digest.clone(), 7);
        descriptor.annotations = list("1:2:3:1");
        descriptor.annotations.insert(LAYER_KIND.to_owned(), "rootfs".to_owned());
        let layer = CachedLayer { descriptor, diff_id: digest, newest: 12 };
        let recorded = RecordedLayer::new(&layer, std::iter::empty()).unwrap();
        assert!(recorded.is_sound() && recorded.names(&layer));
        let with = |list| RecordedLayer { list, ..recorded.clone() };
        let mut more = list("1:2:3:1");
        more.insert("io.imgctl.layer.images".to_owned(), "x".to_owned());
        let mut fewer = list("1:2:3:1");
        fewer.remove(chunked::CHECKSUM);
        for wrong in [list("9:9:9:1"), list("x"), more, fewer] {
            assert!(!with(wrong).is_sound());
        }
    }

    #[test]
    fn merging_keeps_what_is_young_and_prefers_what_is_newer() {
        let merged = records(&[(1, 5), (2, 9), (3, 99)]).merged(&records(&[(2, 10)]), 8, 10);
        let used: Vec<u32> = merged.steps.values().map(|step| step.used).collect();
        assert_eq!(used, [10, 10]);
    }

    #[test]
    fn damage_and_bombs_are_errors() {
        let good = records(&[(1, 5)]).encode().unwrap();
        assert!(Records::decode(good[..good.len() - 3].to_vec()).is_err());
        assert!(Records::decode(b"{}".to_vec()).is_err());
        assert!(Records::decode(br#"{"version":9,"steps":{}}"#.to_vec()).is_err());
        assert!(Records::decode(br#"{"version":1,"steps":{}}"#.to_vec()).is_ok());
        let bomb = vec![b' '; (MAX_JSON + 2) as usize];
        let bomb = zstd::stream::encode_all(bomb.as_slice(), 1).unwrap();
        assert!(bomb.len() < 100_000);
        assert!(Records::decode(bomb).unwrap_err().to_string().contains("larger"));
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = Records::decode(bytes.to_vec());
        });
    }
}
