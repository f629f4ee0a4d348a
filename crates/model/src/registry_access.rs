//! Access to the cluster's embedded registry, from the image's `etc/registry.yml`,
//! the user's settings, and a random password if none is given. Must not depend on how the registry
//! is started.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::context::RegistryAccess;
use crate::state_files::StateFiles;
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::secret::Secret;
use imgctl_registry::server::hash_password;
use imgctl_template::{self as template, Dialect, Missing, Template};

/// File in an image's root.
pub const FILE: &str = "etc/registry.yml";
/// Template of the file: it takes precedence, because its output replaces the file.
pub const TEMPLATE: &str = "etc/registry.yml.tmpl";
/// Location below the image's tree where its scripts expect the users.
pub const HTPASSWD: &str = "etc/registry_htpasswd";

/// Names of variables that images use.
const DOMAIN_VARIABLE: &str = "registryDomain";
const PORT_VARIABLE: &str = "registryPort";
const USER_VARIABLE: &str = "registryUsername";
const DATA_VARIABLE: &str = "registryData";

/// Defaults for images that set nothing.
const DOMAIN: &str = "sealos.hub";
const PORT: u16 = 5000;
const USER: &str = "admin";
const SEALOS_PASSWORD: &str = "passw0rd";
const DATA: &str = "/var/lib/registry";

pub const PASSWORD_VARIABLE: &str = "registryPassword";

/// Path below the cluster's state directory, and below the copy that control planes keep.
pub const KEPT_PASSWORD: &str = "etc/registry_password";
const KEPT_HTPASSWD: &str = "etc/registry_htpasswd";
/// Maximum size of a file to read, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// Letters and digits that are not easily confused, and that have no meaning in shells, URLs, YAML
/// and TOML.
pub(super) const LETTERS: &[u8] = b"abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
pub(super) const PASSWORD_LENGTH: usize = 20;

/// Registry files of the rootfs image.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImageSays<'a> {
    /// Content of the image's [`FILE`].
    pub file: Option<&'a str>,
    /// Content of the image's [`TEMPLATE`].
    pub template: Option<&'a str>,
}

/// The registry, and whether its password was generated in this run: [`remember`] stores it.
#[derive(Clone, Debug)]
pub struct Decided {
    pub access: RegistryAccess,
    pub is_new: bool,
}

/// Determines how to access the registry.
///
/// The password comes from the first of these sources: `registryPassword` of the user; the image's
/// file, if it sets a password without the variable; the password generated in the first run; the
/// password of a cluster that sealos created; a new random one. `image` holds the variables of the
/// rootfs image, `user` those of the Clusterfile and the command line.
pub fn decide(
    says: ImageSays<'_>,
    image: &BTreeMap<String, String>,
    user: &BTreeMap<String, String>,
    state: &StateFiles,
) -> Result<Decided> {
    let mut variables = image.clone();
    variables.extend(user.clone());
    let (password, is_new) = match user.get(PASSWORD_VARIABLE) {
        Some(password) => (password.clone(), false),
        None => kept_or_drawn(state, image)?,
    };
    variables.insert(PASSWORD_VARIABLE.to_owned(), password.clone());
    let access = match (says.template, says.file) {
        (Some(template), _) => parse(&render(template, &variables)?, TEMPLATE)?,
        (None, Some(file)) => parse(file, FILE)?,
        (None, None) => defaults(&variables)?,
    };
    let is_used = access.password.expose() == password;
    if user.contains_key(PASSWORD_VARIABLE) && !is_used {
        return Err(Error::usage(format!(
            "{PASSWORD_VARIABLE} is set, but the image's {FILE} yields another password"
        ))
        .hint(format!(
            "unset it, or use only letters and digits (YAML changes some other characters), or \
             replace {FILE} with a Config document"
        )));
    }
    Ok(Decided { access, is_new: is_new && is_used })
}

/// Fails if the registry of a cluster that exists is to be at another place, or to have another user:
/// its hosts would keep the one that serves. `current` and `wanted` are decided alike.
pub fn refuse_other(
    current: &RegistryAccess,
    wanted: &RegistryAccess,
    cluster: &str,
) -> Result<()> {
    let differs = |name: &str, now: &str, then: &str| {
        (now != then).then(|| format!("{name} is {now}, not {then}"))
    };
    let (port, other_port) = (current.port.to_string(), wanted.port.to_string());
    let other = [
        differs(PORT_VARIABLE, &port, &other_port),
        differs(DOMAIN_VARIABLE, &current.domain, &wanted.domain),
        differs(DATA_VARIABLE, &current.data, &wanted.data),
        differs(USER_VARIABLE, &current.username, &wanted.username),
    ];
    match other.into_iter().flatten().next() {
        None => Ok(()),
        Some(what) => Err(Error::usage(format!(
            "the registry of cluster {cluster} is in use and cannot change: {what}"
        ))
        .hint("restore the variable: it takes effect only when a cluster is created")),
    }
}

/// Stores a generated password for later runs, readable only by its owner.
pub fn remember(access: &RegistryAccess, state: &StateFiles) -> Result<()> {
    state.write(KEPT_PASSWORD, access.password.expose())
}

/// Returns the content of [`HTPASSWD`]; `None` if the registry requires no login. The hash of a
/// password is stored, so that the file stays the same between runs.
pub fn htpasswd(access: &RegistryAccess, state: &StateFiles) -> Result<Option<String>> {
    let user = &access.username;
    if user.is_empty() || access.password.expose().is_empty() {
        return Ok(None);
    }
    if user.contains(|c: char| c == ':' || c.is_control()) {
        return Err(Error::usage(format!("`{user}` is not a valid registry user"))
            .hint("use a name without colons and control characters"));
    }
    if let Some(kept) = state.read(KEPT_HTPASSWD, MAX_FILE)?
        && let Some((name, hash)) = kept.trim().split_once(':')
        && name == user
        && bcrypt::verify(access.password.expose(), hash).unwrap_or(false)
    {
        return Ok(Some(kept));
    }
    let line = format!("{user}:{}\n", hash_password(&access.password)?);
    state.write(KEPT_HTPASSWD, &line)?;
    Ok(Some(line))
}

/// Returns the stored password, if one was generated.
pub fn kept(state: &StateFiles) -> Result<Option<Secret>> {
    Ok(state.read(KEPT_PASSWORD, MAX_FILE)?.map(|text| Secret::new(text.trim())))
}

/// Returns the password in a rendered [`FILE`].
pub fn password_of(text: &str) -> Result<Option<Secret>> {
    let password = parse(text, FILE)?.password;
    Ok(Some(password).filter(|password| !password.expose().is_empty()))
}

fn kept_or_drawn(state: &StateFiles, image: &BTreeMap<String, String>) -> Result<(String, bool)> {
    if let Some(kept) = state.read(KEPT_PASSWORD, MAX_FILE)? {
        return Ok((kept.trim().to_owned(), false));
    }
    // sealos stores users but no password: its clusters use the image's.
    if state.path(KEPT_HTPASSWD).exists() {
        let password = image.get(PASSWORD_VARIABLE).map(String::as_str);
        return Ok((password.unwrap_or(SEALOS_PASSWORD).to_owned(), false));
    }
    // With only digits, YAML would read a number.
    Ok((format!("p{}", random(LETTERS, PASSWORD_LENGTH - 1)?), true))
}

/// Returns random characters of `letters`, each equally likely.
pub fn random(letters: &[u8], length: usize) -> Result<String> {
    let mut text = String::with_capacity(length);
    let mut bytes = [0; 64];
    // Bytes beyond the last whole multiple would favour the first letters.
    let fair = 256 / letters.len() * letters.len();
    while text.len() < length {
        aws_lc_rs::rand::fill(&mut bytes)
            .map_err(|_| Error::failed("cannot read random numbers from the system"))?;
        let drawn = bytes.iter().map(|&byte| usize::from(byte)).filter(|&byte| byte < fair);
        let wanted = length - text.len();
        text.extend(drawn.take(wanted).map(|byte| char::from(letters[byte % letters.len()])));
    }
    Ok(text)
}

fn render(text: &str, variables: &BTreeMap<String, String>) -> Result<String> {
    Template::parse(TEMPLATE, text, Dialect::ClusterImage, Missing::NoValue)?.render(variables)
}

/// Parses an existing file, which counts in full: without user and password, the registry has none.
fn parse(text: &str, name: &str) -> Result<RegistryAccess> {
    let wrong = || format!("cannot use the registry settings in the image's {name}");
    let fields = template::yaml::parse(text).context(wrong)?;
    let field = |key: &str| -> Result<Option<String>> {
        match fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(_) => {
                Err(Error::usage(format!("`{key}` is neither text nor a number"))).context(wrong)
            }
        }
    };
    let or = |value: Option<String>, default: &str| match value {
        Some(value) if !value.is_empty() => value,
        _ => default.to_owned(),
    };
    Ok(RegistryAccess {
        domain: or(field("domain")?, DOMAIN),
        port: port(&or(field("port")?, &PORT.to_string())).context(wrong)?,
        username: field("username")?.unwrap_or_default(),
        password: Secret::new(field("password")?.unwrap_or_default()),
        data: data(&or(field("data")?, DATA)).context(wrong)?,
    })
}

fn defaults(variables: &BTreeMap<String, String>) -> Result<RegistryAccess> {
    let value = |key: &str, default: &str| match variables.get(key) {
        Some(value) if !value.is_empty() => value.clone(),
        _ => default.to_owned(),
    };
    Ok(RegistryAccess {
        domain: value(DOMAIN_VARIABLE, DOMAIN),
        port: port(&value(PORT_VARIABLE, &PORT.to_string()))?,
        username: value(USER_VARIABLE, USER),
        password: Secret::new(variables.get(PASSWORD_VARIABLE).cloned().unwrap_or_default()),
        data: data(&value(DATA_VARIABLE, DATA))?,
    })
}

fn port(text: &str) -> Result<u16> {
    match text.trim().parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Error::usage(format!("`{text}` is not a valid registry port"))),
    }
}

fn data(text: &str) -> Result<String> {
    let is_safe = text.starts_with('/')
        && text.split('/').all(|part| part != ".." && part != ".")
        && text.split('/').filter(|part| !part.is_empty()).count() > 1
        && !text.contains(char::is_control);
    if is_safe {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err(Error::usage(format!("`{text}` cannot be a registry's data directory"))
            .hint(format!("use an absolute path of at least two components, such as {DATA}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_of_a_cluster_stays_where_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateFiles::plain(directory.path());
        let access = |name: &str, value: &str| {
            let user = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            decide(ImageSays::default(), &BTreeMap::new(), &user, &state).unwrap().access
        };
        let own = access("other", "");
        refuse_other(&own, &access(PORT_VARIABLE, "5000"), "c").unwrap();
        refuse_other(&own, &access(PASSWORD_VARIABLE, "another1"), "c").unwrap();
        for (name, value) in [
            (PORT_VARIABLE, "5004"),
            (DOMAIN_VARIABLE, "new.hub"),
            (DATA_VARIABLE, "/srv/registry"),
            (USER_VARIABLE, "ops"),
        ] {
            let error = refuse_other(&own, &access(name, value), "c").unwrap_err();
            assert!(error.to_string().contains(&format!("not {value}")), "{error}");
        }
    }

    const ASKS: &str = "domain: {{ .registryDomain }}\nport: \"{{ .registryPort }}\"\n\
        username: {{ .registryUsername }}\npassword: {{ .registryPassword }}\ndata: {{ .registryData }}\n";

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn image() -> BTreeMap<String, String> {
        map(&[
            ("registryDomain", "hub.example"),
            ("registryPort", "5001"),
            ("registryUsername", "root"),
            ("registryPassword", "passw0rd"),
            ("registryData", "/srv/registry/"),
        ])
    }

    fn template(text: &str) -> ImageSays<'_> {
        ImageSays { template: Some(text), file: None }
    }

    #[test]
    fn a_password_is_drawn_once_and_templates_see_it() {
        let directory = tempfile::tempdir().unwrap();
        let state = &StateFiles::plain(directory.path());
        let first = decide(template(ASKS), &image(), &map(&[]), state).unwrap();
        assert!(first.is_new);
        let access = &first.access;
        assert_eq!(
            (&*access.domain, access.port, &*access.username, &*access.data),
            ("hub.example", 5001, "root", "/srv/registry")
        );
        assert_eq!(access.password.expose().len(), PASSWORD_LENGTH);
        let other = decide(template(ASKS), &image(), &map(&[]), state).unwrap();
        assert_ne!(other.access.password, access.password, "nothing was kept");
        remember(access, state).unwrap();
        let second = decide(template(ASKS), &image(), &map(&[]), state).unwrap();
        assert!(!second.is_new && second.access == *access);
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &str| {
            let metadata = std::fs::metadata(state.path(path)).unwrap();
            metadata.permissions().mode() & 0o7777
        };
        assert_eq!(mode(KEPT_PASSWORD), 0o600);
        assert_eq!(mode("etc"), 0o700);
    }

    #[test]
    fn the_user_beats_what_was_drawn_and_an_images_own_password_stays() {
        let directory = tempfile::tempdir().unwrap();
        let state = &StateFiles::plain(directory.path());
        let user = map(&[("registryPassword", "a $\"b"), ("registryPort", "7000")]);
        let decided = decide(ImageSays::default(), &image(), &user, state).unwrap();
        assert_eq!(decided.access.password.expose(), "a $\"b");
        assert_eq!(decided.access.port, 7000);
        assert!(!decided.is_new);
        let fixed = "domain: x.y\nusername: u\npassword: fixed\n";
        for says in [template(fixed), ImageSays { file: Some(fixed), template: None }] {
            let decided = decide(says, &image(), &map(&[]), state).unwrap();
            assert_eq!(decided.access.password.expose(), "fixed");
            assert_eq!((decided.access.port, decided.is_new), (5000, false));
            let error = decide(says, &image(), &user, state).unwrap_err();
            assert!(error.to_string().contains("another password"), "{error}");
        }
    }

    #[test]
    fn a_file_without_a_login_means_none_and_bad_fields_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let state = &StateFiles::plain(directory.path());
        let says = |text| {
            let says = ImageSays { file: Some(text), template: None };
            decide(says, &map(&[]), &map(&[]), state)
        };
        let open = says("port: 5000\n").unwrap().access;
        assert_eq!(htpasswd(&open, state).unwrap(), None);
        for (text, part) in [
            ("port: http\n", "not a valid registry port"),
            ("port: 0\n", "not a valid registry port"),
            ("data: /\n", "data directory"),
            ("data: /var\n", "data directory"),
            ("data: /var/../etc/x\n", "data directory"),
            ("domain: [a]\n", "neither text nor a number"),
            ("a: b: c", "malformed"),
        ] {
            let error = says(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(FILE), "{error}");
        }
    }

    #[test]
    fn users_stay_the_same_until_the_password_changes_and_sealos_clusters_keep_theirs() {
        let directory = tempfile::tempdir().unwrap();
        let state = &StateFiles::plain(directory.path());
        let decided = decide(template(ASKS), &image(), &map(&[]), state).unwrap();
        let mut access = decided.access;
        let first = htpasswd(&access, state).unwrap().unwrap();
        assert_eq!(htpasswd(&access, state).unwrap().unwrap(), first);
        let (name, hash) = first.trim().split_once(':').unwrap();
        assert!(name == "root" && bcrypt::verify(access.password.expose(), hash).unwrap());
        access.password = Secret::new("other");
        assert_ne!(htpasswd(&access, state).unwrap().unwrap(), first);
        // Users without a stored password: the cluster comes from sealos.
        let decided = decide(template(ASKS), &image(), &map(&[]), state).unwrap();
        assert_eq!(decided.access.password.expose(), "passw0rd");
        assert!(!decided.is_new);
    }
}
