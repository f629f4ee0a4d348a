//! `imgctl recipe`: what imgctl ships to make cluster images from.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
use imgctl_base::text::Lines;
use imgctl_frontend::context::Context;
use imgctl_frontend::format::{Listing, Row};
use imgctl_recipe::catalogue::{Catalogue, Recipe};
use imgctl_recipe::choice::release;
use imgctl_recipe::declaration::Release;

/// List and show the recipes for images
#[derive(Args, Debug)]
#[command(
    after_help = "A recipe is what `imgctl init` writes a build context from: the publishers' files with their
checksums, the container images of each version, scripts and templates. Recipes are a part of
imgctl: nothing is downloaded.

Examples:
  imgctl recipe ls
  imgctl recipe show kubernetes"
)]
pub(crate) struct RecipeCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the recipes
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Show the versions, files and container images of a recipe
    Show(ShowArgs),
}

#[derive(Args, Debug)]
struct LsArgs {
    /// Output format: `table`, `json`, or a Go template for each row (.Name .Version .For .Summary)
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// Do not print the table heading
    #[arg(short, long)]
    noheading: bool,
}

#[derive(Args, Debug)]
struct ShowArgs {
    /// Name of the recipe, or NAME@VERSION
    #[arg(value_name = "RECIPE")]
    recipe: String,
}

/// Adds to an error how to make an image that no registry gave, if it is named like a recipe.
pub(crate) fn hinted(error: Error) -> Error {
    match recipe_named(&error) {
        Some((name, version)) => error.hint(format!(
            "`imgctl init my-{name} --recipe {name}{version}` makes a folder for an image of {name}"
        )),
        None => error,
    }
}

/// Returns the recipe that is called as the image that could not be pulled, and `@VERSION` if it has that of the tag.
fn recipe_named(error: &Error) -> Option<(String, String)> {
    let name = error.word()?;
    let is_pulled = error.chain().iter().any(|text| *text == format!("cannot pull {name}"));
    let reference = Reference::parse(name).ok().filter(|_| is_pulled)?;
    if reference.registry().is_some_and(|registry| registry != "docker.io") {
        return None;
    }
    let word = reference.repository().rsplit('/').next()?;
    let catalogue = Catalogue::shipped().ok()?;
    let recipe = catalogue.get(word).ok()?;
    let version = reference.tag().filter(|tag| release(recipe, Some(tag)).is_ok());
    let version =
        version.map_or_else(String::new, |tag| format!("@{}", tag.trim_start_matches('v')));
    Some((word.to_owned(), version))
}

pub(crate) fn run(command: &RecipeCommand, context: &Context) -> Result<()> {
    match &command.verb {
        Verb::Ls(args) => list(args.format.as_deref(), !args.noheading, context),
        Verb::Show(args) => show(&args.recipe, context),
    }
}

/// Shows all recipes.
pub(crate) fn list(format: Option<&str>, heading: bool, context: &Context) -> Result<()> {
    let catalogue = Catalogue::shipped()?;
    let all = catalogue.all();
    let listing = Listing {
        headings: vec!["NAME", "VERSIONS", "FOR", "WHAT"],
        right: Vec::new(),
        rows: all.iter().map(|recipe| row(recipe)).collect(),
        json: all.iter().map(|recipe| json!(recipe.declaration)).collect(),
    };
    listing.show(format, heading, context)
}

fn row(recipe: &Recipe) -> Row {
    let own = &recipe.declaration;
    let versions: Vec<&str> = own.versions.iter().map(|release| release.version.as_str()).collect();
    let clusters = if own.runs_on.is_empty() { "hosts".to_owned() } else { own.runs_on.join(", ") };
    Row {
        fields: json!({
            "Name": own.name,
            "Version": versions.first(),
            "For": clusters,
            "Summary": own.summary,
        }),
        cells: vec![own.name.clone(), versions.join(", "), clusters, own.summary.clone()],
    }
}

fn show(word: &str, context: &Context) -> Result<()> {
    let catalogue = Catalogue::shipped()?;
    let (name, version) = word.split_once('@').map_or((word, None), |(name, v)| (name, Some(v)));
    let recipe = catalogue.get(name)?;
    let own = &recipe.declaration;
    let releases: Vec<&Release> = match version {
        None => own.versions.iter().collect(),
        Some(_) => vec![release(recipe, version)?],
    };
    if context.ui.is_json() {
        let mut shown = json!(own);
        let writes: Vec<&str> = recipe.files.iter().map(|file| file.path.as_str()).collect();
        let members = shown.as_object_mut();
        let members = members.ok_or_else(|| Error::failed("a recipe is no JSON object"))?;
        members.insert("versions".into(), releases.iter().map(|release| json!(release)).collect());
        members.insert("writes".into(), writes.into_iter().collect::<Value>());
        return context.ui.json(&shown);
    }
    let mut text = Lines::default();
    text.line(format!("{}: {}", own.name, own.summary));
    for line in own.notes.lines() {
        text.line(line);
    }
    text.line(format!("licence: {}", own.licence));
    for (what, list) in [
        ("architectures", &own.architectures),
        ("runs on", &own.runs_on),
        ("brings", &own.needs),
        ("usually with", &own.suggests),
    ] {
        if !list.is_empty() {
            text.line(format!("{what}: {}", list.join(", ")));
        }
    }
    for release in releases {
        text.line("").line(format!("{} {}", own.name, release.version));
        for file in &release.files {
            for key in file.keys(&own.architectures) {
                text.line(format!("  {}", file.url(&key)));
                let sum = file.sha256(&key).unwrap_or("not known here; the first build records it");
                text.line(format!("    sha256: {sum}"));
            }
        }
        for image in &release.images {
            text.line(format!("  image {image}"));
        }
    }
    text.line("").line(format!("files of {}:", own.name));
    for file in &recipe.files {
        text.line(format!("  {}", file.path));
    }
    context.ui.print(&text)
}
