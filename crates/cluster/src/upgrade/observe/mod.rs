//! Observes a cluster. Read-only: commands on hosts leave nothing behind, and the API receives the
//! same few requests regardless of the number of hosts.
//!
//! Must not judge the results.

mod api;
mod etcd;
mod host;
mod mapping;
mod settings;
pub mod settle;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cluster::context::ClusterContext;
use crate::cluster::image::ImageKind;
use crate::runtime::action::HostPool;
use crate::upgrade::observation::{HostSeen, InstalledSeen, Observation};
use imgctl_base::image::Digest;
use imgctl_kube::api::Api;

/// Image label with the supported Kubernetes versions.
const SUPPORTS: &str = "app.alpha.sealer.io/supported-kube-version";

/// Parameters of an observation.
pub struct Question<'a> {
    /// The current cluster context.
    pub context: &'a ClusterContext,
    /// `kubeadm`, `k3s`, `script`.
    pub runtime: &'a str,
    pub pool: &'a dyn HostPool,
    /// Number of hosts queried in parallel.
    pub parallel: usize,
    /// An API server, or the reason why the cluster's API is not available.
    pub api: Option<Result<&'a dyn Api, String>>,
    /// Also query the running containers of each host, to predict restarts.
    pub containers: bool,
    /// Copied to [`Observation::images`].
    pub images: BTreeMap<String, BTreeMap<String, Digest>>,
    /// Identifies this observation in the file names of commands on hosts; safe as a file name.
    pub key: &'a str,
}

/// Observes the cluster. Failures are part of the result.
pub fn observe(question: &Question<'_>) -> Observation {
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
        let silent = || (None, Some("no answer was received".to_owned()));
        (hosts, api.join().unwrap_or_else(|_| silent()))
    });
    let mut observation = Observation {
        at_ms: now(),
        hosts,
        api: api.0,
        api_problem: api.1,
        installed: installed(question.context),
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
    let hosts = &question.context.hosts;
    let next = Mutex::new(hosts.iter().enumerate());
    let seen = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..question.parallel.clamp(1, hosts.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let host = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, host)) = host else { return };
                    let one = host::ask(question, host);
                    seen.lock().unwrap_or_else(PoisonError::into_inner).insert(number, one);
                }
            });
        }
    });
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.into_values().collect()
}

fn installed(context: &ClusterContext) -> Vec<InstalledSeen> {
    context
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
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
