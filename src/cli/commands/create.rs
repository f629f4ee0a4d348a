//! `imgctl create`.

use clap::Args;
use serde_json::json;

use crate::cli::commands::build_options::pairs_or_environment;
use crate::cli::commands::mounts;
use crate::cli::context::Context;
use crate::cli::platform::PlatformArg;
use imgctl_base::error::Result;
use imgctl_store::mount::{self, CreateOptions};
use imgctl_template::Missing;

/// Mount an image for writing and show what running it would do
#[derive(Args, Debug)]
#[command(
    after_help = "Prints the mount's path and the shell script that ENTRYPOINT and CMD produce. With -e, *.tmpl files
under etc/, scripts/ and manifests/ are rendered. `imgctl umount NAME` removes the mount.

Examples:
  imgctl create etcd:v1
  cp -r \"$(imgctl create --short etcd:v1)/manifests\" ."
)]
pub(crate) struct CreateArgs {
    /// Name, ID or digest of the image
    image: String,

    /// Prefix of the mount's name
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    cluster: String,

    /// Variable for templates and commands, overriding the image's (may be repeated)
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// Fail on templates that use an undefined variable
    #[arg(long)]
    strict_templates: bool,

    /// Print only the path
    #[arg(long)]
    short: bool,

    #[command(flatten)]
    platform: PlatformArg,
}

/// Creates the mount.
pub(crate) fn run(args: &CreateArgs, context: &Context) -> Result<()> {
    let image = args.platform.image(&args.image, context)?;
    let options = CreateOptions {
        cluster: args.cluster.clone(),
        environment: pairs_or_environment(&args.env, "--env", &context.environment)?,
        missing: if args.strict_templates { Missing::Error } else { Missing::NoValue },
        backend: None,
    };
    let created = mount::create(context.store()?, &image, &options, context.ui.reporter())?;
    let record = &created.mounted.record;
    for note in &created.mounted.notes {
        context.ui.note(note);
    }
    if context.ui.is_json() {
        let mut object = mounts::object(record, "mounted");
        object["script"] = json!(created.script);
        return context.ui.json(&object);
    }
    mounts::path(&record.path, context)?;
    match created.script {
        Some(script) if !args.short => context.ui.print(&format!("{}\n", script.trim_end())),
        _ => Ok(()),
    }
}
