//! `imgctl cache`: the build cache of the store, and those in registries, directories, images and
//! GitHub's cache service.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::commands::store::age;
use imgctl_base::error::Result;
use imgctl_base::image::time::rfc3339;
use imgctl_build::cache::{self, Limits, Listing, Place, Pruned, Record};
use imgctl_frontend::cache_spec::Spec;
use imgctl_frontend::format::{Listing as Table, Row};
use imgctl_frontend::{context::Context, duration, registry_options::RegistryArgs};
use imgctl_ui::table::{ago, human, now};

const DAY: i64 = 86_400;

/// List and prune build caches
#[derive(Args, Debug)]
#[command(
    after_help = "A cache is named as for `build --cache-from`, or by its directory. Without a name, it is that
of the store.

Examples:
  imgctl cache ls
  imgctl cache ls registry.example.com/team/app/cache
  imgctl cache prune --max-age 30d --max-size 20GB"
)]
pub(crate) struct CacheCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Ls(Box<LsArgs>),
    Prune(Box<PruneArgs>),
}

/// List the records of build caches
#[derive(Args, Debug)]
#[command(
    visible_alias = "du",
    after_help = "A record is what one step has made. RECLAIMABLE is what only the build cache needs.
Fields of --format: .ID .Kind .Reclaimable .Layers .Size .LastUsed .Cache

Examples:
  imgctl cache ls
  imgctl cache ls registry.example.com/team/app/cache:main
  imgctl cache ls type=local,src=/var/cache/app,tag=main
  imgctl cache ls --format '{{.ID}} {{.Size}}' ./cache"
)]
struct LsArgs {
    /// Caches: NAME, a directory, or type=registry|local|gha,…
    #[arg(value_name = "CACHE")]
    caches: Vec<String>,

    /// Output format: `table`, `json`, or a Go template for each row
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Remove records of a build cache, the least recently used first
#[derive(Args, Debug)]
#[command(
    after_help = "Without a limit, all records are removed. In the store, layers go that nothing else needs; images
stay. In a registry, the cache is written again without the records, and the old manifest is removed
if the registry allows it; its own garbage collection frees the layers. In GitHub's cache service,
layers are evicted when nothing has used them for a week.

Examples:
  imgctl cache prune --dry-run --max-age 30d
  imgctl cache prune --max-size 20GB
  imgctl cache prune --keep 200 registry.example.com/team/app/cache
  imgctl cache prune -f"
)]
struct PruneArgs {
    /// Cache: NAME, a directory, or type=registry|local|gha,…; without it, that of the store
    #[arg(value_name = "CACHE")]
    cache: Option<String>,

    /// Remove records that were not used for this long (such as 12h or 30d; days outside of the store)
    #[arg(long, value_name = "DURATION")]
    max_age: Option<String>,

    /// Maximum size of the layers to keep (such as 10GB)
    #[arg(long, visible_aliases = ["max-used-space", "keep-storage"], value_name = "SIZE")]
    max_size: Option<String>,

    /// Maximum number of records to keep
    #[arg(long, value_name = "N")]
    keep: Option<usize>,

    /// Show what would be removed, without removing it
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before all records are removed
    #[arg(short, long)]
    force: bool,

    /// Same as --max-age: until=DURATION
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "max_age")]
    filter: Vec<String>,

    /// Accepted for existing scripts
    #[arg(short, long, hide = true)]
    all: bool,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn run(command: &CacheCommand, context: &Context) -> Result<()> {
    match &command.verb {
        Verb::Ls(args) => ls(args, context),
        Verb::Prune(args) => prune(args, context),
    }
}

fn place(text: &str, context: &Context) -> Result<Place> {
    let (place, notes) = Spec::lone(text, &context.environment)?;
    context.ui.notes(&notes);
    Ok(place)
}

fn ls(args: &LsArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let mut caches = Vec::new();
    if args.caches.is_empty() {
        caches.push(cache::list_store(store)?);
    } else {
        let client = args.registry.client(context)?;
        for text in &args.caches {
            caches.extend(cache::list(&place(text, context)?, store, Some(&client))?);
        }
    }
    let records = |listing: &Listing| {
        let place = listing.place.clone().unwrap_or_default();
        listing.records.iter().map(|record| row(record, &place)).collect::<Vec<_>>()
    };
    let table = Table {
        headings: vec!["ID", "KIND", "RECLAIMABLE", "LAYERS", "SIZE", "LAST USED"],
        right: vec![2, 3, 4],
        rows: caches.iter().flat_map(records).collect(),
        json: json!({"caches": caches.iter().map(in_json).collect::<Vec<_>>()}),
    };
    table.show(args.format.as_deref(), true, context)?;
    if args.format.is_some() || context.ui.is_json() {
        return Ok(());
    }
    for listing in &caches {
        let name = listing.place.as_deref().unwrap_or("the store");
        if let Some(bytes) = listing.reclaimable {
            context.ui.line(&format!("Reclaimable: {}", human(bytes)))?;
        }
        context.ui.line(&format!("Total: {} in {name}", human(listing.size)))?;
    }
    Ok(())
}

fn row(record: &Record, place: &str) -> Row {
    let id = record.key.get(..12).unwrap_or(&record.key);
    let kind = record.kind.unwrap_or("-");
    let reclaimable = record.reclaimable.map_or("-".to_owned(), human);
    let used = record.used.map_or("-".to_owned(), |used| ago(used, now()));
    let layers = record.layers.len();
    let size = human(record.size);
    let cells = [id, kind, &reclaimable, &layers.to_string(), &size, &used];
    Row {
        cells: cells.map(str::to_owned).to_vec(),
        fields: json!({
            "ID": id, "Kind": kind, "Reclaimable": reclaimable, "Layers": layers, "Size": size,
            "LastUsed": used, "Cache": place,
        }),
    }
}

fn in_json(listing: &Listing) -> Value {
    let records = listing.records.iter().map(|record| {
        json!({
            "key": record.key, "kind": record.kind, "used": record.used.map(rfc3339),
            "size": record.size, "reclaimable": record.reclaimable, "layers": record.layers,
        })
    });
    json!({
        "place": listing.place, "digest": listing.digest, "image": listing.is_image,
        "size": listing.size, "reclaimable": listing.reclaimable,
        "records": records.collect::<Vec<_>>(),
    })
}

fn prune(args: &PruneArgs, context: &Context) -> Result<()> {
    let max_age = match &args.max_age {
        Some(text) => Some(duration::parse(text)?),
        None => age(&args.filter)?,
    };
    let max_size = args.max_size.as_deref().map(duration::bytes).transpose()?;
    let all = max_age.is_none() && max_size.is_none() && args.keep.is_none();
    let limits = Limits { max_age, max_size, keep: args.keep, all };
    if all && !args.dry_run && !args.force {
        let what = args.cache.as_deref().unwrap_or("the store");
        if !context.ui.confirm(&format!("Remove the whole build cache of {what}?"))? {
            return Ok(());
        }
    }
    let store = context.store()?;
    let pruned = match &args.cache {
        None => cache::prune_store(&limits, args.dry_run, store, context.ui.reporter())?,
        Some(text) => {
            let (place, client) = (place(text, context)?, args.registry.client(context)?);
            let today = u32::try_from(now() / DAY).unwrap_or(0);
            cache::prune(&place, &limits, args.dry_run, store, Some(&client), today)?
        }
    };
    show(&pruned, args.dry_run, context)
}

fn show(pruned: &Pruned, dry_run: bool, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(&json!({
            "dryRun": dry_run,
            "removed": pruned.removed.iter().map(|record| &record.key).collect::<Vec<_>>(),
            "kept": pruned.kept,
            "bytes": pruned.bytes,
        }));
    }
    for record in &pruned.removed {
        context.ui.line(&format!("{}\t{}", record.key, human(record.size)))?;
    }
    let verb = if dry_run { "would remove" } else { "removed" };
    context.ui.line(&format!(
        "{verb} {} of {} records of {}; {} of layers",
        pruned.removed.len(),
        pruned.removed.len() + pruned.kept,
        pruned.place,
        human(pruned.bytes)
    ))
}
