//! What a plan says about settings that change: which hosts are touched, what restarts. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::document::{CANNOT_BE_REACHED, Document, HostBefore, few};
use crate::observation::{HostSeen, Observation};
use crate::request::Request;
use imgctl_base::error::{Error, Result};
use imgctl_kube::restart::{BothWays, ContainerPrediction};
use imgctl_model::context::MASTER;
use imgctl_runtime::setting::Component;

/// Reports whether steps run on a host. The first control plane changes the cluster's objects.
pub(super) fn touch(observation: &Observation, request: &Request<'_>, host: &HostSeen) -> bool {
    if request.settings.is_empty() {
        return true;
    }
    let first = observation.hosts.iter().find(|one| one.is_control_plane());
    if first.is_some_and(|first| first.id == host.id) {
        return true;
    }
    let is_own =
        |component: Component| !matches!(component, Component::KubeProxy | Component::Later);
    request.settings.iter().any(|one| is_own(one.component) && one.hosts.contains(&host.id))
}

/// Fails if a host that gets other settings does not answer: it would keep the former ones, and
/// nothing would say so later.
pub(super) fn check_reach(
    hosts: &BTreeMap<String, HostBefore>,
    request: &Request<'_>,
) -> Result<()> {
    if request.settings.is_empty() {
        return Ok(());
    }
    let is_away = |host: &HostBefore| {
        host.skipped.as_ref().is_some_and(|why| why.starts_with(CANNOT_BE_REACHED))
    };
    let away: Vec<&String> =
        hosts.iter().filter(|(_, host)| is_away(host)).map(|(id, _)| id).collect();
    if away.is_empty() {
        return Ok(());
    }
    Err(Error::network(format!("{} cannot be reached, and its settings change", few(&away)))
        .hint("bring the host back, or remove it with `imgctl delete --force`, and apply again"))
}

/// Corrects the prediction for the containers of `host`: nothing restarts because of a hash.
pub(super) fn correct(ways: &mut BothWays, document: &Document, host: &HostSeen) {
    for component in Component::STATIC {
        let name = component.name();
        let changes = document
            .settings
            .iter()
            .any(|one| one.component == component && one.hosts.contains(&host.id));
        if changes {
            let is_it = |one: &ContainerPrediction| {
                one.is_static && one.namespace == "kube-system" && one.container == name
            };
            ways.forward.recreates("its settings change", is_it);
            ways.back.recreates("its settings change back", is_it);
        }
    }
    let stops_server = document.settings.iter().any(|one| {
        matches!(one.component, Component::KubeApiserver | Component::Etcd)
            && one.hosts.contains(&host.id)
    });
    if stops_server {
        let is_it = |one: &ContainerPrediction| {
            one.is_static
                && ["kube-controller-manager", "kube-scheduler"].contains(&one.container.as_str())
        };
        let why = "it ends when it cannot renew its lease while the API server restarts";
        ways.forward.perhaps_recreates(why, is_it);
        ways.back.perhaps_recreates(why, is_it);
    }
    if document.settings.iter().any(|one| one.component == Component::KubeProxy) {
        let is_it = |one: &ContainerPrediction| {
            one.namespace == "kube-system" && one.owner.as_deref() == Some("DaemonSet/kube-proxy")
        };
        ways.forward.recreates("it reads its settings when it starts", is_it);
        ways.back.recreates("it reads its settings when it starts", is_it);
    }
}

/// One line for each program that restarts, and what cannot be taken back.
pub(super) fn notes(document: &Document) -> Vec<String> {
    let components: BTreeSet<Component> =
        document.settings.iter().map(|one| one.component).collect();
    let mut notes: Vec<String> =
        components.iter().map(|component| restart(document, *component)).collect();
    let planes = document.hosts.values().filter(|host| host.roles.iter().any(|it| it == MASTER));
    if planes.count() == 1 && components.iter().any(|one| one.is_static() || *one == Component::K3s)
    {
        notes.push(
            "there is one control plane: the API does not answer while it restarts".to_owned(),
        );
    }
    notes
}

fn restart(document: &Document, component: Component) -> String {
    let mut hosts: Vec<&str> = document
        .settings
        .iter()
        .filter(|one| one.component == component)
        .flat_map(|one| &one.hosts)
        .map(String::as_str)
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    let hosts = few(&hosts);
    let name = component.name();
    match component {
        Component::Kubelet => {
            format!("kubelet restarts on {hosts}; containers of Pods keep running")
        }
        Component::Containerd => format!(
            "containerd restarts on {hosts}; containers keep running, Pods do not start meanwhile"
        ),
        Component::K3s => format!(
            "k3s restarts on {hosts}, with the API on servers; containers of Pods keep running"
        ),
        Component::KubeProxy => format!(
            "the Pods of kube-proxy are replaced on {hosts}, within their DaemonSet's maxUnavailable"
        ),
        Component::Later => {
            "what nothing reads now is recorded, for hosts that join and certificates that are \
             renewed later"
                .to_owned()
        }
        _ => format!(
            "the static Pod {name} is recreated on {hosts}; containers of Pods keep running"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Direction, Severity};
    use crate::plan::{Planned, plan};
    use crate::testing::{kubernetes, request};
    use imgctl_runtime::setting::Setting;

    fn setting(component: Component, hosts: &[&str]) -> Setting {
        Setting {
            document: "D".to_owned(),
            name: "x".to_owned(),
            old: None,
            new: Some("1".into()),
            component,
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        }
    }

    fn document(component: Component, hosts: &[&str]) -> Document {
        let mut request = request("v1.34.1", &["v1.34.1"]);
        request.settings = vec![setting(component, hosts)];
        match plan(&kubernetes(2, 2, "v1.34.1"), &request).unwrap() {
            Planned::Upgrade(document) => *document,
            Planned::Nothing(_) => panic!("nothing"),
        }
    }

    #[test]
    fn the_same_release_with_other_settings_is_a_change_of_the_hosts_that_they_concern() {
        let touched = |document: &Document| -> Vec<String> {
            let hosts = document.hosts.iter().filter(|(_, host)| host.skipped.is_none());
            hosts.map(|(id, _)| id.clone()).collect()
        };
        let planes = ["10.0.0.1", "10.0.0.2"];
        let all = ["10.0.0.1", "10.0.0.2", "10.1.0.1", "10.1.0.2"];
        let of = |component, hosts: &[&str]| document(component, hosts);
        let flags = of(Component::KubeApiserver, &planes);
        assert_eq!(touched(&flags), planes);
        assert_eq!(flags.control_planes, planes);
        assert!(flags.canary.is_empty() && flags.batches.is_empty(), "{flags:?}");
        assert!(flags.id.starts_with("settings-"), "{}", flags.id);
        assert_eq!(flags.kind(), "change of settings");
        assert!(flags.notes[0].contains("kube-apiserver is recreated on 10.0.0.1, 10.0.0.2"));
        assert_eq!(touched(&of(Component::Kubelet, &all)), all);
        // The objects of the cluster are changed from the first control plane.
        assert_eq!(touched(&of(Component::KubeProxy, &all)), ["10.0.0.1"]);
        assert_eq!(touched(&of(Component::Kubelet, &["10.1.0.2"])), ["10.0.0.1", "10.1.0.2"]);

        let mut back = request("v1.34.1", &["v1.34.1"]);
        back.settings = vec![setting(Component::KubeApiserver, &planes)];
        back.direction = Direction::Back;
        let Planned::Upgrade(back) = plan(&kubernetes(2, 2, "v1.34.1"), &back).unwrap() else {
            panic!("nothing")
        };
        assert_eq!(back.control_planes, ["10.0.0.2", "10.0.0.1"]);
        assert_eq!(back.kind(), "rollback");
    }

    #[test]
    fn a_setting_that_stops_the_api_can_be_taken_back() {
        let mut seen = kubernetes(1, 1, "v1.34.1");
        seen.api = None;
        seen.api_problem = Some("refused".to_owned());
        for (direction, severity) in
            [(Direction::Forward, Severity::Error), (Direction::Back, Severity::Warning)]
        {
            let mut request = request("v1.34.1", &["v1.34.1"]);
            request.settings = vec![setting(Component::KubeApiserver, &["10.0.0.1"])];
            request.direction = direction;
            let Planned::Upgrade(document) = plan(&seen, &request).unwrap() else {
                panic!("nothing")
            };
            let all = document.findings.iter().filter(|one| one.severity == Severity::Error);
            let errors: Vec<&str> = all.map(|one| one.check.as_str()).collect();
            let api = document.findings.iter().find(|one| one.check == "api").unwrap();
            assert_eq!(api.severity, severity);
            assert_eq!(errors.is_empty(), severity == Severity::Warning, "{errors:?}");
        }
    }

    #[test]
    fn a_host_that_does_not_answer_is_not_left_with_the_former_settings() {
        let mut request = request("v1.34.1", &["v1.34.1"]);
        request.settings = vec![setting(Component::Kubelet, &["10.0.0.1", "10.1.0.1"])];
        let mut seen = kubernetes(1, 1, "v1.34.1");
        seen.hosts[1].unreachable = Some("no route".to_owned());
        let error = plan(&seen, &request).unwrap_err();
        assert!(error.to_string().contains("10.1.0.1 cannot be reached"), "{error}");
        // One that keeps its settings may be away.
        request.settings = vec![setting(Component::KubeApiserver, &["10.0.0.1"])];
        assert!(plan(&seen, &request).is_ok());
    }
}
