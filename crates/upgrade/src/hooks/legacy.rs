//! Upgrade scripts in sealer images: `Plugin` documents in `plugins/` with the actions
//! `upgrade-host` (every host) and `upgrade` (the first control plane, after all hosts).
//!
//! The scripts run unchanged and give no guarantees: plans label them `unsafe-legacy`, and a script
//! whose result is unknown is not run again.

use std::time::Duration;

use serde_json::Value;

use crate::document::Document;
use crate::hooks::environment;
use imgctl_base::error::{Context, Error, Result};
use imgctl_runtime::upgrade::{Move, Place};
use imgctl_runtime::{Action, action::Line};
use imgctl_template as template;
use imgctl_workflow::hooks::slug;

/// Timeout of one script; sealer had none.
const LIMIT: Duration = Duration::from_secs(30 * 60);

pub(super) const UPGRADE_HOST: &str = "upgrade-host";
pub(super) const UPGRADE: &str = "upgrade";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) name: String,
    /// [`UPGRADE_HOST`], [`UPGRADE`].
    pub(super) action: &'static str,
    /// Whether the script applies to control planes and to workers.
    control_planes: bool,
    workers: bool,
    shell: String,
}

/// Parses the scripts in one file of `plugins/`. A document without a name gets the name of the
/// file.
pub(super) fn read(file: &str, text: &str) -> Result<Vec<Script>> {
    let mut all = Vec::new();
    for part in parts(text) {
        let part =
            template::yaml::parse(&part).context(|| format!("cannot read plugins/{file}"))?;
        let word = |pointer: &str| part.pointer(pointer).and_then(Value::as_str);
        let is_shell = word("/spec/type").is_some_and(|kind| kind.eq_ignore_ascii_case("shell"));
        if word("/kind") != Some("Plugin") || !is_shell {
            continue;
        }
        let (Some(actions), Some(shell)) = (word("/spec/action"), word("/spec/data")) else {
            continue;
        };
        let scope = word("/spec/scope").unwrap_or_default();
        let is_for =
            |role: &str| scope.is_empty() || scope.split('|').any(|one| one.trim() == role);
        for action in [UPGRADE_HOST, UPGRADE] {
            if !actions.split('|').any(|one| one.trim() == action) {
                continue;
            }
            let name = word("/metadata/name").unwrap_or(file);
            if name.chars().any(char::is_control) {
                return Err(Error::bad_content(format!(
                    "plugins/{file} has a name that is not valid text: {name:?}"
                )));
            }
            all.push(Script {
                name: name.to_owned(),
                action,
                control_planes: is_for("master"),
                workers: is_for("node"),
                shell: shell.to_owned(),
            });
        }
    }
    Ok(all)
}

/// Splits a file into YAML documents.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Scripts to run on the host of `step`, sorted by name as in sealer.
pub(super) fn run(
    action: &'static str,
    scripts: &[Script],
    step: &Move<'_>,
    document: &Document,
) -> Vec<Action> {
    let is_here = |script: &&Script| match (action, step.place) {
        (UPGRADE, place) => place == Place::First,
        (_, Place::Worker) => script.workers,
        (_, Place::First | Place::ControlPlane) => script.control_planes,
    };
    let mut chosen: Vec<&Script> =
        scripts.iter().filter(|script| script.action == action).filter(is_here).collect();
    chosen.sort_by(|a, b| a.name.cmp(&b.name));
    chosen
        .into_iter()
        .map(|script| {
            let environment = environment(action, step, document);
            let name = format!("legacy-{action}-{}", slug(&script.name));
            let says = format!("unsafe-legacy: run the image's plugin {} ({action})", script.name);
            let line = Line {
                // These scripts expect a shell that continues after errors.
                line: format!("set +e\n{}", script.shell),
                workdir: Some(step.to.paths.rootfs()),
                environment,
                ..Line::default()
            };
            let inputs = format!("{} {}", line.line, line.environment.identity());
            Action::depending_on(&name, says, &inputs, move |site| site.run(&line).map(|_| ()))
                .once()
                .within(LIMIT)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_read_as_sealer_writes_them() {
        let text = "apiVersion: sealer.io/v1\nkind: Plugin\nmetadata:\n  name: b\nspec:\n  type: SHELL\n  \
                    action: upgrade-host|post-install\n  scope: master\n  data: |\n    echo \"b\"\n    exit 0\n\
                    ---\nkind: Plugin\nmetadata:\n  name: a\nspec:\n  type: SHELL\n  action: upgrade\n  data: echo a\n\
                    ---\nkind: Plugin\nmetadata:\n  name: t\nspec:\n  type: TAINT\n  action: upgrade\n  data: x\n\
                    ---\nkind: Config\nspec:\n  data: x\n";
        let found = read("all.yaml", text).unwrap();
        let seen: Vec<_> = found
            .iter()
            .map(|one| (one.name.as_str(), one.action, one.control_planes, one.workers))
            .collect();
        assert_eq!(seen, [("b", UPGRADE_HOST, true, false), ("a", UPGRADE, true, true)]);
        assert_eq!(found[0].shell, "echo \"b\"\nexit 0\n");
        let error = read("all.yaml", "kind: [").unwrap_err();
        assert!(error.to_string().contains("plugins/all.yaml"), "{error}");
    }
}
