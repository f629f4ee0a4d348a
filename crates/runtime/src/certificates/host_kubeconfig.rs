//! The administrator's kubeconfig that a host has, as the controller keeps it. A client runs programs, reads
//! files and takes ways that its kubeconfig names, and a host must not choose those for the operator: the
//! copy has the server, the authority, and the certificate and key (or else the token) of the current
//! context, and nothing else. Every kubeconfig of a host that reaches the controller's state goes through here.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::certificates::control_plane::{Entries, Login, named, render};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::Agent;
use imgctl_model::state_files::StateFiles;
use imgctl_template::yaml;

/// The controller's copy, below the cluster's directory.
const KEPT: &str = "etc/admin.conf";
/// Longest name of a cluster, user or context, in bytes.
const LONGEST_NAME: usize = 253;

/// Keeps the kubeconfig `text`, which `agent` has read from `path` on its host.
pub fn keep(state: &StateFiles, text: &str, agent: &dyn Agent, path: &str) -> Result<()> {
    state.write(KEPT, &harmless(text, &format!("{}: {path}", agent.host()))?)
}

/// Returns the kubeconfig with the parts that the controller keeps.
fn harmless(text: &str, source: &str) -> Result<String> {
    let wrong = |why: &str| {
        Error::bad_content(format!("{source} cannot be kept as the administrator's kubeconfig: {why}"))
            .hint("it needs a server, and the authority, certificate and key as data: see `kubectl config view --raw --flatten`")
    };
    // The underlying error may quote a line, and lines contain keys.
    let whole = yaml::parse(text).map_err(|_| wrong("it is not YAML"))?;
    let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |value: &Value| {
        let name = string(value);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:".contains(c);
        let is_name = !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_plain);
        if is_name { Ok(name) } else { Err(wrong("a name in it is missing or unusual")) }
    };
    let part = |list: &str, name: &str| {
        named(&whole, list, name).map_err(|_| wrong(&format!("it has no `{name}` in {list}")))
    };
    let context = name(&whole["current-context"])?;
    let chosen = &part("contexts", &context)?["context"];
    let (cluster, user) = (name(&chosen["cluster"])?, name(&chosen["user"])?);
    let of_cluster = &part("clusters", &cluster)?["cluster"];
    let of_user = &part("users", &user)?["user"];
    let server = string(&of_cluster["server"]);
    let place = server.strip_prefix("https://").unwrap_or_default().trim_end_matches('/');
    let is_place = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
    if place.is_empty() || !place.chars().all(is_place) {
        return Err(wrong("its server is not https://HOST:PORT"));
    }
    let pem = |value: &Value, what: &str| {
        let mut encoded = string(value);
        encoded.retain(|c| !c.is_ascii_whitespace());
        let bytes = STANDARD.decode(encoded).unwrap_or_default();
        let text = String::from_utf8(bytes).unwrap_or_default();
        if text.trim_start().starts_with("-----BEGIN ") {
            Ok(text)
        } else {
            Err(wrong(&format!("it has no {what} in PEM")))
        }
    };
    let token = string(&of_user["token"]);
    let is_token = |c: char| c.is_ascii_alphanumeric() || "-._~+/=:".contains(c);
    let certificate = pem(&of_user["client-certificate-data"], "client-certificate-data");
    let key = pem(&of_user["client-key-data"], "client-key-data");
    let login = match (&certificate, &key) {
        (Ok(certificate), Ok(key)) => Login::Certificate(certificate, key),
        _ if !token.is_empty() && token.chars().all(is_token) => Login::Token(&token),
        _ => return Err(certificate.and(key).err().unwrap_or_else(|| wrong("it has no login"))),
    };
    render(&Entries {
        cluster: &cluster,
        server: &format!("https://{place}"),
        authority: &pem(&of_cluster["certificate-authority-data"], "certificate-authority-data")?,
        context: &context,
        user: &user,
        login,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use serde_json::json;

    fn encoded(text: &str) -> String {
        STANDARD.encode(format!("-----BEGIN {text}-----\n"))
    }

    /// A kubeconfig with everything that client-go knows.
    fn everything() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a@k",
            "preferences": {"colors": true, "extensions": [{"name": "x", "extension": {}}]},
            "extensions": [{"name": "x", "extension": {}}],
            "clusters": [
                {"name": "k", "cluster": {
                    "server": "https://10.0.0.1:6443", "certificate-authority-data": encoded("CA"),
                    "certificate-authority": "/root/secret", "tls-server-name": "other",
                    "insecure-skip-tls-verify": true, "proxy-url": "http://evil:1",
                    "disable-compression": true, "extensions": []}},
                {"name": "evil", "cluster": {"server": "https://evil:1"}},
            ],
            "contexts": [
                {"name": "a@k", "context": {
                    "cluster": "k", "user": "a", "namespace": "evil", "extensions": []}},
                {"name": "evil", "context": {"cluster": "evil", "user": "evil"}},
            ],
            "users": [
                {"name": "a", "user": {
                    "client-certificate-data": encoded("CERTIFICATE"),
                    "client-key-data": encoded("KEY"),
                    "client-certificate": "/root/secret", "client-key": "/root/secret",
                    "token": "t", "tokenFile": "/root/secret", "username": "u", "password": "p",
                    "as": "evil", "as-uid": "evil", "as-groups": ["evil"],
                    "as-user-extra": {"evil": ["evil"]},
                    "auth-provider": {"name": "evil", "config": {"cmd-path": "/bin/evil"}},
                    "exec": {"command": "/bin/evil", "apiVersion": "client.authentication.k8s.io/v1"},
                    "extensions": []}},
                {"name": "evil", "user": {"exec": {"command": "/bin/evil"}}},
            ],
        })
    }

    /// The paths of all values, without positions in lists.
    fn paths(value: &Value, at: &str, all: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                map.iter().for_each(|(key, value)| paths(value, &format!("{at}/{key}"), all));
            }
            Value::Array(list) => list.iter().for_each(|value| paths(value, at, all)),
            _ => drop(all.insert(at.to_owned())),
        }
    }

    #[test]
    fn of_all_that_a_kubeconfig_can_have_only_this_is_kept() {
        let kept = harmless(&everything().to_string(), "h: f").unwrap();
        let mut found = BTreeSet::new();
        paths(&yaml::parse(&kept).unwrap(), "", &mut found);
        let expected = [
            "/apiVersion",
            "/clusters/cluster/certificate-authority-data",
            "/clusters/cluster/server",
            "/clusters/name",
            "/contexts/context/cluster",
            "/contexts/context/user",
            "/contexts/name",
            "/current-context",
            "/kind",
            "/users/name",
            "/users/user/client-certificate-data",
            "/users/user/client-key-data",
        ];
        assert_eq!(found, expected.map(str::to_owned).into());
        assert!(!kept.contains("evil") && !kept.contains("secret"), "{kept}");
        // What is kept once stays as it is.
        assert_eq!(harmless(&kept, "h: f").unwrap(), kept);
    }

    #[test]
    fn a_kubeconfig_that_lacks_a_part_or_hides_something_in_one_is_refused() {
        let refused = |change: fn(&mut Value)| {
            let mut value = everything();
            change(&mut value);
            let error = harmless(&value.to_string(), "10.0.0.1: /f").unwrap_err().to_string();
            assert!(error.starts_with("10.0.0.1: /f cannot be kept"), "{error}");
        };
        refused(|value| {
            value["clusters"][0]["cluster"]["server"] = json!("http://10.0.0.1:6443");
        });
        refused(|value| {
            value["clusters"][0]["cluster"]["server"] = json!("https://u:p@10.0.0.1");
        });
        refused(|value| {
            value["clusters"][0]["cluster"]["server"] = json!("https://10.0.0.1\nx: y");
        });
        refused(|value| {
            value["clusters"][0]["cluster"]["server"] = json!(["https://10.0.0.1"]);
        });
        refused(|value| {
            value["clusters"][0]["cluster"]["certificate-authority-data"] = json!("L3Jvb3Q=");
        });
        for part in ["client-certificate-data", "client-key-data"] {
            let mut value = everything();
            value["users"][0]["user"].as_object_mut().unwrap().remove(part);
            let kept = harmless(&value.to_string(), "h: f").unwrap();
            assert!(kept.contains("token: t\n") && !kept.contains("client-"), "{kept}");
            for odd in [json!(null), json!("a\nb: c"), json!(["t"]), json!("\u{1b}")] {
                value["users"][0]["user"]["token"] = odd;
                let error = harmless(&value.to_string(), "h: f").unwrap_err().to_string();
                assert!(error.contains(part), "{error}");
            }
        }
        refused(|value| {
            value["current-context"] = json!("evil");
        });
        refused(|value| {
            value["current-context"] = json!("\u{1b}[2J");
        });
        refused(|value| {
            *value = json!([]);
        });
        assert!(harmless("\t- : [", "h: f").is_err());
    }
}
