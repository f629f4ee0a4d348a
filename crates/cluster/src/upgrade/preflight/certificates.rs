//! Checks how long certificates remain valid, and where they can be renewed.

use super::look::{Look, error, note, warning};
use crate::runtime::upgrade::Renewal;
use crate::upgrade::document::Finding;

const DAY: i64 = 86_400;
const SOON: i64 = 30 * DAY;
const TEN_YEARS: i64 = 3_650 * DAY;

pub(super) fn expiry(look: &Look<'_>) -> Vec<Finding> {
    let now = look.observation.at_ms / 1000;
    let renewal = look.document.choices.certificate_renewal;
    let mut found = Vec::new();
    for host in look.hosts() {
        let mut long = 0;
        for certificate in &host.certificates {
            let left = certificate.not_after.saturating_sub(now);
            let path = &certificate.path;
            if left <= 0 {
                let what = format!("{path} expired {} days ago", -left / DAY);
                found.push(
                    error("certificates", what)
                        .on(host)
                        .hint("renew it with `imgctl cert --renew`"),
                );
            } else if left < SOON && (certificate.authority || renewal == Renewal::False) {
                let what = format!("{path} expires in {} days", left / DAY);
                found.push(
                    warning("certificates", what)
                        .on(host)
                        .hint("renew it with `imgctl cert --renew`"),
                );
            } else if left > TEN_YEARS && !certificate.authority {
                long += 1;
            }
        }
        if long > 0 && look.is_kubeadm() {
            let what = match renewal {
                Renewal::True => format!(
                    "{long} certificates that are valid for more than ten years are replaced with \
                     those of kubeadm, which are valid for one year"
                ),
                _ => {
                    format!("{long} certificates are valid for more than ten years: they are kept")
                }
            };
            found.push(note("certificates", what).on(host));
        }
        let keyless = host
            .certificates
            .iter()
            .find(|certificate| certificate.authority && !certificate.key_is_here);
        if let Some(authority) = keyless
            && host.is_control_plane()
            && renewal != Renewal::False
        {
            let what =
                format!("the key of {} is missing: certificates cannot be renewed", authority.path);
            found.push(error("certificates", what).on(host).hint(
                "if the authority is external, pass --certificate-renewal false and renew them \
                 there",
            ));
        }
    }
    found
}
