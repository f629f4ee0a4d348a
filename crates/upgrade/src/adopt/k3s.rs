//! Judges clusters of k3s that other programs installed, and makes their document: what servers and
//! agents were started with, where they keep their data, how hosts join. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::adopt::reading::{K3sReading, Reading, days};
use crate::document::{Finding, few};
use crate::finding::{error, note, warning};
use crate::observation::HostSeen;
use imgctl_runtime::k3s::options::Options;
use imgctl_runtime::k3s::{AGENT_TOKEN, DATA_DIRECTORY, password};

/// Days before the end of a certificate from which on a warning is due. k3s renews certificates when
/// it starts.
const SOON: i64 = 30;
/// k3s' documentation, "Critical Configuration Values": the same on all servers.
const CRITICAL: [&str; 14] = [
    "cluster-cidr",
    "cluster-dns",
    "cluster-domain",
    "disable-cloud-controller",
    "disable-helm-controller",
    "disable-network-policy",
    "egress-selector-mode",
    "embedded-registry",
    "flannel-backend",
    "flannel-external-ip",
    "flannel-ipv6-masq",
    "secrets-encryption",
    "secrets-encryption-provider",
    "service-cidr",
];
/// Servers that do only a part, and clusters that are not made of hosts.
const PARTIAL: [&str; 8] = [
    "disable-agent",
    "disable-apiserver",
    "disable-controller-manager",
    "disable-etcd",
    "disable-scheduler",
    "docker",
    "multi-cluster-cidr",
    "rootless",
];
/// Options that name files of a host.
const FILES: [&str; 9] = [
    "default-local-storage-path",
    "etcd-s3-endpoint-ca",
    "etcd-snapshot-dir",
    "flannel-cni-conf",
    "flannel-conf",
    "image-credential-provider-bin-dir",
    "image-credential-provider-config",
    "kubelet-config",
    "resolv-conf",
];
const S3_KEYS: [&str; 3] = ["etcd-s3-access-key", "etcd-s3-secret-key", "etcd-s3-session-token"];

/// A host of k3s, and what its Node reports.
struct Member<'a> {
    host: &'a HostSeen,
    found: &'a K3sReading,
    options: Option<Options>,
}

fn members(reading: &Reading) -> Vec<Member<'_>> {
    let of = |host| {
        let found = reading.of(host)?.k3s.as_ref()?;
        let node = reading.observation.node_of(host);
        let options = node.and_then(|node| Options::reported(&node.annotations));
        Some(Member { host, found, options })
    };
    reading.reachable().filter_map(of).collect()
}

/// Reports whether another program installed this cluster of k3s, and nothing is recorded of it.
pub(super) fn is_foreign(reading: &Reading) -> bool {
    reading.runtime == "k3s" && reading.record.is_none()
}

/// Hosts that are not what they are named as.
pub(super) fn roles(reading: &Reading) -> Vec<Finding> {
    let role = |host: &HostSeen| Some(reading.of(host)?.k3s.as_ref()?.role.clone());
    let mut findings = Vec::new();
    for host in reading.reachable() {
        let finding = match (host.is_control_plane(), role(host).as_deref()) {
            (true, Some("server")) | (false, Some("agent")) => continue,
            (_, None) => error("role", "neither the service k3s nor k3s-agent is active here")
                .hint("`systemctl status k3s k3s-agent`; imgctl knows k3s as services of systemd"),
            (true, Some(_)) => error("role", "it is named under --masters, and runs no k3s server")
                .hint("name agents under --nodes"),
            (false, Some(_)) => error("role", "it is named under --nodes, and runs a k3s server")
                .hint("name servers under --masters"),
        };
        findings.push(finding.on(host));
    }
    findings
}

/// Returns what is special about clusters of k3s.
pub(super) fn settings(reading: &Reading) -> Vec<Finding> {
    if !is_foreign(reading) {
        return Vec::new();
    }
    let members = members(reading);
    let mut findings = Vec::new();
    for member in &members {
        findings.extend(of_member(member).into_iter().map(|finding| finding.on(member.host)));
        if reading.of(member.host).is_some_and(|found| !found.programs.contains_key("k3s")) {
            findings.push(
                error("programs", "k3s is in no directory of root's PATH")
                    .on(member.host)
                    .hint("link it to /usr/local/bin/k3s"),
            );
        }
    }
    findings.extend(data(&members));
    findings.extend(together(&members));
    findings.extend(certificates(reading));
    if let Some(url) = endpoint(reading) {
        findings.push(note(
            "endpoint",
            format!(
                "new hosts join at {url}, as others did; whoever serves that address stays in \
                 charge of it"
            ),
        ));
    }
    findings
}

fn of_member(member: &Member<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let found = member.found;
    let Some(options) = &member.options else {
        return vec![
            error("k3s-options", "its Node does not tell the options of k3s (k3s.io/node-args)")
                .hint("restart k3s on the host: it writes them when it starts"),
        ];
    };
    let unknown: Vec<&str> = options.unknown().into_iter().collect();
    if !unknown.is_empty() && found.role == "server" {
        findings.push(
            warning("k3s-options", format!("options that imgctl does not know: {}", few(&unknown)))
                .hint("new servers get them unchanged: check whether that is correct"),
        );
    }
    let partial: Vec<&str> = PARTIAL.into_iter().filter(|name| options.is_on(name)).collect();
    if !partial.is_empty() {
        findings.push(
            error("k3s-options", format!("imgctl does not manage hosts with {}", few(&partial)))
                .hint("imgctl knows servers that run the whole control plane, and agents"),
        );
    }
    let vpn: Vec<&str> =
        ["vpn-auth", "vpn-auth-file"].into_iter().filter(|name| options.has(name)).collect();
    if !vpn.is_empty() {
        findings.push(error(
            "k3s-options",
            format!(
                "the hosts are connected by a VPN of k3s ({}), which imgctl cannot set up",
                few(&vpn)
            ),
        ));
    }
    let own = options.get("data-dir").unwrap_or(DATA_DIRECTORY).trim_end_matches('/');
    if own != found.data_directory.trim_end_matches('/') {
        findings.push(
            error(
                "data-directory",
                format!("k3s keeps its data in {own}, and config.yaml does not say so"),
            )
            .hint(format!("write `data-dir: {own}` to /etc/rancher/k3s/config.yaml")),
        );
    }
    if !found.drop_ins.is_empty() {
        findings.push(note(
            "drop-ins",
            format!(
                "{} stay as they are; new hosts get one file with the options of all",
                few(&found.drop_ins)
            ),
        ));
    }
    if found.role == "server" {
        findings.extend(of_server(found, options));
    }
    findings
}

fn of_server(found: &K3sReading, options: &Options) -> Vec<Finding> {
    let mut findings = Vec::new();
    if options.has("datastore-endpoint") || found.store.is_none() {
        findings.push(
            error("external-datastore", "k3s keeps its data in an external database")
                .hint("imgctl carries on k3s with embedded etcd or SQLite"),
        );
    }
    if !found.files.contains("server/token") {
        findings.push(
            error("token", format!("{}/server/token does not exist", found.data_directory))
                .hint("without it no host can join: is this a server that has started?"),
        );
    }
    let files: Vec<&str> = FILES.into_iter().filter(|name| options.has(name)).collect();
    if !files.is_empty() {
        findings.push(
            warning("local-files", format!("options name files of this host: {}", few(&files)))
                .hint("copy these files to a new host before it joins, and back them up"),
        );
    }
    if S3_KEYS.iter().any(|name| options.has(name)) {
        findings.push(
            warning("snapshots", "k3s uploads snapshots with keys that its Node does not show")
                .hint("give them to new servers with --etcd-s3-config-secret"),
        );
    }
    if options.is_on("secrets-encryption") {
        findings.push(
            note("secrets-encryption", "Secrets are encrypted in the datastore")
                .hint("new servers get the key from k3s; a backup has it, so encrypt backups"),
        );
    }
    findings
}

/// Findings about the datastore of all servers.
fn data(members: &[Member<'_>]) -> Vec<Finding> {
    let servers = || members.iter().filter(|member| member.found.role == "server");
    let is_sqlite = servers().any(|member| member.found.store.as_deref() == Some("sqlite"));
    let mut findings = Vec::new();
    if is_sqlite {
        findings.push(
            warning("datastore", "the server keeps its data in SQLite: no server can be added")
                .hint("k3s converts the data to etcd when it is started with --cluster-init"),
        );
    }
    findings
}

/// Findings about what members have in common.
fn together(members: &[Member<'_>]) -> Vec<Finding> {
    let mut servers: Vec<&Options> = Vec::new();
    for member in members.iter().filter(|member| member.found.role == "server") {
        servers.extend(&member.options);
    }
    let differs = |name: &&str| {
        let values: BTreeSet<Option<&str>> = servers.iter().map(|one| one.get(name)).collect();
        values.len() > 1
    };
    let different: Vec<&str> = CRITICAL.into_iter().filter(differs).collect();
    let mut findings = Vec::new();
    if !different.is_empty() {
        findings.push(
            error("k3s-options", format!("servers have different values of {}", few(&different)))
                .hint("k3s requires the same values on all servers; repair it before the adoption"),
        );
    }
    let own = |options: &Options| ["node-label", "node-taint"].iter().any(|name| options.has(name));
    if members.iter().filter_map(|member| member.options.as_ref()).any(own) {
        findings.push(
            note("labels", "labels and taints that hosts were started with are theirs alone")
                .hint("give them to new hosts with kubectl"),
        );
    }
    findings
}

fn certificates(reading: &Reading) -> Vec<Finding> {
    let mut findings = Vec::new();
    for host in reading.control_planes() {
        let finding = match days(reading.observation.at_ms, host) {
            Some(left) if left < 0 => error("certificates", "certificates have expired"),
            Some(left) if left < SOON => {
                warning("certificates", format!("the first certificate expires in {left} days"))
            }
            _ => continue,
        };
        findings
            .push(finding.on(host).hint("k3s renews them when it starts: `systemctl restart k3s`"));
    }
    findings
}

/// Returns the URL at which hosts join, if it is not simply a server's own.
pub(super) fn endpoint(reading: &Reading) -> Option<String> {
    let members = members(reading);
    let own: BTreeSet<&str> =
        reading.observation.hosts.iter().map(|host| host.address.as_str()).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for member in &members {
        let Some(url) = member.options.as_ref().and_then(|options| options.get("server")) else {
            continue;
        };
        let host = url.trim_start_matches("https://").trim_end_matches('/');
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        if !own.contains(host.trim_matches(['[', ']'])) {
            *counts.entry(url).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count)?;
    Some(most.0.trim_end_matches('/').to_owned())
}

/// Returns the document with the options that new hosts get.
pub(super) fn document(reading: &Reading) -> Option<Value> {
    let members = members(reading);
    let first = members.iter().find(|member| member.found.role == "server")?;
    let options = first.options.as_ref()?;
    let mut map = options.shared();
    // An address that is the host's own.
    if options.get("bind-address").is_some_and(|own| own == first.host.address) {
        map.remove("bind-address");
    }
    if first.found.data_directory != DATA_DIRECTORY {
        map.insert("data-dir".to_owned(), json!(first.found.data_directory));
    }
    // New servers must have a token for agents exactly if the others do.
    if options.has("agent-token") || options.has("agent-token-file") {
        map.insert("agent-token-file".to_owned(), json!(AGENT_TOKEN));
    }
    if let Some(url) = endpoint(reading) {
        map.insert("server".to_owned(), json!(url));
    }
    map.insert("apiVersion".to_owned(), json!("k3s.cattle.io/v1"));
    map.insert("kind".to_owned(), json!("Config"));
    Some(Value::Object(map))
}

/// Returns where servers keep their data, as a Clusterfile's documents have it.
pub(super) fn data_directory(documents: &[Value]) -> String {
    let named = documents.iter().find_map(|document| document["data-dir"].as_str());
    named.unwrap_or(DATA_DIRECTORY).trim_end_matches('/').to_owned()
}

/// Returns the text of a token, without what surrounds it; `None` if it is none.
pub(super) fn token(text: &str) -> Option<&str> {
    let text = text.trim();
    let is_one = !password(text).is_empty() && !text.contains(char::is_whitespace);
    is_one.then_some(text)
}
