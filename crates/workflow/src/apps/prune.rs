//! Removal of an application's objects.
//!
//! An object is removed only if it still carries the application's label, in the opposite order of
//! creation. Namespaces, PersistentVolumeClaims and CustomResourceDefinitions stay unless asked for,
//! because what they hold goes with them. A Namespace that holds objects of others always stays.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::apps::record::{PART_OF, Release};
use imgctl_base::error::{Context, Error, Result};
use imgctl_kube::api::Api;
use imgctl_kube::objects::{ObjectName, Resources};

/// Which objects are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prune {
    #[default]
    Nothing,
    /// All but those that hold others or data.
    Objects,
    /// Also Namespaces, PersistentVolumeClaims and CustomResourceDefinitions.
    All,
}

/// Kinds that hold others or data.
const HOLDERS: [(&str, &str); 3] = [
    ("", "Namespace"),
    ("", "PersistentVolumeClaim"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
];
/// Namespaces of the cluster itself.
const SYSTEM: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Time for removed objects to disappear.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look whether they have.
const LOOK: Duration = Duration::from_millis(250);

/// Annotations by which users keep an object, of Helm, Argo CD, Flux and imgctl.
const KEPT: [(&str, &str); 4] = [
    ("helm.sh/resource-policy", "keep"),
    ("argocd.argoproj.io/sync-options", "Prune=false"),
    ("kustomize.toolkit.fluxcd.io/prune", "disabled"),
    ("imgctl.io/prune", "disabled"),
];

pub(super) fn is_holder(object: &ObjectName) -> bool {
    HOLDERS.contains(&(object.group(), object.kind.as_str()))
}

/// Removes objects of one ApplySet.
pub(super) struct Removal<'a> {
    pub(super) api: &'a Arc<dyn Api>,
    pub(super) resources: &'a Resources,
    /// ID of the ApplySet.
    pub(super) set: &'a str,
    pub(super) prune: Prune,
    /// Releases of Helm whose records go, too: those that were recorded when the application was installed. What
    /// the objects say now is not asked, because others may have written it.
    pub(super) releases: &'a BTreeSet<Release>,
    /// Time for removed objects to disappear.
    pub(super) patience: Duration,
    pub(super) say: &'a dyn Fn(&str),
}

impl Removal<'_> {
    /// Removes `objects`, which are in the order of their creation. Returns those that stay and that
    /// another call may remove.
    pub(super) fn remove(&self, objects: &[ObjectName]) -> Result<Vec<ObjectName>> {
        let mut kept = Vec::new();
        let mut removed = Vec::new();
        // Holders go last: most of what is in them goes in order before.
        let (holders, others): (Vec<_>, Vec<_>) =
            objects.iter().rev().partition(|one| is_holder(one));
        for object in others.into_iter().chain(holders) {
            match self.one(object)? {
                Outcome::Removed(path, uid) => removed.push((object, path, uid)),
                Outcome::Gone => {}
                Outcome::NotOurs => {}
                Outcome::Kept(why) => {
                    (self.say)(&format!("{object} stays: {why}"));
                    kept.push(object.clone());
                }
            }
        }
        self.wait(&removed)?;
        for release in self.releases {
            self.forget_release(release)?;
        }
        kept.reverse();
        Ok(kept)
    }

    fn one(&self, object: &ObjectName) -> Result<Outcome> {
        let doing = || format!("cannot remove {object}");
        let found = self.resources.find(object).map_err(Error::from).context(doing)?;
        let Some((object, path)) = found else { return Ok(Outcome::Gone) };
        let live = match self.api.get(&path) {
            Ok(live) => live,
            Err(error) if error.is_not_found() => return Ok(Outcome::Gone),
            Err(error) => return Err(Error::from(error).context(doing())),
        };
        let meta = &live["metadata"];
        if meta["labels"][PART_OF].as_str() != Some(self.set) {
            (self.say)(&format!("{object} stays: its label {PART_OF} is not this application's"));
            return Ok(Outcome::NotOurs);
        }
        let annotation = |name: &str| meta["annotations"][name].as_str().unwrap_or_default();
        if let Some((name, value)) =
            KEPT.iter().find(|(name, value)| annotation(name).contains(value))
        {
            return Ok(Outcome::Kept(format!("its annotation is {name}: {value}")));
        }
        if is_holder(&object) && self.prune != Prune::All {
            return Ok(Outcome::Kept("what it holds would go with it".to_owned()));
        }
        if object.kind == "Namespace" && object.group().is_empty() {
            if SYSTEM.contains(&object.name.as_str()) {
                return Ok(Outcome::Kept("it belongs to the cluster".to_owned()));
            }
            if let Some(foreign) = self.foreign(&object.name)? {
                return Ok(Outcome::Kept(format!(
                    "it holds {foreign}, which is not this application's"
                )));
            }
        }
        let uid = meta["uid"].as_str().unwrap_or_default().to_owned();
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1",
            "propagationPolicy": "Background", "preconditions": {"uid": uid},
        });
        match self.api.delete(&path, &options) {
            Err(error) if error.is_not_found() => return Ok(Outcome::Gone),
            Err(error) => return Err(Error::from(error).context(doing())),
            Ok(_) => {}
        }
        (self.say)(&format!("{object} is removed"));
        Ok(Outcome::Removed(path, uid))
    }

    /// Waits until removed objects are gone, unless that takes too long.
    fn wait(&self, removed: &[(&ObjectName, String, String)]) -> Result<()> {
        let until = Instant::now() + self.patience;
        for (object, path, uid) in removed {
            loop {
                match self.api.get(path) {
                    Ok(live) if live["metadata"]["uid"].as_str() == Some(uid) => {}
                    Err(error) if !error.is_not_found() => {
                        return Err(Error::from(error).context(format!("cannot look at {object}")));
                    }
                    _ => break,
                }
                if Instant::now() >= until {
                    (self.say)(&format!("{object} is still being removed: a finalizer keeps it"));
                    break;
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Returns an object in a namespace that does not belong to the application.
    fn foreign(&self, namespace: &str) -> Result<Option<String>> {
        let doing = || format!("cannot list what namespace {namespace} holds");
        let resources = self.resources.all().map_err(Error::from).context(doing)?;
        for resource in resources.iter().filter(|one| one.namespaced && one.can("list")) {
            let listed = match self.api.list(&resource.path(namespace)) {
                // Review kinds and the like cannot be listed, whatever discovery says.
                Err(error) if matches!(error.code, 404 | 405) => continue,
                listed => listed.map_err(Error::from).context(doing)?,
            };
            let foreign =
                listed.iter().find(|object| !self.is_without_owner(&resource.kind, object));
            if let Some(object) = foreign {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                return Ok(Some(format!("{} {name}", resource.kind)));
            }
        }
        Ok(None)
    }

    /// Reports whether an object is the application's, or goes with others, or is in every namespace.
    fn is_without_owner(&self, kind: &str, object: &Value) -> bool {
        let meta = &object["metadata"];
        let name = meta["name"].as_str().unwrap_or_default();
        let is_usual = match kind {
            "Event" | "PodMetrics" | "Endpoints" | "EndpointSlice" => true,
            "ConfigMap" => name == "kube-root-ca.crt",
            "ServiceAccount" => name == "default",
            "Secret" => object["type"].as_str().is_some_and(|kind| {
                kind == "helm.sh/release.v1" || kind == "kubernetes.io/service-account-token"
            }),
            _ => false,
        };
        is_usual
            || meta["labels"][PART_OF].as_str() == Some(self.set)
            || meta["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty())
            || !meta["deletionTimestamp"].is_null()
    }

    /// Removes Helm's records of a release.
    fn forget_release(&self, release: &Release) -> Result<()> {
        if !release.is_clean() {
            return Ok(());
        }
        let doing = || format!("cannot remove Helm's records of release {release}");
        let Release { namespace, name: release } = release;
        let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
        let path = format!("{secrets}?labelSelector=owner%3Dhelm%2Cname%3D{release}");
        for secret in self.api.list(&path).map_err(Error::from).context(doing)? {
            let name = secret["metadata"]["name"].as_str().unwrap_or_default();
            if !name.starts_with("sh.helm.release.v1.") || name.contains(['/', '?']) {
                continue;
            }
            match self.api.delete(&format!("{secrets}/{name}"), &Value::Null) {
                Err(error) if !error.is_not_found() => {
                    return Err(Error::from(error).context(doing()));
                }
                _ => (self.say)(&format!("Secret {namespace}/{name} of Helm is removed")),
            }
        }
        Ok(())
    }
}

enum Outcome {
    /// The request was accepted: path and UID.
    Removed(String, String),
    Gone,
    NotOurs,
    Kept(String),
}
