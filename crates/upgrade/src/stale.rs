//! Checks whether a plan still matches the cluster.

use std::collections::BTreeSet;

use crate::{document::Document, observation::Observation};

/// Returns the changes since the plan was made, for a plan that has not begun.
pub fn stale(document: &Document, observation: &Observation) -> Vec<String> {
    let mut changes = Vec::new();
    let uid = observation.api.as_ref().and_then(|api| api.kube_system.as_ref());
    if let (Some(before), Some(now)) = (&document.identity.kube_system, uid)
        && before != now
    {
        changes.push(format!(
            "this is another cluster: its namespace kube-system is {now}, not {before}"
        ));
    }
    hosts(document, observation, &mut changes);
    images(document, observation, &mut changes);
    changes
}

fn hosts(document: &Document, observation: &Observation, changes: &mut Vec<String>) {
    for id in document.hosts.keys() {
        if observation.host(id).is_none() {
            changes.push(format!("host {id} left the cluster"));
        }
    }
    for host in &observation.hosts {
        let id = &host.id;
        let Some(before) = document.hosts.get(id) else {
            changes.push(format!("host {id} joined the cluster"));
            continue;
        };
        if before.roles != host.roles {
            changes.push(format!(
                "host {id} has other roles: {} → {}",
                before.roles.join(","),
                host.roles.join(",")
            ));
        }
        let was_reachable = before.skipped.is_none();
        if was_reachable && let Some(why) = &host.unreachable {
            changes.push(format!("host {id} can no longer be reached: {why}"));
            continue;
        }
        let shown = |word: &Option<String>| word.clone().unwrap_or_else(|| "none".to_owned());
        if observation.api.is_some() && before.node != host.node {
            let (was, is) = (shown(&before.node), shown(&host.node));
            changes.push(format!("host {id} has another Node: {was} → {is}"));
        }
        let version = observation.version_of(host);
        if before.version != version && (version.is_some() || was_reachable) {
            let (was, is) = (shown(&before.version), shown(&version));
            changes.push(format!("host {id} runs another version: {was} → {is}"));
        }
    }
    let Some(api) = &observation.api else { return };
    let mapped: BTreeSet<&str> =
        observation.hosts.iter().filter_map(|host| host.node.as_deref()).collect();
    let noted: BTreeSet<&str> = document
        .findings
        .iter()
        .filter(|finding| finding.check == "unknown-node")
        .filter_map(|finding| finding.what.split_whitespace().nth(1))
        .collect();
    for node in &api.nodes {
        let name = node.name.as_str();
        if !mapped.contains(name) && !noted.contains(name) {
            changes.push(format!("Node {name} joined the cluster"));
        }
    }
    for name in noted {
        if !api.nodes.iter().any(|node| node.name == name) {
            changes.push(format!("Node {name} left the cluster"));
        }
    }
}

fn images(document: &Document, observation: &Observation, changes: &mut Vec<String>) {
    for release in std::iter::once(&document.from).chain(&document.hops) {
        let Some(now) = observation.images.get(&release.image) else {
            continue;
        };
        for (architecture, before) in &release.digests {
            let name = &release.image;
            match now.get(architecture) {
                Some(now) if now == before => {}
                Some(now) => changes.push(format!(
                    "image {name} ({architecture}) is another one: {} → {}",
                    before.short(),
                    now.short()
                )),
                None => changes.push(format!("image {name} ({architecture}) is gone")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{document, kubernetes, request, target};
    use imgctl_base::image::Digest;

    #[test]
    fn each_change_is_told() {
        let mut before = kubernetes(1, 2, "v1.33.4");
        let new = target("v1.34.2");
        before.images.insert(new.name.clone(), new.digests());
        let plan = document(&before, &request("v1.33.4", &["v1.34.2"]));
        assert_eq!(stale(&plan, &before), Vec::<String>::new());

        type Change = fn(&mut Observation);
        let cases: [(Change, &str); 9] = [
            (|now| drop(now.hosts.pop()), "host 10.1.0.2 left"),
            (
                |now| {
                    let mut host = now.hosts[2].clone();
                    host.id = "10.1.0.9".into();
                    now.hosts.push(host);
                },
                "host 10.1.0.9 joined",
            ),
            (
                |now| now.api.as_mut().unwrap().nodes[2].kubelet = "v1.33.5".into(),
                "host 10.1.0.2 runs another version: v1.33.4 → v1.33.5",
            ),
            (|now| now.api.as_mut().unwrap().kube_system = Some("uid-2".into()), "another cluster"),
            (
                |now| {
                    let digest = Digest::of(b"pushed again");
                    let images = now.images.get_mut("kubernetes:v1.34.2").unwrap();
                    images.insert("amd64".into(), digest);
                },
                "image kubernetes:v1.34.2 (amd64) is another one",
            ),
            (
                |now| {
                    drop(now.images.get_mut("kubernetes:v1.34.2").unwrap().remove("arm64"));
                },
                "(arm64) is gone",
            ),
            (
                |now| now.hosts[1].unreachable = Some("no route".into()),
                "host 10.1.0.1 can no longer be reached",
            ),
            (|now| now.hosts[2].node = None, "host 10.1.0.2 has another Node"),
            (
                |now| {
                    let api = now.api.as_mut().unwrap();
                    let mut node = api.nodes[0].clone();
                    node.name = "guest".into();
                    api.nodes.push(node);
                },
                "Node guest joined",
            ),
        ];
        for (change, expected) in cases {
            let mut now = before.clone();
            change(&mut now);
            let told = stale(&plan, &now);
            assert!(told.iter().any(|one| one.contains(expected)), "{expected}: {told:?}");
        }
    }

    #[test]
    fn nodes_that_were_strange_before_are_no_change() {
        let mut before = kubernetes(1, 1, "v1.33.4");
        let api = before.api.as_mut().unwrap();
        let mut node = api.nodes[0].clone();
        node.name = "guest".into();
        api.nodes.push(node);
        let plan = document(&before, &request("v1.33.4", &["v1.34.2"]));
        assert_eq!(stale(&plan, &before), Vec::<String>::new());
        before.api.as_mut().unwrap().nodes.pop();
        assert_eq!(stale(&plan, &before), ["Node guest left the cluster"]);
    }
}
