//! Reading, writing, mistakes, and limits for any input text.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use imgctl_base::secret::Secret;
use imgctl_host::render::{ConfigEdit, Strategy as ConfigStrategy};

const WHOLE: &str = r#"
apiVersion: apps.sealos.io/v1beta1
kind: Config
metadata:
  name: hosts
spec:
  path: etc/x.yaml
  strategy: merge
  match: app:v1
  data: |
    a: 1
---
apiVersion: apps.sealos.io/v1beta1
kind: Cluster
metadata:
  name: default
  creationTimestamp: null
spec:
  hosts:
  - ips: ["10.0.0.1:22", "10.0.0.2:2222"]
    roles: [master, amd64]
    env: [A=host, "B=x=y"]
    ssh: {user: ops, pk: [~/.ssh/a, /b], port: 2222}
  - ips: [10.0.0.3]
    roles: [node, registry]
  image:
  - labring/kubernetes:v1.29.9
  - app:v1
  env: [A=1, A=2]
  ssh: {user: root, passwdFrom: {env: PW}, pk: ~/.ssh/id_ed25519, port: 22}
status: {}
---
apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
networking: {podSubnet: 10.1.0.0/16}
---
cluster-cidr: 10.42.0.0/16
tls-san: [a]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: mine}
"#;

#[test]
fn a_whole_file_in_any_order_is_read_and_survives_writing() {
    let (read_, notes) = read(WHOLE, "f").unwrap();
    let cluster = &read_.cluster;
    assert_eq!((cluster.name.as_str(), &cluster.created), ("default", &None));
    assert_eq!(cluster.images, ["labring/kubernetes:v1.29.9", "app:v1"]);
    assert_eq!(cluster.environment["A"], "2");
    assert_eq!(cluster.hosts[0].environment["B"], "x=y");
    assert_eq!(cluster.ssh.password, Some(SecretSource::Variable("PW".into())));
    assert_eq!(cluster.hosts[0].ssh.as_ref().unwrap().keys.len(), 2);
    assert_eq!(read_.configs[0].strategy, ConfigStrategy::Merge);
    assert_eq!(read_.configs[0].data, "a: 1\n");
    assert_eq!(read_.documents.len(), 2);
    assert_eq!(read_.documents[0]["networking"], json!({"podSubnet": "10.1.0.0/16"}));
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("`A` is set twice"), "{notes:?}");
    assert!(notes[1].contains("ConfigMap"), "{notes:?}");

    let text = read_.write().unwrap();
    assert!(text.starts_with("apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\n"));
    let (again, _) = read(&text, "g").unwrap();
    assert_eq!(again, read_);
    assert_eq!(again.write().unwrap(), text);
}

fn with_spec(spec: &str) -> String {
    format!(
        "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: a\nspec:\n{spec}\n"
    )
}

#[test]
fn mistakes_are_told_with_line_and_advice() {
    let cases = [
        ("  imgae: [x]", "f:6: unknown field `spec.imgae`; did you mean `image`?"),
        ("  image: x", "f:6: `spec.image` must be a list, not a text"),
        ("  image: [5]", "`spec.image[0]` must be a text, not a number (`5`)"),
        ("  image: ['A B']", "f:6: `spec.image[0]`: "),
        ("  env: [A]", "`spec.env[0]`: `A` has no `=`"),
        ("  env: [SEALOS_SYS_X=1]", "is reserved"),
        ("  ssh: {passwd: 123456}", "`spec.ssh.passwd` must be a text, not a number"),
        ("  ssh: {port: 70000}", "must be a port"),
        ("  ssh: {passwd: x, passwdFrom: {env: Y}}", "mutually exclusive"),
        ("  ssh: {passwdFrom: {evn: Y}}", "did you mean `env`?"),
        (
            "  hosts:\n  - ips: [10.0.0.1]\n    roles: [mastre]",
            "f:7: `spec.hosts[0].roles` has neither `master` nor `node`; `mastre`: did you mean `master`?",
        ),
        ("  hosts:\n  - roles: [master]", "`spec.hosts[0].ips` lists no hosts"),
        ("  hosts:\n  - ips: [10.0.0.1/99]\n    roles: [master]", "f:7: `spec.hosts[0].ips[0]`: "),
        ("  hosts: {}", "`spec.hosts` must be a list, not a mapping"),
    ];
    for (spec, expected) in cases {
        let error = read(&with_spec(spec), "f").unwrap_err();
        let told = error.to_string();
        assert!(told.contains(expected), "{spec}\n{told}\nnot: {expected}");
        assert!(!told.contains("123456"), "a password is shown: {told}");
    }
}

#[test]
fn documents_that_are_wrong_double_or_missing() {
    let cluster = with_spec("  image: []");
    for (text, expected) in [
        ("", "no document of kind Cluster"),
        (
            &*format!("{cluster}---\n{cluster}"),
            "f:8: a second document of kind Cluster; the first is on line 1",
        ),
        (&cluster.replace("Cluster", "Clutser"), "did you mean Cluster?"),
        (&cluster.replace("v1beta1", "v1"), "`apiVersion` is `apps.sealos.io/v1`"),
        (&cluster.replace("name: a", "name: ../a"), "not a valid cluster name"),
        (&format!("{cluster}---\nspec: 1\n"), "has no `kind`"),
        (&format!("{cluster}---\n- 1\n"), "the document must be a mapping"),
        (&cluster.replace("spec:", "sepc:"), "did you mean `spec`?"),
    ] {
        let error = read(text, "f").unwrap_err().to_string();
        assert!(error.contains(expected), "{text}\n{error}");
    }
    // All mistakes are reported at once.
    let error = read(&with_spec("  a: 1\n  b: 2"), "f").unwrap_err().to_string();
    assert!(error.contains("f:6:") && error.contains("f:7:"), "{error}");
    // A Cluster document cannot be added.
    assert!(read_additions(&cluster, "f").is_err());
    let kubeadm = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n";
    assert_eq!(read_additions(kubeadm, "f").unwrap().0.documents.len(), 1);
}

#[test]
fn configs_stay_inside_the_image() {
    let config = |spec: &str| {
        format!(
            "apiVersion: apps.sealos.io/v1beta1\nkind: Config\nmetadata: {{name: c}}\nspec: {spec}\n"
        )
    };
    for (spec, expected) in [
        ("{path: ../x, data: a}", "without `..`"),
        ("{path: /etc/x, data: a}", "relative"),
        ("{data: a}", "`spec.path` is missing"),
        ("{path: x, data: {a: 1}}", "`spec.data` must be a text"),
        ("{path: x, strategy: replace}", "must be override, insert, append or merge"),
    ] {
        let error = read_additions(&config(spec), "f").unwrap_err().to_string();
        assert!(error.contains(expected), "{spec}: {error}");
    }
    let (read_, _) = read_additions(&config("{path: etc/x, data: a, strategy: ''}"), "f").unwrap();
    assert_eq!(read_.configs[0].strategy, ConfigStrategy::Override);
}

#[test]
fn what_a_tool_has_written_is_read_without_severity() {
    let text = with_spec("  future: 1\n  env: [SEALOS_SYS_X=1, A=1]");
    assert!(read(&text, "f").is_err());
    let (read_, notes) = read_stored(&text, "f").unwrap();
    assert_eq!(read_.cluster.environment.len(), 1);
    assert_eq!(notes.len(), 2, "{notes:?}");
}

#[test]
fn secrets_are_not_shown() {
    let (read_, _) = read(&with_spec("  ssh: {passwd: hunter22, pkData: KEYKEY}"), "f").unwrap();
    let told = format!("{read_:?}");
    assert!(!told.contains("hunter22") && !told.contains("KEYKEY"), "{told}");
    assert_eq!(read_.cluster.ssh.inline_secrets().count(), 2);
}

#[test]
fn no_text_makes_the_reader_panic_and_what_is_read_is_stable() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        for text in [
            text.clone().into_owned(),
            with_spec(&text),
            format!("{}---\n{text}", with_spec("  image: []")),
        ] {
            if let Ok((first, _)) = read(&text, "f") {
                let written = first.write().unwrap();
                let (second, _) = read(&written, "g").unwrap();
                assert_eq!(second, first, "{written}");
            }
            let _ = read_stored(&text, "f");
        }
    });
}

/// Generates texts with awkward characters.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,12}",
        "[a-z: #'\"{}\\[\\]&*!|>%@`,\\\\\n\t-]{0,12}",
        "\\PC{0,8}",
        Just("yes".to_owned()),
        Just("0123".to_owned()),
        Just("1e3".to_owned()),
        Just("~".to_owned()),
        Just("null".to_owned()),
        Just("a\n\n  b\n".to_owned()),
        Just("\n".to_owned()),
        Just(" lead".to_owned()),
        Just("trail ".to_owned()),
        Just("---\n".to_owned()),
        Just("2001-01-01T00:00:00Z".to_owned()),
    ]
}

fn table() -> impl Strategy<Value = BTreeMap<String, String>> {
    proptest::collection::btree_map("[A-Z_][A-Z0-9_]{0,6}", text(), 0..4)
        .prop_map(|table| table.into_iter().filter(|(k, _)| !k.starts_with("SEALOS_SYS")).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back(
        environment in table(),
        of_host in table(),
        of_status in table(),
        labels in table(),
        command in proptest::collection::vec(text(), 0..3),
        password in text(),
        data in text(),
        message in text(),
    ) {
        let password = password.replace('\0', "");
        let clusterfile = Clusterfile {
            cluster: ClusterDocument {
                name: "c".into(),
                created: Some("2024-01-02T03:04:05Z".into()),
                images: vec!["a/b:c".into()],
                ssh: Ssh {
                    password: (!password.is_empty())
                        .then(|| SecretSource::Inline(Secret::new(password))),
                    ..Ssh::default()
                },
                hosts: vec![HostGroup {
                    ips: vec!["10.0.0.1:22".into()],
                    roles: vec!["master".into()],
                    environment: of_host,
                    ssh: None,
                }],
                environment,
                command: command.clone(),
                status: Status {
                    phase: Some(Phase::Success),
                    mounts: vec![Mount {
                        name: "m".into(),
                        labels,
                        command,
                        ..Mount::default()
                    }],
                    conditions: vec![Condition { message, ..Condition::default() }],
                    environment: of_status,
                    ..Status::default()
                },
                ..ClusterDocument::default()
            },
            configs: vec![ConfigEdit {
                name: "x".into(),
                path: "etc/x".into(),
                image: None,
                strategy: ConfigStrategy::Append,
                data,
            }],
            ..Clusterfile::default()
        };
        let written = clusterfile.write().unwrap();
        let (again, _) = read(&written, "f").unwrap();
        prop_assert_eq!(&again, &clusterfile, "{}", written);
        prop_assert_eq!(again.write().unwrap(), written);
    }
}
