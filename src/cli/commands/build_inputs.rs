//! What a build needs, out of its arguments; or what is asked for instead of a build: a check, an outline.

use crate::cli::commands::build_args::BuildArgs;
use crate::cli::commands::build_call::{self, Call, Method};
use crate::cli::commands::build_options;
use crate::cli::commands::build_output::{self, Outputs};
use crate::cli::commands::build_reports::Reports;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_build::build::{self, Options};
use imgctl_build::report::Before;
use imgctl_frontend::context::Context;
use imgctl_frontend::registry_options::RegistryArgs;
use imgctl_registry::Client;

/// What a build needs.
pub(crate) struct Inputs {
    pub(crate) options: Options,
    pub(crate) outputs: Outputs,
    pub(crate) client: Client,
    /// What the result is compared with.
    pub(crate) before: Option<Before>,
}

impl Inputs {
    /// Resolves what a build needs, or does what is asked for instead of one.
    pub(crate) fn resolve(
        args: &BuildArgs,
        reports: &Reports,
        context: &Context,
    ) -> Result<Option<Self>> {
        let mut options = build_options::resolve(args, context)?;
        let call = args.call.as_deref().map(Call::parse).transpose()?;
        match call {
            Some(Call { method: Method::Targets, is_json, .. }) => {
                return build_call::targets(&options, is_json, context).map(|()| None);
            }
            Some(Call { method: Method::Outline, is_json, .. }) => {
                return build_call::outline(&options, is_json, context).map(|()| None);
            }
            Some(call) if call.method == Method::Check => {
                return check(&options, Some(call), reports, context).map(|()| None);
            }
            _ if args.check => return check(&options, None, reports, context).map(|()| None),
            _ => {}
        }
        if args.embed.images_report {
            let grouped = reports.reporter(context);
            let reporter = grouped.as_deref().unwrap_or(context.ui.reporter());
            return build_call::images(&options, reporter, context).map(|()| None);
        }
        let outputs = build_output::resolve(&args.output, &mut options, context)?;
        let one = options.platforms.len() < 2 && !options.all_platforms;
        if outputs.sbom.is_some() && !one {
            return Err(Error::usage(
                "--sbom FILE supports only one platform, because contents differ",
            )
            .hint("attach one to each with --attest type=sbom, or run `imgctl sbom --platform`"));
        }
        let client = if outputs.insecure && args.registry.tls_verify.is_none() {
            let registry = RegistryArgs { tls_verify: Some(false), ..args.registry.clone() };
            registry.client(context)?
        } else {
            match &options.base_images.client {
                Some(client) => client.clone(),
                None => args.registry.client(context)?,
            }
        };
        options.lint = reports.want_findings();
        let before = reports.before(&options, context)?;
        Ok(Some(Self { options, outputs, client, before }))
    }
}

fn check(
    options: &Options,
    call: Option<Call>,
    reports: &Reports,
    context: &Context,
) -> Result<()> {
    let checked = build::check(context.store()?, options)?;
    if call.is_some_and(|call| call.is_json) {
        build_call::checked(&checked, context)?;
    } else {
        reports.checked(&checked, context)?;
    }
    if call.is_some_and(|call| call.ignores_status) {
        return Ok(());
    }
    if checked.has_mistakes() {
        return Err(Error::usage(format!("{} has mistakes", checked.name)));
    }
    if checked.fails {
        return Err(Error::new(Kind::CheckFailed, "the Kubefile has errors"));
    }
    Ok(())
}
