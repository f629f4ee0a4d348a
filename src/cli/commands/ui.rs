//! `imgctl ui`: the console.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use imgctl_base::error::{Error, Result};
use imgctl_console::{Console, Options};
use imgctl_frontend::cluster_options::controller;
use imgctl_frontend::context::Context;
use imgctl_frontend::report_output::GENERATOR;
use imgctl_ops::report::Recorded;
use imgctl_registry::serving::signalled;

/// Show images, clusters, runs and plans on a local web page
#[derive(Args, Debug)]
#[command(
    after_help = "Prints the address of the page, with a token that is new at each start, and serves it until
Ctrl-C. The page is read-only, queries no host, and follows runs in progress. Only
this machine can reach it; from another one, use ssh -L (docs/ui.md).

Examples:
  imgctl ui
  imgctl ui --listen 127.0.0.1:8080 upgrade-plan.json"
)]
pub(crate) struct UiArgs {
    /// Files with plans (JSON) to show as well as the plans that clusters keep
    #[arg(value_name = "PLAN.json")]
    plans: Vec<PathBuf>,

    /// Address to listen on, of this machine alone; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: String,
}

pub(crate) fn run(args: &UiArgs, context: &Context) -> Result<()> {
    let recorded = Recorded::new(&controller(context)?, args.plans.clone(), GENERATOR);
    let store = context.store()?.clone();
    let console = Console::bind(Options { listen: address(&args.listen)?, store, recorded })?;
    let url = console.url();
    if context.ui.is_json() {
        context.ui.json_line(&json!({"url": url}))?;
    } else {
        context.ui.line(url)?;
        context.ui.say("open this address in a browser on this machine; Ctrl-C ends the console");
    }
    console.run(signalled())
}

fn address(text: &str) -> Result<SocketAddr> {
    let parsed = match text.strip_prefix("localhost:") {
        Some(port) => {
            port.parse().ok().map(|port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
        }
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| {
        Error::usage(format!("`{}` is not an address to listen on", text.escape_debug())).hint(
            "write an address of this machine and a port: 127.0.0.1:0, [::1]:8080, localhost:8080",
        )
    })
}
