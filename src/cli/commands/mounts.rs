//! `imgctl mounts`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::cli::format::{Listing, Row};
use crate::ui::ago::{ago, now};
use imgctl_base::error::Result;
use imgctl_base::image::time::parse_rfc3339;
use imgctl_store::mount::{self, Listed, Record, State};

/// List mounts
#[derive(Args, Debug)]
#[command(
    after_help = "States: mounted; stale (ended by a reboot or by umount(8): imgctl umount cleans it up);
  unfinished (being created); elsewhere (in another mount namespace).
Fields of --format: .ID .Name .Image .Digest .Path .Backend .State .Created .ReadOnly"
)]
pub(crate) struct MountsArgs {
    /// Show only IDs
    #[arg(short, long)]
    quiet: bool,

    /// Output format: `table`, `json`, or a Go template for each row
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
}

/// Lists the mounts.
pub(crate) fn run(args: &MountsArgs, context: &Context) -> Result<()> {
    let mounts = mount::list(context.store()?)?;
    if args.quiet && !context.ui.is_json() {
        let ids: String = mounts.iter().map(|mount| format!("{}\n", mount.id)).collect();
        return context.ui.print(&ids);
    }
    listing(&mounts).show(args.format.as_deref(), true, context)
}

/// Shows the list without options, for `imgctl mount` without an image.
pub(crate) fn show(context: &Context) -> Result<()> {
    listing(&mount::list(context.store()?)?).show(None, true, context)
}

/// Prints a path unchanged, for scripts.
pub(crate) fn path(path: &Path, context: &Context) -> Result<()> {
    context.ui.bytes(&[path.as_os_str().as_bytes(), b"\n"].concat())
}

fn listing(mounts: &[Listed]) -> Listing {
    Listing {
        headings: vec!["ID", "IMAGE", "STATE", "BACKEND", "CREATED", "PATH"],
        right: Vec::new(),
        rows: mounts.iter().map(row).collect(),
        json: mounts.iter().map(json_of).collect(),
    }
}

/// Returns one mount as JSON.
pub(crate) fn object(record: &Record, state: &str) -> Value {
    json!({
        "id": record.id,
        "name": record.name,
        "image": record.image,
        "digest": record.manifest,
        "path": record.path.display().to_string(),
        "backend": record.backend.as_str(),
        "readOnly": record.read_only,
        "created": record.created,
        "state": state,
    })
}

fn json_of(mount: &Listed) -> Value {
    let mut value = match &mount.record {
        Some(record) => object(record, mount.state.as_str()),
        None => json!({"id": mount.id, "state": mount.state.as_str()}),
    };
    if let State::Elsewhere(process) = mount.state {
        value["process"] = process.into();
    }
    value
}

fn row(mount: &Listed) -> Row {
    let record = mount.record.as_ref();
    let text = |of: fn(&Record) -> String| record.map(of).unwrap_or_default();
    let created = record
        .and_then(|record| parse_rfc3339(&record.created).ok())
        .map_or_else(String::new, |(then, _)| ago(then, now()));
    let path = text(|record| record.path.display().to_string());
    let (image, backend) = (text(|r| r.image.clone()), text(|r| r.backend.as_str().to_owned()));
    let fields = json!({
        "ID": mount.id, "Name": text(|r| r.name.clone().unwrap_or_default()), "Image": image,
        "Digest": text(|r| r.manifest.to_string()), "Path": path, "Backend": backend,
        "State": mount.state.as_str(), "Created": created,
        "ReadOnly": record.is_some_and(|record| record.read_only),
    });
    Row {
        cells: vec![
            mount.id.clone(),
            image,
            mount.state.as_str().to_owned(),
            backend,
            created,
            path,
        ],
        fields: fields.as_object().cloned().unwrap_or_default(),
    }
}
