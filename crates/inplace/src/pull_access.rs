//! Determines whether a kubelet may pull an image for a Pod: queries registries with only the
//! credentials that the Pod itself names. Credentials configured on a Node are not visible here.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::plan::{PodPlan, Problem};
use crate::target::{Access, Images};
use crate::{request::Desired, world::World};
use imgctl_base::error::{Error, Result};
use imgctl_base::{image::Reference, secret::Secret};
use imgctl_kube::api::Api;

/// Access by image and names of the Pod's secrets.
pub(crate) type Accesses = BTreeMap<(String, Vec<String>), Access>;

/// Queries access for all selected Pods. Secrets are read only if a registry requires a login.
/// `known`: anonymous access by image, for images that need not be queried again.
pub fn survey(
    api: &dyn Api,
    images: &dyn Images,
    world: &World,
    desired: &Desired,
    mut known: BTreeMap<String, Access>,
) -> Accesses {
    let mut cases: BTreeSet<(String, Vec<String>)> = BTreeSet::new();
    for pod in world.selected.iter().filter_map(|uid| world.pod(uid)) {
        for (name, image) in desired.of(&pod.metadata.uid) {
            let place = pod.spec.container(name);
            if place.is_some_and(|place| place.spec.image != *image) {
                cases.insert((image.clone(), pod.pull_secrets()));
            }
        }
    }
    let mut accesses = Accesses::new();
    for (image, names) in cases {
        let anybody = known.entry(image.clone()).or_insert_with(|| images.access(&image, None));
        let access = match anybody {
            Access::Denied => with_secrets(api, images, &world.namespace, &image, &names),
            access => access.clone(),
        };
        accesses.insert((image, names), access);
    }
    accesses
}

/// Returns problems with registries that require a login that the Pods lack. The pull secrets of an
/// existing Pod are immutable, and a kubelet that may not pull has already killed the container by
/// then.
///
/// `is_there`: images are not pulled in advance, the operator asserts that they are present.
pub fn findings(
    accesses: &Accesses,
    world: &World,
    pods: &[PodPlan],
    is_there: bool,
) -> (Vec<Problem>, BTreeSet<String>) {
    let (mut problems, mut notes) = (Vec::new(), BTreeSet::new());
    let hint = "a running Pod's imagePullSecrets cannot be changed: push the image to the \
                cluster's own registry, or load it on the Nodes and pass --pre-pull none";
    for pod in pods.iter().filter(|pod| pod.is_work()) {
        for one in pod.containers.iter().filter(|one| one.from != one.to) {
            let case = (one.to.clone(), pod.pull_secrets.clone());
            let bare = pod.pull_secrets.is_empty();
            let has = if bare {
                "names no imagePullSecrets".to_owned()
            } else {
                format!("has no matching login in {}", pod.pull_secrets.join(", "))
            };
            let subject = format!("Pod {}", pod.full_name());
            let wants = format!("the registry of {} requires a login", one.to);
            let place = world.pod(&pod.uid);
            let place = place.and_then(|pod| pod.spec.container(&one.name));
            let asks = place.is_some_and(|place| place.spec.image_pull_policy == "Always");
            match accesses.get(&case) {
                Some(Access::Denied) if bare && same_registry(&one.from, &one.to) => {
                    notes.insert(format!(
                        "{wants} and {subject} {has}; its current image comes from the same \
                         registry: its Node seems to have a login"
                    ));
                }
                Some(Access::Denied) if is_there && !asks => {
                    notes.insert(format!(
                        "{wants} and {subject} {has}: the image must already be on its Node"
                    ));
                }
                Some(Access::Denied) => problems.push(Problem {
                    subject,
                    reason: format!("{wants}, and the Pod {has}"),
                    hint: Some(hint.to_owned()),
                }),
                Some(Access::Unknown(why)) if !bare => {
                    notes.insert(format!(
                        "cannot tell whether {subject} may pull {}: {why}",
                        one.to
                    ));
                }
                _ => {}
            }
        }
    }
    (problems, notes)
}

/// Returns whether both images come from the same registry.
fn same_registry(a: &str, b: &str) -> bool {
    let registry = |name: &str| {
        let reference = Reference::parse(name).ok()?;
        Some(reference.registry().unwrap_or("docker.io").to_owned())
    };
    registry(a).is_some_and(|own| registry(b) == Some(own))
}

fn with_secrets(
    api: &dyn Api,
    images: &dyn Images,
    namespace: &str,
    image: &str,
    names: &[String],
) -> Access {
    let mut worst = Access::Denied;
    for name in names {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let access = match api.get(&path) {
            Ok(secret) => match logins(&secret) {
                Ok(logins) => images.access(image, Some(&logins)),
                Err(error) => Access::Unknown(format!("Secret {namespace}/{name}: {error}")),
            },
            // Kubelets ignore missing secrets.
            Err(error) if error.is_not_found() => Access::Denied,
            Err(error) => Access::Unknown(format!("Secret {namespace}/{name}: {error}")),
        };
        match access {
            Access::Open | Access::Granted => return Access::Granted,
            Access::Denied => {}
            Access::Unknown(_) => worst = access,
        }
    }
    worst
}

/// Returns the content of a `config.json` from a pull secret of either type.
fn logins(secret: &Value) -> Result<Secret> {
    let unusable = || Error::bad_content("it contains no registry logins");
    let decoded = |key: &str| {
        let text = secret["data"][key].as_str()?;
        String::from_utf8(STANDARD.decode(text).ok()?).ok()
    };
    if let Some(text) = decoded(".dockerconfigjson") {
        return Ok(Secret::new(text.as_str()));
    }
    let former = decoded(".dockercfg").ok_or_else(unusable)?;
    let former: Value = serde_json::from_str(&former).map_err(|_| unusable())?;
    Ok(Secret::new(json!({"auths": former}).to_string().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;
    use crate::testing::{cluster, desired, request, web};
    use crate::world;
    use imgctl_kube::testing::stand_in::StandIn;

    /// Accepts only the login `yes`.
    struct Closed;

    impl Images for Closed {
        fn target(&self, _: &str) -> Result<Target> {
            Err(Error::not_found("no"))
        }

        fn access(&self, image: &str, logins: Option<&Secret>) -> Access {
            match logins {
                _ if image.starts_with("open.io/") => Access::Open,
                Some(logins) if logins.expose().contains("yes") => Access::Granted,
                _ => Access::Denied,
            }
        }
    }

    fn surveyed(api: &StandIn, image: &str) -> Access {
        let request = request(web(), image);
        let world = world::observe(api, &request.selection).unwrap();
        let all = survey(api, &Closed, &world, &desired(&request), BTreeMap::new());
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_values().next().unwrap()
    }

    fn name_secrets(api: &StandIn, names: &[&str]) {
        for number in 0..2 {
            let path = format!("/api/v1/namespaces/shop/pods/web-{number}");
            api.change(&path, |pod| {
                let names = names.iter().map(|name| json!({"name": name}));
                pod["spec"]["imagePullSecrets"] = names.collect();
            });
        }
    }

    #[test]
    fn a_pod_s_own_secrets_count() {
        let api = cluster(2);
        assert_eq!(surveyed(&api, "open.io/app:2"), Access::Open);
        assert_eq!(surveyed(&api, "r.io/app:2"), Access::Denied);
        name_secrets(&api, &["gone", "wrong"]);
        let add = |name: &str, key: &str, text: &str| {
            api.add(json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name, "namespace": "shop"},
                "data": {key: STANDARD.encode(text)},
            }));
        };
        add("wrong", ".dockerconfigjson", r#"{"auths":{"r.io":"no"}}"#);
        assert_eq!(surveyed(&api, "r.io/app:2"), Access::Denied);
        add("old", ".dockercfg", r#"{"r.io":"yes"}"#);
        name_secrets(&api, &["wrong", "old"]);
        assert_eq!(surveyed(&api, "r.io/app:2"), Access::Granted);
        // Results that are already known are not queried again, and open registries require no
        // secrets.
        let reads = |api: &StandIn| {
            let all = api.requests().into_iter();
            all.filter(|one| one.path.contains("/secrets/")).count()
        };
        let before = reads(&api);
        surveyed(&api, "open.io/app:2");
        assert_eq!(reads(&api), before);
        add("odd", "other", "x");
        name_secrets(&api, &["odd"]);
        assert!(
            matches!(surveyed(&api, "r.io/app:2"), Access::Unknown(why) if why.contains("shop/odd"))
        );
    }

    #[test]
    fn names_without_a_registry_are_docker_s() {
        assert!(same_registry("nginx:1", "docker.io/library/app:2"));
        assert!(!same_registry("nginx:1", "r.io/app:2"));
    }
}
