//! Host properties that a configuration depends on: container runtime, cgroups, clock.

use std::net::IpAddr;

use crate::action::{Line, Site};
use crate::kubeadm::defaults;
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};

/// Observed state of one host or, in a plan, its expected state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostState {
    /// Path with `unix://`.
    pub(crate) cri_socket: String,
    /// `systemd` or `cgroupfs`.
    pub(crate) cgroup_driver: String,
    /// Whether there is an `/etc/localtime`.
    pub(crate) local_time: bool,
    pub(crate) audit_policy: bool,
    /// Whether the kernel has IPVS.
    pub(crate) ipvs: bool,
    /// The host's addresses, for a host that is known by a name.
    pub addresses: Vec<String>,
}

/// Sockets in sealos' order.
const SOCKETS: [&str; 3] =
    ["/var/run/cri-dockerd.sock", "/run/containerd/containerd.sock", "/var/run/crio/crio.sock"];
const ENDPOINT: &str = "SEALOS_SYS_CRI_ENDPOINT";

impl HostState {
    /// Returns the state to assume in a plan, from the image's variables.
    pub(super) fn expected(context: &ClusterContext, host: &Host) -> Self {
        let socket = variable(context, host, ENDPOINT).unwrap_or(SOCKETS[1]);
        Self {
            cri_socket: unix(socket),
            cgroup_driver: "systemd".to_owned(),
            local_time: true,
            audit_policy: true,
            ipvs: true,
            addresses: Vec::new(),
        }
    }

    pub(super) fn observe(site: &Site<'_>) -> Result<Self> {
        let line = Line::script(&[include_str!("scripts/look.sh")]).with([
            ("IMGCTL_SOCKETS", &SOCKETS.join(" ")),
            ("IMGCTL_POLICY", defaults::AUDIT_POLICY),
        ]);
        let line = Line { quiet: true, ..line };
        let answer = site.run_on(site.agent, &line, "-look")?;
        let named = variable(site.context, site.host, ENDPOINT);
        let mut state = read(&answer, named).map_err(|error| {
            error.context(format!("{}: cannot determine its container runtime", site.agent.host()))
        })?;
        if site.host.ip().parse::<IpAddr>().is_err() {
            state.addresses = site.agent.facts()?.addresses;
        }
        Ok(state)
    }

    pub(super) fn address(&self, host: &Host) -> String {
        if host.ip().parse::<IpAddr>().is_ok() {
            return host.ip().to_owned();
        }
        let global = self
            .addresses
            .iter()
            .find(|address| address.parse::<IpAddr>().is_ok_and(|address| !address.is_loopback()));
        global.map_or_else(|| host.ip().to_owned(), Clone::clone)
    }
}

/// Parses the response. `named` is the socket that the image names; it takes precedence over what
/// was found.
fn read(answer: &str, named: Option<&str>) -> Result<HostState> {
    let mut sockets = Vec::new();
    let (mut local_time, mut audit_policy, mut ipvs) = (false, false, false);
    let (mut containerd, mut docker) = ("systemd", "systemd");
    for line in answer.lines() {
        match line.trim() {
            "localtime" => local_time = true,
            "audit" => audit_policy = true,
            "ipvs" => ipvs = true,
            "containerd-cgroupfs" => containerd = "cgroupfs",
            "docker-cgroupfs" => docker = "cgroupfs",
            line => sockets.extend(line.strip_prefix("socket ")),
        }
    }
    let socket = match (named, sockets.as_slice()) {
        (Some(named), _) => named,
        (None, [only]) => only,
        (None, []) => {
            return Err(Error::not_found(format!("none of {} exists", SOCKETS.join(", ")))
                .hint("the rootfs image's init script starts the container runtime; did it?"));
        }
        (None, several) => {
            return Err(Error::failed(format!("several exist: {}", several.join(", ")))
                .hint(format!("choose one with --env {ENDPOINT}=<socket>")));
        }
    };
    let driver = if socket.contains("docker") {
        docker
    } else if socket.contains("crio") {
        "systemd"
    } else {
        containerd
    };
    Ok(HostState {
        cri_socket: unix(socket),
        cgroup_driver: driver.to_owned(),
        local_time,
        audit_policy,
        ipvs,
        addresses: Vec::new(),
    })
}

/// Returns the variable as scripts of the rootfs image see it on `host`.
pub(super) fn variable<'a>(
    context: &'a ClusterContext,
    host: &'a Host,
    name: &str,
) -> Option<&'a str> {
    let image = context.rootfs().map(|image| &image.environment);
    [Some(&context.flag_environment), Some(&host.environment), Some(&context.environment), image]
        .into_iter()
        .flatten()
        .find_map(|variables| variables.get(name))
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}

/// Returns the path with its `unix://` scheme.
pub(super) fn unix(path: &str) -> String {
    if path.contains("://") { path.to_owned() } else { format!("unix://{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_recognised() {
        let state =
            read("socket /run/containerd/containerd.sock\nlocaltime\ncontainerd-cgroupfs\n", None)
                .unwrap();
        assert_eq!(state.cri_socket, "unix:///run/containerd/containerd.sock");
        assert_eq!(state.cgroup_driver, "cgroupfs");
        assert!(state.local_time && !state.audit_policy && !state.ipvs);

        let both = "socket /var/run/cri-dockerd.sock\nsocket /run/containerd/containerd.sock\ndocker-systemd\nipvs\n";
        assert!(read(both, None).unwrap_err().to_string().contains("several"));
        let state = read(both, Some("/var/run/cri-dockerd.sock")).unwrap();
        assert_eq!(state.cri_socket, "unix:///var/run/cri-dockerd.sock");
        assert_eq!(state.cgroup_driver, "systemd");
        assert!(state.ipvs);
        assert!(read("", None).is_err());
    }
}
