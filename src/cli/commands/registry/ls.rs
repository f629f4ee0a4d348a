//! `imgctl registry ls`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::error::{Error, Result};
use crate::registry::layout::Layout;
use crate::ui::table::Table;

/// Names asked for at once.
const PAGE: usize = 1000;

/// List the repositories and tags of a registry on disk
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl registry ls /var/lib/registry
  imgctl registry ls registry library/nginx --json")]
pub(crate) struct LsArgs {
    /// Directory of the registry
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Only this repository
    repository: Option<String>,

    /// Leave the heading out
    #[arg(short, long)]
    noheading: bool,
}

struct Row {
    repository: String,
    tag: String,
    digest: String,
    media_type: Option<String>,
}

/// Lists them.
pub(crate) fn run(args: &LsArgs, context: &Context) -> Result<()> {
    let layout = Layout::open(&args.directory, false)?;
    let mut rows = Vec::new();
    match &args.repository {
        Some(name) => {
            if !add(&layout, name, &mut rows)? {
                return Err(Error::not_found(format!(
                    "{} has no repository {name}",
                    args.directory.display()
                ))
                .hint("imgctl registry ls DIR lists all of them"));
            }
        }
        None => {
            let mut after: Option<String> = None;
            loop {
                let names = layout.repositories(after.as_deref(), PAGE)?;
                let Some(last) = names.last() else { break };
                after = Some(last.clone());
                for name in &names {
                    add(&layout, name, &mut rows)?;
                }
            }
        }
    }
    if context.ui.is_json() {
        let list: Vec<Value> = rows.iter().map(object).collect();
        return context.ui.json(&list);
    }
    let mut table = Table::new(&["REPOSITORY", "TAG", "DIGEST"]);
    for row in rows {
        table.row(vec![row.repository, row.tag, row.digest]);
    }
    context.ui.print(&table.render(!args.noheading))
}

fn add(layout: &Layout, repository: &str, rows: &mut Vec<Row>) -> Result<bool> {
    let Some(tags) = layout.tags(repository, None, usize::MAX)? else {
        return Ok(false);
    };
    for tag in tags {
        let Some(digest) = layout.resolve_tag(repository, &tag)? else {
            continue;
        };
        // What is damaged is listed all the same; scrub says more.
        let manifest = layout.manifest(repository, &digest).ok().flatten();
        rows.push(Row {
            repository: repository.to_owned(),
            tag,
            digest: digest.to_string(),
            media_type: manifest.map(|manifest| manifest.media_type),
        });
    }
    Ok(true)
}

fn object(row: &Row) -> Value {
    json!({
        "repository": row.repository,
        "tag": row.tag,
        "digest": row.digest,
        "mediaType": row.media_type,
    })
}
