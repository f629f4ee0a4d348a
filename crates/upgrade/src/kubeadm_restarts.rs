//! Effects of `kubeadm upgrade` and its rollback on containers, regardless of their hashes: static
//! Pods whose manifests are rewritten, kube-proxy, CoreDNS.
//!
//! Facts (Kubernetes 1.31 to 1.34, cmd/kubeadm/app/phases/upgrade/staticpods.go and
//! phases/etcd/local.go): an unchanged manifest is left alone. etcd's manifest is written as for a
//! first member, without `--initial-cluster-state` and the other members. If it is unchanged but
//! the API server's is not, kubeadm renews etcd's certificates, and removes and restores its file,
//! which restarts etcd.

use crate::document::{Direction, Document};
use crate::observation::{HostSeen, ManifestSeen, Observation};
use crate::request::{Request, Target, etcd_release};
use crate::static_pods::rewritten;
use imgctl_kube::restart::{BothWays, ContainerPrediction};
use imgctl_runtime::version::{minor, order_of};

const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
const ETCD: &str = "etcd";
/// From this minor on, kubeadm restarts etcd together with the API server.
const STARTS_ETCD_AGAIN: u64 = 31;

/// Effect on a static Pod, with the reason.
enum Fate {
    Stays,
    Perhaps(String),
    Restarts(String),
    Recreated(String),
}

/// Corrects the hash-based prediction for the containers of `host`.
pub(super) fn correct(
    ways: &mut BothWays,
    document: &Document,
    observation: &Observation,
    request: &Request<'_>,
    host: &HostSeen,
) {
    let version = &document.target().version;
    let is_new = |version_of: Option<String>| version_of.is_some_and(|it| it != *version);
    let is_back = document.direction == Direction::Back;
    let moves = is_new(observation.version_of(host));
    let pod = Pods { document, observation, target: request.targets.last(), host, moves };
    for component in COMPONENTS {
        let fate = if is_back { pod.component_back() } else { pod.component(component) };
        settle(ways, component, &fate, true);
    }
    if host.is_control_plane() && !document.identity.external_etcd {
        let (fate, goes_back) = if is_back { (pod.etcd_back(), true) } else { pod.etcd() };
        settle(ways, ETCD, &fate, goes_back);
    }
    addons(ways, document, observation);
}

/// kube-proxy and CoreDNS are rolled out for the whole cluster.
fn addons(ways: &mut BothWays, document: &Document, observation: &Observation) {
    let version = &document.target().version;
    let is_back = document.direction == Direction::Back;
    let server = observation.hosts.iter().find_map(|one| observation.server_version(one));
    // They are rolled back together with the first control plane.
    let stay = is_back && document.control_planes.is_empty();
    if stay || server.is_none_or(|server| server == *version) {
        return;
    }
    let why = if is_back {
        "it goes back to that of the previous release"
    } else {
        "kubeadm rolls it out with each release"
    };
    ways.forward.recreates(why, |one| {
        one.namespace == "kube-system" && one.owner.as_deref() == Some("DaemonSet/kube-proxy")
    });
    let why = "CoreDNS is rolled out where the minors ship different versions";
    if minor(&document.from.version) != minor(version) {
        ways.forward.perhaps_recreates(why, |one| {
            let owner = one.owner.as_deref().unwrap_or_default();
            one.namespace == "kube-system" && owner.starts_with("ReplicaSet/coredns-")
        });
    }
}

/// Applies `fate` to the prediction. With `goes_back`, an immediate rollback restores the previous
/// manifest.
fn settle(ways: &mut BothWays, name: &str, fate: &Fate, goes_back: bool) {
    let is_it = |one: &ContainerPrediction| {
        one.is_static && one.namespace == "kube-system" && one.container == name
    };
    let back = "the previous manifest is restored";
    match fate {
        Fate::Stays => {}
        Fate::Perhaps(why) => {
            ways.forward.perhaps_recreates(why, is_it);
            if goes_back {
                ways.back.perhaps_recreates(back, is_it);
            }
        }
        Fate::Restarts(why) => ways.forward.restarts_again(why, is_it),
        Fate::Recreated(why) => {
            ways.forward.recreates(why, is_it);
            if goes_back {
                ways.back.recreates(back, is_it);
            }
        }
    }
}

/// The static Pods of one host.
struct Pods<'a> {
    document: &'a Document,
    observation: &'a Observation,
    target: Option<&'a Target>,
    host: &'a HostSeen,
    /// The host moves to another version.
    moves: bool,
}

impl Pods<'_> {
    fn component(&self, name: &str) -> Fate {
        if self.moves {
            return Fate::Recreated("kubeadm rewrites its manifest for each release".into());
        }
        self.same_release(name)
    }

    /// Within the same version, kubeadm still applies the image's patches and kubeadm-config.
    fn same_release(&self, name: &str) -> Fate {
        if self.patches_differ(name) {
            return Fate::Recreated(format!("the image has other patches for {name}"));
        }
        let api = self.observation.api.as_ref();
        let configuration = api.and_then(|api| api.cluster_configuration.as_ref());
        match configuration.and_then(|it| rewritten(self.host, name, it)) {
            Some(what) => Fate::Perhaps(format!(
                "its manifest does not match kubeadm-config, and kubeadm rewrites it: {what}"
            )),
            None => Fate::Stays,
        }
    }

    fn patches_differ(&self, name: &str) -> bool {
        let Some(new) = self.target.and_then(|target| target.patches.as_ref()) else {
            return false;
        };
        let text = |text: Option<&String>| text.map_or("", |text| text.trim()).to_owned();
        text(new.get(name)) != text(self.host.patches.get(name))
    }

    /// Returns the effect on etcd, and whether an immediate rollback restores the previous
    /// manifest.
    fn etcd(&self) -> (Fate, bool) {
        let Some(manifest) = self.host.manifests.get(ETCD) else {
            return (Fate::Stays, false);
        };
        let runs = manifest.image.as_deref().and_then(etcd_release);
        let brings = self.target.and_then(Target::etcd);
        let order = match (&runs, &brings) {
            (Some(runs), Some(brings)) => order_of(runs, brings),
            _ => None,
        };
        if let (Some(std::cmp::Ordering::Greater), Some(brings)) = (order, &brings) {
            // kubeadm reports this and leaves etcd unchanged.
            tracing::debug!("etcd is newer than {brings}, which the image ships");
            return (Fate::Stays, false);
        }
        if let (Some(std::cmp::Ordering::Less), Some(runs), Some(brings)) = (order, &runs, &brings)
        {
            let raised = minor(runs) != minor(brings);
            let why = format!("the image ships etcd {brings}, and {runs} is running");
            return (Fate::Recreated(why), !raised);
        }
        if is_of_joined(manifest) {
            let why = "its manifest lists the members that it joined; kubeadm rewrites it without \
                       them";
            return (Fate::Recreated(why.into()), true);
        }
        match self.same_release(ETCD) {
            Fate::Stays => {}
            fate => return (fate, true),
        }
        let target = &self.document.target().version;
        if minor(target).is_none_or(|minor| minor < STARTS_ETCD_AGAIN) {
            return (Fate::Stays, false);
        }
        let why = "kubeadm renews its certificates and restarts it when the manifest of the API \
                   server changes";
        match self.component("kube-apiserver") {
            Fate::Stays => (Fate::Stays, false),
            Fate::Perhaps(_) => (Fate::Perhaps(why.into()), false),
            Fate::Restarts(_) | Fate::Recreated(_) => (Fate::Restarts(why.into()), false),
        }
    }

    fn component_back(&self) -> Fate {
        if self.moves {
            Fate::Recreated("the manifest of the previous release is restored".into())
        } else {
            Fate::Stays
        }
    }

    fn etcd_back(&self) -> Fate {
        if self.moves && self.host.manifests.contains_key(ETCD) {
            Fate::Perhaps(
                "its previous manifest is restored where it differs, unless etcd's minor was raised"
                    .into(),
            )
        } else {
            Fate::Stays
        }
    }
}

/// Returns whether `kubeadm join` wrote the manifest.
fn is_of_joined(manifest: &ManifestSeen) -> bool {
    manifest.arguments.iter().any(|word| {
        word == "--initial-cluster-state=existing"
            || word.strip_prefix("--initial-cluster=").is_some_and(|members| members.contains(','))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::document::Direction;
    use crate::restarts::forward;
    use crate::testing::{document, kubernetes, request};
    use imgctl_kube::restart::{Code, RunningContainer, Verdict};

    const ID: &str = "0123456789abcdef0123456789abcdef";

    /// Two control planes, of which the second has joined.
    fn cluster(version: &str, etcd: &str) -> Observation {
        let mut seen = kubernetes(2, 0, version);
        for (number, host) in seen.hosts.iter_mut().enumerate() {
            for name in COMPONENTS.into_iter().chain([ETCD]) {
                host.containers.push(RunningContainer {
                    namespace: "kube-system".into(),
                    pod: format!("{name}-{number}"),
                    uid: ID.into(),
                    container: name.into(),
                    id: format!("{name}-{number}"),
                    running: true,
                    hash_annotation: Some("1".into()),
                    hash_without_resources: None,
                    is_static: true,
                });
            }
            let words = ["etcd", "--client-cert-auth=true", "--peer-client-cert-auth=true"];
            let mut arguments = words.map(str::to_owned).to_vec();
            if number == 1 {
                arguments.push("--initial-cluster=a=https://1:2380,b=https://2:2380".into());
                arguments.push("--initial-cluster-state=existing".into());
            }
            host.manifests.insert(
                ETCD.into(),
                ManifestSeen {
                    containers: vec![ETCD.into()],
                    arguments,
                    image: Some(format!("registry.k8s.io/etcd:{etcd}")),
                    ..ManifestSeen::default()
                },
            );
        }
        seen
    }

    /// Returns verdict and reason for one container.
    fn of(
        seen: &Observation,
        request: &Request<'_>,
        host: &str,
        container: &str,
    ) -> (Verdict, String) {
        let plan = document(seen, request);
        let told = forward(&plan, host).unwrap();
        let one = told.containers.iter().find(|one| one.container == container).unwrap();
        (one.verdict, one.reason.clone())
    }

    fn brings(request: &mut Request<'_>, etcd: &str) {
        for image in request.targets[0].images.values_mut() {
            let list = format!("{{\"registry.k8s.io/etcd:{etcd}\":\"sha256:0\"}}");
            image.labels.insert("io.imgctl.images".into(), list);
        }
    }

    /// Regression, from three control planes upgraded from 1.33.4 to 1.33.5: etcd was predicted to
    /// stay.
    #[test]
    fn etcd_starts_again_within_a_minor() {
        let seen = cluster("v1.33.4", "3.5.21-0");
        let mut request = request("v1.33.4", &["v1.33.5"]);
        brings(&mut request, "3.5.21-0");
        let (verdict, why) = of(&seen, &request, "10.0.0.1", ETCD);
        assert_eq!(verdict, Verdict::Restart);
        assert!(why.contains("certificates"), "{why}");
        let (verdict, why) = of(&seen, &request, "10.0.0.2", ETCD);
        assert_eq!(verdict, Verdict::Recreate);
        assert!(why.contains("joined"), "{why}");
        brings(&mut request, "3.5.24-0");
        let (verdict, why) = of(&seen, &request, "10.0.0.1", ETCD);
        assert_eq!(verdict, Verdict::Recreate);
        assert!(why.contains("3.5.24") && why.contains("3.5.21"), "{why}");
        // An etcd newer than the image's stays unchanged, as does any etcd before 1.31.
        brings(&mut request, "3.5.16-0");
        assert_ne!(of(&seen, &request, "10.0.0.1", ETCD).0, Verdict::Restart);
        let seen = cluster("v1.30.1", "3.5.15-0");
        let request = crate::testing::request("v1.30.1", &["v1.30.2"]);
        assert_ne!(of(&seen, &request, "10.0.0.1", ETCD).0, Verdict::Restart);
    }

    #[test]
    fn patches_of_another_image_of_the_same_version_count() {
        let mut seen = cluster("v1.34.1", "3.6.4-0");
        let patch = "- op: add\n";
        for host in &mut seen.hosts {
            host.patches.insert("kube-scheduler".into(), patch.into());
        }
        let mut request = request("v1.34.1", &["v1.34.1"]);
        // Another image of the current version.
        request.from.name = "kubernetes:before".into();
        for image in request.from.images.values_mut() {
            image.digest = imgctl_base::image::Digest::of(b"before");
        }
        let patches = |text: &str| {
            Some(BTreeMap::from([
                ("kube-scheduler".to_owned(), patch.to_owned()),
                ("kube-apiserver".to_owned(), text.to_owned()),
            ]))
        };
        request.targets[0].patches = patches("");
        for component in COMPONENTS {
            let verdict = of(&seen, &request, "10.0.0.1", component).0;
            assert_ne!(verdict, Verdict::Recreate, "{component}");
        }
        request.targets[0].patches = patches("- op: replace\n");
        let (verdict, why) = of(&seen, &request, "10.0.0.1", "kube-apiserver");
        assert_eq!(verdict, Verdict::Recreate);
        assert!(why.contains("patches"), "{why}");
        let scheduler = of(&seen, &request, "10.0.0.1", "kube-scheduler").0;
        assert_ne!(scheduler, Verdict::Recreate);
        // This also restarts etcd.
        assert_eq!(of(&seen, &request, "10.0.0.1", ETCD).0, Verdict::Restart);
        let plan = document(&seen, &request);
        let told = forward(&plan, "10.0.0.1").unwrap();
        let etcd = told.containers.iter().find(|one| one.container == ETCD);
        assert_eq!(etcd.unwrap().code, Code::Release);
    }

    #[test]
    fn a_way_back_may_start_etcd_again() {
        let seen = cluster("v1.33.5", "3.5.21-0");
        let mut request = request("v1.33.5", &["v1.33.4"]);
        request.direction = Direction::Back;
        let (verdict, why) = of(&seen, &request, "10.0.0.1", ETCD);
        assert_eq!(verdict, Verdict::Unknown, "{why}");
        assert!(why.contains("restored"), "{why}");
    }
}
