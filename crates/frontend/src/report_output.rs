//! Where reports go: one HTML file, and JSON on stdout.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use crate::context::Context;
use crate::requested_report::Requested;
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_base::image::Descriptor;
use imgctl_build::report::{self, Finding};
use imgctl_inplace::plan::Plan;
use imgctl_ops::report::{RunRequest, of_in_place, of_run};
use imgctl_report::Report;
use imgctl_report::model::{self, plan::PlanReport};
use imgctl_store::store::Image;

/// The program that makes reports.
pub const GENERATOR: &str = concat!("imgctl ", env!("CARGO_PKG_VERSION"));

/// The file of a report.
#[derive(Args, Clone, Debug)]
pub struct ReportOutput {
    /// File for the page; `-` is stdout [default: stdout, unless --json is given]
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
}

/// The report that a verb which runs on clusters can write.
#[derive(Args, Clone, Debug, Default)]
pub struct RunReportArg {
    /// Write a report of the run to a file, also if it fails; with a plan, of the plan
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

impl RunReportArg {
    /// Asks for the report. Fails at once if the file cannot be written.
    pub fn request(&self, context: &Context) -> Result<()> {
        self.report.as_ref().map_or(Ok(()), |path| context.report.request(path))
    }
}

impl ReportOutput {
    /// Writes the page, and with `--json` prints the data.
    pub fn write(
        &self,
        report: Report<'_>,
        data: &impl Serialize,
        context: &Context,
    ) -> Result<()> {
        if context.ui.is_json() {
            if self.output.as_deref().is_some_and(is_stdout) {
                return Err(Error::usage("stdout cannot have both the page and JSON")
                    .hint("write the page to a file with -o FILE.html"));
            }
            context.ui.json_line(data)?;
        }
        match self.output.as_deref() {
            Some(path) if !is_stdout(path) => {
                write_page(path, report)?;
                context.ui.say(&format!("wrote {}", path.display()));
                Ok(())
            }
            None if context.ui.is_json() => Ok(()),
            None if context.ui.stdout_is_terminal() => {
                Err(Error::usage("a page of HTML is not written to a terminal")
                    .hint("name a file with -o FILE.html"))
            }
            _ => context.ui.content(report.to_html()),
        }
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Writes the page of a report. What reports say of clusters is for those who may see the clusters:
/// only the owner can read the file.
pub(crate) fn write_page(path: &Path, report: Report<'_>) -> Result<()> {
    let mode = if report.is_private() { 0o600 } else { 0o644 };
    output::write(path, report.to_html().as_bytes(), mode, Durability::Atomic)
}

impl Context {
    /// Writes the report of a plan that is shown, if one is asked for.
    pub(crate) fn report_plan(
        &self,
        report: impl FnOnce(Option<String>) -> Option<PlanReport>,
    ) -> Result<()> {
        let Some(path) = self.report.path() else { return Ok(()) };
        let Some(report) = report(created(self)?) else { return Ok(()) };
        write_page(&path, Report::Plan(&report))?;
        self.report.plan_is_written();
        self.ui.say(&format!("wrote {}", path.display()));
        Ok(())
    }

    /// Writes the report of a plan of an in-place update, if one is asked for.
    pub fn report_in_place_plan(&self, plan: &Plan) -> Result<()> {
        self.report_plan(|created| Some(of_in_place(plan, GENERATOR, created)))
    }

    /// Writes the report of the run that a verb has made, if one is asked for. A report that cannot be
    /// written does not hide the error of the run.
    pub fn finish_report(&self, outcome: Result<()>) -> Result<()> {
        let Requested { path, run, has_plan } = self.report.take();
        let Some(path) = path else { return outcome };
        let Some((cluster, run)) = run else {
            if !has_plan && outcome.is_ok() {
                self.ui.note(&format!(
                    "nothing was planned or run: {} is not written",
                    path.display()
                ));
            }
            return outcome;
        };
        let written = created(self).and_then(|created| {
            let generator = GENERATOR.to_owned();
            let request = RunRequest { cluster, run: Some(run), generator, created };
            let report = of_run(&request, &self.plain_session()?)?;
            write_page(&path, Report::Run(&report))
        });
        match (outcome, written) {
            (Ok(()), written) => written,
            (outcome, Ok(())) => outcome,
            (outcome, Err(error)) => {
                self.ui.note(&format!("cannot write the report {}: {error}", path.display()));
                outcome
            }
        }
    }
}

/// The page of an image that a build makes.
#[derive(Default)]
pub struct ImagePage {
    /// The image to compare with, as it was before the build, which may take its name.
    older: OnceCell<Image>,
}

impl ImagePage {
    /// Remembers the image to compare with. Images that are not in the store have no files here.
    pub fn compare(&self, name: &str, context: &Context) -> Result<()> {
        match context.store()?.image(name, None) {
            Ok(image) => {
                let _ = self.older.set(image);
            }
            Err(error) => tracing::info!("the page compares with nothing: {error}"),
        }
        Ok(())
    }

    /// Makes the page of the image, or of this machine's platform among several.
    pub fn html(
        &self,
        image: &Descriptor,
        findings: &[Finding],
        context: &Context,
    ) -> Result<String> {
        let store = context.store()?;
        let image = store.image_at(image, None)?;
        let request = imgctl_describe::Request {
            image: &image,
            older: self.older.get(),
            findings: findings.iter().map(shown_finding).collect(),
            generator: GENERATOR,
            created: created(context)?,
        };
        Ok(Report::Image(&imgctl_describe::describe(store, request)?).to_html())
    }
}

/// Returns a finding of a Kubefile's check as a page shows it.
fn shown_finding(finding: &Finding) -> model::Finding {
    model::Finding {
        severity: match report::severity_name(finding.severity) {
            "error" => model::Severity::Error,
            _ => model::Severity::Warning,
        },
        rule: finding.rule.to_owned(),
        message: finding.place.message.clone(),
        place: Some(format!("{}:{}", finding.path(), finding.place.line)),
        hint: finding.place.hint.clone(),
    }
}

/// Returns the time of a report: `SOURCE_DATE_EPOCH`, or now.
pub fn created(context: &Context) -> Result<Option<String>> {
    let time = match context.environment.text("SOURCE_DATE_EPOCH")? {
        None => Timestamp::now(),
        Some(text) => {
            let seconds = text.parse().ok();
            seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()).ok_or_else(|| {
                Error::usage(format!("the variable SOURCE_DATE_EPOCH is `{text}`"))
                    .hint("set it to a number of seconds since 1970")
            })?
        }
    };
    Ok(Some(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()))
}
