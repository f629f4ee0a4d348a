//! The member of etcd on a control plane that moves: the other members are well first, one of them
//! leads, and all learn the new address before the member restarts there.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Action, Site};
use crate::kubeadm::etcd;
use crate::wait::{until_well, waiting};
use imgctl_base::address::join_port;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_host::agent::Agent;
use imgctl_model::context::{ClusterContext, Host};

const PATIENCE: Duration = Duration::from_secs(60);
/// Until a container has restarted on a slow host.
const MOVE: Duration = Duration::from_secs(300);
const CRASHED: &str = "on the host: `crictl ps -a`, `crictl logs` of etcd, `journalctl -u kubelet`; \
then run the same command again";
const LIMIT: Duration = Duration::from_secs(120);
const HINT: &str = "repair etcd first: `etcdctl endpoint health --cluster` and `crictl logs` of etcd \
on each control plane; then run the same command again";

/// Returns the actions before the member's manifest changes.
pub(super) fn before(context: &ClusterContext, host: &Host, old: &str) -> Vec<Action> {
    let mut actions = Vec::new();
    let members = context.control_planes().count();
    if members > 1 {
        let others = "all other members of etcd are healthy; another one leads";
        let check = Action::new("etcd-others", others, move |site| {
            if members > 2 {
                until_well(site, PATIENCE, HINT, &|| others_complaint(site))?;
            } else {
                site.say("etcd has two members: the API does not answer while one restarts");
            }
            hand_over(site)
        });
        actions.push(check.within(LIMIT));
    }
    let says =
        format!("etcdctl member update <the member at {old}> --peer-urls={}", peer(host.ip()));
    let old = old.to_owned();
    let announce = Action::new("etcd-member", says, move |site| {
        match announce(site, &old)? {
            Announced::Yes => Ok(()),
            // It can be done when this member serves again.
            Announced::NoQuorum(why) => {
                site.say(&format!("no member can take the new address yet: {why}"));
                Ok(())
            }
        }
    });
    actions.push(announce.within(LIMIT));
    actions
}

/// Returns the action that waits until the member serves at its new address.
pub(super) fn after(host: &Host, old: &str) -> Action {
    let says =
        format!("wait until the member of etcd serves at {} and is announced there", host.ip());
    let (old, address) = (old.to_owned(), host.ip().to_owned());
    waiting("etcd-moved", says, MOVE, CRASHED, move |site| {
        // Also for the member that could not be announced before.
        if let Announced::NoQuorum(why) = announce(site, &old)? {
            return Ok(Some(why));
        }
        ask(site, site.agent, "endpoint health", "own-health")?;
        let list = list(site, site.agent, "own-list")?;
        let member = find(&list, &peer(&address));
        let client = format!("https://{}", join_port(&address, 2379));
        let serves = member.is_some_and(|member| names(&member["clientURLs"], &client));
        Ok((!serves).then(|| format!("the member of etcd does not serve {client} yet")))
    })
}

fn peer(address: &str) -> String {
    format!("https://{}", join_port(address, 2380))
}

fn ask(site: &Site<'_>, agent: &dyn Agent, arguments: &str, suffix: &str) -> Result<String> {
    let folders = [format!("{}/bin", site.context.paths.rootfs())];
    etcd::etcdctl(site, agent, &folders, arguments, suffix)?.ok_or_else(|| {
        Error::not_found(format!(
            "{}: cannot query etcd: neither etcdctl nor crictl is installed",
            agent.host()
        ))
        .hint("put etcdctl into bin/ of the rootfs image")
    })
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text.trim()).doing(|| "etcdctl did not return JSON".to_owned())
}

fn list(site: &Site<'_>, agent: &dyn Agent, suffix: &str) -> Result<Value> {
    json(&ask(site, agent, "member list -w json", suffix)?)
}

/// Returns why this member must not stop: another one does not take part in a quorum.
fn others_complaint(site: &Site<'_>) -> Result<Option<String>> {
    for host in others(site) {
        let agent = site.pool.agent(host)?;
        if let Err(error) = ask(site, &*agent, "endpoint health", "others-health") {
            return Ok(Some(format!(
                "the member of etcd on {} is not healthy: {error}",
                host.id()
            )));
        }
    }
    Ok(None)
}

fn others<'a>(site: &Site<'a>) -> impl Iterator<Item = &'a Host> {
    let own = site.host.address.clone();
    site.context.control_planes().filter(move |host| host.address != own)
}

/// Lets another member lead. Does nothing for a member that does not lead or does not answer.
fn hand_over(site: &Site<'_>) -> Result<()> {
    let Ok(text) = ask(site, site.agent, "endpoint status -w json", "status") else {
        return Ok(());
    };
    let status = json(&text)?;
    let status = &status[0]["Status"];
    let own = status["header"]["member_id"].as_u64();
    if own.is_none() || status["leader"].as_u64() != own {
        return Ok(());
    }
    let list = list(site, site.agent, "leaders")?;
    let voting = |member: &&Value| member["isLearner"] != true;
    let members = list["members"].as_array().into_iter().flatten().filter(voting);
    let Some(other) = members.filter_map(|one| one["ID"].as_u64()).find(|id| Some(*id) != own)
    else {
        return Ok(());
    };
    ask(site, site.agent, &format!("move-leader {other:x}"), "move")?;
    site.say(&format!("member {other:x} now leads etcd"));
    Ok(())
}

enum Announced {
    Yes,
    /// No member answered, for this reason.
    NoQuorum(String),
}

/// Makes sure that the cluster knows the member by its new address: through another member, or
/// through the member itself.
fn announce(site: &Site<'_>, old: &str) -> Result<Announced> {
    let new = peer(site.host.ip());
    let mut problems = Vec::new();
    for host in others(site).chain([site.host]) {
        let told = site.pool.agent(host).and_then(|agent| {
            let list = list(site, &*agent, "members")?;
            if find(&list, &new).is_some() {
                return Ok(None);
            }
            let member = find(&list, &peer(old)).and_then(|member| member["ID"].as_u64());
            let Some(id) = member else {
                return Ok(Some(format!("etcd has no member at {}", peer(old))));
            };
            ask(site, &*agent, &format!("member update {id:x} --peer-urls={new}"), "update")?;
            site.say(&format!("member {id:x} of etcd is announced at {new}"));
            Ok(None)
        });
        match told {
            Ok(None) => return Ok(Announced::Yes),
            Ok(Some(foreign)) => {
                return Err(Error::check_failed(format!("{}: {foreign}", host.id())).hint(
                    "compare `etcdctl member list` with the addresses of the control planes",
                ));
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
    Ok(Announced::NoQuorum(problems.join("; ")))
}

/// Returns the member with this peer URL.
fn find<'a>(list: &'a Value, url: &str) -> Option<&'a Value> {
    let members = list["members"].as_array()?;
    members.iter().find(|member| names(&member["peerURLs"], url))
}

fn names(urls: &Value, url: &str) -> bool {
    urls.as_array().is_some_and(|urls| urls.iter().any(|own| own == url))
}
