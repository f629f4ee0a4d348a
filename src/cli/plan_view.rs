//! Display of a plan: its steps for each host, or a short summary.

use crate::cli::context::Context;
use crate::ui::size::human;
use imgctl_base::error::Result;
use imgctl_cluster::cluster::host::Host;
use imgctl_cluster::pipeline::change::Planned;
use imgctl_cluster::pipeline::step::PlanView;

/// Prints all steps, as text or as one JSON object.
pub(crate) fn show(view: &PlanView, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(view);
    }
    for note in &view.notes {
        context.ui.note(note);
    }
    if view.phases.is_empty() {
        return context
            .ui
            .line(&format!("cluster {}: nothing to do, every host is up to date", view.cluster));
    }
    let mut text = String::new();
    for phase in &view.phases {
        text.push_str(&format!("{}\n", phase.phase));
        for host in &phase.hosts {
            text.push_str(&format!("  {}\n", host.host));
            for step in &host.steps {
                let mut marks = String::new();
                if step.done_before {
                    marks.push_str("  (done before)");
                }
                if step.bytes > 0 {
                    marks.push_str(&format!("  [{}]", human(step.bytes)));
                }
                let mut says = step.says.iter();
                let first = says.next().map_or("", String::as_str);
                text.push_str(&format!("    - {first}{marks}\n"));
                for line in says {
                    text.push_str(&format!("      {line}\n"));
                }
            }
        }
    }
    context.ui.print(&text)
}

/// Shows what is about to happen, before a prompt.
pub(crate) fn summary(planned: &Planned, context: &Context) -> Result<()> {
    for note in &planned.plan.notes {
        context.ui.note(note);
    }
    let leaving: Vec<String> = planned.context.leaving.iter().map(Host::id).collect();
    let what = match (planned.plan.verb.as_str(), leaving.is_empty()) {
        ("reset", _) => format!(
            "cluster {} is torn down: everything that belongs to it is removed from {} hosts",
            planned.plan.cluster,
            planned.plan.hosts()
        ),
        (_, false) => format!(
            "{} leaves cluster {}: everything that belongs to the cluster is removed there",
            leaving.join(", "),
            planned.plan.cluster
        ),
        (verb, true) => format!("{verb} on cluster {}", planned.plan.cluster),
    };
    context.ui.say(&what);
    Ok(())
}
