//! The embedded registry's password, read from the hosts when this controller does not know it: on
//! a controller that replaces a lost one.

use crate::session::Session;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::secret::Secret;
use imgctl_cluster::cluster::{context::ClusterContext, registry_access};
use imgctl_host::agent::Agent;

/// Maximum size of a file to read, in bytes.
const LARGEST: u64 = 64 << 10;

/// Answer of a host about the registry's password.
enum Told {
    Password(Secret),
    /// The host has the registry's users but not their password.
    Hidden,
    /// The host has no registry that requires a password.
    Unused,
}

/// Returns the password with which the hosts of `context` use its registry; `None` if none of them
/// has a registry that requires one. Fails if they have one and no host knows its password, or if a
/// host that may have it does not answer: a new password would lock out the existing hosts.
pub(crate) fn of_hosts(context: &ClusterContext, session: &Session<'_>) -> Result<Option<Secret>> {
    let agents = session.hosts()?;
    let (masters, others): (Vec<_>, Vec<_>) =
        context.hosts.iter().partition(|host| host.is_control_plane());
    let mut problems = Vec::new();
    for host in masters.into_iter().chain(others) {
        let told = agents.agent(host).and_then(|agent| of_host(context, &*agent));
        match told {
            Ok(Told::Password(password)) => return Ok(Some(password)),
            Ok(Told::Hidden) => {
                problems.push(format!("{}: no file on it contains the password", host.id()));
            }
            Ok(Told::Unused) => {}
            Err(error) => problems.push(format!("{}: {error}", host.id())),
        }
    }
    if problems.is_empty() {
        return Ok(None);
    }
    let what = format!(
        "the registry password of cluster {} is not known on this machine, and no host provides \
         it:\n  {}",
        context.name,
        problems.join("\n  ")
    );
    Err(Error::new(Kind::CheckFailed, what).hint(
        "pass the cluster's own password as --env registryPassword=PASSWORD or as a variable of \
         the Clusterfile: hosts have it in the configuration of their container runtime, and a \
         new one would lock them out",
    ))
}

/// Returns what one host knows: the password that its tree was rendered with, otherwise the one in
/// its copy of the controller's state.
fn of_host(context: &ClusterContext, agent: &dyn Agent) -> Result<Told> {
    let rootfs = context.paths.rootfs();
    let rendered = format!("{rootfs}/{}", registry_access::FILE);
    if let Some(text) = agent.read_file(&rendered, LARGEST)?
        && let Some(password) = registry_access::password_of(&String::from_utf8_lossy(&text))?
    {
        return Ok(Told::Password(password));
    }
    let copy = format!("{}/state/{}", context.paths.root(), registry_access::KEPT_PASSWORD);
    let text = agent.read_file(&copy, LARGEST)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    if !text.is_empty() {
        return Ok(Told::Password(Secret::new(text)));
    }
    let users = format!("{rootfs}/{}", registry_access::HTPASSWD);
    Ok(match agent.read_file(&users, LARGEST)? {
        Some(_) => Told::Hidden,
        None => Told::Unused,
    })
}
