//! `bake`: several images from one file, as `docker buildx bake` reads it.

mod referee;
mod rights;

use std::fs;

use serde_json::{Value, json};

use crate::common::{TestEnv, measured};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;

const FILE: &str = r#"
variable "VERSION" { default = "v1" }
variable "PLATFORMS" {
  type    = list(string)
  default = ["linux/amd64"]
}
function "name" {
  params = [word]
  result = ["localhost/team/${word}:${VERSION}"]
}
group "default" { targets = ["cluster", "apps"] }
target "common" {
  args   = { VERSION = VERSION, EMPTY = null }
  labels = { team = "a" }
}
target "base" {
  dockerfile-inline = <<EOT
FROM scratch
COPY base /base
EOT
}
target "cluster" {
  inherits = ["common"]
  tags     = name("cluster")
  contexts = { base = "target:base" }
}
target "apps" {
  inherits = ["common"]
  name     = "app-${app.name}"
  matrix   = { app = [{ name = "web", n = 1 }, { name = "db", n = 2 }] }
  args     = { NAME = app.name, N = app.n + 1 }
  target   = "app"
  tags     = name(app.name)
}
"#;

const KUBEFILE: &str = "FROM base AS cluster\nARG VERSION\nLABEL version=$VERSION\nCOPY own /own\n";

fn filled() -> TestEnv {
    let env = TestEnv::new();
    env.write("docker-bake.hcl", FILE);
    env.write("base", "below");
    env.write("own", "mine");
    let app = "FROM scratch AS app\nARG NAME\nARG N\nLABEL name=$NAME n=$N\nCOPY own /$NAME\n";
    env.write("Dockerfile", format!("{app}\n{KUBEFILE}"));
    env
}

fn printed(env: &TestEnv, words: &[&str]) -> Value {
    let all = [&["bake", "--print"], words].concat();
    env.imgctl(all).ok().json()
}

#[test]
fn all_targets_are_built_and_results_are_contexts() {
    let env = filled();
    let ran = env.imgctl(["bake"]).ok();
    let told = ran.stdout();
    for name in ["cluster ", "app-web ", "app-db "] {
        assert!(told.lines().any(|line| line.starts_with(name)), "{told}");
    }
    // What is only a context has no name and no line.
    assert!(!told.contains("base "), "{told}");
    assert_eq!(env.imgctl(["cat", "team/cluster:v1:/base"]).ok().stdout(), "below");
    assert_eq!(env.imgctl(["cat", "team/cluster:v1:/own"]).ok().stdout(), "mine");
    let labels = |name: &str| {
        let config =
            env.imgctl(["inspect", "-f", "{{json .OCIv1.Config.Labels}}", name]).ok().json();
        (config["name"].clone(), config["n"].clone(), config["team"].clone())
    };
    assert_eq!(labels("team/db:v1"), (json!("db"), json!("3"), json!("a")));
    assert_eq!(labels("team/web:v1"), (json!("web"), json!("2"), json!("a")));
    // A second time, everything is there; with another variable, only names change.
    let words = ["--json", "bake", "--var", "VERSION=v2", "--metadata-file", "meta.json", "apps"];
    let again = env.imgctl(words).ok().json();
    assert_eq!(again["targets"]["app-db"]["names"], json!(["localhost/team/db:v2"]));
    assert_eq!(again["targets"]["app-db"]["cachedSteps"], 1);
    let metadata: Value =
        serde_json::from_str(&fs::read_to_string(env.path("meta.json")).unwrap()).unwrap();
    assert_eq!(metadata["app-web"]["image.name"], "localhost/team/web:v2");
    env.imgctl(["inspect", "team/cluster:v2"]).fails(NOT_FOUND);
}

/// Two targets that wait for each other must run at the same time; what they have in common runs once, even
/// without a cache, and every step names its target.
#[test]
fn targets_are_built_side_by_side_and_share_their_steps() {
    if !crate::common::needs_root() {
        return;
    }
    let env = TestEnv::new();
    fs::create_dir_all(env.path("bin")).unwrap();
    fs::copy("/bin/busybox", env.path("bin/busybox")).expect("no busybox: run scripts/setup");
    std::os::unix::fs::symlink("busybox", env.path("bin/sh")).unwrap();
    let meet = |own: &str, other: &str| {
        format!(
            "FROM common AS {own}\nRUN --mount=type=cache,id=meet,target=/m busybox touch /m/{own}; \
             for i in $(busybox seq 600); do [ -e /m/{other} ] && exit 0; busybox sleep 0.1; done; exit 1\n"
        )
    };
    let common = "FROM scratch AS common\nCOPY bin /bin\nRUN busybox cat /proc/sys/kernel/random/uuid >/id\n";
    env.write("Dockerfile", format!("{common}{}{}", meet("a", "b"), meet("b", "a")));
    env.write(
        "docker-bake.hcl",
        "group \"default\" { targets = [\"b\", \"a\"] }\n\
         target \"a\" {\n target = \"a\"\n tags = [\"localhost/a\"]\n}\n\
         target \"b\" {\n target = \"b\"\n tags = [\"localhost/b\"]\n}\n",
    );
    let mut ids = Vec::new();
    for no_cache in [false, true] {
        if no_cache {
            // Without a cache, a build empties its cache mounts, for which it waits until nobody has them.
            env.write("Dockerfile", format!("{common}FROM common AS a\nFROM common AS b\n"));
        }
        let flag = format!("--no-cache={no_cache}");
        let ran = env.imgctl(["bake", "--progress=plain", &flag]).ok();
        let told = ran.stderr();
        for step in ["[a common 2/2] RUN", "[b common 2/2] RUN"] {
            assert!(told.contains(step), "{told}");
        }
        let names: Vec<String> = ran.stdout().lines().map(|line| line[..2].to_owned()).collect();
        assert_eq!(names, ["b ", "a "]);
        let id = |name: &str| env.imgctl(["cat", name]).ok().stdout();
        assert_eq!(id("a:/id"), id("b:/id"));
        ids.push(id("a:/id"));
    }
    assert_ne!(ids[0], ids[1]);
}

/// A target that fails is named, and no further one begins.
#[test]
fn the_first_target_that_fails_ends_the_bake() {
    let env = filled();
    env.write(
        "x.hcl",
        "group \"default\" { targets = [\"good\", \"bad\", \"after\"] }\n\
         target \"good\" {\n dockerfile-inline = \"FROM scratch\\nCOPY own /\\n\"\n tags = [\"localhost/good\"]\n}\n\
         target \"bad\" {\n dockerfile-inline = \"FROM scratch\\nCOPY absent /\\n\"\n}\n\
         target \"after\" {\n dockerfile-inline = \"FROM bad\\n\"\n contexts = { bad = \"target:bad\" }\n \
         tags = [\"localhost/after\"]\n}\n",
    );
    let told = env.imgctl(["bake", "-f", "x.hcl"]).fails(NOT_FOUND).stderr();
    assert!(told.contains("cannot build the target `bad`"), "{told}");
    env.imgctl(["inspect", "localhost/after"]).fails(NOT_FOUND);
}

#[test]
fn what_would_be_built_is_printed_as_a_bake_file() {
    let env = filled();
    let all = printed(&env, &[]);
    assert_eq!(all["group"]["default"]["targets"], json!(["cluster", "apps"]));
    assert_eq!(all["group"]["apps"]["targets"], json!(["app-web", "app-db"]));
    let names: Vec<&String> = all["target"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["app-db", "app-web", "base", "cluster"]);
    assert_eq!(all["target"]["cluster"]["args"], json!({"VERSION": "v1"}));
    // What is printed can be read again.
    env.write("again.json", all.to_string());
    assert_eq!(printed(&env, &["-f", "again.json"])["target"], all["target"]);
    let changed = printed(
        &env,
        &["apps", "--set", "*.args.N=9", "--set", "app-db.tags=x:1", "--set", "app-db.tags=x:2"],
    );
    assert_eq!(changed["target"]["app-web"]["args"]["N"], "9");
    assert_eq!(changed["target"]["app-db"]["tags"], json!(["x:1", "x:2"]));
    let list = env.imgctl(["bake", "--list=variables"]).ok().stdout();
    assert!(list.contains("VERSION") && list.contains("list(string)"), "{list}");
}

#[test]
fn compose_files_are_bake_files() {
    let env = filled();
    env.write(
        "compose.yaml",
        "services:\n  web.app:\n    image: localhost/c/web:${TAG:-v9}\n    build:\n      context: .\n      \
         target: app\n      args: [NAME=c, N=1]\n      additional_contexts: {base: 'service:db'}\n  db:\n    \
         build: {context: ., target: app, args: {NAME: d, N: 2}}\n  other: {image: busybox}\n",
    );
    let found = printed(&env, &["-f", "compose.yaml"]);
    assert_eq!(found["group"]["default"]["targets"], json!(["db", "web_app"]));
    assert_eq!(found["target"]["web_app"]["tags"], json!(["localhost/c/web:v9"]));
    assert_eq!(found["target"]["web_app"]["contexts"], json!({"base": "target:db"}));
    env.write(".env", "# versions\nMAJOR=v10 # the newest\nTAG=${MAJOR}\n");
    env.imgctl(["bake", "-f", "compose.yaml", "web_app"]).ok();
    assert_eq!(env.imgctl(["cat", "c/web:v10:/c"]).ok().stdout(), "mine");
    // What would change a service elsewhere is not passed over.
    for text in ["include: [x.yaml]\nservices: {}\n", "services: {a: {extends: {service: b}}}\n"] {
        env.write("compose.yaml", text);
        let told = env.imgctl(["bake", "-f", "compose.yaml"]).fails(USAGE).stderr();
        assert!(told.contains("imgctl does not follow"), "{told}");
    }
}

#[test]
fn mistakes_name_the_file_the_target_and_the_reason() {
    let env = filled();
    for (text, words, why) in [
        (
            "target \"a\" { args = { x = nope } }",
            &["a"][..],
            &["target `a`", "no variable nope"][..],
        ),
        ("target \"a\" { bogus = 1 }", &["a"], &["no attribute `bogus`"]),
        ("target \"a\" { tags = length(1) }", &["a"], &["tags: length"]),
        ("target \"a\" { inherits = [\"a\"] }", &["a"], &["inherit each other", "a -> a"]),
        ("target \"a\" { contexts = { b = \"target:a\" } }", &["a"], &["a -> a"]),
        ("target \"a.b\" {}", &["a"], &["`a.b` is not a name"]),
        ("variable \"v\" { default = v }", &["a"], &["needs its own value"]),
        (
            "function \"f\" {\n params = [x]\n result = f(x)\n}\ntarget \"a\" { tags = [f(1)] }",
            &["a"],
            &["nested more than"],
        ),
        ("target \"a\" {", &["a"], &["x.hcl is not a bake file"]),
        ("target \"a\" {}", &["b", "--set", "q.tags=1"], &["no target has a name like `q`"]),
        ("target \"a\" {}", &["a", "--set", "a.nope=1"], &["no attribute `nope`"]),
        ("target \"a\" {}", &["a", "--set", "a.args=1"], &["TARGET.ATTRIBUTE.KEY=VALUE"]),
        ("target \"a\" { matrix = { x = [1] } }", &["a"], &["a matrix needs a `name`"]),
    ] {
        env.write("x.hcl", text);
        let all = [&["bake", "--print", "-f", "x.hcl"], words].concat();
        let told = env.imgctl(all).fails(USAGE).stderr();
        for part in why {
            assert!(told.contains(part), "{text}: {told}");
        }
    }
    let told = env.imgctl(["bake", "clustr"]).fails(NOT_FOUND).stderr();
    assert!(told.contains("did you mean `cluster`?"), "{told}");
    let empty = TestEnv::new();
    let told = empty.imgctl(["bake"]).fails(NOT_FOUND).stderr();
    assert!(told.contains("docker-bake.hcl"), "{told}");
    // Somebody else may have written the file.
    env.write("x.hcl", "target \"a\" { entitlements = [\"security.insecure\"] }");
    let refused = env.imgctl(["bake", "-f", "x.hcl", "a"]);
    assert!(refused.stderr().contains("--allow security.insecure"), "{}", refused.stderr());
}

/// Files of a few hundred bytes that would take all memory or hours.
#[test]
fn expressions_that_grow_are_refused() {
    const TEXT: &str = "variable \"text\" { default = join(\"\", [for a in range(1000): \
                        join(\"\", [for b in range(1000): \"\\n\"])]) }\n";
    let env = TestEnv::new();
    let doubled = |first: &str, next: &dyn Fn(usize) -> String, count: usize| {
        let more =
            (1..count).map(|at| format!("variable \"v{at}\" {{ default = {} }}\n", next(at - 1)));
        format!("variable \"v0\" {{ default = {first} }}\n{}", more.collect::<String>())
    };
    let on_text = |expression: &str| format!("{TEXT}variable \"a\" {{ default = {expression} }}\n");
    let numbers = "for a in range(1000)";
    let files = [
        ("replace", on_text("strlen(replace(text, \"\", text))")),
        ("regex_replace", on_text("strlen(regex_replace(text, \"\", text))")),
        ("indent", on_text("strlen(indent(1000, text))")),
        ("join", on_text("strlen(join(text, range(1000)))")),
        ("jsonencode", on_text(&format!("jsonencode([{numbers}: text])"))),
        ("split", on_text(&format!("[{numbers}: split(\"\", text)]"))),
        ("lists", on_text(&format!("[{numbers}: [{numbers}: [{numbers}: a]]]"))),
        (
            "loops",
            on_text(&format!("length([{numbers}: length([{numbers}: length([{numbers}: a])])])")),
        ),
        ("copies", doubled("[1, 2]", &|at| format!("[v{at}, v{at}, v{at}, v{at}, v{at}]"), 12)),
        ("maps", doubled("{a = 1}", &|at| format!("{{a = v{at}, b = v{at}}}"), 30)),
    ];
    for (name, file) in files {
        env.write("docker-bake.hcl", &file);
        let (peak, ended, said) = measured(&env, ["bake", "--print"]);
        assert_eq!(ended.code(), Some(USAGE), "{name}: {said}");
        assert!(peak < 512 << 10, "{name}: {peak} KiB");
        let reasons = ["would take more than", "takes more than", "too large", "longer than"];
        assert!(reasons.iter().any(|reason| said.contains(reason)), "{name}: {said}");
    }
    // Adding one to so large a number changes nothing.
    let file = "variable \"a\" { default = length(range(10000000000000000, 10000000000000004)) }\n\
                target \"default\" { args = { A = a } }\n";
    env.write("docker-bake.hcl", file);
    env.imgctl(["bake", "--print"]).ok();
}
