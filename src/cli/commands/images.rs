//! `imgctl images`.

use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::context::Context;
use crate::cli::filter::Filters;
use crate::cli::format::{Listing, Row};
use crate::ui::ago::{ago, now};
use crate::ui::size::human;
use imgctl_base::error::Result;
use imgctl_base::image::time::parse_rfc3339;
use imgctl_store::store::list::ImageSummary;

/// List images
#[derive(Args, Debug)]
#[command(
    after_help = "Filters: label=NAME[=VALUE], reference=PATTERN, dangling=true|false, before=IMAGE, since=IMAGE
Fields of --format: .ID .Name .Repository .Tag .Digest .Names .CreatedAt .CreatedAtRaw .CreatedSince
  .Size .Platforms .Labels .Layers .ReadOnly

Examples:
  imgctl images --digests
  imgctl images --filter label=sealos.io.type=rootfs
  imgctl images --format 'table {{.Name}}\\t{{.Tag}}\\t{{.Size}}'"
)]
pub(crate) struct ImagesArgs {
    /// Show only images of this name or repository
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Show all images (none are hidden; for scripts)
    #[arg(short, long)]
    all: bool,

    /// Show manifest digests
    #[arg(long)]
    digests: bool,

    /// Show only IDs
    #[arg(short, long)]
    quiet: bool,

    /// Do not truncate IDs
    #[arg(long)]
    no_trunc: bool,

    /// Do not print the table heading
    #[arg(short, long)]
    noheading: bool,

    /// Show only images that match (may be repeated; all must match)
    #[arg(short, long, value_name = "KEY=VALUE")]
    filter: Vec<String>,

    /// Output format: `table`, `json`, or a Go template for each row
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// Show previous names (none are kept; for scripts)
    #[arg(long, hide = true)]
    history: bool,
}

/// Lists the images.
pub(crate) fn run(args: &ImagesArgs, context: &Context) -> Result<()> {
    let images = context.store()?.list()?;
    let filters = Filters::parse(&args.filter, args.name.as_deref(), context.store()?)?;
    let images: Vec<ImageSummary> =
        images.into_iter().filter(|image| filters.accept(image)).collect();
    for image in &images {
        if let Some(problem) = &image.problem {
            let name = image.name.as_deref().unwrap_or("<none>");
            context
                .ui
                .note(&format!("{name} ({}) cannot be used: {problem}", image.digest.short()));
        }
    }
    if args.quiet && !context.ui.is_json() {
        return quiet(args, &images, context);
    }
    let mut headings = vec!["REPOSITORY", "TAG"];
    if args.digests {
        headings.push("DIGEST");
    }
    headings.extend(["IMAGE ID", "CREATED", "SIZE"]);
    let size = headings.len() - 1;
    let listing = Listing {
        headings,
        right: vec![size],
        rows: images.iter().map(|image| row(args, image)).collect(),
        json: json_list(&images),
    };
    listing.show(args.format.as_deref(), !args.noheading, context)
}

fn quiet(args: &ImagesArgs, images: &[ImageSummary], context: &Context) -> Result<()> {
    let mut seen = Vec::new();
    for image in images {
        let id = id(image, args.no_trunc);
        if !seen.contains(&id) {
            context.ui.line(&id)?;
            seen.push(id);
        }
    }
    Ok(())
}

/// Returns the ID as buildah and docker show it; for an index, the ID of this machine's platform.
fn id(image: &ImageSummary, full: bool) -> String {
    let digest = image.id.as_ref().unwrap_or(&image.digest);
    if full { digest.to_string() } else { digest.short().to_owned() }
}

/// Returns repository and tag; `<none>` replaces a missing one. A name from another tool is
/// returned unchanged.
fn name_and_tag(image: &ImageSummary) -> (String, String) {
    let none = || "<none>".to_owned();
    match (&image.reference, &image.name) {
        (Some(reference), _) => {
            (reference.name(), reference.tag().map_or_else(none, str::to_owned))
        }
        (None, Some(name)) => (name.clone(), none()),
        (None, None) => (none(), none()),
    }
}

fn created_seconds(image: &ImageSummary) -> Option<i64> {
    let (seconds, _) = parse_rfc3339(image.created.as_deref()?).ok()?;
    Some(seconds)
}

fn age(image: &ImageSummary) -> String {
    created_seconds(image).map_or_else(|| "N/A".to_owned(), |then| ago(then, now()))
}

fn row(args: &ImagesArgs, image: &ImageSummary) -> Row {
    let (repository, tag) = name_and_tag(image);
    let mut cells = vec![repository.clone(), tag.clone()];
    if args.digests {
        cells.push(image.digest.to_string());
    }
    cells.extend([id(image, args.no_trunc), age(image), human(image.size)]);
    let fields = json!({
        "ID": id(image, args.no_trunc),
        "Name": repository,
        "Repository": repository,
        "Tag": tag,
        "Digest": image.digest,
        "Names": image.name.iter().collect::<Vec<_>>(),
        "CreatedAt": image.created.as_deref().unwrap_or("N/A"),
        "CreatedAtRaw": image.created,
        "CreatedSince": age(image),
        "Created": age(image),
        "Size": human(image.size),
        "Platforms": platforms(image),
        "Labels": image.labels,
        "Layers": image.layers,
        "ReadOnly": false,
        "History": "",
    });
    let fields = match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    Row { cells, fields }
}

fn platforms(image: &ImageSummary) -> Vec<String> {
    image.platforms.iter().map(ToString::to_string).collect()
}

/// Returns buildah's members, followed by imgctl's: one object per image, with all its names.
fn json_list(images: &[ImageSummary]) -> Value {
    let mut objects: Vec<Value> = Vec::new();
    let mut digests = Vec::new();
    for image in images {
        if let Some(position) = digests.iter().position(|digest| *digest == &image.digest) {
            if let (Some(name), Some(names)) =
                (&image.name, objects[position]["names"].as_array_mut())
            {
                names.push(name.as_str().into());
            }
            continue;
        }
        digests.push(&image.digest);
        objects.push(json!({
            "id": image.id.as_ref().unwrap_or(&image.digest).hex(),
            "names": image.name.iter().collect::<Vec<_>>(),
            "digest": image.digest,
            "createdat": age(image),
            "size": human(image.size),
            "created": created_seconds(image),
            "createdatraw": image.created,
            "readonly": false,
            "history": [],
            "bytes": image.size,
            "platforms": platforms(image),
            "labels": image.labels,
            "layers": image.layers,
            "problem": image.problem,
        }));
    }
    Value::Array(objects)
}
