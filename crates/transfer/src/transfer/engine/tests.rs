//! Copies from an in-memory source that counts requests and can be told to fail.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::sync::Mutex;

use super::*;
use crate::transfer::arbiter::Arbiter;
use crate::transfer::plan::Platforms;
use crate::transfer::store::{StoreSink, StoreSource};
use crate::transfer::testing::{config, copy, fixture, gzip, layer};
use imgctl_base::error::Error;
use imgctl_base::image::{Index, Manifest, Platform, Reference, media_type};
use imgctl_base::progress::Silent;
use imgctl_store::store::{Image, Store};

#[derive(Default)]
struct Memory {
    blobs: HashMap<Digest, Vec<u8>>,
    root: Option<Descriptor>,
    /// Requested documents and blobs, with their offsets.
    asked: Mutex<Vec<(Digest, u64)>>,
    /// Readers of this blob fail after this many bytes.
    cut: Option<(Digest, usize)>,
}

impl Memory {
    fn put(&mut self, media: &str, bytes: Vec<u8>) -> Descriptor {
        let digest = Digest::of(&bytes);
        let descriptor = Descriptor::new(media, digest.clone(), bytes.len() as u64);
        self.blobs.insert(digest, bytes);
        descriptor
    }

    fn image(&mut self, platform: &str, contents: &[&str]) -> Descriptor {
        let tars: Vec<Vec<u8>> = contents.iter().map(|content| layer(content)).collect();
        let slices: Vec<&[u8]> = tars.iter().map(Vec::as_slice).collect();
        let config = self.put(media_type::OCI_CONFIG, config(&slices, platform));
        let layers =
            tars.iter().map(|tar| self.put(media_type::OCI_LAYER_GZIP, gzip(tar))).collect();
        let mut descriptor = self.manifest(config, layers);
        descriptor.platform = Some(Platform::parse(platform).unwrap());
        descriptor
    }

    fn manifest(&mut self, config: Descriptor, layers: Vec<Descriptor>) -> Descriptor {
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(media_type::OCI_MANIFEST.to_owned()),
            artifact_type: None,
            config,
            layers,
            subject: None,
            annotations: BTreeMap::new(),
        };
        let descriptor = self.put(media_type::OCI_MANIFEST, serde_json::to_vec(&manifest).unwrap());
        self.root = Some(descriptor.clone());
        descriptor
    }

    fn index(&mut self, entries: Vec<Descriptor>) -> Descriptor {
        let index = serde_json::to_vec(&Index::new(entries)).unwrap();
        let descriptor = self.put(media_type::OCI_INDEX, index);
        self.root = Some(descriptor.clone());
        descriptor
    }

    fn asked(&self) -> usize {
        std::mem::take(&mut *self.asked.lock().unwrap()).len()
    }

    fn bytes(&self, digest: &Digest, offset: u64) -> Result<Vec<u8>> {
        self.asked.lock().unwrap().push((digest.clone(), offset));
        let bytes = self
            .blobs
            .get(digest)
            .ok_or_else(|| Error::not_found(format!("{digest} is not there")))?;
        Ok(bytes[usize::try_from(offset).unwrap()..].to_vec())
    }
}

impl ImageSource for Memory {
    fn describe(&self) -> String {
        "memory/image:v1".to_owned()
    }

    fn root(&self) -> Result<SourceDocument> {
        let descriptor = self.root.clone().unwrap();
        Ok(SourceDocument {
            bytes: self.blobs[&descriptor.digest].clone(),
            descriptor: Descriptor::new(&descriptor.media_type, descriptor.digest, descriptor.size),
        })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        self.bytes(&descriptor.digest, 0)
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        let mut bytes = self.bytes(&descriptor.digest, offset)?;
        match &self.cut {
            Some((digest, after)) if *digest == descriptor.digest => {
                bytes.truncate(*after);
                Ok(Box::new(io::Cursor::new(bytes).chain(Cut)))
            }
            _ => Ok(Box::new(io::Cursor::new(bytes))),
        }
    }

    fn admit(&self, _: &Digest, _: &[Digest]) -> Result<Verdict> {
        Ok(Verdict::not_asked("a test"))
    }
}

struct Cut;

impl Read for Cut {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

fn options(platforms: Platforms, keep_index: bool) -> CopyOptions {
    CopyOptions { selection: Selection { platforms, keep_index }, jobs: 3 }
}

fn only(platforms: &[&str]) -> Platforms {
    let parse = |text: &&str| Platform::parse(text).unwrap();
    Platforms::Only(platforms.iter().map(parse).collect())
}

fn name() -> Reference {
    Reference::parse("registry.example/image:v1").unwrap()
}

fn pull(memory: &Memory, store: &Store, unpack: bool, options: &CopyOptions) -> Result<Copied> {
    let sink = StoreSink::new(store, &[name()]).unpacking(unpack);
    copy(memory, &sink, options, &Silent)
}

/// amd64 and arm64 images that share their base.
fn two_platforms() -> (Memory, [Descriptor; 2], Descriptor) {
    let mut memory = Memory::default();
    let amd = memory.image("linux/amd64", &["base", "amd"]);
    let arm = memory.image("linux/arm64", &["base", "arm"]);
    let index = memory.index(vec![amd.clone(), arm.clone()]);
    (memory, [amd, arm], index)
}

#[test]
fn each_blob_is_asked_for_once_and_the_second_time_not_at_all() {
    let (memory, _, index) = two_platforms();
    let fixture = fixture();
    let all = options(Platforms::All, false);
    let copied = pull(&memory, &fixture.store, false, &all).unwrap();
    assert_eq!(copied.root.digest, index.digest);
    assert_eq!((copied.moved.copied, copied.moved.existed, copied.config), (5, 0, None));
    assert_eq!(copied.moved.bytes, copied.moved.total);
    // Two manifests, two configs, three layers.
    assert_eq!(memory.asked(), 7);
    for platform in ["linux/amd64", "linux/arm64"] {
        let platform = Platform::parse(platform).unwrap();
        let image = fixture.store.image(&name().to_string(), Some(&platform));
        assert_eq!(image.unwrap().config.platform(), platform);
    }
    let again = pull(&memory, &fixture.store, false, &all).unwrap();
    assert_eq!(again.moved.existed, 5);
    assert_eq!((again.moved.bytes, memory.asked()), (0, 2));
}

#[test]
fn layers_that_are_not_chosen_stay_in_the_registry() {
    let mut memory = Memory::default();
    let whole = memory.image("linux/amd64", &["read", "not read"]);
    let fixture = fixture();
    let selection = Selection::default();
    let mut plan = Plan::read(&memory, &selection, 3).unwrap();
    let first = |image: &Image| Ok(vec![image.manifest.layers[0].digest.clone()]);
    assert!(plan.leave_layers(&memory, first).unwrap());
    let sink = StoreSink::new(&fixture.store, &[name()]).with_remote_layers();
    copy_plan(&memory, &sink, &plan, 3, &Silent).unwrap();
    let named = fixture.store.resolve(&name().to_string()).unwrap();
    assert_eq!((&named.descriptor.digest, named.has_remote_layers()), (&whole.digest, true));
    let image = fixture.store.image(&name().to_string(), None).unwrap();
    let sizes = image.manifest.layers.iter().map(|layer| fixture.store.blob_size(&layer.digest));
    let here: Vec<bool> = sizes.map(|size| size.unwrap().is_some()).collect();
    assert_eq!(here, [true, false]);
    // A complete pull later transfers only what is missing.
    memory.asked();
    pull(&memory, &fixture.store, false, &options(Platforms::Host, false)).unwrap();
    assert_eq!(memory.asked(), 1);
    assert!(!fixture.store.resolve(&name().to_string()).unwrap().has_remote_layers());
}

#[test]
fn a_selection_takes_what_it_names_and_nothing_else() {
    let (memory, [amd, arm], index) = two_platforms();
    for (selection, root, asked) in [
        (options(Platforms::Host, false), &amd, 4),
        (options(only(&["linux/arm64"]), false), &arm, 4),
        (options(only(&["linux/arm64"]), true), &index, 4),
        (options(only(&["linux/arm64", "linux/amd64"]), false), &index, 7),
    ] {
        let fixture = fixture();
        let copied = pull(&memory, &fixture.store, false, &selection).unwrap();
        assert_eq!(copied.root.digest, root.digest, "{selection:?}");
        assert_eq!(memory.asked(), asked, "{selection:?}");
    }
    let fixture = fixture();
    let error =
        pull(&memory, &fixture.store, false, &options(only(&["linux/s390x"]), false)).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("linux/amd64, linux/arm64"), "{error}");
    // Two platforms of three, and an image without the requested platform.
    let mut memory = memory;
    let s390 = memory.image("linux/s390x", &["base", "s390"]);
    memory.index(vec![amd.clone(), arm, s390]);
    let wanted = options(only(&["linux/amd64", "linux/s390x"]), false);
    let copied = pull(&memory, &fixture.store, false, &wanted).unwrap();
    assert!(media_type::is_index(&copied.root.media_type));
    let image = |text| {
        let platform = Platform::parse(text).unwrap();
        fixture.store.image(&name().to_string(), Some(&platform))
    };
    assert!(image("linux/s390x").is_ok() && image("linux/arm64").is_err());
    memory.root = Some(amd);
    let wrong = options(only(&["linux/arm64"]), false);
    let error = pull(&memory, &fixture.store, false, &wrong).unwrap_err();
    assert!(error.to_string().contains("for linux/amd64"), "{error}");
}

#[test]
fn unpacking_goes_along_and_does_only_what_is_missing() {
    let mut memory = Memory::default();
    memory.image("linux/amd64", &["base", "top", "base"]);
    let fixture = fixture();
    let store = &fixture.store;
    let host = CopyOptions::default();
    let copied = pull(&memory, store, true, &host).unwrap();
    assert_eq!((copied.moved.copied, copied.moved.existed), (3, 0));
    assert_eq!(memory.asked(), 3);
    let image = store.image(&name().to_string(), None).unwrap();
    for (blob, diff_id) in image.layers() {
        let fs = store.snapshot(diff_id).unwrap();
        assert!(fs.join("file").exists());
        assert_eq!(store.blob_size(&blob.digest).unwrap(), Some(blob.size));
    }
    // A blob without its snapshot, and a snapshot without its blob.
    let layers: Vec<_> = image.layers().collect();
    std::fs::remove_file(store.blob_path(&layers[0].0.digest)).unwrap();
    let snapshot = store.snapshot(layers[1].1).unwrap();
    std::fs::remove_dir_all(snapshot.parent().unwrap()).unwrap();
    let copied = pull(&memory, store, true, &host).unwrap();
    assert_eq!(memory.asked(), 1);
    assert_eq!(copied.moved.copied, 1);
    assert!(layers.iter().all(|(_, id)| store.snapshot(id).is_some()));
}

#[test]
fn a_cut_pull_goes_on_where_it_stopped() {
    for unpack in [false, true] {
        let mut memory = Memory::default();
        // Incompressible, so the cut falls in its middle.
        let noise: String =
            (0..1000_u32).map(|n| blake3::hash(&n.to_le_bytes()).to_hex().to_string()).collect();
        memory.image("linux/amd64", &[&noise]);
        let tar = layer(&noise);
        let blob = Digest::of(&gzip(&tar));
        memory.cut = Some((blob.clone(), 5000));
        let fixture = fixture();
        let error = pull(&memory, &fixture.store, unpack, &CopyOptions::default()).unwrap_err();
        assert!(error.to_string().contains("memory/image:v1"), "{error}");
        assert_eq!(fixture.store.blob_size(&blob).unwrap(), None);
        assert!(fixture.store.snapshot(&Digest::of(&tar)).is_none());
        assert!(fixture.store.image(&name().to_string(), None).is_err());
        memory.cut = None;
        memory.asked();
        pull(&memory, &fixture.store, unpack, &CopyOptions::default()).unwrap();
        let asked = std::mem::take(&mut *memory.asked.lock().unwrap());
        let of_blob = |asked: &&(Digest, u64)| asked.0 == blob;
        let asked: Vec<u64> = asked.iter().filter(of_blob).map(|asked| asked.1).collect();
        assert_eq!(asked, [5000], "unpack: {unpack}");
        assert_eq!(fixture.store.snapshot(&Digest::of(&tar)).is_some(), unpack);
    }
}

#[test]
fn damaged_leftovers_cost_a_new_download() {
    for unpack in [false, true] {
        let mut memory = Memory::default();
        memory.image("linux/amd64", &["some content"]);
        let tar = layer("some content");
        let blob = gzip(&tar);
        let digest = Digest::of(&blob);
        let fixture = fixture();
        let path = fixture.store.path("ingest").join(digest.hex());
        std::fs::write(path.with_added_extension("partial"), vec![7; blob.len() / 2]).unwrap();
        pull(&memory, &fixture.store, unpack, &CopyOptions::default()).unwrap();
        assert_eq!(fixture.store.read_blob(&digest, 1 << 20).unwrap(), blob);
    }
}

#[test]
fn lies_are_found_and_nothing_becomes_visible() {
    for unpack in [false, true] {
        // A layer with other content, then one with another diff ID.
        let mut memory = Memory::default();
        memory.image("linux/amd64", &["good"]);
        let good = gzip(&layer("good"));
        let digest = Digest::of(&good);
        memory.blobs.insert(digest.clone(), gzip(&layer("evil")));
        let fixture = fixture();
        let error = pull(&memory, &fixture.store, unpack, &CopyOptions::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{error}");
        assert_eq!(fixture.store.blob_size(&digest).unwrap(), None);
        assert!(fixture.store.names().unwrap().is_empty());
    }
    let mut memory = Memory::default();
    let tar = layer("a");
    let other = config(&[&layer("b")], "linux/amd64");
    let config = memory.put(media_type::OCI_CONFIG, other);
    let layer = memory.put(media_type::OCI_LAYER_GZIP, gzip(&tar));
    memory.manifest(config, vec![layer]);
    let fixture = fixture();
    let error = pull(&memory, &fixture.store, true, &CopyOptions::default()).unwrap_err();
    assert!(error.to_string().contains("uncompressed layer"), "{error}");
    assert!(fixture.store.names().unwrap().is_empty());
}

#[test]
fn endless_nesting_and_artifacts_are_refused_with_a_reason() {
    let mut memory = Memory::default();
    let mut entry = memory.image("linux/amd64", &["x"]);
    for _ in 0..6 {
        entry = memory.index(vec![entry]);
    }
    let fixture = fixture();
    for platforms in [Platforms::Host, Platforms::All] {
        let deep = options(platforms, false);
        let error = pull(&memory, &fixture.store, false, &deep).unwrap_err();
        assert!(error.to_string().contains("nests more than"), "{error}");
    }
    let config = memory.put("application/vnd.oci.empty.v1+json", b"{}".to_vec());
    memory.manifest(config, Vec::new());
    let error = pull(&memory, &fixture.store, false, &CopyOptions::default()).unwrap_err();
    assert!(error.to_string().contains("is an artifact"), "{error}");
}

#[test]
fn from_one_store_to_another_an_index_stays_the_same_bytes() {
    let (memory, _, index) = two_platforms();
    let (first, second) = (fixture(), fixture());
    let all = options(Platforms::All, false);
    pull(&memory, &first.store, false, &all).unwrap();
    let named = first.store.resolve(&name().to_string()).unwrap();
    let source = StoreSource::new(&first.store, &named, &Arbiter::everything()).unwrap();
    let sink = StoreSink::new(&second.store, &[name()]);
    let copied = copy(&source, &sink, &all, &Silent).unwrap();
    assert_eq!(copied.root.digest, index.digest);
    assert_eq!(copied.moved.copied, 5);
    second.store.check_complete_image(&index).unwrap();
}

#[test]
fn sizes_beyond_all_bounds_are_no_defect_of_ours() {
    let mut memory = Memory::default();
    let config = memory.put(media_type::OCI_CONFIG, config(&[], "linux/amd64"));
    let huge = |text: &[u8]| Descriptor::new(media_type::OCI_LAYER, Digest::of(text), u64::MAX);
    memory.manifest(config, vec![huge(b"a"), huge(b"b")]);
    let plan = Plan::read(&memory, &Selection::default(), 1).unwrap();
    assert_eq!(plan.total(), u64::MAX);
}
