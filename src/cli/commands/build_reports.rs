//! Flags of `build` for CI systems, and where what CI systems read is written: their log, the files
//! that their variables name, and the files of `--report`.

use std::cell::Cell;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_base::progress::Reporter;
use imgctl_base::text::Lines;
use imgctl_build::build::{Built, Checked, Options};
use imgctl_build::report::{self, Before, BuildSummary, Finding};
use imgctl_frontend::report_output::ImagePage;
use imgctl_frontend::{context::Context, environment::Environment};
use imgctl_ui::ci::{Annotation, Region, System};
use imgctl_ui::edge::reader_is_gone;

/// Maximum size of a step summary; GitHub refuses a larger one as a whole.
const MAX_SUMMARY: u64 = 1 << 20;
/// Where Tekton expects results.
const TEKTON_RESULTS: &str = "/tekton/results";

/// Flags for CI systems.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "CI systems")]
pub(crate) struct ReportArgs {
    /// CI system whose log shows mistakes at their lines and steps as groups: github, gitlab, none;
    /// auto means the one whose variables are set [env: IMGCTL_ANNOTATIONS] [default: auto]
    #[arg(long = "annotations", value_enum, value_name = "SYSTEM", hide_possible_values = true)]
    log_form: Option<Annotations>,

    /// Append a summary in Markdown to a file [default: $GITHUB_STEP_SUMMARY on GitHub]
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,

    /// Say what changed since this image, which is in the store or a registry
    #[arg(long, value_name = "IMAGE")]
    compare: Option<String>,

    /// Write a report: sarif=FILE, codequality=FILE, html=FILE, dotenv=FILE, tekton[=DIRECTORY]; `-`
    /// is stdout (may be repeated)
    #[arg(long = "report", value_name = "KIND=FILE")]
    reports: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Annotations {
    Auto,
    Github,
    Gitlab,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportKind {
    Sarif,
    CodeQuality,
    Dotenv,
    Tekton,
    /// The page of `imgctl report image`, with the findings of the check.
    Html,
}

/// Reports to write, and their destinations.
pub(crate) struct Reports {
    system: Option<System>,
    /// Whether lines for the system go to the log.
    speaks: bool,
    summary: Option<Sink>,
    /// `$GITHUB_OUTPUT`.
    outputs: Option<Sink>,
    compare: Option<String>,
    files: Vec<(ReportKind, PathBuf)>,
    page: ImagePage,
    /// Paths of findings are relative to it.
    repository: PathBuf,
    began: Instant,
    /// What a check found has been told.
    told: Cell<bool>,
}

/// A file that is appended to.
struct Sink {
    path: PathBuf,
    /// A flag names it; otherwise a variable does, and the build is worth more than the file.
    asked_for: bool,
}

impl Reports {
    /// Resolves flags and variables.
    pub(crate) fn resolve(args: &ReportArgs, context: &Context) -> Result<Self> {
        let environment = &context.environment;
        let wanted = match args.log_form {
            Some(wanted) => wanted,
            None => annotations(environment)?.unwrap_or(Annotations::Auto),
        };
        let is_set = |name| matches!(environment.switch(name), Ok(Some(true)));
        let system = match wanted {
            Annotations::None => None,
            Annotations::Github => Some(System::Github),
            Annotations::Gitlab => Some(System::Gitlab),
            Annotations::Auto if is_set("GITHUB_ACTIONS") => Some(System::Github),
            Annotations::Auto if is_set("GITLAB_CI") => Some(System::Gitlab),
            Annotations::Auto => None,
        };
        let file = |name: &str| {
            let path = environment.path(name).filter(|_| system == Some(System::Github))?;
            Some(Sink { path, asked_for: false })
        };
        let summary = match &args.summary {
            Some(path) => Some(Sink { path: path.clone(), asked_for: true }),
            None => file("GITHUB_STEP_SUMMARY"),
        };
        let root = ["GITHUB_WORKSPACE", "CI_PROJECT_DIR"];
        let root = root.into_iter().find_map(|name| environment.path(name));
        Ok(Self {
            system,
            // Programs that read JSON from stderr must not meet other lines unless asked for.
            speaks: wanted != Annotations::Auto || !context.ui.has_json_stderr(),
            summary,
            outputs: file("GITHUB_OUTPUT"),
            compare: args.compare.clone(),
            files: args.reports.iter().map(|text| report_of(text)).collect::<Result<_>>()?,
            page: ImagePage::default(),
            repository: root.unwrap_or_else(|| PathBuf::from(".")),
            began: Instant::now(),
            told: Cell::new(false),
        })
    }

    /// Returns whether any report includes the findings of a Kubefile check.
    pub(crate) fn want_findings(&self) -> bool {
        self.system == Some(System::Github)
            || self.summary.is_some()
            || self.files.iter().any(|(kind, _)| kind.has_findings())
    }

    /// Returns the reporter for a build, if it is not the usual one.
    pub(crate) fn reporter<'a>(&self, context: &'a Context) -> Option<Box<dyn Reporter + 'a>> {
        context.ui.grouped(self.system.filter(|_| self.speaks)?)
    }

    /// Reads the image that the result will be compared with. Before the build: the result may take
    /// its name.
    pub(crate) fn before(&self, options: &Options, context: &Context) -> Result<Option<Before>> {
        let Some(name) = &self.compare else { return Ok(None) };
        if self.files.iter().any(|(kind, _)| *kind == ReportKind::Html) {
            self.page.compare(name, context)?;
        }
        let before = report::image_before(context.store()?, options, name, context.ui.reporter());
        if let Err(error) = &before.images {
            context.ui.note(&format!("cannot compare with {name}: {error}"));
        }
        Ok(Some(before))
    }

    /// Reports a finished build; `metadata` is the content of `--metadata-file`. Returns the
    /// comparison as JSON.
    pub(crate) fn built(
        &self,
        built: &Built,
        before: Option<&Before>,
        metadata: &Value,
        context: &Context,
    ) -> Result<Option<Value>> {
        let checked = built.checked.as_ref();
        let findings = checked.map(|checked| report::findings_of_check(checked, &self.repository));
        let findings = findings.unwrap_or_default();
        self.annotate(&findings, context);
        self.write_findings(&findings, context)?;
        self.write_values(built, metadata, context)?;
        self.write_pages(built, &findings, context)?;
        if self.summary.is_none() && before.is_none() {
            return Ok(None);
        }
        let images = report::images_of_build(context.store()?, built)?;
        let time = self.began.elapsed();
        let about = BuildSummary { built, images: &images, before, findings: &findings, time };
        self.summarise(&report::summary_of_build(&about), &report::short_summary(&about), context)?;
        let Some(before) = before.filter(|before| before.images.is_ok()) else { return Ok(None) };
        context.ui.say(&format!("against {}: {}", before.name, report::against(&images, before)));
        Ok(Some(report::against_json(&images, before)))
    }

    /// Reports a check and shows its findings.
    pub(crate) fn checked(&self, checked: &Checked, context: &Context) -> Result<()> {
        if self.files.iter().any(|(kind, _)| *kind == ReportKind::Html) {
            context.ui.note("--report html is about an image: a check alone does not write it");
        }
        let findings = report::findings_of_check(checked, &self.repository);
        self.told.set(true);
        self.annotate(&findings, context);
        self.write_findings(&findings, context)?;
        let text = report::summary_of_check(&checked.name, &findings, checked.fails);
        self.summarise(&text, &text, context)?;
        if context.ui.is_json() {
            let findings: Vec<Value> = findings.iter().map(Finding::json).collect();
            return context.ui.json(&json!({
                "file": checked.name, "findings": findings, "failed": checked.fails,
            }));
        }
        let is_text = |kind: &ReportKind| kind.has_findings() && *kind != ReportKind::Html;
        let stdout = self.files.iter().any(|(kind, path)| is_text(kind) && is_stdout(path));
        if stdout {
            return Ok(());
        }
        context.ui.print(&Lines::coloured(&checked.render(context.ui.colours_stdout())))
    }

    /// Reports a build or check that failed. A failure to report does not hide that error.
    pub(crate) fn failed(&self, error: &Error, context: &Context) {
        if self.told.get() || reader_is_gone(error) {
            return;
        }
        let findings = report::findings_of_places(error.places(), &self.repository);
        self.annotate(&findings, context);
        if findings.iter().all(|finding| finding.place.is_warning) {
            self.tell(
                &Annotation {
                    level: "error",
                    title: "imgctl build",
                    message: &error.to_string(),
                    place: None,
                },
                context,
            );
        }
        let text = report::summary_of_failure(error, &findings);
        let written = self.write_findings(&findings, context);
        if let Err(error) = written.and_then(|()| self.summarise(&text, &text, context)) {
            context.ui.note(&error.to_string());
        }
    }

    fn tell(&self, annotation: &Annotation<'_>, context: &Context) {
        if self.speaks && self.system == Some(System::Github) {
            context.ui.tell(annotation);
        }
    }

    fn annotate(&self, findings: &[Finding], context: &Context) {
        for finding in findings {
            let level = report::severity_name(finding.severity);
            if level == "warning" && context.ui.is_quiet() {
                continue;
            }
            let place = &finding.place;
            let message = match &place.hint {
                Some(hint) => format!("{}\n{hint}", place.message),
                None => place.message.clone(),
            };
            let path = finding.path();
            let (title, region) = (
                finding.rule,
                Region {
                    file: &path,
                    start: (place.line, place.column),
                    end: (place.end_line, place.end_column),
                },
            );
            let place = Some(region);
            self.tell(&Annotation { level, title, message: &message, place }, context);
        }
    }

    fn write_findings(&self, findings: &[Finding], context: &Context) -> Result<()> {
        for (kind, path) in &self.files {
            let text = match kind {
                ReportKind::Sarif => report::sarif_document(findings)?,
                ReportKind::CodeQuality => report::code_quality(findings)?,
                ReportKind::Dotenv | ReportKind::Tekton | ReportKind::Html => continue,
            };
            write(path, &text, context)?;
        }
        Ok(())
    }

    fn write_values(&self, built: &Built, metadata: &Value, context: &Context) -> Result<()> {
        if let Some(sink) = &self.outputs {
            sink.append(&report::github_outputs(built, metadata), context)?;
        }
        for (kind, path) in &self.files {
            match kind {
                ReportKind::Dotenv => write(path, &report::dotenv(built), context)?,
                ReportKind::Tekton => {
                    for (name, value) in report::tekton_results(built) {
                        write(&path.join(name), &value, context)?;
                    }
                }
                ReportKind::Sarif | ReportKind::CodeQuality | ReportKind::Html => {}
            }
        }
        Ok(())
    }

    fn write_pages(&self, built: &Built, findings: &[Finding], context: &Context) -> Result<()> {
        let pages = self.files.iter().filter(|(kind, _)| *kind == ReportKind::Html);
        for (_, path) in pages {
            write(path, &self.page.html(&built.descriptor, findings, context)?, context)?;
        }
        Ok(())
    }

    fn summarise(&self, text: &str, short: &str, context: &Context) -> Result<()> {
        let Some(sink) = &self.summary else { return Ok(()) };
        let there = std::fs::metadata(&sink.path).map_or(0, |metadata| metadata.len());
        let fits = there + text.len() as u64 <= MAX_SUMMARY;
        sink.append(if fits { text } else { short }, context)
    }
}

impl ReportKind {
    fn has_findings(self) -> bool {
        matches!(self, Self::Sarif | Self::CodeQuality | Self::Html)
    }
}

impl Sink {
    fn append(&self, text: &str, context: &Context) -> Result<()> {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        match written.path("append to", &self.path) {
            Err(error) if !self.asked_for => context.ui.note(&error.to_string()),
            written => return written,
        }
        Ok(())
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Replaces a file at once, so that nobody reads a part of it.
fn write(path: &Path, text: &str, context: &Context) -> Result<()> {
    if is_stdout(path) {
        return context.ui.content(text);
    }
    output::write(path, text.as_bytes(), 0o644, Durability::Atomic)
}

fn annotations(environment: &Environment) -> Result<Option<Annotations>> {
    let Some(text) = environment.text("IMGCTL_ANNOTATIONS")? else { return Ok(None) };
    Annotations::from_str(text, true).map(Some).map_err(|_| {
        Error::usage(format!("the variable IMGCTL_ANNOTATIONS is `{text}`"))
            .hint("it may be auto, github, gitlab, none")
    })
}

fn report_of(text: &str) -> Result<(ReportKind, PathBuf)> {
    let (kind, path) = text.split_once('=').unwrap_or((text, ""));
    let kind = match kind {
        "sarif" => ReportKind::Sarif,
        "codequality" => ReportKind::CodeQuality,
        "dotenv" => ReportKind::Dotenv,
        "tekton" => ReportKind::Tekton,
        "html" => ReportKind::Html,
        _ => {
            return Err(Error::usage(format!("--report cannot be `{text}`")).hint(
                "use sarif=FILE, codequality=FILE, html=FILE, dotenv=FILE or tekton[=DIRECTORY]",
            ));
        }
    };
    match (kind, path) {
        (ReportKind::Tekton, "") => Ok((kind, PathBuf::from(TEKTON_RESULTS))),
        (_, "") => Err(Error::usage(format!("--report {text} has no file"))
            .hint(format!("write --report {text}=FILE"))),
        (ReportKind::Tekton, "-") => Err(Error::usage("--report tekton needs a directory")),
        _ => Ok((kind, PathBuf::from(path))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_have_a_kind_and_a_file() {
        assert_eq!(report_of("sarif=a=b").unwrap(), (ReportKind::Sarif, PathBuf::from("a=b")));
        assert_eq!(report_of("tekton").unwrap().1, Path::new(TEKTON_RESULTS));
        for wrong in ["sarif", "sarif=", "html=", "", "tekton=-"] {
            assert!(report_of(wrong).is_err(), "{wrong}");
        }
    }
}
