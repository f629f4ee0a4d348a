//! What is installed on a cluster: one ConfigMap for each application in the namespace
//! `imgctl-system`, with the objects that belong to it. Any operator can read it; it has no secrets.
//!
//! The ConfigMap is the parent of an ApplySet (KEP-3659): its objects carry its ID as a label, by
//! which anybody can list them and by which imgctl knows them again before it removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use imgctl_base::error::{Context, Error, Result};
use imgctl_base::image::{Digest, Reference};
use imgctl_kube::api::Api;
use imgctl_kube::objects::ObjectName;

/// Namespace of the records.
pub const NAMESPACE: &str = "imgctl-system";
/// Label of an application's objects; its value is [`Installed::set`].
pub const PART_OF: &str = "applyset.kubernetes.io/part-of";
/// Label of the records.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const APPLICATION: &str = "imgctl.io/application";
const KEY: &str = "application.json";
/// Maximum size of a record, in bytes: a ConfigMap holds 1 MiB.
const LARGEST: usize = 960 << 10;

/// Progress of the installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The commands of the image are running, or have failed.
    Installing,
    Installed,
}

/// One application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Installed {
    /// Name of the image without its tag: `docker.io/labring/helm`.
    pub application: String,
    /// Name of the image as it was given.
    pub image: String,
    pub digest: Digest,
    pub state: State,
    /// RFC 3339: time of the last change.
    pub time: String,
    /// Where the embedded images were pushed to: `HOST[/PREFIX]`.
    #[serde(default)]
    pub registry: Option<String>,
    /// The objects of this version, in the order of their creation.
    #[serde(default)]
    pub objects: Vec<ObjectName>,
    /// Objects of former versions that this one does not have.
    #[serde(default)]
    pub former: Vec<ObjectName>,
    /// Releases of Helm that the commands made, as they were after the installation.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub releases: BTreeSet<Release>,
}

/// A release of Helm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Release {
    pub namespace: String,
    pub name: String,
}

impl Release {
    /// Returns the release that Helm's annotations on an object name, if it is in the namespace of the object: who
    /// may write there chooses none elsewhere.
    pub(super) fn of(object: &Value) -> Option<Self> {
        let meta = &object["metadata"];
        let text = |name: &str| meta["annotations"][name].as_str();
        let namespace = text("meta.helm.sh/release-namespace")?;
        let name = text("meta.helm.sh/release-name")?;
        let release = Self { namespace: namespace.to_owned(), name: name.to_owned() };
        let is_here = meta["namespace"].as_str() == Some(namespace);
        (is_here && release.is_clean()).then_some(release)
    }

    /// Whether both names are names, and no parts of a path or a query.
    pub(super) fn is_clean(&self) -> bool {
        [&self.namespace, &self.name].into_iter().all(|text| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        })
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns the name under which an image is recorded, which all its versions share.
pub fn application(image: &str) -> Result<String> {
    Ok(Reference::parse(image)?.on_docker_hub().name())
}

impl Installed {
    /// Returns the name of the ConfigMap.
    pub fn object(&self) -> String {
        let last = self.application.rsplit('/').next().unwrap_or_default();
        let last: String =
            last.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
        let digest = Digest::of(self.application.as_bytes());
        let last = last.to_ascii_lowercase();
        format!("app-{}-{}", last.trim_matches('-'), &digest.hex()[..8])
    }

    /// Fails unless this is what imgctl records in a ConfigMap of this name: the image is one of the
    /// application, and the application has no other record.
    fn check(&self, config_map: &str) -> Result<()> {
        let is_of = application(&self.image).is_ok_and(|of| of == self.application);
        if is_of && self.object() == config_map {
            return Ok(());
        }
        Err(Error::bad_content(format!(
            "ConfigMap {NAMESPACE}/{} is not a record that imgctl has written: it is of {}, with the \
             image {}",
            config_map.escape_debug(),
            self.application.escape_debug(),
            self.image.escape_debug()
        ))
        .hint("somebody has changed it; remove it and install the application again"))
    }

    /// Returns the ID of the ApplySet.
    pub fn set(&self) -> String {
        let parent = format!("{}.{NAMESPACE}.ConfigMap.", self.object());
        format!("applyset-{}-v1", URL_SAFE_NO_PAD.encode(Sha256::digest(parent)))
    }

    /// Returns all recorded objects, each once: those of this version first.
    pub fn all_objects(&self) -> Vec<ObjectName> {
        let mut seen = BTreeSet::new();
        let all = self.objects.iter().chain(&self.former);
        all.filter(|object| seen.insert(*object)).cloned().collect()
    }

    fn manifest(&self) -> Result<Value> {
        let mut kept = self.clone();
        let text = |kept: &Self| {
            serde_json::to_string(kept)
                .map_err(|error| Error::failed("cannot record an application").caused_by(error))
        };
        let mut written = text(&kept)?;
        while written.len() > LARGEST && !(kept.former.is_empty() && kept.objects.is_empty()) {
            // Objects that are not recorded stay when the application is removed.
            let list = if kept.former.is_empty() { &mut kept.objects } else { &mut kept.former };
            list.truncate(list.len() / 2);
            written = text(&kept)?;
        }
        if kept != *self {
            tracing::warn!("{} has more objects than a record can hold", self.application);
        }
        let kinds: BTreeSet<String> = kept
            .all_objects()
            .iter()
            .map(|object| match object.group() {
                "" => object.kind.clone(),
                group => format!("{}.{group}", object.kind),
            })
            .collect();
        let namespaces: BTreeSet<String> = kept
            .all_objects()
            .into_iter()
            .map(|object| object.namespace)
            .filter(|namespace| !namespace.is_empty() && namespace != NAMESPACE)
            .collect();
        let joined = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(",");
        Ok(json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self.object(),
                "namespace": NAMESPACE,
                "labels": {
                    MANAGED_BY: "imgctl",
                    APPLICATION: "true",
                    "applyset.kubernetes.io/id": self.set(),
                },
                "annotations": {
                    "applyset.kubernetes.io/tooling":
                        concat!("imgctl/v", env!("CARGO_PKG_VERSION")),
                    "applyset.kubernetes.io/contains-group-kinds": joined(kinds),
                    "applyset.kubernetes.io/additional-namespaces": joined(namespaces),
                },
            },
            "data": {KEY: written},
        }))
    }
}

/// The records of one cluster.
#[derive(Clone)]
pub struct Records {
    api: Arc<dyn Api>,
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/imgctl-system/configmaps";

impl Records {
    pub fn new(api: Arc<dyn Api>) -> Self {
        Self { api }
    }

    /// Returns all applications by name.
    pub fn all(&self) -> Result<BTreeMap<String, Installed>> {
        let path =
            format!("{CONFIG_MAPS}?labelSelector={MANAGED_BY}%3Dimgctl%2C{APPLICATION}%3Dtrue");
        let found = match self.api.list(&path) {
            Err(error) if error.is_not_found() => Vec::new(),
            found => found
                .map_err(Error::from)
                .context(|| format!("cannot read what is installed (namespace {NAMESPACE})"))?,
        };
        let mut all = BTreeMap::new();
        for map in found {
            let name = map["metadata"]["name"].as_str().unwrap_or_default();
            let text = map["data"][KEY].as_str().unwrap_or_default();
            let installed: Installed = serde_json::from_str(text).map_err(|error| {
                Error::bad_content(format!(
                    "ConfigMap {NAMESPACE}/{name} is not a record of imgctl"
                ))
                .caused_by(error)
                .hint("a newer imgctl may have written it; otherwise remove it and install again")
            })?;
            installed.check(name)?;
            all.insert(installed.application.clone(), installed);
        }
        Ok(all)
    }

    /// Creates or replaces a record.
    pub fn save(&self, installed: &Installed) -> Result<()> {
        let manifest = installed.manifest()?;
        let doing = || format!("cannot record {} in the cluster", installed.application);
        self.write(&manifest).map_err(Error::from).context(doing)
    }

    fn write(&self, manifest: &Value) -> Result<(), imgctl_kube::api::ApiError> {
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        match self.api.replace(&format!("{CONFIG_MAPS}/{name}"), manifest) {
            Err(error) if error.is_not_found() => {}
            written => return written.map(drop),
        }
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {MANAGED_BY: "imgctl"}},
        });
        match self.api.create("/api/v1/namespaces", &namespace) {
            Err(error) if error.code != 409 => return Err(error),
            _ => {}
        }
        self.api.create(CONFIG_MAPS, manifest).map(drop)
    }

    /// Removes a record; a missing one is no error.
    pub fn remove(&self, installed: &Installed) -> Result<()> {
        match self.api.delete(&format!("{CONFIG_MAPS}/{}", installed.object()), &Value::Null) {
            Err(error) if error.is_not_found() => Ok(()),
            removed => removed
                .map(drop)
                .map_err(Error::from)
                .context(|| format!("cannot remove the record of {}", installed.application)),
        }
    }
}
