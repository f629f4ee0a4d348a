//! Finds out how a cluster is. Reads only: what hosts run leaves nothing behind, and the API is
//! asked the same few questions whatever the number of hosts.
//!
//! Must not judge what it sees.

mod api;
mod etcd;
mod host;
mod mapping;
mod settings;
pub(crate) mod settle;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cluster::image::ImageKind;
use crate::cluster::scene::Scene;
use crate::image::Digest;
use crate::kube::api::Api;
use crate::runtime::action::Crew;
use crate::upgrade::observation::{HostSeen, InstalledSeen, Observation};

/// The label by which images say which Kubernetes they support.
const SUPPORTS: &str = "app.alpha.sealer.io/supported-kube-version";

/// What is to be found out.
pub(crate) struct Question<'a> {
    /// The cluster as it is.
    pub(crate) scene: &'a Scene,
    /// `kubeadm`, `k3s`, `script`.
    pub(crate) runtime: &'a str,
    pub(crate) crew: &'a dyn Crew,
    /// Hosts that are asked at once.
    pub(crate) parallel: usize,
    /// An API server; or why there is none although the cluster has an API.
    pub(crate) api: Option<Result<&'a dyn Api, String>>,
    /// Each host's running containers are asked for, too, so that restarts can be foretold.
    pub(crate) containers: bool,
    /// Goes to [`Observation::images`].
    pub(crate) images: BTreeMap<String, BTreeMap<String, Digest>>,
    /// Names this look in what hosts run: file-name safe.
    pub(crate) key: &'a str,
}

/// Asks. What cannot be found out is part of the answer.
pub(crate) fn observe(question: &Question<'_>) -> Observation {
    let (hosts, api) = std::thread::scope(|scope| {
        let api = scope.spawn(|| match &question.api {
            None => (None, None),
            Some(Err(why)) => (None, Some(why.clone())),
            Some(Ok(api)) => match api::ask(*api, question.containers) {
                Ok(seen) => (Some(seen), None),
                Err(error) => (None, Some(error.to_string())),
            },
        });
        let hosts = hosts(question);
        let silent = || (None, Some("the question was not answered".to_owned()));
        (hosts, api.join().unwrap_or_else(|_| silent()))
    });
    let mut observation = Observation {
        at_ms: now(),
        hosts,
        api: api.0,
        api_problem: api.1,
        installed: installed(question.scene),
        images: question.images.clone(),
        ..Observation::default()
    };
    mapping::map(&mut observation);
    if question.runtime == "kubeadm" && !observation.external_etcd() {
        match etcd::ask(question, &observation) {
            Ok(seen) => observation.etcd = Some(seen),
            Err(error) => observation.etcd_problem = Some(error.to_string()),
        }
    }
    observation
}

fn hosts(question: &Question<'_>) -> Vec<HostSeen> {
    let hosts = &question.scene.hosts;
    let next = Mutex::new(hosts.iter().enumerate());
    let seen = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..question.parallel.clamp(1, hosts.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let host = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, host)) = host else { return };
                    let one = host::ask(question, host);
                    seen.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(number, one);
                }
            });
        }
    });
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.into_values().collect()
}

fn installed(scene: &Scene) -> Vec<InstalledSeen> {
    scene
        .images
        .iter()
        .filter(|image| image.kind != ImageKind::Rootfs)
        .map(|image| InstalledSeen {
            name: image.name.clone(),
            supports: image.label(&[SUPPORTS]).map(str::to_owned),
        })
        .collect()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}
