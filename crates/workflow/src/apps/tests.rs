//! Records and removals against the stand-in API.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::apps::objects::{ObjectAccess, whole_removal};
use crate::apps::prune::{Prune, Removal};
use crate::apps::record::{Installed, PART_OF, Records, Release, State, application};
use imgctl_base::error::{Kind, Result};
use imgctl_base::image::Digest;
use imgctl_kube::api::Api;
use imgctl_kube::objects::{ObjectName, Resources};
use imgctl_kube::testing::stand_in::StandIn;

fn installed() -> Installed {
    Installed {
        application: "docker.io/labring/my_shop".into(),
        image: "labring/my_shop:v1".into(),
        digest: Digest::of(b""),
        state: State::Installed,
        time: String::new(),
        registry: None,
        objects: vec![name("ConfigMap", "n", "a")],
        former: vec![name("ConfigMap", "n", "b"), name("ConfigMap", "n", "a")],
        releases: BTreeSet::new(),
    }
}

fn name(kind: &str, namespace: &str, name: &str) -> ObjectName {
    ObjectName {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

#[test]
fn versions_share_a_record_and_other_applications_do_not() {
    for image in ["labring/shop:v1", "docker.io/labring/shop", "labring/shop:v2"] {
        assert_eq!(application(image).unwrap(), "docker.io/labring/shop");
    }
    assert_eq!(application("reg.io:5000/a/b:1").unwrap(), "reg.io:5000/a/b");
    let one = installed();
    assert!(one.object().starts_with("app-myshop-"), "{}", one.object());
    let other = Installed { application: "quay.io/labring/My_Shop".into(), ..one.clone() };
    assert_ne!(one.object(), other.object());
    assert!(one.set().starts_with("applyset-") && one.set().ends_with("-v1"));
    // A label's value.
    assert!(one.set().len() <= 63, "{}", one.set());
    assert_eq!(one.all_objects().len(), 2);
}

#[test]
fn a_record_is_kept_replaced_and_removed() {
    let api = Arc::new(StandIn::new());
    let records = Records::new(Arc::<StandIn>::clone(&api));
    assert!(records.all().unwrap().is_empty());
    let mut one = installed();
    records.save(&one).unwrap();
    one.state = State::Installing;
    records.save(&one).unwrap();
    assert_eq!(records.all().unwrap()[&one.application], one);
    let path = format!("/api/v1/namespaces/imgctl-system/configmaps/{}", one.object());
    let map = api.peek(&path).unwrap();
    let kinds = &map["metadata"]["annotations"]["applyset.kubernetes.io/contains-group-kinds"];
    assert_eq!(kinds, "ConfigMap");
    // Its parts contradict each other, or it is another application's.
    for (member, value) in [("image", "evil/x:1"), ("application", "docker.io/evil/x")] {
        let mut forged = json!(one);
        forged[member] = json!(value);
        api.change(&path, |map| map["data"]["application.json"] = json!(forged.to_string()));
        assert_eq!(records.all().unwrap_err().kind(), Kind::BadContent, "{member}");
    }
    api.change(&path, |map| map["data"]["application.json"] = json!("{"));
    assert_eq!(records.all().unwrap_err().kind(), Kind::BadContent);
    records.remove(&one).unwrap();
    records.remove(&one).unwrap();
    assert!(records.all().unwrap().is_empty());
}

#[test]
fn a_record_never_exceeds_what_a_config_map_holds() {
    let api = Arc::new(StandIn::new());
    let records = Records::new(Arc::<StandIn>::clone(&api));
    let mut one = installed();
    let long = "x".repeat(200);
    one.objects = (0..9000).map(|n| name("ConfigMap", "n", &format!("{long}{n}"))).collect();
    records.save(&one).unwrap();
    let kept = records.all().unwrap().remove(&one.application).unwrap();
    assert!(!kept.objects.is_empty() && kept.objects.len() < 9000 && kept.former.is_empty());
}

/// Removes `objects` of the application; returns what stays, and what was said.
fn removed(
    api: &StandIn,
    objects: &[ObjectName],
    prune: Prune,
    releases: &[Release],
) -> (Result<Vec<ObjectName>>, String) {
    let api: Arc<dyn Api> = Arc::new(api.clone());
    let said = Mutex::new(String::new());
    let removal = Removal {
        resources: &Resources::new(Arc::clone(&api)),
        api: &api,
        set: "set",
        prune,
        releases: &releases.iter().cloned().collect(),
        patience: std::time::Duration::ZERO,
        say: &|text| {
            let mut said = said.lock().unwrap();
            said.push_str(text);
            said.push('\n');
        },
    };
    let kept = removal.remove(objects);
    (kept, said.into_inner().unwrap())
}

fn object(kind: &str, namespace: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": {PART_OF: "set"}},
    });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

#[test]
fn objects_go_in_reverse_and_only_if_they_are_still_the_applications() {
    let api = StandIn::new();
    let mut foreign = object("ConfigMap", "n", "foreign");
    foreign["metadata"]["labels"] = json!({});
    let mut kept = object("ConfigMap", "n", "kept");
    kept["metadata"]["annotations"] = json!({"argocd.argoproj.io/sync-options": "A=b,Prune=false"});
    api.add_all([
        object("ConfigMap", "n", "a"),
        object("Secret", "n", "b"),
        foreign,
        kept,
        object("PersistentVolumeClaim", "n", "data"),
    ]);
    let objects = [
        name("PersistentVolumeClaim", "n", "data"),
        name("ConfigMap", "n", "a"),
        name("Secret", "n", "b"),
        name("ConfigMap", "n", "foreign"),
        name("ConfigMap", "n", "kept"),
        name("ConfigMap", "n", "gone"),
        name("Unknown", "n", "kind"),
        name("ConfigMap", "../n", "hostile"),
    ];
    let (stays, said) = removed(&api, &objects, Prune::Objects, &[]);
    let stays: Vec<String> = stays.unwrap().iter().map(|one| one.name.clone()).collect();
    assert_eq!(stays, ["data", "kept"], "{said}");
    let deleted: Vec<String> =
        api.writes().iter().map(|one| one.path.rsplit('/').next().unwrap().to_owned()).collect();
    assert_eq!(deleted, ["b", "a"]);
    assert!(api.requests().iter().all(|one| !one.path.contains("..")));
    assert!(said.contains("foreign stays: its label"), "{said}");
    let (stays, _) = removed(&api, &objects, Prune::All, &[]);
    assert_eq!(stays.unwrap().len(), 1);
}

#[test]
fn a_namespace_goes_only_if_nobody_else_uses_it() {
    let api = StandIn::new();
    let mut strange = object("Secret", "shop", "strange");
    strange["metadata"]["labels"] = json!({});
    let mut root = object("ConfigMap", "shop", "kube-root-ca.crt");
    root["metadata"]["labels"] = json!({});
    let mut owned = object("Pod", "shop", "owned");
    owned["metadata"]["ownerReferences"] = json!([{"kind": "ReplicaSet"}]);
    owned["metadata"]["labels"] = json!({});
    api.add_all([object("Namespace", "", "shop"), object("Namespace", "", "default")]);
    api.add_all([strange, root, owned]);
    let objects = [name("Namespace", "", "shop"), name("Namespace", "", "default")];
    let (stays, said) = removed(&api, &objects, Prune::All, &[]);
    assert_eq!(stays.unwrap().len(), 2);
    assert!(said.contains("it holds Secret strange"), "{said}");
    assert!(said.contains("it belongs to the cluster"), "{said}");
    api.remove("/api/v1/namespaces/shop/secrets/strange");
    let (stays, _) = removed(&api, &objects, Prune::All, &[]);
    assert_eq!(stays.unwrap(), [name("Namespace", "", "default")]);
}

fn of_release(name: &str, namespace: &str, release: &str) -> Value {
    let mut one = object("ConfigMap", "n", name);
    one["metadata"]["annotations"] = json!({
        "meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace,
    });
    one
}

fn helm_record(namespace: &str, release: &str) -> (Value, String) {
    let mut secret = object("Secret", namespace, &format!("sh.helm.release.v1.{release}.v1"));
    secret["metadata"]["labels"] = json!({"owner": "helm", "name": release});
    let path = format!("/api/v1/namespaces/{namespace}/secrets/sh.helm.release.v1.{release}.v1");
    (secret, path)
}

#[test]
fn only_recorded_releases_of_helm_go_whatever_objects_say_of_theirs() {
    let api = StandIn::new();
    let (own, own_path) = helm_record("n", "r");
    let (system, system_path) = helm_record("kube-system", "cilium");
    api.add_all([own, system]);
    api.add_all([of_release("a", "n", "r"), of_release("b", "kube-system", "cilium")]);
    let objects = ["a", "b"].map(|one| name("ConfigMap", "n", one));
    removed(&api, &objects[..1], Prune::Objects, &[]).0.unwrap();
    assert!(api.peek(&own_path).is_some());
    let release = |namespace: &str, name: &str| Release {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let releases = [release("n", "r"), release("n", "r/../x"), release("n?", "r")];
    let (_, said) = removed(&api, &objects[1..], Prune::Objects, &releases);
    assert!(said.contains("Secret n/sh.helm.release.v1.r.v1 of Helm is removed"), "{said}");
    assert!(api.peek(&own_path).is_none());
    assert!(api.peek(&system_path).is_some());
    assert!(api.requests().iter().all(|one| !one.path.contains("..")));
}

#[test]
fn releases_are_recorded_with_the_installation_and_shown_before_they_go() {
    let api = StandIn::new();
    let unlabelled = |mut object: Value| {
        object["metadata"]["labels"] = json!({});
        object
    };
    api.add_all([
        unlabelled(of_release("a", "n", "r")),
        unlabelled(of_release("b", "kube-system", "cilium")),
        unlabelled(of_release("c", "n", "../r")),
    ]);
    let access = ObjectAccess::new(Arc::new(api.clone()));
    let sent = ["a", "b", "c"].map(|one| name("ConfigMap", "n", one));
    access.record(&installed(), &sent, &|_| {}).unwrap();
    let known = access.records.all().unwrap().remove(&installed().application).unwrap();
    let releases: Vec<String> = known.releases.iter().map(ToString::to_string).collect();
    assert_eq!(releases, ["n/r"]);
    let notes = whole_removal(&known, Prune::Objects).join("\n");
    assert!(notes.contains("Helm's records of these releases are removed: n/r"), "{notes}");
}
