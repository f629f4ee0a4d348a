//! Converts a [`Clusterfile`] to text: the Cluster first, then Config, kubeadm and k3s documents
//! and all others. Reading the text returns the same value.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::clusterfile::model::{ClusterDocument, Clusterfile, HostGroup, Status};
use crate::clusterfile::read::API_VERSION;
use imgctl_base::error::Result;
use imgctl_host::render::ConfigEdit;
use imgctl_template::yaml;

impl Clusterfile {
    /// Returns all documents as YAML. Contains secrets: only for files of mode 0600.
    pub fn write(&self) -> Result<String> {
        let cluster = std::iter::once(self.cluster.to_value());
        let documents = cluster
            .chain(self.configs.iter().map(config))
            .chain(self.documents.iter().cloned())
            .chain(self.others.iter().cloned());
        let texts = documents.map(|document| yaml::write(&document)).collect::<Result<Vec<_>>>()?;
        Ok(format!("{}\n", texts.join("\n---\n")))
    }
}

impl ClusterDocument {
    fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        put(&mut metadata, "creationTimestamp", &self.created);
        put(&mut metadata, "deletionTimestamp", &self.deleted);
        put(&mut metadata, "uid", &self.uid);
        metadata.extend(self.metadata.clone());
        metadata.insert("name".into(), self.name.as_str().into());

        let mut spec = Map::new();
        put_list(&mut spec, "image", &self.images);
        if !self.ssh.is_empty() {
            spec.insert("ssh".into(), self.ssh.to_value());
        }
        if !self.hosts.is_empty() {
            spec.insert("hosts".into(), self.hosts.iter().map(host_group).collect());
        }
        put_list(&mut spec, "env", &pairs(&self.environment));
        put_list(&mut spec, "command", &self.command);
        if let Some(renew) = self.renew_certificates {
            spec.insert("certificates".into(), json!({ "renew": renew }));
        }
        if let Some(share) = self.share_images {
            spec.insert("registry".into(), json!({ "peers": share }));
        }

        let mut document = Map::new();
        document.insert("apiVersion".into(), API_VERSION.into());
        document.insert("kind".into(), "Cluster".into());
        document.insert("metadata".into(), metadata.into());
        document.insert("spec".into(), spec.into());
        let status = status(&self.status);
        if !status.is_empty() {
            document.insert("status".into(), status.into());
        }
        document.into()
    }
}

fn host_group(group: &HostGroup) -> Value {
    let mut object = Map::new();
    put_list(&mut object, "ips", &group.ips);
    put_list(&mut object, "roles", &group.roles);
    put_list(&mut object, "env", &pairs(&group.environment));
    if let Some(ssh) = &group.ssh {
        object.insert("ssh".into(), ssh.to_value());
    }
    object.into()
}

fn config(config: &ConfigEdit) -> Value {
    let mut spec = Map::new();
    spec.insert("path".into(), config.path.as_str().into());
    put(&mut spec, "match", &config.image);
    spec.insert("strategy".into(), json!(config.strategy));
    spec.insert("data".into(), config.data.as_str().into());
    json!({
        "apiVersion": API_VERSION,
        "kind": "Config",
        "metadata": {"name": config.name},
        "spec": spec,
    })
}

fn status(status: &Status) -> Map<String, Value> {
    let mut object = Map::new();
    let phase = status.phase.map(|phase| phase.as_str().to_owned());
    put(&mut object, "phase", &phase);
    put_values(&mut object, "mounts", &status.mounts);
    put_values(&mut object, "conditions", &status.conditions);
    put_values(&mut object, "commandCondition", &status.command_conditions);
    put_list(&mut object, "env", &pairs(&status.environment));
    if let Some(adopted) = &status.adopted {
        object.insert("adopted".to_owned(), json!(adopted));
    }
    object.extend(status.extra.clone());
    object
}

fn put(object: &mut Map<String, Value>, name: &str, text: &Option<String>) {
    if let Some(text) = text {
        object.insert(name.to_owned(), text.as_str().into());
    }
}

fn put_list(object: &mut Map<String, Value>, name: &str, texts: &[String]) {
    if !texts.is_empty() {
        object.insert(name.to_owned(), texts.into());
    }
}

fn put_values(object: &mut Map<String, Value>, name: &str, values: &[impl Serialize]) {
    if !values.is_empty() {
        object.insert(name.to_owned(), json!(values));
    }
}

fn pairs(table: &BTreeMap<String, String>) -> Vec<String> {
    table.iter().map(|(name, value)| format!("{name}={value}")).collect()
}
