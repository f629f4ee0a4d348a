//! Shell code that finds out how k3s is set up on a host. Must not know what is done with it.

/// Shell code that sets `unit` to the service of k3s: the installer of get.k3s.io names that of agents
/// otherwise than imgctl's images do.
pub(super) const UNIT: &str = r#"unit=k3s
if [ -e /etc/systemd/system/k3s-agent.service ] && [ ! -e /etc/systemd/system/k3s.service ]; then unit=k3s-agent; fi
"#;

/// Shell code that sets `data` to the k3s data directory on this host.
pub(super) const DATA: &str = r#"data=$(sed -nE 's/^"?data-dir"?: *"?([^"]*)"?$/\1/p' /etc/rancher/k3s/config.yaml 2>/dev/null | head -n 1)
data=${data:-/var/lib/rancher/k3s}
"#;
