//! `imgctl images`.

use clap::Args;
use serde_json::{Value, json};

use imgctl_base::error::{Error, Result};
use imgctl_base::image::reference::TREES_REGISTRY;
use imgctl_base::image::{Digest, Reference, time::parse_rfc3339};
use imgctl_frontend::context::Context;
use imgctl_frontend::format::{Listing, Row};
use imgctl_store::store::{Store, images::ImageSummary};
use imgctl_ui::table::{ago, human, now};

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

    /// Also show the records of trees of a cluster on this machine
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
    #[arg(short, long, value_name = "KEY=VALUE", value_delimiter = ',')]
    filter: Vec<String>,

    /// Output format: `table`, `json`, or a Go template for each row
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// Show previous names (none are kept; for scripts)
    #[arg(long, hide = true)]
    history: bool,
}

pub(crate) fn run(args: &ImagesArgs, context: &Context) -> Result<()> {
    let images = context.store()?.list()?;
    let filters = Filters::parse(&args.filter, args.name.as_deref(), context.store()?)?;
    let images: Vec<ImageSummary> =
        images.into_iter().filter(|image| filters.accept(image)).collect();
    let images: Vec<ImageSummary> =
        images.into_iter().filter(|image| args.all || !is_internal(image)).collect();
    if images.is_empty() && args.filter.is_empty() && args.name.is_none() {
        context.ui.note("no images; `imgctl build`, `pull` and `load` add some");
    }
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

/// Returns whether the image is a record of a tree, which no command takes.
fn is_internal(image: &ImageSummary) -> bool {
    let registry = image.reference.as_ref().and_then(|name| name.registry());
    registry == Some(TREES_REGISTRY)
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

/// Conditions that must all hold.
struct Filters(Vec<Filter>);

enum Filter {
    Label(String, Option<String>),
    /// Pattern of `*` and `?` that the name must match, with or without registry and tag.
    Reference(String),
    /// Image found by name, ID or digest.
    Exactly(Digest),
    Dangling(bool),
    /// Created before this time, in seconds since 1970; excludes the image with this digest.
    Before(i64, Digest),
    Since(i64, Digest),
}

impl Filters {
    /// Parses the `KEY=VALUE` conditions and the name argument.
    fn parse(specs: &[String], name: Option<&str>, store: &Store) -> Result<Self> {
        let mut filters = Vec::new();
        for spec in specs {
            filters.push(Self::one(spec, store)?);
        }
        if let Some(name) = name {
            filters.push(match store.resolve(name) {
                // `images REPOSITORY` lists all tags of the repository.
                Ok(found) if has_tag(name) || found.reference.is_none() => {
                    Filter::Exactly(found.descriptor.digest)
                }
                _ => Filter::Reference(name.to_owned()),
            });
        }
        Ok(Self(filters))
    }

    fn one(spec: &str, store: &Store) -> Result<Filter> {
        let (key, value) = spec.split_once('=').ok_or_else(|| {
            Error::usage(format!("--filter `{spec}` is not of the form KEY=VALUE"))
        })?;
        let moment = |name: &str| -> Result<(i64, Digest)> {
            let named = store.resolve(name)?;
            let summary = store.summary(&named)?;
            Ok((seconds(&summary).unwrap_or(i64::MIN), summary.digest))
        };
        Ok(match key {
            "label" => match value.split_once('=') {
                Some((name, value)) => Filter::Label(name.to_owned(), Some(value.to_owned())),
                None => Filter::Label(value.to_owned(), None),
            },
            "reference" => Filter::Reference(value.to_owned()),
            "dangling" => Filter::Dangling(value.parse().map_err(|_| {
                Error::usage(format!("--filter dangling must be true or false, not `{value}`"))
            })?),
            "before" => moment(value).map(|(time, digest)| Filter::Before(time, digest))?,
            "since" | "after" => moment(value).map(|(time, digest)| Filter::Since(time, digest))?,
            "readonly" | "intermediate" | "containers" => Filter::Reference("*".to_owned()),
            _ => {
                return Err(Error::usage(format!("unknown --filter key `{key}`"))
                    .hint("use label, reference, dangling, before or since"));
            }
        })
    }

    /// Whether to show `image`.
    fn accept(&self, image: &ImageSummary) -> bool {
        self.0.iter().all(|filter| filter.accept(image))
    }
}

impl Filter {
    fn accept(&self, image: &ImageSummary) -> bool {
        let created = || seconds(image).unwrap_or(i64::MIN);
        match self {
            Self::Label(name, None) => image.labels.contains_key(name),
            Self::Label(name, Some(value)) => image.labels.get(name) == Some(value),
            Self::Reference(pattern) => matches(pattern, image),
            Self::Exactly(digest) => image.digest == *digest,
            Self::Dangling(wanted) => image.name.is_none() == *wanted,
            Self::Before(time, digest) => created() < *time && image.digest != *digest,
            Self::Since(time, digest) => created() > *time && image.digest != *digest,
        }
    }
}

/// Whether `pattern` matches the full name, or the name without its registry, its tag or both.
fn matches(pattern: &str, image: &ImageSummary) -> bool {
    let Some(reference) = &image.reference else {
        return match &image.name {
            Some(name) => fits(pattern, name),
            None => pattern == "*",
        };
    };
    let repository = reference.repository();
    let mut forms = vec![reference.name(), repository.to_owned()];
    let last = repository.rsplit('/').next().unwrap_or(repository);
    forms.push(last.to_owned());
    if let Some(tag) = reference.tag() {
        let tagged: Vec<String> = forms.iter().map(|form| format!("{form}:{tag}")).collect();
        forms.extend(tagged);
    }
    forms.iter().any(|form| fits(pattern, form))
}

/// Whether `pattern`, with `*` (any characters) and `?` (one character), matches all of `text`.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            // Let the last star match one more character.
            _ => match star {
                Some((star_p, star_t)) => {
                    star = Some((star_p, star_t + 1));
                    p = star_p + 1;
                    t = star_t + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

fn has_tag(name: &str) -> bool {
    Reference::parse(name).is_ok_and(|name| name.tag().is_some() || name.digest().is_some())
}

fn seconds(image: &ImageSummary) -> Option<i64> {
    let created = image.created.as_deref()?;
    parse_rfc3339(created).ok().map(|(seconds, _)| seconds)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn image(name: Option<&str>) -> ImageSummary {
        ImageSummary {
            reference: name.map(|name| Reference::parse(name).unwrap()),
            name: name.map(str::to_owned),
            digest: Digest::of(b""),
            id: None,
            created: Some("2024-01-02T03:04:05Z".to_owned()),
            size: 0,
            platforms: Vec::new(),
            labels: BTreeMap::from([("a".to_owned(), "1".to_owned())]),
            layers: 0,
            problem: None,
        }
    }

    #[test]
    fn patterns_fit_names_with_and_without_registry_and_tag() {
        let etcd = image(Some("localhost/team/etcd:v1"));
        for (pattern, expected) in [
            ("etcd", true),
            ("team/etcd", true),
            ("localhost/team/etcd:v1", true),
            ("*etcd:v?", true),
            ("etcd:v2", false),
            ("etc", false),
        ] {
            assert_eq!(matches(pattern, &etcd), expected, "{pattern}");
        }
        assert!(!matches("etcd", &image(None)));
    }

    #[test]
    fn labels_dangling_and_times() {
        let named = image(Some("localhost/a:1"));
        assert!(Filter::Label("a".into(), None).accept(&named));
        assert!(!Filter::Label("a".into(), Some("2".into())).accept(&named));
        assert!(Filter::Dangling(true).accept(&image(None)));
        let other = Digest::of(b"other");
        assert!(Filter::Before(1_800_000_000, other.clone()).accept(&named));
        assert!(!Filter::Since(1_800_000_000, other).accept(&named));
    }

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a", "aab", false),
            ("", "x", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }
}
