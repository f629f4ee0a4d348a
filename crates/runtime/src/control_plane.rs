//! The API server of one control plane, reached through its host's agent.

use std::sync::Arc;

use imgctl_base::error::Result;
use imgctl_host::agent::Agent;
use imgctl_kube::api::Api;
use imgctl_kube::client::{self, ControlPlane, KUBECONFIGS, Stream};

struct ThroughAgent(Arc<dyn Agent>);

impl ControlPlane for ThroughAgent {
    fn host(&self) -> &str {
        self.0.host()
    }

    fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        self.0.read_file(path, limit)
    }

    fn tunnel(&self, address: &str, port: u16) -> Result<Stream> {
        Ok(Box::new(self.0.tunnel(address, port)?))
    }
}

/// Returns a client for the API server on the control plane of `agent`, bypassing any load balancer. Does
/// not connect to the API server yet.
pub fn connect(agent: Arc<dyn Agent>) -> Result<Arc<dyn Api>> {
    client::connect(Arc::new(ThroughAgent(agent)), &KUBECONFIGS)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use serde_json::json;

    use super::*;
    use imgctl_host::agent::remote::testing::{self, Host, runtime};
    use imgctl_kube::testing::stand_in::{StandIn, serve::serve};

    /// Not a test: the agent that the test starts.
    #[test]
    #[ignore = "it is the agent that the test here starts"]
    fn child() {
        testing::serve();
    }

    #[test]
    fn an_agent_leads_to_its_own_api_server_over_one_connection_whatever_the_load_balancer() {
        let api = StandIn::new();
        let served = serve(&api);
        let runtime = runtime();
        let host = Host::new(&runtime);
        let path = served.path("lb.kubeconfig").display().to_string();
        let kubeconfigs = ["/nowhere/admin.conf", &path];
        let through = Arc::new(ThroughAgent(Arc::new(host.remote)));
        let client = client::connect(through, &kubeconfigs).unwrap();
        assert_eq!(client.raw("/readyz").unwrap(), b"ok");
        std::thread::scope(|scope| {
            for number in 0..32 {
                let client = &client;
                scope.spawn(move || {
                    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                        "metadata": {"name": format!("many{number}"), "namespace": "default"}});
                    client.create("/api/v1/namespaces/default/configmaps", &config_map).unwrap();
                });
            }
        });
        assert_eq!(client.list("/api/v1/configmaps").unwrap().len(), 32);
        assert_eq!(served.connections.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn files_that_the_host_lacks_are_told_with_its_name() {
        let runtime = runtime();
        let host = Host::new(&runtime);
        let through = Arc::new(ThroughAgent(Arc::new(host.remote)));
        let error = client::connect(through, &["/nowhere/a"]).err().unwrap();
        assert_eq!(error.to_string(), "10.9.9.9: there is no /nowhere/a");
    }
}
