//! `imgctl version`.

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::cli::context::Context;
use imgctl_base::error::Result;
use imgctl_base::image::Platform;

/// Show the version
#[derive(Args, Debug)]
pub(crate) struct VersionArgs {
    /// Print only the version number
    #[arg(long)]
    short: bool,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Json,
    Yaml,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: &'static str,
    platform: String,
    store_format: &'static str,
}

/// Prints the version.
pub(crate) fn run(args: &VersionArgs, context: &Context) -> Result<()> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        platform: Platform::host().to_string(),
        store_format: "oci-image-layout 1.0.0",
    };
    if args.output == Some(Output::Json) || (context.settings.json && args.output.is_none()) {
        return context.ui.json(&version);
    }
    if args.short {
        return context.ui.line(version.version);
    }
    let text = match args.output {
        Some(_) => format!(
            "version: {}\nplatform: {}\nstoreFormat: {}\n",
            version.version, version.platform, version.store_format
        ),
        None => format!("imgctl {} ({})\n", version.version, version.platform),
    };
    context.ui.print(&text)
}
