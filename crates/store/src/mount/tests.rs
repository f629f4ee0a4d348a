//! Whole images mounted with each backend, inspected, unmounted, and left behind by dead processes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::testing::{Fixture, Layer, awkward_layers, listing};
use super::*;
use imgctl_base::error::Kind;
use imgctl_base::progress::Silent;
use imgctl_base::testing::needs_root;
use imgctl_layer::Compression;

const ZSTD: Compression = Compression::Zstd { level: 3 };

fn with(backend: Backend) -> Options {
    Options { backend: Some(backend), ..Options::default() }
}

#[test]
fn all_back_ends_show_the_same_tree() {
    if !needs_root() {
        return;
    }
    for compression in [Compression::None, ZSTD, Compression::Gzip { level: 6 }] {
        let fixture = Fixture::new();
        let image = fixture.image("x", compression, awkward_layers());
        let mut listings = Vec::new();
        for backend in [Backend::Checkout, Backend::Overlay, Backend::Erofs] {
            for read_only in [false, true] {
                let options = Options { read_only, ..with(backend) };
                let mounted = mount(&fixture.store, &image, &options, &Silent).unwrap();
                assert_eq!(mounted.record.backend, backend);
                assert_eq!(mounted.notes, [""; 0]);
                listings.push((backend, listing(&mounted.record.path)));
            }
        }
        let (_, expected) = &listings[0];
        assert!(expected.iter().any(|line| line.starts_with("/ 711 ")));
        assert!(expected.len() > 25, "{expected:#?}");
        for (backend, found) in &listings {
            for (expected, found) in expected.iter().zip(found) {
                assert_eq!(expected, found, "{backend:?} {compression:?}");
            }
            assert_eq!(expected.len(), found.len(), "{backend:?}");
        }
        umount_all(&fixture.store, false).unwrap();
        assert_eq!(list(&fixture.store).unwrap().len(), 0);
    }
}

#[test]
fn a_root_listed_again_changes_the_root_alone() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let first = Layer::default().dir("kept", 0o2750).file("kept/one", "1").dir("", 0o711);
    let second = Layer::default().dir("", 0o755).file("kept/.wh.one", "");
    let image = fixture.image("x", ZSTD, vec![first, second]);
    for backend in [Backend::Checkout, Backend::Overlay, Backend::Erofs] {
        let record = mount(&fixture.store, &image, &with(backend), &Silent).unwrap().record;
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&record.path), 0o755, "{backend:?}");
        assert_eq!(mode(&record.path.join("kept")), 0o2750, "{backend:?}");
    }
}

#[test]
fn links_into_lower_layers_are_found_whatever_is_unpacked_first() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let big = "x".repeat(1 << 20);
    let layers = vec![
        Layer::default().file("target", "here").dir("d", 0o755),
        // Larger, so it is unpacked first.
        Layer::default().link("d/one", "target").file("big", &big),
        Layer::default().link("d/two", "d/one").file("big", &big),
    ];
    let image = fixture.image("x", Compression::None, layers);
    for backend in [Backend::Overlay, Backend::Checkout, Backend::Erofs] {
        let record = mount(&fixture.store, &image, &with(backend), &Silent).unwrap().record;
        for name in ["target", "d/one", "d/two"] {
            assert_eq!(fs::read(record.path.join(name)).unwrap(), b"here", "{backend:?}");
        }
    }
    let dangling = Layer::default().link("d/three", "d/none");
    let image = fixture.image("y", ZSTD, vec![dangling]);
    let error = mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap_err();
    assert!(error.to_string().contains("d/three"), "{error}");
}

#[test]
fn each_mount_has_changes_of_its_own() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image("x", ZSTD, awkward_layers());
    let one = mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap();
    let two = mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap();
    fs::write(one.record.path.join("etc/passwd"), "changed").unwrap();
    fs::remove_dir_all(one.record.path.join("usr")).unwrap();
    assert_eq!(fs::read(two.record.path.join("etc/passwd")).unwrap(), b"root");
    assert!(two.record.path.join("usr/bin").exists());
    assert_eq!(list(&fixture.store).unwrap().len(), 2);
}

#[test]
fn an_image_may_have_no_layers_or_the_same_twice() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let layer = || Layer::default().file("a", "a");
    let middle = Layer::default().file("a", "b").file("c", "c");
    let cases = [
        ("none", vec![], vec![]),
        ("one", vec![layer()], vec!["a"]),
        ("twice", vec![layer(), middle, layer()], vec!["a", "c"]),
    ];
    for (name, layers, expected) in cases {
        let image = fixture.image(name, ZSTD, layers);
        for backend in [Backend::Checkout, Backend::Overlay, Backend::Erofs] {
            for read_only in [false, true] {
                let options = Options { read_only, ..with(backend) };
                let mounted = mount(&fixture.store, &image, &options, &Silent).unwrap();
                let mut names: Vec<String> = fs::read_dir(&mounted.record.path)
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect();
                names.sort();
                assert_eq!(names, expected, "{name} {backend:?}");
                if name == "twice" {
                    assert_eq!(fs::read(mounted.record.path.join("a")).unwrap(), b"a");
                }
            }
        }
    }
}

#[test]
fn mounts_are_found_by_id_name_path_and_image() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image("x", ZSTD, vec![Layer::default().file("a", "a")]);
    let target = fixture.directory.path().join("my target");
    let make = |name: Option<&str>, target: Option<&Path>| {
        let options = Options {
            name: name.map(str::to_owned),
            target: target.map(Path::to_owned),
            ..with(Backend::Overlay)
        };
        mount(&fixture.store, &image, &options, &Silent).unwrap().record
    };
    let remove = |name: &str| umount(&fixture.store, &[name.to_owned()], false);
    let by_id = make(None, None);
    let by_name = make(Some("default-abc"), None);
    let by_path = make(None, Some(&target));
    let by_image = [make(None, None), make(None, None)];
    assert!(target.join("a").exists());
    assert_eq!(list(&fixture.store).unwrap().len(), 5);
    assert!(list(&fixture.store).unwrap().iter().all(|listed| listed.state == State::Mounted));
    assert_eq!(remove(&by_id.id[..6]).unwrap()[0].id, by_id.id);
    assert_eq!(remove("default-abc").unwrap()[0].id, by_name.id);
    assert_eq!(remove(target.to_str().unwrap()).unwrap()[0].id, by_path.id);
    assert!(target.is_dir() && !target.join("a").exists());
    assert_eq!(remove("test:x").unwrap().len(), by_image.len());
    assert_eq!(remove("test:x").unwrap_err().kind(), Kind::NotFound);
    assert_eq!(list(&fixture.store).unwrap().len(), 0);
}

#[test]
fn a_name_is_given_once() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image("x", ZSTD, vec![]);
    let options = Options { name: Some("taken".into()), ..Options::default() };
    mount(&fixture.store, &image, &options, &Silent).unwrap();
    let error = mount(&fixture.store, &image, &options, &Silent).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
}

#[test]
fn a_mount_in_use_is_busy_unless_lazy() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image("x", ZSTD, vec![Layer::default().file("a", "a")]);
    let record = mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap().record;
    let held = fs::File::open(record.path.join("a")).unwrap();
    let error = umount_all(&fixture.store, false).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.hints()[0].contains("fuser"), "{error}");
    assert!(record.path.join("a").exists());
    umount(&fixture.store, std::slice::from_ref(&record.id), true).unwrap();
    assert!(!record.path.exists());
    drop(held);
}

#[test]
fn what_the_dead_leave_is_swept() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image("x", ZSTD, vec![Layer::default().file("a", "a")]);
    let record = mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap().record;
    let mounts = workspace::directory(&fixture.store);
    // Killed between attaching the mount and setting `ready`.
    let unready = Record { ready: false, ..record.clone() };
    unready.write(&mounts.join(&record.id)).unwrap();
    // Killed before the record was written; killed while removing; killed in a build.
    fs::create_dir(mounts.join("0123456789ab")).unwrap();
    fs::create_dir_all(mounts.join(".trash-1/upper")).unwrap();
    fs::create_dir_all(mounts.join("build-1-0123/upper")).unwrap();
    let kept = mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap().record;
    let left: Vec<String> =
        list(&fixture.store).unwrap().into_iter().map(|listed| listed.id).collect();
    assert_eq!(left, [kept.id]);
    // One mount and the lock file.
    assert_eq!(fs::read_dir(&mounts).unwrap().count(), 2);
    let mine = mountinfo::read().unwrap();
    assert!(!mine.iter().any(|mount| mount.path == record.path));
}

#[test]
fn a_reboot_makes_mounts_stale_and_keeps_what_was_written() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image("x", ZSTD, vec![Layer::default().file("a", "a")]);
    let reboot = |record: &Record| {
        rustix::mount::unmount(&record.path, rustix::mount::UnmountFlags::empty()).unwrap();
        let before = Record { boot_id: "an earlier one".into(), ..record.clone() };
        let directory = workspace::directory(&fixture.store).join(&record.id);
        before.write(&directory).unwrap();
    };
    let make = || mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap().record;
    let (changed, unchanged) = (make(), make());
    fs::write(changed.path.join("mine"), "precious").unwrap();
    reboot(&changed);
    reboot(&unchanged);
    let states: Vec<State> =
        list(&fixture.store).unwrap().into_iter().map(|listed| listed.state).collect();
    assert_eq!(states, [State::Stale, State::Stale]);
    make();
    let ids: Vec<String> =
        list(&fixture.store).unwrap().into_iter().map(|listed| listed.id).collect();
    assert!(ids.contains(&changed.id) && !ids.contains(&unchanged.id));
    umount_all(&fixture.store, false).unwrap();
    assert_eq!(list(&fixture.store).unwrap().len(), 0);
}

#[test]
fn a_damaged_layer_shows_nothing() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image("x", Compression::None, awkward_layers());
    let top = image.manifest.layers.last().unwrap();
    let path = fixture.store.blob_path(&top.digest);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    for backend in [Backend::Overlay, Backend::Checkout] {
        let error = mount(&fixture.store, &image, &with(backend), &Silent).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{error}");
        assert!(error.to_string().contains(&top.digest.to_string()), "{error}");
    }
    assert_eq!(list(&fixture.store).unwrap().len(), 0);
    let (_, diff_id) = image.layers().next_back().unwrap();
    assert!(fixture.store.snapshot(diff_id).is_none());
}

#[test]
fn more_layers_than_the_kernel_stacks() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let mut layers: Vec<Layer> = (0..620)
        .map(|number| {
            Layer::default().file(&format!("only/{number}"), "x").file("last", &number.to_string())
        })
        .collect();
    layers[300] = Layer::default().file(".wh.only", "").file("hard", "x").link("link", "hard");
    layers[301] = Layer::default().dir("only", 0o700).file("hard", "y");
    layers[302] = Layer::default().file(".wh.hard", "").symlink("sym", "link");
    let image = fixture.image("many", Compression::None, layers);
    let mounted = mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap();
    let checkout = mount(&fixture.store, &image, &with(Backend::Checkout), &Silent).unwrap();
    assert_eq!(listing(&mounted.record.path), listing(&checkout.record.path));
    assert_eq!(fs::read(mounted.record.path.join("last")).unwrap(), b"619");
    let again = mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap();
    assert_eq!(fs::read(again.record.path.join("last")).unwrap(), b"619");
}

#[test]
fn create_renders_templates_where_they_belong() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image(
        "x",
        ZSTD,
        vec![
            Layer::default()
                .file("etc/a.conf.tmpl", "name={{ .NAME }} {{ .Gone }}")
                .with(|entry| entry.mode = 0o750)
                .symlink("etc/a.conf", "/etc/hostname")
                .file("charts/b.tmpl", "{{ .NAME }}")
                .file("scripts", "no directory")
                .symlink("manifests", "/m")
                .file("m/deep/c.yaml.tmpl", "{{ .NAME | quote }}"),
        ],
    );
    let options = |environment: Vec<(String, String)>| CreateOptions {
        cluster: "default".into(),
        environment,
        missing: imgctl_template::Missing::NoValue,
        backend: None,
    };
    let made = create(&fixture.store, &image, &options(Vec::new()), &Silent).unwrap();
    assert!(made.script.is_none());
    let path = &made.mounted.record.path;
    assert!(!path.join("m/deep/c.yaml").exists());
    let variables = vec![("NAME".to_owned(), "x".to_owned())];
    let made = create(&fixture.store, &image, &options(variables), &Silent).unwrap();
    let record = &made.mounted.record;
    assert!(record.name.as_ref().unwrap().starts_with("default-"));
    let rendered = record.path.join("etc/a.conf");
    assert_eq!(fs::read(&rendered).unwrap(), b"name=x <no value>");
    assert_eq!(fs::symlink_metadata(&rendered).unwrap().mode(), 0o100_750);
    assert!(!record.path.join("charts/b").exists());
    assert_eq!(fs::read(record.path.join("m/deep/c.yaml")).unwrap(), b"\"x\"");
    // A template that cannot be rendered leaves no mount behind.
    let bad = fixture.image("bad", ZSTD, vec![Layer::default().file("etc/x.tmpl", "{{ if }}")]);
    let variables = vec![("NAME".to_owned(), "x".to_owned())];
    let error = create(&fixture.store, &bad, &options(variables), &Silent).unwrap_err();
    assert!(error.to_string().contains("etc/x.tmpl"), "{error}");
    assert_eq!(list(&fixture.store).unwrap().len(), 2);
}

#[test]
fn a_build_gets_its_own_upper_and_leaves_nothing() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image("x", ZSTD, awkward_layers());
    let layers = layers::distinct(&image);
    let build = BuildMount::new(&fixture.store, layers, &Silent).unwrap();
    attach(build.spec(), &build.merged()).unwrap();
    fs::write(build.merged().join("new"), "x").unwrap();
    assert_eq!(fs::read(build.upper().join("new")).unwrap(), b"x");
    let upper = fs::metadata(build.upper()).unwrap();
    assert_eq!(upper.permissions().mode() & 0o7777, 0o711);
    assert_eq!(upper.uid(), 0);
    assert_eq!(list(&fixture.store).unwrap().len(), 0);
    let merged = build.merged();
    drop(build);
    assert!(!merged.exists());
}

#[test]
fn a_tar_of_the_merged_tree_is_the_tree() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let mut unsorted = Layer::default().file("z", "z").file("a", "a").file("m", "m");
    unsorted.0.swap(0, 1);
    for compression in [Compression::None, ZSTD, Compression::Gzip { level: 6 }] {
        let mut layers = awkward_layers();
        layers.push(unsorted.clone());
        let image = fixture.image("x", compression, layers);
        let export = || {
            let path = fixture.directory.path().join("x.tar");
            tar_export::to_file(&fixture.store, &image, &path, Compression::None, &Silent).unwrap();
            fs::read(path).unwrap()
        };
        let tar = export();
        assert!(tar == export(), "the same image gives the same bytes");
        let target = fixture.directory.path().join(format!("{compression:?}"));
        fs::create_dir(&target).unwrap();
        let status = std::process::Command::new("tar")
            .args(["--xattrs", "--xattrs-include=*", "-xpf"])
            .arg(fixture.directory.path().join("x.tar"))
            .arg("-C")
            .arg(&target)
            .status()
            .unwrap();
        assert!(status.success());
        let record =
            mount(&fixture.store, &image, &with(Backend::Overlay), &Silent).unwrap().record;
        assert_eq!(listing(&target), listing(&record.path), "{compression:?}");
    }
}

#[test]
fn an_export_needs_an_empty_place() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.image("x", ZSTD, awkward_layers());
    let target = fixture.directory.path().join("out/put");
    assert_eq!(checkout::export(&fixture.store, &image, &target, &Silent).unwrap(), [""; 0]);
    let mounted = mount(&fixture.store, &image, &fixture.options(), &Silent).unwrap();
    assert_eq!(listing(&target), listing(&mounted.record.path));
    let error = checkout::export(&fixture.store, &image, &target, &Silent).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
}
