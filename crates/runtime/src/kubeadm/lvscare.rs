//! LVScare on workers: the API's virtual address as an IPVS service, maintained by a static Pod,
//! as in sealos. For images whose label `image` names it.

use serde_json::json;

use crate::action::{Action, Line};
use crate::load_balancer::API_PORT;
use imgctl_base::address::join_port;
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_template::yaml;

const NAME: &str = "kube-sealos-lvscare";
pub(super) const MANIFEST: &str = "/etc/kubernetes/manifests/kube-sealos-lvscare.yaml";
/// Name of the host itself in its hosts file, which LVScare and scripts look up.
pub(super) const NODE_NAME: &str = "lvscare.node.ip";

/// Returns `address:port` of the virtual service and of each control plane.
fn service(context: &ClusterContext) -> Result<(String, Vec<String>)> {
    let vip = context.vip.as_deref().ok_or_else(|| {
        Error::usage("the rootfs image has LVScare but no virtual address for it")
            .hint("set the label vip, for example vip=10.103.97.2")
    })?;
    let servers = context.control_planes().map(|host| join_port(host.ip(), API_PORT)).collect();
    Ok((join_port(vip, API_PORT), servers))
}

/// Returns the manifest. Unlike sealos', it checks `/readyz`: `/healthz` still succeeds on a server
/// that is shutting down.
fn manifest(vip: &str, servers: &[String], node: &str, image: &str) -> Result<String> {
    let mut arguments = vec![
        "care".to_owned(),
        "--vs".to_owned(),
        vip.to_owned(),
        "--health-path".to_owned(),
        "/readyz".to_owned(),
        "--health-schem".to_owned(),
        "https".to_owned(),
    ];
    for server in servers {
        arguments.extend(["--rs".to_owned(), server.clone()]);
    }
    let mut text = yaml::write(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "creationTimestamp": null,
            "name": NAME,
            "namespace": "kube-system",
        },
        "spec": {
            "containers": [{
                "args": arguments,
                "command": ["/usr/bin/lvscare"],
                "env": [{ "name": "LVSCARE_NODE_IP", "value": node }],
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "name": NAME,
                "resources": {},
                "securityContext": { "privileged": true },
                "volumeMounts": [{
                    "mountPath": "/lib/modules",
                    "name": "lib-modules",
                    "readOnly": true,
                }],
            }],
            "hostNetwork": true,
            "priorityClassName": "system-node-critical",
            "volumes": [{
                "hostPath": { "path": "/lib/modules", "type": "" },
                "name": "lib-modules",
            }],
        },
        "status": {},
    }))?;
    text.push('\n');
    Ok(text)
}

/// Installs the static Pod; the kubelet restarts it when the control planes change.
pub(super) fn pod(context: &ClusterContext, host: &Host, image: &str) -> Result<Action> {
    let (vip, servers) = service(context)?;
    let content = manifest(&vip, &servers, host.ip(), image)?;
    Ok(Action::file("lvscare", MANIFEST.to_owned(), 0o644, content))
}

/// Sets up the virtual address before the kubelet, and with it the static Pod, can start. Uses the
/// helper in sealos' images or the host's own ipvsadm.
pub(super) fn bridge(context: &ClusterContext) -> Result<Action> {
    let (vip, servers) = service(context)?;
    let address = context.vip.as_deref().unwrap_or_default();
    let all: String = servers.iter().map(|server| format!(" --rs {server}")).collect();
    let shown = format!(
        "sealctl ipvs --vs {vip}{all} --health-path /readyz --health-schem https --run-once"
    );
    let prefix = if address.contains(':') { 128 } else { 32 };
    let line = Line::script(&[include_str!("scripts/virtual-address.sh")]).with([
        ("IMGCTL_HELPER", &helper(context)),
        ("IMGCTL_SERVICE", &vip),
        ("IMGCTL_ADDRESS", &format!("{address}/{prefix}")),
        ("IMGCTL_SERVERS", &servers.join(" ")),
    ]);
    Ok(Action::command("virtual-address", line).saying(shown))
}

/// Path of the helper in sealos' images.
fn helper(context: &ClusterContext) -> String {
    format!("{}/opt/sealctl", context.paths.rootfs())
}

/// Returns the line that removes the virtual address from a host, and what kube-proxy and network plugins
/// leave.
pub(super) fn removal(context: &ClusterContext) -> Line {
    let service = context.vip.as_ref().map(|vip| join_port(vip, API_PORT)).unwrap_or_default();
    Line::script(&[include_str!("scripts/reset-network.sh")])
        .with([("IMGCTL_SERVICE", &service), ("IMGCTL_HELPER", &helper(context))])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST_TEXT: &str = "\
apiVersion: v1
kind: Pod
metadata:
  creationTimestamp: null
  name: kube-sealos-lvscare
  namespace: kube-system
spec:
  containers:
  - args:
    - care
    - --vs
    - 10.10.10.10:6443
    - --health-path
    - /readyz
    - --health-schem
    - https
    - --rs
    - 116.31.96.134:6443
    - --rs
    - 116.31.96.135:6443
    - --rs
    - 116.31.96.136:6443
    command:
    - /usr/bin/lvscare
    env:
    - name: LVSCARE_NODE_IP
      value: \"10.0.0.21\"
    image: fanux/lvscare:latest
    imagePullPolicy: IfNotPresent
    name: kube-sealos-lvscare
    resources: {}
    securityContext:
      privileged: true
    volumeMounts:
    - mountPath: /lib/modules
      name: lib-modules
      readOnly: true
  hostNetwork: true
  priorityClassName: system-node-critical
  volumes:
  - hostPath:
      path: /lib/modules
      type: \"\"
    name: lib-modules
status: {}
";

    #[test]
    fn the_manifest_is_that_of_sealos_but_for_readyz() {
        let servers =
            ["116.31.96.134:6443", "116.31.96.135:6443", "116.31.96.136:6443"].map(str::to_owned);
        let text =
            manifest("10.10.10.10:6443", &servers, "10.0.0.21", "fanux/lvscare:latest").unwrap();
        assert_eq!(text, MANIFEST_TEXT);
    }
}
