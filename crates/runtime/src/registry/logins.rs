//! Logins in files that images' scripts have written on hosts: one login takes the place of another, and
//! all else stays byte for byte. Only text; must not know hosts.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::registry::hosts_toml::Login;
use imgctl_base::secret::Secret;

/// Number of lines around a password within which its user is named.
const NEAR: usize = 3;

/// Returns `text` with `to` in place of `from`, or `None` if the text does not have `from`.
pub(super) fn replaced(text: &str, from: &Login, to: &Login) -> Option<String> {
    let pair = |login: &Login| format!("{}:{}", login.user, login.password.expose());
    let encoded = |login: &Login| STANDARD.encode(pair(login));
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let mut near = vec![false; lines.len()];
    for at in 0..lines.len() {
        let Some((key, value)) = entry(&lines[at]) else { continue };
        let new = if value == encoded(from) {
            encoded(to)
        } else if value == pair(from) {
            pair(to)
        } else if value == from.password.expose() && key.to_ascii_lowercase().contains("pass") {
            let around = at.saturating_sub(NEAR)..(at + NEAR + 1).min(lines.len());
            near[around].fill(true);
            to.password.expose().to_owned()
        } else {
            continue;
        };
        lines[at] = with_value(&lines[at], &value, &new);
    }
    for (line, is_near) in lines.iter_mut().zip(near) {
        let Some((key, value)) = entry(line).filter(|_| is_near) else { continue };
        if key.to_ascii_lowercase().contains("user") && value == from.user {
            *line = with_value(line, &value, &to.user);
        }
    }
    let new = lines.concat();
    (new != text).then_some(new)
}

/// Returns whether `text` names `login`.
pub(super) fn has(text: &str, login: &Login) -> bool {
    let other = Login {
        user: format!("{}-", login.user),
        password: Secret::new(format!("{}-", login.password.expose())),
    };
    replaced(text, login, &other).is_some()
}

/// Returns key and value of a line of YAML, TOML, JSON or INI.
fn entry(line: &str) -> Option<(String, String)> {
    let trimmed = line.trim();
    if trimmed.starts_with('#') {
        return None;
    }
    let at = trimmed.find(['=', ':'])?;
    let (key, value) = trimmed.split_at(at);
    let value = value.get(1..)?.trim().trim_end_matches(',').trim_end();
    let bare = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .or_else(|| value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')))
        .unwrap_or(value);
    let key = key.trim().trim_matches(['"', '\'', '-', ' ']);
    Some((key.to_owned(), bare.to_owned()))
}

/// Returns the line with another value; its key may contain the same text.
fn with_value(line: &str, old: &str, new: &str) -> String {
    match line.rfind(old) {
        Some(at) => format!("{}{new}{}", &line[..at], &line[at + old.len()..]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: &str, password: &str) -> Login {
        Login { user: user.to_owned(), password: Secret::new(password) }
    }

    #[test]
    fn every_form_of_a_login_is_replaced_and_nothing_else() {
        let (from, to) = (login("admin", "passw0rd"), login("admin-next", "n3w"));
        let b64 = |text: &str| STANDARD.encode(text);
        for (text, expected) in [
            (
                // containerd
                "[plugins.\"x\".registry.configs.\"sealos.hub:5000\".auth]\n  username = \"admin\"\n  password = \"passw0rd\"\n[other]\n  a = 1\n\n\n  username = \"admin\"\n",
                Some("[plugins.\"x\".registry.configs.\"sealos.hub:5000\".auth]\n  username = \"admin-next\"\n  password = \"n3w\"\n[other]\n  a = 1\n\n\n  username = \"admin\"\n".to_owned()),
            ),
            (
                // image-cri-shim
                "shim: /var/run/image-cri-shim.sock\naddress: http://sealos.hub:5000\nauth: admin:passw0rd\n",
                Some("shim: /var/run/image-cri-shim.sock\naddress: http://sealos.hub:5000\nauth: admin-next:n3w\n".to_owned()),
            ),
            (
                // registries.yaml of k3s
                "configs:\n  \"sealos.hub:5000\":\n    auth:\n      username: admin\n      password: 'passw0rd'\n",
                Some("configs:\n  \"sealos.hub:5000\":\n    auth:\n      username: admin-next\n      password: 'n3w'\n".to_owned()),
            ),
            (
                // config.json of docker
                &*format!("{{\n  \"auths\": {{\n    \"sealos.hub:5000\": {{\n      \"auth\": \"{}\"\n    }}\n  }}\n}}\n", b64("admin:passw0rd")),
                Some(format!("{{\n  \"auths\": {{\n    \"sealos.hub:5000\": {{\n      \"auth\": \"{}\"\n    }}\n  }}\n}}\n", b64("admin-next:n3w"))),
            ),
            ("# password = \"passw0rd\"\nname = \"passw0rd\"\npassword = \"passw0rd2\"\n", None),
            ("", None),
        ] {
            assert_eq!(replaced(text, &from, &to), expected, "{text}");
            assert_eq!(has(text, &from), expected.is_some(), "{text}");
            if let Some(expected) = expected {
                assert_eq!(replaced(&expected, &to, &from).as_deref(), Some(text));
                assert!(!has(&expected, &from) && has(&expected, &to));
            }
        }
    }
}
