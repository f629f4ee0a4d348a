//! Signs a certificate again: everything stays but the validity, and the authority if it is another one.

use std::time::Duration;

use crate::certificates::authority::{Algorithm, Authority, Key, Leaf, Signed, Use};
use crate::certificates::{inspect, inspect::Certificate};
use imgctl_base::error::{Context as _, Error, Result};

/// Validity that kubeadm gives a certificate.
const YEAR: i64 = 365 * 86_400;

/// Returns the time for which a certificate was issued, in seconds. kubeadm dates certificates back to
/// the beginning of their authority: what is longer than a year then says nothing.
pub(crate) fn life(certificate: &Certificate, authority: Option<&Certificate>) -> i64 {
    let whole = (certificate.not_after - certificate.not_before).max(0);
    let is_backdated =
        authority.is_some_and(|authority| authority.not_before == certificate.not_before);
    if is_backdated && !certificate.is_authority { whole.min(YEAR) } else { whole }
}

/// Reports whether less than a third of a certificate's life is left at `now`.
pub(crate) fn is_due(certificate: &Certificate, life: i64, now: i64) -> bool {
    certificate.not_after.saturating_sub(now).saturating_mul(3) < life
}

/// Signs the certificate `old` again. The key stays.
pub(crate) fn renew(
    authority: &Authority,
    old: &str,
    key: &str,
    validity: Option<Duration>,
) -> Result<Signed> {
    let old = inspect::read(old)?;
    let key = Key::parse(key)?;
    if key.pair().public_key_raw() != old.public_key {
        return Err(Error::bad_content("the certificate and the private key do not match"));
    }
    authority.sign_key(&leaf(&old)?, key, validity.unwrap_or_else(|| own(&old, authority)))
}

/// Signs the certificate `old` again, with a new key of the same kind as the authority's.
pub(crate) fn renew_with_new_key(
    authority: &Authority,
    old: &str,
    validity: Option<Duration>,
) -> Result<Signed> {
    let old = inspect::read(old)?;
    let validity = validity.unwrap_or_else(|| own(&old, authority));
    authority.sign(&leaf(&old)?, Algorithm::of(&authority.key), validity)
}

fn own(old: &Certificate, authority: &Authority) -> Duration {
    let life = life(old, authority.describe().ok().as_ref());
    Duration::from_secs(u64::try_from(life).unwrap_or(0)).saturating_sub(Authority::BACKDATED)
}

fn leaf(old: &Certificate) -> Result<Leaf> {
    let purpose = match (old.for_servers, old.for_clients) {
        (true, true) => Use::Both,
        (true, false) => Use::Server,
        (false, true) => Use::Client,
        (false, false) => return Err(foreign(old)),
    };
    if old.is_authority || !old.is_plain {
        return Err(foreign(old));
    }
    Ok(Leaf {
        common_name: old.common_name.clone(),
        organization: old.organization.clone(),
        purpose,
        names: old.names.clone(),
    })
}

fn foreign(old: &Certificate) -> Error {
    Error::usage(format!(
        "the certificate {} has fields that imgctl does not write, and is not signed again",
        old.common_name
    ))
    .hint("renew it with the program that made it")
}

/// Reports whether `authority` has signed `certificate`.
pub(crate) fn is_signed_by(certificate: &str, authority: &Authority) -> bool {
    inspect::signed_by(certificate, &authority.certificate)
}

/// Splits PEM text into its certificates.
pub(crate) fn certificates_of(bundle: &str) -> Vec<String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let mut found = Vec::new();
    let mut rest = bundle;
    while let Some(begin) = rest.find(BEGIN) {
        let Some(from) = rest.get(begin..) else { break };
        let Some(end) = from.find(END) else { break };
        let (one, after) = from.split_at(end + END.len());
        found.push(format!("{one}\n"));
        rest = after;
    }
    found
}

/// Returns the certificate of the authority in `bundle` whose key is `key`.
pub(crate) fn authority_in(bundle: &str, key: &str) -> Result<Authority> {
    let mut failure = Error::not_found("there is no certificate");
    for one in certificates_of(bundle) {
        match Authority::parse(&one, key) {
            Ok(authority) => return Ok(authority),
            Err(error) => failure = error,
        }
    }
    Err(failure).context(|| "the authority cannot be used".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ten_minutes() -> Duration {
        Duration::from_secs(600)
    }

    fn authority(name: &str) -> Authority {
        let key = Key::generate(Algorithm::EcdsaP256).unwrap();
        Authority::create(name, key, Duration::from_secs(86_400)).unwrap()
    }

    #[test]
    fn everything_stays_but_the_validity() {
        let ours = authority("kubernetes");
        let names = ["node".to_owned(), "10.0.0.1".to_owned()];
        let leaf = Leaf {
            organization: Some("system:nodes".to_owned()),
            ..Leaf::server("system:node:node", Use::Both, &names)
        };
        let old = ours.sign(&leaf, Algorithm::EcdsaP256, ten_minutes()).unwrap();
        let new = renew(&ours, &old.certificate, old.key.pem.expose(), None).unwrap();
        let (before, after) =
            [&old, &new].map(|one| inspect::read(&one.certificate).unwrap()).into();
        assert_eq!(
            (&before.common_name, &before.organization, &before.names, &before.public_key),
            (&after.common_name, &after.organization, &after.names, &after.public_key)
        );
        assert!(after.for_servers && after.for_clients && before.der != after.der);
        assert!((after.not_after - before.not_after).abs() < 310);
        assert!(is_signed_by(&new.certificate, &ours));
        assert_eq!(old.key.pem.expose(), new.key.pem.expose());
        let other = renew_with_new_key(&ours, &old.certificate, Some(ten_minutes())).unwrap();
        assert_ne!(old.key.pem.expose(), other.key.pem.expose());
        // An authority and a foreign key are refused.
        assert!(renew(&ours, &ours.certificate, ours.key.pem.expose(), None).is_err());
        assert!(renew(&ours, &old.certificate, other.key.pem.expose(), None).is_err());
    }

    #[test]
    fn a_third_of_the_life_decides() {
        let ours = authority("kubernetes");
        let leaf = Leaf::client("one", None);
        let signed = ours.sign(&leaf, Algorithm::EcdsaP256, ten_minutes()).unwrap();
        let mut read = inspect::read(&signed.certificate).unwrap();
        (read.not_before, read.not_after) = (0, 900);
        let life = life(&read, None);
        assert_eq!(life, 900);
        assert!(!is_due(&read, life, 600) && is_due(&read, life, 601) && is_due(&read, life, 2000));
        // kubeadm: issued after five years, dated back to the authority.
        let mut of_authority = inspect::read(&ours.certificate).unwrap();
        (of_authority.not_before, read.not_after) = (0, 6 * YEAR);
        assert_eq!(super::life(&read, Some(&of_authority)), YEAR);
        of_authority.not_before = 1;
        assert_eq!(super::life(&read, Some(&of_authority)), 6 * YEAR);
    }

    #[test]
    fn bundles_are_split() {
        let (old, new) = (authority("kubernetes"), authority("kubernetes"));
        let bundle = format!("# comment\n{}\n{}", old.certificate, new.certificate);
        assert_eq!(certificates_of(&bundle).len(), 2);
        let found = authority_in(&bundle, new.key.pem.expose()).unwrap();
        assert_eq!(found.pin(), new.pin());
        let third = authority("x");
        assert!(authority_in(&bundle, third.key.pem.expose()).is_err());
        assert!(certificates_of("-----BEGIN CERTIFICATE-----\nxx").is_empty());
    }
}
