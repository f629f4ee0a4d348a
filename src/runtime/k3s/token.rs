//! The two join tokens of a cluster: made once on the controller, put on hosts as files.

use crate::agent::protocol::FileToWrite;
use crate::error::{Error, IoContext, Result};
use crate::fs::atomic::{self, Durability};
use crate::runtime::action::Site;
use crate::runtime::k3s::config::Role;

/// What agents join with, on servers.
pub(super) const AGENT_FILE: &str = "/etc/rancher/k3s/agent-token";
const SERVER_FILE: &str = "/etc/rancher/k3s/token";

/// The file that a host of this role joins with.
pub(super) fn path(role: Role) -> &'static str {
    match role {
        Role::First | Role::Server => SERVER_FILE,
        Role::Agent => AGENT_FILE,
    }
}

/// Writes the tokens that this host needs; a worker gets the agents' alone.
pub(super) fn deliver(site: &Site<'_>, role: Role) -> Result<()> {
    let wanted: &[(&str, &str)] = match role {
        Role::First | Role::Server => &[("token", SERVER_FILE), ("agent-token", AGENT_FILE)],
        Role::Agent => &[("agent-token", AGENT_FILE)],
    };
    for (name, path) in wanted {
        site.agent.write_file(&FileToWrite {
            path: (*path).to_owned(),
            mode: 0o600,
            content: kept(site, name)?.into_bytes(),
        })?;
    }
    Ok(())
}

/// The token in the cluster's state, made when there is none.
fn kept(site: &Site<'_>, name: &str) -> Result<String> {
    let directory = site.state().join("etc");
    let path = directory.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(Error::io(format!("cannot read {}", path.display()), error)),
    }
    let mut bytes = [0_u8; 24];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::failed("the system gives no random numbers"))?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::create_dir_all(&directory).path("create", &directory)?;
    atomic::write(&path, token.as_bytes(), 0o600, Durability::Durable)?;
    Ok(token)
}
