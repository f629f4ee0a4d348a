//! `spec.ssh` and `hosts[].ssh`, and secrets that are stored outside the file.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::clusterfile::documents::Node;
use crate::clusterfile::fields::{Fields, Problems};
use imgctl_base::secret::Secret;

/// SSH login as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ssh {
    pub user: Option<String>,
    /// `passwd`, `passwdFrom`.
    pub password: Option<SecretSource>,
    /// `pkName`: the name of `pkData`.
    pub key_name: Option<String>,
    /// `pkData`, `pkDataFrom`: a private key as text.
    pub key_data: Option<SecretSource>,
    /// `pk`: paths of private keys; a single one, as in sealos, or a list.
    pub keys: Vec<String>,
    /// `pkPasswd`, `pkPasswdFrom`.
    pub key_passphrase: Option<SecretSource>,
    /// `sudoPasswd`, `sudoPasswdFrom`.
    pub sudo_password: Option<SecretSource>,
    pub jump: Option<String>,
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SecretSource {
    /// In the Clusterfile itself.
    Inline(Secret),
    /// `{file: PATH}`: the first line of a file.
    File(PathBuf),
    /// `{env: NAME}`: a variable of imgctl's environment.
    Variable(String),
}

impl Ssh {
    /// Reads an object of this form.
    pub(super) fn read(node: &Node, path: &str, problems: &mut Problems<'_>) -> Self {
        let mut fields = Fields::of(node, path, problems);
        let user = fields.text("user", problems).filter(|user| !user.is_empty());
        let password = secret(&mut fields, "passwd", "passwdFrom", problems);
        let key_name = fields.text("pkName", problems).filter(|name| !name.is_empty());
        let key_data = secret(&mut fields, "pkData", "pkDataFrom", problems);
        let keys_path = fields.path_of("pk");
        let mut keys = match fields.get("pk") {
            Some(node) if matches!(node.content, super::documents::Content::List(_)) => {
                super::fields::texts(node, &keys_path, problems)
            }
            Some(node) => super::fields::text(node, &keys_path, problems).into_iter().collect(),
            None => Vec::new(),
        };
        keys.retain(|key| !key.is_empty());
        let read = Self {
            user,
            password,
            key_name,
            key_data,
            keys,
            key_passphrase: secret(&mut fields, "pkPasswd", "pkPasswdFrom", problems),
            sudo_password: secret(&mut fields, "sudoPasswd", "sudoPasswdFrom", problems),
            jump: fields.text("jump", problems).filter(|jump| !jump.is_empty()),
            port: fields.port("port", problems),
        };
        fields.finish(problems);
        read
    }

    /// Makes relative paths begin at `directory`.
    pub(super) fn root_paths(&mut self, directory: &Path) {
        let is_relative = |path: &Path| path.is_relative() && !path.starts_with("~");
        for key in self.keys.iter_mut().filter(|key| is_relative(Path::new(key))) {
            *key = directory.join(&*key).to_string_lossy().into_owned();
        }
        let secrets = [
            &mut self.password,
            &mut self.key_data,
            &mut self.key_passphrase,
            &mut self.sudo_password,
        ];
        for secret in secrets {
            if let Some(SecretSource::File(path)) = secret
                && is_relative(path)
            {
                *path = directory.join(&*path);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the values overridden by those of `over`.
    pub(crate) fn overlaid(&self, over: &Self) -> Self {
        // With a key of its own, a host must not be tried with the cluster's passphrase first.
        let own_key = !over.keys.is_empty() || over.key_data.is_some();
        let key_of = if own_key { over } else { self };
        let or = |over: &Option<SecretSource>, own: &Option<SecretSource>| {
            over.clone().or_else(|| own.clone())
        };
        Self {
            user: over.user.clone().or_else(|| self.user.clone()),
            password: or(&over.password, &self.password),
            key_name: key_of.key_name.clone(),
            key_data: key_of.key_data.clone(),
            keys: key_of.keys.clone(),
            key_passphrase: or(&over.key_passphrase, &self.key_passphrase),
            sudo_password: or(&over.sudo_password, &self.sudo_password),
            jump: over.jump.clone().or_else(|| self.jump.clone()),
            port: over.port.or(self.port),
        }
    }

    /// Returns the object as written to the file.
    pub(super) fn to_value(&self) -> Value {
        let mut object = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                object.insert(name.to_owned(), value);
            }
        };
        let text = |text: &Option<String>| text.clone().map(Value::String);
        put("user", text(&self.user));
        for (source, name) in [
            (&self.password, "passwd"),
            (&self.key_data, "pkData"),
            (&self.key_passphrase, "pkPasswd"),
            (&self.sudo_password, "sudoPasswd"),
        ] {
            match source {
                Some(SecretSource::Inline(secret)) => put(name, Some(secret.expose().into())),
                Some(SecretSource::File(path)) => {
                    put(&format!("{name}From"), Some(json!({"file": path.to_string_lossy()})));
                }
                Some(SecretSource::Variable(variable)) => {
                    put(&format!("{name}From"), Some(json!({"env": variable})));
                }
                None => {}
            }
        }
        put("pkName", text(&self.key_name));
        put(
            "pk",
            match &self.keys[..] {
                [] => None,
                [one] => Some(one.clone().into()),
                several => Some(several.into()),
            },
        );
        put("jump", text(&self.jump));
        put("port", self.port.map(Value::from));
        Value::Object(object)
    }

    /// Removes the secrets that the file itself holds; references stay.
    pub(crate) fn forget_secrets(&mut self) {
        for source in [
            &mut self.password,
            &mut self.key_data,
            &mut self.key_passphrase,
            &mut self.sudo_password,
        ] {
            if matches!(source, Some(SecretSource::Inline(_))) {
                *source = None;
            }
        }
    }

    /// Returns the secrets that the file itself holds.
    #[cfg(test)]
    pub(crate) fn inline_secrets(&self) -> impl Iterator<Item = &Secret> {
        [&self.password, &self.key_data, &self.key_passphrase, &self.sudo_password]
            .into_iter()
            .filter_map(|source| match source {
                Some(SecretSource::Inline(secret)) => Some(secret),
                _ => None,
            })
    }
}

/// Reads a secret under `inline`, or a reference to one under `reference`.
fn secret(
    fields: &mut Fields<'_>,
    inline: &'static str,
    reference: &'static str,
    problems: &mut Problems<'_>,
) -> Option<SecretSource> {
    let given = fields
        .text(inline, problems)
        .filter(|text| !text.is_empty())
        .map(|text| SecretSource::Inline(Secret::new(text)));
    let path = fields.path_of(reference);
    let Some(node) = fields.get(reference) else {
        return given;
    };
    if given.is_some() {
        let message = format!("`{path}` and `{}` are mutually exclusive", fields.path_of(inline));
        problems.add(node.line, message);
    }
    let mut source = Fields::of(node, &path, problems);
    let file = source.text("file", problems);
    let variable = source.text("env", problems);
    source.finish(problems);
    match (file, variable) {
        (Some(file), None) => Some(SecretSource::File(file.into())),
        (None, Some(variable)) => Some(SecretSource::Variable(variable)),
        _ => {
            problems.add(node.line, format!("`{path}` must be {{file: PATH}} or {{env: NAME}}"));
            None
        }
    }
}
