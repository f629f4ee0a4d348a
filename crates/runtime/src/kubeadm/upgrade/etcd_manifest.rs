//! Reads a static Pod's manifest: its image and, for etcd, the member's identity.

use std::path::Path;

use serde_json::Value;

use crate::action::Site;
use crate::kubeadm::{place, upgrade::target::Target};
use imgctl_base::error::{Error, Result};
use imgctl_base::semver::Version;
use imgctl_host::agent::Agent;
use imgctl_template::yaml;

/// Directory of the kubelet's static Pod manifests.
pub(super) const MANIFESTS: &str = "/etc/kubernetes/manifests";

pub(super) struct Manifest {
    document: Value,
    name: String,
}

impl Manifest {
    pub(super) fn parse(text: &str, name: &str) -> Result<Self> {
        let document = yaml::parse(text)
            .map_err(|error| error.context(format!("cannot read the manifest {name}")))?;
        Ok(Self { document, name: name.to_owned() })
    }

    /// Returns the image of the first container.
    pub(super) fn image(&self) -> Result<&str> {
        let image = self.document["spec"]["containers"][0]["image"].as_str();
        image.ok_or_else(|| Error::bad_content(format!("the manifest {} has no image", self.name)))
    }

    /// Returns the command of the first container.
    pub(super) fn command(&self) -> impl Iterator<Item = &str> {
        let words = self.document["spec"]["containers"][0]["command"].as_array();
        words.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns the host paths that the first container mounts, each with its path in the container.
    pub(super) fn mounts(&self) -> impl Iterator<Item = (&str, &str)> {
        let spec = &self.document["spec"];
        let mounts = spec["containers"][0]["volumeMounts"].as_array();
        mounts.into_iter().flatten().filter_map(move |mount| {
            let volumes = spec["volumes"].as_array()?;
            let volume = volumes.iter().find(|one| one["name"] == mount["name"])?;
            Some((volume["hostPath"]["path"].as_str()?, mount["mountPath"].as_str()?))
        })
    }

    /// Reports whether `path`, as the first container sees it, is in a mount that it cannot write to.
    pub(super) fn is_read_only(&self, path: &str) -> bool {
        let place = |mount: &Value| Some(Path::new(mount["mountPath"].as_str()?).to_owned());
        let mounts = self.document["spec"]["containers"][0]["volumeMounts"].as_array();
        let around = mounts.into_iter().flatten().filter_map(|mount| Some((place(mount)?, mount)));
        around
            .filter(|(place, _)| Path::new(path).starts_with(place))
            .max_by_key(|(place, _)| place.components().count())
            .is_some_and(|(_, mount)| mount["readOnly"] == true)
    }

    /// Returns the value of `--flag=` in the first container's command.
    pub(super) fn flag(&self, flag: &str) -> Option<&str> {
        self.command()
            .find_map(|word| word.strip_prefix("--")?.strip_prefix(flag)?.strip_prefix('='))
    }
}

/// Returns the tag of an image; ignores digests.
pub(super) fn tag(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or_default();
    let last = name.rsplit('/').next().unwrap_or_default();
    last.split_once(':').map_or("", |(_, tag)| tag)
}

/// Reports whether etcd in image `now` has a newer minor version than in `before`: the older
/// version can no longer read its data.
pub(super) fn minor_was_raised(before: &str, now: &str) -> bool {
    let minor = |image: &str| {
        let version = Version::parse(tag(image))?;
        Some((version.numbers[0], version.numbers[1]))
    };
    match (minor(before), minor(now)) {
        (Some(before), Some(now)) => now > before,
        // If a version is unknown, any difference counts as raised.
        _ => before != now,
    }
}

/// A member of the restored etcd cluster.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) peer: String,
}

/// Returns all members as defined on their hosts before the upgrade.
pub(super) fn members(site: &Site<'_>, target: &Target) -> Result<Vec<Member>> {
    let hosts = site.context.control_planes();
    hosts
        .map(|host| {
            let agent = site.pool.agent(host)?;
            member(&manifest(&*agent, target)?, agent.host())
        })
        .collect()
}

/// Returns etcd's manifest as it was on the host before the upgrade.
pub(super) fn manifest(agent: &dyn Agent, target: &Target) -> Result<Manifest> {
    for path in [
        format!("{}/files{MANIFESTS}/etcd.yaml", target.backup),
        format!("{}/stopped/etcd.yaml", target.backup),
    ] {
        if let Some(text) = place::read(agent, &path)? {
            return Manifest::parse(&text, &path);
        }
    }
    Err(Error::not_found(format!(
        "{}: there is no backup of etcd's manifest in {}",
        agent.host(),
        target.backup
    ))
    .hint("only a cluster that was backed up before an upgrade can be restored from its snapshot"))
}

pub(super) fn member(manifest: &Manifest, host: &str) -> Result<Member> {
    match (manifest.flag("name"), manifest.flag("initial-advertise-peer-urls")) {
        (Some(name), Some(peer)) => Ok(Member { name: name.to_owned(), peer: peer.to_owned() }),
        _ => Err(Error::bad_content(format!(
            "{host}: etcd's manifest lacks the member's name and peer address"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETCD: &str = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command:\n    - etcd\n    - --data-dir=/var/lib/etcd\n    - --initial-advertise-peer-urls=https://10.0.0.11:2380\n    - --name=cp-1\n    image: registry.k8s.io/etcd:3.5.24-0\n    name: etcd\n";

    #[test]
    fn members_are_described_by_their_manifest() {
        let manifest = Manifest::parse(ETCD, "etcd").unwrap();
        assert_eq!(manifest.image().unwrap(), "registry.k8s.io/etcd:3.5.24-0");
        assert_eq!(manifest.flag("name"), Some("cp-1"));
        assert_eq!(manifest.flag("data-dir"), Some("/var/lib/etcd"));
        assert_eq!(manifest.flag("initial-advertise-peer-urls"), Some("https://10.0.0.11:2380"));
        assert_eq!(manifest.flag("initial-cluster"), None);
    }

    #[test]
    fn minors_of_etcd() {
        let etcd = |tag: &str| format!("sealos.hub:5000/etcd:{tag}");
        assert!(minor_was_raised(&etcd("3.5.24-0"), &etcd("3.6.5-0")));
        assert!(!minor_was_raised(&etcd("3.5.21-0"), &etcd("3.5.24-0")));
        assert!(!minor_was_raised(&etcd("main"), &etcd("main")));
        assert!(minor_was_raised(&etcd("main"), &etcd("next")));
    }
}
