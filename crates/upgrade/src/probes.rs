//! Probe Pods in an upgrade: which image they run, and the step that runs one on a host.

use std::collections::BTreeMap;

use crate::document::{Choices, Document};
use crate::request::{Request, SCRIPT};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::EMBEDDED_IMAGES;
use imgctl_kube::api::Api;
use imgctl_kube::drain;
use imgctl_kube::probe::{Probe, Times, probe};
use imgctl_model::image::ClusterImage;
use imgctl_runtime::Action;
use imgctl_runtime::nodes::{api, say};

/// Label of a rootfs image that names an embedded image with `sh` for probe Pods.
const LABEL: &str = "imgctl.io/probe-image";

/// What probe Pods run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeImage {
    name: String,
    has_shell: bool,
}

/// Returns what probe Pods of an upgrade to an image with this label look-up run; `None` if the
/// operator wants none.
///
/// # Errors
/// If the operator names no image, and neither does the rootfs image.
fn image<'a>(
    choices: &Choices,
    label: impl Fn(&str) -> Option<&'a str>,
) -> Result<Option<ProbeImage>> {
    let Some(wanted) = &choices.probe else { return Ok(None) };
    if !wanted.is_empty() {
        return Ok(Some(ProbeImage { name: wanted.clone(), has_shell: !is_pause(wanted) }));
    }
    if let Some(name) = label(LABEL) {
        return Ok(Some(ProbeImage { name: name.to_owned(), has_shell: !is_pause(name) }));
    }
    let embedded: BTreeMap<String, serde_json::Value> =
        label(EMBEDDED_IMAGES).and_then(|list| serde_json::from_str(list).ok()).unwrap_or_default();
    match embedded.into_keys().rfind(|name| is_pause(name)) {
        Some(name) => Ok(Some(ProbeImage { name, has_shell: false })),
        None => Err(Error::usage(format!(
            "the rootfs image names no image for probe Pods: it has no label {LABEL}, and embeds no \
             pause image"
        ))
        .hint("name one that the hosts can pull: --probe=IMAGE")),
    }
}

/// Whether an image is a pause image, which has no shell: `registry.k8s.io/pause:3.10`,
/// `docker.io/rancher/mirrored-pause:3.6`.
fn is_pause(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or_default();
    let last = last.split(['@', ':']).next().unwrap_or_default();
    last == "pause" || last.ends_with("-pause")
}

/// Returns what the plan says about probe Pods; checks that there can be any.
pub(super) fn notes(document: &Document, request: &Request<'_>) -> Result<Vec<String>> {
    if document.choices.probe.is_some() && document.runtime == SCRIPT {
        return Err(Error::usage("--probe needs Kubernetes: the cluster is one of scripts")
            .hint("let a hook `post-node` of the image check its hosts"));
    }
    let target = request.targets.last();
    let label = |name: &str| target.and_then(|target| target.label(name));
    let Some(ProbeImage { name, has_shell }) = image(&document.choices, label)? else {
        return Ok(Vec::new());
    };
    let what = if has_shell {
        "is scheduled, gets a network, pulls its image, starts, resolves a name and reaches \
                 the API"
    } else {
        "is scheduled, gets a network, pulls its image and starts; whether Pods resolve names and \
             reach the API is not checked, because this image has no shell"
    };
    Ok(vec![format!("--probe: before a Node is opened, a Pod of {name} {what}")])
}

/// Returns the step that runs a probe Pod on `node` before the Node is opened; `None` if the operator
/// wants none. If no other Node can run Pods, the Node is opened first: CoreDNS has no other.
pub(super) fn action(
    node: &str,
    choices: &Choices,
    to: Option<&ClusterImage>,
) -> Result<Option<Action>> {
    let label = |name: &str| to.and_then(|image| image.label(&[name]));
    let Some(ProbeImage { name, has_shell }) = image(choices, label)? else { return Ok(None) };
    let wanted = Probe { node: node.to_owned(), image: name, has_shell };
    let says = format!("run a probe Pod of {} on Node {node}", wanted.image);
    let inputs = format!("{wanted:?}");
    let times = Times::default();
    let action = Action::depending_on("probe", says, &inputs, move |site| {
        let api = api(site.context, site.pool)?;
        if is_alone(&*api, &wanted.node)? && drain::uncordon(&*api, &wanted.node)? {
            say(site, "no other Node can run Pods: this one is opened before the probe");
        }
        let told = |text: &str| say(site, text);
        for unchecked in probe(&*api, &wanted, times, &told)? {
            say(site, &format!("not checked: {unchecked}"));
        }
        Ok(())
    });
    // The probe itself, and the Pods that are deleted before and after it.
    Ok(Some(action.within(times.limit * 3)))
}

/// Returns whether no Node but `node` is Ready and open.
fn is_alone(api: &dyn Api, node: &str) -> Result<bool> {
    let nodes = api.list("/api/v1/nodes").map_err(Error::from)?;
    let is_of_use = |other: &serde_json::Value| {
        let conditions = other["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        other["metadata"]["name"] != node
            && other["spec"]["unschedulable"] != true
            && conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    Ok(!nodes.iter().any(is_of_use))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{kubernetes, request};
    use imgctl_kube::testing::stand_in::StandIn;

    fn chosen(probe: Option<&str>, labels: &[(&str, &str)]) -> Result<Option<ProbeImage>> {
        let choices = Choices { probe: probe.map(str::to_owned), ..Choices::default() };
        image(&choices, |name| labels.iter().find(|(key, _)| *key == name).map(|(_, value)| *value))
    }

    #[test]
    fn a_probe_needs_nothing_but_what_the_image_brings() {
        let embedded = r#"{"registry.k8s.io/etcd:3.6.5-0":"x","registry.k8s.io/pause:3.10":"y"}"#;
        assert_eq!(chosen(None, &[]).unwrap(), None);
        let pause = chosen(Some(""), &[(EMBEDDED_IMAGES, embedded)]).unwrap().unwrap();
        assert_eq!((pause.name.as_str(), pause.has_shell), ("registry.k8s.io/pause:3.10", false));
        let labels = [(EMBEDDED_IMAGES, embedded), (LABEL, "sea.hub:5000/busybox:1.36")];
        let own = chosen(Some(""), &labels).unwrap().unwrap();
        assert_eq!((own.name.as_str(), own.has_shell), ("sea.hub:5000/busybox:1.36", true));
        let named = chosen(Some("rancher/mirrored-pause:3.6"), &labels).unwrap().unwrap();
        assert!(!named.has_shell);
        assert!(chosen(Some("busybox"), &[]).unwrap().unwrap().has_shell);
        let error = chosen(Some(""), &[]).unwrap_err().to_string();
        assert!(error.contains(LABEL), "{error}");
    }

    #[test]
    fn the_plan_says_what_is_not_checked() {
        let mut request = request("v1.34.1", &["v1.34.9"]);
        request.choices.probe = Some(String::new());
        let seen = kubernetes(1, 1, "v1.34.1");
        let error = crate::plan::plan(&seen, &request).unwrap_err().to_string();
        assert!(error.contains("no image for probe Pods"), "{error}");
        request.choices.probe = Some("registry.k8s.io/pause:3.10".into());
        let document = crate::testing::document(&seen, &request);
        let note = document.notes.iter().find(|note| note.starts_with("--probe"));
        assert!(note.unwrap().contains("no shell"), "{note:?}");
        request.runtime = SCRIPT;
        let seen = kubernetes(1, 1, "v1.34.1");
        let error = crate::plan::plan(&seen, &request).unwrap_err().to_string();
        assert!(error.contains("needs Kubernetes"), "{error}");
    }

    #[test]
    fn a_node_is_alone_where_no_other_can_run_pods() {
        let api = StandIn::new();
        let node = |name: &str, ready: &str, closed: bool| {
            json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
                "spec": { "unschedulable": closed },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            })
        };
        api.add(node("a", "True", true));
        assert!(is_alone(&api, "a").unwrap());
        api.add(node("b", "True", true)).add(node("c", "False", false));
        assert!(is_alone(&api, "a").unwrap());
        api.add(node("b", "True", false));
        assert!(!is_alone(&api, "a").unwrap());
        assert!(is_alone(&api, "b").unwrap());
    }
}
