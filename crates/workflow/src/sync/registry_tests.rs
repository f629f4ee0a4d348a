//! Layers from a registry: the controller sends nothing, and a host that the registry does not serve
//! harms no other.

use super::*;
use crate::sync::source::RegistryLayers;
use imgctl_base::image::Reference;
use imgctl_registry::{Client, ClientOptions};

/// A controller that cannot send a byte.
struct Silent;

impl Blobs for Silent {
    fn open(&self, blob: &Descriptor, _: u64) -> Result<Box<dyn Read + Send + 'static>> {
        panic!("the controller sends {}", blob.digest)
    }
}

fn from_registry(image: ClusterImage) -> Brief {
    let client = Client::new(ClientOptions::default()).unwrap();
    let name = Reference::parse("registry.test/clusters/rootfs").unwrap();
    let access = client.repository(&name).unwrap().access().unwrap();
    let repositories = BTreeMap::from([(image.name.clone(), vec![access])]);
    Brief { source: Source::Registry(RegistryLayers::new(repositories)), ..brief(vec![image]) }
}

/// Lets the registry serve the hosts that `reaches` admits.
fn serve(lan: &Lan, controller: &Controller, reaches: fn(usize) -> bool) {
    let store = controller.store.clone();
    *lock(&lan.registry) = Box::new(move |host, blob| {
        if reaches(host) {
            store.read_blob(blob, 1 << 20)
        } else {
            Err(Error::failed("cannot connect to registry.test: no route"))
        }
    });
}

#[test]
fn hosts_pull_and_serve_each_other_and_the_controller_sends_nothing() {
    let (lan, controller) = (Lan::new(20, |_| 0), Controller::new());
    serve(&lan, &controller, |_| true);
    let plan = planned(from_registry(rootfs_image(&controller, 5, 1000)), &all(&lan, 20));
    let says = plan.to_string();
    let first = "pull 5 layers, 5.0 kB from registry.test/clusters/rootfs; make rootfs";
    assert!(says.starts_with(&format!("10.9.0.1: {first}")), "{says}");
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["hosts"][3]["repositories"][0], "registry.test/clusters/rootfs");
    let tally = Tally::default();
    for synced in run(plan, &Silent, &tally) {
        synced.result.unwrap();
    }
    assert_eq!(tally.from_controller.into_inner(), 0);
    assert_eq!(tally.moved.into_inner(), 20 * 5000);
    let pulled = tally.from_registry.into_inner();
    // How many copies depends on who is busy when; other hosts serve the rest.
    assert!((5000..20 * 5000).contains(&pulled), "{pulled}");
}

#[test]
fn a_host_that_the_registry_does_not_serve_gets_layers_from_others() {
    let (lan, controller) = (Lan::new(6, |_| 0), Controller::new());
    serve(&lan, &controller, |host| host != 2);
    let plan = planned(from_registry(rootfs_image(&controller, 3, 1000)), &all(&lan, 6));
    for synced in run(plan, &Silent, &Unwatched) {
        synced.result.unwrap();
    }
}

#[test]
fn a_host_without_registry_and_peers_fails_alone_and_says_why() {
    let part = |host| usize::from(host == 2);
    let (lan, controller) = (Lan::new(4, part), Controller::new());
    serve(&lan, &controller, |host| host != 2);
    let plan = planned(from_registry(rootfs_image(&controller, 3, 1000)), &all(&lan, 4));
    let synced = run(plan, &Silent, &Unwatched);
    for (number, synced) in synced.iter().enumerate() {
        match &synced.result {
            Ok(()) => assert_ne!(number, 2),
            Err(error) => {
                let told = error.to_string();
                assert!(number == 2 && told.contains(&name(2)), "{told}");
                assert!(told.contains("cannot connect to registry.test"), "{told}");
            }
        }
    }
    assert!(synced[2].result.is_err());
}

#[test]
fn a_registry_that_serves_nobody_is_given_up() {
    let (lan, controller) = (Lan::new(200, |_| 0), Controller::new());
    serve(&lan, &controller, |_| false);
    let plan = planned(from_registry(rootfs_image(&controller, 3, 1000)), &all(&lan, 200));
    let synced = run(plan, &Silent, &Unwatched);
    assert!(synced.iter().all(|synced| synced.result.is_err()));
    let pulls = lan.pulls.load(Ordering::Relaxed);
    assert!(pulls <= 8 + 16, "{pulls}");
}

#[test]
fn a_lost_host_is_no_matter_of_the_registry() {
    let (lan, controller) = (Lan::new(3, |_| 0), Controller::new());
    serve(&lan, &controller, |_| true);
    let plan = planned(from_registry(rootfs_image(&controller, 2, 1000)), &all(&lan, 3));
    lan.host(1).life.store(0, Ordering::Relaxed);
    let synced = run(plan, &Silent, &Unwatched);
    let error = synced[1].result.as_ref().unwrap_err();
    assert_eq!(error.kind(), imgctl_base::error::Kind::Network, "{error}");
    assert!(synced[0].result.is_ok() && synced[2].result.is_ok());
}
