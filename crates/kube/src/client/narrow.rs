//! One context of a user's kubeconfig as a kubeconfig of its own, which works wherever it lies: for
//! programs that must reach this cluster and no other.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::Api;
use crate::client::{LARGEST_FILE, connect_text, kubeconfig::contexts_hint};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::secret::Secret;

/// A kubeconfig with a single context.
#[derive(Clone, Debug)]
pub struct Narrowed {
    /// The kubeconfig, as JSON. All paths in it are absolute.
    pub text: Secret,
    /// Name of the context.
    pub context: String,
    /// Namespace of objects that name none.
    pub namespace: String,
    /// The file it comes from, for messages.
    path: String,
}

impl Narrowed {
    /// Connects to the context's API server, with credentials of a program if it says so.
    pub fn connect(&self) -> Result<Arc<dyn Api>> {
        connect_text(self.text.expose().as_bytes(), &self.path)
    }
}

/// Reads the kubeconfig at `path` and keeps `context`, by default the current one.
pub fn narrow(path: &Path, context: Option<&str>) -> Result<Narrowed> {
    let path = std::path::absolute(path).path("find", path)?;
    let file = std::fs::File::open(&path).path("read", &path)?;
    let mut text = String::new();
    file.take(LARGEST_FILE + 1).read_to_string(&mut text).path("read", &path)?;
    let shown = path.display().to_string();
    if text.len() as u64 > LARGEST_FILE {
        return Err(Error::bad_content(format!("{shown} is too large for a kubeconfig")));
    }
    of_text(&text, &shown, context)
}

fn of_text(text: &str, path: &str, context: Option<&str>) -> Result<Narrowed> {
    let wrong = |why: &str| Error::bad_content(format!("{path} is not a usable kubeconfig: {why}"));
    // The underlying error may quote a line, and lines contain keys.
    let whole: Value = serde_saphyr::from_str(text)
        .map_err(|_| wrong("it does not have the format that kubectl writes"))?;
    let current = whole["current-context"].as_str().unwrap_or_default();
    let name = context.unwrap_or(current);
    let names = || {
        let contexts = whole["contexts"].as_array().into_iter().flatten();
        contexts.filter_map(|one| one["name"].as_str())
    };
    if names().next().is_none() {
        return Err(wrong("it has no contexts"));
    }
    let Some(chosen) = named(&whole["contexts"], name).filter(|_| !name.is_empty()) else {
        let what = match (context, name) {
            (None, "") => format!("{path} has no current context"),
            _ => format!("{path} has no context `{}`", name.escape_debug()),
        };
        return Err(Error::not_found(what)
            .hint(format!("{}; name one with --context", contexts_hint(names()))));
    };
    let of = |kind: &str| chosen["context"][kind].as_str().unwrap_or_default().to_owned();
    let find = |list: &str, name: &str| {
        named(&whole[list], name).cloned().ok_or_else(|| wrong(&format!("{list} has no `{name}`")))
    };
    let mut cluster = find("clusters", &of("cluster"))?;
    let mut user = find("users", &of("user"))?;
    let directory = Path::new(path).parent().unwrap_or(Path::new("/"));
    let absolute = |value: Option<&mut Value>| {
        let Some(value) = value else { return };
        let Some(file) = value.as_str().filter(|file| !file.is_empty()) else { return };
        *value = json!(directory.join(file).display().to_string());
    };
    absolute(cluster.pointer_mut("/cluster/certificate-authority"));
    for file in ["client-certificate", "client-key", "tokenFile"] {
        absolute(user.pointer_mut(&format!("/user/{file}")));
    }
    // A name without a slash is looked up in the search path.
    let command = user.pointer_mut("/user/exec/command");
    absolute(command.filter(|command| command.as_str().is_some_and(|text| text.contains('/'))));
    let namespace = of("namespace");
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [chosen],
        "clusters": [cluster],
        "users": [user],
    });
    Ok(Narrowed {
        text: Secret::new(text.to_string()),
        context: name.to_owned(),
        namespace: if namespace.is_empty() { "default".to_owned() } else { namespace },
        path: path.to_owned(),
    })
}

fn named<'a>(all: &'a Value, name: &str) -> Option<&'a Value> {
    all.as_array()?.iter().find(|one| one["name"].as_str() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::error::Kind;

    const TEXT: &str = "
current-context: b
contexts:
- {name: a, context: {cluster: x, user: other}}
- {name: b, context: {cluster: c, user: u, namespace: z}}
- {name: p, context: {cluster: c, user: plugin}}
clusters:
- {name: x, cluster: {server: 'https://x:6443', certificate-authority-data: Q0E=}}
- {name: c, cluster: {server: 'https://c:6443', certificate-authority: pki/ca.crt}}
users:
- {name: other, user: {token: s3cret}}
- {name: u, user: {client-certificate: ../u.crt, client-key: /abs/u.key}}
- {name: plugin, user: {exec: {command: ./bin/login, args: [x]}}}
";

    #[test]
    fn one_context_remains_and_its_files_are_found_from_anywhere() {
        let narrowed = of_text(TEXT, "/etc/k/config", None).unwrap();
        assert_eq!((&*narrowed.context, &*narrowed.namespace), ("b", "z"));
        let text = narrowed.text.expose();
        assert!(!text.contains("s3cret") && !text.contains("https://x"), "{text}");
        for part in ["/etc/k/pki/ca.crt", "/etc/k/../u.crt", "\"/abs/u.key\""] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("null"), "{text}");
        let other = of_text(TEXT, "/etc/k/config", Some("p")).unwrap();
        assert!(other.text.expose().contains("/etc/k/./bin/login"));
        assert_eq!(other.namespace, "default");
        assert!(!format!("{narrowed:?}").contains("u.key"));
    }

    #[test]
    fn unknown_contexts_are_answered_with_the_known_ones() {
        let error = of_text(TEXT, "f", Some("q")).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.hints()[0].contains("a, b, p"), "{:?}", error.hints());
        let error = of_text("contexts: [{name: b}]", "f", None).unwrap_err();
        assert!(error.to_string().contains("no current context"), "{error}");
        for empty in ["", "contexts: []"] {
            let error = of_text(empty, "f", Some("q")).unwrap_err();
            assert!(error.to_string().contains("has no contexts"), "{error}");
        }
        for broken in ["\u{1}", "[", "- x", "contexts: [{name: b}]\ncurrent-context: b"] {
            let error = of_text(broken, "f", None).unwrap_err();
            assert!(error.to_string().contains("f "), "{error}");
        }
    }
}
