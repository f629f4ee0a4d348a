//! What CI systems see: a build as GitHub's runner starts it (variables, files that steps append to,
//! commands in the log), as GitLab's, and as a Tekton step.

mod cluster_image;
mod fleet;
mod pipelines;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv};

/// A job on one of GitHub's runners: a workspace, and the files that its variables name.
struct GithubJob<'a> {
    env: &'a TestEnv,
    workspace: PathBuf,
}

impl<'a> GithubJob<'a> {
    fn new(env: &'a TestEnv) -> Self {
        let job = Self { env, workspace: env.path("work") };
        std::fs::create_dir_all(&job.workspace).unwrap();
        for file in ["output", "summary"] {
            env.write(Path::new("runner").join(file), "");
        }
        job
    }

    /// A step that runs imgctl, in the workspace.
    fn step(&self, arguments: &[&str]) -> Command {
        let mut command = self.env.command(arguments);
        command
            .current_dir(&self.workspace)
            .env("GITHUB_ACTIONS", "true")
            .env("CI", "true")
            .env("GITHUB_WORKSPACE", &self.workspace)
            .env("GITHUB_OUTPUT", self.env.path("runner/output"))
            .env("GITHUB_STEP_SUMMARY", self.env.path("runner/summary"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::new(self.step(arguments))
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.env.path("runner").join(name)).unwrap()
    }

    /// An output of the last step, as the runner reads it.
    fn output(&self, name: &str) -> String {
        let text = self.file("output");
        let values = text.lines().filter_map(|line| line.split_once('='));
        let mut values = values.filter(|(key, _)| *key == name);
        values.next_back().unwrap_or_else(|| panic!("no output {name} in {text}")).1.to_owned()
    }
}

/// Lines that the runner takes for commands: at the beginning after white space, or `##[` anywhere.
/// It reads both streams, and ends lines at `\r`, too.
fn commands(ran: &Ran) -> Vec<String> {
    let text = format!("{}\n{}", ran.stdout(), ran.stderr());
    let lines = text.split(['\n', '\r']);
    let commands = lines.filter(|line| line.trim_start().starts_with("::") || line.contains("##["));
    commands.map(|line| line.trim_start().to_owned()).collect()
}

const HOSTS: &str = "127.0.0.1 localhost\n";

#[test]
fn a_build_on_github_has_groups_a_summary_and_outputs() {
    let env = TestEnv::new();
    let job = GithubJob::new(&env);
    let kubefile = "FROM scratch\nLABEL sealos.io.type=rootfs version=v1.30.0\nCOPY etc /etc\n";
    env.context("work/image", kubefile, &[("etc/hosts", HOSTS)]);
    let ran = job.run(&["build", "-t", "localhost/x:v1", "image"]).ok();

    let log = ran.stderr();
    let groups = commands(&ran);
    assert_eq!(
        groups,
        [
            "::group::[0/2] FROM scratch",
            "::endgroup::",
            "::group::[1/2] LABEL sealos.io.type=rootfs version=v1.30.0",
            "::endgroup::",
            "::group::[2/2] COPY etc /etc",
            "::endgroup::",
        ],
        "{log}"
    );
    let id = ran.stdout();
    let id = id.lines().last().unwrap();
    assert_eq!(job.output("imageid"), format!("sha256:{id}"));
    let metadata: Value = serde_json::from_str(&job.output("metadata")).unwrap();
    assert_eq!(metadata["containerimage.digest"], job.output("digest"));
    assert_eq!(metadata["image.name"], "localhost/x:v1");

    let summary = job.file("summary");
    assert!(summary.contains("## Image `localhost/x:v1`"), "{summary}");
    assert!(summary.contains(&format!("| Digest | `{}` |", job.output("digest"))), "{summary}");
    assert!(summary.contains("| Steps from the cache | 0 of "), "{summary}");
    assert!(summary.contains("| rootfs | 1 | "), "{summary}");
    assert!(summary.contains("`COPY etc /etc` |"), "{summary}");
    assert!(!summary.contains("Findings"), "{summary}");
}

#[test]
fn a_summary_compares_with_the_image_before() {
    let env = TestEnv::new();
    let job = GithubJob::new(&env);
    let registry = Registry::start();
    let tag = format!("{}/x:latest", registry.host);
    let build = |content: &str, more: &[&str]| {
        env.context("work/image", "FROM scratch\nCOPY etc /etc\n", &[("etc/hosts", content)]);
        env.write("work/image/etc/more", "always the same");
        let arguments = ["build", "--tls-verify=false", "--compare", &tag, "-t", &tag];
        job.run(&[&arguments, more, &["image"]].concat()).ok()
    };
    // The first build ever.
    build("one", &[]);
    assert!(job.file("summary").contains("| there is none yet |"), "{}", job.file("summary"));
    env.imgctl(["push", "--tls-verify=false", &tag]).ok();
    let first = job.output("digest");

    // Another machine: the image comes from the registry, and only its documents.
    std::fs::remove_dir_all(env.root()).unwrap();
    registry.blobs_read();
    let ran = build("two and more", &["--json"]);
    let summary = job.file("summary");
    let line = summary.lines().rfind(|line| line.contains("Against")).unwrap();
    assert!(line.contains("1 of 1 layers new"), "{summary}");
    assert!(line.starts_with(&format!("| Against `{tag}` | ")), "{summary}");
    let mut blobs = registry.blobs_read();
    blobs.dedup();
    assert_eq!(blobs.len(), 1, "more than the config was read: {blobs:?}");
    let compared = &ran.json()["compared"];
    assert_eq!(compared["images"][0]["digest"], first);
    assert_eq!(compared["images"][0]["newLayers"].as_array().unwrap().len(), 1);
    // JSON is all there is on stderr.
    assert_eq!(commands(&ran), [] as [&str; 0]);

    // The store's image of the same name is the one before this build, not this build.
    let arguments = ["build", "--compare", "localhost/y", "-t", "localhost/y", "image"];
    job.run(&arguments).ok();
    env.write("work/image/etc/hosts", "three");
    let log = job.run(&arguments).ok().stderr();
    assert!(log.contains("against localhost/y: "), "{log}");
    assert!(log.contains("1 of 1 layers new"), "{log}");
    // A registry that does not answer is no reason to fail.
    let nowhere = ["build", "--compare", "127.0.0.1:9/x/y", "--retry", "0", "image"];
    let log = job.run(&nowhere).ok().stderr();
    assert!(log.contains("cannot compare with 127.0.0.1:9/x/y"), "{log}");
    assert!(job.file("summary").contains("not possible: "));
}

#[test]
fn embedded_images_and_their_changes_are_in_the_summary() {
    let env = TestEnv::new();
    let job = GithubJob::new(&env);
    let registry = Registry::start();
    let publish = |content: &str| {
        let context = env.context("small", "FROM scratch\nCOPY f /f\n", &[("f", content)]);
        env.build("localhost/small", &context);
        registry.fill(&env.root(), "small:latest");
        env.imgctl(["inspect", "-f", "{{.FromImageDigest}}", "localhost/small"]).ok().stdout()
    };
    let image = format!("{}/small:latest", registry.host);
    env.context("work/image", "FROM scratch\nCOPY f /f\n", &[("f", "x")]);
    let arguments = ["build", "--tls-verify=false", "--image", &image, "-t", "x", "image"];
    let first = publish("one");
    job.run(&arguments).ok();
    assert!(job.file("summary").contains(&format!("| `{image}` | `{first}` |")));
    let second = publish("two");
    job.run(&[&arguments[..], &["--compare", "x"]].concat()).ok();
    let summary = job.file("summary");
    let line = format!("| `{image}` | `{second}` | changed, was `{}` |", &first[..19]);
    assert!(summary.contains(&line), "{line}\n{summary}");
    assert!(summary.contains("1 embedded changed"), "{summary}");
}

#[test]
fn mistakes_are_annotations_on_their_lines() {
    let env = TestEnv::new();
    let job = GithubJob::new(&env);
    env.context("work/deploy/bad", "FROM scratch\nCOPPY a b\n", &[]);
    let ran = job.run(&["build", "deploy/bad"]).fails(2);
    let [command] = &commands(&ran)[..] else { panic!("{}", ran.report()) };
    let place = "::error file=deploy/bad/Kubefile,line=2,endLine=2,col=1,endColumn=5,";
    assert!(command.starts_with(place), "{command}");
    assert!(command.contains("COPPY") && command.contains("%0A"), "{command}");
    assert!(job.file("summary").contains("## The build failed"));
    // The error itself is told as always.
    assert!(ran.stderr().contains("error: Kubefile has an error"), "{}", ran.report());

    // A step that fails, from another directory than the workspace.
    env.context("work/deploy/missing", "FROM scratch\nCOPY absent /\n", &[]);
    let mut command = job.step(&["build", "."]);
    command.current_dir(job.workspace.join("deploy/missing"));
    let ran = Ran::new(command).fails(3);
    let told = commands(&ran);
    let error = told.iter().find(|line| line.starts_with("::error")).unwrap();
    assert!(error.starts_with("::error file=deploy/missing/Kubefile,line=2,"), "{error}");
    assert!(error.contains("absent"), "{error}");
    assert_eq!(told.iter().filter(|line| line.starts_with("::group")).count(), 2);
    assert_eq!(told.iter().filter(|line| *line == "::endgroup::").count(), 2);

    // What is not about a line, and findings of the lint in a build that succeeds.
    let ran = job.run(&["build", "nowhere"]).fails(3);
    assert!(commands(&ran)[0].starts_with("::error title=imgctl build::"), "{}", ran.report());
    env.context("work/lint", "FROM scratch AS Base\nCOPY a /\n", &[("a", "x")]);
    let ran = job.run(&["build", "-t", "x", "lint"]).ok();
    let told = commands(&ran);
    let place = "::warning file=lint/Kubefile,line=1,endLine=1,col=17,endColumn=20,\
                 title=StageNameCasing::";
    assert!(told.iter().any(|line| line.starts_with(place)), "{told:?}");
    assert!(job.file("summary").contains("`StageNameCasing`"));
    // With -q, errors only.
    assert_eq!(commands(&job.run(&["build", "-q", "lint"]).ok()), [] as [&str; 0]);
    // Without annotations, none.
    let ran = job.run(&["build", "--annotations", "none", "deploy/bad"]).fails(2);
    assert_eq!(commands(&ran), [] as [&str; 0]);
    let mut command = job.step(&["build", "deploy/bad"]);
    command.env("IMGCTL_ANNOTATIONS", "none");
    assert_eq!(commands(&Ran::new(command).fails(2)), [] as [&str; 0]);
    let mut command = env.command(["build", "."]);
    command.env("IMGCTL_ANNOTATIONS", "jenkins");
    assert!(Ran::new(command).fails(2).stderr().contains("IMGCTL_ANNOTATIONS"));
}

#[test]
fn no_text_of_the_kubefile_is_a_command_of_the_runner() {
    let env = TestEnv::new();
    let job = GithubJob::new(&env);
    // In steps, in errors, in findings.
    env.context(
        "work/x",
        "FROM scratch AS A\nLABEL a='x\\\n::add-path::/evil\\\n' ##[error]y=z\nCOPY ::stop /\n",
        &[],
    );
    let ran = job.run(&["build", "x"]);
    for command in commands(&ran) {
        let known = ["::group::", "::endgroup::", "::error ", "::warning "];
        assert!(known.iter().any(|known| command.starts_with(known)), "{}", ran.report());
    }
}

#[test]
fn the_output_of_a_step_cannot_command_the_runner() {
    if !crate::common::needs_root() {
        return;
    }
    let env = TestEnv::new();
    let job = GithubJob::new(&env);
    env.context("work/x", "FROM scratch\nCOPY bin /bin\nRUN [\"/bin/say\"]\n", &[]);
    let say = env.path("work/x/bin/say");
    std::fs::create_dir_all(say.parent().unwrap()).unwrap();
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
    let Some(busybox) = busybox else { return };
    std::fs::copy(busybox, env.path("work/x/bin/busybox")).unwrap();
    env.write(
        "work/x/bin/say",
        "#!/bin/busybox sh\nprintf '::add-path::/evil\\n50%%\\r::set-env name=A::b\\n'\n\
         printf 'x ##[add-path]/evil\\n  ::error::no\\n' >&2\nprintf 'secret is %s\\n' safe\n",
    );
    crate::common::tool("chmod", [say.to_str().unwrap()]);
    Ran::new(crate::common::tool("chmod", ["755", say.to_str().unwrap()])).ok();
    let ran = job.run(&["build", "-t", "x", "x"]).ok();
    let told = commands(&ran);
    assert!(told.iter().all(|c| c.starts_with("::group::") || c == "::endgroup::"), "{told:?}");
    assert!(ran.stderr().contains("| ::add-path::/evil"), "{}", ran.report());
}

#[test]
fn no_secret_is_in_what_ci_systems_are_told() {
    let env = TestEnv::new();
    let job = GithubJob::new(&env);
    env.context("work/x", "FROM scratch\nARG TOKEN\nCOPY a /$TOKEN\n", &[("a", "x")]);
    let mut command = job.step(&[
        "build",
        "--build-arg",
        "TOKEN",
        "--secret",
        "id=TOKEN",
        "--creds",
        "me:hunter2x",
        "--report",
        "sarif=all.sarif",
        "--report",
        "dotenv=all.env",
        "-t",
        "x",
        "x",
    ]);
    command.env("TOKEN", "hunter2x");
    let ran = Ran::new(command).ok();
    let files = ["work/all.sarif", "work/all.env", "runner/summary", "runner/output"];
    for file in files {
        let text = std::fs::read_to_string(env.path(file)).unwrap();
        assert!(!text.contains("hunter2x"), "{file}: {text}");
    }
    assert!(!ran.report().replace("me:hunter2x", "").contains("hunter2x"), "{}", ran.report());
}

/// A build that fails reports what the checks found beside its reason: a mistake in the language, a step that
/// fails, findings that the file itself calls errors.
#[test]
fn a_failed_build_reports_the_findings_of_its_checks() {
    let env = TestEnv::new();
    let build = |text: &str| {
        env.context("x", text, &[]);
        let ran = env.imgctl(["build", "--report", "sarif=x.sarif", "--json", "x"]);
        let sarif = crate::common::json(&env.path("x.sarif"));
        let shown = sarif["runs"][0]["results"].as_array().unwrap().iter().map(|result| {
            let line = &result["locations"][0]["physicalLocation"]["region"]["startLine"];
            format!(
                "{line} {} {}",
                result["ruleId"].as_str().unwrap(),
                result["level"].as_str().unwrap()
            )
        });
        let shown: Vec<String> = shown.collect();
        let error: Value = serde_json::from_str(ran.stderr().lines().last().unwrap()).unwrap();
        let places = error["error"]["places"].as_array().unwrap().len();
        assert_eq!(places, shown.len(), "{error:#}");
        (ran, shown)
    };
    let casing = "1 FromAsCasing warning".to_owned();
    let (ran, shown) = build("FROM scratch as a\nCOPPY a b\nEXPOSE 80/TCP\n");
    ran.fails(2);
    // Behind a mistake, findings would be guesses.
    assert_eq!(shown, [casing.clone(), "2 KubefileError error".to_owned()]);
    let (ran, shown) = build("FROM scratch as a\nCOPY absent /\n");
    ran.fails(3);
    assert_eq!(shown, [casing.clone(), "2 KubefileError error".to_owned()]);
    let (ran, shown) = build("# check=error=true\nFROM scratch as a\n");
    ran.fails(10);
    assert_eq!(shown, ["2 FromAsCasing warning"]);
}

#[test]
fn a_check_writes_sarif_and_code_quality() {
    let env = TestEnv::new();
    let text = "FROM scratch AS Base\nCOPY a /\nCMD x\nFROM scratch AS Base2\nCOPY a /\n";
    env.context("a dir", text, &[("a", "x")]);
    let check = |more: &[&str]| env.imgctl([&["build", "--check"], more, &["a dir"]].concat());
    let files = ["--report", "sarif=x.sarif", "--report", "codequality=quality.json"];
    let shown = check(&files).ok().stdout();
    assert!(shown.contains("StageNameCasing"), "{shown}");

    let sarif = crate::common::json(&env.path("x.sarif"));
    let run = &sarif["runs"][0];
    let results = run["results"].as_array().unwrap();
    assert!(results.len() >= 2, "{sarif:#}");
    for result in results {
        let rule = &run["tool"]["driver"]["rules"][result["ruleIndex"].as_u64().unwrap() as usize];
        assert_eq!(rule["id"], result["ruleId"]);
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "a%20dir/Kubefile");
    }
    let quality = crate::common::json(&env.path("quality.json"));
    let issues = quality.as_array().unwrap();
    assert_eq!(issues.len(), results.len());
    let mut prints: Vec<&str> = Vec::new();
    for issue in issues {
        assert_eq!(issue["location"]["path"], "a dir/Kubefile");
        assert!(issue["location"]["lines"]["begin"].as_u64().unwrap() > 0);
        assert_eq!(issue["severity"], "minor");
        prints.push(issue["fingerprint"].as_str().unwrap());
    }
    prints.sort_unstable();
    prints.dedup();
    assert_eq!(prints.len(), issues.len());
    // A line above does not make findings new ones.
    env.write("a dir/Kubefile", format!("# a comment\n{text}"));
    check(&["--report", "codequality=moved.json"]).ok();
    let moved = crate::common::json(&env.path("moved.json"));
    for (one, other) in issues.iter().zip(moved.as_array().unwrap()) {
        assert_eq!(one["fingerprint"], other["fingerprint"]);
        assert_ne!(one["location"]["lines"]["begin"], other["location"]["lines"]["begin"]);
    }

    // To stdout, in place of the text.
    let printed = check(&["--report", "sarif=-"]).ok().json();
    assert_eq!(printed["version"], "2.1.0");
    let listed = check(&["--json"]).ok().json();
    assert_eq!(listed["failed"], false);
    assert_eq!(listed["findings"].as_array().unwrap().len(), issues.len());
    assert_eq!(listed["findings"][0]["rule"], "StageNameCasing");
    assert_eq!(listed["findings"][0]["line"], 2);

    // A file that cannot be parsed has findings, too; and the exit code stays.
    env.write("a dir/Kubefile", "FROM scratch\nCOPPY a b\nRUN --mount=typ=x y\n");
    check(&files).fails(2);
    let sarif = crate::common::json(&env.path("x.sarif"));
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), 2, "{sarif:#}");
    assert_eq!(sarif["runs"][0]["results"][0]["level"], "error");
    let quality = crate::common::json(&env.path("quality.json"));
    assert_eq!(quality[0]["severity"], "blocker");
    check(&["--report", "html=x"]).fails(2);
}

#[test]
fn a_job_on_gitlab_has_sections_and_variables_for_later_jobs() {
    let env = TestEnv::new();
    let project = env.context("project", "FROM scratch\nCOPY a /\n", &[("a", "x")]);
    let mut command = env.command(["build", "-t", "registry.example.com/x:v1", "-t", "y"]);
    command.args(["--report", "dotenv=build.env", "--report", "codequality=quality.json", "."]);
    command.current_dir(&project).env("GITLAB_CI", "true").env("CI_PROJECT_DIR", &project);
    let ran = Ran::new(command).ok();

    // As GitLab's trace does: `section_(start|end):TIME:NAME[options]\r ESC [0K`.
    let log = ran.stderr();
    let sections = regex::Regex::new(
        "\u{1b}\\[0Ksection_(start|end):([0-9]{10}):([a-zA-Z0-9_.-]+)(\\[collapsed=true\\])?\r\u{1b}\\[0K(.*)",
    );
    let sections = sections.unwrap();
    let found: Vec<(String, String, String)> = sections
        .captures_iter(&log)
        .map(|found| (found[1].to_owned(), found[3].to_owned(), found[5].to_owned()))
        .collect();
    let expected = [
        ("start", "imgctl_1", "[0/1] FROM scratch"),
        ("end", "imgctl_1", ""),
        ("start", "imgctl_2", "[1/1] COPY a /"),
        ("end", "imgctl_2", ""),
    ];
    let expected = expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
    assert_eq!(found, expected, "{log:?}");

    let variables = std::fs::read_to_string(project.join("build.env")).unwrap();
    let value = |name: &str| {
        let found = variables.lines().filter_map(|line| line.split_once('='));
        found.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next().unwrap()
    };
    let digest = env.imgctl(["inspect", "-f", "{{.FromImageDigest}}", "y"]).ok().stdout();
    assert_eq!(value("IMGCTL_IMAGE"), "registry.example.com/x:v1");
    assert_eq!(value("IMGCTL_IMAGES"), "registry.example.com/x:v1,localhost/y:latest");
    assert_eq!(value("IMGCTL_DIGEST"), digest);
    assert_eq!(value("IMGCTL_REFERENCE"), format!("registry.example.com/x@{digest}"));
    assert_eq!(crate::common::json(&project.join("quality.json")), json!([]));
    // The next job reads them as variables of its environment, and so does imgctl.
    let mut command = env.command(["images"]);
    command.envs(variables.lines().filter_map(|line| line.split_once('=')));
    Ran::new(command).ok();
}

#[test]
fn a_tekton_step_writes_results() {
    let env = TestEnv::new();
    env.context("source", "FROM scratch\nCOPY a /\n", &[("a", "x")]);
    std::fs::create_dir_all(env.path("results")).unwrap();
    let arguments = ["build", "-t", "registry.example.com/x:v1", "--report", "tekton=results"];
    env.imgctl([&arguments[..], &["source"]].concat()).ok();
    let read = |name: &str| std::fs::read_to_string(env.path("results").join(name)).unwrap();
    assert_eq!(read("IMAGE_URL"), "registry.example.com/x:v1");
    let digest = read("IMAGE_DIGEST");
    assert_eq!(digest.len(), "sha256:".len() + 64);
    assert_eq!(std::fs::read_dir(env.path("results")).unwrap().count(), 2);
}

#[test]
fn a_summary_that_does_not_fit_is_short_and_files_that_cannot_be_written_do_no_harm() {
    let env = TestEnv::new();
    let job = GithubJob::new(&env);
    env.context("work/x", "FROM scratch\nCOPY a /\n", &[("a", "x")]);
    env.write("runner/summary", "x".repeat((1 << 20) - 100));
    job.run(&["build", "-t", "x", "x"]).ok();
    let summary = job.file("summary");
    assert!(summary.contains("| Digest |") && !summary.contains("### Layers"));

    let mut command = job.step(&["build", "-t", "x", "x"]);
    command.env("GITHUB_STEP_SUMMARY", "/nonexistent/summary");
    assert!(Ran::new(command).ok().stderr().contains("cannot append to /nonexistent/summary"));
    // Unless the user asked for it.
    job.run(&["build", "-t", "x", "--summary", "/nonexistent/summary", "x"]).fails(3);
    job.run(&["build", "-t", "x", "--report", "dotenv=/nonexistent/x.env", "x"]).fails(3);
    // Devices are written to, never replaced.
    job.run(&["build", "-t", "x", "--report", "dotenv=/dev/null", "x"]).ok();
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
}
