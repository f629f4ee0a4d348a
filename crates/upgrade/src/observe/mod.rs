//! Observes a cluster. Read-only: commands on hosts leave nothing behind, and the API receives the
//! same few requests regardless of the number of hosts.
//!
//! Must not judge the results.

mod api;
mod host;
pub mod settle;
#[cfg(test)]
mod tests;

use std::time::{SystemTime, UNIX_EPOCH};
use std::{collections::BTreeMap, net::IpAddr};

use serde_json::Value;

pub(crate) use host::output;

use crate::observation::{EtcdSeen, HostSeen, InstalledSeen, MemberSeen, NodeSeen, Observation};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;
use imgctl_base::workers::map;
use imgctl_kube::api::Api;
use imgctl_model::{context::ClusterContext, image::ImageKind};
use imgctl_runtime::action::{HostPool, Line};

/// Image label with the supported Kubernetes versions.
const SUPPORTS: &str = "app.alpha.sealer.io/supported-kube-version";

pub struct Question<'a> {
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
    map_nodes(&mut observation);
    if question.runtime == "kubeadm" && !observation.external_etcd() {
        match ask(question, &observation) {
            Ok(seen) => observation.etcd = Some(seen),
            Err(error) => observation.etcd_problem = Some(error.to_string()),
        }
    }
    observation
}

fn hosts(question: &Question<'_>) -> Vec<HostSeen> {
    map(&question.context.hosts, question.parallel, |host| host::ask(question, host))
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

/// Sets the hosts' Nodes: by the Clusterfile's address, by any other address of the host, by
/// machine ID, by name. The first method that matches exactly one Node decides.
pub(super) fn map_nodes(observation: &mut Observation) {
    let Some(api) = &observation.api else { return };
    for host in &mut observation.hosts {
        (host.node, host.rivals) = find(host, &api.nodes);
    }
}

fn find(host: &HostSeen, nodes: &[NodeSeen]) -> (Option<String>, Vec<String>) {
    type Fits = fn(&HostSeen, &NodeSeen) -> bool;
    let ways: [Fits; 4] = [by_address, by_other_address, by_machine, by_name];
    let mut rivals = Vec::new();
    for fits in ways {
        let found: Vec<&NodeSeen> = nodes.iter().filter(|node| fits(host, node)).collect();
        match &found[..] {
            [] => {}
            [node] => return (Some(node.name.clone()), Vec::new()),
            several => rivals = several.iter().map(|node| node.name.clone()).collect(),
        }
    }
    (None, rivals)
}

/// Returns whether two texts are the same address: IPv6 addresses have several notations.
fn same(one: &str, other: &str) -> bool {
    let parse = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    match (parse(one), parse(other)) {
        (Some(one), Some(other)) => one.to_canonical() == other.to_canonical(),
        (None, None) => one.eq_ignore_ascii_case(other),
        _ => false,
    }
}

fn has_address(node: &NodeSeen, address: &str) -> bool {
    node.addresses
        .iter()
        .filter(|one| matches!(one.kind.as_str(), "InternalIP" | "ExternalIP"))
        .any(|one| same(&one.address, address))
}

fn by_address(host: &HostSeen, node: &NodeSeen) -> bool {
    has_address(node, &host.address)
}

fn by_other_address(host: &HostSeen, node: &NodeSeen) -> bool {
    let facts = host.facts.as_ref();
    facts.is_some_and(|facts| facts.addresses.iter().any(|one| has_address(node, one)))
}

fn by_machine(host: &HostSeen, node: &NodeSeen) -> bool {
    let facts = host.facts.as_ref();
    facts.is_some_and(|facts| !facts.machine_id.is_empty() && facts.machine_id == node.machine_id)
}

/// Kubernetes uses lower-case names, even if the machine does not.
fn by_name(host: &HostSeen, node: &NodeSeen) -> bool {
    let told = host.facts.as_ref().map(|facts| facts.hostname.as_str());
    let own = host.node_name.as_deref().or(told).unwrap_or_default();
    let names = [own, &host.address];
    names.iter().any(|name| {
        !name.is_empty()
            && (node.name.eq_ignore_ascii_case(name) || node.hostname.eq_ignore_ascii_case(name))
    })
}

pub(super) fn ask(question: &Question<'_>, observation: &Observation) -> Result<EtcdSeen> {
    let mut last = Error::failed("no control plane can be reached");
    for seen in &observation.hosts {
        if !seen.is_control_plane() || seen.unreachable.is_some() {
            continue;
        }
        let known = |host: &&imgctl_model::context::Host| host.id() == seen.id;
        let Some(host) = question.context.hosts.iter().find(known) else {
            continue;
        };
        let line = Line::script(&[include_str!("scripts/list-members.sh")]);
        let agent = question.pool.agent(host);
        let asked = agent.and_then(|agent| output(question.key, &*agent, "etcd", &line));
        match asked.and_then(|text| understand(&text)) {
            Ok(seen) => return Ok(seen),
            Err(error) => last = error,
        }
    }
    Err(last)
}

pub(super) fn understand(text: &str) -> Result<EtcdSeen> {
    let part = |name: &str| {
        let after = text.split(&format!("#{name}\n")).nth(1).unwrap_or_default();
        after.split("\n#").next().unwrap_or_default().trim().to_owned()
    };
    let json = |name: &str| -> Option<Value> { serde_json::from_str(&part(name)).ok() };
    let list = json("members").and_then(|list| list.get("members")?.as_array().cloned());
    let Some(list) = list else {
        return Err(Error::bad_content("etcdctl listed no members"));
    };
    let statuses = json("status").and_then(|all| all.as_array().cloned());
    let statuses = statuses.unwrap_or_default();
    let members = list.iter().map(|member| {
        let id = member["ID"].as_u64();
        let status = statuses
            .iter()
            .map(|one| &one["Status"])
            .find(|status| id.is_some() && status["header"]["member_id"].as_u64() == id);
        let url = member["clientURLs"].get(0).and_then(Value::as_str);
        MemberSeen {
            name: member["name"].as_str().unwrap_or_default().to_owned(),
            endpoint: url.unwrap_or_default().to_owned(),
            learner: member["isLearner"].as_bool().unwrap_or(false),
            leader: id.is_some() && status.is_some_and(|it| it["leader"].as_u64() == id),
            version: status.and_then(|status| status["version"].as_str()).map(str::to_owned),
            db_bytes: status.and_then(|it| it["dbSize"].as_u64()).unwrap_or(0),
        }
    });
    Ok(EtcdSeen {
        members: members.collect(),
        alarms: part("alarms")
            .lines()
            .filter_map(|line| Some(line.rsplit_once("alarm:")?.1.trim().to_owned()))
            .collect(),
    })
}
