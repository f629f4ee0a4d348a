//! Named contexts: what `--build-context` stands for, and where.

use super::Language;
use crate::common::needs_root;

#[test]
fn a_named_context_replaces_images_and_stages_of_that_name() {
    let language = Language::new();
    language.file("f", "stage");
    let other = language.env.write("other/f", "context");
    let other = other.parent().unwrap().display().to_string();
    // (Kubefile, name of the context)
    for (kubefile, name) in [
        ("FROM scratch AS low\nCOPY f /f\nFROM scratch\nCOPY --from=low /f /f\n", "low"),
        ("FROM scratch AS low\nCOPY f /f\nFROM scratch\nCOPY --from=0 /f /f\n", "low"),
        ("FROM scratch AS low\nCOPY f /f\nFROM low\n", "low"),
        ("FROM scratch\nCOPY --from=docker.io/library/low /f /f\n", "low"),
        ("FROM scratch\nCOPY --from=low:latest /f /f\n", "docker.io/library/low"),
        ("FROM low:latest\n", "low"),
        ("FROM low\n", "low:latest"),
        ("FROM docker.io/library/low:latest\n", "low"),
        ("FROM reg.io/team/low\n", "reg.io/team/low:latest"),
        // The stage that is built.
        ("FROM scratch AS low\nCOPY f /f\n", "low"),
    ] {
        let context = format!("--build-context={name}={other}");
        assert_eq!(language.built(kubefile, &[&context], "/f"), "context", "{name}: {kubefile}");
    }
    let elsewhere = format!("--build-context=low:2={other}");
    let kubefile = "FROM scratch AS low\nCOPY f /f\nFROM scratch\nCOPY --from=low /f /f\n";
    assert_eq!(language.built(kubefile, &[&elsewhere], "/f"), "stage");
    // Its ignore file counts, also if the directory is a base.
    language.env.write("other/.dockerignore", "secret\n");
    language.env.write("other/secret", "hush");
    let context = format!("--build-context=low={other}");
    let exported = language.exported("FROM low\n", &[&context]);
    assert!(exported.join("f").exists() && !exported.join("secret").exists());
}

#[test]
fn images_and_layouts_are_named_contexts_and_so_is_scratch() {
    let language = Language::new();
    language.file("f", "one");
    language.build("FROM scratch\nCOPY f /f\n", &["-t=team/low:v1"]).ok();
    let layout = language.env.path("layout").display().to_string();
    let to = format!("oci:{layout}:v1");
    language.env.imgctl(["copy", "-q", "localhost/team/low:v1", &to]).ok();
    language.file("f", "two");
    language.build("FROM scratch\nCOPY f /f\n", &["-t=team/low:v2"]).ok();
    let to = format!("oci:{layout}:v2");
    language.env.imgctl(["copy", "-q", "localhost/team/low:v2", &to]).ok();
    let digest = |number: usize| {
        let index = crate::common::json(&language.env.path("layout/index.json"));
        index["manifests"][number]["digest"].as_str().unwrap().to_owned()
    };
    let from = "FROM scratch\nCOPY --from=low /f /g\n";
    for (choice, expected) in [
        (":v1", "one"),
        (":v2", "two"),
        (&format!("@{}", digest(0)), "one"),
        (&format!("@{}", digest(1)), "two"),
        (&format!(":v2@{}", digest(0)), "one"),
    ] {
        let context = format!("--build-context=low=oci-layout://{layout}{choice}");
        assert_eq!(language.built(from, &[&context], "/g"), expected, "{choice}");
    }
    let context = format!("--build-context=low=oci-layout://{layout}:v3");
    let said = language.build(from, &[&context]);
    assert!(!said.success() && said.stderr().contains("tag or digest v3"), "{}", said.report());
    let context = "--build-context=low=docker-image://localhost/team/low:v1";
    assert_eq!(language.built(from, &[context], "/g"), "one");
    let context = "--build-context=team/low=docker-image://scratch";
    let exported = language.exported("FROM team/low\nCOPY f /only\n", &[context]);
    assert_eq!(std::fs::read_dir(exported).unwrap().count(), 1);
}

/// Only the base image says that the stage is needed.
#[test]
fn a_trigger_of_the_base_takes_files_from_a_stage() {
    let language = Language::new();
    language.file("f", "data");
    language.build("FROM scratch\nONBUILD COPY --from=assets /f /f\n", &["-t=trigger"]).ok();
    let stages = "FROM scratch AS low\nCOPY f /f\nFROM low AS assets\nFROM localhost/trigger\n";
    assert_eq!(language.built(stages, &[], "/f"), "data");
    let said = language.build("FROM localhost/trigger\n", &[]);
    assert!(!said.success() && said.stderr().contains("assets"), "{}", said.report());
}

#[test]
fn a_base_of_another_platform_is_taken_with_a_note() {
    let language = Language::new();
    language.file("f", "data");
    language.build("FROM scratch\nCOPY f /f\n", &["-t=foreign", "--platform=linux/s390x"]).ok();
    let ran = language.build("FROM localhost/foreign\nENV a=b\n", &["--platform=linux/amd64"]).ok();
    assert!(ran.stderr().contains("linux/s390x"), "{}", ran.report());
}

#[test]
fn caches_are_emptied_and_stages_run_again_when_asked() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let kubefile = "FROM localhost/shell\nARG N\nRUN --mount=type=cache,target=/k touch /k/$N; ls /k >/seen\n\
                    RUN --mount=type=cache,target=/k ls /k >/again\n";
    assert_eq!(language.built(kubefile, &["--build-arg=N=a"], "/seen"), "a");
    assert_eq!(language.built(kubefile, &["--build-arg=N=b"], "/seen"), "a\nb");
    assert_eq!(language.built(kubefile, &["--build-arg=N=c", "--no-cache"], "/seen"), "c");
    // Steps of one build share the cache.
    assert_eq!(language.content("/again"), "c");
    let kubefile = "FROM localhost/shell AS a\nRUN head -c 8 /dev/urandom >/a\n\
                    FROM localhost/shell AS b\nRUN head -c 8 /dev/urandom >/b\n\
                    FROM scratch\nCOPY --from=a /a /\nCOPY --from=b /b /\n";
    let read = |flags: &[&str]| {
        let exported = language.exported(kubefile, flags);
        ["a", "b"].map(|name| std::fs::read(exported.join(name)).unwrap())
    };
    let [a, b] = read(&[]);
    assert_eq!(read(&[]), [a.clone(), b.clone()]);
    let [same, other] = read(&["--no-cache-filter=B,missing"]);
    assert!(same == a && other != b);
}

#[test]
fn nothing_replaces_the_empty_image() {
    let language = Language::new();
    language.file("f", "content");
    language.env.write("other/g", "other");
    let other = format!("--build-context=scratch={}", language.env.path("other").display());
    language.build("FROM scratch\nCOPY f /f\n", &[&other]).ok();
    assert!(!language.env.imgctl(["cat", "app:/g"]).success());
}
