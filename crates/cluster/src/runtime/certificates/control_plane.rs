//! Certificates and kubeconfigs of one control plane, by Kubernetes version.

use crate::runtime::certificates::authority::Authority;
use crate::runtime::certificates::leaf::{Leaf, Use};
use crate::runtime::certificates::pki::Pki;

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

/// Authority that signs a certificate.
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
        let own = if self.address.contains(':') {
            format!("https://[{}]:{}", self.address, self.api_port)
        } else {
            format!("https://{}:{}", self.address, self.api_port)
        };
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
