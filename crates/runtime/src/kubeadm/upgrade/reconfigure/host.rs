//! The files of one host that settings are in: backup, change, gate and way back.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Action, Line, Site};
use crate::kubeadm::place;
use crate::kubeadm::upgrade::etcd_manifest::MANIFESTS;
use crate::kubeadm::upgrade::gate::CrashLoop;
use crate::kubeadm::upgrade::kubelet::SERVICES;
use crate::kubeadm::upgrade::reconfigure::change::Change;
use crate::kubeadm::upgrade::target::{KEEP_FILES, Target, own_name};
use crate::setting::{Component, Difference};
use crate::setting_files::ON_HOST;
use crate::{kubectl::Kubectl, shell::FILES, wait::until_well_or};
use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

pub(super) const KUBELET: &str = "/var/lib/kubelet/config.yaml";
pub(super) const FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";
const LIMIT: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(300);
const HINT: &str = "on the control plane: `crictl ps -a`, `crictl logs` of the container, \
`journalctl -u kubelet`; then `imgctl upgrade resume`, or `imgctl rollback`";

/// Returns where the new content of a file of the host lies until it is installed.
pub(super) fn new(target: &Target, path: &str) -> String {
    format!("{}/new{path}", target.backup)
}

/// Files that change on the host.
fn files(change: &Change) -> Vec<String> {
    let mut files = Vec::new();
    if !change.kubelet.is_empty() {
        files.push(KUBELET.to_owned());
    }
    if !change.flags.is_empty() {
        files.push(FLAGS.to_owned());
    }
    if change.has(Component::Containerd) {
        files.push(ON_HOST.to_owned());
    }
    files.extend(change.pods().map(|pod| format!("{MANIFESTS}/{}.yaml", pod.name())));
    files
}

/// Keeps the files that will change, with checksums, unless the host has been changed since.
pub(super) fn backup(target: &Target, change: &Change) -> Action {
    let files = files(change).join(" ");
    let script = [KEEP_FILES, include_str!("../scripts/backup-settings.sh")];
    let line = target.script(&script).with([("IMGCTL_FILES", &files)]);
    let says = format!("back up to {}/files: {}", target.backup, shown(&files));
    Action::command("backup", line).within(LIMIT).saying(says)
}

fn shown(files: &str) -> String {
    if files.is_empty() { "no file of this host changes".to_owned() } else { files.to_owned() }
}

/// Puts the new files in place. Stops the kubelet first where its own files change, and starts it
/// again.
pub(super) fn apply(target: &Target, change: &Change) -> Action {
    let list = files(change);
    let says = says("put the new", change, &list);
    Action::command("settings", put(target, change, &list, "no")).within(LIMIT).saying(says)
}

/// Returns the line that puts files in place: if `back` is yes, those of the backup.
fn put(target: &Target, change: &Change, list: &[String], back: &str) -> Line {
    target.script(&[FILES, SERVICES, include_str!("../scripts/put-settings.sh")]).with([
        ("IMGCTL_BACK", back),
        ("IMGCTL_FILES", &list.join(" ")),
        ("IMGCTL_KUBELET", is(change, Component::Kubelet)),
        ("IMGCTL_CONTAINERD", is(change, Component::Containerd)),
    ])
}

fn is(change: &Change, component: Component) -> &'static str {
    if change.has(component) { "yes" } else { "no" }
}

fn says(what: &str, change: &Change, list: &[String]) -> String {
    if list.is_empty() {
        return "nothing of this host changes".to_owned();
    }
    let files = list.join(", ");
    let also =
        if change.has(Component::Containerd) { "; systemctl restart containerd" } else { "" };
    if change.has(Component::Kubelet) {
        format!("systemctl stop kubelet; {what} {files} in place{also}; systemctl start kubelet")
    } else if !also.is_empty() {
        format!("{what} {files} in place{also}")
    } else {
        format!("{what} {files} in place; the kubelet restarts what reads them")
    }
}

/// Restores the files of the backup.
pub(super) fn restore(target: &Target, change: &Change) -> Action {
    let list = files(change);
    let says = says("put the former", change, &list);
    let line = put(target, change, &list, "yes");
    Action::command("restore-settings", line).within(LIMIT).saying(says)
}

/// Waits until the kubelet has restarted the static Pods from their new manifests.
pub(super) fn gate(target: &Target, change: &Change) -> Option<Action> {
    if !target.is_control_plane() || !change.has_pods() {
        return None;
    }
    let pods: Vec<Component> = change.pods().collect();
    let names: Vec<&str> = pods.iter().map(|pod| pod.name()).collect();
    let says = format!("the kubelet runs {} from the manifests in {MANIFESTS}", names.join(", "));
    let action = Action::new("gate-manifests", says, move |site| {
        let crashes = CrashLoop::default();
        let complaint = || {
            for pod in &pods {
                if let Some(complaint) = differs(site, pod.name())? {
                    return Ok(Some(complaint));
                }
            }
            Ok(None)
        };
        until_well_or(site, PATIENCE, HINT, &complaint, &|| crashes.find(site))
    });
    Some(action.within(PATIENCE + Duration::from_secs(20)))
}

/// Compares a manifest with the Pod that the kubelet shows for it.
fn differs(site: &Site<'_>, name: &str) -> Result<Option<String>> {
    let path = format!("{MANIFESTS}/{name}.yaml");
    let Some(text) = place::read(site.agent, &path)? else {
        return Ok(None);
    };
    let wanted = yaml::parse(&text)?;
    let kubectl = Kubectl::here(site)?;
    let pod = format!("{name}-{}", own_name(site, &kubectl)?);
    let Some(found) = kubectl.find(&["pod", &pod, "-n", "kube-system"])? else {
        return Ok(Some(format!("Pod {pod} does not exist")));
    };
    Ok((!is_of(&found, &wanted)).then(|| format!("Pod {pod} is not that of {path} yet")))
}

/// Reports whether a Pod has the flags, variables and volumes of a manifest.
fn is_of(pod: &Value, manifest: &Value) -> bool {
    let container = |object: &Value, field: &str| {
        let value = object["spec"]["containers"][0][field].clone();
        if value.is_array() { value } else { Value::Array(Vec::new()) }
    };
    let paths = |object: &Value| -> Vec<String> {
        let volumes = object["spec"]["volumes"].as_array();
        let mut paths: Vec<String> = volumes
            .into_iter()
            .flatten()
            .map(|one| format!("{} {}", one["name"], one["hostPath"]["path"]))
            .collect();
        paths.sort();
        paths
    };
    container(pod, "command") == container(manifest, "command")
        && container(pod, "env") == container(manifest, "env")
        && paths(pod) == paths(manifest)
}

/// Returns kubeadm's file of flags with other values.
///
/// # Errors
/// If the file is not `KUBELET_KUBEADM_ARGS="…"`, or a value has blanks or quotes.
pub(super) fn flags(text: &str, differences: &[Difference]) -> Result<String> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("KUBELET_KUBEADM_ARGS="));
    let line = line
        .ok_or_else(|| Error::bad_content(format!("{FLAGS} has no line KUBELET_KUBEADM_ARGS=")))?;
    let mut words: Vec<String> =
        line.trim().trim_matches('"').split_whitespace().map(str::to_owned).collect();
    for one in differences {
        let name = format!("--{}", one.path.last().map_or("", String::as_str));
        let is_own = |word: &String| word.split('=').next() == Some(&name);
        let at = words.iter().position(is_own).unwrap_or(words.len());
        words.retain(|word| !is_own(word));
        let values = match &one.new {
            None => Vec::new(),
            Some(Value::Array(values)) => values.clone(),
            Some(value) => vec![value.clone()],
        };
        for (number, value) in values.iter().enumerate() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if value.contains(|c: char| c.is_whitespace() || "\"'\\$`".contains(c)) {
                return Err(Error::usage(format!(
                    "the flag {name} of kubelets cannot have the value `{value}`: it has blanks, \
                     quotes or characters that systemd replaces"
                )));
            }
            words.insert((at + number).min(words.len()), format!("{name}={value}"));
        }
    }
    Ok(format!("KUBELET_KUBEADM_ARGS=\"{}\"\n", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn flags_of_kubelets_are_replaced_in_place() {
        let one = |name: &str, new: Option<Value>| Difference {
            path: ["nodeRegistration", "kubeletExtraArgs", name].map(str::to_owned).to_vec(),
            old: None,
            new,
        };
        let text = "KUBELET_KUBEADM_ARGS=\"--a=1 --v=2 --node-ip=10.0.0.1\"\n";
        let changed =
            flags(text, &[one("v", Some("4".into())), one("a", None), one("z", Some("x".into()))]);
        assert_eq!(changed.unwrap(), "KUBELET_KUBEADM_ARGS=\"--v=4 --node-ip=10.0.0.1 --z=x\"\n");
        assert!(flags(text, &[one("v", Some("a b".into()))]).is_err());
        assert!(flags("", &[]).is_err());
    }

    #[test]
    fn a_pod_is_that_of_its_manifest() {
        let manifest = json!({"spec": {"containers": [{"command": ["a", "--x=1"]}],
            "volumes": [{"name": "v", "hostPath": {"path": "/v", "type": "Directory"}}]}});
        let mut pod = manifest.clone();
        pod["spec"]["containers"][0]["image"] = "i".into();
        pod["spec"]["nodeName"] = "n".into();
        assert!(is_of(&pod, &manifest));
        pod["spec"]["containers"][0]["command"][1] = "--x=2".into();
        assert!(!is_of(&pod, &manifest));
        let mut pod = manifest.clone();
        pod["spec"]["volumes"] = json!([]);
        assert!(!is_of(&pod, &manifest));
    }
}
