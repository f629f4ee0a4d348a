//! One context of a kubeconfig: the API server, its certificate authorities and the client
//! credentials.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use crate::client::exec::Plugin;
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;

/// Reads a file that a kubeconfig references, by its path as written there.
pub(super) type Read<'a> = dyn Fn(&str) -> Result<Vec<u8>> + 'a;

/// The context in use.
#[derive(Debug)]
pub(super) struct Access {
    /// Host in the server's URL: a name or an IP address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path in front of all paths of the API, such as `/k8s/clusters/c-1`; usually empty.
    pub(super) prefix: String,
    /// Name that the server's certificate must contain, if not `host`.
    pub(super) name: Option<String>,
    /// PEM of the certificate authorities.
    pub(super) authorities: Vec<u8>,
    pub(super) credentials: Credentials,
}

#[derive(Debug)]
pub(super) enum Credentials {
    /// PEM of the certificate with its chain, PEM of its key.
    Certificate(Vec<u8>, Secret),
    Token(Secret),
    /// Whatever a program prints.
    Plugin(Plugin),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    contexts: Vec<Named>,
    #[serde(default)]
    clusters: Vec<Named>,
    #[serde(default)]
    users: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    context: Option<ContextEntry>,
    cluster: Option<Cluster>,
    user: Option<User>,
}

#[derive(Deserialize)]
struct ContextEntry {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    tls_server_name: Option<String>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    exec: Option<Plugin>,
    /// Impersonation, which is not supported.
    #[serde(rename = "as")]
    acts_as: Option<String>,
}

/// Parses the kubeconfig `text`; `path` is for messages.
pub(super) fn parse(text: &[u8], path: &str, read: &Read<'_>) -> Result<Access> {
    let wrong = |why: &str| Error::bad_content(format!("{path} is not a usable kubeconfig: {why}"));
    let text = std::str::from_utf8(text).map_err(|_| wrong("it is not text"))?;
    // The underlying error may quote a line, and lines contain keys.
    let document: Document = serde_saphyr::from_str(text)
        .map_err(|_| wrong("it does not have the format that kubectl writes"))?;
    let current = &document.current_context;
    let context = named(&document.contexts, current).and_then(|one| one.context.as_ref());
    let context = context.ok_or_else(|| {
        let names = document.contexts.iter().map(|one| one.name.as_str());
        wrong(&format!("there is no context `{}`", current.escape_debug()))
            .hint(contexts_hint(names))
    })?;
    let cluster = named(&document.clusters, &context.cluster).and_then(|one| one.cluster.as_ref());
    let cluster =
        cluster.ok_or_else(|| wrong(&format!("there is no cluster `{}`", context.cluster)))?;
    let user = named(&document.users, &context.user).and_then(|one| one.user.as_ref());
    let user = user.ok_or_else(|| wrong(&format!("there is no user `{}`", context.user)))?;
    if cluster.insecure_skip_tls_verify {
        return Err(wrong("it disables verification of the server")
            .hint("put the cluster's CA into `certificate-authority-data`"));
    }
    if cluster.proxy_url.is_some() {
        return Err(wrong("imgctl does not use its proxy-url").hint("use a direct connection"));
    }
    if user.acts_as.is_some() {
        return Err(wrong("imgctl does not impersonate another user (`as`)")
            .hint("use the credentials of that user"));
    }
    let (host, port, prefix) = place(&cluster.server)
        .ok_or_else(|| wrong(&format!("`{}` is not https://HOST:PORT", cluster.server)))?;
    let part = |data: &Option<String>, file: &Option<String>, what: &str| match (data, file) {
        (Some(data), _) => {
            let bytes = STANDARD.decode(data.trim());
            bytes.map(Some).map_err(|_| wrong(&format!("{what}-data is not base64")))
        }
        (None, Some(file)) => read(file).map(Some),
        (None, None) => Ok(None),
    };
    let authorities = part(
        &cluster.certificate_authority_data,
        &cluster.certificate_authority,
        "certificate-authority",
    )?;
    let certificate =
        part(&user.client_certificate_data, &user.client_certificate, "client-certificate")?;
    let key = part(&user.client_key_data, &user.client_key, "client-key")?;
    let token = match (&user.token, &user.token_file) {
        (Some(token), _) => Some(token.clone()),
        (None, Some(file)) => Some(String::from_utf8_lossy(&read(file)?).into_owned()),
        (None, None) => None,
    };
    let credentials = match (certificate, key, token) {
        (Some(certificate), Some(key), _) => {
            let key = String::from_utf8(key).map_err(|_| wrong("the client's key is not PEM"))?;
            Credentials::Certificate(certificate, Secret::new(key))
        }
        (_, _, Some(token)) => Credentials::Token(Secret::new(token.trim().to_owned())),
        _ => match &user.exec {
            Some(plugin) => Credentials::Plugin(plugin.clone()),
            None => {
                return Err(Error::denied(format!(
                    "{path} has neither a client certificate nor a token nor a program that \
                     prints them"
                )));
            }
        },
    };
    Ok(Access {
        host,
        port,
        prefix,
        name: cluster.tls_server_name.clone(),
        authorities: authorities.ok_or_else(|| wrong("it names no certificate authority"))?,
        credentials,
    })
}

fn named<'a>(all: &'a [Named], name: &str) -> Option<&'a Named> {
    all.iter().find(|one| one.name == name)
}

/// Returns the hint that lists the contexts of a kubeconfig.
pub(super) fn contexts_hint<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| name.escape_debug().to_string()).collect();
    if names.is_empty() {
        "it has no contexts at all".to_owned()
    } else {
        format!("it has {}", names.join(", "))
    }
}

/// Returns the host, port and path of `https://HOST[:PORT][/PATH]`.
fn place(server: &str) -> Option<(String, u16, String)> {
    let uri: http::Uri = server.parse().ok()?;
    if uri.scheme_str() != Some("https") || uri.query().is_some() {
        return None;
    }
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    let prefix = uri.path().trim_end_matches('/').to_owned();
    Some((host.to_owned(), uri.port_u16().unwrap_or(443), prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::error::Kind;

    const TEXT: &str = "
apiVersion: v1
kind: Config
current-context: b
contexts:
- {name: a, context: {cluster: x, user: nobody}}
- {name: b, context: {cluster: c, user: u, namespace: z}}
clusters:
- {name: x, cluster: {server: 'http://old'}}
- name: c
  cluster: {server: 'https://apiserver.cluster.local:6443', certificate-authority-data: Q0E=}
users:
- {name: nobody, user: {exec: {command: x}}}
- {name: u, user: {client-certificate: pki/a.crt, client-key-data: S0VZ, token: t}}
preferences: {}
";

    fn read(path: &str) -> Result<Vec<u8>> {
        Ok(format!("<{path}>").into_bytes())
    }

    #[test]
    fn the_current_context_counts() {
        let access = parse(TEXT.as_bytes(), "f", &read).unwrap();
        assert_eq!((access.host.as_str(), access.port), ("apiserver.cluster.local", 6443));
        assert_eq!(access.authorities, b"CA");
        let Credentials::Certificate(certificate, key) = &access.credentials else {
            panic!("{access:?}");
        };
        assert_eq!(certificate, b"<pki/a.crt>");
        assert_eq!(key.expose(), "KEY");
        assert!(!format!("{access:?}").contains("KEY"));
    }

    #[test]
    fn what_cannot_be_used_is_told_without_its_secrets() {
        let told = |from: &str, to: &str| {
            let text = TEXT.replace(from, to);
            parse(text.as_bytes(), "f", &read).unwrap_err().to_string()
        };
        assert!(told("current-context: b", "current-context: q").contains("no context `q`"));
        assert!(told("current-context: b", "current-context: a").contains("https://HOST:PORT"));
        assert!(told("S0VZ", "'S0VZ???'").contains("client-key-data is not base64"));
        assert!(!told("{name: u", "{nam: u").contains("S0VZ"));
        let text = TEXT.replace(", token: t", "").replace("client-key-data: S0VZ", "x: y");
        let error = parse(text.as_bytes(), "f", &read).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
    }

    #[test]
    fn places_of_servers() {
        let at = |host: &str, port, prefix: &str| Some((host.to_owned(), port, prefix.to_owned()));
        assert_eq!(place("https://[fd00::1]:6443"), at("fd00::1", 6443, ""));
        assert_eq!(place("https://10.0.0.1/"), at("10.0.0.1", 443, ""));
        let prefix = "/k8s/clusters/c-1";
        assert_eq!(place(&format!("https://10.0.0.1{prefix}/")), at("10.0.0.1", 443, prefix));
        assert_eq!(place("http://10.0.0.1"), None);
        assert_eq!(place("unix:///x"), None);
    }

    #[test]
    fn any_kubeconfig_is_read_or_refused_without_its_secrets() {
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), imgctl_base::testing::damaged(TEXT.as_bytes(), input)] {
                match parse(&text, "f", &read) {
                    Ok(access) => assert!(!format!("{access:?}").contains("S0VZ")),
                    Err(error) => assert!(!error.chain().join(" ").contains("S0VZ")),
                }
            }
        });
    }
}
