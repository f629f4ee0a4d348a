//! Parses a folded line into a typed instruction. Handles one instruction at a time; stages and
//! their order belong to [`super::parser`].

use super::ast::{
    CommandForm, From, Instruction, InstructionKind, MountSpec, Onbuild, Run, RunNetwork,
    RunSecurity, Source, Transfer, TransferFlags,
};
use super::diagnostic::Problem;
use super::expand;
use super::health;
use super::heredoc;
use super::lexer::Folded;
use super::reader::Flags;
use super::reader::Reader;
use super::words::{self, Json};
use imgctl_base::suggest::closest;

/// All instructions, for "did you mean".
const NAMES: [&str; 18] = [
    "ADD",
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "RUN",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
];

const ADD_FLAGS: [&str; 8] =
    ["chown", "chmod", "link", "exclude", "parents", "checksum", "keep-git-dir", "unpack"];
const COPY_FLAGS: [&str; 6] = ["from", "chown", "chmod", "link", "exclude", "parents"];
const RUN_FLAGS: [&str; 4] = ["mount", "network", "security", "device"];

/// A parsed line.
pub(super) enum Parsed {
    From(From),
    Instruction(InstructionKind),
}

/// Parses one line; the instruction is missing only if there are problems.
pub(super) fn parse(folded: &Folded, escape: char) -> (Option<Parsed>, Vec<Problem>) {
    let (word, arguments) = words::split_first(&folded.text);
    let Some(name) = name_of(word) else {
        return (None, vec![unknown(word)]);
    };
    // The arguments of ONBUILD are an instruction with its own flags.
    let (flags, rest) = match name {
        "ONBUILD" => (Flags::default(), arguments),
        _ => Flags::split(arguments, escape),
    };
    let mut reader = Reader {
        name,
        escape,
        text: &folded.text,
        rest,
        flags,
        heredocs: &folded.heredocs,
        problems: Vec::new(),
    };
    let parsed = reader.parse(folded);
    (parsed, reader.problems)
}

fn name_of(word: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|name| name.eq_ignore_ascii_case(word))
}

fn unknown(word: &str) -> Problem {
    let problem = Problem::new(format!("unknown instruction {word}")).at(word);
    match closest(word, NAMES) {
        Some(name) => problem.hint(format!("did you mean {name}?")),
        None if word.starts_with("<<") || word.starts_with("EOF") => {
            problem.hint("here-documents are allowed only in RUN, COPY and ADD")
        }
        None => problem.hint("to continue a line on the next one, end it with a \\"),
    }
}

impl Reader<'_> {
    fn parse(&mut self, folded: &Folded) -> Option<Parsed> {
        let kind = match self.name {
            "FROM" => return self.from(folded).map(Parsed::From),
            "ADD" | "COPY" => self.transfer(),
            "ARG" => self.arg(),
            "CMD" => self.command().map(InstructionKind::Cmd),
            "ENTRYPOINT" => self.command().map(InstructionKind::Entrypoint),
            "ENV" => self.pairs().map(InstructionKind::Env),
            "LABEL" => self.pairs().map(InstructionKind::Label),
            "EXPOSE" => self.expose(),
            "HEALTHCHECK" => health::parse(self).map(InstructionKind::Healthcheck),
            "MAINTAINER" => self.text().map(InstructionKind::Maintainer),
            "ONBUILD" => self.onbuild(folded),
            "RUN" => parse_run(self).map(InstructionKind::Run),
            "SHELL" => self.shell(),
            "STOPSIGNAL" => self.word().map(InstructionKind::StopSignal),
            "USER" => self.word().map(InstructionKind::User),
            "VOLUME" => self.volume(),
            _ => self.word().map(InstructionKind::Workdir),
        };
        kind.map(Parsed::Instruction)
    }

    fn command(&mut self) -> Option<CommandForm> {
        self.finish_flags(&[]);
        if self.rest.is_empty() {
            let name = self.name;
            self.problem(
                Problem::new(format!("{name} needs an argument"))
                    .hint(format!("to clear an inherited one, write {name} []")),
            );
            return None;
        }
        self.form(self.rest)
    }

    fn shell(&mut self) -> Option<InstructionKind> {
        self.finish_flags(&[]);
        let wrong = Problem::new("SHELL takes the JSON form only")
            .hint("as in SHELL [\"/bin/bash\", \"-c\"]");
        match words::json_form(self.rest) {
            Json::Strings(strings) if !strings.is_empty() => Some(InstructionKind::Shell(strings)),
            _ => {
                self.problem(wrong);
                None
            }
        }
    }

    /// Parses `KEY=VALUE…`, or the legacy form `KEY VALUE`.
    fn pairs(&mut self) -> Option<Vec<(String, String)>> {
        self.finish_flags(&[]);
        self.arguments()?;
        let (rest, name) = (self.rest, self.name);
        if let Some((key, value)) = legacy_pair(rest, self.escape) {
            if value.is_empty() {
                self.problem(
                    Problem::new(format!("{name} {key} has no value"))
                        .at(rest)
                        .hint(format!("write {name} {key}=VALUE")),
                );
                return None;
            }
            self.check_word(key);
            self.check_word(value);
            return Some(vec![(key.to_owned(), value.to_owned())]);
        }
        let mut pairs = Vec::new();
        for word in words::split_quoted(rest, self.escape) {
            match word.split_once('=') {
                Some(("", _)) => self.problem(
                    self.at(word, format!("{name} has a value without a name"))
                        .hint("remove the spaces around the ="),
                ),
                Some((key, value)) => {
                    self.check_word(key);
                    self.check_word(value);
                    pairs.push((key.to_owned(), value.to_owned()));
                }
                None => self.problem(
                    self.at(word, format!("`{word}` is not of the form NAME=VALUE"))
                        .hint("quote a value that contains spaces"),
                ),
            }
        }
        if pairs.is_empty() && self.problems.is_empty() {
            self.problem(Problem::new(format!("{name} needs an argument")));
        }
        Some(pairs)
    }

    fn arg(&mut self) -> Option<InstructionKind> {
        self.finish_flags(&[]);
        self.arguments()?;
        let mut args = Vec::new();
        for word in words::split_quoted(self.rest, self.escape) {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (word, None),
            };
            if key.is_empty() {
                self.problem(self.at(word, "ARG has a value without a name"));
                continue;
            }
            self.check_word(key);
            if let Some(value) = value {
                self.check_word(value);
            }
            args.push((key.to_owned(), value.map(str::to_owned)));
        }
        if args.is_empty() && self.problems.is_empty() {
            self.problem(Problem::new("ARG needs an argument"));
        }
        Some(InstructionKind::Arg(args))
    }

    fn expose(&mut self) -> Option<InstructionKind> {
        self.finish_flags(&[]);
        self.arguments()?;
        let ports: Vec<String> =
            words::split_blanks(self.rest).into_iter().map(str::to_owned).collect();
        for port in &ports {
            self.check_word(port);
        }
        Some(InstructionKind::Expose(ports))
    }

    fn volume(&mut self) -> Option<InstructionKind> {
        self.finish_flags(&[]);
        let volumes = self.list()?;
        for volume in &volumes {
            if volume.trim().is_empty() {
                self.problem(Problem::new("the name of a VOLUME is empty"));
            }
            self.check_word(volume);
        }
        Some(InstructionKind::Volume(volumes))
    }

    fn transfer(&mut self) -> Option<InstructionKind> {
        let add = self.name == "ADD";
        let flags = self.transfer_flags(add);
        self.finish_flags(if add { &ADD_FLAGS } else { &COPY_FLAGS });
        let mut words = self.list()?;
        let dest = words.pop()?;
        let name = self.name;
        if words.is_empty() {
            self.problem(
                Problem::new(format!("{name} needs a source and a destination"))
                    .at(&dest)
                    .hint(format!("as in {name} {dest} /")),
            );
            return None;
        }
        if heredoc::whole_word(&dest).is_some() {
            self.problem(
                Problem::new(format!("a here-document cannot be the destination of {name}"))
                    .at(&dest),
            );
        }
        let is_url = |word: &&String| word.starts_with("http://") || word.starts_with("https://");
        if !add && let Some(url) = words.iter().find(is_url) {
            self.problem(Problem::new("COPY takes no URL").at(url).hint("use ADD"));
        }
        // A quoted name that contains a blank has been split: one error is enough.
        let _ = words.iter().chain([&dest]).all(|word| self.check_word(word));
        let mut heredocs = self.heredocs.iter();
        let sources = words
            .into_iter()
            .map(|word| {
                let opening = heredoc::whole_word(&word);
                match opening.and_then(|_| heredocs.next()) {
                    Some(heredoc) => Source::Heredoc(heredoc.clone()),
                    None => Source::Path(word),
                }
            })
            .collect();
        let transfer = Transfer { flags, sources, dest };
        Some(if add { InstructionKind::Add(transfer) } else { InstructionKind::Copy(transfer) })
    }

    fn transfer_flags(&mut self, add: bool) -> TransferFlags {
        let (flags, problems) = (&mut self.flags, &mut self.problems);
        let mut found = TransferFlags {
            chown: flags.one("chown", problems),
            chmod: flags.one("chmod", problems),
            link: flags.switch("link", problems).unwrap_or(false),
            exclude: flags.many("exclude", problems),
            parents: flags.switch("parents", problems).unwrap_or(false),
            ..TransferFlags::default()
        };
        if add {
            found.checksum = flags.one("checksum", problems);
            found.keep_git_dir = flags.switch("keep-git-dir", problems).unwrap_or(false);
            found.unpack = flags.switch("unpack", problems);
        } else {
            // An empty value means the build context (BuildKit).
            let from = flags.one("from", problems);
            found.from = from.filter(|name| !name.is_empty());
            if let Some(from) = found.from.clone() {
                self.refuse_variables(&from);
            }
        }
        let words = [&found.chown, &found.chmod, &found.checksum, &found.from];
        for word in words.into_iter().flatten().chain(&found.exclude) {
            self.check_word(word);
        }
        found
    }

    /// Rejects variables in `--from`: it names a stage or image before any variable of the stage
    /// has a value (BuildKit).
    fn refuse_variables(&mut self, from: &str) {
        if expand::variables(from, self.escape).is_ok_and(|names| !names.is_empty()) {
            let written = format!("--from={from}");
            self.problem(
                Problem::new("--from takes no variables")
                    .at(&written)
                    .hint(format!("give it a name: FROM {from} AS name, then --from=name")),
            );
        }
    }

    fn onbuild(&mut self, folded: &Folded) -> Option<InstructionKind> {
        self.arguments()?;
        let (word, _) = words::split_first(self.rest);
        for (forbidden, why) in [
            ("ONBUILD", "a trigger cannot have a trigger of its own"),
            ("FROM", "FROM cannot be a trigger"),
            ("MAINTAINER", "MAINTAINER cannot be a trigger"),
        ] {
            if forbidden.eq_ignore_ascii_case(word) {
                self.problem(Problem::new(why).at(self.rest));
                return None;
            }
        }
        let offset = folded.text.len() - self.rest.len();
        let inner = Folded {
            text: self.rest.to_owned(),
            map: folded.map.tail(&folded.text, offset),
            span: folded.span,
            heredocs: folded.heredocs.clone(),
            comments: Vec::new(),
        };
        let (parsed, problems) = parse(&inner, self.escape);
        self.problems.extend(
            problems
                .into_iter()
                .map(|problem| Problem { offset: problem.offset.map(|at| at + offset), ..problem }),
        );
        let Some(Parsed::Instruction(kind)) = parsed else {
            return None;
        };
        let trigger = heredoc::with_bodies(self.rest, self.heredocs);
        let instruction = Box::new(instruction(kind, inner));
        Some(InstructionKind::Onbuild(Onbuild { trigger, instruction }))
    }

    fn from(&mut self, folded: &Folded) -> Option<From> {
        let platform = self.flags.one("platform", &mut self.problems);
        self.finish_flags(&["platform"]);
        let words = words::split_blanks(self.rest);
        let (image, name) = match words[..] {
            [image] => (image, None),
            [image, "as" | "AS" | "As" | "aS", name] => (image, Some(name)),
            _ => {
                self.problem(
                    self.at(self.rest, "FROM takes IMAGE or IMAGE AS NAME")
                        .hint("put a comment on a line of its own"),
                );
                return None;
            }
        };
        self.check_word(image);
        if let Some(platform) = &platform {
            self.check_word(platform);
        }
        let lower = name.map(str::to_lowercase);
        if let (Some(name), Some(lower)) = (name, &lower)
            && !is_stage_name(lower)
        {
            self.problem(
                self.at(name, format!("`{name}` cannot be the name of a stage"))
                    .hint("a name begins with a letter and contains letters, digits, - _ and ."),
            );
        }
        Some(From {
            platform,
            image: image.to_owned(),
            name: lower,
            written_name: name.map(str::to_owned),
            text: folded.text.clone(),
            span: folded.span,
            map: folded.map.clone(),
            comments: folded.comments.clone(),
        })
    }
}

/// Builds an instruction from its kind and its folded line.
pub(super) fn instruction(kind: InstructionKind, folded: Folded) -> Instruction {
    let name = name_of(words::split_first(&folded.text).0).unwrap_or_default();
    let Folded { text, map, span, comments, .. } = folded;
    Instruction { name, kind, span, text, map, comments }
}

/// Parses the legacy form `KEY VALUE` of `ENV` and `LABEL`: the first word has no `=`.
pub(super) fn legacy_pair(rest: &str, escape: char) -> Option<(&str, &str)> {
    let first = words::split_quoted(rest, escape).into_iter().next()?;
    (!first.contains('=')).then(|| words::split_first(rest))
}

fn is_stage_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c))
}

/// Parses a `RUN`.
fn parse_run(reader: &mut Reader<'_>) -> Option<Run> {
    let mut mounts = Vec::new();
    for raw in reader.flags.many("mount", &mut reader.problems) {
        match MountSpec::parse(&raw, reader.escape) {
            Ok(mount) => mounts.push(mount),
            Err(problem) => reader.problem(problem),
        }
    }
    let network = reader.flags.one("network", &mut reader.problems);
    let network = network.and_then(|word| {
        let known = [
            ("default", RunNetwork::Default),
            ("none", RunNetwork::None),
            ("host", RunNetwork::Host),
        ];
        one_of(reader, "network", &word, &known)
    });
    let security = reader.flags.one("security", &mut reader.problems);
    let security = security.and_then(|word| {
        let known = [("sandbox", RunSecurity::Sandbox), ("insecure", RunSecurity::Insecure)];
        one_of(reader, "security", &word, &known)
    });
    let devices = reader.flags.many("device", &mut reader.problems);
    reader.finish_flags(&RUN_FLAGS);
    // Without a command, the shell runs an empty one (BuildKit).
    Some(Run {
        mounts,
        network,
        security,
        devices,
        form: reader.form(reader.rest)?,
        heredocs: reader.heredocs.to_vec(),
    })
}

fn one_of<T: Copy>(
    reader: &mut Reader<'_>,
    flag: &str,
    word: &str,
    known: &[(&'static str, T)],
) -> Option<T> {
    let names = || known.iter().map(|(name, _)| *name);
    if let Some((_, value)) = known.iter().find(|(name, _)| *name == word) {
        return Some(*value);
    }
    let hint = match closest(word, names()) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("it is one of {}", names().collect::<Vec<_>>().join(", ")),
    };
    reader.problem(Problem::new(format!("unknown value --{flag}={word}")).at(word).hint(hint));
    None
}
