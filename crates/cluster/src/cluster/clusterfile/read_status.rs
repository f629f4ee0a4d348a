//! Reads `status`, which tools write: leniently, keeping unknown members.

use serde_json::Map;

use crate::cluster::clusterfile::fields::{Fields, Problems, environment};
use crate::cluster::clusterfile::model::{CommandCondition, Condition, Mount, Phase, Status};
use crate::cluster::clusterfile::node::Node;

/// Reads `status`.
pub(super) fn status(node: &Node, problems: &mut Problems<'_>) -> Status {
    let mut fields = Fields::of(node, "status", problems);
    let phase = fields.text("phase", problems).filter(|p| !p.is_empty());
    let read = Status {
        phase: phase.as_deref().and_then(|phase| {
            let known = Phase::parse(phase);
            if known.is_none() {
                problems.note(node.line, format!("unknown phase `{phase}` is ignored"));
            }
            known
        }),
        mounts: each(&mut fields, "mounts", problems, mount),
        conditions: each(&mut fields, "conditions", problems, |node, problems| {
            condition(&mut Fields::of(node, "status.conditions[]", problems), problems)
        }),
        command_conditions: each(&mut fields, "commandCondition", problems, command_condition),
        environment: environment(&mut fields, "env", problems),
        extra: Map::new(),
    };
    Status { extra: fields.rest(), ..read }
}

fn each<T>(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems<'_>,
    read: impl Fn(&Node, &mut Problems<'_>) -> T,
) -> Vec<T> {
    let nodes = fields.list(name, problems);
    nodes.iter().map(|node| read(node, problems)).collect()
}

fn mount(node: &Node, problems: &mut Problems<'_>) -> Mount {
    let mut fields = Fields::of(node, "status.mounts[]", problems);
    let mut text = |name| fields.text(name, problems).unwrap_or_default();
    let read = Mount {
        name: text("name"),
        kind: text("type"),
        image: text("imageName"),
        mount_point: text("mountPoint"),
        digest: Some(text("digest")).filter(|digest| !digest.is_empty()),
        environment: fields.table("env", problems),
        labels: fields.table("labels", problems),
        command: fields.texts("cmd", problems),
        entrypoint: fields.texts("entrypoint", problems),
        extra: Map::new(),
    };
    Mount { extra: fields.rest(), ..read }
}

fn condition(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Condition {
    let mut text = |name| fields.text(name, problems).unwrap_or_default();
    Condition {
        kind: text("type"),
        status: text("status"),
        time: Some(text("lastHeartbeatTime")).filter(|time| !time.is_empty()),
        reason: text("reason"),
        message: text("message"),
    }
}

fn command_condition(node: &Node, problems: &mut Problems<'_>) -> CommandCondition {
    let mut fields = Fields::of(node, "status.commandCondition[]", problems);
    CommandCondition {
        condition: condition(&mut fields, problems),
        images: fields.texts("images", problems),
    }
}
