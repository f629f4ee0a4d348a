//! The files of `ci/` and `action.yml`, whose steps are run here as a runner would: values put in
//! their places, scripts started with the variables and files that the system gives them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use imgctl_template::yaml;
use serde_json::{Map, Value, json};

use crate::common::registry::Registry;
use crate::common::{IMGCTL, Ran, TestEnv, json as json_file, repository, tool};

fn read(file: &str) -> String {
    std::fs::read_to_string(repository().join(file)).unwrap()
}

/// Replaces `OPEN name CLOSE` by what `value` says.
fn filled(text: &str, open: &str, close: &str, value: &dyn Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open) {
        let (name, after) = after.split_once(close).unwrap();
        out.push_str(before);
        out.push_str(&value(name.trim()));
        rest = after;
    }
    out + rest
}

/// A machine of a CI system: imgctl on the PATH, a home, a directory that is checked out.
struct Machine {
    env: TestEnv,
    bin: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let env = TestEnv::new();
        let bin = env.path("bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink(IMGCTL, bin.join("imgctl")).unwrap();
        env.context("work/image", "FROM scratch\nCOPY etc /etc\n", &[("etc/hosts", "x")]);
        Self { env, bin }
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.bin.display());
        command
            .args(arguments)
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.env.path("home"))
            .env("IMGCTL_ROOT", self.env.root())
            .current_dir(self.env.path("work"))
            .stdin(Stdio::null());
        command
    }

    /// Runs the steps of a composite action with these inputs; gives the last step and its outputs.
    fn action(&self, file: &str, inputs: &[(&str, &str)]) -> (Ran, BTreeMap<String, String>) {
        let action = yaml::parse(&read(file)).unwrap();
        let declared: &Map<String, Value> = action["inputs"].as_object().unwrap();
        for (name, _) in inputs {
            assert!(declared.contains_key(*name), "{file} has no input {name}");
        }
        let context = |expression: &str| match expression {
            "github.server_url" => "file:///nowhere".to_owned(),
            "github.action_repository" => "imgctl/imgctl".to_owned(),
            "github.token" => "token".to_owned(),
            "inputs.releases || format('{0}/{1}/releases', github.server_url, \
             github.action_repository)" => value_of("releases", inputs, declared),
            _ => match expression.strip_prefix("inputs.") {
                Some(name) => value_of(name, inputs, declared),
                None => panic!("an expression of {file} is not known here: {expression}"),
            },
        };
        let mut last = None;
        for step in action["runs"]["steps"].as_array().unwrap() {
            assert_eq!(step["shell"], "bash");
            let script = self.env.write("runner/step.sh", step["run"].as_str().unwrap());
            let output = self.env.write("runner/output", "");
            let folder = repository().join(file);
            let options = ["--noprofile", "--norc", "-eo", "pipefail", script.to_str().unwrap()];
            let mut command = self.command("bash", &options);
            for (name, value) in step["env"].as_object().unwrap() {
                // An expression in a script would be a way to inject commands.
                let value = filled(&text_of(value), "${{", "}}", &context);
                command.env(name, value);
            }
            assert!(!step["run"].as_str().unwrap().contains("${{"));
            command
                .env("GITHUB_ACTIONS", "true")
                .env("GITHUB_ACTION_PATH", folder.parent().unwrap())
                .env("GITHUB_WORKSPACE", self.env.path("work"))
                .env("GITHUB_OUTPUT", &output)
                .env("GITHUB_PATH", self.env.path("runner/path"))
                .env("GITHUB_STEP_SUMMARY", self.env.path("runner/summary"))
                .env("RUNNER_TEMP", self.env.path("runner"))
                .env("RUNNER_TOOL_CACHE", self.env.path("tools"));
            let ran = Ran::new(command);
            let outputs = std::fs::read_to_string(output).unwrap();
            let pairs = outputs.lines().filter_map(|line| line.split_once('='));
            let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let stop = !ran.success();
            last = Some((ran, pairs.collect()));
            if stop {
                break;
            }
        }
        last.unwrap()
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn value_of(name: &str, inputs: &[(&str, &str)], declared: &Map<String, Value>) -> String {
    let given = inputs.iter().find(|(input, _)| *input == name).map(|(_, value)| *value);
    let default = || declared[name].get("default").map(text_of).unwrap_or_default();
    given.map_or_else(default, str::to_owned)
}

/// Inputs of docker/build-push-action that mean something to imgctl.
const SAME_INPUTS: [&str; 25] = [
    "add-hosts",
    "allow",
    "annotations",
    "build-args",
    "build-contexts",
    "cache-from",
    "cache-to",
    "context",
    "file",
    "labels",
    "network",
    "no-cache",
    "outputs",
    "platforms",
    "provenance",
    "pull",
    "push",
    "sbom",
    "secret-envs",
    "secret-files",
    "secrets",
    "ssh",
    "tags",
    "target",
    "version",
];

#[test]
fn the_action_builds_with_the_inputs_of_build_push_action() {
    let action = yaml::parse(&read("action.yml")).unwrap();
    for input in SAME_INPUTS {
        assert!(action["inputs"][input]["description"].is_string(), "{input}");
    }
    for output in ["imageid", "digest", "metadata"] {
        let value = format!("${{{{ steps.build.outputs.{output} }}}}");
        assert_eq!(action["outputs"][output]["value"], value);
    }

    let machine = Machine::new();
    machine.env.write(
        "work/image/Kubefile",
        "FROM scratch AS one\nARG A\nARG B\nLABEL a=$A b=$B\nCOPY etc /etc\nFROM one\nCOPY etc /x\n",
    );
    let inputs = [
        ("context", "image"),
        ("tags", "localhost/x:v1,localhost/x:v2\nlocalhost/y:v1\n"),
        ("build-args", "A=one, two; $(touch evil)\n\nB=`touch evil`\n"),
        ("labels", "org.example.text=with space\norg.example.eq=a=b"),
        ("target", "one"),
        ("secrets", "TOKEN=hunter2x"),
        ("pull", "false"),
        ("compare", "localhost/x:v0"),
        ("reports", "sarif=findings.sarif"),
    ];
    let (ran, outputs) = machine.action("action.yml", &inputs);
    let ran = ran.ok();
    assert!(!machine.env.path("work/evil").exists());
    let config = machine.env.config("localhost/y:v1");
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["a"], "one, two; $(touch evil)");
    assert_eq!(labels["b"], "`touch evil`");
    assert_eq!(labels["org.example.text"], "with space");
    assert_eq!(labels["org.example.eq"], "a=b");
    let digest = machine.env.imgctl(["inspect", "-f", "{{.FromImageDigest}}", "localhost/x:v2"]);
    assert_eq!(outputs["digest"], digest.ok().stdout());
    assert_eq!(outputs["imageid"], format!("sha256:{}", ran.stdout().lines().last().unwrap()));
    let metadata: Value = serde_json::from_str(&outputs["metadata"]).unwrap();
    assert_eq!(metadata["image.name"], "localhost/x:v1,localhost/x:v2,localhost/y:v1");
    assert!(json_file(&machine.env.path("work/findings.sarif"))["runs"].is_array());
    let summary = std::fs::read_to_string(machine.env.path("runner/summary")).unwrap();
    assert!(summary.contains("| Against `localhost/x:v0` | there is none yet |"), "{summary}");
    // The secrets were in files of their own, which are gone.
    let left: Vec<_> = std::fs::read_dir(machine.env.path("runner")).unwrap().collect();
    assert!(left.iter().all(|entry| {
        !entry.as_ref().unwrap().file_name().to_string_lossy().contains("secret")
    }));
    assert!(!ran.report().contains("hunter2x"));

    // A mistake in an input, in the Kubefile, and a check.
    let (ran, _) = machine.action("action.yml", &[("context", "image"), ("pull", "yes")]);
    assert!(ran.fails(2).stderr().contains("not true or false"));
    let check = [("context", "image"), ("check", "true")];
    machine.action("action.yml", &check).0.ok();
    machine.env.write("work/image/Kubefile", "FROM scratch\nCOPPY a b\n");
    let (ran, _) = machine.action("action.yml", &check);
    assert!(ran.fails(2).stderr().contains("::error file=image/Kubefile,line=2,"));
}

#[test]
fn the_action_passes_every_input_on_as_a_flag_that_exists() {
    let machine = Machine::new();
    // Says what it was started with.
    std::fs::remove_file(machine.bin.join("imgctl")).unwrap();
    let fake = machine.env.write("bin/imgctl", "#!/bin/sh\nprintf '%s\\n' \"$@\"\n");
    std::fs::set_permissions(&fake, PermissionsExt::from_mode(0o755)).unwrap();
    let action = yaml::parse(&read("action.yml")).unwrap();
    let inputs: Vec<(&str, &str)> = action["inputs"]
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| !["version", "context", "args"].contains(&name.as_str()))
        .map(|name| {
            let value = match name.as_str() {
                "push" | "no-cache" | "pull" | "check" | "provenance" | "sbom" => "true",
                "secrets" | "secret-envs" | "secret-files" => "id=x",
                _ => "value",
            };
            (name.as_str(), value)
        })
        .collect();
    let (ran, _) = machine.action("action.yml", &inputs);
    let said = ran.ok().stdout();
    let flags: Vec<&str> = said.lines().filter(|line| line.starts_with("--")).collect();
    // Every input but those for secrets has a flag of its own.
    assert!(flags.len() > inputs.len() - 1, "{said}");
    let help = Ran::new(tool(IMGCTL, ["build", "--help"])).ok().stdout();
    for flag in flags.iter().filter(|flag| **flag != "--") {
        let flag = flag.split('=').next().unwrap();
        assert!(help.contains(flag) || LATER.contains(&flag), "{flag} is no flag of imgctl build");
    }
    assert!(said.ends_with("--\n."), "{said}");
}

/// Flags that the action passes on and that this version does not have yet.
const LATER: [&str; 2] = ["--cache-from", "--cache-to"];

/// Whether `imgctl build` has a flag.
fn has_flag(flag: &str) -> bool {
    let help = Ran::new(tool(IMGCTL, ["build", "--help"])).ok().stdout();
    help.lines().any(|line| line.split_whitespace().take(2).any(|word| word == flag))
}

#[test]
fn a_fresh_runner_finds_the_cache_in_the_registry() {
    if !has_flag("--push") || !has_flag("--cache-to") {
        return;
    }
    let machine = Machine::new();
    let registry = Registry::start();
    let name = format!("{}/team/image:latest", registry.host);
    let cache = format!("type=registry,ref={}/team/image:cache", registry.host);
    let inputs = [
        ("context", "image"),
        ("tags", name.as_str()),
        ("push", "true"),
        ("cache-from", cache.as_str()),
        ("cache-to", cache.as_str()),
        ("compare", name.as_str()),
        ("args", "--tls-verify=false"),
    ];
    let summary = || std::fs::read_to_string(machine.env.path("runner/summary")).unwrap();
    let (ran, first) = machine.action("action.yml", &inputs);
    ran.ok();
    assert!(summary().contains("| Steps from the cache | 0 of 1 |"), "{}", summary());
    assert!(summary().contains("there is none yet"), "{}", summary());
    // The next job runs on another machine.
    std::fs::remove_dir_all(machine.env.root()).unwrap();
    std::fs::remove_file(machine.env.path("runner/summary")).unwrap();
    let (ran, second) = machine.action("action.yml", &inputs);
    let ran = ran.ok();
    assert_eq!(second["digest"], first["digest"]);
    assert!(summary().contains("| Steps from the cache | 1 of 1 |"), "{}", summary());
    assert!(summary().contains("the same image"), "{}", summary());
    assert!(ran.stderr().contains("::group::[1/1] COPY etc /etc"), "{}", ran.report());
}

#[test]
fn the_setup_action_installs_what_has_the_right_checksum() {
    let machine = Machine::new();
    let platform = match std::env::consts::ARCH {
        "aarch64" => "linux-arm64",
        _ => "linux-amd64",
    };
    let archive = format!("imgctl-9.8.7-{platform}.tar.gz");
    // A release of a binary that only tells its version.
    let folder = format!("imgctl-9.8.7-{platform}");
    let program = "#!/bin/sh\necho imgctl 9.8.7\n";
    let fake = machine.env.write(format!("release/{folder}/imgctl"), program);
    std::fs::set_permissions(&fake, PermissionsExt::from_mode(0o755)).unwrap();
    let release = machine.env.path("releases/latest/download");
    std::fs::create_dir_all(&release).unwrap();
    let file = release.join(&archive);
    let from = machine.env.path("release");
    let words = ["-czf", file.to_str().unwrap(), "-C", from.to_str().unwrap(), &folder];
    Ran::new(tool("tar", words)).ok();
    let sum = Ran::new(tool("sha256sum", [file.to_str().unwrap()])).ok().stdout();
    let sum = sum.split(' ').next().unwrap().to_owned();
    let list = format!("{sum}  {archive}\n{sum}  imgctl-9.8.7-linux-riscv64.tar.gz\n");
    std::fs::write(release.join("SHA256SUMS"), &list).unwrap();
    let url = format!("file://{}", machine.env.path("releases").display());
    let setup = |version: &str| {
        let inputs = [("version", version), ("releases", url.as_str())];
        machine.action("ci/github/setup/action.yml", &inputs)
    };

    let (ran, outputs) = setup("latest");
    ran.ok();
    assert_eq!(outputs["version"], "9.8.7");
    let path = Path::new(&outputs["path"]);
    assert_eq!(Ran::new(tool(path.to_str().unwrap(), [""])).ok().stdout(), "imgctl 9.8.7");
    let added = std::fs::read_to_string(machine.env.path("runner/path")).unwrap();
    assert_eq!(Path::new(added.trim_end()), path.parent().unwrap());

    std::fs::create_dir_all(machine.env.path("releases/download")).unwrap();
    std::os::unix::fs::symlink(&release, machine.env.path("releases/download/v9.8.7")).unwrap();
    setup("v9.8.7").0.ok();
    assert!(setup("1.0.0").0.fails(1).stdout().contains("::error title=imgctl setup::cannot"));
    assert!(setup("../9.8.7").0.fails(1).stderr().contains("is not a version"));
    // Another archive than the list knows; a list without one, or with a path.
    std::fs::write(&file, "not the archive").unwrap();
    assert!(setup("latest").0.fails(1).stderr().contains("does not have the checksum"));
    for list in ["", &format!("{sum}  ../{archive}\n"), &format!("{sum}  {archive}\n").repeat(2)] {
        std::fs::write(release.join("SHA256SUMS"), list).unwrap();
        assert!(setup("latest").0.fails(1).stderr().contains("SHA256SUMS"), "{list}");
    }
}

#[test]
fn the_gitlab_component_builds_and_pushes() {
    let text = read("ci/gitlab/template.yml");
    let (spec, jobs) = text.split_once("\n---\n").unwrap();
    let spec = yaml::parse(spec).unwrap();
    let declared = spec["spec"]["inputs"].as_object().unwrap();
    let machine = Machine::new();
    let registry = Registry::with_login();
    let push = has_flag("--push");
    let name = format!("{}/team/image", registry.host);
    let inputs = [
        ("image", "imgctl"),
        ("context", "image"),
        ("push", if push { "true" } else { "false" }),
        ("args", "--tls-verify=false --label a=b   --label star=* --label=run=$(touch_evil)`x`"),
        ("compare", "localhost/none"),
    ];
    let jobs = filled(jobs, "$[[", "]]", &|name| {
        value_of(name.strip_prefix("inputs.").unwrap(), &inputs, declared)
    });
    let jobs = yaml::parse(&jobs).unwrap();
    let job = &jobs["build-image"];
    assert_eq!(job["artifacts"]["reports"]["dotenv"], "imgctl.env");
    assert_eq!(job["artifacts"]["reports"]["codequality"], "gl-code-quality-report.json");

    // GitLab puts the lines of both into one script.
    let lines = |key: &str| job[key].as_array().unwrap().iter().map(text_of).collect::<Vec<_>>();
    let script = [vec!["set -eo pipefail".to_owned()], lines("before_script"), lines("script")];
    let script = machine.env.write("script.sh", script.concat().join("\n"));
    let project = [
        ("GITLAB_CI", "true"),
        ("CI_REGISTRY_IMAGE", name.as_str()),
        ("CI_COMMIT_SHORT_SHA", "0123abcd"),
        ("CI_REGISTRY", registry.host.as_str()),
        ("CI_REGISTRY_USER", crate::common::registry::USER),
        ("CI_REGISTRY_PASSWORD", crate::common::registry::PASSWORD),
    ];
    let mut command = machine.command("bash", &[script.to_str().unwrap()]);
    command.envs(project).env("CI_PROJECT_DIR", machine.env.path("work"));
    for (key, value) in job["variables"].as_object().unwrap() {
        let mut value = text_of(value);
        for (variable, is) in project {
            value = value.replace(&format!("${variable}"), is);
        }
        command.env(key, value);
    }
    // docker-registry of this test speaks plain HTTP, which `login` has to be told.
    let conf = format!("[[registry]]\nlocation = \"{}\"\ninsecure = true\n", registry.host);
    command.env("CONTAINERS_REGISTRIES_CONF", machine.env.write("registries.conf", conf));
    // Files that a pattern in the arguments would match.
    machine.env.write("work/star=file", "");
    let ran = Ran::new(command).ok();
    let config = machine.env.config(&format!("{name}:0123abcd"));
    let labels = &config["config"]["Labels"];
    assert_eq!((&labels["a"], &labels["star"]), (&json!("b"), &json!("*")));
    assert_eq!(labels["run"], "$(touch_evil)`x`");
    assert!(ran.stderr().contains("section_start:"), "{}", ran.report());
    assert!(!ran.report().contains(crate::common::registry::PASSWORD), "{}", ran.report());
    let variables = std::fs::read_to_string(machine.env.path("work/imgctl.env")).unwrap();
    assert!(variables.contains(&format!("IMGCTL_IMAGE={name}:0123abcd\n")), "{variables}");
    assert!(machine.env.path("work/gl-code-quality-report.json").exists());
    if push {
        registry_has(&machine, &format!("{name}:0123abcd"));
    }
}

/// Panics unless the registry, which wants a login, has the image.
fn registry_has(machine: &Machine, name: &str) {
    let login = format!("{}:{}", crate::common::registry::USER, crate::common::registry::PASSWORD);
    let image = format!("docker://{name}");
    let words = ["inspect", "--tls-verify=false", "--creds", &login, &image];
    machine.env.imgctl(words).ok();
}

#[test]
fn the_tekton_task_writes_its_results() {
    let task = yaml::parse(&read("ci/tekton/task.yaml")).unwrap();
    assert_eq!(task["apiVersion"], "tekton.dev/v1");
    let spec = &task["spec"];
    let machine = Machine::new();
    let registry = Registry::start();
    let push = has_flag("--push");
    let image = format!("{}/team/image:v1", registry.host);
    let cache = format!("{}/team/cache:main", registry.host);
    let given = [
        ("IMAGE", image.as_str()),
        ("IMGCTL_IMAGE", "imgctl"),
        ("CONTEXT", "image"),
        ("PUSH", if push { "true" } else { "false" }),
        ("CACHE", cache.as_str()),
    ];
    std::fs::create_dir_all(machine.env.path("keys")).unwrap();
    let prefix = machine.env.path("keys/cache");
    let words = ["key", "generate", "--output-key-prefix", prefix.to_str().unwrap()];
    let mut generate = machine.env.command(words);
    // The Task then needs no password.
    generate.env("COSIGN_PASSWORD", "");
    Ran::new(generate).ok();
    let results = machine.env.path("tekton/results");
    std::fs::create_dir_all(&results).unwrap();
    let parameter = |name: &str| {
        let declared = spec["params"].as_array().unwrap().iter();
        let declared = declared.clone().find(|parameter| parameter["name"] == name);
        let declared = declared.unwrap_or_else(|| panic!("no parameter {name}"));
        let given = given.iter().find(|(given, _)| *given == name);
        given.map_or_else(|| text_of(&declared["default"]), |(_, value)| (*value).to_owned())
    };
    let value = |expression: &str| match expression {
        "workspaces.source.path" => machine.env.path("work").display().to_string(),
        "workspaces.dockerconfig.bound" => "false".to_owned(),
        "workspaces.dockerconfig.path" => String::new(),
        "workspaces.cachekey.bound" => "true".to_owned(),
        "workspaces.cachekey.path" => machine.env.path("keys").display().to_string(),
        "results.IMAGE_DIGEST.path" => results.join("IMAGE_DIGEST").display().to_string(),
        _ => parameter(expression.strip_prefix("params.").unwrap()),
    };
    let step = &spec["steps"][0];
    let script = machine.env.write("script.sh", step["script"].as_str().unwrap());
    // `$(params.EXTRA_ARGS[*])` becomes the elements of the array.
    let extra = ["--tls-verify=false", "--label", "a=b c"];
    let arguments = [&[script.to_str().unwrap()], &extra[..]].concat();
    let mut command = machine.command("sh", &arguments);
    for variable in step["env"].as_array().unwrap() {
        let text = filled(variable["value"].as_str().unwrap(), "$(", ")", &value);
        command.env(variable["name"].as_str().unwrap(), text);
    }
    command.env("IMGCTL_ROOT", machine.env.root());
    Ran::new(command).ok();
    let read = |name: &str| std::fs::read_to_string(results.join(name)).unwrap();
    assert_eq!(read("IMAGE_URL"), image);
    assert!(read("IMAGE_DIGEST").starts_with("sha256:"));
    let names: Vec<&str> =
        spec["results"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["IMAGE_URL", "IMAGE_DIGEST"]);
    assert_eq!(machine.env.config(&image)["config"]["Labels"]["a"], "b c");
    if push {
        let place = format!("docker://{image}");
        machine.env.imgctl(["inspect", "--tls-verify=false", &place]).ok();
    }
}

#[test]
fn the_workflow_builds_every_example() {
    let workflow = yaml::parse(&read(".github/workflows/examples.yml")).unwrap();
    let matrix = &workflow["jobs"]["examples"]["strategy"]["matrix"]["example"];
    let mut listed: Vec<&str> =
        matrix.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    listed.sort_unstable();
    let mut found: Vec<String> = std::fs::read_dir(repository().join("Kubefile.examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("Kubefile").exists())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort();
    assert_eq!(listed, found);
}
