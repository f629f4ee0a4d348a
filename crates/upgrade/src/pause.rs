//! Determines where an upgrade pauses.

use crate::document::PauseAfter;
use crate::pipeline::{BALANCERS, BATCH, CANARY, CONTROL_PLANE};
use imgctl_journal::Past;
use imgctl_workflow::pipeline::executor::decision::{Decision, decide};
use imgctl_workflow::pipeline::step::{Phase, Plan, Step};

/// Truncates `plan` after the part that `after` names, unless that part is already done; `past`
/// holds the results of earlier runs. Returns whether the plan was truncated.
pub fn cut(plan: &mut Plan, after: PauseAfter, past: Option<&Past>) -> bool {
    let is_done =
        |step: &Step| step.always || matches!(decide(step, past, &[], &[]), Decision::Skip);
    let done = |phase: &Phase| phase.lanes.iter().flat_map(|lane| &lane.steps).all(is_done);
    let begins = |phase: &Phase, name: &str| {
        phase.name == name || phase.name.starts_with(&format!("{name}-"))
    };
    let touches = |phase: &Phase| {
        [BALANCERS, "control-plane", CANARY, BATCH, "snapshot"]
            .iter()
            .any(|name| begins(phase, name))
    };
    let begun = |phase: &Phase| {
        let known = |step: &Step| past.is_some_and(|past| past.steps.contains_key(&step.id));
        phase.lanes.iter().flat_map(|lane| &lane.steps).any(known)
    };
    let first = plan.phases.iter().position(touches);
    let is_end = |phase: &Phase| match after {
        // Everything before the first host is touched, regardless of phase names.
        PauseAfter::Stage => false,
        PauseAfter::ControlPlane => begins(phase, CONTROL_PLANE) || begins(phase, "control-plane"),
        PauseAfter::Canary => begins(phase, CANARY),
        PauseAfter::Batch => begins(phase, BATCH),
    };
    let ends: Vec<usize> =
        (0..plan.phases.len()).filter(|&number| is_end(&plan.phases[number])).collect();
    let end = match after {
        PauseAfter::Stage => first
            .and_then(|first| first.checked_sub(1))
            .filter(|&last| !begun(&plan.phases[last + 1])),
        // The upgrade pauses after each batch.
        PauseAfter::Batch => ends.into_iter().find(|&number| !done(&plan.phases[number])),
        _ => ends
            .into_iter()
            .next_back()
            .filter(|&last| plan.phases[..=last].iter().any(|phase| !done(phase))),
    };
    let Some(end) = end.filter(|&end| end + 1 < plan.phases.len()) else {
        return false;
    };
    plan.phases.truncate(end + 1);
    plan.is_partial = true;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORTH: [&str; 10] = [
        "stage",
        "backup",
        "keep-backup",
        "balancers",
        "control-plane",
        "finish",
        "canary",
        "workers-1",
        "workers-2",
        "commit",
    ];

    fn plan(phases: &[&str]) -> Plan {
        let mut plan = Plan::new("upgrade", "c", "");
        for &name in phases {
            plan.push(Phase::local(name, vec![Step::local(name, name, name, |_| Ok(()))]));
        }
        plan
    }

    #[test]
    fn a_plan_is_cut_where_it_is_to_stop() {
        for (after, last) in [
            (PauseAfter::Stage, "keep-backup"),
            (PauseAfter::ControlPlane, "finish"),
            (PauseAfter::Canary, "canary"),
            (PauseAfter::Batch, "workers-1"),
        ] {
            let mut plan = plan(&FORTH);
            assert!(cut(&mut plan, after, None));
            assert_eq!(plan.phases.last().unwrap().name, last);
            assert!(plan.is_partial);
        }
    }

    #[test]
    fn a_way_back_stops_before_its_first_host() {
        let back = ["prepare", "workers-1", "control-plane", "commit"];
        let mut plan = plan(&back);
        assert!(cut(&mut plan, PauseAfter::Stage, None));
        assert_eq!(plan.phases.last().unwrap().name, "prepare");
        let mut plan = self::plan(&back);
        assert!(!cut(&mut plan, PauseAfter::Canary, None));
        assert_eq!(plan.phases.len(), 4);
    }
}
