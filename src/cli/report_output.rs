//! Where reports go: one HTML file, and JSON on stdout.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::context::Context;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::Descriptor;
use imgctl_build::report::{self, Finding};
use imgctl_cluster::pipeline::event::{Event, Listener};
use imgctl_ops::report::{RunRequest, of_run};
use imgctl_report::Report;
use imgctl_report::model::{self, plan::PlanReport};
use imgctl_store::store::Image;
use imgctl_transfer::describe;

/// The program that makes reports.
pub(crate) const GENERATOR: &str = concat!("imgctl ", env!("CARGO_PKG_VERSION"));

/// The file of a report.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportOutput {
    /// File for the page; `-` is stdout [default: stdout, unless --json is given]
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
}

impl ReportOutput {
    /// Writes the page, and with `--json` prints the data.
    pub(crate) fn write(
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
            let json = serde_json::to_string(data).map_err(|error| {
                Error::failed("cannot write the report as JSON").caused_by(error)
            })?;
            context.ui.line(&json)?;
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
            _ => context.ui.print(&report.to_html()),
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
    // A pipe or a device is written to, not replaced.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, report.to_html()).path("write", path);
    }
    atomic::write(path, report.to_html().as_bytes(), mode, Durability::Atomic)
}

/// What `--report` of a verb on clusters asks for: a page of its plan, or of its run.
#[derive(Clone, Default)]
pub(crate) struct RequestedReport(Arc<Mutex<Requested>>);

#[derive(Default)]
struct Requested {
    path: Option<PathBuf>,
    /// Cluster and journal of the last run.
    run: Option<(String, String)>,
    has_plan: bool,
}

impl RequestedReport {
    /// Asks for a report. Fails at once if the file cannot be written: the run may take an hour.
    pub(crate) fn request(&self, path: &Path) -> Result<()> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if directory.is_some_and(|directory| !directory.is_dir()) || path.is_dir() {
            return Err(Error::usage(format!("--report cannot write {}", path.display()))
                .hint("name a file in a directory that exists"));
        }
        self.lock().path = Some(path.to_owned());
        Ok(())
    }

    /// Writes the report of a plan that is shown, if one is asked for.
    pub(crate) fn plan(
        &self,
        context: &Context,
        report: impl FnOnce(Option<String>) -> Option<PlanReport>,
    ) -> Result<()> {
        let Some(path) = self.lock().path.clone() else { return Ok(()) };
        let Some(report) = report(created(context)?) else { return Ok(()) };
        write_page(&path, Report::Plan(&report))?;
        self.lock().has_plan = true;
        context.ui.say(&format!("wrote {}", path.display()));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Requested> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes events on, and remembers the run that a report is asked for.
pub(crate) struct Noting<'a> {
    pub(crate) listener: Box<dyn Listener + 'a>,
    pub(crate) report: RequestedReport,
}

impl Listener for Noting<'_> {
    fn event(&self, event: &Event) {
        if let Event::Start { journal, cluster, .. } = event {
            self.report.lock().run = Some((cluster.clone(), journal.clone()));
        }
        self.listener.event(event);
    }
}

impl Context {
    /// Writes the report of the run that a verb has made, if one is asked for. A report that cannot be
    /// written does not hide the error of the run.
    pub(crate) fn finish_report(&self, outcome: Result<()>) -> Result<()> {
        let (path, run, has_plan) = {
            let mut requested = self.report.lock();
            (requested.path.take(), requested.run.take(), requested.has_plan)
        };
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
pub(crate) struct ImagePage {
    /// The image to compare with, as it was before the build, which may take its name.
    older: OnceCell<Image>,
}

impl ImagePage {
    /// Remembers the image to compare with. Images that are not in the store have no files here.
    pub(crate) fn compare(&self, name: &str, context: &Context) -> Result<()> {
        match context.store()?.image(name, None) {
            Ok(image) => {
                let _ = self.older.set(image);
            }
            Err(error) => tracing::info!("the page compares with nothing: {error}"),
        }
        Ok(())
    }

    /// Makes the page of the image, or of this machine's platform among several.
    pub(crate) fn html(
        &self,
        image: &Descriptor,
        findings: &[Finding],
        context: &Context,
    ) -> Result<String> {
        let store = context.store()?;
        let image = store.image_at(image, None)?;
        let request = describe::Request {
            image: &image,
            older: self.older.get(),
            findings: findings.iter().map(shown_finding).collect(),
            generator: GENERATOR,
            created: created(context)?,
        };
        Ok(Report::Image(&describe::describe(store, request)?).to_html())
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
pub(crate) fn created(context: &Context) -> Result<Option<String>> {
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
