//! Kubeconfig files: written in kubeadm's format, and read for their certificate.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::runtime::certificates::leaf::Signed;
use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

const CLUSTER: &str = "kubernetes";

/// Returns the kubeconfig for `user` at `server`.
pub fn write(authority: &str, server: &str, user: &str, signed: &Signed) -> Result<String> {
    let context = format!("{user}@{CLUSTER}");
    let encoded = |pem: &str| STANDARD.encode(pem);
    let mut text = yaml::write(&json!({
        "apiVersion": "v1",
        "clusters": [{
            "cluster": {
                "certificate-authority-data": encoded(authority),
                "server": server,
            },
            "name": CLUSTER,
        }],
        "contexts": [{
            "context": { "cluster": CLUSTER, "user": user },
            "name": context,
        }],
        "current-context": context,
        "kind": "Config",
        "preferences": {},
        "users": [{
            "name": user,
            "user": {
                "client-certificate-data": encoded(&signed.certificate),
                "client-key-data": encoded(signed.key.pem.expose()),
            },
        }],
    }))?;
    text.push('\n');
    Ok(text)
}

/// Fields of a kubeconfig's current context.
pub struct Kubeconfig {
    pub server: String,
    pub authority: String,
    /// `None` if the certificate is in a separate file, as for the kubelet.
    pub certificate: Option<String>,
}

/// Reads the fields; fails if the text is not a kubeconfig.
pub fn read(text: &str) -> Result<Kubeconfig> {
    let wrong = || Error::bad_content("the kubeconfig cannot be read");
    let value = yaml::parse(text).map_err(|error| wrong().caused_by(error))?;
    let current = value["current-context"].as_str().unwrap_or_default();
    let context = &named(&value, "contexts", current)?["context"];
    let cluster = context["cluster"].as_str().unwrap_or_default();
    let cluster = &named(&value, "clusters", cluster)?["cluster"];
    let user = context["user"].as_str().unwrap_or_default();
    let user = &named(&value, "users", user)?["user"];
    let decoded = |value: &Value| -> Option<String> {
        let bytes = STANDARD.decode(value.as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    Ok(Kubeconfig {
        server: cluster["server"].as_str().unwrap_or_default().to_owned(),
        authority: decoded(&cluster["certificate-authority-data"]).unwrap_or_default(),
        certificate: decoded(&user["client-certificate-data"]),
    })
}

fn named<'a>(value: &'a Value, list: &str, name: &str) -> Result<&'a Value> {
    value[list]
        .as_array()
        .and_then(|entries| entries.iter().find(|entry| entry["name"] == name))
        .ok_or_else(|| Error::bad_content(format!("the kubeconfig has no `{name}` in {list}")))
}
