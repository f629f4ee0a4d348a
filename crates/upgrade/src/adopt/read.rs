//! Reads a cluster: one command on each host, what upgrades observe, and a few objects of the API.
//! Changes nothing; commands leave nothing behind.
//!
//! Must not judge the results.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::adopt::reading::{HostReading, K3sReading, Reading, Record};
use crate::observe;
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::workers::map;
use imgctl_host::agent::Agent;
use imgctl_kube::api::Api;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::name;
use imgctl_model::{
    clusterfile,
    clusterfile::{Clusterfile, MAX_LENGTH},
};
use imgctl_runtime::action::{HostPool, Line};
use imgctl_runtime::nodes;
use imgctl_template::yaml;
use imgctl_workflow::pipeline::record::{RECORD_KEY, RECORD_PATH};

/// What to read.
pub struct Question<'a> {
    /// The hosts that were named; the name of the cluster.
    pub context: &'a ClusterContext,
    pub pool: &'a dyn HostPool,
    /// Number of hosts queried in parallel.
    pub parallel: usize,
    /// Identifies this reading in the file names of commands on hosts; safe as a file name.
    pub key: &'a str,
}

/// What the named hosts are, before the whole cluster is read.
#[derive(Debug)]
pub struct FirstLook {
    /// `kubeadm`, `k3s`, `script`.
    pub runtime: String,
    /// The record of an earlier controller.
    pub record: Option<Record>,
    hosts: BTreeMap<String, HostReading>,
}

/// Asks the named hosts who they are. Fails if none of the control planes is one.
pub fn look(question: &Question<'_>) -> Result<FirstLook> {
    let context = question.context;
    let (hosts, problems) = probe(question, &context.hosts);
    let planes: Vec<&Host> = context.control_planes().collect();
    let found = |host: &&Host| hosts.get(&host.id());
    let is = |test: fn(&HostReading) -> bool| planes.iter().filter_map(found).any(test);
    let runtime = if is(HostReading::is_kubeadm) {
        "kubeadm"
    } else if is(|host| host.k3s.as_ref().is_some_and(|k3s| k3s.role == "server")) {
        "k3s"
    } else {
        "script"
    };
    let record = match runtime {
        "script" => None,
        _ => record_of_api(question)?,
    };
    let record = match record {
        Some(record) => Some(record),
        None => record_of_hosts(question, &planes, &hosts)?,
    };
    if runtime == "script" && record.is_none() && is(|host| host.is_rke2) {
        return Err(Error::usage("the hosts run RKE2, which imgctl cannot carry on")
            .hint("imgctl adopts clusters of kubeadm and of k3s"));
    }
    if runtime == "script" && record.is_none() {
        return Err(nothing_to_adopt(context, &planes, &hosts, &problems));
    }
    Ok(FirstLook { runtime: runtime.to_owned(), record, hosts })
}

/// Says that the control planes have neither a cluster of Kubernetes nor a record of this name, and
/// which records they do have.
fn nothing_to_adopt(
    context: &ClusterContext,
    planes: &[&Host],
    hosts: &BTreeMap<String, HostReading>,
    problems: &[String],
) -> Error {
    let ids: Vec<String> = planes.iter().map(|host| host.id()).collect();
    let (ids, name) = (ids.join(", "), &context.name);
    let recorded: BTreeSet<&str> = planes
        .iter()
        .filter_map(|host| hosts.get(&host.id()))
        .flat_map(|host| &host.clusters)
        .map(String::as_str)
        .collect();
    let recorded: Vec<&str> = recorded.into_iter().collect();
    let error = match recorded[..] {
        [] => Error::not_found(format!(
            "{ids}: there is no control plane of kubeadm or k3s, and no record of a cluster `{name}`"
        ))
        .hint("name the control planes with --masters, and the cluster's former name with -c"),
        [one] => Error::not_found(format!(
            "{ids}: there is no record of a cluster `{name}`, but one of `{one}`"
        ))
        .hint(format!("if that is the cluster, pass its name: -c {one}")),
        _ => Error::not_found(format!(
            "{ids}: there is no record of a cluster `{name}`, but some of `{}`",
            recorded.join("`, `")
        ))
        .hint("pass the name of the cluster with -c"),
    };
    if problems.is_empty() {
        error
    } else {
        error.caused_by(Error::several(Kind::NotFound, problems))
    }
}

impl HostReading {
    fn is_kubeadm(&self) -> bool {
        self.files.contains("manifests/kube-apiserver.yaml")
    }
}

/// Reads the whole cluster. `question` has all its hosts: those of the record, if there is one.
pub fn read(question: &Question<'_>, first: FirstLook) -> Reading {
    let context = question.context;
    let rest: Vec<Host> = context
        .hosts
        .iter()
        .filter(|host| !first.hosts.contains_key(&host.id()))
        .cloned()
        .collect();
    let mut hosts = first.hosts;
    hosts.extend(probe(question, &rest).0);
    let api = (first.runtime != "script")
        .then(|| nodes::api(context, question.pool).map_err(|error| error.chain().join(": ")));
    let observation = observe::observe(&observe::Question {
        context,
        runtime: &first.runtime,
        pool: question.pool,
        parallel: question.parallel,
        api: api.as_ref().map(|api| match api {
            Ok(api) => Ok(&**api),
            Err(why) => Err(why.clone()),
        }),
        containers: false,
        images: BTreeMap::new(),
        key: question.key,
    });
    let mut reading = Reading {
        runtime: first.runtime,
        observation,
        hosts,
        record: first.record,
        ..Reading::default()
    };
    if let Some(Ok(api)) = &api {
        reading.systems = systems(&**api);
        let version = reading.version().unwrap_or_default();
        reading.kubelet = kubelet_configuration(&**api, &version);
    }
    reading
}

/// Asks hosts; returns their answers, and why others gave none.
fn probe(question: &Question<'_>, hosts: &[Host]) -> (BTreeMap<String, HostReading>, Vec<String>) {
    let root = question.context.paths.root();
    let line = Line::script(&[include_str!("scripts/probe.sh")])
        .with([("IMGCTL_DATA", &root), ("IMGCTL_CLUSTER", &question.context.name)]);
    let ask = |host: &Host| -> Result<HostReading> {
        let agent = question.pool.agent(host)?;
        Ok(understand(&observe::output(question.key, &*agent, "adopt", &line)?))
    };
    let (mut answers, mut problems) = (BTreeMap::new(), Vec::new());
    for (host, answer) in hosts.iter().zip(map(hosts, question.parallel, ask)) {
        match answer {
            Ok(answer) => drop(answers.insert(host.id(), answer)),
            Err(error) => problems.push(format!("{}: {}", host.id(), error.chain().join(": "))),
        }
    }
    (answers, problems)
}

/// Parses the output of the probe.
pub(super) fn understand(text: &str) -> HostReading {
    let mut host = HostReading::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["file", name] => {
                host.files.insert(name.to_owned());
            }
            ["program", name, path] => {
                host.programs.insert(name.to_owned(), path.to_owned());
            }
            ["package", name] => host.package = Some(name.to_owned()),
            ["record", path] => host.records.push(path.to_owned()),
            ["cluster", other] if name::check(other).is_ok() => {
                host.clusters.push(other.to_owned());
            }
            ["upgrade", _] => host.has_upgrade = true,
            ["k3s", role, unit, data] => {
                host.k3s = Some(K3sReading {
                    role: role.to_owned(),
                    unit: unit.to_owned(),
                    data_directory: data.to_owned(),
                    ..K3sReading::default()
                });
            }
            [word, value] if word.starts_with("k3s-") => {
                let Some(k3s) = &mut host.k3s else { continue };
                match word {
                    "k3s-store" => k3s.store = Some(value.to_owned()),
                    "k3s-file" => drop(k3s.files.insert(value.to_owned())),
                    _ => k3s.drop_ins.push(value.to_owned()),
                }
            }
            ["rke2", _] => host.is_rke2 = true,
            _ => {}
        }
    }
    host
}

/// Returns the record in the cluster's own Secret. If the API does not answer, there is none: the API
/// is judged later.
fn record_of_api(question: &Question<'_>) -> Result<Option<Record>> {
    let Ok(api) = nodes::api(question.context, question.pool) else {
        return Ok(None);
    };
    let Ok(secret) = api.get(RECORD_PATH) else {
        return Ok(None);
    };
    let name = RECORD_PATH.rsplit('/').next().unwrap_or_default();
    let data = secret["data"][RECORD_KEY].as_str().map(|text| STANDARD.decode(text));
    let Some(Ok(text)) = data else {
        return Err(Error::bad_content(format!("Secret kube-system/{name} has no Clusterfile"))
            .hint(FORGET));
    };
    parse(&text, &format!("Secret kube-system/{name}")).map(Some)
}

const FORGET: &str = "to adopt the cluster without its record, delete the record there";

/// Returns the record that a controller left on one of the control planes.
fn record_of_hosts(
    question: &Question<'_>,
    planes: &[&Host],
    hosts: &BTreeMap<String, HostReading>,
) -> Result<Option<Record>> {
    for host in planes {
        for path in hosts.get(&host.id()).into_iter().flat_map(|found| &found.records) {
            let agent = question.pool.agent(host)?;
            let Some(text) = agent.read_file(path, MAX_LENGTH as u64)? else {
                continue;
            };
            return parse(&text, &format!("{} on {}", path, host.id())).map(Some);
        }
    }
    Ok(None)
}

fn parse(text: &[u8], source: &str) -> Result<Record> {
    let text = String::from_utf8_lossy(text);
    let (clusterfile, _): (Clusterfile, _) = clusterfile::read_stored(&text, source)
        .context(|| format!("cannot use the record of the cluster in {source}"))
        .map_err(|error| error.hint(FORGET))?;
    Ok(Record { source: source.to_owned(), clusterfile })
}

fn systems(api: &dyn Api) -> BTreeMap<String, String> {
    let nodes = api.list("/api/v1/nodes").unwrap_or_default();
    let text = |node: &Value, path: &str| node.pointer(path)?.as_str().map(str::to_owned);
    nodes
        .iter()
        .filter_map(|node| {
            Some((text(node, "/metadata/name")?, text(node, "/status/nodeInfo/operatingSystem")?))
        })
        .collect()
}

/// Returns the kubelets' configuration: its ConfigMap has the version in its name below 1.24.
fn kubelet_configuration(api: &dyn Api, version: &str) -> Option<Value> {
    let minor = version.split('.').nth(1).unwrap_or_default();
    let names = ["kubelet-config".to_owned(), format!("kubelet-config-1.{minor}")];
    let get = |name: &String| {
        let map = api.get(&format!("/api/v1/namespaces/kube-system/configmaps/{name}")).ok()?;
        yaml::parse(map["data"]["kubelet"].as_str()?).ok()
    };
    names.iter().find_map(get).filter(Value::is_object)
}

/// Reads a text file of a host.
pub(super) fn text(agent: &dyn Agent, path: &str, limit: u64) -> Result<Option<String>> {
    let Some(bytes) = agent.read_file(path, limit)? else {
        return Ok(None);
    };
    let wrong = |_| Error::bad_content(format!("{}: {path} is not text", agent.host()));
    String::from_utf8(bytes).map(Some).map_err(wrong)
}
