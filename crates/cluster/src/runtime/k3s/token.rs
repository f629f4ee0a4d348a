//! The two join tokens of a cluster: generated once on the controller, written to hosts as files.

use crate::runtime::action::Site;
use crate::runtime::k3s::config::{AGENT_TOKEN, Role, SERVER_TOKEN};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_host::agent::protocol::FileToWrite;

/// Writes the tokens that this host needs; a worker gets only the agent token.
pub(super) fn deliver(site: &Site<'_>, role: Role) -> Result<()> {
    let wanted: &[(&str, &str)] = match role {
        Role::First | Role::Server => &[("token", SERVER_TOKEN), ("agent-token", AGENT_TOKEN)],
        Role::Agent => &[("agent-token", AGENT_TOKEN)],
    };
    for (name, path) in wanted {
        site.agent.write_file(&FileToWrite {
            path: (*path).to_owned(),
            mode: 0o600,
            content: kept(site, name, role)?.into_bytes(),
        })?;
    }
    Ok(())
}

/// Returns the token from the cluster's state. If it is missing because another controller created
/// the cluster, reads it from a server. Generates it for the first server.
fn kept(site: &Site<'_>, name: &str, role: Role) -> Result<String> {
    let directory = site.state().join("etc");
    let path = directory.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(Error::io(format!("cannot read {}", path.display()), error)),
    }
    let token = match role {
        Role::First => draw()?,
        Role::Server | Role::Agent => of_servers(site, name)?,
    };
    std::fs::create_dir_all(&directory).path("create", &directory)?;
    atomic::write(&path, token.as_bytes(), 0o600, Durability::Durable)?;
    Ok(token)
}

fn draw() -> Result<String> {
    let mut bytes = [0_u8; 24];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::failed("cannot read random numbers from the system"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn of_servers(site: &Site<'_>, name: &str) -> Result<String> {
    let file = match name {
        "token" => SERVER_TOKEN,
        _ => AGENT_TOKEN,
    };
    let servers = site.context.control_planes();
    for server in servers.filter(|server| server.address != site.host.address) {
        let told = site.pool.agent(server).and_then(|agent| agent.read_file(file, 4 << 10));
        if let Ok(Some(text)) = told {
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            if !text.is_empty() {
                return Ok(text);
            }
        }
    }
    Err(Error::not_found(format!(
        "no server of cluster {} returns the token for joining ({file})",
        site.context.name
    ))
    .hint(format!("put it into {}/etc/{name}", site.state().display())))
}
