//! `imgctl prune`.

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::context::Context;
use crate::cli::duration;
use crate::ui::size::human;
use crate::ui::table::Table;
use imgctl_base::error::{Error, Result};
use imgctl_store::mount;
use imgctl_store::store::prune::{Class, PruneOptions, PrunePlan};

/// Remove everything that no image, mount or running command needs
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl prune --dry-run
  imgctl prune --filter until=72h
  imgctl prune --all")]
pub(crate) struct PruneArgs {
    /// Show what would be removed, without removing it
    #[arg(long)]
    dry_run: bool,

    /// Also remove the whole build cache and everything unpacked that is not mounted
    #[arg(short, long)]
    all: bool,

    /// Remove build cache that was not used for this long: until=DURATION (such as 12h or 7d)
    #[arg(long, value_name = "KEY=VALUE")]
    filter: Vec<String>,

    /// Maximum size of the build cache to keep (such as 10GB)
    #[arg(long, value_name = "SIZE")]
    keep_storage: Option<String>,

    /// Do not ask for confirmation (there is no prompt; for scripts)
    #[arg(short, long, hide = true)]
    force: bool,
}

/// Plans the collection and carries it out.
pub(crate) fn run(args: &PruneArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let options = PruneOptions {
        unnamed: true,
        all: args.all,
        cache_age: age(&args.filter)?,
        cache_size: args.keep_storage.as_deref().map(duration::bytes).transpose()?,
    };
    if !args.dry_run {
        // Mounts left behind by killed commands would keep their layers.
        mount::sweep(store)?;
    }
    let plan = store.plan_prune(&options)?;
    let shown = if args.dry_run { plan } else { store.prune(&plan, context.ui.reporter())? };
    for note in &shown.notes {
        context.ui.note(note);
    }
    if context.ui.is_json() {
        return context.ui.json(&object(&shown, args.dry_run));
    }
    let mut table = Table::new(&["REMOVED", "COUNT", "SIZE"]).right(1).right(2);
    if !shown.unnamed.is_empty() {
        table.row(vec![
            "images without a name".into(),
            shown.unnamed.len().to_string(),
            String::new(),
        ]);
    }
    for (class, (count, size)) in shown.by_class() {
        table.row(vec![name(class).into(), count.to_string(), human(size)]);
    }
    let total = human(shown.bytes());
    let verb = if args.dry_run { "would free" } else { "freed" };
    context.ui.print(&table.render(!shown.garbage.is_empty() || !shown.unnamed.is_empty()))?;
    context.ui.line(&format!("{verb} {total}"))
}

fn age(filters: &[String]) -> Result<Option<Duration>> {
    let mut age = None;
    for filter in filters {
        match filter.split_once('=') {
            Some(("until", text)) => age = Some(duration::parse(text)?),
            _ => {
                return Err(
                    Error::usage(format!("unknown --filter `{filter}`")).hint("use until=DURATION")
                );
            }
        }
    }
    Ok(age)
}

fn object(plan: &PrunePlan, dry_run: bool) -> Value {
    let classes: Map<String, Value> = plan
        .by_class()
        .into_iter()
        .map(|(class, (count, size))| {
            (name(class).to_owned(), json!({"count": count, "size": size}))
        })
        .collect();
    json!({
        "dryRun": dry_run,
        "unnamedImages": plan.unnamed.iter().map(|named| &named.descriptor.digest).collect::<Vec<_>>(),
        "removed": classes,
        "bytes": plan.bytes(),
        "notes": plan.notes,
    })
}

/// Returns the name of a class in tables and JSON.
fn name(class: Class) -> &'static str {
    match class {
        Class::Blob => "blobs",
        Class::Unpacked => "unpacked",
        Class::Cache => "build cache",
        Class::Leftover => "leftovers",
    }
}
