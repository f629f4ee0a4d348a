//! Queries the members of the control planes' etcd through one that responds.

use serde_json::Value;

use crate::upgrade::observation::{EtcdSeen, MemberSeen, Observation};
use crate::upgrade::observe::{Question, host};
use imgctl_base::error::{Error, Result};

/// Prints three JSON documents and the alarms, each after a line that names it. With an unreachable
/// member, `endpoint status` fails although it reports the others.
const LINE: &str = r#"
flags="--endpoints https://127.0.0.1:2379 --cacert /etc/kubernetes/pki/etcd/ca.crt --cert /etc/kubernetes/pki/etcd/server.crt --key /etc/kubernetes/pki/etcd/server.key"
container=$(crictl ps --name '^etcd$' --state Running --quiet 2>/dev/null | head -n 1 || true)
ask() {
  if [ -n "$container" ]; then crictl exec "$container" etcdctl $flags "$@"
  else ETCDCTL_API=3 etcdctl $flags "$@"; fi
}
echo '#members'; ask member list -w json
echo '#status'; ask endpoint status --cluster -w json || true
echo '#alarms'; ask alarm list
"#;

pub(super) fn ask(question: &Question<'_>, observation: &Observation) -> Result<EtcdSeen> {
    let mut last = Error::failed("no control plane can be reached");
    for seen in &observation.hosts {
        if !seen.is_control_plane() || seen.unreachable.is_some() {
            continue;
        }
        let known = |host: &&crate::cluster::host::Host| host.id() == seen.id;
        let Some(host) = question.context.hosts.iter().find(known) else {
            continue;
        };
        let asked = question
            .pool
            .agent(host)
            .and_then(|agent| host::output(question, &*agent, "etcd", LINE));
        match asked.and_then(|text| understand(&text)) {
            Ok(seen) => return Ok(seen),
            Err(error) => last = error,
        }
    }
    Err(last)
}

pub(super) fn understand(text: &str) -> Result<EtcdSeen> {
    let part = |name: &str| {
        let after = text.split(&format!("#{name}\n")).nth(1).unwrap_or_default();
        after.split("\n#").next().unwrap_or_default().trim().to_owned()
    };
    let json = |name: &str| -> Option<Value> { serde_json::from_str(&part(name)).ok() };
    let list = json("members").and_then(|list| list.get("members")?.as_array().cloned());
    let Some(list) = list else {
        return Err(Error::bad_content("etcdctl listed no members"));
    };
    let statuses = json("status").and_then(|all| all.as_array().cloned());
    let statuses = statuses.unwrap_or_default();
    let members = list.iter().map(|member| {
        let id = member["ID"].as_u64();
        let status = statuses
            .iter()
            .map(|one| &one["Status"])
            .find(|status| id.is_some() && status["header"]["member_id"].as_u64() == id);
        let url = member["clientURLs"].get(0).and_then(Value::as_str);
        MemberSeen {
            name: member["name"].as_str().unwrap_or_default().to_owned(),
            endpoint: url.unwrap_or_default().to_owned(),
            learner: member["isLearner"].as_bool().unwrap_or(false),
            leader: id.is_some() && status.is_some_and(|it| it["leader"].as_u64() == id),
            version: status.and_then(|status| status["version"].as_str()).map(str::to_owned),
            db_bytes: status.and_then(|it| it["dbSize"].as_u64()).unwrap_or(0),
        }
    });
    Ok(EtcdSeen {
        members: members.collect(),
        alarms: part("alarms")
            .lines()
            .filter_map(|line| Some(line.rsplit_once("alarm:")?.1.trim().to_owned()))
            .collect(),
    })
}
