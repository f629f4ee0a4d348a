//! API objects that `kubeadm upgrade` changes: saved before the upgrade, restored on rollback.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Action, Site};
use crate::kubeadm::{place, upgrade::target::Target};
use crate::{kubectl::Kubectl, wait::until_well};
use imgctl_base::error::{Error, IoContext, Result};

const PATIENCE: Duration = Duration::from_secs(180);

/// Kind and name, in kube-system.
const OBJECTS: [(&str, &str); 6] = [
    ("configmap", "kubeadm-config"),
    ("configmap", "kubelet-config"),
    ("configmap", "kube-proxy"),
    ("configmap", "coredns"),
    ("daemonset", "kube-proxy"),
    ("deployment", "coredns"),
];

fn file(target: &Target, kind: &str, name: &str) -> String {
    format!("{}/cluster/{kind}-{name}.json", target.backup)
}

fn names() -> String {
    let names: Vec<String> = OBJECTS.iter().map(|(kind, name)| format!("{kind}/{name}")).collect();
    names.join(", ")
}

pub(super) fn keep(target: &Target) -> Action {
    let says = format!("back up to {}/cluster: {}", target.backup, names());
    let target = target.clone();
    Action::new("backup-objects", says, move |site| {
        let proof = file(&target, "configmap", "kubeadm-config");
        let touched = site.agent.read_file(&target.touched(), 1 << 10)?.is_some();
        if touched && place::read(site.agent, &proof)?.is_some() {
            return Ok(());
        }
        let kubectl = Kubectl::anywhere(site)?;
        let mut kept = 0;
        // Write the proof last: without it, the backup does not exist.
        for (kind, name) in OBJECTS.iter().rev() {
            if let Some(object) = kubectl.find(&[kind, name, "-n", "kube-system"])? {
                let text = bare(object).to_string();
                place::write(site.agent, &file(&target, kind, name), 0o600, &text)?;
                kept += 1;
            }
        }
        if place::read(site.agent, &proof)?.is_none() {
            return Err(Error::not_found(
                "the cluster has no ConfigMap kube-system/kubeadm-config",
            )
            .hint("check that this is a kubeadm cluster: kubeadm cannot upgrade any other"));
        }
        site.say(&format!("{kept} objects are backed up"));
        Ok(())
    })
}

pub(super) fn put_back(target: &Target) -> Action {
    let says = format!("kubectl replace: {}", names());
    let target = target.clone();
    Action::new("restore-objects", says, move |site| {
        let mut then = Vec::new();
        for (kind, name) in OBJECTS {
            if let Some(text) = place::read(site.agent, &file(&target, kind, name))? {
                then.push((kind, name, parse(&text, kind, name)?));
            }
        }
        // etcd has just restarted as well, so the API can become unavailable once more.
        until_well(site, PATIENCE, "continue with `imgctl upgrade resume`", &|| {
            let kubectl = Kubectl::here(site)?;
            for (kind, name, then) in &then {
                replace(site, &kubectl, then, kind, name)?;
            }
            Ok(None)
        })
    })
    .within(PATIENCE + Duration::from_secs(20))
}

fn parse(text: &str, kind: &str, name: &str) -> Result<Value> {
    serde_json::from_str(text).doing(|| format!("the backup of {kind}/{name} is damaged"))
}

fn replace(
    site: &Site<'_>,
    kubectl: &Kubectl<'_>,
    then: &Value,
    kind: &str,
    name: &str,
) -> Result<()> {
    let now = kubectl.find(&[kind, name, "-n", "kube-system"])?;
    match now {
        Some(now) if content(&now) == content(then) => Ok(()),
        Some(_) => {
            kubectl.replace(then)?;
            site.say(&format!("{kind}/{name} is as it was"));
            Ok(())
        }
        None => kubectl.apply(then),
    }
}

/// Returns the object without the fields that the server sets.
fn bare(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in [
            "resourceVersion",
            "uid",
            "creationTimestamp",
            "managedFields",
            "selfLink",
            "generation",
        ] {
            metadata.remove(field);
        }
    }
    object
}

/// Returns the parts that decide whether two objects are equal.
fn content(object: &Value) -> (Value, Value) {
    (object["data"].clone(), object["spec"].clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_server_makes_is_left_out() {
        let object = json!({
            "metadata": {"name": "coredns", "uid": "1", "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": {"replicas": 2},
            "status": {"replicas": 2},
        });
        assert_eq!(
            bare(object),
            json!({"metadata": {"name": "coredns", "labels": {"a": "b"}}, "spec": {"replicas": 2}})
        );
    }
}
