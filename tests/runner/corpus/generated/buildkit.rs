//! BuildKit as a second referee of generated Kubefiles. `IMGCTL_BUILDKIT` names a directory with `buildkitd` and
//! `buildctl`, for example built from a checkout of BuildKit; without it, buildah is the only referee.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::builders::BASE;
use super::grammar::Case;
use crate::common::tree::{self, Compare, Tree};
use crate::common::{Ran, TestEnv, json};
use crate::corpus::{expected, made};

/// What imgctl refuses and BuildKit builds: rows of docs/kubefile.md.
const REFUSED: [&str; 4] =
    ["must end with `/`", "matches nothing", "without arguments", "is not a signal"];

/// A daemon for one test.
pub(super) struct Daemon {
    child: Child,
    programs: PathBuf,
    place: tempfile::TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    /// `None` if nobody asks for it.
    pub(super) fn start() -> Option<Self> {
        let programs = PathBuf::from(std::env::var_os("IMGCTL_BUILDKIT")?);
        let place = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(place.path().join("log")).unwrap();
        let address = format!("unix://{}", place.path().join("socket").display());
        let child = Command::new(programs.join("buildkitd"))
            .args(["--addr", &address, "--oci-worker-snapshotter=native", "--config=/dev/null"])
            .arg("--root")
            .arg(place.path().join("root"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("cannot run the buildkitd of IMGCTL_BUILDKIT");
        let daemon = Self { child, programs, place };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !daemon.place.path().join("socket").exists() {
            assert!(Instant::now() < deadline, "buildkitd does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        daemon.into()
    }

    /// Builds a case that lies in `work`, with the base image of the layout `base`.
    fn build(&self, case: &Case, work: &Path, base: &Path, to: &Path) -> Ran {
        let index = json(&base.join("index.json"));
        let digest = index["manifests"][0]["digest"].as_str().unwrap();
        let mut command = Command::new(self.programs.join("buildctl"));
        command
            .arg(format!("--addr=unix://{}", self.place.path().join("socket").display()))
            .args([
                "build",
                "--frontend=dockerfile.v0",
                "--progress=plain",
                "--local=context=context",
            ])
            .args(["--local=dockerfile=.", "--opt=filename=Kubefile"])
            .arg(format!("--oci-layout=base={}", base.display()))
            .arg(format!("--opt=context:{BASE}=oci-layout://base@{digest}"))
            .arg(format!("--output=type=oci,dest={}", to.display()))
            .current_dir(work)
            .stdin(Stdio::null());
        for argument in case.arguments.iter().filter(|argument| *argument != "--build-arg") {
            command.arg(format!("--opt=build-arg:{argument}"));
        }
        Ran::new(command)
    }

    /// Compares what imgctl made of a case (`None` = it refused it, `told`) with what BuildKit makes.
    pub(super) fn compare(
        &self,
        env: &TestEnv,
        work: &Path,
        case: &Case,
        ours: Option<(Tree, Value)>,
        told: &str,
    ) -> Vec<String> {
        let base = env.path("base-layout");
        if !base.exists() {
            env.imgctl(["copy", &format!("{BASE}:latest"), &format!("oci:{}:x", base.display())])
                .ok();
        }
        // BuildKit looks for the rules beside the file.
        std::fs::write(work.join("Kubefile.dockerignore"), case.ignore()).unwrap();
        let archive = env.path("theirs.tar");
        let ran = self.build(case, work, &base, &archive);
        std::fs::remove_file(work.join("Kubefile.dockerignore")).unwrap();
        let (mut ours, mut our_config) = match (ours, ran.success()) {
            (None, false) => return Vec::new(),
            (None, true) if REFUSED.iter().any(|known| told.contains(known)) => return Vec::new(),
            (None, true) => return vec![format!("+ imgctl, not BuildKit: {told}")],
            (Some(_), false) => return vec![format!("- BuildKit: {}", ran.stderr())],
            (Some(ours), true) => ours,
        };
        let image = format!("localhost/theirs:{}", case.seed);
        env.imgctl(["--no-sync", "load", "--tag", &image, "-i", archive.to_str().unwrap()]).ok();
        let (mut theirs, mut their_config) = made::by_imgctl(env, &image, "exported-theirs");
        // imgctl drops the bits of files of a context.
        for entry in ours.values_mut().chain(theirs.values_mut()) {
            entry.mode &= !0o6000;
        }
        let mut found = tree::differences(
            &theirs,
            &ours,
            Compare { times_before: super::builders::BUILD_TIME, directory_times: false },
        );
        for config in [&mut our_config, &mut their_config] {
            // An image from scratch has no entry for the default, and only Windows reads the other one.
            let members = config["config"].as_object_mut().unwrap();
            members.remove("ArgsEscaped");
            members.entry("WorkingDir").or_insert_with(|| "/".into());
        }
        found.extend(expected::config_differences(Some(&their_config), None, &our_config));
        let (mine, other) = (history(&our_config), history(&their_config));
        if mine != other {
            found.push(format!("history: {mine:?}, BuildKit {other:?}"));
        }
        found.into_iter().map(|line| format!("BuildKit: {line}")).collect()
    }
}

/// Which instructions have a layer. Whether WORKDIR without a result has one, and that triggers are in the history,
/// are rows of docs/kubefile.md.
fn history(config: &Value) -> Vec<Option<bool>> {
    let entries = config["history"].as_array().into_iter().flatten();
    let text = |entry: &Value| entry["created_by"].as_str().unwrap_or_default().to_owned();
    entries
        .filter(|entry| !text(entry).starts_with("ONBUILD"))
        .map(|entry| {
            let is_empty = entry["empty_layer"].as_bool().unwrap_or_default();
            (!text(entry).starts_with("WORKDIR")).then_some(is_empty)
        })
        .collect()
}
