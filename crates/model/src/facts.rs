//! Facts about a host and its cluster for templates, as structured data next to the variables:
//! `.Host`, `.Cluster`, `.Registry` and `.Arch` (docs/cluster-image.md).

use serde_json::{Map, Value, json};

use crate::context::{ClusterContext, Host};
use crate::environment::architecture;
use imgctl_host::agent::protocol::Facts;

/// Name by which hosts reach the Kubernetes API.
pub(crate) const API_NAME: &str = "apiserver.cluster.local";
/// DNS domain of Services, unless a document names another one.
const DNS_DOMAIN: &str = "cluster.local";

impl ClusterContext {
    /// Returns `.Host`, `.Cluster`, `.Registry` and `.Arch` for templates on `host`.
    pub fn facts_on(&self, host: &Host, known: &Facts) -> Map<String, Value> {
        let architecture = architecture(host, Some(known)).unwrap_or_default();
        let registry: Value = match &self.registry {
            Some(registry) => json!({
                "Domain": registry.domain,
                "Port": registry.port,
                "Username": registry.username,
                "Password": registry.password.expose(),
                "Data": registry.data,
                "Hosts": ips(self.registry_hosts()),
            }),
            None => json!({
                "Domain": "", "Port": 0, "Username": "", "Password": "", "Data": "", "Hosts": [],
            }),
        };
        let facts = json!({
            "Host": {
                "IP": host.ip(),
                "Port": host.address.port,
                "Name": known.hostname,
                "Roles": host.roles,
                "Arch": architecture,
                "IsMaster": host.is_control_plane(),
                "IsFirst": self.first() == Some(host),
                "IsRegistry": self.registry_hosts().contains(&host),
            },
            "Cluster": {
                "Name": self.name,
                "Masters": ips(self.control_planes()),
                "Nodes": ips(self.workers()),
                "Hosts": self.hosts.iter().map(listed).collect::<Vec<_>>(),
                "VIP": self.vip.as_deref().unwrap_or_default(),
                "Domain": self.dns_domain(),
                "API": API_NAME,
            },
            "Registry": registry,
            "Arch": architecture,
        });
        match facts {
            Value::Object(facts) => facts,
            _ => Map::new(),
        }
    }

    /// Returns `networking.dnsDomain` of the kubeadm documents, or `cluster-domain` of the k3s
    /// document.
    fn dns_domain(&self) -> &str {
        self.documents
            .iter()
            .find_map(|document| {
                document
                    .pointer("/networking/dnsDomain")
                    .or_else(|| document.get("cluster-domain"))
                    .and_then(Value::as_str)
                    .filter(|domain| !domain.is_empty())
            })
            .unwrap_or(DNS_DOMAIN)
    }
}

fn ips<'a>(hosts: impl IntoIterator<Item = &'a Host>) -> Vec<&'a str> {
    hosts.into_iter().map(Host::ip).collect()
}

fn listed(host: &Host) -> Value {
    json!({"IP": host.ip(), "Port": host.address.port, "Roles": host.roles})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;

    #[test]
    fn templates_see_host_cluster_and_registry() {
        let mut context = context(&["master", "node,arm64", "node,registry"]);
        context.vip = Some("10.103.97.2".into());
        context.documents = vec![json!({
            "kind": "ClusterConfiguration", "networking": {"dnsDomain": "k8s.example"}})];
        let known = Facts { hostname: "two".into(), ..Facts::default() };
        let facts = Value::Object(context.facts_on(&context.hosts[1], &known));
        for (pointer, expected) in [
            ("/Host/IP", json!("10.0.0.2")),
            ("/Host/Name", json!("two")),
            ("/Host/Roles", json!(["node", "arm64"])),
            ("/Host/Arch", json!("arm64")),
            ("/Host/IsMaster", json!(false)),
            ("/Arch", json!("arm64")),
            ("/Cluster/Masters", json!(["10.0.0.1"])),
            ("/Cluster/Nodes", json!(["10.0.0.2", "10.0.0.3"])),
            ("/Cluster/VIP", json!("10.103.97.2")),
            ("/Cluster/Domain", json!("k8s.example")),
            ("/Cluster/Hosts/2/Port", json!(22)),
            ("/Registry/Port", json!(5000)),
            ("/Registry/Hosts", json!(["10.0.0.3"])),
        ] {
            assert_eq!(facts.pointer(pointer), Some(&expected), "{pointer}");
        }
        context.registry = None;
        let facts = context.facts_on(&context.hosts[0], &known);
        assert_eq!(facts["Registry"]["Domain"], "");
    }
}
