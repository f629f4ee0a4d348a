//! Checks that etcd tolerates the loss of the member being upgraded.

use crate::finding::{error, note, warning};
use crate::preflight::look::Look;
use crate::{document::Finding, request::Target};
use imgctl_runtime::version::{minor, minors_between, order_of};

/// Database size above which a warning is given; etcd's default quota is 2 GiB.
const LARGE: u64 = 1_600 << 20;
/// Minimum member version for an upgrade to etcd 3.6; older members have problems with learner
/// promotion and zombie members.
const BEFORE_3_6: &str = "3.5.20";
const BEST_BEFORE_3_6: &str = "3.5.26";

pub(super) fn members(look: &Look<'_>) -> Vec<Finding> {
    let observation = look.observation;
    if look.document.identity.external_etcd {
        return vec![note(
            "etcd",
            "etcd is external: its members are not touched, and you must take its snapshot \
             yourself",
        )];
    }
    let planes: Vec<_> = observation.hosts.iter().filter(|host| host.is_control_plane()).collect();
    let Some(etcd) = &observation.etcd else {
        let told = observation.etcd_problem.as_ref();
        return told
            .map(|why| {
                error("etcd", format!("cannot query etcd: {why}"))
                    .hint("check etcd on the control planes: `crictl ps -a --name etcd`")
            })
            .into_iter()
            .collect();
    };
    let mut found = Vec::new();
    if etcd.members.len() != planes.len() {
        let names: Vec<&str> = etcd.members.iter().map(|member| member.name.as_str()).collect();
        let what = format!(
            "etcd has {} members ({}), but the cluster has {} control planes",
            names.len(),
            names.join(", "),
            planes.len()
        );
        found.push(error("etcd", what).hint("remove lost members: `etcdctl member remove`"));
    }
    for member in &etcd.members {
        if member.version.is_none() {
            let what = format!("etcd member {} ({}) does not answer", member.name, member.endpoint);
            let hint = "bring it back first: the upgrade takes another member out of service";
            found.push(error("etcd", what).hint(hint));
        }
        if member.learner {
            let what = format!("etcd member {} is a learner", member.name);
            found.push(
                error("etcd", what).hint("promote it (`etcdctl member promote`) or remove it"),
            );
        }
        if member.db_bytes > LARGE {
            let what = format!(
                "etcd's database on {} has {} MiB: it is near its quota, and a snapshot takes long",
                member.name,
                member.db_bytes >> 20
            );
            found.push(
                warning("etcd-size", what)
                    .hint("run `etcdctl compact` and `etcdctl defrag`, one member at a time"),
            );
        }
    }
    for alarm in &etcd.alarms {
        found.push(
            error("etcd", format!("etcd has raised the alarm {alarm}"))
                .hint("fix its cause, then run `etcdctl alarm disarm`"),
        );
    }
    if planes.len() == 1 && !look.document.control_planes.is_empty() {
        found.push(note(
            "single-control-plane",
            "there is only one control plane: the API is unavailable for some minutes while it is \
             upgraded",
        ));
    }
    found
}

/// etcd 3.6, which Kubernetes 1.34's kubeadm installs, requires a recent 3.5.
pub(super) fn versions(look: &Look<'_>) -> Vec<Finding> {
    let Some(etcd) = look.observation.etcd.as_ref().filter(|_| look.is_forward()) else {
        return Vec::new();
    };
    let brings = look.target().and_then(Target::etcd);
    // If the image does not declare its etcd: kubeadm 1.34 installs a 3.6, and 1.37 a 3.7.
    let (to, called) = match &brings {
        Some(version) => (version.as_str(), version.as_str()),
        None if look.is_kubeadm() && look.new_minors().contains(&37) => ("3.7.0", "etcd 3.7"),
        None if look.is_kubeadm() && look.new_minors().contains(&34) => ("3.6.0", "etcd 3.6"),
        None => return Vec::new(),
    };
    let mut found = Vec::new();
    for member in &etcd.members {
        let Some(version) = &member.version else {
            continue;
        };
        let below = |least: &str| order_of(version, least).is_some_and(std::cmp::Ordering::is_lt);
        let from_3_5 = minors_between("3.5.0", version) == Some(0)
            && minors_between(version, "3.5.0") == Some(0);
        let to_3_6 = minors_between("3.5.0", to).is_some_and(|minors| minors > 0);
        let name = &member.name;
        if order_of(version, to).is_some_and(std::cmp::Ordering::is_gt) {
            let what = format!(
                "etcd member {name} is at {version}; the image ships {called}: etcd is not changed"
            );
            found.push(note("etcd-version", what));
        } else if minors_between(version, to).is_none_or(|minors| minors > 1) {
            let what = format!(
                "etcd member {name} is at {version}, the image ships {called}: etcd upgrades one \
                 minor at a time"
            );
            found.push(
                error("etcd-version", what)
                    .hint("upgrade first to an image with the minor between"),
            );
        } else if from_3_5 && to_3_6 && below(BEFORE_3_6) {
            let what = format!(
                "etcd member {name} is at {version}: {called} requires {BEFORE_3_6} or newer"
            );
            found.push(
                error("etcd-version", what)
                    .hint("upgrade to the latest patch of the cluster's own minor first"),
            );
        } else if from_3_5 && to_3_6 && below(BEST_BEFORE_3_6) {
            let what = format!(
                "etcd member {name} is at {version}: {BEST_BEFORE_3_6} is recommended before \
                 {called}"
            );
            found.push(
                warning("etcd-version", what)
                    .hint("upgrade to the latest patch of the cluster's own minor first"),
            );
        }
    }
    found
}

/// An older etcd cannot read data written by a newer one. If all members are newer, the control
/// planes are rolled back together with their old data, or keep the newer etcd.
pub(super) fn downgrade(look: &Look<'_>) -> Vec<Finding> {
    let to_snapshot = look.request.to_snapshot;
    if look.is_forward() || to_snapshot || look.document.control_planes.is_empty() {
        return Vec::new();
    }
    let Some(version) = newer_etcd(look) else {
        return Vec::new();
    };
    let what = format!(
        "etcd is at {version} on all control planes; that of {} cannot read its data",
        look.document.target().version
    );
    vec![error("etcd-downgrade", what).hint(
        "run `imgctl rollback --from-snapshot FILE --i-understand-data-loss` to restore the old \
         data (the file is in ~/.sealos/<cluster>/backup/<upgrade>); pass `--scope workers` to \
         roll back only the workers, or --skip-check etcd-downgrade to keep the newer etcd under \
         the older control planes",
    )]
}

/// Returns the running etcd's version if a rollback crosses a release that raised etcd's minor and
/// no member has the former one.
pub(super) fn newer_etcd<'a>(look: &Look<'a>) -> Option<&'a str> {
    let etcd = look.observation.etcd.as_ref().filter(|_| look.is_kubeadm())?;
    // The target image of the rollback declares its etcd; otherwise it follows from the Kubernetes
    // release.
    let brings = look.target()?.etcd();
    let former = of_kubeadm(minor(&look.document.target().version)?);
    let own = match brings.as_deref().and_then(minor) {
        Some(own) => own,
        None if of_kubeadm(minor(&look.document.from.version)?) > former => former,
        None => return None,
    };
    let mut newest = None;
    for member in &etcd.members {
        let version = member.version.as_deref()?;
        if minor(version)? <= own {
            return None;
        }
        newest = Some(version);
    }
    newest
}

/// Minor of the etcd 3 that kubeadm of a Kubernetes minor ships.
fn of_kubeadm(kubernetes: u64) -> u64 {
    match kubernetes {
        ..34 => 5,
        34..37 => 6,
        37.. => 7,
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::{EtcdSeen, MemberSeen};
    use crate::request::Request;
    use crate::testing::{document, kubernetes, request};

    /// Kubernetes 1.34.1 has etcd 3.6.4-0, 1.34.2 has 3.6.5-0: the image declares which.
    #[test]
    fn findings_name_the_etcd_that_the_image_brings() {
        let mut cluster = kubernetes(1, 0, "v1.33.1");
        cluster.etcd = Some(EtcdSeen {
            members: vec![MemberSeen {
                name: "a".into(),
                version: Some("3.5.21".into()),
                ..MemberSeen::default()
            }],
            alarms: Vec::new(),
        });
        let mut request = request("v1.33.1", &["v1.34.2"]);
        let told = |request: &Request<'_>| {
            let found = document(&cluster, request).findings;
            let told = found.iter().find(|one| one.check == "etcd-version");
            told.unwrap().what.clone()
        };
        assert!(told(&request).ends_with("before etcd 3.6"));
        for image in request.targets[0].images.values_mut() {
            let list = r#"{"registry.k8s.io/etcd:3.6.5-0":"sha256:0"}"#;
            image.labels.insert("io.imgctl.images".into(), list.into());
        }
        assert!(told(&request).ends_with("before 3.6.5"), "{}", told(&request));
    }
}
