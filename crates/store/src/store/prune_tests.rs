//! Tests of garbage collection: what is removed, what stays, and what can run at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::prune::{Class, PruneOptions, PrunePlan};
use super::tests::{Fixture, anyone, fixture, name, put_image, put_index, reopen};
use super::*;
use imgctl_base::image::Digest;
use imgctl_base::progress::Silent;

/// Returns a store that another store value, dropped by now, has filled.
fn filled(fill: impl FnOnce(&Store)) -> Fixture {
    let fixture = fixture();
    fill(&reopen(fixture.directory.path()));
    fixture
}

fn prune(store: &Store, options: PruneOptions) -> PrunePlan {
    let plan = store.plan_prune(&options).unwrap();
    let done = store.prune(&plan, &Silent).unwrap();
    assert_eq!(done.garbage, plan.garbage, "nothing else was going on");
    done
}

fn has(store: &Store, content: &[u8]) -> bool {
    store.blob_size(&Digest::of(content)).unwrap().is_some()
}

fn untag(store: &Store, text: &str) {
    let named = store.resolve(text).unwrap();
    store.untag(&[named]).unwrap();
}

#[test]
fn what_names_reach_stays_and_the_rest_goes() {
    let fixture = filled(|store| {
        store.put_blob(b"loose").unwrap();
        let arm = put_image(store, b"arm", "linux/arm64");
        let index = put_index(store, vec![put_image(store, b"amd", "linux/amd64"), arm]);
        store.tag(&[name("multi:1")], &index, &anyone()).unwrap();
        store.tag(&[name("lone:1")], &put_image(store, b"lone", "linux/amd64"), &anyone()).unwrap();
        store.make_snapshot(&Digest::of(b"lone"), &mut |_| Ok(())).unwrap();
        store.make_snapshot(&Digest::of(b"gone"), &mut |_| Ok(())).unwrap();
    });
    let store = &fixture.store;
    let done = prune(store, PruneOptions::default());
    assert_eq!(done.by_class()[&Class::Blob], (1, 5));
    assert_eq!(done.by_class()[&Class::Unpacked].0, 1);
    for content in [&b"amd"[..], b"arm", b"lone"] {
        assert!(has(store, content));
    }
    assert!(store.path("snapshots").join(Digest::of(b"lone").hex()).exists());
    untag(store, "multi:1");
    let done = prune(store, PruneOptions::default());
    assert_eq!(done.by_class()[&Class::Blob].0, 7, "an index, two manifests, configs, layers");
    untag(store, "lone:1");
    prune(store, PruneOptions::default());
    assert!(store.blob_digests().unwrap().is_empty());
    for directory in ["snapshots", "toc", "ingest", "trash", "leases"] {
        let left: Vec<_> = std::fs::read_dir(store.path(directory)).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn unnamed_images_go_only_when_asked_for() {
    let fixture = filled(|store| {
        store.tag(&[], &put_image(store, b"none", "linux/amd64"), &anyone()).unwrap();
    });
    let store = &fixture.store;
    prune(store, PruneOptions::default());
    assert!(has(store, b"none"));
    let options = PruneOptions { unnamed: true, ..PruneOptions::default() };
    // A live lease on the image keeps it even then.
    let lease = store.lease().unwrap();
    let digest = store.names().unwrap()[0].descriptor.digest.clone();
    lease.hold(&digest).unwrap();
    assert!(prune(store, options).unnamed.is_empty());
    drop(lease);
    assert_eq!(prune(store, options).unnamed.len(), 1);
    assert!(!has(store, b"none"));
    assert!(store.names().unwrap().is_empty());
}

#[test]
fn leases_and_mounts_keep_what_they_list() {
    let fixture = filled(|store| {
        store.put_blob(b"leased").unwrap();
        store.put_blob(b"mounted").unwrap();
        store.make_snapshot(&Digest::of(b"mounted"), &mut |_| Ok(())).unwrap();
    });
    let store = &fixture.store;
    let lease = store.lease().unwrap();
    lease.hold(&Digest::of(b"leased")).unwrap();
    let mount = store.path("mounts/m1");
    std::fs::create_dir(&mount).unwrap();
    let record = serde_json::json!({ "digests": [Digest::of(b"mounted")], "other": 1 });
    std::fs::write(mount.join("mount.json"), record.to_string()).unwrap();
    let all = PruneOptions { all: true, ..PruneOptions::default() };
    assert!(prune(store, all).garbage.is_empty());
    drop(lease);
    assert_eq!(prune(store, all).garbage.len(), 1);
    std::fs::write(mount.join("mount.json"), "{").unwrap();
    let error = store.plan_prune(&all).unwrap_err();
    assert!(error.to_string().contains("m1"), "{error}");
    std::fs::remove_dir_all(&mount).unwrap();
    assert_eq!(prune(store, all).garbage.len(), 2);
}

#[test]
fn what_came_into_use_after_the_plan_stays() {
    let fixture = filled(|store| {
        store.put_blob(b"wanted").unwrap();
        store.put_blob(b"unwanted").unwrap();
        store.tag(&[], &put_image(store, b"none", "linux/amd64"), &anyone()).unwrap();
    });
    let store = &fixture.store;
    let options = PruneOptions { unnamed: true, ..PruneOptions::default() };
    let plan = store.plan_prune(&options).unwrap();
    let lease = store.lease().unwrap();
    lease.hold(&Digest::of(b"wanted")).unwrap();
    let other = reopen(fixture.directory.path());
    let unnamed = store.names().unwrap()[0].descriptor.clone();
    other.tag(&[name("now:named")], &unnamed, &anyone()).unwrap();
    other.put_blob(b"newer").unwrap();
    drop(other);
    let done = store.prune(&plan, &Silent).unwrap();
    assert_eq!(done.garbage.len(), 1);
    assert!(has(store, b"wanted") && has(store, b"none"));
    assert!(has(store, b"newer"), "it was not in the plan");
    assert!(!has(store, b"unwanted"));
}

#[test]
fn cache_records_keep_layers_until_they_are_too_old_or_too_big() {
    let fixture = filled(|store| {
        for (key, content) in [("old", &[1_u8; 100][..]), ("new", &[2; 60]), ("newest", &[3; 50])] {
            let digest = store.put_blob(content).unwrap();
            let record = serde_json::json!({ "digests": [digest] }).to_string();
            std::fs::write(store.path("cache/steps").join(key), record).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        let dangling = serde_json::json!({ "digests": [] }).to_string();
        std::fs::write(store.path("cache/steps/dangling"), dangling).unwrap();
        std::fs::write(store.path("cache/steps/damaged"), "{").unwrap();
        std::fs::write(store.path("cache/stat"), "x").unwrap();
    });
    let store = &fixture.store;
    let names = |plan: &PrunePlan, class: Class| -> Vec<String> {
        let of_class = plan.garbage.iter().filter(|garbage| garbage.class == class);
        let mut names: Vec<String> =
            of_class.map(|g| g.path.file_name().unwrap().to_string_lossy().into_owned()).collect();
        // Records used at the same moment are in no particular order.
        names.sort();
        names
    };
    let plan = prune(store, PruneOptions::default());
    assert_eq!(names(&plan, Class::Cache), ["damaged", "dangling"]);
    assert!(names(&plan, Class::Blob).is_empty());
    let sized = PruneOptions { cache_size: Some(110), ..PruneOptions::default() };
    let plan = prune(store, sized);
    assert_eq!(names(&plan, Class::Cache), ["old"]);
    assert!(!has(store, &[1; 100]) && has(store, &[2; 60]));
    let aged = PruneOptions { cache_age: Some(Duration::ZERO), ..PruneOptions::default() };
    assert_eq!(names(&prune(store, aged), Class::Cache), ["new", "newest"]);
    assert!(store.blob_digests().unwrap().is_empty());
    let all = PruneOptions { all: true, ..PruneOptions::default() };
    assert_eq!(names(&prune(store, all), Class::Cache), ["stat"]);
}

#[test]
fn the_halves_of_the_dead_go_and_of_the_living_stay() {
    let fixture = fixture();
    let store = &fixture.store;
    let dead = store.path("snapshots").join(format!("{}.part", Digest::of(b"d").hex()));
    std::fs::create_dir_all(dead.join("fs/x")).unwrap();
    let maker = reopen(fixture.directory.path());
    let (started, seen) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (started, seen) = (&started, &seen);
        scope.spawn(move || {
            let mut fill = |_: &Path| {
                started.store(true, Ordering::SeqCst);
                while !seen.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            };
            maker.make_snapshot(&Digest::of(b"l"), &mut fill).unwrap();
        });
        while !started.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let plan = prune(store, PruneOptions { all: true, ..PruneOptions::default() });
        let paths: Vec<&Path> = plan.garbage.iter().map(|garbage| &*garbage.path).collect();
        assert_eq!(paths, [dead]);
        seen.store(true, Ordering::SeqCst);
    });
    assert!(store.snapshot(&Digest::of(b"l")).is_some());
}

#[test]
fn a_failed_command_takes_back_what_nobody_else_wants() {
    let fixture = fixture();
    let store = &fixture.store;
    store.tag(&[name("kept:1")], &put_image(store, b"named", "linux/amd64"), &anyone()).unwrap();
    let ours = store.separate();
    let theirs = store.separate();
    let digests: Vec<Digest> = [&b"named"[..], b"shared", b"own"]
        .into_iter()
        .map(|content| ours.put_blob(content).unwrap())
        .collect();
    theirs.put_blob(b"shared").unwrap();
    ours.discard(&digests).unwrap();
    assert!(has(store, b"named") && has(store, b"shared") && !has(store, b"own"));
}

#[test]
fn builders_and_collectors_do_not_hurt_each_other() {
    let fixture = fixture();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0_u8..3 {
            let directory = fixture.directory.path();
            let stop = &stop;
            scope.spawn(move || {
                for round in 0_u8..25 {
                    let store = reopen(directory);
                    // The same layer is added and removed repeatedly.
                    let image = put_image(&store, &[round % 3], "linux/amd64");
                    let reference = name(&format!("t{thread}:1"));
                    store.tag(std::slice::from_ref(&reference), &image, &anyone()).unwrap();
                    let read = store.image(&reference.to_string(), None).unwrap();
                    store.open_blob(&read.manifest.layers[0].digest).unwrap();
                    untag(&store, &reference.to_string());
                }
                stop.store(true, Ordering::SeqCst);
            });
        }
        let store = &fixture.store;
        let stop = &stop;
        scope.spawn(move || {
            let options = PruneOptions { unnamed: true, all: true, ..PruneOptions::default() };
            while !stop.load(Ordering::SeqCst) {
                let plan = store.plan_prune(&options).unwrap();
                store.prune(&plan, &Silent).unwrap();
            }
        });
    });
    let options = PruneOptions { unnamed: true, all: true, ..PruneOptions::default() };
    prune(&fixture.store, options);
    assert!(fixture.store.blob_digests().unwrap().is_empty());
}

#[test]
fn usage_tells_shared_from_unique_and_needed_from_garbage() {
    let fixture = filled(|store| {
        store.put_blob(&[7; 1000]).unwrap();
        store
            .tag(
                &[name("a:1"), name("a:2")],
                &put_image(store, &[1; 500], "linux/amd64"),
                &anyone(),
            )
            .unwrap();
        store.tag(&[name("b:1")], &put_image(store, &[1; 500], "linux/arm64"), &anyone()).unwrap();
    });
    let usage = fixture.store.usage().unwrap();
    assert_eq!(usage.images.len(), 2);
    assert_eq!(usage.images[0].names, ["localhost/a:1", "localhost/a:2"]);
    for image in &usage.images {
        assert_eq!(image.shared, 500);
        assert_eq!(image.size, image.shared + image.unique);
    }
    let class = |wanted: &str| usage.classes.iter().find(|c| c.class == wanted).unwrap();
    assert_eq!((class("other layers").size, class("other layers").reclaimable), (500, 0));
    assert_eq!(class("unnamed blobs").reclaimable, 1000);
}

#[test]
fn lists_show_every_name_even_of_damaged_images() {
    let fixture = filled(|store| {
        let index = put_index(
            store,
            vec![
                put_image(store, b"arm", "linux/arm64"),
                put_image(store, b"host", &imgctl_base::image::Platform::host().to_string()),
            ],
        );
        store.tag(&[name("m:1")], &index, &anyone()).unwrap();
        store.tag(&[name("z:1")], &put_image(store, b"z", "linux/s390x"), &anyone()).unwrap();
    });
    let store = &fixture.store;
    let image = store.image("z:1", None).unwrap();
    std::fs::remove_file(store.blob_path(image.id())).unwrap();
    let list = store.list().unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!(list[0].platforms.len(), 2);
    assert_eq!(list[0].id.as_ref(), Some(store.image("m:1", None).unwrap().id()));
    // The layers of both platforms, and nothing else.
    assert!(list[0].size == 7 && list[0].problem.is_none());
    assert!(list[1].problem.as_ref().unwrap().contains(image.id().hex()));
}
