//! The members of the cluster's etcd, queried on a control plane that responds.

use serde_json::Value;

use crate::action::{Line, Site};
use crate::kubectl::Kubectl;
use imgctl_base::address::join_port;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_host::agent::Agent;

/// Exit code of the shell line if the host has no tool to query etcd with.
const NO_TOOL: i32 = 96;

/// Reports whether the host at `address` is a member; `None` if that cannot be determined.
pub(super) fn has_member(
    site: &Site<'_>,
    kubectl: &Kubectl<'_>,
    address: &str,
) -> Result<Option<bool>> {
    Ok(members(site, kubectl)?.map(|members| find(&members, address).is_some()))
}

/// Removes the member at `address`, if it is one; returns `None` if that cannot be determined.
pub(super) fn remove_member(
    site: &Site<'_>,
    kubectl: &Kubectl<'_>,
    address: &str,
) -> Result<Option<()>> {
    let Some(list) = members(site, kubectl)? else {
        return Ok(None);
    };
    let Some(id) = find(&list, address) else {
        return Ok(Some(()));
    };
    let agent = kubectl.agent();
    etcdctl(site, agent, &[], &format!("member remove {id:x}"), "remove")?;
    match members(site, kubectl)? {
        Some(list) if find(&list, address).is_some() => {
            Err(Error::failed(format!("{address} is still a member of etcd after it was removed"))
                .hint("`etcdctl member list` on a control plane shows all members"))
        }
        _ => Ok(Some(())),
    }
}

fn members(site: &Site<'_>, kubectl: &Kubectl<'_>) -> Result<Option<Value>> {
    let Some(text) = etcdctl(site, kubectl.agent(), &[], "member list -w json", "members")? else {
        return Ok(None);
    };
    let list = serde_json::from_str(&text).doing(|| "etcdctl did not return JSON".to_owned())?;
    Ok(Some(list))
}

/// Returns the ID of the member with a peer address at `address`.
fn find(list: &Value, address: &str) -> Option<u64> {
    let peer = format!("https://{}", join_port(address, 2380));
    let members = list["members"].as_array()?;
    let member = members.iter().find(|member| {
        let urls = member["peerURLs"].as_array();
        urls.is_some_and(|urls| urls.iter().any(|url| *url == peer.as_str()))
    })?;
    member["ID"].as_u64()
}

/// Runs the host's own etcdctl, also looked up in `folders`, or the one in the running etcd
/// container. Returns `None` if the host has neither etcdctl nor crictl.
pub(super) fn etcdctl(
    site: &Site<'_>,
    agent: &dyn Agent,
    folders: &[String],
    arguments: &str,
    suffix: &str,
) -> Result<Option<String>> {
    let line = Line::script(&[include_str!("scripts/etcdctl.sh")])
        .with([("IMGCTL_FOLDERS", &folders.join(":")), ("IMGCTL_ARGUMENTS", arguments)]);
    let suffix = format!("-etcd-{suffix}");
    let line = Line { quiet: true, ..line };
    let (outcome, tail, stdout) = site.try_on(agent, &line, &suffix)?;
    match outcome.code {
        Some(0) => Ok(Some(stdout)),
        Some(NO_TOOL) => Ok(None),
        _ => Err(Error::failed(format!("{}: `etcdctl {arguments}` failed:", agent.host()))
            .lines(tail.iter().map(|line| format!("    {line}")))
            .hint(format!("the whole output is in {} on {}", outcome.log, agent.host()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_by_their_peer_address() {
        let list = serde_json::json!({"members": [
            {"ID": 18_249_187_646_912_138_824_u64, "name": "cp-2", "peerURLs": ["https://10.0.0.12:2380"]},
            {"ID": 7, "peerURLs": ["https://[fd00::1]:2380"]},
        ]});
        assert_eq!(find(&list, "10.0.0.12"), Some(18_249_187_646_912_138_824));
        assert_eq!(find(&list, "fd00::1"), Some(7));
        assert_eq!(find(&list, "10.0.0.1"), None);
    }
}
