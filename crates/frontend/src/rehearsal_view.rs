//! Shows the result of a rehearsal.

use std::path::Path;

use serde_json::json;

use crate::context::Context;
use imgctl_base::error::Result;
use imgctl_ops::rehearsal_record::{Part, Rehearsal, time};
use imgctl_ui::table::Table;

/// Phases of a part that the table names: the longest.
const MOST_PHASES: usize = 4;

pub(crate) fn show(rehearsal: &Rehearsal, path: &Path, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json_line(&json!({
            "event": "rehearsal",
            "rehearsal": rehearsal,
            "file": path.display().to_string(),
        }));
    }
    let ended = if rehearsal.problem.is_some() { "failed" } else { "passed" };
    let versions = rehearsal.from.iter().chain(&rehearsal.hops);
    let versions: Vec<&str> = versions.map(|release| release.version.as_str()).collect();
    let what = match versions.as_slice() {
        [] => "upgrade".to_owned(),
        versions => format!("upgrade {}", versions.join(" → ")),
    };
    context
        .ui
        .line(&format!("rehearsal of the {what} of cluster {}: {ended}", rehearsal.cluster))?;
    let mut table =
        Table::new(&["PART", "TIME", "LONGEST PHASES"]).right(1).within(context.ui.columns());
    for part in &rehearsal.parts {
        table.row(vec![part.name.clone(), time(part.seconds), longest(part)]);
    }
    context.ui.print(&table.render(true))?;
    if let Some(answers) = &rehearsal.answers {
        context.ui.line(&format!(
            "requests: {} of {} failed; longest time without an answer: {:.1}s",
            answers.failed, answers.asked, answers.longest_gap
        ))?;
    }
    let problems = rehearsal.report.iter().flat_map(|report| {
        let of_hosts = report.hosts.iter().flat_map(|host| {
            host.problems.iter().map(move |problem| format!("{}: {problem}", host.host))
        });
        of_hosts.chain(report.workloads.iter().cloned())
    });
    for problem in problems {
        context.ui.line(&format!("not as planned: {problem}"))?;
    }
    context.ui.say(&format!("recorded in {}; plans of this upgrade show it", path.display()));
    Ok(())
}

fn longest(part: &Part) -> String {
    let mut phases: Vec<_> = part.phases.iter().collect();
    phases.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    let named = phases.iter().take(MOST_PHASES);
    named
        .map(|phase| format!("{} {}", phase.name, time(phase.seconds)))
        .collect::<Vec<_>>()
        .join(", ")
}
