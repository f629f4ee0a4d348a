//! `imgctl registry ls`.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use serde_json::{Value, json};

use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Reference;
use imgctl_base::workers::{for_each, lock};
use imgctl_frontend::{context::Context, registry_options::RegistryArgs};
use imgctl_registry::{Client, Repository, Target, layout::Layout};
use imgctl_transfer::transfer::mirror_place::PlaceName;
use imgctl_ui::table::Table;

/// Number of repository names read at a time.
const PAGE: usize = 1000;
/// Number of concurrent tag lookups in a registry.
const REQUESTS: usize = 8;

/// List the repositories and tags of a registry, or of its tree on disk
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl registry ls /var/lib/registry
  imgctl registry ls localhost:5000
  imgctl registry ls docker://quay.io/coreos/etcd
  imgctl registry ls registry library/nginx --json")]
pub(crate) struct LsArgs {
    /// Directory of the registry, or [docker://]HOST[:PORT][/REPOSITORY]
    #[arg(value_name = "PLACE")]
    place: OsString,

    /// List only this repository
    repository: Option<String>,

    /// Do not print the table heading
    #[arg(short, long)]
    noheading: bool,

    #[command(flatten)]
    registry: RegistryArgs,
}

struct Row {
    repository: String,
    tag: String,
    digest: String,
    media_type: Option<String>,
}

pub(crate) fn run(args: &LsArgs, context: &Context) -> Result<()> {
    let rows = match PlaceName::parse(&args.place) {
        Ok(PlaceName::Registry { host, prefix }) => {
            let registry = Remote { client: args.registry.client(context)?, host, prefix };
            registry.rows(args.repository.as_deref())?
        }
        Ok(PlaceName::Directory(directory)) => on_disk(&directory, args.repository.as_deref())?,
        // A plain word may be a directory that does not exist.
        Err(error) if args.place.as_encoded_bytes().starts_with(b"docker://") => return Err(error),
        Err(_) => on_disk(Path::new(&args.place), args.repository.as_deref())?,
    };
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

/// A registry, one of its repositories, or the repositories below a prefix.
struct Remote {
    client: Client,
    host: String,
    prefix: Option<String>,
}

impl Remote {
    fn rows(&self, repository: Option<&str>) -> Result<Vec<Row>> {
        let mut wanted: Vec<(String, String)> = Vec::new();
        match (&self.prefix, repository) {
            (Some(prefix), Some(name)) => self.add(&format!("{prefix}/{name}"), &mut wanted)?,
            (None, Some(name)) => self.add(name, &mut wanted)?,
            (Some(prefix), None) => match self.add(prefix, &mut wanted) {
                Err(error) if error.kind() == Kind::NotFound => {
                    self.add_all(&mut wanted).map_err(|_| error)?;
                }
                added => added?,
            },
            (None, None) => self.add_all(&mut wanted)?,
        }
        let rows: Mutex<Vec<(usize, Row)>> = Mutex::default();
        let stop = AtomicBool::new(false);
        for_each(wanted.iter().enumerate(), REQUESTS, &stop, |(at, (name, tag))| {
            let found = self.repository(name)?.head(&Target::Tag(tag.clone()))?;
            // A tag that was removed meanwhile is not listed.
            let row = found.map(|found| Row {
                repository: name.clone(),
                tag: tag.clone(),
                digest: found.digest.to_string(),
                media_type: Some(found.media_type),
            });
            lock(&rows).extend(row.map(|row| (at, row)));
            Ok(())
        })?;
        let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
        rows.sort_by_key(|(at, _)| *at);
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    fn repository(&self, name: &str) -> Result<Repository> {
        let reference = Reference::parse(&format!("{}/{name}", self.host))?;
        self.client.repository(&reference)
    }

    fn add(&self, name: &str, wanted: &mut Vec<(String, String)>) -> Result<()> {
        let tags = self.repository(name)?.tags()?;
        wanted.extend(tags.into_iter().map(|tag| (name.to_owned(), tag)));
        Ok(())
    }

    /// Adds the repositories that the registry lists, below the prefix if there is one.
    fn add_all(&self, wanted: &mut Vec<(String, String)>) -> Result<()> {
        let is_below = |name: &String| match &self.prefix {
            Some(prefix) => name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/')),
            None => true,
        };
        let all = self.client.catalog(&self.host).map_err(|error| {
            error.hint("not every registry lists its repositories; pass one: docker://HOST/NAME")
        })?;
        let before = wanted.len();
        for name in all.into_iter().filter(is_below) {
            match self.add(&name, wanted) {
                // Some registries list repositories whose last tag was removed.
                Err(error) if error.kind() == Kind::NotFound => {}
                added => added?,
            }
        }
        match (&self.prefix, wanted.len() > before) {
            (Some(prefix), false) => {
                Err(Error::not_found(format!("{} has no repository {prefix}", self.host)))
            }
            _ => Ok(()),
        }
    }
}

/// Lists the contents of a tree.
fn on_disk(directory: &Path, repository: Option<&str>) -> Result<Vec<Row>> {
    let layout = Layout::open(directory, false)?;
    let mut rows = Vec::new();
    match repository {
        Some(name) => {
            if !add(&layout, name, &mut rows)? {
                return Err(Error::not_found(format!(
                    "{} has no repository {name}",
                    directory.display()
                ))
                .hint("run `imgctl registry ls DIR` to list all of them"));
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
    Ok(rows)
}

fn add(layout: &Layout, repository: &str, rows: &mut Vec<Row>) -> Result<bool> {
    let Some(tags) = layout.tags(repository, None, usize::MAX)? else {
        return Ok(false);
    };
    for tag in tags {
        let Some(digest) = layout.resolve_tag(repository, &tag)? else {
            continue;
        };
        // Damaged manifests are listed anyway; scrub reports more.
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
