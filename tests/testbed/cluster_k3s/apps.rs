//! Objects of applications on a cluster of hosts: recorded on the first control plane while the commands of
//! images run there, pruned and removed.

use crate::cluster_etcd::support::killed;
use crate::cluster_k3s::{ClusterApi, keyed};
use crate::common::long;
use crate::common::testbed::Bed;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Stands in for kubectl: creates the ConfigMaps of a file that has one per line.
const KUBECTL: &str = r#"#!/bin/bash
set -e
[ "$1 $2" = 'apply -f' ] || { echo "kubectl: $*" >&2; exit 1; }
config=/etc/rancher/k3s/k3s.yaml
server=$(sed -n "s/.*server: *['\"]*\(https:[^'\"]*\).*/\1/p" $config | head -n 1)
token=$(sed -n 's/.*token: *\([a-z]*\).*/\1/p' $config | head -n 1)
grep '^{' "$3" | while read -r line; do
  curl -sS -k --http2 -o /dev/null -H "Authorization: Bearer $token" -H 'Content-Type: application/json' \
    --data-binary "$line" "$server/api/v1/namespaces/default/configmaps"
done
"#;

fn build(bed: &Bed, version: &str, maps: &[&str]) {
    let mut text = String::new();
    for map in maps {
        text.push_str(&format!(
            "---\n{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"{map}\"}}}}\n"
        ));
    }
    // The image brings its kubectl, as many do.
    let kubefile = "FROM scratch\nCOPY . .\n\
        CMD [\"command -v helm || install -m 755 kubectl /usr/local/sbin/kubectl\", \"kubectl apply -f all.yaml\"]\n";
    let files = [("kubectl", KUBECTL), ("all.yaml", &*text)];
    let context = bed.env.context(&format!("shop-{version}"), kubefile, &files);
    bed.env.build(&format!("shop:{version}"), &context);
}

/// Returns the records of applications in the order in which they were written.
fn recorded(api: &ClusterApi) -> Vec<Value> {
    let found = api.api.requests();
    let written = found.iter().filter(|one| one.is_write() && one.path.contains("imgctl-system"));
    written.filter(|one| one.body["kind"] == "ConfigMap").map(|one| one.body.clone()).collect()
}

pub(super) fn pruned(bed: &Bed, api: &ClusterApi) {
    build(bed, "v1", &["both", "old"]);
    build(bed, "v2", &["both", "new"]);
    let has = |name: &str| api.api.peek(&format!("{MAPS}/{name}")).is_some();

    keyed(bed, &["run", "shop:v1", "--no-wait"]).ok();
    assert!(has("both") && has("old"));
    let record = recorded(api).pop().unwrap();
    let record: Value =
        serde_json::from_str(record["data"]["application.json"].as_str().unwrap()).unwrap();
    assert_eq!(record["state"], "installed");
    assert_eq!(record["objects"].as_array().unwrap().len(), 2, "{record}");
    let left = bed.exec(1, "ls -A /var/lib/sealos/data/default/recording").stdout();
    assert_eq!(left, "");

    let prune = ["run", "shop:v2", "--no-wait", "--prune"];
    let dry = keyed(bed, &[&prune[..], &["--dry-run"]].concat()).ok().report();
    assert!(dry.contains("ConfigMap default/old"), "{dry}");
    assert!(has("old") && !has("new"), "a dry run changes nothing");
    keyed(bed, &[&prune[..], &["--yes"]].concat()).ok();
    assert!(has("both") && has("new") && !has("old"));
    let nothing = keyed(bed, &[&prune[..], &["--dry-run"]].concat()).ok().report();
    assert!(nothing.contains("no objects of former versions"), "{nothing}");

    // The image has no command for its removal: its objects go.
    let uninstall = ["uninstall", "shop:v2", "--yes"];
    let dry = keyed(bed, &["uninstall", "shop:v2", "--dry-run"]).ok().report();
    assert!(dry.contains("ConfigMap default/new"), "{dry}");
    keyed(bed, &uninstall).ok();
    assert!(!has("both") && !has("new"));
}

/// The controller dies after a record of `run --prune` and of `uninstall`: repeating the command completes each, and
/// nothing of the removed version remains.
pub(super) fn killed_anywhere(bed: &Bed, api: &ClusterApi) {
    let has = |name: &str| api.api.peek(&format!("{MAPS}/{name}")).is_some();
    let install = ["run", "shop:v1", "--no-wait", "--force", "--yes"];
    let prune = ["run", "shop:v2", "--no-wait", "--prune", "--yes"];
    let uninstall = ["uninstall", "shop:v2", "--yes"];
    let again = |command: &[&str], record: u64| {
        let died = killed(bed, command, record);
        if died {
            let ran = keyed(bed, command);
            // It died after its last change.
            let is_over = ran.stderr().contains("has no image shop:v2");
            assert!(ran.success() || is_over, "{record}: {}", ran.report());
        }
        died
    };
    // Records of `run --prune` and of `uninstall`, which has fewer.
    let records: Vec<(u64, u64)> =
        if long() { (1..60).map(|at| (at, at)).collect() } else { vec![(5, 3), (10, 6)] };
    let mut kills = 0;
    for (record, of_uninstall) in records {
        keyed(bed, &install).ok();
        assert!(has("both") && has("old"), "{record}");
        let mut died = again(&prune, record);
        kills += usize::from(died);
        assert!(has("both") && has("new") && !has("old"), "{record}");
        let written = recorded(api).pop().unwrap();
        let known: Value =
            serde_json::from_str(written["data"]["application.json"].as_str().unwrap()).unwrap();
        assert_eq!(known["state"], "installed", "{record}: {known}");
        assert_eq!(known["objects"].as_array().unwrap().len(), 2, "{record}: {known}");
        assert_eq!(known["former"], json!([]), "{record}: {known}");
        let left = bed.exec(1, "ls -A /var/lib/sealos/data/default/recording").stdout();
        assert_eq!(left, "", "{record}");

        let uninstalling = again(&uninstall, of_uninstall);
        died |= uninstalling;
        kills += usize::from(uninstalling);
        assert!(!has("both") && !has("new"), "{record}");
        let name = written["metadata"]["name"].as_str().unwrap();
        let map = format!("/api/v1/namespaces/imgctl-system/configmaps/{name}");
        assert!(api.api.peek(&map).is_none(), "{record}: the record is left");
        if !died {
            break;
        }
    }
    println!("{kills} kills of run --prune and uninstall");
    assert!(kills > 2);
    bed.says(1, "rm /usr/local/sbin/kubectl");
}
