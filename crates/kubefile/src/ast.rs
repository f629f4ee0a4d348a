//! The syntax tree of a Kubefile.
//!
//! Words are *raw*: unexpanded, with quotes and escapes intact, because their meaning depends on
//! the environment of the step; [`super::expand`] turns a raw word into its value. Must not depend
//! on images or files.

use std::time::Duration;

use super::diagnostic::{LineMap, Span};

/// A parsed Kubefile.
#[derive(Clone, Debug, PartialEq)]
pub struct Kubefile {
    /// The file's display name.
    pub name: String,
    pub directives: Directives,
    /// The `ARG` instructions before the first `FROM`.
    pub global_args: Vec<Instruction>,
    /// At least one.
    pub stages: Vec<Stage>,
    /// Blank lines inside continued instructions: allowed, but reported by a lint rule.
    pub(crate) empty_continuations: Vec<Span>,
}

/// The parser directives: `# key=value` lines at the very top of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directives {
    /// `# syntax=`; accepted and ignored.
    pub(crate) syntax: Option<String>,
    /// `# escape=`: `\` or a backtick.
    pub escape: char,
    pub check: CheckDirective,
}

impl Default for Directives {
    fn default() -> Self {
        Self { syntax: None, escape: '\\', check: CheckDirective::default() }
    }
}

/// `# check=skip=A,B;error=true;experimental=C`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckDirective {
    /// Names of the rules to suppress.
    pub skip: Vec<String>,
    pub(crate) skip_all: bool,
    /// Whether a finding fails the build.
    pub error: bool,
    /// Experimental rules that are enabled.
    pub experimental: Vec<String>,
    pub(crate) experimental_all: bool,
}

impl CheckDirective {
    /// Whether the rule `name` is suppressed. Names are case-sensitive (Dockerfile reference,
    /// "Parser directives").
    pub(crate) fn skips(&self, name: &str) -> bool {
        self.skip_all || self.skip.iter().any(|skipped| skipped == name)
    }

    /// Whether the experimental rule `name` is enabled.
    pub(crate) fn enables(&self, name: &str) -> bool {
        self.experimental_all || self.experimental.iter().any(|enabled| enabled == name)
    }
}

/// A `FROM` and the instructions that follow it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Position of the stage, counted from 0.
    pub index: usize,
    pub from: From,
    pub instructions: Vec<Instruction>,
}

/// `FROM [--platform=P] IMAGE [AS NAME]`.
#[derive(Clone, Debug, PartialEq)]
pub struct From {
    /// Raw.
    pub platform: Option<String>,
    /// Raw: an image, `scratch`, or the lower-case name of an earlier stage.
    pub image: String,
    /// The name in lower case, as stages are compared.
    pub name: Option<String>,
    /// The name as written.
    pub written_name: Option<String>,
    /// The instruction on one line.
    pub text: String,
    pub span: Span,
    pub map: LineMap,
    /// The comment lines above, without `#`; an empty one stands for blank lines.
    pub comments: Vec<String>,
}

impl From {
    /// Returns the place of `part`, a piece of the instruction's text, or the whole instruction if
    /// the place is unknown.
    pub fn span_of(&self, part: &str) -> Span {
        span_of(&self.map, &self.text, self.span, part)
    }
}

/// One instruction of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// In upper case, as in `COPY`.
    pub(crate) name: &'static str,
    pub kind: InstructionKind,
    /// The whole instruction, its heredocs included.
    pub span: Span,
    /// The instruction on one line, as shown in `history`: continuations joined, without comments
    /// and heredoc bodies.
    pub text: String,
    pub map: LineMap,
    /// The comment lines above, without `#`; an empty one stands for blank lines.
    pub comments: Vec<String>,
}

impl Instruction {
    /// Returns the name in upper case, as in `COPY`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the place of `part`, a piece of the instruction's text, or the whole instruction if
    /// the place is unknown.
    pub fn span_of(&self, part: &str) -> Span {
        span_of(&self.map, &self.text, self.span, part)
    }
}

fn span_of(map: &LineMap, text: &str, whole: Span, part: &str) -> Span {
    match text.find(part) {
        Some(start) if !part.is_empty() => map.locate(text, start, start + part.len()),
        _ => whole,
    }
}

/// The content of an instruction. Strings are raw words unless stated otherwise.
#[derive(Clone, Debug, PartialEq)]
pub enum InstructionKind {
    /// `ADD`.
    Add(Transfer),
    /// `ARG NAME[=DEFAULT]…`; the default is raw.
    Arg(Vec<(String, Option<String>)>),
    /// `CMD`; never expanded at build time.
    Cmd(CommandForm),
    /// `COPY`.
    Copy(Transfer),
    /// `ENTRYPOINT`; never expanded at build time.
    Entrypoint(CommandForm),
    /// `ENV`, both forms: raw key, raw value.
    Env(Vec<(String, String)>),
    /// `EXPOSE`: raw words; one word may expand to several.
    Expose(Vec<String>),
    /// `HEALTHCHECK`.
    Healthcheck(Healthcheck),
    /// `LABEL`, both forms: raw key, raw value.
    Label(Vec<(String, String)>),
    /// `MAINTAINER`: unexpanded text.
    Maintainer(String),
    /// `ONBUILD`.
    Onbuild(Onbuild),
    /// `RUN`; only its flags are expanded.
    Run(Run),
    /// `SHELL`: the words as written.
    Shell(Vec<String>),
    /// `STOPSIGNAL`.
    StopSignal(String),
    /// `USER`.
    User(String),
    /// `VOLUME`: raw words; in the unquoted form, one word may expand to several.
    Volume(Vec<String>),
    /// `WORKDIR`.
    Workdir(String),
}

/// A command in shell form (text for the stage's shell) or exec form (an argument vector).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandForm {
    /// Text for the shell set by `SHELL`.
    Shell(String),
    /// The decoded strings of a JSON array.
    Exec(Vec<String>),
}

/// `COPY` or `ADD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub flags: TransferFlags,
    /// At least one.
    pub sources: Vec<Source>,
    /// Raw.
    pub dest: String,
}

/// The flags of `COPY` and `ADD`; texts are raw. Flags that only the other instruction has remain
/// unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferFlags {
    /// `--from` (COPY): stage name or number, image or named context; must not contain variables.
    pub from: Option<String>,
    pub chown: Option<String>,
    pub chmod: Option<String>,
    pub link: bool,
    pub exclude: Vec<String>,
    pub parents: bool,
    /// `--checksum` (ADD).
    pub checksum: Option<String>,
    /// `--keep-git-dir` (ADD).
    pub keep_git_dir: bool,
    /// `--unpack` (ADD): `None` = local archives yes, URLs no.
    pub unpack: Option<bool>,
}

/// A source of `COPY` or `ADD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A raw word: path, pattern or (ADD) URL.
    Path(String),
    /// A file whose content is in the Kubefile itself.
    Heredoc(Heredoc),
}

/// A here-document: `<<EOF`, `<<-EOF`, `<<"EOF"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heredoc {
    /// The delimiter without quotes; for `COPY` also the name of the file.
    pub name: String,
    /// The lines of the body, the last one with its newline. With `<<-`, leading tabs are already
    /// removed.
    pub body: String,
    /// The body with its tabs, as written.
    pub(crate) raw_body: String,
    /// Whether the delimiter is unquoted, so variables in the body are expanded (`COPY` and `ADD`
    /// only; in a `RUN`, the shell expands them).
    pub expand: bool,
}

/// `RUN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub mounts: Vec<MountSpec>,
    /// `--network`.
    pub network: Option<RunNetwork>,
    /// `--security`.
    pub security: Option<RunSecurity>,
    /// `--device`: raw CDI requests.
    pub devices: Vec<String>,
    /// As written, without the bodies of `heredocs`; see [`Run::command`].
    pub form: CommandForm,
    pub heredocs: Vec<Heredoc>,
}

/// The command that a `RUN` executes, including its heredocs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunCommand {
    /// An argument vector to execute as it is.
    Exec(Vec<String>),
    /// Text for the stage's shell.
    Shell(String),
    /// A script with its own `#!` line, to be written to a file of this name and executed.
    Script { name: String, body: String },
}

/// `RUN --network`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunNetwork {
    Default,
    None,
    Host,
}

/// `RUN --security`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunSecurity {
    Sandbox,
    Insecure,
}

/// One `RUN --mount=…`, raw. Its options may contain variables, so it is read twice: by the parser,
/// to check what does not depend on values, and with values by [`MountSpec::resolve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSpec {
    /// The text after `--mount=`.
    pub raw: String,
    /// `from=`: must not contain variables, because the graph of stages is needed before any value
    /// is known.
    pub from: Option<String>,
}

/// One mount of a `RUN`, with values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub kind: MountKind,
    /// Absolute, or relative to the working directory. Defaults to a fixed location for secrets and
    /// SSH agents, and to the working directory for all other types.
    pub target: Option<String>,
    pub read_only: bool,
    /// Options of other builders that have no effect here, as written.
    pub ignored: Vec<String>,
}

/// `RUN --mount=type=cache`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheMount {
    /// ID of the cache; defaults to the target.
    pub id: String,
    pub sharing: CacheSharing,
    /// Initial content of a new cache; empty if unset.
    pub from: Option<String>,
    /// A path inside `from` or, without `from`, inside the cache.
    pub source: Option<String>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// The type of a mount and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountKind {
    /// A directory or file of the build context, a stage or an image. Writes are discarded.
    Bind { from: Option<String>, source: Option<String> },
    /// A directory that persists across builds.
    Cache(CacheMount),
    /// An empty in-memory file system.
    Tmpfs {
        /// Size in bytes.
        size: Option<u64>,
        mode: u32,
    },
    /// A secret from the command line, as a file or an environment variable.
    Secret {
        id: String,
        /// Name of the environment variable; the secret is also mounted as a file only if a target
        /// is set.
        env: Option<String>,
        required: bool,
        mode: u32,
        uid: u32,
        gid: u32,
    },
    /// The socket of an SSH agent.
    Ssh {
        /// Defaults to `default`.
        id: String,
        required: bool,
        mode: u32,
        uid: u32,
        gid: u32,
    },
}

/// Concurrent access to a cache mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSharing {
    Shared,
    Private,
    Locked,
}

/// `HEALTHCHECK`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Healthcheck {
    /// `HEALTHCHECK NONE`: disables an inherited check.
    None,
    /// `HEALTHCHECK [OPTIONS] CMD …`; `None` = inherit.
    Cmd {
        interval: Option<Duration>,
        timeout: Option<Duration>,
        start_period: Option<Duration>,
        start_interval: Option<Duration>,
        retries: Option<u32>,
        command: CommandForm,
    },
}

/// `ONBUILD TRIGGER`.
#[derive(Clone, Debug, PartialEq)]
pub struct Onbuild {
    /// The trigger as stored in the image's config.
    pub trigger: String,
    /// The trigger, parsed.
    pub instruction: Box<Instruction>,
}
