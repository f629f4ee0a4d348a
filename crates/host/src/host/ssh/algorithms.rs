//! The algorithms that a connection offers: those that russh and OpenSSH's defaults have in common,
//! none with SHA-1; and what `HostKeyAlgorithms` and `PubkeyAcceptedAlgorithms` of ssh_config(5)
//! change. Must not depend on connections.

use std::borrow::Cow;

use russh::keys::{Algorithm, HashAlg};
use russh::{Preferred, cipher, kex};

use crate::host::pattern;

/// Supported by every OpenSSH of the last ten years, and needs half the CPU time of the default
/// order.
const CIPHERS: [cipher::Name; 5] = [
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_256_CTR,
    cipher::AES_128_CTR,
];

/// OpenSSH's order: of two sides that both have many, the groups of fewer bits come first, since the
/// time grows with the third power. What OpenSSH lacks comes last.
const KEY_EXCHANGES: [kex::Name; 15] = [
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::ECDH_SHA2_NISTP256,
    kex::ECDH_SHA2_NISTP384,
    kex::ECDH_SHA2_NISTP521,
    kex::DH_GEX_SHA256,
    kex::DH_G16_SHA512,
    kex::DH_G18_SHA512,
    kex::DH_G14_SHA256,
    kex::DH_G15_SHA512,
    kex::EXTENSION_SUPPORT_AS_CLIENT,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];

/// RSA with SHA-1, which OpenSSH accepts since 8.8 only if the configuration names it.
pub(super) const SHA1: &str = "ssh-rsa";

/// Hashes of RSA signatures, the strongest first.
const RSA_HASHES: [Option<HashAlg>; 3] = [Some(HashAlg::Sha512), Some(HashAlg::Sha256), None];

/// Names of signature algorithms, in the order of preference.
struct Names(Vec<String>);

impl Names {
    /// Applies a list of ssh_config(5) to the defaults: `+` appends, `-` removes and `^` puts first;
    /// without such a sign, the list replaces the defaults. Names may be patterns.
    fn new(list: Option<&str>) -> Self {
        let known = &Preferred::DEFAULT.key;
        let every = known.iter().map(Algorithm::to_certificate_type);
        let every: Vec<String> = every.chain(known.iter().map(ToString::to_string)).collect();
        let default = || {
            let sha1 = Algorithm::Rsa { hash: None }.to_certificate_type();
            every.iter().filter(move |name| **name != SHA1 && **name != sha1)
        };
        let Some(list) = list else {
            return Self(default().cloned().collect());
        };
        let (sign, patterns) = match list.as_bytes().first() {
            Some(sign @ (b'+' | b'-' | b'^')) => (*sign, &list[1..]),
            _ => (b'=', list),
        };
        let named = patterns
            .split(',')
            .flat_map(|one| every.iter().filter(move |name| pattern::matches(one, name)));
        let chosen: Vec<&String> = match sign {
            b'+' => default().chain(named).collect(),
            b'^' => named.chain(default()).collect(),
            b'-' => {
                let removed: Vec<&String> = named.collect();
                default().filter(|name| !removed.contains(name)).collect()
            }
            _ => named.collect(),
        };
        let mut names: Vec<String> = Vec::new();
        for name in chosen {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Self(names)
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|own| own == name)
    }

    /// Returns the algorithms whose `name` is in the list, in its order.
    fn algorithms(&self, name: impl Fn(&Algorithm) -> String) -> Vec<Algorithm> {
        let known = &Preferred::DEFAULT.key;
        let find = |own: &String| known.iter().find(|known| name(known) == *own).cloned();
        self.0.iter().filter_map(find).collect()
    }
}

/// Returns what the handshake offers. The types of `known` host keys come first, so that a host
/// with several keys does not appear to have changed, unless `list` (`HostKeyAlgorithms`) has an
/// order of its own. Certificates are offered only if an authority could have signed them.
pub(super) fn offered(list: Option<&str>, known: &[Algorithm], authorities: bool) -> Preferred {
    let names = Names::new(list);
    let mut keys = names.algorithms(ToString::to_string);
    let same = |a: &Algorithm, b: &Algorithm| a == b || (a.clone().is_rsa() && b.clone().is_rsa());
    if list.is_none_or(|list| list.starts_with(['+', '-'])) {
        // The sort is stable: known and unknown key types keep their default order.
        keys.sort_by_key(|key| !known.iter().any(|known| same(key, known)));
    }
    let certificates =
        if authorities { names.algorithms(Algorithm::to_certificate_type) } else { Vec::new() };
    Preferred {
        key: Cow::Owned(keys),
        host_key_certificates: Cow::Owned(certificates),
        kex: Cow::Borrowed(&KEY_EXCHANGES),
        cipher: Cow::Borrowed(&CIPHERS),
        compression: Cow::Borrowed(&[russh::compression::NONE]),
        ..Preferred::DEFAULT
    }
}

/// Returns whether `list` (`HostKeyAlgorithms`) lets a host prove its key with SHA-1.
pub(super) fn host_may_use_sha1(list: Option<&str>) -> bool {
    let names = Names::new(list);
    names.has(SHA1) || names.has(&Algorithm::Rsa { hash: None }.to_certificate_type())
}

/// Chooses the hash of RSA signatures of a login. `list` is `PubkeyAcceptedAlgorithms`, and
/// `announced` the best hash that the host announces, if it announces any.
pub(super) fn rsa_hash(
    list: Option<&str>,
    announced: Option<Option<HashAlg>>,
) -> Result<Option<HashAlg>, &'static str> {
    let names = Names::new(list);
    let accepted = |hash: &Option<HashAlg>| names.has(Algorithm::Rsa { hash: *hash }.as_str());
    match announced {
        Some(None) if !accepted(&None) => {
            Err("the host accepts RSA keys only with SHA-1: use another key, or set \
             `PubkeyAcceptedAlgorithms +ssh-rsa` for it in ~/.ssh/config")
        }
        // Versions before OpenSSH 7.2 announce nothing and have only SHA-1.
        None if accepted(&None) => Ok(None),
        None if accepted(&Some(HashAlg::Sha256)) => Ok(Some(HashAlg::Sha256)),
        _ => {
            let best = announced.unwrap_or(RSA_HASHES[0]);
            let weaker = RSA_HASHES.iter().skip_while(|hash| **hash != best);
            weaker
                .copied()
                .find(accepted)
                .ok_or("PubkeyAcceptedAlgorithms in ~/.ssh/config accepts no RSA signature of it")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `ssh -G` of OpenSSH 10 lists, and 9.2 without the post-quantum methods that it lacks.
    /// Its umac and SHA-1 MACs are missing here.
    const OPENSSH: &str = "mlkem768x25519-sha256,curve25519-sha256,curve25519-sha256@libssh.org,\
        ecdh-sha2-nistp256,ecdh-sha2-nistp384,ecdh-sha2-nistp521,\
        diffie-hellman-group-exchange-sha256,diffie-hellman-group16-sha512,\
        diffie-hellman-group18-sha512,diffie-hellman-group14-sha256,\
        aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,\
        aes128-ctr,hmac-sha2-512-etm@openssh.com,hmac-sha2-256-etm@openssh.com,hmac-sha2-512,\
        hmac-sha2-256,ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,\
        rsa-sha2-512,rsa-sha2-256";
    /// MODP group of 3072 bits with SHA-512, which OpenSSH lacks, and extensions.
    const RUSSH: [&str; 5] = [
        "diffie-hellman-group15-sha512",
        "ext-info-c",
        "ext-info-s",
        "kex-strict-c-v00@openssh.com",
        "kex-strict-s-v00@openssh.com",
    ];

    fn everything(offered: &Preferred) -> Vec<String> {
        let kex = offered.kex.iter().map(|name| name.as_ref().to_owned());
        let ciphers = offered.cipher.iter().map(|name| name.as_ref().to_owned());
        let macs = offered.mac.iter().map(|name| name.as_ref().to_owned());
        let keys = offered.key.iter().map(ToString::to_string);
        kex.chain(ciphers).chain(macs).chain(keys).collect()
    }

    #[test]
    fn the_offer_has_no_algorithm_that_openssh_would_not_offer() {
        let all = everything(&offered(None, &[], true));
        for name in &all {
            let good = OPENSSH.split(',').any(|known| known == name);
            assert!(good || RUSSH.contains(&name.as_str()), "{name} is offered");
        }
        assert_eq!(all.len(), OPENSSH.split(',').count() + RUSSH.len());
        let groups = all.iter().filter(|name| name.starts_with("diffie-hellman-"));
        let groups: Vec<&str> = groups.map(|name| &name["diffie-hellman-group".len()..]).collect();
        let order = ["-exchange-sha256", "16-sha512", "18-sha512", "14-sha256", "15-sha512"];
        assert_eq!(groups, order, "as OpenSSH has them");
        let weak = ["sha1", "ssh-rsa", "ssh-dss", "cbc", "md5", "3des", "arcfour", "none", "-96"];
        for list in [None, Some("-ssh-ed25519"), Some("^rsa-sha2-256"), Some("ecdsa-*")] {
            let offered = offered(list, &[Algorithm::Rsa { hash: None }], true);
            let certificates = offered.host_key_certificates.iter();
            let certificates = certificates.map(Algorithm::to_certificate_type);
            for name in everything(&offered).into_iter().chain(certificates) {
                assert!(!weak.iter().any(|weak| name.contains(weak)), "{list:?}: {name}");
            }
            assert!(!host_may_use_sha1(list), "{list:?}");
        }
    }

    #[test]
    fn lists_of_ssh_config_mean_what_they_mean_to_openssh() {
        let names = |list: &str| Names::new(Some(list)).algorithms(ToString::to_string);
        let text = |list: &str| {
            let names = names(list);
            names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let default = "ssh-ed25519 ecdsa-sha2-nistp256 ecdsa-sha2-nistp384 ecdsa-sha2-nistp521 \
                       rsa-sha2-512 rsa-sha2-256";
        for (list, expected) in [
            ("+ssh-rsa", format!("{default} ssh-rsa")),
            ("+ssh-*", format!("{default} ssh-rsa")),
            ("+ssh-ed25519", default.to_owned()),
            ("-ecdsa-*,rsa-sha2-256", "ssh-ed25519 rsa-sha2-512".to_owned()),
            ("^rsa-*", format!("rsa-sha2-512 rsa-sha2-256 {}", &default[..71])),
            ("ssh-rsa,ssh-ed25519,ssh-rsa", "ssh-rsa ssh-ed25519".to_owned()),
            ("ssh-dss,nonsense", String::new()),
            ("+", default.to_owned()),
            ("", String::new()),
        ] {
            assert_eq!(text(list), expected, "{list}");
            assert_eq!(host_may_use_sha1(Some(list)), expected.contains(SHA1), "{list}");
        }
        assert!(host_may_use_sha1(Some("+ssh-rsa-cert-v01@openssh.com")));
    }

    #[test]
    fn known_keys_come_first_unless_the_list_has_an_order() {
        let first = |list| {
            let known = [Algorithm::Rsa { hash: None }];
            offered(list, &known, false).key.first().map(ToString::to_string)
        };
        assert_eq!(first(None).as_deref(), Some("rsa-sha2-512"));
        assert_eq!(first(Some("-ssh-ed25519")).as_deref(), Some("rsa-sha2-512"));
        assert_eq!(first(Some("ssh-ed25519,rsa-sha2-256")).as_deref(), Some("ssh-ed25519"));
        assert!(offered(None, &[], false).host_key_certificates.is_empty());
    }

    #[test]
    fn sha1_signs_a_login_only_if_the_configuration_names_it() {
        let (sha256, sha512) = (Some(HashAlg::Sha256), Some(HashAlg::Sha512));
        for (list, announced, expected) in [
            (None, Some(sha512), Some(sha512)),
            (None, Some(sha256), Some(sha256)),
            (None, Some(None), None),
            (None, None, Some(sha256)),
            (Some("+ssh-rsa"), Some(sha512), Some(sha512)),
            (Some("+ssh-rsa"), Some(None), Some(None)),
            (Some("+ssh-rsa"), None, Some(None)),
            (Some("ssh-rsa"), Some(sha512), Some(None)),
            (Some("rsa-sha2-256"), Some(sha512), Some(sha256)),
            (Some("rsa-sha2-512"), Some(sha256), None),
            (Some("rsa-sha2-512"), None, Some(sha512)),
            (Some("ssh-ed25519"), Some(sha512), None),
            (Some("ssh-ed25519"), None, None),
        ] {
            assert_eq!(rsa_hash(list, announced).ok(), expected, "{list:?} {announced:?}");
        }
    }
}
