//! The grammar: from a seed to a Kubefile, its ignore file and its build arguments. Knows no builder.

use std::fmt;

use super::builders::BASE;
use super::context::{LINKS, RULES, SOURCES};

/// A Kubefile and what goes with it.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) seed: u64,
    /// One instruction each; the first of a stage is its `FROM`.
    lines: Vec<String>,
    rules: Vec<String>,
    /// Build arguments for the command line.
    pub(super) arguments: Vec<String>,
}

impl Case {
    pub(super) fn new(seed: u64) -> Self {
        let mut writer = Writer::new(seed);
        writer.case();
        Self { seed, lines: writer.lines, rules: writer.rules, arguments: writer.arguments }
    }

    pub(super) fn kubefile(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    pub(super) fn ignore(&self) -> String {
        self.rules.iter().map(|rule| format!("{rule}\n")).collect()
    }

    /// The case without its `at`th line or rule, counted from the end; `None` if there is none.
    pub(super) fn without(&self, at: usize) -> Option<Self> {
        let mut smaller = self.clone();
        if at < self.rules.len() {
            smaller.rules.remove(self.rules.len() - 1 - at);
        } else {
            let at = at - self.rules.len();
            let lines = self.lines.iter().enumerate().rev();
            let mut matter = lines.filter(|(_, line)| !line.starts_with("FROM"));
            smaller.lines.remove(matter.nth(at)?.0);
        }
        Some(smaller)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "== IMGCTL_SEED={} {}", self.seed, self.arguments.join(" "))?;
        f.write_str(&self.kubefile())?;
        if !self.rules.is_empty() {
            writeln!(f, "-- ignore file\n{}--", self.ignore())?;
        }
        Ok(())
    }
}

/// File steps of one case: each costs buildah six processes.
const FILE_STEPS: usize = 3;

const DESTINATIONS: [&str; 27] = [
    "/",
    "/d",
    "/d/",
    "d",
    "d/",
    ".",
    "./",
    "/n/e/w/",
    "/n/e/w",
    "/data",
    "/data/",
    "/lnk/x",
    "/lnk/",
    "/abs/",
    "/abs/y",
    "/file",
    "up/../over/",
    "/dir/sub",
    "/s/dir",
    "$A/q/",
    "${B:-/dflt}/",
    "/opt/",
    "/opt",
    "/etc/",
    "/d//e/",
    "/work/",
    "../up/",
];

const OWNERS: [&str; 8] = ["5", "5:6", "0:0", "1000:1000", "usr", "usr:grp", "usr:9", "7:grp"];

/// Directories that a copy creates have mode 0755 in buildah, and this one here.
const MODES: [&str; 2] = ["755", "0755"];

/// Writes one case.
struct Writer {
    random: u64,
    lines: Vec<String>,
    rules: Vec<String>,
    arguments: Vec<String>,
    /// The stage has files of its base image, `usr` and `grp` among them.
    on_base: bool,
    file_steps: usize,
    /// A stage has set its user.
    user: bool,
    /// Names of the stages so far; each holds `/s/dir`.
    stages: Vec<String>,
    /// Which of them stand on the base image.
    bases: Vec<bool>,
}

impl Writer {
    fn new(seed: u64) -> Self {
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d,
            lines: Vec::new(),
            rules: Vec::new(),
            arguments: Vec::new(),
            on_base: false,
            file_steps: 0,
            user: false,
            stages: Vec::new(),
            bases: Vec::new(),
        }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }

    /// True in `percent` of a hundred cases.
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    fn case(&mut self) {
        if self.chance(30) {
            for _ in 0..=self.below(4) {
                let rule = self.pick(&RULES);
                self.rules.push(rule.to_owned());
            }
        }
        let global = self.chance(20);
        if global {
            self.line(format!("ARG FROMARG={BASE}"));
        }
        let stages = if self.chance(25) { 2 } else { 1 };
        for stage in 0..stages {
            let last = stage + 1 == stages;
            self.stage(last, global);
        }
    }

    fn stage(&mut self, last: bool, global: bool) {
        let earlier = self.stages.last().cloned();
        let from = match self.below(10) {
            0..=4 => "scratch".to_owned(),
            5..=6 if earlier.is_some() => earlier.unwrap(),
            _ if global => "$FROMARG".to_owned(),
            _ => BASE.to_owned(),
        };
        let is_stage = self.stages.contains(&from);
        self.on_base = match from.as_str() {
            "scratch" => false,
            name if self.stages.iter().any(|stage| stage == name) => {
                self.bases.last() == Some(&true)
            }
            _ => true,
        };
        let name = (!last).then(|| format!("st{}", self.stages.len()));
        match &name {
            None => self.line(format!("FROM {from}")),
            Some(name) => {
                self.line(format!("FROM {from} AS {name}"));
                self.line("COPY dir /s/dir");
                self.file_steps += 1;
            }
        }
        // Here a stage inherits the arguments of the one below, in buildah it does not.
        if is_stage {
            self.line("ARG B=/bv C=/cv");
        }
        self.variables();
        let steps = if last { 2 + self.below(6) } else { 1 + self.below(2) };
        for _ in 0..steps {
            self.instruction(last);
        }
        // A stage cannot copy from itself.
        self.stages.extend(name);
        self.bases.push(self.on_base);
    }

    /// The variables that words use: `A` and `B` of the stage, `U` that nothing sets.
    fn variables(&mut self) {
        if self.chance(60) {
            let value = self.pick(&["/av", "av", "x.y-z", "a/b"]);
            self.line(format!("ENV A={value}"));
        }
        if self.chance(40) {
            match self.below(3) {
                0 => self.line("ARG B=/bv"),
                1 => self.line("ARG B"),
                _ => self.line("ARG B=$A/b C=${A:-c}"),
            }
            if self.chance(50) {
                let value = self.pick(&["/given", "g v", ""]);
                self.arguments.extend(["--build-arg".to_owned(), format!("B={value}")]);
            }
        }
    }

    fn instruction(&mut self, last: bool) {
        let kind = self.below(if last { 100 } else { 60 });
        match kind {
            0..=44 if self.file_steps < FILE_STEPS => self.files(),
            0..=52 => self.env(),
            // The owner of a directory that WORKDIR makes is in the table.
            53..=59 if !self.user => self.workdir(),
            53..=59 => self.env(),
            60..=68 => self.label(),
            69..=73 => {
                let user = self.pick(&["5", "5:6", "usr", "${U:-9}", "usr:grp", "nobody"]);
                self.line(format!("USER {user}"));
                self.user = true;
            }
            74..=79 => {
                let ports = self.pick(&["80", "80/tcp 53/udp", "443 80", "${U:-81}", "9/sctp"]);
                self.line(format!("EXPOSE {ports}"));
            }
            80..=86 => self.command(),
            87..=89 => {
                let signal = self.pick(&["SIGTERM", "9", "${U:-SIGINT}", "SIGRTMIN+3"]);
                self.line(format!("STOPSIGNAL {signal}"));
            }
            90..=93 => {
                let check = self.pick(&[
                    "NONE",
                    "CMD true",
                    "CMD [\"a\", \"b c\"]",
                    "--interval=5s --timeout=1m --retries=3 CMD a $A",
                    "--start-period=1h CMD [\"x\"]",
                ]);
                self.line(format!("HEALTHCHECK {check}"));
            }
            94..=96 => {
                let trigger =
                    self.pick(&["RUN a  b", "COPY $A /x", "ENV K=v", "CMD [\"a\"]", "USER 5"]);
                self.line(format!("ONBUILD {trigger}"));
            }
            97 => self.line("MAINTAINER A B <a@b.example>"),
            _ => {
                let path = self.pick(&["/data/real", "[\"/data/real\", \"/opt\"]", "/opt /data"]);
                if self.on_base {
                    self.line(format!("VOLUME {path}"));
                }
            }
        }
    }

    /// A word with variables and quotes.
    fn word(&mut self) -> String {
        let mut word = String::new();
        for _ in 0..=self.below(3) {
            let piece = self.pick(&[
                "v",
                "1.2",
                "/p",
                "$A",
                "${A}",
                "${B}",
                "${A:-d}",
                "${U:-d}",
                "${U:-$A}",
                "${A:+s}",
                "${U:+s}",
                "$U",
                "\\$A",
                "'$A'",
                "'q r'",
                "\"q r\"",
                "\"$A x\"",
                "\"${U:-y z}\"",
                "\\\"",
                "a\\ b",
                "$BASE",
                "${PATHS}:/r",
                "é",
                "-",
                "=",
            ]);
            word.push_str(piece);
        }
        word
    }

    fn env(&mut self) {
        if self.chance(15) {
            let value =
                self.pick(&["plain", "two words", "$A and ${U:-none}", "\"quoted\" x", "a=b"]);
            return self.line(format!("ENV OLD {value}"));
        }
        let mut line = "ENV".to_owned();
        for _ in 0..=self.below(3) {
            let key = self.pick(&["K", "L", "A", "PATHS", "BASE", "EMPTY", "lower_1"]);
            let word = self.word();
            line += &format!(" {key}={word}");
        }
        self.line(line);
    }

    fn label(&mut self) {
        let mut line = "LABEL".to_owned();
        for _ in 0..=self.below(3) {
            let key = self.pick(&["k", "io.example/x", "both", "\"q\"", "a.b-c"]);
            let word = self.word();
            line += &format!(" {key}={word}");
        }
        self.line(line);
    }

    fn workdir(&mut self) {
        let path = self.pick(&[
            "/w",
            "rel",
            "/w/x",
            "$A",
            "/w/${U:-u}",
            "..",
            "/",
            "sub/../other",
            "/data",
            "/lnk",
        ]);
        self.line(format!("WORKDIR {path}"));
    }

    fn command(&mut self) {
        let name = self.pick(&["CMD", "ENTRYPOINT"]);
        let command = self.pick(&[
            "[\"a\", \"b c\", \"$A\"]",
            "[]",
            "[\"\\u00e9\\t\"]",
            "run $A \"x y\"",
            "exec a && b",
            "[\"a\" \"b\"]",
            "[a]",
        ]);
        self.line(format!("{name} {command}"));
    }

    fn files(&mut self) {
        self.file_steps += 1;
        let add = self.chance(25);
        let mut line = if add { "ADD" } else { "COPY" }.to_owned();
        let from = if add || !self.chance(25) {
            None
        } else {
            self.stages.last().cloned().or_else(|| Some(BASE.to_owned()))
        };
        if let Some(from) = &from {
            line += &format!(" --from={from}");
        }
        let archive = add && self.chance(40);
        // buildah leaves what an archive says.
        if !archive && self.chance(25) {
            let owners = if self.on_base { &OWNERS[..] } else { &OWNERS[..4] };
            let owner = self.pick(owners);
            line += &format!(" --chown={owner}");
        }
        if self.chance(20) {
            let mode = self.pick(&MODES);
            line += &format!(" --chmod={mode}");
        }
        let several = self.chance(25);
        let mut sources = Vec::new();
        for _ in 0..=usize::from(several) {
            let source = match &from {
                Some(from) if from == BASE => self.pick(&[
                    "/data",
                    "/etc/passwd",
                    "etc",
                    "/lnk/r",
                    "/lnk",
                    "/opt",
                    "/d*",
                    "/file",
                ]),
                Some(_) => self.pick(&[
                    "/s",
                    "/s/dir",
                    "s/dir/one.txt",
                    "/s/dir/*.txt",
                    "/s/dir/link",
                    "/s/d?r",
                ]),
                None if archive => self.pick(&["t.tar", "t.tgz", "./t.tar", "t.t*"]),
                // With rules, links to what they hide are the table's.
                None if self.rules.is_empty() => self.pick(&SOURCES),
                None => self.pick(&SOURCES[..SOURCES.len() - LINKS]),
            };
            sources.push(source.to_owned());
        }
        let mut destination = self.pick(&DESTINATIONS).to_owned();
        let pattern = sources.iter().any(|source| source.contains(['*', '?', '[']));
        if (several || pattern) && !destination.ends_with('/') {
            destination.push('/');
        }
        if self.chance(15) {
            if from.is_none() && self.chance(40) {
                sources[0] = "w o.txt".to_owned();
            }
            sources.push(destination);
            line += &format!(" {}", serde_json::to_string(&sources).unwrap());
        } else {
            line += &format!(" {} {destination}", sources.join(" "));
        }
        self.line(line);
    }
}
