//! etcd members: healthy before a control plane is changed, and the same members afterwards.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::action::{Action, Site};
use crate::kubeadm::{etcd::etcdctl, place, upgrade::target::Target};
use crate::wait::until_well;
use imgctl_base::error::{Error, IoContext, Result};

const PATIENCE: Duration = Duration::from_secs(90);
/// Maximum number of entries that a healthy member can be behind.
const LAG: u64 = 1000;
const HINT: &str = "on the control plane: `etcdctl endpoint status --cluster -w table`, \
`etcdctl alarm list`, `crictl logs` of the etcd container; then `imgctl upgrade resume`";

/// State of etcd as reported by its members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    voting: BTreeSet<u64>,
    learners: usize,
    /// Endpoints that responded, with their status.
    answers: Vec<Answer>,
    alarms: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    member: u64,
    leader: u64,
    index: u64,
    errors: Vec<String>,
}

pub(super) fn before(target: &Target) -> Vec<Action> {
    let (known, leader) = (target.clone(), target.clone());
    vec![
        Action::new(
            "etcd-health",
            "all members of etcd are healthy, none is a learner, no alarm is raised",
            move |site| {
                until_well(site, PATIENCE, HINT, &|| Ok(observe(site, &known)?.complaint()))?;
                let members = observe(site, &known)?;
                let text = serde_json::to_string(&members.voting)
                    .doing(|| "cannot write members".to_owned())?;
                // A second attempt can find a member missing that the first one counted.
                if place::read(site.agent, &known.known_members())?.is_none()
                    || site.agent.read_file(&known.touched(), 1 << 10)?.is_none()
                {
                    place::write(site.agent, &known.known_members(), 0o600, &text)?;
                }
                match members.voting.len() {
                    1 => site.say("etcd has one member: the API is unavailable while it restarts"),
                    2 => {
                        site.say("etcd has two members: the API is unavailable while one restarts");
                    }
                    _ => {}
                }
                Ok(())
            },
        )
        .within(PATIENCE * 2),
        Action::new(
            "etcd-leader",
            "etcdctl move-leader <another member>, if this host leads",
            move |site| move_leader(site, &leader),
        )
        .within(PATIENCE),
    ]
}

fn move_leader(site: &Site<'_>, target: &Target) -> Result<()> {
    let own = status(site, target, "endpoint status -w json", "own")?;
    let Some(own) = own.first().filter(|own| own.member == own.leader) else {
        return Ok(());
    };
    let members = observe(site, target)?;
    let Some(other) = members.voting.iter().find(|id| **id != own.member) else {
        return Ok(());
    };
    let line = format!("move-leader {other:x}");
    ask(site, target, &line, "move")?;
    let now = status(site, target, "endpoint status -w json", "own-again")?;
    match now.first() {
        Some(now) if now.leader != own.member && now.leader != 0 => {
            site.say(&format!("member {:x} now leads etcd", now.leader));
            Ok(())
        }
        _ => Err(Error::failed(format!(
            "{}: it still leads etcd after `etcdctl {line}`",
            site.agent.host()
        ))
        .hint(HINT)),
    }
}

/// Checks for gates that the members are unchanged and healthy.
pub(super) fn complaint(site: &Site<'_>, target: &Target) -> Result<Option<String>> {
    let members = observe(site, target)?;
    if let Some(complaint) = members.complaint() {
        return Ok(Some(complaint));
    }
    let known = place::read(site.agent, &target.known_members())?;
    let known = known.and_then(|text| serde_json::from_str::<BTreeSet<u64>>(&text).ok());
    Ok(known.filter(|known| *known != members.voting).map(|known| {
        format!(
            "the members of etcd are {}, but were {} before",
            listed(&members.voting),
            listed(&known)
        )
    }))
}

fn listed(members: &BTreeSet<u64>) -> String {
    let members: Vec<String> = members.iter().map(|id| format!("{id:x}")).collect();
    members.join(", ")
}

fn observe(site: &Site<'_>, target: &Target) -> Result<Members> {
    let list = ask(site, target, "member list -w json", "members")?;
    let alarms = ask(site, target, "alarm list -w json", "alarms")?;
    // An unhealthy member makes this command fail and report which one it is.
    ask(site, target, "endpoint health --cluster", "health")?;
    let answers = status(site, target, "endpoint status --cluster -w json", "status")?;
    read(&list, &alarms, answers)
}

fn status(site: &Site<'_>, target: &Target, line: &str, suffix: &str) -> Result<Vec<Answer>> {
    read_status(&ask(site, target, line, suffix)?)
}

fn ask(site: &Site<'_>, target: &Target, arguments: &str, suffix: &str) -> Result<String> {
    let folders = [format!("{}/bin", target.rootfs), format!("{}/bin", target.tree)];
    etcdctl(site, site.agent, &folders, arguments, suffix)?.ok_or_else(|| {
        Error::not_found(format!(
            "{}: cannot query etcd: neither etcdctl nor crictl is installed",
            site.agent.host()
        ))
        .hint("put etcdctl into bin/ of the rootfs image")
    })
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text.trim()).doing(|| "etcdctl did not return JSON".to_owned())
}

fn read(list: &str, alarms: &str, answers: Vec<Answer>) -> Result<Members> {
    let list = json(list)?;
    let mut members = Members { answers, ..Members::default() };
    for member in list["members"].as_array().into_iter().flatten() {
        if member["isLearner"] == true {
            members.learners += 1;
        } else {
            members.voting.extend(member["ID"].as_u64());
        }
    }
    for alarm in json(alarms)?["alarms"].as_array().into_iter().flatten() {
        let kind = match alarm["alarm"].as_u64() {
            Some(1) => "NOSPACE".to_owned(),
            Some(2) => "CORRUPT".to_owned(),
            _ => alarm["alarm"].to_string(),
        };
        let member = alarm["memberID"].as_u64().unwrap_or(0);
        members.alarms.push(format!("{kind} at member {member:x}"));
    }
    Ok(members)
}

fn read_status(text: &str) -> Result<Vec<Answer>> {
    let list = json(text)?;
    let answers = list.as_array().into_iter().flatten().map(|endpoint| {
        let status = &endpoint["Status"];
        let errors = status["errors"].as_array();
        Answer {
            member: status["header"]["member_id"].as_u64().unwrap_or(0),
            leader: status["leader"].as_u64().unwrap_or(0),
            index: status["raftAppliedIndex"]
                .as_u64()
                .or_else(|| status["raftIndex"].as_u64())
                .unwrap_or(0),
            errors: errors
                .into_iter()
                .flatten()
                .map(|error| error.as_str().unwrap_or("an error").to_owned())
                .collect(),
        }
    });
    Ok(answers.collect())
}

impl Members {
    /// Returns why no member can be taken out of service.
    fn complaint(&self) -> Option<String> {
        if self.voting.is_empty() {
            return Some("etcd has no voting member".to_owned());
        }
        if self.learners > 0 {
            return Some("a member of etcd is still a learner".to_owned());
        }
        if !self.alarms.is_empty() {
            return Some(format!("etcd has alarms: {}", self.alarms.join(", ")));
        }
        let answered: BTreeSet<u64> = self.answers.iter().map(|answer| answer.member).collect();
        if let Some(silent) = self.voting.iter().find(|id| !answered.contains(id)) {
            return Some(format!("member {silent:x} of etcd does not answer"));
        }
        let leaders: BTreeSet<u64> = self.answers.iter().map(|answer| answer.leader).collect();
        if leaders.len() != 1 || leaders.contains(&0) {
            return Some(format!(
                "the members of etcd do not agree on a leader: {}",
                listed(&leaders)
            ));
        }
        for answer in &self.answers {
            if let Some(error) = answer.errors.first() {
                return Some(format!("member {:x} of etcd reports: {error}", answer.member));
            }
        }
        let newest = self.answers.iter().map(|answer| answer.index).max()?;
        let late = self.answers.iter().find(|one| newest - one.index > LAG)?;
        Some(format!("member {:x} of etcd is {} entries behind", late.member, newest - late.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"header":{"cluster_id":1,"member_id":2,"raft_term":3},"members":[
        {"ID":9372538179322589801,"name":"cp-1","peerURLs":["https://10.0.0.11:2380"],"clientURLs":["https://10.0.0.11:2379"]},
        {"ID":10501334649042878790,"name":"cp-2","peerURLs":["https://10.0.0.12:2380"]}]}"#;

    fn status(leader: u64, index: u64) -> String {
        format!(
            r#"[{{"Endpoint":"https://10.0.0.11:2379","Status":{{"header":{{"cluster_id":1,"member_id":9372538179322589801,"revision":7,"raft_term":3}},"version":"3.5.24","dbSize":20480,"leader":{leader},"raftIndex":5000,"raftTerm":3,"raftAppliedIndex":5000,"dbSizeInUse":16384}}}},
            {{"Endpoint":"https://10.0.0.12:2379","Status":{{"header":{{"cluster_id":1,"member_id":10501334649042878790,"revision":7,"raft_term":3}},"version":"3.5.24","dbSize":20480,"leader":{leader},"raftIndex":{index},"raftTerm":3,"raftAppliedIndex":{index},"dbSizeInUse":16384}}}}]"#
        )
    }

    fn of(list: &str, alarms: &str, status: &str) -> Option<String> {
        read(list, alarms, read_status(status).unwrap()).unwrap().complaint()
    }

    #[test]
    fn what_is_wrong_with_etcd_is_said() {
        let none = r#"{"header":{}}"#;
        let leader = 9_372_538_179_322_589_801;
        assert_eq!(of(LIST, none, &status(leader, 5000)), None);
        let late = of(LIST, none, &status(leader, 3000)).unwrap();
        assert!(late.contains("2000 entries behind"), "{late}");
        let leaderless = of(LIST, none, &status(0, 5000)).unwrap();
        assert!(leaderless.contains("agree on a leader"), "{leaderless}");
        let alarm = r#"{"alarms":[{"memberID":9372538179322589801,"alarm":1}]}"#;
        let full = of(LIST, alarm, &status(leader, 5000)).unwrap();
        assert!(full.contains("NOSPACE at member 8211f1d0f64f3269"), "{full}");
        let learner = LIST.replace("\"cp-2\"", "\"cp-2\",\"isLearner\":true");
        let learning = of(&learner, none, &status(leader, 5000)).unwrap();
        assert!(learning.contains("is still a learner"), "{learning}");
        let three = LIST.replace("]}]}", "]},{\"ID\":7}]}");
        let silent = of(&three, none, &status(leader, 5000)).unwrap();
        assert!(silent.contains("member 7 of etcd does not answer"), "{silent}");
    }
}
