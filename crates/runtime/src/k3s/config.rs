//! `/etc/rancher/k3s/config.yaml` of one host.
//!
//! Merges defaults, the image's `etc/k3s.yml`, the Clusterfile's document, and values that only
//! imgctl knows, in that order. Tokens are in separate files, so that this file can be shown.

use serde_json::{Map, Value, json};

use crate::{ImageFiles, action::Site, load_balancer::API_PORT};
use imgctl_base::address::join_port;
use imgctl_base::error::{Context, Error, Result};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::registry_access::random;
use imgctl_template::yaml;

/// Name that hosts use to reach the API.
pub(super) const API_NAME: &str = "apiserver.cluster.local";
/// Where k3s keeps its data unless it is told otherwise.
pub const DATA_DIRECTORY: &str = "/var/lib/rancher/k3s";
/// Token files of a server: the one that servers join with, and the one that agents join with.
pub(super) const SERVER_TOKEN: &str = "/etc/rancher/k3s/token";
pub const AGENT_TOKEN: &str = "/etc/rancher/k3s/agent-token";

/// Role of a host in k3s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The server that bootstraps the cluster.
    First,
    /// An additional server.
    Server,
    /// A worker.
    Agent,
}

impl Role {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::First => "first server",
            Self::Server => "server",
            Self::Agent => "agent",
        }
    }

    /// Returns the file with the token that a host of this role joins with.
    pub(super) fn token_file(self) -> &'static str {
        match self {
            Self::First | Self::Server => SERVER_TOKEN,
            Self::Agent => AGENT_TOKEN,
        }
    }
}

/// Options of `k3s server` that `k3s agent` also accepts (k3s' documentation of the agent's
/// configuration file); an agent fails on any other option.
const AGENT_OPTIONS: [&str; 30] = [
    "bind-address",
    "container-runtime-endpoint",
    "data-dir",
    "debug",
    "default-runtime",
    "disable-default-registry-endpoint",
    "flannel-conf",
    "flannel-cni-conf",
    "flannel-iface",
    "image-credential-provider-bin-dir",
    "image-credential-provider-config",
    "kube-proxy-arg",
    "kubelet-arg",
    "lb-server-port",
    "node-external-dns",
    "node-external-ip",
    "node-internal-dns",
    "node-ip",
    "node-label",
    "node-name",
    "node-taint",
    "nonroot-devices",
    "pause-image",
    "prefer-bundled-bin",
    "private-registry",
    "protect-kernel-defaults",
    "resolv-conf",
    "selinux",
    "snapshotter",
    "with-node-id",
];

/// Returns the options that a Clusterfile can change, as a document: defaults and the image's own
/// options.
pub(super) fn defaults_of(context: &ClusterContext, files: &dyn ImageFiles) -> Result<String> {
    let mut text = yaml::write(&Value::Object(base(context, files)?))?;
    text.push('\n');
    Ok(text)
}

/// Returns the content of the file.
pub(super) fn of(
    context: &ClusterContext,
    host: &Host,
    role: Role,
    files: &dyn ImageFiles,
) -> Result<String> {
    // What others installed has k3s' own defaults, and the options of its servers.
    let mut config = if context.is_adopted() { Map::new() } else { base(context, files)? };
    for document in context.documents.iter().filter(|document| is_k3s(document)) {
        let mut own = object(document.clone())?;
        own.remove("apiVersion");
        own.remove("kind");
        own.remove("metadata");
        // sealos' `kind: Config` documents contain the options under `spec`.
        let own = match own.remove("spec") {
            Some(Value::Object(spec)) if own.is_empty() => spec,
            Some(spec) => {
                own.insert("spec".to_owned(), spec);
                own
            }
            None => own,
        };
        merge(&mut config, own);
    }
    if context.is_adopted() {
        force_adopted(&mut config, context, host, role);
    } else {
        force(&mut config, context, host, role);
    }
    if role == Role::Agent {
        config.retain(|key, _| {
            AGENT_OPTIONS.contains(&key.trim_end_matches('+'))
                || key == "server"
                || key == "token-file"
        });
    }
    let mut text = yaml::write(&Value::Object(config))?;
    text.push('\n');
    Ok(text)
}

/// Returns the defaults merged with the image's options.
fn base(context: &ClusterContext, files: &dyn ImageFiles) -> Result<Map<String, Value>> {
    let mut config = defaults();
    if let Some(image) = context.rootfs()
        && let Some(bytes) = files.read(image, "etc/k3s.yml")?
    {
        let what = || format!("cannot use etc/k3s.yml of image {}", image.name);
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::bad_content(format!("{}: it is not UTF-8", what())))?;
        merge(&mut config, object(yaml::parse(&text).context(what)?).context(what)?);
    }
    Ok(config)
}

/// Reports whether a Clusterfile document contains options of k3s.
fn is_k3s(document: &Value) -> bool {
    let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
    let is_bare = document.get("apiVersion").is_none() && document.get("kind").is_none();
    is_bare || text("apiVersion").contains("k3s") || text("kind").to_lowercase().contains("k3s")
}

/// Returns the values that sealos writes by default. Leaves out IPVS and other
/// options that need a virtual address, because workers have their own load balancer.
fn defaults() -> Map<String, Value> {
    let defaults = json!({
        "bind-address": "0.0.0.0",
        "https-listen-port": 6443,
        "cluster-cidr": "10.42.0.0/16",
        "service-cidr": "10.96.0.0/16",
        "cluster-domain": "cluster.local",
        "disable-cloud-controller": true,
        "disable-helm-controller": true,
        "disable-network-policy": true,
        "flannel-backend": "vxlan",
        "egress-selector-mode": "agent",
        "write-kubeconfig-mode": "0600",
        "disable": ["servicelb", "traefik", "local-storage", "metrics-server"],
        "prefer-bundled-bin": true,
        "data-dir": "/var/lib/rancher/k3s",
        "private-registry": "/etc/rancher/k3s/registries.yaml",
        "node-label": ["sealos.io/distribution=k3s"],
    });
    object(defaults).unwrap_or_default()
}

/// Returns the server URL. A worker uses its local load balancer, which knows all servers.
fn server_url(context: &ClusterContext, role: Role) -> Option<String> {
    match role {
        Role::First => None,
        Role::Server => Some(format!("https://{}", join_port(context.first()?.ip(), API_PORT))),
        Role::Agent => Some(format!("https://{API_NAME}:{API_PORT}")),
    }
}

/// Sets the values that documents cannot change.
fn force(config: &mut Map<String, Value>, context: &ClusterContext, host: &Host, role: Role) {
    if host.ip().parse::<std::net::IpAddr>().is_ok() {
        config.insert("node-ip".to_owned(), json!(host.ip()));
        if role != Role::Agent {
            config.insert("advertise-address".to_owned(), json!(host.ip()));
        }
    }
    config.insert("token-file".to_owned(), json!(role.token_file()));
    if role == Role::First {
        config.insert("cluster-init".to_owned(), json!(true));
    } else {
        config.remove("cluster-init");
    }
    match server_url(context, role) {
        Some(url) => config.insert("server".to_owned(), json!(url)),
        None => config.remove("server"),
    };
    if role == Role::Agent {
        return;
    }
    config.insert("agent-token-file".to_owned(), json!(AGENT_TOKEN));
    let mut names = vec!["127.0.0.1".to_owned(), API_NAME.to_owned()];
    names.extend(context.vip.clone());
    names.extend(context.control_planes().map(|host| host.ip().to_owned()));
    if let Some(Value::Array(own)) = config.get("tls-san") {
        names.extend(own.iter().filter_map(Value::as_str).map(str::to_owned));
    }
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    config.insert("tls-san".to_owned(), json!(names));
}

/// Sets what a new host of a cluster needs that another program installed. The cluster keeps its
/// endpoint: agents of k3s learn the addresses of all servers from the first one that answers.
fn force_adopted(
    config: &mut Map<String, Value>,
    context: &ClusterContext,
    host: &Host,
    role: Role,
) {
    // With two families, k3s takes both addresses from the host.
    let families = match config.get("cluster-cidr") {
        Some(Value::Array(all)) => all.len(),
        Some(Value::String(all)) => all.split(',').count(),
        _ => 1,
    };
    if families < 2 && host.ip().parse::<std::net::IpAddr>().is_ok() {
        config.insert("node-ip".to_owned(), json!(host.ip()));
    }
    config.insert("token-file".to_owned(), json!(role.token_file()));
    let port = config.get("https-listen-port").and_then(|port| match port {
        Value::String(text) => text.parse::<u16>().ok(),
        other => other.as_u64().and_then(|port| u16::try_from(port).ok()),
    });
    if let Some(first) = context.first().filter(|_| !config.contains_key("server")) {
        let url = format!("https://{}", join_port(first.ip(), port.unwrap_or(API_PORT)));
        config.insert("server".to_owned(), json!(url));
    }
    config.remove("cluster-init");
}

fn object(value: Value) -> Result<Map<String, Value>> {
    match value {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(Error::usage("a k3s configuration must be a map of options")),
    }
}

/// Merges options; later values win. `key+` appends to a list, as in k3s' own configuration files.
fn merge(config: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (key.strip_suffix('+'), value) {
            (Some(list), Value::Array(more)) => match config.get_mut(list) {
                Some(Value::Array(own)) => own.extend(more),
                _ => {
                    config.insert(list.to_owned(), Value::Array(more));
                }
            },
            (_, value) => {
                config.insert(key, value);
            }
        }
    }
}

/// Writes the tokens that this host needs; a worker gets only the agent token.
pub(super) fn deliver_tokens(site: &Site<'_>, role: Role) -> Result<()> {
    let wanted: &[(&str, &str)] = match role {
        Role::First | Role::Server => &[("token", SERVER_TOKEN), ("agent-token", AGENT_TOKEN)],
        Role::Agent => &[("agent-token", AGENT_TOKEN)],
    };
    for (name, path) in wanted {
        let token = kept(site, name, role)?;
        // A first server, and the token for agents on a server, must be without the digest of the
        // authority (k3s' documentation of `token`).
        let is_short = role == Role::First || (role == Role::Server && *name == "agent-token");
        let token = if is_short { password(&token) } else { &token };
        site.agent.write_file(&FileToWrite {
            path: (*path).to_owned(),
            mode: 0o600,
            content: token.as_bytes().to_vec(),
        })?;
    }
    Ok(())
}

/// Returns the password of a token, which may be `K10<digest>::<user>:<password>`.
pub fn password(token: &str) -> &str {
    match token.strip_prefix("K10").and_then(|rest| rest.split_once("::")) {
        Some((_, credentials)) => credentials.split_once(':').map_or(credentials, |one| one.1),
        None => token,
    }
}

/// Returns the tokens of a server as they are on its disk: that of servers and that of agents.
pub fn tokens_of(agent: &dyn Agent, data_directory: &str) -> Result<[Option<String>; 2]> {
    let read = |own: &str, name: &str| -> Result<Option<String>> {
        for path in [own.to_owned(), format!("{data_directory}/server/{name}")] {
            if let Some(bytes) = agent.read_file(&path, 4 << 10)? {
                let text = String::from_utf8_lossy(&bytes).trim().to_owned();
                if !text.is_empty() {
                    return Ok(Some(text));
                }
            }
        }
        Ok(None)
    };
    Ok([read(SERVER_TOKEN, "token")?, read(AGENT_TOKEN, "agent-token")?])
}

/// Returns the token from the cluster's state. If it is missing because another controller created
/// the cluster, reads it from a server. Generates it for the first server.
fn kept(site: &Site<'_>, name: &str, role: Role) -> Result<String> {
    let file = format!("etc/{name}");
    if let Some(text) = site.state().read(&file, 4 << 10)?.filter(|text| !text.trim().is_empty()) {
        return Ok(text.trim().to_owned());
    }
    let token = match role {
        Role::First => random(b"0123456789abcdef", 48)?,
        Role::Server | Role::Agent => of_servers(site, name)?,
    };
    site.state().write(&file, &token)?;
    Ok(token)
}

fn of_servers(site: &Site<'_>, name: &str) -> Result<String> {
    let servers = site.context.control_planes();
    for server in servers.filter(|server| server.address != site.host.address) {
        let told = site.pool.agent(server).and_then(|agent| tokens_of(&*agent, DATA_DIRECTORY));
        let Ok([of_servers, of_agents]) = told else { continue };
        if let Some(token) = if name == "token" { of_servers } else { of_agents } {
            return Ok(token);
        }
    }
    Err(Error::not_found(format!(
        "no server of cluster {} has the token for joining (/etc/rancher/k3s/{name})",
        site.context.name
    ))
    .hint(format!("put it into {}/etc/{name}", site.state().directory().display())))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use imgctl_base::image::Digest;
    use imgctl_host::host::address::Address;
    use imgctl_model::context::Paths;
    use imgctl_model::image::{ClusterImage, ImageKind};

    pub(in crate::k3s) struct Files(pub(in crate::k3s) &'static str);

    impl ImageFiles for Files {
        fn read(&self, _image: &ClusterImage, path: &str) -> Result<Option<Vec<u8>>> {
            assert_eq!(path, "etc/k3s.yml");
            Ok(Some(self.0.as_bytes().to_vec()))
        }
    }

    fn host(ip: &str, role: &str) -> Host {
        Host {
            address: Address { name: ip.to_owned(), port: 22 },
            roles: vec![role.to_owned()],
            environment: std::collections::BTreeMap::new(),
            login: imgctl_host::host::login::Login::default(),
            local: false,
        }
    }

    pub(in crate::k3s) fn context(documents: &[&str]) -> ClusterContext {
        ClusterContext {
            name: "k".to_owned(),
            hosts: vec![
                host("10.0.0.1", "master"),
                host("10.0.0.2", "master"),
                host("10.0.0.3", "node"),
            ],
            images: vec![ClusterImage {
                name: "k3s:v1".to_owned(),
                mount_name: "k-12345678".to_owned(),
                kind: ImageKind::Rootfs,
                digest: Digest::of(b""),
                labels: std::collections::BTreeMap::new(),
                environment: std::collections::BTreeMap::new(),
                entrypoint: Vec::new(),
                command: Vec::new(),
                layers: Vec::new(),
            }],
            paths: Paths::new("/var/lib/sealos", "k"),
            state: imgctl_model::state_files::StateFiles::plain("/nowhere"),
            registry: None,
            vip: Some("10.103.97.2".to_owned()),
            documents: documents.iter().map(|text| yaml::parse(text).unwrap()).collect(),
            ..imgctl_model::testing::context(&[])
        }
    }

    fn config(documents: &[&str], image: &'static str, host: usize, role: Role) -> Value {
        let context = context(documents);
        let text = of(&context, &context.hosts[host], role, &Files(image)).unwrap();
        yaml::parse(&text).unwrap()
    }

    #[test]
    fn the_image_beats_defaults_the_clusterfile_beats_the_image_and_facts_beat_all() {
        let document = "apiVersion: k3s.io/v1\nkind: Config\ncluster-cidr: 10.9.0.0/16\ndisable+: [metrics-server]\ntls-san: [api.example]\ncluster-init: false";
        let first = config(
            &[document],
            "cluster-cidr: 10.8.0.0/16\ndisable: [traefik]\nsecrets-encryption: true",
            0,
            Role::First,
        );
        assert_eq!(first["cluster-cidr"], "10.9.0.0/16");
        assert_eq!(first["disable"], json!(["traefik", "metrics-server"]));
        assert_eq!(first["secrets-encryption"], true);
        assert_eq!(first["cluster-init"], true);
        assert_eq!(first["node-ip"], "10.0.0.1");
        assert_eq!(
            first["tls-san"],
            json!([
                "127.0.0.1",
                "apiserver.cluster.local",
                "10.103.97.2",
                "10.0.0.1",
                "10.0.0.2",
                "api.example"
            ])
        );
        assert!(first.get("server").is_none() && first.get("kind").is_none());
    }

    #[test]
    fn servers_join_the_first_and_agents_get_only_what_agents_know() {
        let server = config(&[], "", 1, Role::Server);
        assert_eq!(server["server"], "https://10.0.0.1:6443");
        assert!(server.get("cluster-init").is_none());
        let agent =
            config(&[], "flannel-backend: none\nkubelet-arg: [max-pods=50]", 2, Role::Agent);
        assert_eq!(agent["server"], "https://apiserver.cluster.local:6443");
        assert_eq!(agent["token-file"], "/etc/rancher/k3s/agent-token");
        assert_eq!(agent["kubelet-arg"], json!(["max-pods=50"]));
        for option in [
            "flannel-backend",
            "cluster-cidr",
            "tls-san",
            "disable",
            "agent-token-file",
            "cluster-init",
        ] {
            assert!(agent.get(option).is_none(), "{option}");
        }
    }

    #[test]
    fn a_configuration_that_is_no_map_is_refused_with_the_image() {
        let context = context(&[]);
        let error = of(&context, &context.hosts[0], Role::First, &Files("- a\n- b")).unwrap_err();
        assert!(error.chain().join(": ").contains("k3s:v1"), "{error:?}");
    }

    /// Neither imgctl's defaults nor those of the image apply where another program chose.
    #[test]
    fn hosts_of_an_adopted_cluster_get_its_own_options() {
        let document = "apiVersion: k3s.cattle.io/v1\nkind: Config\ndisable: [traefik]\ntls-san: [k.example]\nhttps-listen-port: '7443'";
        let mut context = context(&[document]);
        let adopted = imgctl_model::clusterfile::Adopted {
            runtime: "k3s".into(),
            ..imgctl_model::clusterfile::Adopted::default()
        };
        context.adopted = Some(adopted.image());
        let of = |context: &ClusterContext, host: usize, role| -> Value {
            let files = Files("cluster-cidr: 10.8.0.0/16");
            yaml::parse(&of(context, &context.hosts[host], role, &files).unwrap()).unwrap()
        };
        let server = of(&context, 1, Role::Server);
        assert_eq!(
            server,
            json!({
                "disable": ["traefik"], "tls-san": ["k.example"], "https-listen-port": "7443",
                "node-ip": "10.0.0.2", "token-file": "/etc/rancher/k3s/token",
                "server": "https://10.0.0.1:7443",
            })
        );
        let agent = of(&context, 2, Role::Agent);
        assert_eq!(
            agent,
            json!({
                "node-ip": "10.0.0.3", "token-file": "/etc/rancher/k3s/agent-token",
                "server": "https://10.0.0.1:7443",
            })
        );
        // It keeps its endpoint; hosts of two families find their addresses themselves.
        context.documents = vec![
            yaml::parse("kind: k3s\nserver: https://lb.example:6443\ncluster-cidr: [10.42.0.0/16, 'fd42::/56']")
                .unwrap(),
        ];
        let server = of(&context, 1, Role::Server);
        assert_eq!(server["server"], "https://lb.example:6443");
        assert_eq!(server.get("node-ip"), None);
        // Restored, the first server joins nobody.
        context.adopted = None;
        assert_eq!(of(&context, 0, Role::First).get("server"), None);
    }

    #[test]
    fn passwords_of_tokens() {
        for (token, expected) in [
            ("K10abc::server:pw:x", "pw:x"),
            ("K10abc::pw", "pw"),
            ("plain", "plain"),
            ("K10", "K10"),
            ("", ""),
        ] {
            assert_eq!(password(token), expected, "{token}");
        }
    }
}
