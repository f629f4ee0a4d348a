//! The versions between the current and the target release.

use std::cmp::Ordering;

use crate::runtime::version::{chain, order, parse};
use crate::upgrade::document::{Direction, HopMode, Release};
use crate::upgrade::request::{Request, SCRIPT, Target};
use crate::upgrade::skew::may_lag;
use imgctl_base::error::{Error, Kind, Result};

/// Checks that each step is allowed.
///
/// # Errors
/// If a version is in the wrong direction, or a step is too long; hints suggest an alternative.
pub(super) fn check(request: &Request<'_>) -> Result<()> {
    match (&request.targets[..], request.choices.hop) {
        ([], _) => {
            return Err(Error::usage("no target image is given"));
        }
        ([_, _, ..], HopMode::Single) => {
            return Err(Error::usage(
                "several images are given, but an upgrade takes one at a time",
            )
            .hint("pass --hop auto to take them one after the other"));
        }
        _ => {}
    }
    let mut before = &request.from;
    for target in &request.targets {
        step(request, before, target)?;
        before = target;
    }
    Ok(())
}

fn step(request: &Request<'_>, before: &Target, target: &Target) -> Result<()> {
    let read = |image: &Target| parse(&image.version, &format!("image {}", image.name));
    let turn = order(&read(target)?, &read(before)?);
    let (old, new) = (&before.version, &target.version);
    match (request.direction, turn) {
        (Direction::Forward, Ordering::Less) => Err(Error::usage(format!(
            "{} contains {new}, which is older than {old}: an upgrade cannot go back",
            target.name
        ))
        .hint("run `imgctl rollback` to restore the version before the last upgrade")),
        (Direction::Back, Ordering::Greater) => Err(Error::usage(format!(
            "{} contains {new}, which is newer than {old}: a rollback cannot go forward",
            target.name
        ))
        .hint(format!("run `imgctl upgrade {}` to go forward", target.name))),
        (Direction::Forward, Ordering::Greater) => {
            (request.permits)(old, new).map_err(|error| with_chain(error, request, before))
        }
        _ => Ok(()),
    }
}

/// Adds the required intermediate images to the error, if there are any.
fn with_chain(error: Error, request: &Request<'_>, before: &Target) -> Error {
    let Some(last) = request.targets.last() else {
        return error;
    };
    let minors = chain(&before.version, &last.version);
    if request.runtime == SCRIPT || minors.len() < 2 {
        return error;
    }
    let error =
        Error::new(Kind::Usage, "the versions are too far apart for one step").caused_by(error);
    error.hint(format!(
        "control planes upgrade one minor at a time: {} → {}. Name an image of each: `imgctl \
         upgrade IMAGE-OF-{} … {} --hop auto`",
        before.version,
        minors.join(" → "),
        minors[0],
        last.name
    ))
}

/// Returns the releases on the path. `workers` are the versions of the workers in scope: workers
/// move as late as the allowed skew to the API servers permits.
pub(super) fn releases(request: &Request<'_>, workers: &[String]) -> Vec<Release> {
    let mut hops: Vec<Release> = request.targets.iter().map(Target::release).collect();
    if request.runtime == SCRIPT || request.direction == Direction::Back {
        return hops;
    }
    let last = hops.len().saturating_sub(1);
    let mut behind: Vec<String> = workers.to_vec();
    for at in 0..last {
        let next = hops[at + 1].version.clone();
        let needed = behind.iter().any(|kubelet| !may_lag(kubelet, &next));
        hops[at].workers = needed;
        if needed {
            behind = vec![hops[at].version.clone()];
        }
    }
    hops
}
