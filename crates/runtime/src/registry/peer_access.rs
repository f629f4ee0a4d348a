//! The port and the token with which hosts share images. Must not know what reads them.

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use imgctl_base::secret::Secret;
use imgctl_model::context::ClusterContext;

/// Port of the service on every host.
const PORT: u16 = 5051;
/// Variable that sets another port.
const PORT_VARIABLE: &str = "registryPeersPort";

/// Returns the port of the service: the default, or the one that the cluster's variables set.
pub fn port(context: &ClusterContext) -> u16 {
    let layers = [&context.flag_environment, &context.environment];
    let named = layers.iter().find_map(|variables| variables.get(PORT_VARIABLE));
    named.and_then(|text| text.parse().ok()).filter(|port| *port != 0).unwrap_or(PORT)
}

/// Returns the token that hosts present to each other, and containerd to its own host. It is derived from the
/// registry's password, changes with it, and is worth nothing at a registry. `None` if the registry requires no login.
pub(crate) fn token(context: &ClusterContext, password: Option<&Secret>) -> Option<Secret> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, password?.expose().as_bytes());
    let cluster = context.uid.as_deref().unwrap_or_default();
    let tag = hmac::sign(&key, format!("imgctl peers of {} {cluster}", context.name).as_bytes());
    Some(Secret::new(URL_SAFE_NO_PAD.encode(tag.as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_model::testing::context;

    #[test]
    fn the_token_follows_the_password_and_is_not_the_password() {
        let context = context(&["master", "node"]);
        let of = |password: &str| token(&context, Some(&Secret::new(password))).unwrap();
        assert_eq!(of("one").expose(), of("one").expose());
        assert!(of("one").expose() != of("two").expose() && !of("one").expose().contains("one"));
        assert!(token(&context, None).is_none());
    }

    #[test]
    fn a_variable_names_another_port() {
        let mut context = context(&["master"]);
        assert_eq!(port(&context), PORT);
        context.environment.insert(PORT_VARIABLE.into(), "7001".into());
        assert_eq!(port(&context), 7001);
        context.environment.insert(PORT_VARIABLE.into(), "many".into());
        assert_eq!(port(&context), PORT);
    }
}
