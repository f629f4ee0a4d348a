//! A Lease in the cluster's own API that prevents operators on two controllers from working at
//! once.
//!
//! On one controller, the lock of the state directory does this. The Lease is acquired with its
//! resource version, so only one of two concurrent attempts succeeds.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::pipeline::record::kubectl;
use crate::pipeline::step::Step;
use crate::runtime::Action;
use crate::runtime::action::Site;
use imgctl_base::error::{Error, Kind, Result};

/// Duration of the lease, in seconds: how long a killed controller blocks others.
const SECONDS: i64 = 3600;
const NAME: &str = "imgctl";

/// Acquires the lease for `holder`, the name of this controller.
pub fn take(holder: &str, force: bool) -> Step {
    let holder = holder.to_owned();
    let says = "kubectl: acquire the Lease kube-system/imgctl";
    let action = Action::new("lease", says, "", move |site| {
        let found = read(site)?;
        if let Some(other) = found
            .as_ref()
            .and_then(|lease| held_by(lease, Timestamp::now()))
            .filter(|other| *other != holder && !force)
        {
            return Err(Error::new(
                Kind::Busy,
                format!("cluster {} is being changed from {other}", site.scene.name),
            )
            .hint("wait for it, or pass --force if that controller is gone"));
        }
        write(site, found.as_ref(), &holder)
    });
    Step::from(action).always()
}

/// Releases the lease.
pub fn release() -> Step {
    let says = "kubectl: release the Lease kube-system/imgctl";
    let action = Action::new("lease-release", says, "", move |site| {
        let found = read(site)?;
        match &found {
            None => Ok(()),
            Some(_) => write(site, found.as_ref(), ""),
        }
    });
    Step::from(action).always()
}

fn read(site: &Site<'_>) -> Result<Option<Value>> {
    let mut line =
        kubectl(&format!("-n kube-system get lease {NAME} -o json --ignore-not-found"), None);
    line.quiet = true;
    let (outcome, tail, text) = site.try_on(site.agent, &line, ".read")?;
    if outcome.code != Some(0) {
        return Err(Error::failed(format!(
            "{}: cannot read the holder of the cluster's Lease: {}",
            site.agent.host(),
            tail.join(" ")
        )));
    }
    if text.trim().is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| Error::bad_content("the Lease is not JSON").caused_by(error))
}

fn write(site: &Site<'_>, found: Option<&Value>, holder: &str) -> Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let mut metadata = json!({"name": NAME, "namespace": "kube-system"});
    let version = found.and_then(|lease| lease.pointer("/metadata/resourceVersion"));
    if let Some(version) = version {
        metadata["resourceVersion"] = version.clone();
    }
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": SECONDS,
            "renewTime": now,
        },
    });
    let verb = if version.is_some() { "replace" } else { "create" };
    let line = kubectl(&format!("{verb} -f - >/dev/null"), Some(lease.to_string()));
    let (outcome, tail, _) = site.try_on(site.agent, &line, ".write")?;
    match outcome.code {
        Some(0) => Ok(()),
        _ => Err(Error::new(
            Kind::Busy,
            format!("cannot acquire the Lease of the cluster: {}", tail.join(" ")),
        )
        .hint("another client acquired it at the same moment: try again")),
    }
}

/// Returns the holder of the lease at `now`.
fn held_by(lease: &Value, now: Timestamp) -> Option<&str> {
    let holder = lease.pointer("/spec/holderIdentity")?.as_str()?;
    let renewed: Timestamp = lease.pointer("/spec/renewTime")?.as_str()?.parse().ok()?;
    let seconds =
        lease.pointer("/spec/leaseDurationSeconds").and_then(Value::as_i64).unwrap_or(SECONDS);
    let until = renewed.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    (!holder.is_empty() && now < until).then_some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_by_itself() {
        let lease = json!({"spec": {
            "holderIdentity": "a",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseDurationSeconds": 60,
        }});
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(held_by(&lease, at("2026-01-01T00:00:59Z")), Some("a"));
        assert_eq!(held_by(&lease, at("2026-01-01T00:01:00Z")), None);
        assert_eq!(
            held_by(&json!({"spec": {"holderIdentity": ""}}), at("2026-01-01T00:00:00Z")),
            None
        );
    }
}
