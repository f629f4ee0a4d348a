//! The Clusterfile of an adopted cluster: from a record, if an earlier controller left one, otherwise
//! from what was read.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::adopt::k3s;
use crate::adopt::reading::Reading;
use crate::observation::HostSeen;
use imgctl_model::clusterfile::{Adopted, Clusterfile, Phase, Ssh};
use imgctl_model::name::is_uid;
use imgctl_runtime::load_balancer::API_PORT;

const PATCHES: &str = "/etc/kubernetes/patches";

/// Returns the cluster to record. `named` has the hosts and logins of the command line, and `now` is
/// the time of the adoption, in RFC 3339.
pub fn clusterfile(reading: &Reading, named: &Clusterfile, now: &str) -> Clusterfile {
    let mut made = match &reading.record {
        Some(record) => with_logins(&record.clusterfile, named),
        None => Clusterfile { documents: documents(reading), ..named.clone() },
    };
    let status = &mut made.cluster.status;
    if reading.record.is_none() {
        status.adopted = Some(Adopted {
            runtime: reading.runtime.clone(),
            version: reading.version().unwrap_or_default(),
            cluster_id: reading.cluster_id().unwrap_or_default().to_owned(),
        });
    }
    status.phase = Some(Phase::Success);
    if made.cluster.uid.is_none() {
        made.cluster.uid = uid_of_hosts(reading, &made.cluster.name);
    }
    made.cluster.created.get_or_insert_with(|| now.to_owned());
    made
}

/// Returns the UID that hosts have for the cluster, if they agree: its record was lost.
fn uid_of_hosts(reading: &Reading, cluster: &str) -> Option<String> {
    let facts = reading.observation.hosts.iter().filter_map(|host| host.facts.as_ref());
    let told: BTreeSet<&String> =
        facts.filter_map(|facts| facts.cluster_uids.get(cluster)).collect();
    let mut told = told.into_iter();
    told.next().filter(|uid| told.next().is_none() && is_uid(uid)).cloned()
}

/// Returns the recorded cluster with the logins of the command line. Of the record's own logins, only
/// users and ports count: whoever can write the record must not choose which of this machine's files
/// and variables are sent somewhere as a password.
pub fn with_logins(record: &Clusterfile, named: &Clusterfile) -> Clusterfile {
    let mut made = record.clone();
    let own = std::mem::replace(&mut made.cluster.ssh, named.cluster.ssh.clone());
    let ssh = &mut made.cluster.ssh;
    ssh.user = ssh.user.take().or(own.user);
    ssh.port = ssh.port.or(own.port);
    for group in &mut made.cluster.hosts {
        let own = group.ssh.take();
        let kept = own.map(|own| Ssh { user: own.user, port: own.port, ..Ssh::default() });
        group.ssh = kept.filter(|kept| !kept.is_empty());
    }
    made
}

/// Returns the documents that later joins and certificates depend on.
fn documents(reading: &Reading) -> Vec<Value> {
    if reading.runtime == "k3s" {
        return k3s::document(reading).into_iter().collect();
    }
    let mut documents: Vec<Value> = reading.configuration().into_iter().cloned().collect();
    if let Some(init) = init_configuration(reading) {
        documents.push(init);
    }
    documents.extend(reading.kubelet.clone());
    documents
}

/// Returns what the control planes have in common and ClusterConfiguration does not say: the port of
/// the API servers and the directory of patches.
fn init_configuration(reading: &Reading) -> Option<Value> {
    let api = reading.configuration()?["apiVersion"].clone();
    let first = reading.control_planes().next()?;
    let mut document = json!({"apiVersion": api, "kind": "InitConfiguration"});
    let port = port(first).filter(|port| *port != API_PORT);
    if let Some(port) = port {
        document["localAPIEndpoint"] = json!({ "bindPort": port });
    }
    let patched = reading.of(first).is_some_and(|found| found.files.contains("patches"));
    if patched {
        document["patches"] = json!({ "directory": PATCHES });
    }
    (port.is_some() || patched).then_some(document)
}

fn port(host: &HostSeen) -> Option<u16> {
    let server = host.manifests.get("kube-apiserver")?;
    let flag = |argument: &String| argument.strip_prefix("--secure-port=")?.parse().ok();
    server.arguments.iter().find_map(flag)
}
