//! Which platform an image, a base and a source have, and what a base image leaves out.

use serde_json::{Value, json};

use super::Language;
use crate::common::json as read;

/// An image for two platforms whose `/who` says which one it is of.
fn with_index() -> Language {
    let language = Language::new();
    language.file("f", "content");
    language.file("amd64", "amd64");
    language.file("arm64", "arm64");
    let kubefile = "FROM scratch\nARG TARGETARCH\nCOPY $TARGETARCH /who\n";
    language.build(kubefile, &["-t=index", "--platform=linux/amd64,linux/arm64"]).ok();
    language
}

fn architecture(language: &Language) -> String {
    let config = language.env.imgctl(["inspect", "-f", "{{json .OCIv1}}", "app"]).ok().json();
    config["Architecture"].as_str().unwrap().to_owned()
}

#[test]
fn an_image_is_for_the_platform_asked_for_whatever_its_base_is_for() {
    let language = with_index();
    let kubefile = "FROM --platform=linux/amd64 localhost/index\nCOPY f /f\n";
    let (layout, files) = (language.env.path("layout"), language.env.path("files"));
    let flags = [
        "--platform=linux/amd64,linux/arm64".to_owned(),
        format!("--output=type=oci,tar=false,dest={}", layout.display()),
        format!("--output=type=local,dest={}", files.display()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    language.build(kubefile, &flags).ok();
    let index = read(&layout.join("index.json"));
    let digest = index["manifests"][0]["digest"].as_str().unwrap().replace(':', "/");
    let list = read(&layout.join("blobs").join(digest));
    let platforms: Vec<&Value> = list["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["platform"]["architecture"])
        .collect();
    assert_eq!(platforms, ["amd64", "arm64"]);
    for directory in ["linux_amd64", "linux_arm64"] {
        assert_eq!(std::fs::read_to_string(files.join(directory).join("who")).unwrap(), "amd64");
    }
    language.build(kubefile, &["--platform=linux/arm64"]).ok();
    assert_eq!(architecture(&language), "arm64");
    // Nobody asked for a platform: the base's counts.
    language.build("FROM --platform=linux/arm64 localhost/index\nCOPY f /f\n", &[]).ok();
    assert_eq!(architecture(&language), "arm64");
}

#[test]
fn an_image_to_copy_from_has_the_platform_of_the_build() {
    let language = with_index();
    let kubefile =
        "FROM --platform=linux/amd64 localhost/index\nCOPY --from=localhost/index /who /other\n";
    language.build(kubefile, &["--platform=linux/arm64"]).ok();
    assert_eq!(language.content("/other"), "arm64");
    assert_eq!(language.content("/who"), "amd64");
}

#[test]
fn one_platform_is_a_list_on_request() {
    let language = with_index();
    let files = language.env.path("files");
    let output = format!("--output=type=local,dest={}", files.display());
    let kubefile = "FROM scratch\nCOPY f /f\n";
    let media_type = || {
        language.env.imgctl(["inspect", "-t", "manifest", "app"]).ok().json()["mediaType"].clone()
    };
    language.build(kubefile, &["--build-arg=BUILDKIT_MULTI_PLATFORM=true", &output]).ok();
    assert_eq!(media_type(), json!("application/vnd.oci.image.index.v1+json"));
    let own = std::fs::read_dir(&files).unwrap().count();
    assert_eq!(own, 1);
    assert!(!files.join("f").exists());
    let both = "--platform=linux/amd64,linux/arm64";
    let ran = language.build(kubefile, &["--build-arg=BUILDKIT_MULTI_PLATFORM=0", both]);
    assert!(ran.stderr().contains("BUILDKIT_MULTI_PLATFORM is false"), "{}", ran.report());
    let _ = std::fs::remove_dir_all(&files);
    let split = format!("{output},platform-split=true");
    language.build(kubefile, &["--platform=linux/arm64", &split]).ok();
    assert!(files.join("linux_arm64/f").exists());
    let merged = format!("{output},platform-split=false");
    let ran = language.build(kubefile, &[both, &merged]);
    assert!(ran.stderr().contains("platform-split=false"), "{}", ran.report());
}

#[test]
fn a_base_image_without_a_path_gets_the_usual_one() {
    let language = Language::new();
    language.file("f", "content");
    language.build("FROM scratch\nCOPY f /f\n", &["-t=bare", "--unsetenv=PATH"]).ok();
    let env = |kubefile: &str| {
        language.build(kubefile, &[]).ok();
        let config = language.env.imgctl(["inspect", "-f", "{{json .OCIv1}}", "app"]).ok().json();
        config["Config"]["Env"].clone()
    };
    let usual = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(env("FROM localhost/bare\n"), json!([usual]));
    let own = usual.replace('=', "=/foo:");
    assert_eq!(env("FROM localhost/bare\nENV PATH=/foo:$PATH\n"), json!([own]));
    assert_eq!(env("FROM localhost/bare\nENV A=1\n"), json!([usual, "A=1"]));
}

#[test]
fn a_trigger_names_stages_of_the_file_that_will_use_it() {
    let language = Language::new();
    language.file("f", "content");
    for trigger in ["COPY --from=build /f /g", "COPY --from=0 /f /g"] {
        let kubefile = format!("FROM scratch AS build\nONBUILD {trigger}\nFROM build\n");
        language.build(&kubefile, &["-t=base", "--target=build"]).ok();
        let user = "FROM scratch AS build\nCOPY f /f\nFROM localhost/base\n";
        assert_eq!(language.built(user, &[], "/g"), "content", "{trigger}");
    }
}
