//! Names, platforms, formats and flags of a build as docker, buildx and buildah have them.

use std::path::Path;

use serde_json::Value;

use super::Language;
use crate::common::{Ran, json, tool};

const COPY: &str = "FROM scratch\nCOPY f /f\n";

/// The `manifest.json` of an archive.
fn docker_manifest(archive: &Path) -> Value {
    Ran::new(tool("tar", ["xOf", archive.to_str().unwrap(), "manifest.json"])).ok().json()
}

fn filled() -> Language {
    let language = Language::new();
    language.file("f", "content");
    language
}

#[test]
fn a_tar_of_several_platforms_has_a_directory_for_each() {
    let language = filled();
    let tar = language.env.path("out.tar");
    let output = format!("--output=type=tar,dest={}", tar.display());
    let members = || Ran::new(tool("tar", ["tf", tar.to_str().unwrap()])).ok().stdout();
    language.build(COPY, &["--platform=linux/amd64,linux/arm/v7", &output]).ok();
    let names = members();
    let names: Vec<&str> = names.lines().map(|name| name.trim_end_matches('/')).collect();
    assert_eq!(names, ["linux_amd64", "linux_amd64/f", "linux_arm_v7", "linux_arm_v7/f"]);
    language.build(COPY, &["--platform=linux/arm64", &output]).ok();
    assert!(members().lines().any(|name| name == "f"), "{}", members());
}

#[test]
fn an_output_names_the_image_in_its_archive() {
    let language = filled();
    let (tar, layout) = (language.env.path("d.tar"), language.env.path("layout"));
    let docker = format!("--output=type=docker,dest={},name=reg.io/app:v1", tar.display());
    let oci = format!(
        "--output=type=oci,tar=false,dest={},\"name=reg.io/app:v2,reg.io/app:v3\"",
        layout.display()
    );
    language.build(COPY, &[&docker, &oci]).ok();
    let manifest = docker_manifest(&tar);
    assert_eq!(manifest[0]["RepoTags"], serde_json::json!(["reg.io/app:v1"]));
    let index = json(&layout.join("index.json"));
    let names: Vec<&str> = (0..2)
        .map(|at| index["manifests"][at]["annotations"]["io.containerd.image.name"].as_str())
        .map(Option::unwrap)
        .collect();
    assert_eq!(names, ["reg.io/app:v2", "reg.io/app:v3"]);
    // Without names, those of the image.
    let output = format!("--output=type=docker,dest={}", tar.display());
    language.build(COPY, &[&output]).ok();
    let manifest = docker_manifest(&tar);
    assert_eq!(manifest[0]["RepoTags"], serde_json::json!(["localhost/app:latest"]));
    assert!(!language.env.imgctl(["inspect", "reg.io/app:v1"]).success());
}

#[test]
fn dockers_format_takes_a_base_with_zstd_layers() {
    let language = filled();
    language.build(COPY, &["-t=base"]).ok();
    let from = "FROM base\nCOPY f /g\n";
    let manifest = || language.env.imgctl(["inspect", "-t", "manifest", "app"]).ok().stdout();
    language.build(from, &["--format=docker"]).ok();
    let first = manifest();
    assert!(!first.contains("zstd") && first.matches("diff.tar.gzip").count() == 2, "{first}");
    assert_eq!([language.content("/f"), language.content("/g")], ["content", "content"]);
    // The bytes depend on the content alone, and what is there is not made again.
    language.build(from, &["--format=docker", "--compression=gzip", "--no-cache"]).ok();
    assert_eq!(manifest(), first);
    let said = language.build(from, &["--format=docker", "--compression=zstd"]);
    assert!(!said.success() && said.stderr().contains("no zstd layers"), "{}", said.report());
}

#[test]
fn the_local_platform_is_this_machines() {
    let language = filled();
    let inspected =
        |format: &str| language.env.imgctl(["inspect", "-f", format, "app"]).ok().stdout();
    language.build(COPY, &[]).ok();
    let own = inspected("{{.OCIv1.Architecture}}");
    for platform in ["local", "Local", " local"] {
        language.build(COPY, &["--platform", platform]).ok();
        assert_eq!(inspected("{{.OCIv1.Architecture}}"), own, "{platform}");
    }
}

#[test]
fn annotations_may_name_their_document_and_platform() {
    let language = filled();
    let flags = [
        "--annotation=manifest,manifest:both=1",
        "--annotation=manifest[linux/arm64]:arm=1",
        "--annotation=manifest[linux/amd64]:amd=1",
        "--annotation=own:name=1",
        "--annotation=",
    ];
    language.build(COPY, &[&flags[..], &["--platform=linux/arm64"]].concat()).ok();
    let manifest = language.env.imgctl(["inspect", "-t", "manifest", "app"]).ok().stdout();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let annotations = manifest["annotations"].as_object().unwrap();
    for (name, expected) in [("both", true), ("arm", true), ("amd", false), ("own:name", true)] {
        assert_eq!(annotations.contains_key(name), expected, "{name}: {annotations:?}");
    }
    for place in ["index", "index,manifest", "manifest-descriptor", "index-descriptor[linux/arm64]"]
    {
        let flag = format!("--annotation={place}:k=v");
        let said = language.build(COPY, &[&flag]);
        assert!(said.stderr().contains("a build annotates manifests"), "{}", said.report());
    }
}

#[test]
fn flags_of_docker_and_buildah_are_taken() {
    let language = filled();
    for flags in [
        &["--allow=network.host"][..],
        &["--allow", "network.host,security.insecure"],
        &["--target="],
        &["--progress=tty"],
        &["--progress=rawjson"],
        &["--progress=quiet"],
        &["--call=check"],
        &["--call=build"],
        &["--call="],
        &["--check=false"],
        &["--no-cache=true"],
        &["--no-cache=false"],
        &["--squash=false"],
        &["--source-date-epoch=1"],
        &["--rewrite-timestamp"],
        &["--rewrite-timestamp=true"],
        &["--secret=", "--ssh=", "--output=", "--add-host=", "--platform="],
    ] {
        language.build(COPY, flags).ok();
    }
    language.build(COPY, &["--source-date-epoch=86400"]).ok();
    let created = language.env.imgctl(["inspect", "-f", "{{json .OCIv1}}", "app"]).ok().stdout();
    assert!(created.contains("1970-01-02"), "{created}");
    // --call=check builds nothing.
    language.build(COPY, &["--call=check", "-t=unbuilt"]).ok();
    assert!(!language.env.imgctl(["inspect", "unbuilt"]).success());
    for flags in [["--call=advice"], ["--allow=device"], ["--check=maybe"]] {
        assert!(!language.build(COPY, &flags).success(), "{flags:?}");
    }
}

#[test]
fn an_image_of_docker_hub_has_one_name_in_the_store() {
    let language = filled();
    for built in ["docker.io/zed:1", "index.docker.io/zed:1", "docker.io/library/zed:1"] {
        language.build(COPY, &["-t", built]).ok();
        for name in ["docker.io/zed:1", "docker.io/library/zed:1", "index.docker.io/library/zed:1"]
        {
            language.env.imgctl(["inspect", name]).ok();
        }
        language.env.imgctl(["rmi", built]).ok();
        assert!(!language.env.imgctl(["inspect", "docker.io/library/zed:1"]).success(), "{built}");
    }
}

#[test]
fn a_saved_image_is_an_archive_for_docker_too() {
    let language = filled();
    language.build(COPY, &[]).ok();
    let tar = language.env.path("app.tar");
    language.env.imgctl(["save", "app", "-o", tar.to_str().unwrap()]).ok();
    let manifest = docker_manifest(&tar);
    assert_eq!(manifest[0]["RepoTags"], serde_json::json!(["localhost/app:latest"]));
    let listed = Ran::new(tool("tar", ["tf", tar.to_str().unwrap()])).ok().stdout();
    for path in [&manifest[0]["Config"], &manifest[0]["Layers"][0]] {
        assert!(listed.lines().any(|line| Some(line) == path.as_str()), "{path}: {listed}");
    }
}
