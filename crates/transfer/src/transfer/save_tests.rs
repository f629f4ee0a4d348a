//! Tests of saving: saved images load as the same image, and always give the same bytes.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::arbiter::Arbiter;
use super::docker_archive;
use super::members::Members;
use super::save::to_docker;
use super::testing::*;
use super::*;
use imgctl_base::error::Kind;
use imgctl_base::image::{Digest, Platform, media_type};
use imgctl_base::progress::Silent;
use imgctl_layer::{BlockWriter, Compression};
use imgctl_store::store::{Named, Store};

/// A store with two images that share a layer; one of them has two platforms.
fn filled() -> Fixture {
    let fixture = fixture();
    let mut layout = Layout::default();
    let (shared, own) = (layer("shared"), layer("own"));
    let zstd_layer = (media_type::OCI_LAYER_ZSTD, zstd(&shared), shared.clone());
    let gzip_layer = (media_type::OCI_LAYER_GZIP, gzip(&own), own);
    let lone = layout.image(&[zstd_layer.clone(), gzip_layer], "linux/amd64");
    let amd = layout.image(std::slice::from_ref(&zstd_layer), "linux/amd64");
    let arm = layout.image(&[zstd_layer], "linux/arm64");
    let multi = layout.index(vec![amd, arm]);
    layout.name(lone.clone(), Some("localhost/lone:1"));
    layout.name(lone, Some("localhost/lone:2"));
    layout.name(multi, Some("reg.io/multi:1"));
    load_bytes(&fixture.store, &tar(&layout.members())).unwrap();
    fixture
}

fn saved(store: &Store, names: &[&str], options: &SaveOptions) -> Vec<u8> {
    let named: Vec<Named> = names.iter().map(|name| store.resolve(name).unwrap()).collect();
    let bytes = Shared::default();
    let output = Output::Stream(Box::new(bytes.clone()));
    save(store, &named, options, output, &Silent).unwrap();
    std::mem::take(&mut *bytes.0.lock().unwrap())
}

/// A stream that records what is written to it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn format(format: ArchiveFormat) -> SaveOptions {
    SaveOptions { format, ..SaveOptions::default() }
}

#[test]
fn oci_archives_load_as_the_same_images() {
    let source = filled();
    for compression in [OuterCompression::None, OuterCompression::Gzip, OuterCompression::Zstd] {
        let options = SaveOptions { compression, ..SaveOptions::default() };
        let all = ["localhost/lone:1", "localhost/lone:2", "reg.io/multi:1"];
        let bytes = saved(&source.store, &all, &options);
        let target = fixture();
        load_bytes(&target.store, &bytes).unwrap();
        let digests = |store: &Store| -> Vec<(Option<String>, Digest)> {
            let names = store.names().unwrap().into_iter();
            names.map(|n| (n.reference.map(|r| r.to_string()), n.descriptor.digest)).collect()
        };
        assert_eq!(digests(&target.store), digests(&source.store));
        assert_eq!(target.store.blob_digests().unwrap(), source.store.blob_digests().unwrap());
    }
}

#[test]
fn an_oci_archive_can_be_one_for_docker_too() {
    let source = filled();
    let options = SaveOptions { for_docker: true, ..SaveOptions::default() };
    let all = ["localhost/lone:1", "localhost/lone:2", "reg.io/multi:1"];
    let bytes = saved(&source.store, &all, &options);
    let digests = |store: &Store| -> Vec<(Option<String>, Digest)> {
        let names = store.names().unwrap().into_iter();
        names.map(|n| (n.reference.map(|r| r.to_string()), n.descriptor.digest)).collect()
    };
    let target = fixture();
    load_bytes(&target.store, &bytes).unwrap();
    assert_eq!(digests(&target.store), digests(&source.store));
    // Docker reads the other document, for one platform.
    let mut imported = Vec::new();
    let members = Members::read(&target.store, &bytes[..], &mut imported, &Silent).unwrap();
    let images = docker_archive::images(&target.store, &members, &mut imported).unwrap();
    let mut names = names(&images);
    names.sort();
    assert_eq!(names, all);
    for image in &images {
        let found = target.store.image_at(&image.descriptor, None).unwrap();
        assert_eq!(found.config.platform(), Platform::host());
        let before = source.store.image(&image.references[0].to_string(), None).unwrap();
        assert_eq!(found.id(), before.id());
    }
    let directory = SaveOptions { for_docker: true, ..format(ArchiveFormat::DockerArchive) };
    let plain = format(ArchiveFormat::DockerArchive);
    assert_eq!(saved(&source.store, &all, &directory), saved(&source.store, &all, &plain));
}

#[test]
fn archives_are_compressed_by_the_compressor_of_layers() {
    let source = filled();
    let all = ["localhost/lone:1", "reg.io/multi:1"];
    let plain = saved(&source.store, &all, &SaveOptions::default());
    for (outer, compression) in [
        (OuterCompression::Gzip, Compression::Gzip { level: 6 }),
        (OuterCompression::Zstd, Compression::Zstd { level: 3 }),
    ] {
        let mut writer = BlockWriter::compressing(Vec::new(), compression).unwrap();
        writer.write_all(&plain).unwrap();
        let options = SaveOptions { compression: outer, ..SaveOptions::default() };
        assert!(saved(&source.store, &all, &options) == writer.finish().unwrap());
    }
}

#[test]
fn the_same_images_give_the_same_bytes_in_whatever_order() {
    let (a, b) = (filled(), filled());
    for kind in [ArchiveFormat::OciArchive, ArchiveFormat::DockerArchive] {
        let first = saved(&a.store, &["lone:1", "reg.io/multi:1"], &format(kind));
        let second = saved(&b.store, &["reg.io/multi:1", "lone:1"], &format(kind));
        assert!(first == second, "{kind:?}");
    }
}

#[test]
fn docker_archives_keep_ids_and_decompress_layers() {
    let source = filled();
    let options = SaveOptions {
        platform: Some(Platform::parse("linux/amd64").unwrap()),
        ..format(ArchiveFormat::DockerArchive)
    };
    let bytes = saved(&source.store, &["lone:1", "lone:2", "reg.io/multi:1"], &options);
    let target = fixture();
    let loaded = load_bytes(&target.store, &bytes).unwrap();
    assert_eq!(loaded.len(), 2);
    for name in ["localhost/lone:1", "localhost/lone:2", "reg.io/multi:1"] {
        let before = source.store.image(name, options.platform.as_ref()).unwrap();
        let after = target.store.image(name, None).unwrap();
        assert_eq!(before.id(), after.id());
        for (layer, diff_id) in after.layers() {
            assert_eq!(layer.digest, *diff_id);
        }
    }
}

#[test]
fn a_platform_is_taken_out_of_an_index() {
    let source = filled();
    let options = SaveOptions {
        platform: Some(Platform::parse("linux/arm64").unwrap()),
        ..SaveOptions::default()
    };
    let bytes = saved(&source.store, &["reg.io/multi:1"], &options);
    let target = fixture();
    load_bytes(&target.store, &bytes).unwrap();
    let image = target.store.image("reg.io/multi:1", None).unwrap();
    assert_eq!(image.config.architecture, "arm64");
    assert_eq!(target.store.blob_digests().unwrap().len(), 3);
}

#[test]
fn paths_are_replaced_whole_or_not_at_all() {
    let source = filled();
    let directory = source.directory.path().join("out");
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("a.tar");
    std::fs::write(&path, "old").unwrap();
    let named = source.store.resolve("lone:1").unwrap();
    let save_to = |path: &Path, options: &SaveOptions, named: &[Named]| {
        save(&source.store, named, options, Output::Path(path), &Silent)
    };
    save_to(&path, &SaveOptions::default(), std::slice::from_ref(&named)).unwrap();
    let good = std::fs::read(&path).unwrap();
    assert_eq!(good, saved(&source.store, &["lone:1"], &SaveOptions::default()));
    let image = source.store.image("lone:1", None).unwrap();
    std::fs::remove_file(source.store.blob_path(&image.manifest.layers[0].digest)).unwrap();
    for kind in [ArchiveFormat::OciArchive, ArchiveFormat::DockerArchive] {
        let error = save_to(&path, &format(kind), std::slice::from_ref(&named)).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), good);
    assert_eq!(directory.read_dir().unwrap().count(), 1, "no temporary is left");
}

#[test]
fn directories_load_and_are_never_overwritten() {
    let source = filled();
    let named = [source.store.resolve("lone:1").unwrap()];
    for kind in [ArchiveFormat::OciDirectory, ArchiveFormat::DockerDirectory] {
        let path = source.directory.path().join(format!("{kind:?}").to_lowercase());
        std::fs::create_dir(&path).unwrap();
        save(&source.store, &named, &format(kind), Output::Path(&path), &Silent).unwrap();
        let target = fixture();
        load(&target.store, Input::Path(&path), &LoadOptions::new(Arbiter::everything()), &Silent)
            .unwrap();
        let after = target.store.names().unwrap().remove(0);
        let after = target.store.image_at(&after.descriptor, None).unwrap();
        assert_eq!(after.id(), source.store.image("lone:1", None).unwrap().id());
        let again = save(&source.store, &named, &format(kind), Output::Path(&path), &Silent);
        assert_eq!(again.unwrap_err().kind(), Kind::Usage);
    }
}

#[test]
fn docker_manifests_have_no_zstd() {
    let source = filled();
    let image = source.store.image("lone:1", None).unwrap();
    let docker = to_docker(&source.store, &image).unwrap();
    assert_eq!(docker.descriptor.media_type, media_type::DOCKER_MANIFEST);
    for layer in &docker.manifest.layers {
        assert_eq!(layer.media_type, media_type::DOCKER_LAYER_GZIP);
    }
    assert_eq!(docker.manifest.layers[1].digest, image.manifest.layers[1].digest);
    // The result reads as an image with the same ID.
    let read = source.store.image_at(&docker.descriptor, None).unwrap();
    assert_eq!(read.id(), image.id());
}

#[test]
fn what_cannot_be_saved_is_said() {
    let source = filled();
    let named =
        [source.store.resolve("lone:1").unwrap(), source.store.resolve("reg.io/multi:1").unwrap()];
    let path = source.directory.path().join("d");
    for (options, named, output) in [
        (format(ArchiveFormat::DockerDirectory), &named[..], Output::Path(&path)),
        (format(ArchiveFormat::OciDirectory), &named[..1], Output::Stream(Box::new(Vec::new()))),
        (SaveOptions::default(), &[][..], Output::Path(&path)),
        (SaveOptions::default(), &named[..], Output::Path(source.directory.path())),
    ] {
        let error = save(&source.store, named, &options, output, &Silent).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{error}");
    }
    assert!(!path.exists());
}

/// Runs skopeo, which must succeed.
fn skopeo(arguments: &[&str]) {
    let output = std::process::Command::new("skopeo")
        .args(arguments)
        .output()
        .expect("scripts/setup installs skopeo");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "skopeo {arguments:?}: {errors}");
}

#[test]
fn skopeo_reads_what_we_save_and_we_read_what_it_writes() {
    // Without zstd: skopeo does not convert zstd layers for docker.
    let source = fixture();
    let mut layout = Layout::default();
    let tars = [layer("one"), layer("two")];
    let layers = tars.map(|tar| (media_type::OCI_LAYER_GZIP, gzip(&tar), tar));
    let image = layout.image(&layers, "linux/amd64");
    layout.name(image, Some("localhost/lone:1"));
    load_bytes(&source.store, &tar(&layout.members())).unwrap();
    let diff_ids = source.store.image("lone:1", None).unwrap().config.rootfs;
    let named = [source.store.resolve("lone:1").unwrap()];
    for (kind, transport, suffix) in [
        (ArchiveFormat::OciArchive, "oci-archive", ":localhost/lone:1"),
        (ArchiveFormat::OciDirectory, "oci", ":localhost/lone:1"),
        (ArchiveFormat::DockerArchive, "docker-archive", ":localhost/lone:1"),
        (ArchiveFormat::DockerDirectory, "dir", ""),
    ] {
        let path = source.directory.path().join(transport);
        save(&source.store, &named, &format(kind), Output::Path(&path), &Silent).unwrap();
        let from = format!("{transport}:{}{suffix}", path.display());
        for (to, has_name) in
            [("oci-archive", true), ("docker-archive", true), ("dir", false), ("oci", true)]
        {
            let copy = source.directory.path().join(format!("{transport}-{to}"));
            let name = if has_name { ":localhost/copy:1" } else { "" };
            let target = format!("{to}:{}{name}", copy.display());
            skopeo(&["--insecure-policy", "copy", "--quiet", &from, &target]);
            let store = fixture();
            let input = Input::Path(&copy);
            let loaded =
                load(&store.store, input, &LoadOptions::new(Arbiter::everything()), &Silent)
                    .unwrap();
            let image = store.store.image_at(&loaded[0].descriptor, None).unwrap();
            assert_eq!(image.config.rootfs, diff_ids, "{from} to {target}");
            assert_eq!(
                names(&loaded).first().map(String::as_str),
                has_name.then_some("localhost/copy:1")
            );
        }
    }
}
