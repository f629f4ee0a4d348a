//! The two builders: runs a case with each and compares what they made.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::buildkit::Daemon;
use super::context;
use super::grammar::Case;
use crate::common::tree::{self, Compare};
use crate::common::{Ran, TestEnv};
use crate::corpus::{expected, made};

/// Everything older is the context's, everything younger the build's.
pub(super) const BUILD_TIME: i64 = 1_700_000_000;

/// The base image's name for both.
pub(super) const BASE: &str = "localhost/generated-base";

const NAME: &str = "localhost/generated";

/// imgctl and buildah with a store each, the same context and the same base image.
pub(super) struct Pair<'a> {
    env: &'a TestEnv,
    work: PathBuf,
    buildkit: Option<&'a Daemon>,
}

/// What the two made of a case.
pub(super) enum Outcome {
    Same,
    /// Neither builds it, or imgctl refuses it on purpose.
    Refused,
    Differ(Vec<String>),
}

impl<'a> Pair<'a> {
    pub(super) fn new(env: &'a TestEnv, buildkit: Option<&'a Daemon>) -> Self {
        let work = env.path("work");
        std::fs::create_dir_all(&work).unwrap();
        context::make(&work);
        let pair = Self { env, work, buildkit };
        std::fs::write(pair.work.join("Base"), context::BASE).unwrap();
        let arguments = ["-f", "Base", "-t", BASE, "base"];
        pair.imgctl(&arguments).ok();
        pair.buildah(&arguments).ok();
        pair
    }

    pub(super) fn compare(&self, case: &Case) -> Outcome {
        std::fs::write(self.work.join("Kubefile"), case.kubefile()).unwrap();
        std::fs::write(self.work.join("ignore"), case.ignore()).unwrap();
        let image = format!("{NAME}:{}", case.seed);
        let mut arguments = vec!["-f", "Kubefile", "--ignorefile", "ignore", "-t", &image];
        arguments.extend(case.arguments.iter().map(String::as_str));
        arguments.push("context");
        let (ours, theirs) = (self.imgctl(&arguments), self.buildah(&arguments));
        if let Some(buildkit) = self.buildkit {
            let made = ours.success().then(|| made::by_imgctl(self.env, &image, "exported"));
            let found = buildkit.compare(self.env, &self.work, case, made, &ours.stderr());
            if !found.is_empty() {
                return Outcome::Differ(found);
            }
        }
        match (ours.success(), theirs.success()) {
            (true, true) => self.compare_images(&image),
            (false, false) => Outcome::Refused,
            (true, false) => Outcome::Differ(vec![format!("- buildah: {}", last(&theirs))]),
            // buildah replaces what is there, with all that is in it.
            (false, true) if ours.stderr().contains("cannot replace it") => Outcome::Refused,
            (false, true) => Outcome::Differ(vec![format!("+ imgctl: {}", ours.stderr())]),
        }
    }

    fn compare_images(&self, image: &str) -> Outcome {
        let (theirs, mut their_config) = made::by_buildah(&self.storage(), image);
        let (ours, mut our_config) = made::by_imgctl(self.env, image, "exported");
        for config in [&mut their_config, &mut our_config] {
            // buildah moves a variable that gets another value to the end.
            if let Some(variables) = config["config"]["Env"].as_array_mut() {
                variables.sort_by_key(Value::to_string);
            }
        }
        let compare = Compare { times_before: BUILD_TIME, directory_times: false };
        let mut found = tree::differences(&theirs, &ours, compare);
        found.extend(expected::config_differences(Some(&their_config), None, &our_config));
        if found.is_empty() { Outcome::Same } else { Outcome::Differ(found) }
    }

    fn imgctl(&self, arguments: &[&str]) -> Ran {
        // buildah looks for no container images in a context (tests/embed).
        let own = ["build", "--quiet", "--no-sync", "--save-image=false"];
        let mut command = self.env.command(own.iter().chain(arguments));
        command.current_dir(&self.work);
        Ran::new(command)
    }

    fn buildah(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new("buildah");
        command
            .arg("--root")
            .arg(self.storage())
            .arg("--runroot")
            .arg(self.env.path("runroot"))
            .args(["--storage-driver", "vfs"])
            // docker's format keeps HEALTHCHECK and ONBUILD.
            .args(["build", "--format", "docker", "--layers=false", "--pull-never"])
            .args(arguments)
            .env("TMPDIR", "/var/tmp")
            .env("LC_ALL", "C.UTF-8")
            .current_dir(&self.work)
            .stdin(std::process::Stdio::null());
        Ran::new(command)
    }

    fn storage(&self) -> PathBuf {
        self.env.path("storage")
    }
}

/// Builds cases with this machine's imgctl and with one that `elsewhere` runs in a directory: a program for another
/// machine makes the same images, digest by digest.
pub(super) fn compare_machines(
    seeds: std::ops::Range<u64>,
    elsewhere: &dyn Fn(&TestEnv, &Path, &[&str]) -> Ran,
) {
    let (here, there) = (TestEnv::new(), TestEnv::new());
    let work = here.path("work");
    std::fs::create_dir_all(&work).unwrap();
    context::make(&work);
    std::fs::write(work.join("Base"), context::BASE).unwrap();
    let both = |words: &[&str]| {
        let own = ["build", "--quiet", "--no-sync", "--save-image=false", "--platform=linux/amd64"];
        let words: Vec<&str> = own.iter().chain(words).copied().collect();
        let mut command = here.command(&words);
        command.current_dir(&work);
        [Ran::new(command), elsewhere(&there, &work, &words)]
    };
    for ran in both(&["-f", "Base", "-t", BASE, "base"]) {
        ran.ok();
    }
    let mut built = 0;
    for seed in seeds {
        let case = Case::new(seed);
        std::fs::write(work.join("Kubefile"), case.kubefile()).unwrap();
        std::fs::write(work.join("ignore"), case.ignore()).unwrap();
        let words = ["-f", "Kubefile", "--ignorefile", "ignore"];
        let arguments = case.arguments.iter().map(String::as_str);
        let words: Vec<&str> = words.into_iter().chain(arguments).chain(["context"]).collect();
        let [ours, theirs] = both(&words);
        assert_eq!(ours.success(), theirs.success(), "{case}{}", theirs.report());
        if ours.success() {
            assert_eq!(ours.stdout(), theirs.stdout(), "{case}");
            built += 1;
        }
    }
    assert!(built > 0, "a grammar that makes nonsense compares nothing");
}

fn last(ran: &Ran) -> String {
    ran.stderr().lines().last().unwrap_or_default().to_owned()
}
