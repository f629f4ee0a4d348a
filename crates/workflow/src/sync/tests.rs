//! Tests of plans and their execution on many hosts.

#[path = "recipe_tests.rs"]
mod recipe_tests;
#[path = "registry_tests.rs"]
mod registry_tests;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::{collections::BTreeMap, io::Read};

use serde_json::{Map, Value};

use crate::sync::brief::{Brief, Images, Surroundings, Wants};
use crate::sync::execute::{Blobs, Limits, Origin, Synced, Watch, execute};
use crate::sync::plan::{SyncPlan, Target, plan};
use crate::sync::recipe::Delta;
use crate::sync::source::Source;
use crate::sync::testing::{Lan, Unwatched, name};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::descriptor::LAYER_KIND;
use imgctl_base::image::{Descriptor, Digest};
use imgctl_base::workers::lock;
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::{Facts, MadeFrom};
use imgctl_host::host::{address::Address, login::Login};
use imgctl_host::render::Mentions;
use imgctl_model::context::Host;
use imgctl_model::image::{ClusterImage, ImageKind, ImageLayer};
use imgctl_store::store::{Options, Store};

struct Plain {
    environment: BTreeMap<String, String>,
}

impl Surroundings for Plain {
    fn environment(&self, _: &Host) -> BTreeMap<String, String> {
        self.environment.clone()
    }

    fn facts(&self, host: &Host, known: &Facts) -> Map<String, Value> {
        let mut facts = Map::new();
        facts.insert("IP".to_owned(), host.ip().into());
        facts.insert("Arch".to_owned(), known.architecture.clone().into());
        facts
    }
}

/// The controller's store and its content.
struct Controller {
    store: Store,
    _directory: tempfile::TempDir,
}

impl Controller {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            store: Store::open(directory.path(), Options { sync: false }).unwrap(),
            _directory: directory,
        }
    }

    fn layer(&self, seed: usize, size: usize, kind: Option<&str>) -> ImageLayer {
        let mut bytes = vec![b'x'; size];
        let seed = seed.to_string();
        bytes[..seed.len()].copy_from_slice(seed.as_bytes());
        let digest = self.store.put_blob(&bytes).unwrap();
        let mut descriptor = Descriptor::new("layer", digest.clone(), size as u64);
        if let Some(kind) = kind {
            descriptor.annotations.insert(LAYER_KIND.to_owned(), kind.to_owned());
        }
        ImageLayer { descriptor, diff_id: digest, registry: kind == Some("registry") }
    }
}

fn image(name: &str, kind: ImageKind, layers: Vec<ImageLayer>) -> ClusterImage {
    ClusterImage {
        name: name.to_owned(),
        mount_name: format!("default-{name}"),
        kind,
        digest: Digest::of(name.as_bytes()),
        labels: BTreeMap::new(),
        environment: BTreeMap::new(),
        entrypoint: Vec::new(),
        command: Vec::new(),
        layers,
    }
}

fn brief(images: Vec<ClusterImage>) -> Brief {
    Brief {
        root: "/var/lib/sealos/data/default".to_owned(),
        images: Images::from([("amd64".to_owned(), images)]),
        configs: Vec::new(),
        strict: false,
        keep: 1,
        stage: false,
        delta: Delta::default(),
        source: Source::default(),
        surroundings: Arc::new(Plain { environment: BTreeMap::new() }),
    }
}

fn target(lan: &Lan, number: usize, wants: &Wants) -> Target {
    Target {
        host: Host {
            address: Address { name: name(number), port: 22 },
            roles: Vec::new(),
            environment: BTreeMap::new(),
            login: Login::default(),
            local: false,
        },
        agent: lan.host(number) as Arc<dyn Agent>,
        wants: wants.clone(),
    }
}

fn rootfs() -> Wants {
    Wants { rootfs: true, ..Wants::default() }
}

fn all(lan: &Lan, count: usize) -> Vec<Target> {
    (0..count).map(|number| target(lan, number, &rootfs())).collect()
}

fn planned(brief: Brief, targets: &[Target]) -> SyncPlan {
    plan(&Arc::new(brief), targets, &AtomicBool::new(false)).unwrap()
}

fn run(plan: SyncPlan, blobs: &dyn Blobs, watch: &dyn Watch) -> Vec<Synced> {
    execute(plan, blobs, Limits::default(), watch, &Arc::default()).unwrap()
}

fn rootfs_image(controller: &Controller, layers: usize, size: usize) -> ClusterImage {
    let layers = (0..layers).map(|seed| controller.layer(seed, size, Some("rootfs")));
    image("rootfs", ImageKind::Rootfs, layers.collect())
}

#[derive(Default)]
struct Tally {
    moved: AtomicI64,
    from_controller: AtomicI64,
    from_itself: AtomicI64,
    from_registry: AtomicI64,
    ended: Mutex<Vec<(String, bool)>>,
}

impl Watch for Tally {
    fn moved(&self, _: &str, from: Origin<'_>, bytes: u64) {
        self.moved.fetch_add(bytes as i64, Ordering::Relaxed);
        if from == Origin::Registry {
            self.from_registry.fetch_add(bytes as i64, Ordering::Relaxed);
        }
        if from == Origin::Itself {
            self.from_itself.fetch_add(bytes as i64, Ordering::Relaxed);
        }
        if from == Origin::Controller {
            self.from_controller.fetch_add(bytes as i64, Ordering::Relaxed);
        }
    }

    fn lost(&self, _: &str, bytes: u64) {
        self.moved.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    fn checkout(&self, _: &str, _: &str) {}

    fn unpacked(&self, _: &str, _: u64) {}

    fn ended(&self, host: &str, well: bool) {
        lock(&self.ended).push((host.to_owned(), well));
    }
}

#[test]
fn the_controller_sends_each_layer_once_and_a_second_run_asks_once_and_moves_nothing() {
    let (lan, controller) = (Lan::new(20, |_| 0), Controller::new());
    let rootfs = rootfs_image(&controller, 5, 1000);
    let targets = all(&lan, 20);
    let first = planned(brief(vec![rootfs.clone()]), &targets);
    assert_eq!(first.bytes(), 20 * 5000);
    let tally = Tally::default();
    let synced = run(first, &controller.store, &tally);
    assert!(synced.iter().all(|synced| synced.result.is_ok()), "{synced:?}");
    assert_eq!(tally.from_controller.load(Ordering::Relaxed), 5000);
    assert_eq!(tally.moved.load(Ordering::Relaxed), 20 * 5000);
    assert_eq!(lock(&tally.ended).len(), 20);
    let second = planned(brief(vec![rootfs]), &targets);
    assert!(second.is_done() && second.bytes() == 0);
    assert!(second.to_string().starts_with("10.9.0.1: nothing to do\n"));
    run(second, &controller.store, &Unwatched);
    for number in 0..20 {
        let host = lan.host(number);
        assert_eq!(host.asked.load(Ordering::Relaxed), 2);
        assert_eq!(lock(&host.checkouts).len(), 1);
        assert!(host.offers.load(Ordering::Relaxed) <= 1);
    }
}

#[test]
fn registry_layers_go_to_registry_hosts_once_and_applications_to_the_first() {
    let (lan, controller) = (Lan::new(3, |_| 0), Controller::new());
    let mut rootfs = rootfs_image(&controller, 2, 100);
    rootfs.layers.push(controller.layer(10, 400, Some("registry")));
    let application = image(
        "app",
        ImageKind::Application,
        vec![controller.layer(20, 50, Some("rootfs")), controller.layer(21, 60, Some("registry"))],
    );
    let patch = image("patch", ImageKind::Patch, {
        let mut layers = rootfs.layers[..1].to_vec();
        layers.push(controller.layer(30, 10, None));
        layers
    });
    let images = vec![rootfs, application, patch];
    let first = Wants { rootfs: true, applications: vec!["app".to_owned()], registry: true };
    let second = Wants { rootfs: true, registry: true, ..Wants::default() };
    let targets = [
        target(&lan, 0, &first),
        target(&lan, 1, &second),
        target(&lan, 2, &super::tests::rootfs()),
    ];
    let plan = planned(brief(images.clone()), &targets);
    let bytes: Vec<u64> = plan.hosts.iter().map(|host| host.bytes(&plan)).collect();
    assert_eq!(bytes, [200 + 10 + 400 + 60 + 50, 200 + 10 + 460, 210]);
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["hosts"][0]["changes"][0]["registry_layers"], 2);
    assert_eq!(json["hosts"][0]["changes"][1]["tree"], "applications/default-app/workdir");
    for synced in run(plan, &controller.store, &Unwatched) {
        synced.result.unwrap();
    }
    let checkouts = lock(&lan.host(0).checkouts).clone();
    assert_eq!(checkouts.len(), 2);
    assert_eq!(checkouts[0].inputs.images.len(), 2, "rootfs and patch");
    let order: Vec<(u64, usize, bool)> = checkouts[0]
        .layers
        .iter()
        .map(|layer| (layer.descriptor.size, layer.image, layer.registry))
        .collect();
    // The patch repeats the rootfs' first layer, which counts at its last position.
    assert_eq!(
        order,
        [(100, 0, false), (100, 1, false), (10, 1, false), (400, 0, true), (60, 0, true)]
    );
    assert!(lock(&lan.host(2).applied).is_empty());

    // With a new embedded image, only its layer is transferred and the trees stay.
    let mut images = images;
    images[0].layers.push(controller.layer(11, 70, Some("registry")));
    let plan = planned(brief(images.clone()), &targets);
    let bytes: Vec<u64> = plan.hosts.iter().map(|host| host.bytes(&plan)).collect();
    assert_eq!(bytes, [70, 70, 0]);
    assert_eq!(plan.says(&plan.hosts[0]), ["send 1 layer, 70 B", "add 1 layer to the registry"]);
    assert!(plan.hosts[2].is_done());
    for synced in run(plan, &controller.store, &Unwatched) {
        synced.result.unwrap();
    }
    // Three layers with registry data alone, and the patch's layer, which does not declare its kind.
    assert_eq!(lock(&lan.host(1).applied).len(), 4);
    assert!(planned(brief(images), &targets).is_done());
}

#[test]
fn each_architecture_gets_its_own_images_and_one_without_is_named() {
    let (lan, controller) = (Lan::new(3, |_| 0), Controller::new());
    *lock(&lan.host(1).architecture) = "arm64".to_owned();
    *lock(&lan.host(2).architecture) = "riscv64".to_owned();
    let mut brief = brief(vec![rootfs_image(&controller, 1, 100)]);
    let arm = image("rootfs", ImageKind::Rootfs, vec![controller.layer(77, 300, Some("rootfs"))]);
    brief.images.insert("arm64".to_owned(), vec![arm]);
    let plan = planned(brief, &all(&lan, 3));
    let bytes: Vec<u64> = plan.hosts.iter().map(|host| host.bytes(&plan)).collect();
    assert_eq!(bytes, [100, 300]);
    let (host, error) = &plan.failed[0];
    assert_eq!(host.ip(), name(2));
    assert!(error.to_string().contains("linux/riscv64"), "{error}");
    let synced = run(plan, &controller.store, &Unwatched);
    assert!(synced[0].result.is_ok() && synced[1].result.is_ok() && synced[2].result.is_err());
}

#[test]
fn what_rendering_depends_on_makes_another_tree_without_moving_a_byte() {
    let (lan, controller) = (Lan::new(1, |_| 0), Controller::new());
    let image = rootfs_image(&controller, 2, 100);
    let targets = all(&lan, 1);
    run(planned(brief(vec![image.clone()]), &targets), &controller.store, &Unwatched);
    let mut changed = brief(vec![image]);
    changed.surroundings =
        Arc::new(Plain { environment: BTreeMap::from([("a".to_owned(), "b".to_owned())]) });
    let plan = planned(changed, &targets);
    assert_eq!(plan.bytes(), 0);
    assert!(plan.says(&plan.hosts[0])[0].contains("instead of"), "{plan}");
}

#[test]
fn what_no_template_mentions_keeps_the_tree() {
    let (lan, controller) = (Lan::new(1, |_| 0), Controller::new());
    let image = rootfs_image(&controller, 2, 100);
    let targets = all(&lan, 1);
    run(planned(brief(vec![image.clone()]), &targets), &controller.store, &Unwatched);
    let host = lan.host(0);
    let made = lock(&host.checkouts).last().cloned().unwrap();
    let mentions = Mentions::Names(["used".to_owned()].into());
    let made_from = MadeFrom::of(&made, mentions).unwrap();
    lock(&host.made_from).insert("rootfs".to_owned(), made_from);
    let with = |name: &str, images| Brief {
        surroundings: Arc::new(Plain {
            environment: BTreeMap::from([(name.to_owned(), "x".to_owned())]),
        }),
        ..brief(images)
    };
    let plan = planned(with("unused", vec![image.clone()]), &targets);
    assert!(plan.is_done(), "{plan}");
    assert_eq!(plan.hosts[0].trees["rootfs"], made.id);
    assert!(!planned(with("used", vec![image.clone()]), &targets).is_done());
    let other = ClusterImage { layers: image.layers[..1].to_vec(), ..image };
    assert!(!planned(with("unused", vec![other]), &targets).is_done());
}

#[test]
fn networks_in_parts_are_fed_once_a_part_and_hosts_alone_by_the_controller() {
    for (part, uploads) in
        [((|number| number % 2) as fn(usize) -> usize, 2..=4), (|number| number, 30..=30)]
    {
        let (lan, controller) = (Lan::new(30, part), Controller::new());
        let image = rootfs_image(&controller, 3, 1000);
        let tally = Tally::default();
        for synced in run(planned(brief(vec![image]), &all(&lan, 30)), &controller.store, &tally) {
            synced.result.unwrap();
        }
        let sent = tally.from_controller.into_inner();
        assert!((uploads.start() * 3000..=uploads.end() * 3000).contains(&sent), "{sent}");
    }
}

#[test]
fn a_host_that_is_lost_fails_alone() {
    let (lan, controller) = (Lan::new(12, |_| 0), Controller::new());
    for (number, life) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
        lan.host(number).life.store(life, Ordering::Relaxed);
    }
    lan.host(5).is_dumb.store(true, Ordering::Relaxed);
    let image = rootfs_image(&controller, 4, 1000);
    let plan = planned(brief(vec![image]), &all(&lan, 12));
    assert_eq!(plan.failed.len(), 1);
    let tally = Tally::default();
    let synced = run(plan, &controller.store, &tally);
    assert_eq!(synced.len(), 12);
    for synced in synced {
        let number = (0..12).find(|&number| name(number) == synced.host).unwrap();
        match &synced.result {
            Ok(_) => assert!(number > 1, "{}", synced.host),
            Err(error) => {
                assert!(number < 4, "{error}");
                assert!(error.to_string().contains(&synced.host), "{error}");
            }
        }
    }
}

#[test]
fn a_blob_that_the_controller_lacks_is_an_error_of_each_host_and_not_a_hang() {
    struct Nothing;
    impl Blobs for Nothing {
        fn open(&self, blob: &Descriptor, _: u64) -> Result<Box<dyn Read + Send + 'static>> {
            Err(Error::not_found(format!("blob {} is gone", blob.digest)))
        }
    }
    let (lan, controller) = (Lan::new(4, |_| 0), Controller::new());
    let image = rootfs_image(&controller, 2, 1000);
    let synced = run(planned(brief(vec![image]), &all(&lan, 4)), &Nothing, &Unwatched);
    for synced in synced {
        assert!(synced.result.unwrap_err().to_string().contains("is gone"));
    }
}

#[test]
fn an_interruption_breaks_off_what_is_under_way() {
    struct Endless(Arc<AtomicBool>, AtomicUsize);
    impl Blobs for Endless {
        fn open(&self, _: &Descriptor, _: u64) -> Result<Box<dyn Read + Send + 'static>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.store(true, Ordering::Relaxed);
            Ok(Box::new(std::io::repeat(0)))
        }
    }
    let (lan, controller) = (Lan::new(4, |_| 0), Controller::new());
    let image = rootfs_image(&controller, 1, 1000);
    let cancel = Arc::new(AtomicBool::new(false));
    let blobs = Endless(Arc::clone(&cancel), AtomicUsize::new(0));
    let plan = planned(brief(vec![image]), &all(&lan, 4));
    let synced = execute(plan, &blobs, Limits::default(), &Unwatched, &cancel).unwrap();
    assert_eq!(blobs.1.load(Ordering::Relaxed), 1);
    for synced in synced {
        assert!(synced.result.unwrap_err().to_string().contains("interrupted"));
    }
}

#[test]
fn a_registry_gets_back_what_a_layer_of_another_tool_brought() {
    let (lan, controller) = (Lan::new(2, |_| 0), Controller::new());
    let mut rootfs = rootfs_image(&controller, 2, 100);
    rootfs.layers.push(controller.layer(30, 500, None));
    let wants = Wants { rootfs: true, registry: true, ..Wants::default() };
    let targets = [target(&lan, 0, &wants), target(&lan, 1, &super::tests::rootfs())];
    for synced in run(planned(brief(vec![rootfs.clone()]), &targets), &controller.store, &Unwatched)
    {
        synced.result.unwrap();
    }
    assert!(planned(brief(vec![rootfs.clone()]), &targets).is_done());
    lock(&lan.host(0).applied).clear();
    let plan = planned(brief(vec![rootfs]), &targets);
    // The host still has the layer itself.
    assert_eq!(plan.says(&plan.hosts[0]), ["add 1 layer to the registry"]);
    assert_eq!(plan.bytes(), 0);
    assert!(plan.hosts[1].is_done());
}
