//! Addresses of ADD in `imgctl.lock`, and mirrors of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::remote::Repositories;
use crate::common::{Ran, TestEnv};

/// What a publisher serves, and a recipe that takes it.
struct Publisher {
    all: Repositories,
    url: String,
}

impl Publisher {
    /// The old time shows whether the image has that of the publisher.
    fn new() -> Self {
        let all = Repositories::new();
        let url = all.plain.clone();
        let publisher = Self { all, url };
        publisher.publish("v1/tool", "tool 1");
        publisher
    }

    fn publish(&self, name: &str, content: &str) {
        write_dated(&self.all.language.env.path("git").join(name), content, 1_000_000_000);
    }

    /// The recipe, in a directory of `env`.
    fn recipe(&self, env: &TestEnv, adds: &[String]) -> PathBuf {
        env.context("recipe", &format!("FROM scratch\n{}\n", adds.join("\n")), &[])
    }

    fn add(&self, name: &str) -> String {
        format!("ADD {}/{name} /bin/", self.url)
    }
}

fn write_dated(path: &Path, content: &str, seconds: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn build(env: &TestEnv, recipe: &Path, flags: &[&str]) -> Ran {
    let words = ["build", "--no-cache", "-t", "app"].iter().chain(flags).copied();
    env.imgctl(words.chain([recipe.to_str().unwrap()]))
}

fn tool_of(env: &TestEnv) -> String {
    env.imgctl(["cat", "app:/bin/tool"]).ok().stdout()
}

#[test]
fn the_lock_keeps_what_an_address_gave() {
    let publisher = Publisher::new();
    let env = TestEnv::new();
    let recipe = publisher.recipe(&env, &[publisher.add("v1/tool")]);
    let lock = recipe.join("imgctl.lock");
    let read = || fs::read_to_string(&lock).unwrap();
    build(&env, &recipe, &["--locked"]).fails(2);
    build(&env, &recipe, &[]).ok();
    assert!(!lock.exists(), "a build without a lock makes none");
    let first = build(&env, &recipe, &["--update-lock"]).ok().stdout();
    let url = format!("{}/v1/tool", publisher.url);
    let written = read();
    assert!(written.contains(&url) && written.contains("modified = \"2001-09-09T"), "{written}");
    assert_eq!(build(&env, &recipe, &["--locked"]).ok().stdout(), first);

    // A second address: a build adds it, --locked refuses it before anything is downloaded.
    publisher.publish("v1/more", "more");
    publisher.recipe(&env, &[publisher.add("v1/tool"), publisher.add("v1/more")]);
    let said = build(&env, &recipe, &["--locked"]).fails(2).stderr();
    assert!(said.contains("it lacks") && said.contains("v1/more"), "{said}");
    assert_eq!(read(), written);
    let said = build(&env, &recipe, &[]).ok().stderr();
    assert!(said.contains("v1/more is new"), "{said}");
    build(&env, &recipe, &["--locked"]).ok();

    // The publisher changes a file.
    publisher.publish("v1/tool", "tool 1, again");
    let written = read();
    for flags in [&[][..], &["--locked"]] {
        let said = build(&env, &recipe, flags).fails(4).stderr();
        for part in [&*url, "imgctl.lock has sha256:", "--update-lock"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(read(), written);
    }
    publisher.recipe(&env, &[publisher.add("v1/tool")]);
    let said = build(&env, &recipe, &["--update-lock"]).ok().stderr();
    assert!(said.contains("v1/tool was sha256:"), "{said}");
    assert!(said.contains("v1/more is no longer used"), "{said}");
    assert_eq!(tool_of(&env), "tool 1, again");
}

#[test]
fn a_lock_has_the_addresses_of_every_platform() {
    let publisher = Publisher::new();
    for name in ["v1/tool-amd64", "v1/tool-arm64", "v2/tool-amd64"] {
        publisher.publish(name, name);
    }
    let env = TestEnv::new();
    let add = |version: &str| {
        vec!["ARG TARGETARCH".to_owned(), publisher.add(&format!("{version}/tool-$TARGETARCH"))]
    };
    let recipe = publisher.recipe(&env, &add("v1"));
    build(&env, &recipe, &["--update-lock", "--platform=linux/amd64,linux/arm64"]).ok();
    let both = fs::read_to_string(recipe.join("imgctl.lock")).unwrap();
    // What one platform does not ask for is not out of date.
    for platform in ["linux/amd64", "linux/arm64"] {
        build(&env, &recipe, &["--locked", "--platform", platform]).ok();
    }
    build(&env, &recipe, &["--update-lock", "--platform=linux/arm64"]).ok();
    assert_eq!(fs::read_to_string(recipe.join("imgctl.lock")).unwrap(), both);
    publisher.recipe(&env, &add("v2"));
    build(&env, &recipe, &["--update-lock", "--platform=linux/amd64"]).ok();
    let text = fs::read_to_string(recipe.join("imgctl.lock")).unwrap();
    for (name, is_there) in
        [("v1/tool-amd64", false), ("v1/tool-arm64", true), ("v2/tool-amd64", true)]
    {
        assert_eq!(text.contains(name), is_there, "{name}: {text}");
    }
}

#[test]
fn a_mirror_gives_the_same_image_and_the_address_stays() {
    let publisher = Publisher::new();
    let env = TestEnv::new();
    let recipe = publisher.recipe(&env, &[publisher.add("v1/tool")]);
    build(&env, &recipe, &["--update-lock"]).ok();
    let lock = fs::read_to_string(recipe.join("imgctl.lock")).unwrap();
    let digest = |env: &TestEnv| {
        env.imgctl(["inspect", "app", "--format", "{{.FromImageDigest}}"]).ok().stdout()
    };
    let original = digest(&env);
    let (url, files) = (publisher.url.clone(), env.path("mirror"));
    write_dated(&files.join("here/v1/tool"), "tool 1", 1_700_000_000);
    let second = Repositories::new();
    write_dated(&second.language.env.path("git/k/v1/tool"), "tool 1", 1_700_000_000);
    let served = format!("{}/k/", second.plain);
    drop(publisher);

    let offline = build(&env, &recipe, &["--locked"]).fails(7).stderr();
    assert!(offline.contains("cannot download"), "{offline}");
    let directory = files.join("here").display().to_string();
    let scheme = files.display().to_string();
    let _ = std::os::unix::fs::symlink("here", files.join(url.trim_start_matches("http://")));
    for mirror in [
        format!("{url}/={directory}"),
        format!("{url}=file://{directory}"),
        format!("{url}={served}"),
        format!("http://={scheme}"),
    ] {
        // A store of its own: nothing comes from a cache.
        let other = TestEnv::new();
        build(&other, &recipe, &["--locked", "--mirror", &mirror]).ok();
        assert_eq!(digest(&other), original, "{mirror}");
        assert_eq!(fs::read_to_string(recipe.join("imgctl.lock")).unwrap(), lock);
    }
    // In the user's file, relative to it; and for bake.
    let toml = format!("[[mirror]]\nfrom = \"{url}\"\nto = \"../../mirror/here\"\n");
    env.write(".config/imgctl/mirrors.toml", toml);
    let statement = env.path("provenance.json");
    build(&env, &recipe, &["--locked", "--provenance", statement.to_str().unwrap()]).ok();
    let statement = fs::read_to_string(statement).unwrap();
    assert!(statement.contains(&format!("{url}/v1/tool")), "{statement}");
    assert!(!statement.contains("mirror"), "{statement}");
    fs::remove_file(env.path(".config/imgctl/mirrors.toml")).unwrap();
    let bake = format!(
        "target \"default\" {{\n context = \"{}\"\n tags = [\"app\"]\n}}\n",
        recipe.display()
    );
    let bake = env.write("docker-bake.hcl", bake);
    let bake = |flags: &[&str]| {
        let words = ["bake", "--no-cache", "-f", bake.to_str().unwrap()];
        env.imgctl(words.iter().chain(flags).copied())
    };
    bake(&[]).fails(7);
    bake(&["--mirror", &format!("{url}={directory}")]).ok();
    assert_eq!(digest(&env), original);
}

#[test]
fn a_mirror_that_lies_or_lacks_a_file_fails_and_nothing_else_is_asked() {
    let publisher = Publisher::new();
    let env = TestEnv::new();
    let sum = |text: &str| {
        let file = env.write("summed", text);
        let sum = Ran::new(crate::common::tool("sha256sum", [file])).ok().stdout();
        format!("sha256:{}", sum.split(' ').next().unwrap())
    };
    let right = sum("tool 1");
    let mirror = format!("{}={}", publisher.url, env.path("lies").display());
    let flags = ["--mirror", &*mirror];
    let checked = format!("ADD --checksum={right} {}/v1/tool /bin/", publisher.url);
    let recipe = publisher.recipe(&env, std::slice::from_ref(&checked));
    let said = build(&env, &recipe, &flags).fails(3).stderr();
    assert!(said.contains("from the mirror"), "{said}");
    env.write("lies/v1/tool", "tool 0");
    let said = build(&env, &recipe, &flags).fails(4).stderr();
    for part in ["v1/tool from the mirror", &right, &sum("tool 0"), "that of the publisher"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let recipe = publisher.recipe(&env, &[publisher.add("v1/tool")]);
    build(&env, &recipe, &["--update-lock"]).ok();
    let said = build(&env, &recipe, &flags).fails(4).stderr();
    for part in ["v1/tool from the mirror", "imgctl.lock has", "correct the mirror"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Links and encoded slashes stay in the directory.
    env.write("secret", "hush");
    let _ = std::os::unix::fs::symlink("../../secret", env.path("lies/v1/link"));
    for name in ["v1/link", "%2e%2e/secret", "v1/..%2f..%2fsecret"] {
        let recipe = publisher.recipe(&env, &[publisher.add(name)]);
        let ran = build(&env, &recipe, &flags);
        assert!(!ran.success() && !ran.report().contains("hush"), "{name}: {}", ran.report());
    }
    for wrong in ["x", "ftp://a=/b", &format!("{}=", publisher.url)] {
        build(&env, &recipe, &["--mirror", wrong]).fails(2);
    }
    env.write(".config/imgctl/mirrors.toml", "[[mirror]]\nfrom = 1\n");
    let said = build(&env, &recipe, &[]).fails(2).stderr();
    assert!(said.contains("mirrors.toml") && said.contains("[[mirror]]"), "{said}");
}

#[test]
fn a_locked_repository_stays_at_its_commit_and_may_come_from_a_mirror() {
    let all = Repositories::new();
    let env = &all.language.env;
    let first = all.commit("a.git", "main");
    let url = format!("{}/a.git", all.served);
    let recipe = env.context("recipe", &format!("FROM scratch\nADD {url}#main /r/\n"), &[]);
    let content = || env.imgctl(["cat", "app:/r/f"]).ok().stdout();
    build(env, &recipe, &["--update-lock"]).ok();
    let lock = fs::read_to_string(recipe.join("imgctl.lock")).unwrap();
    assert!(lock.contains(&format!("{url}#main")) && lock.contains(&first), "{lock}");

    let work = env.path("work-a.git");
    fs::write(work.join("f"), "three").unwrap();
    all.git(&work, &["commit", "-qam", "three"]);
    all.publish("a.git");
    build(env, &recipe, &["--locked"]).ok();
    assert_eq!(content(), "two");
    let said = build(env, &recipe, &["--update-lock"]).ok().stderr();
    assert!(said.contains(&format!("was commit {first}")), "{said}");
    assert_eq!(content(), "three");

    let (mirror, plain) = (env.path("git").display().to_string(), all.plain.clone());
    let gone = all.served.replace("127.0.0.1", "localhost.invalid");
    let recipe = env.context("gone", &format!("FROM scratch\nADD {gone}/a.git#main /r/\n"), &[]);
    for to in [&mirror, &plain] {
        build(env, &recipe, &["--mirror", &format!("{gone}={to}")]).ok();
        assert_eq!(content(), "three", "{to}");
    }
}

#[test]
fn a_lock_is_verified_with_what_the_publisher_says() {
    let publisher = Publisher::new();
    let env = TestEnv::new();
    let sum = |text: &str| {
        let file = env.write("summed", text);
        let sum = Ran::new(crate::common::tool("sha256sum", [file])).ok().stdout();
        sum.split(' ').next().unwrap().to_owned()
    };
    for name in ["v1/listed", "v1/alone", "v1/silent", "v2/old", "v2/signed"] {
        publisher.publish(name, name);
    }
    let add = |name: &str| publisher.add(name);
    let names = ["v1/listed", "v1/alone", "v1/silent", "v2/old", "v2/signed"];
    let recipe = publisher.recipe(&env, &names.map(add));
    let path = recipe.to_str().unwrap();
    let said = env.imgctl(["lock", path]).fails(3).stderr();
    assert!(said.contains("--update-lock"), "{said}");
    build(&env, &recipe, &["--update-lock"]).ok();
    let shown = env.imgctl(["lock", path]).ok().stdout();
    assert!(shown.contains(&sum("v1/listed")) && shown.contains("v2/old"), "{shown}");

    publisher.publish("v1/SHA256SUMS", &format!("{}  ./listed\n", sum("v1/listed")));
    publisher.publish("v1/alone.sha256", &sum("v1/alone"));
    publisher.publish("v2/old.sha256sum", &format!("{} *old\n", sum("v2/old")));
    let result = |name: &str, ran: &Ran| {
        let table = ran.stdout();
        let line = table.lines().find(|line| line.contains(&format!("{name} "))).unwrap();
        line.to_owned()
    };
    let ran = env.imgctl(["lock", "--verify", path]).ok();
    for (name, words) in [
        ("v1/listed", "v1/SHA256SUMS says"),
        ("v1/alone", "v1/alone.sha256 says"),
        ("v1/silent", "has no checksum file"),
        ("v2/old", "v2/old.sha256sum says"),
    ] {
        assert!(result(name, &ran).contains(words), "{}", ran.report());
    }
    // The mirror's files count in place of the publisher's.
    let mirror = format!("{}={}", publisher.url, env.path("empty").display());
    fs::create_dir(env.path("empty")).unwrap();
    let ran = env.imgctl(["lock", "--verify", "--mirror", &mirror, path]).ok();
    assert!(result("v1/listed", &ran).contains("has no checksum file"), "{}", ran.report());

    // Another file was published under the same name, with its checksum.
    publisher.publish("v2/old.sha256sum", &format!("{} *old\n", sum("new")));
    let ran = env.imgctl(["lock", "--verify", path]).fails(10);
    assert!(result("v2/old", &ran).contains(&format!("sha256:{}", sum("new"))), "{}", ran.report());
    assert!(ran.stderr().contains("1 address of "), "{}", ran.report());
    let found = env.imgctl(["lock", "--verify", "--json", path]).fails(10).json();
    assert_eq!(found["addresses"][3]["result"], "differs", "{found}");

    // Signed statements count where there are any.
    let mut generate = env.command(["key", "generate", "--output-key-prefix", "key"]);
    generate.env("COSIGN_PASSWORD", "");
    Ran::new(generate).ok();
    let statement = |digest: &str| {
        serde_json::json!({"_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "f", "digest": {"sha256": digest}}],
            "predicateType": "https://slsa.dev/provenance/v1", "predicate": {}})
        .to_string()
    };
    let (key, public) = (env.path("key.key"), env.path("key.pub"));
    let sign = |name: &str, content: &str| {
        let file = env.write("statement", statement(&sum(content)));
        let bundle = env.path("git-bundle");
        let words =
            ["attest-blob", "--statement", file.to_str().unwrap(), "--key", key.to_str().unwrap()];
        let words = words.iter().copied().chain(["--bundle", bundle.to_str().unwrap()]);
        env.imgctl(words).ok();
        publisher.publish(&format!("{name}.sigstore.json"), &fs::read_to_string(&bundle).unwrap());
    };
    publisher.publish("v2/old.sha256sum", &format!("{} *old\n", sum("v2/old")));
    sign("v2/signed", "v2/signed");
    let words = ["lock", "--verify", "--key", public.to_str().unwrap(), path];
    let ran = env.imgctl(words).ok();
    assert!(result("v2/signed", &ran).contains("signed: "), "{}", ran.report());
    sign("v2/signed", "something else");
    let ran = env.imgctl(words).fails(10);
    assert!(result("v2/signed", &ran).contains("NOT SIGNED"), "{}", ran.report());
}
