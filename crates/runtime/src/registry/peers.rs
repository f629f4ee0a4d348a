//! The service by which hosts share images: `imgctl agent peers` as a systemd unit on each host, named first in
//! `hosts.toml`. Whatever it cannot provide, containerd gets from a registry host.

use std::path::PathBuf;

use crate::action::{Line, Site};
use crate::registry::hosts_toml::Login;
use crate::registry::lines;
use crate::registry::peer_access::{port, token};
use crate::{Action, units};
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::quote;
use imgctl_host::agent::Agent;
use imgctl_host::agent::peers::Settings;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_host::containerd::SOCKET;
use imgctl_model::context::{ClusterContext, Host, RegistryAccess};

/// Directory of containerd's content below its root.
const CONTENT: &str = "io.containerd.content.v1.content";

/// Returns containerd's directory on a host whose containerd reads `hosts.toml`.
pub(crate) type ContentRoot = fn(&dyn Agent, &RegistryAccess) -> Result<Option<String>>;

fn unit(context: &ClusterContext) -> String {
    format!("imgctl-peers-{}.service", context.name)
}

fn directory(context: &ClusterContext) -> String {
    format!("{}/peers", context.paths.root())
}

/// Returns the action that starts the service on `host`, with the login that containerd uses.
pub(crate) fn start(
    name: &str,
    context: &ClusterContext,
    access: &RegistryAccess,
    host: &Host,
    login: Option<&Login>,
    root: ContentRoot,
) -> Action {
    let (unit, directory, port) = (unit(context), directory(context), port(context));
    let says = format!("start {unit}: images from other hosts, on port {port}");
    let settings = Settings {
        cluster: context.name.clone(),
        domain: access.domain.clone(),
        address: host.ip().to_owned(),
        port,
        // Filled in on execution: a plan with a list for each host would be too large in a large cluster.
        peers: Vec::new(),
        token: token(context, login.map(|login| &login.password))
            .map(|token| token.expose().to_owned()),
        socket: PathBuf::from(SOCKET),
        content: PathBuf::new(),
    };
    // Not the token: a digest of the inputs is in the journal.
    let user = login.map(|login| login.user.as_str()).unwrap_or_default();
    let inputs = format!("{user} {}", context.hosts.len());
    let access = access.clone();
    Action::depending_on(name, says, &inputs, move |site| {
        let Some(root) = root(site.agent, &access)? else {
            site.say("no containerd that reads hosts.toml: this host gets its images from registry hosts");
            return Ok(());
        };
        let content = PathBuf::from(format!("{root}/{CONTENT}"));
        let peers = site.context.hosts.iter().map(|other| other.ip().to_owned()).collect();
        write(site, &directory, &unit, &Settings { content, peers, ..settings.clone() })
    })
}

fn write(site: &Site<'_>, directory: &str, unit: &str, settings: &Settings) -> Result<()> {
    let program = format!("{directory}/imgctl");
    site.run(&Line::repeatable(format!("mkdir -p -m 0700 {0}; chmod 0700 {0}", quote(directory))))?;
    let path = format!("{directory}/settings.json");
    let content = serde_json::to_vec_pretty(settings)
        .map_err(|error| Error::failed("cannot write the settings").caused_by(error))?;
    let file = |path: String, mode: u32, content: Vec<u8>| {
        site.agent.write_file(&FileToWrite { path, mode, content })
    };
    let text = unit_text(&settings.cluster, &program, &path).into_bytes();
    let mut changed = file(path, 0o600, content)?;
    changed |= file(format!("/etc/systemd/system/{unit}"), 0o644, text)?;
    site.run(&lines::start(unit, &program, changed)).map(drop)
}

/// Returns the unit. It reads containerd's content and one file, and writes nothing.
fn unit_text(cluster: &str, program: &str, settings: &str) -> String {
    format!(
        "# Written by imgctl.\n[Unit]\nDescription=Images from other hosts of cluster {cluster}\n\
         Documentation=https://github.com/team/imgctl/blob/main/docs/cluster-registry.md\n\
         Wants=network-online.target\nAfter=network-online.target containerd.service\n\n[Service]\n\
         ExecStart=\"{program}\" agent peers \"{settings}\"\nRestart=always\nRestartSec=2\nUMask=0077\n\
         LimitNOFILE=65536\nMemoryMax=1G\nNoNewPrivileges=yes\nProtectSystem=full\nPrivateTmp=yes\n\
         CapabilityBoundingSet=\n\n[Install]\nWantedBy=multi-user.target\n"
    )
}

/// Returns the action that removes the service from a host, if it is there.
pub fn stop(context: &ClusterContext) -> Action {
    let (unit, directory) = (unit(context), directory(context));
    Action::command("registry-peers-clean", units::removal(&[&unit], &[&directory]))
        .saying(format!("remove {unit}, if it is there"))
}

/// Returns the line that succeeds if the service answers on the host.
pub fn answers(context: &ClusterContext, access: &RegistryAccess) -> Line {
    let token = token(context, access.needs_login().then_some(&access.password));
    let token = token.as_ref().map_or("", |token| token.expose());
    let line = Line::script(&[include_str!("scripts/peers-answer.sh")])
        .with([(lines::PORT, &port(context).to_string()), ("IMGCTL_TOKEN", token)]);
    Line { quiet: true, ..line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_has_no_secret_and_runs_this_hosts_settings() {
        let text = unit_text("c", "/d/imgctl", "/d/settings.json");
        assert!(
            text.contains("ExecStart=\"/d/imgctl\" agent peers \"/d/settings.json\"\n"),
            "{text}"
        );
    }
}
