//! The verbs that keep the store in order: `tag`, `prune`, `df`, `scrub`.

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use imgctl_base::error::{Error, Kind, Result};
use imgctl_frontend::format::{Listing, Row};
use imgctl_frontend::names::references;
use imgctl_frontend::{context::Context, duration, image_options::GateArg};
use imgctl_store::mount;
use imgctl_store::store;
use imgctl_store::store::prune::{Class, PruneOptions, PrunePlan};
use imgctl_store::store::scrub::{Problem, ScrubOptions};
use imgctl_ui::table::{Table, counted, human};

/// Add names to an image
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl tag etcd:v1 registry.example.com/team/etcd:v1 etcd:latest")]
pub(crate) struct TagArgs {
    /// Name, ID or digest of the image
    image: String,

    /// New names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    gate: GateArg,
}

pub(crate) fn tag(args: &TagArgs, context: &Context) -> Result<()> {
    let names = references(&args.names)?;
    let store = context.store()?;
    let image = store.resolve(&args.image)?;
    let verdict = args.gate.arbiter(context)?.admit_output(store, &image)?;
    store.tag(&names, &image.descriptor, &verdict)
}

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
pub(crate) fn prune(args: &PruneArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let options = PruneOptions {
        unnamed: true,
        all: args.all,
        cache_age: age(&args.filter)?,
        cache_size: args.keep_storage.as_deref().map(duration::bytes).transpose()?,
        cache_keep: None,
    };
    if !args.dry_run {
        // Mounts left behind by killed commands would keep their layers.
        mount::sweep(store)?;
    }
    let plan = store.plan_prune(&options)?;
    let shown = if args.dry_run { plan } else { store.prune(&plan, context.ui.reporter())? };
    context.ui.notes(&shown.notes);
    if context.ui.is_json() {
        return context.ui.json(&pruned(&shown, args.dry_run));
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
        table.row(vec![class_name(class).into(), count.to_string(), human(size)]);
    }
    let total = human(shown.bytes());
    let verb = if args.dry_run { "would free" } else { "freed" };
    context.ui.print(&table.render(!shown.garbage.is_empty() || !shown.unnamed.is_empty()))?;
    context.ui.line(&format!("{verb} {total}"))
}

pub(super) fn age(filters: &[String]) -> Result<Option<Duration>> {
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

fn pruned(plan: &PrunePlan, dry_run: bool) -> Value {
    let classes: Map<String, Value> = plan
        .by_class()
        .into_iter()
        .map(|(class, (count, size))| {
            (class_name(class).to_owned(), json!({"count": count, "size": size}))
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
fn class_name(class: Class) -> &'static str {
    match class {
        Class::Blob => "blobs",
        Class::Unpacked => "unpacked",
        Class::Cache => "build cache",
        Class::Leftover => "leftovers",
    }
}

/// Show the disk space used by images, snapshots and caches
#[derive(Args, Debug)]
#[command(after_help = "Fields of --format: .Type .TotalCount .Size .Reclaimable")]
pub(crate) struct DfArgs {
    /// Show each image, with its shared and unique size
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Output format: `table`, `json`, or a Go template for each row
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
}

pub(crate) fn df(args: &DfArgs, context: &Context) -> Result<()> {
    let usage = context.store()?.usage()?;
    let rows = usage.classes.iter().map(|class| {
        let reclaimable = human(class.reclaimable);
        let fields = json!({
            "Type": class.class, "TotalCount": class.count, "Size": human(class.size),
            "Reclaimable": reclaimable,
        });
        Row {
            cells: vec![
                class.class.clone(),
                class.count.to_string(),
                human(class.size),
                reclaimable,
            ],
            fields,
        }
    });
    let listing = Listing {
        headings: vec!["TYPE", "TOTAL", "SIZE", "RECLAIMABLE"],
        right: vec![1, 2, 3],
        rows: rows.collect(),
        json: usage_json(&usage),
    };
    listing.show(args.format.as_deref(), true, context)?;
    if args.verbose == 0 || args.format.is_some() || context.ui.is_json() {
        return Ok(());
    }
    let mut table = Table::new(&["IMAGE", "DIGEST", "DISK", "SHARED", "UNIQUE"]);
    for column in 2..5 {
        table = table.right(column);
    }
    for image in &usage.images {
        let names =
            if image.names.is_empty() { "<none>".to_owned() } else { image.names.join(", ") };
        let sizes = [image.size, image.shared, image.unique].map(human);
        table.row([vec![names, image.digest.short().to_owned()], sizes.to_vec()].concat());
    }
    context.ui.line("")?;
    context.ui.print(&table.render(true))
}

fn usage_json(usage: &store::usage::Usage) -> Value {
    let classes = usage.classes.iter().map(|class| {
        json!({"type": class.class, "count": class.count, "size": class.size,
            "reclaimable": class.reclaimable})
    });
    let images = usage.images.iter().map(|image| {
        json!({"names": image.names, "digest": image.digest, "size": image.size,
            "shared": image.shared, "unique": image.unique})
    });
    json!({"classes": classes.collect::<Vec<_>>(), "images": images.collect::<Vec<_>>()})
}

/// Verify every blob, image and unpacked layer in the store
#[derive(Args, Debug)]
#[command(after_help = "The exit code is 10 if a problem is found and not repaired.

Examples:
  imgctl scrub
  imgctl scrub --deep --repair")]
pub(crate) struct ScrubArgs {
    /// Decompress every layer, and read every file of every unpacked layer
    #[arg(long)]
    deep: bool,

    /// Move damaged content away, so that it can be built or loaded again
    #[arg(long)]
    repair: bool,
}

pub(crate) fn scrub(args: &ScrubArgs, context: &Context) -> Result<()> {
    let options = ScrubOptions { diff_ids: args.deep, deep: args.deep, repair: args.repair };
    let report = context.store()?.scrub(&options, context.ui.reporter())?;
    let left = report.problems.iter().filter(|problem| !problem.repaired).count();
    if context.ui.is_json() {
        context.ui.json(&json!({
            "blobs": report.blobs,
            "bytes": report.bytes,
            "images": report.images,
            "snapshots": report.snapshots,
            "unchecked": report.unchecked,
            "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
        }))?;
    } else {
        for problem in &report.problems {
            let repaired = if problem.repaired { " (moved away)" } else { "" };
            let line = format!("{}: {}{repaired}", problem.subject, problem.detail);
            context.ui.line(&line)?;
        }
        context.ui.line(&format!(
            "{} ({}), {}, {}: {}",
            counted(report.blobs, "blob"),
            human(report.bytes),
            counted(report.images, "image"),
            counted(report.snapshots, "unpacked layer"),
            match report.problems.len() {
                0 => "all good".to_owned(),
                count => counted(count, "problem"),
            }
        ))?;
    }
    if left == 0 {
        return Ok(());
    }
    let failed = Error::new(Kind::CheckFailed, format!("{left} of the problems found remain"));
    Err(if args.repair {
        failed.hint("build or load the images named above again")
    } else {
        failed.hint("run `imgctl scrub --repair` to move damaged content away")
    })
}

fn problem(problem: &Problem) -> Value {
    json!({"subject": problem.subject, "detail": problem.detail, "repaired": problem.repaired})
}
