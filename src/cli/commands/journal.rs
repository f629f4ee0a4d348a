//! `imgctl journal`.

use std::fmt::Write as _;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::ui::table::{Table, one_line};
use imgctl_base::error::{Error, Result};
use imgctl_cluster::pipeline::journal::{Past, past};
use imgctl_cluster::pipeline::step::journals;

/// Show the recorded runs of a cluster, or the steps of one run
#[derive(Args, Debug)]
#[command(after_help = "To resume an unfinished run, run the same command again.

Examples:
  imgctl journal
  imgctl journal 20260102T030405.678Z-run-1a2b3c4d
  imgctl journal last --cluster etcd --failed")]
pub(crate) struct JournalArgs {
    /// Run whose steps to show; `last` is the newest
    #[arg(value_name = "RUN")]
    run: Option<String>,

    /// Name of the cluster
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    cluster: String,

    /// Show only steps that did not succeed
    #[arg(long)]
    failed: bool,
}

pub(crate) fn run(args: &JournalArgs, context: &Context) -> Result<()> {
    let safe = |name: &str| !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    if !safe(&args.cluster) {
        return Err(Error::usage(format!("`{}` is not a cluster name", args.cluster)));
    }
    let session = context.plain_session()?;
    let directory = journals(session.state(&args.cluster)?.directory());
    let names = past::list(&directory)?;
    match args.run.as_deref() {
        None => all(&names, &directory, context),
        Some(wanted) => {
            let found = match wanted {
                "last" => names.first(),
                wanted => names.iter().find(|name| name.as_str() == wanted),
            };
            let Some(found) = found else {
                return Err(Error::not_found(format!(
                    "cluster {} has no run `{wanted}`",
                    args.cluster
                ))
                .hint(format!("run `imgctl journal --cluster {}` to list runs", args.cluster)));
            };
            one(&Past::read(&past::path_of(&directory, found))?, args.failed, context)
        }
    }
}

fn all(names: &[String], directory: &std::path::Path, context: &Context) -> Result<()> {
    let runs = names
        .iter()
        .map(|name| Past::read(&past::path_of(directory, name)))
        .collect::<Result<Vec<_>>>()?;
    if context.ui.is_json() {
        let list: Vec<Value> = runs.iter().map(head).collect();
        return context.ui.json(&list);
    }
    let mut table = Table::new(&["RUN", "VERB", "STEPS", "RESULT", "LAST"]).right(2);
    for run in &runs {
        table.row(vec![
            run.id.clone(),
            run.verb.clone(),
            run.steps.len().to_string(),
            result(run).to_owned(),
            shown(run.last),
        ]);
    }
    context.ui.print(&table.render(true))
}

fn one(run: &Past, failed: bool, context: &Context) -> Result<()> {
    let steps: Vec<(&String, &imgctl_cluster::pipeline::journal::PastStep)> = run
        .order
        .iter()
        .filter_map(|id| Some((id, run.steps.get(id)?)))
        .filter(|(_, step)| {
            use imgctl_cluster::pipeline::event::Outcome::{Assumed, Done};
            !failed || !matches!(step.outcome, Some(Done | Assumed))
        })
        .collect();
    if context.ui.is_json() {
        let mut value = head(run);
        value["list"] = steps
            .iter()
            .map(|(id, step)| {
                json!({
                    "id": id,
                    "outcome": step.outcome,
                    "attempt": step.attempt,
                    "duration_ms": step.duration_ms,
                    "log": step.log,
                    "message": step.message,
                })
            })
            .collect();
        return context.ui.json(&value);
    }
    context.ui.line(&format!(
        "{} {}: {} (begun {}, {} times, by {} with imgctl {})",
        run.verb,
        run.cluster,
        result(run),
        shown(run.started),
        run.runs,
        run.controller,
        run.version
    ))?;
    if !run.arguments.is_empty() {
        context.ui.line(&one_line(&format!("imgctl {}", run.arguments.join(" "))))?;
    }
    let mut table = Table::new(&["STEP", "RESULT", "TRY", "MS"]).right(2).right(3);
    for (id, step) in &steps {
        let outcome = step.outcome.map_or("begun", |outcome| outcome.word());
        table.row(vec![
            (*id).clone(),
            outcome.to_owned(),
            step.attempt.to_string(),
            step.duration_ms.to_string(),
        ]);
    }
    context.ui.print(&table.render(true))?;
    let mut text = String::new();
    for (id, step) in &steps {
        if let Some(message) = &step.message {
            let _ = writeln!(text, "\n{id}: {}", message.replace('\n', "\n  "));
            if let Some(log) = &step.log {
                let _ = writeln!(text, "  log: {log}");
            }
        }
    }
    context.ui.print(&text)
}

fn result(run: &Past) -> &'static str {
    run.finished.map_or("not finished", |outcome| outcome.word())
}

fn shown(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

fn head(run: &Past) -> Value {
    json!({
        "id": run.id,
        "verb": run.verb,
        "cluster": run.cluster,
        "arguments": run.arguments,
        "started": run.started,
        "last": run.last,
        "runs": run.runs,
        "outcome": run.finished,
        "steps": run.steps.len(),
        "controller": run.controller,
        "version": run.version,
    })
}
