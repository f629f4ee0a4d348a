//! Checks that versions are compatible: kubelets, API servers, container runtimes, installed images,
//! predecessors of the image.

use crate::finding::{error, note, warning};
use crate::preflight::look::Look;
use crate::{document::Finding, rehash, request::RefusedSetting, skew};
use imgctl_base::quote::quote;
use imgctl_base::semver::{Version, satisfies};
use imgctl_runtime::version::{UPGRADE_FROM, order_of};

/// The findings of [`skew::findings`] with one ID.
pub(super) fn skew_of(look: &Look<'_>, check: &str) -> Vec<Finding> {
    if !look.is_kubernetes() {
        return Vec::new();
    }
    let mut found = skew::findings(look.document, look.observation, look.request.to_snapshot);
    found.retain(|finding| finding.check == check);
    found
}

/// Finds hosts whose version differs from that of the cluster's image.
pub(super) fn mixed(look: &Look<'_>) -> Vec<Finding> {
    let from = &look.document.from.version;
    let odd = look.hosts().filter_map(|host| {
        let version = look.observation.version_of(host)?;
        let differs = order_of(&version, from).is_some_and(std::cmp::Ordering::is_ne);
        let what = format!("it is at {version}, but the cluster's image has {from}");
        differs.then(|| warning("mixed-versions", what).on(host))
    });
    odd.collect()
}

/// Checks the label `imgctl.io/upgrade-from` of the images on the path.
pub(super) fn upgrade_from(look: &Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if !look.is_forward() {
        return found;
    }
    let mut before = look.document.from.version.as_str();
    for target in &look.request.targets {
        if let Some(range) = target.label(UPGRADE_FROM) {
            let fits = Version::parse(before).and_then(|version| satisfies(range, &version));
            let said = format!("{} supports upgrades from {range}", target.name);
            match fits {
                Some(true) => {}
                Some(false) => found.push(
                    error("upgrade-from", format!("{said}, but the cluster is at {before}")).hint(
                        "name an intermediate image first: `imgctl upgrade IMAGE IMAGE --hop auto`",
                    ),
                ),
                None => found
                    .push(warning("upgrade-from", format!("{said}, which is not a version range"))),
            }
        }
        before = &target.version;
    }
    found
}

/// Tells which settings of the cluster an image does not accept. On the way back they were there before: nothing may
/// keep a cluster from its former image.
pub(super) fn image_settings(look: &Look<'_>) -> Vec<Finding> {
    let found = |refused: &RefusedSetting| {
        let image = quote(&refused.image);
        let hint = format!(
            "`imgctl inspect {image}` shows its settings; `imgctl apply` with the cluster's Clusterfile or --env \
             NAME=VALUE changes them before the upgrade"
        );
        if look.is_forward() {
            let what = format!("will fail: {} does not accept {}", refused.image, refused.what);
            error("image-settings", what).hint(hint)
        } else {
            let what = format!("{} does not accept {}", refused.image, refused.what);
            warning("image-settings", what).hint(hint)
        }
    };
    look.request.refused.iter().map(found).collect()
}

pub(super) fn container_runtimes(look: &Look<'_>) -> Vec<Finding> {
    let new = look.new_minors();
    let mut found = Vec::new();
    let declared = look.target().and_then(|target| target.label("imgctl.io/cri-version"));
    for (host, node) in look.nodes().filter(|_| look.is_kubeadm()) {
        let Some((name, version)) = node.runtime.split_once("://") else {
            continue;
        };
        let below = |least: &str| order_of(version, least).is_some_and(std::cmp::Ordering::is_lt);
        let told = format!("its container runtime is {name} {version}");
        if let Some(why) = rehash::refusal(look.document, name, version) {
            let hint = "omit --keep-containers: the plan says which containers restart";
            found.push(error("container-runtime", format!("{told}: {why}")).on(host).hint(hint));
        }
        if name == "docker" && new.contains(&24) {
            let what = format!("{told}: v1.24 removes dockershim, every container restarts");
            found.push(
                error("container-runtime", what).on(host).hint("migrate it to containerd first"),
            );
        } else if name == "containerd" && below("1.6.0") && new.contains(&26) {
            let what = format!("{told}: v1.26 needs CRI v1, which containerd supports from 1.6 on");
            found.push(error("container-runtime", what).on(host).hint("upgrade containerd first"));
        } else if name == "containerd" && below("2.0.0") && new.contains(&36) {
            let what = format!("{told}: v1.35 was the last release for containerd 1.x");
            found.push(
                error("container-runtime", what).on(host).hint("upgrade containerd to 2.x first"),
            );
        } else if name == "containerd" && below("2.0.0") && new.contains(&35) {
            let what = format!("{told}: v1.35 is the last release for containerd 1.x");
            found.push(
                warning("container-runtime", what)
                    .on(host)
                    .hint("plan the upgrade to containerd 2.x"),
            );
        }
        // https://github.com/containerd/containerd/issues/13346
        if let Some(wanted) = declared
            && wanted.trim_start_matches("containerd://").trim_start_matches('v') == "2.3.0"
        {
            let what = format!(
                "the image ships {wanted}, whose transfer service does not start on a host without \
                 mkfs.erofs"
            );
            let hint = "ship containerd 2.3.1 or newer, or install erofs-utils on the host";
            found.push(warning("container-runtime", what).on(host).hint(hint));
        }
        if let Some(wanted) = declared
            && below(wanted.trim_start_matches("containerd://"))
        {
            let what =
                format!("{told}; the image ships {wanted}: it is replaced on the drained Node");
            found.push(note("container-runtime", what).on(host));
        }
    }
    found
}

/// Compares the pause image of the target image with that in the runtime's configuration.
pub(super) fn sandbox(look: &Look<'_>) -> Vec<Finding> {
    let Some(wanted) = look.target().and_then(|target| target.label("imgctl.io/sandbox-image"))
    else {
        return Vec::new();
    };
    let tail = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let other = look.hosts().filter_map(|host| {
        let has = host.sandbox_image.as_ref().filter(|has| tail(has) != tail(wanted))?;
        let what = format!(
            "its container runtime uses the pause image {has}, but the new image ships {wanted}"
        );
        let hint = "set sandbox_image in its configuration, or embed that image, too";
        Some(warning("sandbox-image", what).on(host).hint(hint))
    });
    other.collect()
}

/// Checks the requirements of kubeadm.
pub(super) fn kubeadm(look: &Look<'_>) -> Vec<Finding> {
    let Some(api) = look.api().filter(|_| look.is_kubeadm()) else {
        return Vec::new();
    };
    let Some(configuration) = &api.cluster_configuration else {
        let why = api.unknown.get("kubeadm-config").map_or("it is missing", String::as_str);
        let what = format!("cannot read ConfigMap kube-system/kubeadm-config: {why}");
        return vec![
            error("kubeadm-config", what)
                .hint("write it with `kubeadm init phase upload-config kubeadm --config FILE`"),
        ];
    };
    let text =
        |key: &str| configuration.get(key).and_then(|value| value.as_str()).unwrap_or_default();
    let mut found = Vec::new();
    let form = text("apiVersion");
    let gone = [("kubeadm.k8s.io/v1beta1", 22), ("kubeadm.k8s.io/v1beta2", 27)];
    for (old, minor) in gone {
        if form == old && look.new_minors().contains(&minor) {
            let what =
                format!("kubeadm-config is of {old}, which kubeadm of v1.{minor} cannot read");
            found.push(
                error("kubeadm-config", what)
                    .hint("run `kubeadm config migrate` with the current kubeadm, then upload it"),
            );
        }
    }
    let says = text("kubernetesVersion");
    let from = &look.document.from.version;
    if order_of(says, from).is_some_and(std::cmp::Ordering::is_ne) {
        let what = format!("kubeadm-config has {says}, but the cluster's image has {from}");
        found.push(
            warning("kubeadm-config", what).hint("an upgrade with another tool may be incomplete"),
        );
    }
    found
}

pub(super) fn applications(look: &Look<'_>) -> Vec<Finding> {
    let target = &look.document.target().version;
    let Some(mut version) = Version::parse(target) else {
        return Vec::new();
    };
    // The range refers to releases.
    version.prerelease.clear();
    let mut found = Vec::new();
    for image in &look.observation.installed {
        let Some(range) = &image.supports else {
            continue;
        };
        match satisfies(range, &version) {
            Some(true) => {}
            Some(false) => found.push(
                error(
                    "application-versions",
                    format!(
                        "{} supports Kubernetes {range}, but the target is {target}",
                        image.name
                    ),
                )
                .hint("install a newer release of it first (`imgctl run`), or skip this check"),
            ),
            None => found.push(warning(
                "application-versions",
                format!(
                    "{} declares support for `{range}`, which is not a version range",
                    image.name
                ),
            )),
        }
    }
    found
}
