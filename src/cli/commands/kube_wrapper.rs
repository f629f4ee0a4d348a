//! `imgctl kube-wrapper`: what `kubectl`, `helm` and Helm's post-renderer are in the commands of
//! images that run on this machine.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use imgctl_base::error::Result;
use imgctl_frontend::context::Context;
use imgctl_ui::edge::Stdout;
use imgctl_workflow::apps::{
    wrapper,
    wrapper::{Call, Tool},
};

/// Run a program for clusters on behalf of an image's command (started by imgctl itself)
#[derive(Args, Debug)]
pub(crate) struct WrapperArgs {
    /// Program to run
    #[arg(value_enum)]
    tool: ToolArg,

    /// Directory of the wrappers
    #[arg(value_name = "DIR")]
    own: PathBuf,

    /// Arguments of the program
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ToolArg {
    Kubectl,
    Helm,
    PostRenderer,
    K3s,
    K0s,
}

pub(crate) fn run(args: &WrapperArgs, context: &Context) -> Result<()> {
    let environment = &context.environment;
    let (tool, namespace) = match args.tool {
        ToolArg::Kubectl => (Tool::Kubectl, None),
        ToolArg::K3s => (Tool::K3s, None),
        ToolArg::K0s => (Tool::K0s, None),
        ToolArg::Helm => (Tool::Helm, environment.text("HELM_NAMESPACE")?),
        ToolArg::PostRenderer => {
            (Tool::PostRenderer, environment.text(wrapper::RELEASE_NAMESPACE)?)
        }
    };
    let path = environment.get("PATH").unwrap_or(OsStr::new(""));
    let call = Call {
        tool,
        arguments: args.arguments.clone(),
        own: args.own.clone(),
        path: std::env::split_paths(path).collect(),
        settings: environment.path(wrapper::SETTINGS),
        objects: environment.path(wrapper::OBJECTS),
        namespace: namespace.map(str::to_owned),
    };
    wrapper::run(&call, &mut std::io::stdin().lock(), &mut Stdout::open())
}
