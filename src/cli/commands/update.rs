//! `imgctl update`: newer versions of the images that a directory names.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::commands::build_args::BuildArgs;
use crate::cli::commands::build_embedding::ChartArgs;
use crate::cli::commands::{build_options, pull::find_tags};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_build::build::embedding;
use imgctl_build::build::update::{self, Part, State};
use imgctl_embed::lock::LOCK_FILE;
use imgctl_frontend::{context::Context, registry_options::RegistryArgs};
use imgctl_ui::table::{Table, counted};

/// Update the images that a Kubefile and its context name to newer versions
#[derive(Args, Debug)]
#[command(
    after_help = "The images are those of FROM and those that a build embeds. A newer version is a tag of the same
repository and of the same form with higher numbers: v1.34.2 for v1.34.1, but neither 1.34.2 nor
v1.35.0-rc.0. Without --major, the first number stays. Changes the files that name an image, and
imgctl.lock if there is one. Versions in charts, in variables and in the URLs of ADD are not
compared, because nothing lists them.

Examples:
  imgctl update --check
  imgctl update && imgctl build --update-lock -t app:v2 ."
)]
pub(crate) struct UpdateArgs {
    /// Directory with the Kubefile
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,

    /// Kubefile [default: as for `imgctl build`]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Change nothing; the exit code is 10 if something is newer
    #[arg(long)]
    check: bool,

    /// Also take other major versions
    #[arg(long)]
    major: bool,

    #[command(flatten)]
    charts: ChartArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Shows what is newer, and writes it.
pub(crate) fn run(args: &UpdateArgs, context: &Context) -> Result<()> {
    let client = args.registry.client(context)?;
    let mut tags = |name: &_| find_tags(&client, name).map(|(_, tags)| tags);
    let search = args.charts.search()?;
    let (directory, file) = (&args.directory, args.file.as_deref());
    let parts = update::find(directory, file, &search, args.major, &mut tags)?;
    let newer = parts.iter().filter(|part| matches!(part.state, State::Newer(_))).count();
    let (changed, left) = if args.check || newer == 0 {
        (Vec::new(), Vec::new())
    } else {
        update::write(directory, &parts)?
    };
    if context.ui.is_json() {
        let images: Vec<Value> = parts.iter().map(object).collect();
        context.ui.json(&json!({ "images": images, "changed": changed, "left": left }))?;
    } else {
        let mut table =
            Table::new(&["IMAGE", "VERSION", "NEWER", "NAMED IN"]).within(context.ui.columns());
        for part in &parts {
            table.row(row(part));
        }
        context.ui.print(&table.render(true))?;
    }
    for place in &left {
        context.ui.note(&format!(
            "{place} stays as it is: its text does not name the image; change it by hand"
        ));
    }
    if args.check && newer > 0 {
        let are = if newer == 1 { "is" } else { "are" };
        return Err(Error::new(
            Kind::CheckFailed,
            format!("newer versions of {} {are} available", counted(newer, "image")),
        )
        .hint("run `imgctl update` to take them"));
    }
    let mut unanswered: Vec<&str> = parts.iter().filter_map(unanswered).collect();
    unanswered.dedup();
    if args.check && !unanswered.is_empty() {
        return Err(
            Error::several(Kind::Network, &unanswered).context("not everything could be compared")
        );
    }
    for why in unanswered {
        context.ui.note(&format!("not compared: {why}"));
    }
    if !changed.is_empty() && args.directory.join(LOCK_FILE).is_file() {
        relock(args, context).context(|| format!("{} files are changed", changed.len()))?;
    }
    Ok(())
}

/// Resolves the images of the lock again, as `imgctl build --images-report --update-lock` does.
fn relock(args: &UpdateArgs, context: &Context) -> Result<()> {
    let mut flags = vec!["--update-lock".to_owned(), "--images-report".to_owned()];
    flags.extend(args.file.iter().map(|file| format!("--file={}", file.display())));
    flags.extend(args.charts.flags());
    flags.extend(["--".to_owned(), args.directory.display().to_string()]);
    let mut parsed = BuildArgs::of_flags(&flags)?;
    parsed.registry = args.registry.clone();
    let options = build_options::resolve(&parsed, context)?;
    let report = embedding::report(context.store()?, &options, context.ui.reporter())?;
    let failed = report.images.into_iter().find_map(|image| image.resolved?.err());
    failed.map_or(Ok(()), |error| Err(error.context(format!("{LOCK_FILE} stays as it is"))))
}

fn row(part: &Part) -> Vec<String> {
    let newer = match &part.state {
        State::Newest => "-".to_owned(),
        State::Newer(tag) => tag.clone(),
        State::NotCompared(why) => format!("not compared: {why}"),
        State::Unanswered(_) => "not compared".to_owned(),
    };
    let tag = part.reference.tag().unwrap_or("-").to_owned();
    vec![part.reference.name(), tag, newer, places(part).join(", ")]
}

/// Returns why the repository of an image has not answered.
fn unanswered(part: &Part) -> Option<&str> {
    match &part.state {
        State::Unanswered(why) => Some(why),
        _ => None,
    }
}

fn places(part: &Part) -> Vec<String> {
    let shown = |(file, line): &(String, usize)| match line {
        0 => file.clone(),
        line => format!("{file}:{line}"),
    };
    part.places.iter().map(shown).collect()
}

fn object(part: &Part) -> Value {
    let (newer, why) = match &part.state {
        State::Newest => (None, None),
        State::Newer(tag) => (Some(tag), None),
        State::NotCompared(why) | State::Unanswered(why) => (None, Some(why)),
    };
    json!({
        "name": part.reference.name(),
        "version": part.reference.tag(),
        "newer": newer,
        "notCompared": why,
        "places": places(part),
    })
}
