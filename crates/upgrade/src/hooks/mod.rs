//! Hooks of images for an upgrade: `hooks/<moment>.d/*`, `can-upgrade`.
//!
//! Each hook is a separate step. Exit codes: 0 done, 10 already done, 20 not now; all others are
//! failures. Hook names and variable values reach the shell only as variables.

mod found;
mod legacy;

use std::time::Duration;

use crate::document::Document;
pub use found::Hooks;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_model::variables::Variables;
use imgctl_runtime::Action;
use imgctl_runtime::action::{Line, Site};
use imgctl_runtime::upgrade::{Move, Place};

/// Timeout of hooks if `--timeout` is not set.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Number of attempts for a hook that answers "not now", and the pause between them.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(5);

const WAS_DONE: i32 = 10;
const NOT_NOW: i32 = 20;

/// Returns the hooks of one moment (`pre-node`) from the host's target tree, in name order.
pub(super) fn run(
    moment: &'static str,
    hooks: &Hooks,
    step: &Move<'_>,
    document: &Document,
) -> Vec<Action> {
    let one = |name: &String| {
        let mut environment = environment(moment, step, document);
        environment.insert("IMGCTL_HOOK".to_owned(), name.clone());
        let script = Line::script(&[include_str!("scripts/run-hook.sh")]);
        let line = Line { environment, again: false, ..script };
        let called = format!("hook {moment}.d/{name}");
        let says = format!("run {called}");
        let inputs = line.environment.identity();
        let id = format!("{moment}-{}", slug(name));
        Action::depending_on(&id, says, &inputs, move |site| ask(site, &line, &called))
    };
    hooks.of_moment(moment).iter().map(one).collect()
}

/// sealer scripts to run on each host.
pub(super) fn legacy_host(hooks: &Hooks, step: &Move<'_>, document: &Document) -> Vec<Action> {
    legacy::run(legacy::UPGRADE_HOST, hooks.plugins(), step, document)
}

/// sealer scripts to run on the first control plane after all hosts are done.
pub(super) fn legacy_cluster(hooks: &Hooks, step: &Move<'_>, document: &Document) -> Vec<Action> {
    legacy::run(legacy::UPGRADE, hooks.plugins(), step, document)
}

/// Runs a hook, and retries it a few times with a pause while it answers "not now".
fn ask(site: &Site<'_>, line: &Line, called: &str) -> Result<()> {
    let site = &Site { timeout: site.timeout.or(Some(LIMIT)), ..*site };
    let mut line = line.clone();
    for number in 1..=TRIES {
        let attempt = site.attempt.saturating_sub(1) * TRIES + number;
        line.environment.insert("IMGCTL_ATTEMPT".to_owned(), attempt.to_string());
        let suffix = match number {
            1 => String::new(),
            more => format!("-try{more}"),
        };
        let (outcome, tail, _) = site.try_on(site.agent, &line, &suffix)?;
        let how = match (outcome.code, outcome.reason) {
            (Some(0), None) => return Ok(()),
            (Some(WAS_DONE), None) => {
                site.say(&format!("{called}: already done"));
                return Ok(());
            }
            (Some(NOT_NOW), None) if number < TRIES => {
                site.say(&format!("{called}: not now; retrying in {} s", PAUSE.as_secs()));
                std::thread::sleep(PAUSE);
                continue;
            }
            (Some(NOT_NOW), None) => {
                format!("said \"not now\" (exit code {NOT_NOW}) {TRIES} times")
            }
            (_, Some(reason)) => format!("failed: {reason}"),
            (Some(code), None) => format!("failed: exit code {code}"),
            (None, None) => "failed: no exit code".to_owned(),
        };
        let message = format!("{}: {called} {how}", site.agent.host());
        let error = Error::new(Kind::CommandFailed, message)
            .lines(tail.iter().map(|text| format!("    {text}")));
        return Err(error.hint(format!(
            "the whole output is in {} on {}",
            outcome.log,
            site.agent.host()
        )));
    }
    Ok(())
}

/// Asks the new image whether it can follow the current release: by the label `can-upgrade` or a
/// file `hooks/can-upgrade`. The check receives the plan on standard input; its exit code is the
/// answer and its output the reason. Returns `None` if the image has neither.
pub(super) fn can_upgrade(
    hooks: &Hooks,
    step: &Move<'_>,
    document: &Document,
) -> Result<Option<Action>> {
    let label = step.to.rootfs().and_then(|image| image.label(&["can-upgrade"]));
    let (line, what) = match label {
        Some(value) => (
            format!("cd -- \"$IMGCTL_ROOTFS/scripts\" && bash {value}"),
            "its label `can-upgrade`",
        ),
        None if hooks.has_can_upgrade() => (
            "cd -- \"$IMGCTL_ROOTFS\"\n\
             if [ -x hooks/can-upgrade ]; then exec hooks/can-upgrade; else exec bash hooks/can-upgrade; fi"
                .to_owned(),
            "hooks/can-upgrade",
        ),
        None => return Ok(None),
    };
    let line = Line {
        line,
        environment: environment("can-upgrade", step, document),
        input: Some(document.to_json()?),
        again: true,
        ..Line::default()
    };
    let says = format!("ask the image whether it can upgrade the current release: {what}");
    Ok(Some(Action::new("can-upgrade", says, move |site| site.run(&line).map(|_| ()))))
}

fn environment(moment: &str, step: &Move<'_>, document: &Document) -> Variables {
    let mut environment = step.to.environment_on(step.host, step.to.rootfs());
    let role = match step.place {
        Place::First | Place::ControlPlane => "control-plane",
        Place::Worker => "worker",
    };
    let node = document
        .hosts
        .get(&step.host.id())
        .and_then(|host| host.node.clone())
        .unwrap_or_else(|| step.host.id());
    environment.extend(
        [
            ("IMGCTL_PHASE", moment.to_owned()),
            ("IMGCTL_FROM_VERSION", document.from.version.clone()),
            ("IMGCTL_TO_VERSION", document.target().version.clone()),
            ("IMGCTL_NODE", node),
            ("IMGCTL_ROLE", role.to_owned()),
            ("IMGCTL_ROOTFS", step.tree.clone()),
            ("IMGCTL_UPGRADE_ID", document.id.clone()),
            ("IMGCTL_BACKUP", step.backup()),
            ("IMGCTL_DRY_RUN", "false".to_owned()),
            ("IMGCTL_ATTEMPT", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    environment
}

/// Converts a hook's name to a part of a step name.
fn slug(name: &str) -> String {
    let fits = |letter: char| match letter {
        'a'..='z' | '0'..='9' => letter,
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => '-',
    };
    let text: String = name.chars().take(40).map(fits).collect();
    text.trim_matches('-').to_owned()
}
