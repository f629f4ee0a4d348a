//! `imgctl df`.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::cli::format::{Listing, Row};
use crate::ui::size::human;
use crate::ui::table::Table;
use imgctl_base::error::Result;
use imgctl_store::store::usage::Usage;

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

/// Shows the totals.
pub(crate) fn run(args: &DfArgs, context: &Context) -> Result<()> {
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
            fields: fields.as_object().cloned().unwrap_or_default(),
        }
    });
    let listing = Listing {
        headings: vec!["TYPE", "TOTAL", "SIZE", "RECLAIMABLE"],
        right: vec![1, 2, 3],
        rows: rows.collect(),
        json: object(&usage),
    };
    listing.show(args.format.as_deref(), true, context)?;
    if args.verbose == 0 || args.format.is_some() || context.ui.is_json() {
        return Ok(());
    }
    let mut table = Table::new(&["IMAGE", "DIGEST", "SIZE", "SHARED", "UNIQUE"]);
    for column in 2..5 {
        table = table.right(column);
    }
    for image in &usage.images {
        let names =
            if image.names.is_empty() { "<none>".to_owned() } else { image.names.join(", ") };
        let sizes = [image.size, image.shared, image.unique].map(human);
        table.row([vec![names, image.digest.short().to_owned()], sizes.to_vec()].concat());
    }
    context.ui.print(&format!("\n{}", table.render(true)))
}

fn object(usage: &Usage) -> Value {
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
