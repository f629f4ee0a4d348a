//! Converts text to a [`Clusterfile`]: kinds, `spec`, Config documents, and leniently `status`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::clusterfile::model::{
    Adopted, ClusterDocument, Clusterfile, CommandCondition, Condition, HostGroup, Mount, Phase,
    Status,
};
use crate::clusterfile::{
    documents,
    documents::{Content, Node},
};
use crate::clusterfile::{
    fields,
    fields::{Fields, Problems, environment},
};
use crate::context::{MASTER, NODE, REGISTRY};
use crate::{clusterfile::login::Ssh, name};
use imgctl_base::error::{Error, Result};
use imgctl_base::{image::Reference, suggest::closest};
use imgctl_host::host::address::{self, SSH_PORT};
use imgctl_host::render::{ConfigEdit, Strategy};

pub(super) const API_VERSION: &str = "apps.sealos.io/v1beta1";
/// API groups whose documents go to the runtime unchanged.
const RUNTIME_GROUPS: [&str; 4] =
    ["kubeadm.k8s.io", "kubeproxy.config.k8s.io", "kubelet.config.k8s.io", "k3s.cattle.io"];
/// Kubernetes members of `metadata` that are kept without being interpreted.
const METADATA: [&str; 12] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
];

/// Reads a whole Clusterfile; `file` is used in messages. The second value holds notes for the
/// user.
pub fn read(text: &str, file: &str) -> Result<(Clusterfile, Vec<String>)> {
    read_as(text, file, false)
}

/// Same as `read`, for a file that a tool has written: members that a later version may have added
/// are notes instead of mistakes.
pub fn read_stored(text: &str, file: &str) -> Result<(Clusterfile, Vec<String>)> {
    read_as(text, file, true)
}

fn read_as(text: &str, file: &str, lenient: bool) -> Result<(Clusterfile, Vec<String>)> {
    let mut problems = Problems::new(file, lenient);
    let (clusterfile, cluster_at) = read_documents(text, file, &mut problems)?;
    if cluster_at.is_none() && problems.is_empty() {
        return Err(
            Error::usage(format!("{file} has no document of kind Cluster")).hint(format!(
                "it begins with `apiVersion: {API_VERSION}` and `kind: Cluster`; `imgctl gen IMAGE` writes one"
            )),
        );
    }
    Ok((clusterfile, problems.finish()?))
}

/// Reads a file of documents to add to a Clusterfile (`--config-file`); a Cluster document is not
/// allowed.
pub fn read_additions(text: &str, file: &str) -> Result<(Clusterfile, Vec<String>)> {
    let mut problems = Problems::new(file, false);
    let (clusterfile, cluster_at) = read_documents(text, file, &mut problems)?;
    if let Some(line) = cluster_at {
        problems.add(line, "a document of kind Cluster is not allowed here");
        problems.hint("pass a whole Clusterfile to `imgctl apply -f`");
    }
    Ok((clusterfile, problems.finish()?))
}

/// Returns all documents, and the line of the Cluster document.
fn read_documents(
    text: &str,
    file: &str,
    problems: &mut Problems<'_>,
) -> Result<(Clusterfile, Option<u64>)> {
    let mut read = Clusterfile::default();
    let mut cluster_at = None;
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for node in documents::parse(text, file)? {
        let line = node.line;
        let sort = sort_of(&node, problems);
        let name = match &sort {
            Sort::Cluster => Some("document of kind Cluster".to_owned()),
            Sort::Config => node
                .member("metadata")
                .and_then(|metadata| metadata.text_of("name"))
                .map(|name| format!("Config `{name}`")),
            Sort::Runtime(kind) => Some(format!("document of kind {kind}")),
            Sort::Other(_) | Sort::Wrong => None,
        };
        if let Some(name) = name
            && let Some(first) = seen.insert(name.clone(), line)
        {
            problems.add(line, format!("a second {name}; the first is on line {first}"));
        }
        match sort {
            Sort::Cluster => {
                cluster_at = Some(line);
                read.cluster = cluster(&node, problems);
            }
            Sort::Config => read.configs.extend(config(&node, problems)),
            Sort::Runtime(_) => read.documents.push(node.to_value()),
            Sort::Other(kind) => {
                problems.note(line, format!("unused document of kind {kind}"));
                read.others.push(node.to_value());
            }
            Sort::Wrong => {}
        }
    }
    Ok((read, cluster_at))
}

/// Type of a document.
enum Sort {
    Cluster,
    Config,
    /// Document of kubeadm or k3s, with its kind.
    Runtime(String),
    Other(String),
    /// Invalid; already reported.
    Wrong,
}

fn sort_of(node: &Node, problems: &mut Problems<'_>) -> Sort {
    let Content::Map(members) = &node.content else {
        fields::wrong(node, "", "a mapping", problems);
        return Sort::Wrong;
    };
    let (kind, version) = (node.text_of("kind"), node.text_of("apiVersion"));
    let Some(kind) = kind else {
        let is_flag = |key: &str| {
            !matches!(key, "apiVersion" | "metadata" | "spec" | "status")
                && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        if version.is_none() && members.iter().all(|member| is_flag(&member.key)) {
            return Sort::Runtime("k3s".to_owned());
        }
        problems.add(node.line, "the document has no `kind`");
        return Sort::Wrong;
    };
    let group = version.and_then(|version| version.split_once('/'));
    let group = group.map(|(group, _)| group);
    if group.is_some_and(|group| RUNTIME_GROUPS.contains(&group)) {
        return Sort::Runtime(kind.to_owned());
    }
    let ours = match kind {
        "Cluster" => Sort::Cluster,
        "Config" => Sort::Config,
        _ if group == Some("apps.sealos.io") || version.is_none() => {
            let meant = closest(kind, ["Cluster", "Config"]);
            let meant = meant.map_or(String::new(), |kind| format!("; did you mean {kind}?"));
            problems.add(node.line, format!("unknown kind `{kind}`{meant}"));
            return Sort::Wrong;
        }
        _ => return Sort::Other(kind.to_owned()),
    };
    match version {
        Some(API_VERSION) => ours,
        Some(other) if group != Some("apps.sealos.io") => {
            problems.note(node.line, format!("{kind} of {other} does not belong to imgctl"));
            Sort::Other(kind.to_owned())
        }
        _ => {
            let is = version.map_or("missing".to_owned(), |version| format!("`{version}`"));
            problems.add(node.line, format!("`apiVersion` is {is}"));
            problems.hint(format!("write `apiVersion: {API_VERSION}`"));
            Sort::Wrong
        }
    }
}

fn cluster(node: &Node, problems: &mut Problems<'_>) -> ClusterDocument {
    let mut top = Fields::of(node, "", problems);
    let (_, _) = (top.get("apiVersion"), top.get("kind"));
    let mut read = ClusterDocument::default();
    match top.get("metadata") {
        Some(node) => metadata(node, &mut read, problems),
        None => problems.add(node.line, "`metadata.name` is missing: the cluster's name"),
    }
    if let Some(node) = top.get("spec") {
        spec(node, &mut read, problems);
    }
    if let Some(node) = top.get("status") {
        read.status = status(node, problems);
    }
    top.finish(problems);
    read
}

fn metadata(node: &Node, read: &mut ClusterDocument, problems: &mut Problems<'_>) {
    let mut fields = Fields::of(node, "metadata", problems);
    match fields.text("name", problems) {
        Some(name) => {
            if let Err(error) = name::check(&name) {
                problems.add(node.line, error.message());
                error.hints().iter().for_each(|hint| problems.hint(*hint));
            }
            read.name = name;
        }
        None => problems.add(node.line, "`metadata.name` is missing: the cluster's name"),
    }
    read.created = fields.text("creationTimestamp", problems);
    read.deleted = fields.text("deletionTimestamp", problems);
    let uid = fields.get("uid");
    if let Some(uid) = uid.and_then(|node| fields::text(node, "metadata.uid", problems)) {
        if name::is_uid(&uid) {
            read.uid = Some(uid);
        } else {
            problems.add(node.line, "`metadata.uid` is not a UID: letters, digits and dashes");
        }
    }
    for name in METADATA.iter().chain(&["ownerReferences", "selfLink"]) {
        if let Some(value) = fields.get(name) {
            read.metadata.insert((*name).to_owned(), value.to_value());
        }
    }
    for name in ["name", "creationTimestamp", "deletionTimestamp"] {
        read.metadata.shift_remove(name);
    }
    fields.finish(problems);
}

fn spec(node: &Node, read: &mut ClusterDocument, problems: &mut Problems<'_>) {
    let mut fields = Fields::of(node, "spec", problems);
    for (at, node) in fields.list("image", problems).iter().enumerate() {
        let Some(image) = fields::text(node, &format!("spec.image[{at}]"), problems) else {
            continue;
        };
        if let Err(error) = Reference::parse(&image) {
            problems.add(node.line, format!("`spec.image[{at}]`: {error}"));
        }
        if read.images.contains(&image) {
            problems.note(node.line, format!("image `{image}` is listed twice"));
        } else {
            read.images.push(image);
        }
    }
    if let Some(node) = fields.get("ssh") {
        read.ssh = Ssh::read(node, "spec.ssh", problems);
    }
    for (at, node) in fields.list("hosts", problems).iter().enumerate() {
        read.hosts.push(host_group(node, at, problems));
    }
    read.environment = environment(&mut fields, "env", problems);
    read.command = fields.texts("command", problems);
    read.renew_certificates = switch(&mut fields, ("certificates", "renew"), problems);
    read.share_images = switch(&mut fields, ("registry", "peers"), problems);
    fields.finish(problems);
}

/// Reads a mapping in `spec` whose only member is true or false.
fn switch(
    fields: &mut Fields<'_>,
    (group, name): (&'static str, &'static str),
    problems: &mut Problems<'_>,
) -> Option<bool> {
    let path = format!("spec.{group}");
    let mut own = Fields::of(fields.get(group)?, &path, problems);
    let mut read = None;
    if let Some(node) = own.get(name) {
        match &node.content {
            Content::Scalar(Value::Bool(is_on)) => read = Some(*is_on),
            _ => fields::wrong(node, &format!("{path}.{name}"), "true or false", problems),
        }
    }
    own.finish(problems);
    read
}

fn host_group(node: &Node, at: usize, problems: &mut Problems<'_>) -> HostGroup {
    let path = format!("spec.hosts[{at}]");
    let mut fields = Fields::of(node, &path, problems);
    let mut group = HostGroup::default();
    for (at, node) in fields.list("ips", problems).iter().enumerate() {
        let Some(ip) = fields::text(node, &format!("{path}.ips[{at}]"), problems) else {
            continue;
        };
        if let Err(error) = address::parse_list(&ip, SSH_PORT) {
            problems.add(node.line, format!("`{path}.ips[{at}]`: {error}"));
        }
        group.ips.push(ip);
    }
    if group.ips.is_empty() {
        problems.add(node.line, format!("`{path}.ips` lists no hosts"));
    }
    group.roles = fields.texts("roles", problems);
    check_roles(&group.roles, &path, node.line, problems);
    group.environment = environment(&mut fields, "env", problems);
    let ssh_path = fields.path_of("ssh");
    if let Some(node) = fields.get("ssh") {
        group.ssh = Some(Ssh::read(node, &ssh_path, problems)).filter(|ssh| !ssh.is_empty());
    }
    fields.finish(problems);
    group
}

fn check_roles(roles: &[String], path: &str, line: u64, problems: &mut Problems<'_>) {
    for role in roles {
        let fine = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        if role.is_empty() || !role.chars().all(fine) {
            problems.add(line, format!("`{path}.roles`: unknown role `{role}`"));
        }
    }
    if roles.iter().any(|role| role == MASTER || role == NODE) {
        return;
    }
    let meant = roles
        .iter()
        .find_map(|role| Some((role, closest(role, [MASTER, NODE])?)))
        .map_or(String::new(), |(role, meant)| format!("; `{role}`: did you mean `{meant}`?"));
    problems.add(line, format!("`{path}.roles` has neither `{MASTER}` nor `{NODE}`{meant}"));
    if roles.iter().any(|role| role == REGISTRY) {
        problems
            .hint(format!("a host of role `{REGISTRY}` must also be a `{MASTER}` or a `{NODE}`"));
    }
}

fn config(node: &Node, problems: &mut Problems<'_>) -> Option<ConfigEdit> {
    let mut top = Fields::of(node, "", problems);
    let (_, _) = (top.get("apiVersion"), top.get("kind"));
    let name = top.get("metadata").and_then(|node| {
        let name = node.text_of("name").map(str::to_owned);
        let mut fields = Fields::of(node, "metadata", problems);
        for known in METADATA {
            fields.get(known);
        }
        fields.finish(problems);
        name.filter(|name| !name.is_empty())
    });
    if name.is_none() {
        problems.add(node.line, "a Config needs a name: `metadata.name`");
    }
    let Some(spec) = top.get("spec") else {
        problems.add(node.line, "a Config needs a `spec`");
        return None;
    };
    // sealos writes an empty status.
    top.get("status");
    top.finish(problems);
    let mut fields = Fields::of(spec, "spec", problems);
    let path = fields.text("path", problems);
    let image = fields.text("match", problems).filter(|m| !m.is_empty());
    let strategy = fields.text("strategy", problems).unwrap_or_default();
    let strategy = Strategy::parse(&strategy);
    if strategy.is_none() {
        problems.add(spec.line, "`spec.strategy` must be override, insert, append or merge");
    }
    let data = match fields.get("data") {
        Some(node @ Node { content: Content::Map(_) | Content::List(_), .. }) => {
            fields::wrong(node, "spec.data", "a text", problems);
            problems.hint("write `data: |` and the text below it");
            None
        }
        Some(node) => fields::text(node, "spec.data", problems),
        None => Some(String::new()),
    };
    fields.finish(problems);
    let path = path.filter(|path| !path.is_empty());
    match &path {
        None => problems.add(spec.line, "`spec.path` is missing: the file to change"),
        Some(path) if path.starts_with('/') || path.split('/').any(|part| part == "..") => {
            problems.add(
                spec.line,
                format!("`spec.path` `{path}` must be relative to the image's root, without `..`"),
            );
        }
        Some(_) => {}
    }
    Some(ConfigEdit { name: name?, path: path?, image, strategy: strategy?, data: data? })
}

pub(super) fn status(node: &Node, problems: &mut Problems<'_>) -> Status {
    let mut fields = Fields::of(node, "status", problems);
    let phase = fields.text("phase", problems).filter(|p| !p.is_empty());
    let read = Status {
        phase: phase.as_deref().and_then(|phase| {
            let known = Phase::parse(phase);
            if known.is_none() {
                problems.note(node.line, format!("unknown phase `{phase}` is ignored"));
            }
            known
        }),
        mounts: each(&mut fields, "mounts", problems, mount),
        conditions: each(&mut fields, "conditions", problems, |node, problems| {
            condition(&mut Fields::of(node, "status.conditions[]", problems), problems)
        }),
        command_conditions: each(&mut fields, "commandCondition", problems, command_condition),
        environment: environment(&mut fields, "env", problems),
        adopted: fields.get("adopted").map(|node| adopted(node, problems)),
        extra: Map::new(),
    };
    Status { extra: fields.rest(), ..read }
}

fn each<T>(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems<'_>,
    read: impl Fn(&Node, &mut Problems<'_>) -> T,
) -> Vec<T> {
    let nodes = fields.list(name, problems);
    nodes.iter().map(|node| read(node, problems)).collect()
}

fn mount(node: &Node, problems: &mut Problems<'_>) -> Mount {
    let mut fields = Fields::of(node, "status.mounts[]", problems);
    let mut text = |name| fields.text(name, problems).unwrap_or_default();
    let read = Mount {
        name: text("name"),
        kind: text("type"),
        image: text("imageName"),
        mount_point: text("mountPoint"),
        digest: Some(text("digest")).filter(|digest| !digest.is_empty()),
        environment: fields.table("env", problems),
        labels: fields.table("labels", problems),
        command: fields.texts("cmd", problems),
        entrypoint: fields.texts("entrypoint", problems),
        extra: Map::new(),
    };
    Mount { extra: fields.rest(), ..read }
}

fn adopted(node: &Node, problems: &mut Problems<'_>) -> Adopted {
    let mut fields = Fields::of(node, "status.adopted", problems);
    let mut text = |name| fields.text(name, problems).unwrap_or_default();
    Adopted { runtime: text("runtime"), version: text("version"), cluster_id: text("clusterID") }
}

fn condition(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Condition {
    let mut text = |name| fields.text(name, problems).unwrap_or_default();
    Condition {
        kind: text("type"),
        status: text("status"),
        time: Some(text("lastHeartbeatTime")).filter(|time| !time.is_empty()),
        reason: text("reason"),
        message: text("message"),
    }
}

fn command_condition(node: &Node, problems: &mut Problems<'_>) -> CommandCondition {
    let mut fields = Fields::of(node, "status.commandCondition[]", problems);
    CommandCondition {
        condition: condition(&mut fields, problems),
        images: fields.texts("images", problems),
    }
}
