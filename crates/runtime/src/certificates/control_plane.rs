//! Certificates and kubeconfigs of one control plane, by Kubernetes version.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::certificates::authority::{Authority, Leaf, Signed, Use};
use crate::certificates::pki::Pki;
use imgctl_base::address::join_port;
use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

/// Group of administrators since 1.29; earlier versions use `system:masters`.
const ADMINISTRATORS: &str = "kubeadm:cluster-admins";
const MASTERS: &str = "system:masters";

/// What the certificates of one control plane depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Minor version of Kubernetes 1.x.
    pub minor: u32,
    pub(crate) node_name: String,
    pub address: String,
    pub(crate) api_port: u16,
    /// Host and port that clients use: `apiserver.cluster.local:6443`.
    pub(crate) endpoint: String,
    pub(crate) dns_domain: String,
    /// First address of each service subnet.
    pub(crate) service_addresses: Vec<String>,
    /// `apiServer.certSANs`.
    pub(crate) api_names: Vec<String>,
    /// `etcd.local.serverCertSANs` and `peerCertSANs`; `None`: etcd runs elsewhere.
    pub etcd: Option<(Vec<String>, Vec<String>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signer {
    Cluster,
    Etcd,
    FrontProxy,
}

impl Signer {
    pub(crate) fn of(self, pki: &Pki) -> &Authority {
        match self {
            Self::Cluster => &pki.ca,
            Self::Etcd => &pki.etcd_ca,
            Self::FrontProxy => &pki.front_proxy_ca,
        }
    }
}

/// Client identity of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// File name, such as `admin.conf`.
    pub file: &'static str,
    pub user: String,
    pub(crate) leaf: Leaf,
    pub server: String,
}

impl Member {
    /// Returns the certificates with files below `/etc/kubernetes/pki`: `(file without extension,
    /// signer, leaf)`.
    pub(crate) fn certificates(&self) -> Vec<(&'static str, Signer, Leaf)> {
        let old = (self.minor < 29).then_some(MASTERS);
        let node = self.node_name.as_str();
        let mut all = vec![
            (
                "apiserver",
                Signer::Cluster,
                Leaf::server("kube-apiserver", Use::Server, &self.names_of_api()),
            ),
            (
                "apiserver-kubelet-client",
                Signer::Cluster,
                Leaf::client("kube-apiserver-kubelet-client", Some(old.unwrap_or(ADMINISTRATORS))),
            ),
            ("front-proxy-client", Signer::FrontProxy, Leaf::client("front-proxy-client", None)),
        ];
        if let Some((server, peer)) = &self.etcd {
            let local = [node, "localhost", &self.address, "127.0.0.1", "::1"];
            let with = |more: &[String]| -> Vec<String> {
                let local = local.iter().map(|name| (*name).to_owned());
                local.chain(more.iter().cloned()).collect()
            };
            all.extend([
                (
                    "apiserver-etcd-client",
                    Signer::Etcd,
                    Leaf::client("kube-apiserver-etcd-client", old),
                ),
                ("etcd/server", Signer::Etcd, Leaf::server(node, Use::Both, &with(server))),
                ("etcd/peer", Signer::Etcd, Leaf::server(node, Use::Both, &with(peer))),
                (
                    "etcd/healthcheck-client",
                    Signer::Etcd,
                    Leaf::client("kube-etcd-healthcheck-client", old),
                ),
            ]);
        }
        all
    }

    fn names_of_api(&self) -> Vec<String> {
        let mut names = vec![
            self.node_name.clone(),
            "kubernetes".to_owned(),
            "kubernetes.default".to_owned(),
            "kubernetes.default.svc".to_owned(),
            format!("kubernetes.default.svc.{}", self.dns_domain),
        ];
        names.extend(self.service_addresses.iter().cloned());
        names.push(self.address.clone());
        let endpoint = self.endpoint.rsplit_once(':').map(|(host, _)| host);
        names.extend(endpoint.map(|host| host.trim_matches(['[', ']']).to_owned()));
        names.extend(self.api_names.iter().cloned());
        names
    }

    /// Returns the kubeconfigs below `/etc/kubernetes`. The kubelet's is created only on the
    /// control plane that bootstraps the cluster: all other hosts get theirs from the API.
    pub(crate) fn identities(&self, first: bool) -> Vec<Identity> {
        let shared = format!("https://{}", self.endpoint);
        let own = format!("https://{}", join_port(&self.address, self.api_port));
        let administrators = if self.minor < 29 { MASTERS } else { ADMINISTRATORS };
        let identity = |file, user: &str, name: &str, group, server: &str| Identity {
            file,
            user: user.to_owned(),
            leaf: Leaf::client(name, group),
            server: server.to_owned(),
        };
        let plain =
            |file, user: &str, group, server: &str| identity(file, user, user, group, server);
        let mut all = vec![
            plain("admin.conf", "kubernetes-admin", Some(administrators), &shared),
            plain("controller-manager.conf", "system:kube-controller-manager", None, &own),
            plain("scheduler.conf", "system:kube-scheduler", None, &own),
        ];
        if first {
            let node = format!("system:node:{}", self.node_name);
            all.push(plain("kubelet.conf", &node, Some("system:nodes"), &shared));
            if self.minor >= 29 {
                all.push(plain(
                    "super-admin.conf",
                    "kubernetes-super-admin",
                    Some(MASTERS),
                    &shared,
                ));
            }
        }
        all
    }
}

const CLUSTER: &str = "kubernetes";

/// Returns the kubeconfig for `user` at `server`.
pub fn write_kubeconfig(
    authority: &str,
    server: &str,
    user: &str,
    signed: &Signed,
) -> Result<String> {
    render(&Entries {
        cluster: CLUSTER,
        server,
        authority,
        context: &format!("{user}@{CLUSTER}"),
        user,
        login: Login::Certificate(&signed.certificate, signed.key.pem.expose()),
    })
}

/// With what a user of a kubeconfig logs in.
pub(super) enum Login<'a> {
    /// The certificate and its key, in PEM.
    Certificate(&'a str, &'a str),
    Token(&'a str),
}

/// What a kubeconfig consists of; the authority is PEM.
pub(super) struct Entries<'a> {
    pub(super) cluster: &'a str,
    pub(super) server: &'a str,
    pub(super) authority: &'a str,
    pub(super) context: &'a str,
    pub(super) user: &'a str,
    pub(super) login: Login<'a>,
}

/// Returns the kubeconfig as kubeadm writes it.
pub(super) fn render(entries: &Entries<'_>) -> Result<String> {
    let Entries { cluster, server, context, user, .. } = entries;
    let encoded = |pem: &str| STANDARD.encode(pem);
    let login = match entries.login {
        Login::Certificate(certificate, key) => json!({
            "client-certificate-data": encoded(certificate),
            "client-key-data": encoded(key),
        }),
        Login::Token(token) => json!({ "token": token }),
    };
    let mut text = yaml::write(&json!({
        "apiVersion": "v1",
        "clusters": [{
            "cluster": {
                "certificate-authority-data": encoded(entries.authority),
                "server": server,
            },
            "name": cluster,
        }],
        "contexts": [{
            "context": { "cluster": cluster, "user": user },
            "name": context,
        }],
        "current-context": context,
        "kind": "Config",
        "preferences": {},
        "users": [{ "name": user, "user": login }],
    }))?;
    text.push('\n');
    Ok(text)
}

/// Fields of a kubeconfig's current context.
pub struct Kubeconfig {
    pub server: String,
    pub authority: String,
    /// `None` if the certificate is in a separate file, as for the kubelet.
    pub certificate: Option<String>,
}

/// Reads the fields; fails if the text is not a kubeconfig.
pub fn read_kubeconfig(text: &str) -> Result<Kubeconfig> {
    let wrong = || Error::bad_content("the kubeconfig cannot be read");
    let value = yaml::parse(text).map_err(|error| wrong().caused_by(error))?;
    let current = value["current-context"].as_str().unwrap_or_default();
    let context = &named(&value, "contexts", current)?["context"];
    let cluster = context["cluster"].as_str().unwrap_or_default();
    let cluster = &named(&value, "clusters", cluster)?["cluster"];
    let user = context["user"].as_str().unwrap_or_default();
    let user = &named(&value, "users", user)?["user"];
    let decoded = |value: &Value| -> Option<String> {
        let bytes = STANDARD.decode(value.as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    Ok(Kubeconfig {
        server: cluster["server"].as_str().unwrap_or_default().to_owned(),
        authority: decoded(&cluster["certificate-authority-data"]).unwrap_or_default(),
        certificate: decoded(&user["client-certificate-data"]),
    })
}

pub(super) fn named<'a>(value: &'a Value, list: &str, name: &str) -> Result<&'a Value> {
    value[list]
        .as_array()
        .and_then(|entries| entries.iter().find(|entry| entry["name"] == name))
        .ok_or_else(|| Error::bad_content(format!("the kubeconfig has no `{name}` in {list}")))
}
