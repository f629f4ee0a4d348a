//! Collects the secrets of a cluster context and removes them from errors.

use std::collections::BTreeSet;

use crate::context::ClusterContext;
use crate::image::ClusterImage;
use imgctl_base::error::Error;
use imgctl_base::secret::{Redactor, Secret, is_secret_name};
use imgctl_host::host::login::Login;

/// Returns a redactor for every secret of the cluster context: logins, the registry's password,
/// variables with a name that suggests a secret, and those that images describe as secret.
pub fn of_cluster(context: &ClusterContext) -> Redactor {
    let mut redactor = Redactor::default();
    let mut seen: Vec<&Login> = Vec::new();
    for host in context.hosts.iter().chain(&context.leaving) {
        // Thousands of hosts mostly share one login.
        if seen.contains(&&host.login) {
            continue;
        }
        seen.push(&host.login);
        let login = &host.login;
        for secret in [&login.password, &login.key_passphrase, &login.sudo_password]
            .into_iter()
            .flatten()
            .chain(&login.key_data)
        {
            redactor.add(secret);
        }
    }
    if let Some(registry) = &context.registry {
        redactor.add(&registry.password);
    }
    let described: BTreeSet<String> =
        context.images.iter().flat_map(ClusterImage::secret_variables).collect();
    let images = context.images.iter().map(|image| &image.environment);
    let hosts = context.hosts.iter().map(|host| &host.environment);
    for variables in
        [&context.environment, &context.flag_environment].into_iter().chain(images).chain(hosts)
    {
        for (name, value) in variables {
            if is_secret_name(name) || described.contains(name) {
                redactor.add(&Secret::new(value.as_str()));
            }
        }
    }
    redactor
}

/// Returns the same error without known secrets.
pub fn error(error: &Error, redactor: &Redactor) -> Error {
    let mut clean: Option<Error> = None;
    for message in error.chain().iter().rev() {
        let outer = Error::several(error.kind(), redactor.redact(message).lines());
        clean = Some(match clean {
            None => outer,
            Some(inner) => outer.caused_by(inner),
        });
    }
    let mut clean = clean.unwrap_or_else(|| Error::new(error.kind(), String::new()));
    for hint in error.hints() {
        clean = clean.hint(redactor.redact(hint).into_owned());
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_lose_secrets_and_keep_the_rest() {
        let mut redactor = Redactor::default();
        redactor.add(&Secret::new("hunter22"));
        let before = Error::usage("inner hunter22").lines(["  hunter22"]);
        let before = before.hint("not hunter22").context("outer");
        let after = error(&before, &redactor);
        assert_eq!(after.chain(), ["outer", "inner ***\n  ***"]);
        assert_eq!(after.hints(), ["not ***"]);
        assert_eq!(after.kind(), before.kind());
    }
}
