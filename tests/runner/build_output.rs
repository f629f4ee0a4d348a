//! From a build to where its result is wanted, in one command: pushes under names and by digest, files
//! and archives, manifest lists, attestations. docker-registry, skopeo and tar read what arrives.

use std::path::Path;

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, json, tool};
use imgctl_base::testing::free_port;
use serde_json::Value;

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NETWORK: i32 = 7;

const KUBEFILE: &str =
    "FROM scratch\nARG TOKEN\nARG VERSION\nCOPY bin /bin\nCOPY etc /etc\nCMD [\"/bin/x\"]\n";

/// An environment with the context `context`.
fn filled() -> TestEnv {
    let env = TestEnv::new();
    env.context("context", KUBEFILE, &[("bin/x", "#!/bin/sh\n"), ("etc/conf", "a=b\n")]);
    env
}

fn build(env: &TestEnv, words: &[&str]) -> Ran {
    let all = ["build"].iter().chain(words).chain(&["context"]);
    env.imgctl(all)
}

fn skopeo(arguments: &[&str]) -> Ran {
    let words = ["--insecure-policy"].iter().chain(arguments);
    Ran::new(tool("skopeo", words))
}

/// The manifest of an image in a registry, as skopeo gets it.
fn raw(name: &str) -> Value {
    skopeo(&["inspect", "--raw", "--tls-verify=false", &format!("docker://{name}")]).ok().json()
}

fn digest_in_registry(name: &str) -> String {
    let name = format!("docker://{name}");
    let words = ["inspect", "--no-tags", "--format", "{{.Digest}}", "--tls-verify=false", &name];
    skopeo(&words).ok().stdout()
}

fn tags(repository: &str) -> Vec<String> {
    let ran = skopeo(&["list-tags", "--tls-verify=false", &format!("docker://{repository}")]);
    if !ran.success() {
        return Vec::new();
    }
    let tags = ran.json()["Tags"].clone();
    let mut tags: Vec<String> =
        serde_json::from_value::<Option<_>>(tags).unwrap().unwrap_or_default();
    tags.sort();
    tags
}

/// An address where nothing listens.
fn nowhere() -> String {
    format!("127.0.0.1:{}", free_port())
}

#[test]
fn a_build_is_pushed_under_all_its_names() {
    let (env, one, two) = (filled(), Registry::start(), Registry::start());
    let names = [
        format!("{}/team/x:v1", one.host),
        format!("{}/team/x:v2", one.host),
        format!("{}/mirror/x:v1", two.host),
    ];
    let words: Vec<&str> = ["--push", "--metadata-file", "meta.json"]
        .into_iter()
        .chain(names.iter().flat_map(|name| ["-t", name.as_str()]))
        .collect();
    let ran = build(&env, &words).ok();
    let meta = json(&env.path("meta.json"));
    for name in &names {
        assert_eq!(digest_in_registry(name), meta["containerimage.digest"].as_str().unwrap());
        assert!(ran.stderr().contains(&format!("pushed {name}")), "{}", ran.stderr());
    }
    one.assert_serves("team/x:v2");
    // The last line is the image's ID, as for every build.
    let id = meta["containerimage.config.digest"].as_str().unwrap();
    assert_eq!(format!("sha256:{}", ran.stdout()), id);
    assert_eq!(env.imgctl(["images", "-q", &names[0]]).ok().stdout(), ran.stdout()[..12]);

    // Again: everything is there.
    let words: Vec<&str> = ["--json"].into_iter().chain(words).collect();
    let again = build(&env, &words).ok().json();
    for place in again["pushed"].as_array().unwrap() {
        assert_eq!((&place["upToDate"], &place["bytesCopied"]), (&true.into(), &0.into()));
    }
    assert_eq!(again["pushed"][2]["name"], names[2].as_str());
}

#[test]
fn what_cannot_be_pushed_everywhere_gets_no_name_anywhere() {
    let (env, registry) = (filled(), Registry::start());
    let (here, gone) = (format!("{}/team/x:v1", registry.host), format!("{}/x:v1", nowhere()));
    let ran = build(&env, &["--push", "--retry", "1", "-t", &here, "-t", &gone]).fails(NETWORK);
    assert!(ran.stderr().contains("the image is built, but not pushed"), "{}", ran.stderr());
    assert!(ran.stderr().contains(&gone[..gone.len() - 3]), "{}", ran.stderr());
    assert!(tags(&format!("{}/team/x", registry.host)).is_empty());
    // An old name keeps its image.
    build(&env, &["--push", "-t", &here]).ok();
    let old = digest_in_registry(&here);
    env.write("context/etc/conf", "a=c\n");
    build(&env, &["--push", "--retry", "1", "-t", &here, "-t", &gone]).fails(NETWORK);
    assert_eq!(digest_in_registry(&here), old);

    // What has no registry is refused before anything is built.
    for words in [
        &["--push", "-t", "team/x:v1"][..],
        &["--push"],
        &["-o", "type=registry"],
        &["-o", "type=registry,name=x"],
    ] {
        let ran = build(&env, words).fails(USAGE);
        assert!(!ran.stderr().contains("building from"), "{}", ran.stderr());
    }
}

/// What a matrix build does: each machine pushes its platform by digest, then one joins them.
#[test]
fn platforms_of_several_machines_need_no_shared_tag() {
    let registry = Registry::start();
    let repository = format!("{}/team/x", registry.host);
    let mut pushed = Vec::new();
    for (arch, spec) in [
        ("amd64", format!("type=registry,name={repository},push-by-digest=true")),
        ("arm64", "type=image,push-by-digest=true,name-canonical=true,push=true".to_owned()),
    ] {
        let env = filled();
        let platform = format!("linux/{arch}");
        let mut words = vec!["-q", "--platform", &platform, "--metadata-file", "meta.json"];
        words.extend(["-o", &spec]);
        if arch == "arm64" {
            words.extend(["-t", &repository]);
        }
        let ran = build(&env, &words).ok();
        let meta = json(&env.path("meta.json"));
        let digest = meta["containerimage.digest"].as_str().unwrap();
        assert_eq!(ran.stdout(), format!("{repository}@{digest}"));
        assert_eq!(raw(&ran.stdout())["layers"].as_array().unwrap().len(), 2);
        pushed.push(ran.stdout());
    }
    assert!(tags(&repository).is_empty());
    let env = TestEnv::new();
    let list = format!("{repository}:v1");
    env.imgctl(["manifest", "create", &list, &pushed[0], &pushed[1]]).ok();
    env.imgctl(["manifest", "push", "--all", &list, &format!("docker://{list}")]).ok();
    let index = raw(&list);
    for (entry, (name, arch)) in
        index["manifests"].as_array().unwrap().iter().zip(pushed.iter().zip(["amd64", "arm64"]))
    {
        assert_eq!(entry["platform"]["architecture"], arch);
        assert!(name.ends_with(entry["digest"].as_str().unwrap()));
    }
    registry.assert_serves("team/x:v1");
}

#[test]
fn outputs_are_files_archives_and_streams() {
    let env = filled();
    build(&env, &["-t", "x:v1", "-o", "files", "-o", "type=tar,dest=files.tar"]).ok();
    assert_eq!(std::fs::read(env.path("files/etc/conf")).unwrap(), b"a=b\n");
    let listed = |file: &Path| {
        let words = [Path::new("tf"), file];
        Ran::new(tool("tar", words)).ok().stdout()
    };
    assert!(listed(&env.path("files.tar")).lines().any(|line| line == "etc/conf"));
    let stream = build(&env, &["-o", "-"]).ok();
    assert_eq!(stream.bytes(), std::fs::read(env.path("files.tar")).unwrap());

    let (oci, directory) = ("type=oci,dest=oci.tar", "type=oci,tar=false,dest=layout");
    let docker = "type=docker,dest=docker.tar";
    build(&env, &["-t", "x:v1", "-o", oci, "-o", directory, "-o", docker]).ok();
    let stream = build(&env, &["-t", "x:v1", "-o", "type=oci"]).ok();
    assert_eq!(stream.bytes(), std::fs::read(env.path("oci.tar")).unwrap());
    let config = env.config("x:v1");
    for (transport, path) in
        [("oci-archive", "oci.tar"), ("oci", "layout"), ("docker-archive", "docker.tar")]
    {
        let place = format!("{transport}:{}", env.path(path).display());
        assert_eq!(
            skopeo(&["inspect", "--config", &place]).ok().json()["config"],
            config["config"]
        );
    }
    // Of two platforms, each has its directory.
    let both = "linux/amd64,linux/arm64";
    build(&env, &["--platform", both, "-o", "type=local,dest=both", "-o", oci]).ok();
    assert!(env.path("both/linux_arm64/bin/x").exists() && env.path("both/linux_amd64").exists());
    for (words, why) in [
        (&["--platform", both, "-o", docker][..], "one platform"),
        (&["-o", "type=docker"], "docker load"),
        (&["-o", "type=s3,bucket=x"], "type=s3"),
        (&["-o", "dest=x,name=y"], "has no type"),
        (&["-o", "-", "-o", "type=oci"], "standard output"),
        (&["-o", "type=oci,what=1"], "what=1"),
    ] {
        let ran = build(&env, words).fails(USAGE);
        assert!(ran.stderr().contains(why), "{}", ran.stderr());
    }
}

#[test]
fn outputs_describe_the_image() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/team/x", registry.host);
    let spec = format!(
        "type=image,\"name={name}:a,{name}:b\",push=true,compression=gzip,force-compression=true,\
         oci-mediatypes=true,annotation.org.example.a=b"
    );
    let ran = build(&env, &["-o", &spec]).ok();
    assert!(ran.stderr().contains("force-compression has no effect"), "{}", ran.stderr());
    assert_eq!(tags(&name), ["a", "b"]);
    let manifest = raw(&format!("{name}:a"));
    assert_eq!(manifest["annotations"]["org.example.a"], "b");
    let gzip = "application/vnd.oci.image.layer.v1.tar+gzip";
    assert_eq!(manifest["layers"][0]["mediaType"], gzip);
    let docker = format!("type=registry,name={name}:d,oci-mediatypes=false");
    build(&env, &["-o", &docker]).ok();
    let manifest = raw(&format!("{name}:d"));
    assert_eq!(manifest["mediaType"], "application/vnd.docker.distribution.manifest.v2+json");
}

#[test]
fn builds_fill_a_manifest_list() {
    let (env, registry) = (filled(), Registry::start());
    let list = format!("{}/team/x:v1", registry.host);
    for platform in ["linux/amd64", "linux/arm64"] {
        build(&env, &["--manifest", &list, "--platform", platform]).ok();
    }
    let shown = env.imgctl(["manifest", "inspect", &list]).ok().json();
    let architectures: Vec<&str> = shown["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["platform"]["architecture"].as_str().unwrap())
        .collect();
    assert_eq!(architectures, ["amd64", "arm64"]);
    env.imgctl(["manifest", "push", "--all", &list, &format!("docker://{list}")]).ok();
    registry.assert_serves("team/x:v1");
    // Both platforms at once give the same list.
    build(&env, &["--manifest", "other:v1", "--platform", "linux/amd64,linux/arm64"]).ok();
    let other = env.imgctl(["manifest", "inspect", "other:v1"]).ok().json();
    assert_eq!(other["manifests"], shown["manifests"]);
    build(&env, &["--manifest", "same", "-t", "same"]).fails(USAGE);
}

#[test]
fn all_platforms_are_those_of_the_base_images() {
    let (env, registry) = (filled(), Registry::start());
    let base = |name: &str| format!("{}/base/{name}:v1", registry.host);
    let platforms = "linux/amd64,linux/arm64,linux/s390x";
    build(&env, &["--push", "-t", &base("three"), "--platform", platforms]).ok();
    let two = "linux/arm64,linux/amd64";
    build(&env, &["--push", "-t", &base("two"), "--platform", two]).ok();
    let kubefile = format!(
        "FROM {} AS tools\nFROM {}\nCOPY --from=tools /etc/conf /conf\n",
        base("two"),
        base("three")
    );
    let clean = TestEnv::new();
    clean.context("context", &kubefile, &[]);
    build(&clean, &["--all-platforms", "-t", "x:v1"]).ok();
    let index = clean.imgctl(["manifest", "inspect", "x:v1"]).ok().json();
    let built: Vec<&str> = index["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["platform"]["architecture"].as_str().unwrap())
        .collect();
    assert_eq!(built, ["arm64", "amd64"]);
    // Nothing to go by.
    let ran = build(&env, &["--all-platforms"]).fails(USAGE);
    assert!(ran.stderr().contains("--platform linux/amd64"), "{}", ran.stderr());
    build(&env, &["--all-platforms", "--platform", "linux/amd64"]).fails(USAGE);
}

/// The statements of an attestation manifest by their predicate types.
fn statements(env: &TestEnv, registry: &Registry, repository: &str, entry: &Value) -> Vec<Value> {
    let at = format!("{}/{repository}@{}", registry.host, entry["digest"].as_str().unwrap());
    let manifest = raw(&at);
    let layout = env.path("attestation");
    let _ = std::fs::remove_dir_all(&layout);
    let to = format!("dir:{}", layout.display());
    skopeo(&["copy", "--src-tls-verify=false", &format!("docker://{at}"), &to]).ok();
    let layers = manifest["layers"].as_array().unwrap().iter();
    layers
        .map(|layer| {
            assert_eq!(layer["mediaType"], "application/vnd.in-toto+json");
            let hex = layer["digest"].as_str().unwrap().trim_start_matches("sha256:");
            let statement = json(&layout.join(hex));
            let kind = &layer["annotations"]["in-toto.io/predicate-type"];
            assert_eq!(&statement["predicateType"], kind);
            statement
        })
        .collect()
}

#[test]
fn attestations_are_in_the_index_as_buildkit_has_them() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/team/x:v1", registry.host);
    let words = [
        "--push",
        "-t",
        &name,
        "--platform",
        "linux/amd64,linux/arm64",
        "--build-arg",
        "TOKEN=s3cret-value",
        "--build-arg",
        "VERSION=1.2",
        "--attest",
        "type=sbom",
        "--attest",
        "type=provenance,mode=max,builder-id=https://ci.example.com/1",
    ];
    build(&env, &words).ok();
    let index = raw(&name);
    let entries = index["manifests"].as_array().unwrap();
    assert_eq!(entries.len(), 4);
    for (image, attestation) in entries[..2].iter().zip(&entries[2..]) {
        let notes = &attestation["annotations"];
        assert_eq!(notes["vnd.docker.reference.type"], "attestation-manifest");
        assert_eq!(notes["vnd.docker.reference.digest"], image["digest"]);
        let unknown = serde_json::json!({"architecture": "unknown", "os": "unknown"});
        assert_eq!(attestation["platform"], unknown);
        let found = statements(&env, &registry, "team/x", attestation);
        assert_eq!(found.len(), 2);
        for statement in &found {
            let digest =
                format!("sha256:{}", statement["subject"][0]["digest"]["sha256"].as_str().unwrap());
            assert_eq!(image["digest"], digest.as_str());
            assert!(!statement.to_string().contains("s3cret-value"));
        }
        assert_eq!(found[0]["predicateType"], "https://spdx.dev/Document");
        assert!(found[0]["predicate"].to_string().contains("/etc/conf"));
        let provenance = &found[1]["predicate"];
        let parameters = &provenance["buildDefinition"]["externalParameters"];
        assert_eq!(parameters["buildArgs"]["VERSION"], "1.2");
        let builder = &provenance["runDetails"]["builder"]["id"];
        assert_eq!(builder, "https://ci.example.com/1");
    }
    registry.assert_serves("team/x:v1");

    // The same build gives the same index; mode=min names no build arguments.
    let digest = digest_in_registry(&name);
    let again = build(&env, &[&["--json"], &words[..]].concat()).ok().json();
    assert_eq!((&again["digest"], &again["pushed"][0]["upToDate"]), (&digest.into(), &true.into()));
    let least = format!("{}/team/x:min", registry.host);
    build(&env, &["--push", "-t", &least, "--provenance=true", "--build-arg", "VERSION=1.2"]).ok();
    let index = raw(&least);
    assert_eq!(index["manifests"].as_array().unwrap().len(), 2);
    let found = statements(&env, &registry, "team/x", &index["manifests"][1]);
    assert_eq!(found[0]["predicateType"], "https://slsa.dev/provenance/v1");
    assert!(!found[0].to_string().contains("buildArgs"));

    // Whoever pulls it, starts from it or exports it gets the image.
    let other = TestEnv::new();
    other.imgctl(["pull", &least]).ok();
    other.context("context", &format!("FROM {least}\nCOPY . /x\n"), &[("f", "f")]);
    build(&other, &["-t", "child:v1", "-o", "files"]).ok();
    assert!(other.path("files/bin/x").exists());
    let words =
        ["--provenance=mode=max", "--sbom=true", "-o", "described", "-o", "type=oci,dest=a.tar"];
    build(&env, &words).ok();
    assert!(env.path("described/provenance.json").exists());
    assert!(env.path("described/sbom.spdx.json").exists());
    let archive = format!("oci-archive:{}", env.path("a.tar").display());
    skopeo(&["copy", "--all", &archive, &format!("dir:{}", env.path("copied").display())]).ok();

    // No attestations, in the forms of CI actions.
    let ran = build(&env, &["--provenance=false", "--sbom=false", "-q", "--json"]).ok().json();
    assert_eq!(ran["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    build(&env, &["--attest", "type=provenance,disabled=true"]).ok();
    build(&env, &["--attest", "type=vex"]).fails(USAGE);
    build(&env, &["--attest", "type=provenance,mode=most"]).fails(USAGE);
    build(&env, &["--sbom=true", "--format", "docker"]).fails(USAGE);
    build(&env, &["--sbom=true", "--attest-form", "referrers"]).fails(USAGE);
}

#[test]
fn attestations_are_referrers_where_that_is_wanted() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/team/x:v1", registry.host);
    let words = ["--push", "-t", &name, "--sbom=true", "--provenance=mode=max"];
    build(&env, &[&words[..], &["--attest-form", "referrers"]].concat()).ok();
    let digest = digest_in_registry(&name);
    // docker-registry has no referrers API: they are at the fallback tag.
    let fallback = format!("{}/team/x:{}", registry.host, digest.replace(':', "-"));
    let referrers = raw(&fallback);
    let types: Vec<&str> = referrers["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["artifactType"].as_str().unwrap())
        .collect();
    assert_eq!(types, ["application/spdx+json", "application/vnd.in-toto+json"]);
    // Again changes nothing; both forms refer to the same image.
    build(&env, &[&words[..], &["--attest-form", "cosign"]].concat()).ok();
    assert_eq!(raw(&fallback), referrers);
    let both =
        build(&env, &[&words[..], &["--attest-form", "both", "--json"]].concat()).ok().json();
    assert_eq!(raw(&name)["manifests"][0]["digest"], digest.as_str());
    assert_eq!(both["manifests"][0]["digest"], digest.as_str());
    assert_eq!(raw(&fallback), referrers);
}

/// buildah takes what was pushed, with and without attestations.
#[test]
fn buildah_pulls_what_a_build_pushed() {
    let (env, registry) = (filled(), Registry::start());
    let name = format!("{}/team/x:v1", registry.host);
    build(&env, &["--push", "-t", &name, "--provenance=true"]).ok();
    let (root, run) = (env.path("buildah"), env.path("buildah-run"));
    let words = [
        "--storage-driver".as_ref(),
        "vfs".as_ref(),
        "--root".as_ref(),
        root.as_os_str(),
        "--runroot".as_ref(),
        run.as_os_str(),
        "pull".as_ref(),
        "--tls-verify=false".as_ref(),
        name.as_ref(),
    ];
    let mut command = tool("buildah", words);
    command.env("HOME", env.path("home"));
    Ran::new(command).ok();
}

/// The flags that `buildah VERB --help` lists, and whether each takes a value.
fn flags_of_buildah(verb: &[&str]) -> Vec<(String, bool)> {
    let help = Ran::new(tool("buildah", verb.iter().chain(&["--help"]))).ok().stdout();
    let flags = help.lines().filter_map(|line| {
        let (_, rest) = line.split_once("--")?;
        let is_flag = line.starts_with("  ") && line.trim_start().starts_with('-');
        let mut words = rest.split(' ');
        let name = words.next()?.to_owned();
        let takes = words.next().is_some_and(|word| !word.is_empty());
        (is_flag && name != "help").then_some((name, takes))
    });
    flags.collect()
}

/// A flag works, is accepted with a note, or is refused with its reason.
#[test]
fn every_flag_of_buildah_is_known() {
    let env = TestEnv::new();
    let mut unknown = Vec::new();
    for verb in [
        &["build"][..],
        &["pull"],
        &["push"],
        &["inspect"],
        &["manifest", "create"],
        &["manifest", "add"],
        &["manifest", "annotate"],
        &["manifest", "push"],
        &["images"],
        &["rmi"],
        &["login"],
        &["logout"],
        &["from"],
        &["containers"],
        &["rm"],
    ] {
        let flags = flags_of_buildah(verb);
        assert!(!flags.is_empty(), "{verb:?}: {flags:?}");
        for (flag, takes) in flags {
            let word = if takes { format!("--{flag}=x") } else { format!("--{flag}") };
            let ran = env.imgctl(verb.iter().copied().chain([word.as_str(), "--no-such-flag"]));
            let error = ran.fails(USAGE).stderr();
            // clap names the first flag that it does not know.
            if error.contains(&format!("unexpected argument '--{flag}")) {
                unknown.push(format!("{} --{flag}", verb.join(" ")));
            }
        }
    }
    assert_eq!(unknown, [""; 0]);
}

#[test]
fn flags_of_sealos_and_docker_are_known() {
    let env = filled();
    build(&env, &["-q", "-t", "x:v1"]).ok();
    for (words, says) in [
        (
            &["build", "--cap-drop=all", "--blob-cache=/x", "--skip-unused-stages", "context"][..],
            "",
        ),
        (&["build", "--builder=x", "--load", "--no-cache-filter=a", "context"], ""),
        (&["merge", "-t", "m:v1", "--isolation=chroot", "--build-arg=a=b", "x:v1", "x:v1"], ""),
        (&["merge", "-t", "m:v1", "--format=oci", "--jobs=2", "--no-cache", "x:v1", "x:v1"], ""),
        (&["inspect", "--arch=amd64", "--os=linux", "x:v1"], ""),
        (&["diff", "--arch=amd64", "x:v1", "x:v1"], ""),
        (&["manifest", "create", "--insecure", "--os=linux", "--arch=amd64", "l:v1", "x:v1"], ""),
        (&["build", "--cap-add=all", "context"], "--cap-add is not supported"),
        (&["build", "--volume=/a:/b", "context"], "--build-context"),
        (&["build", "--device=/dev/x", "context"], "--device is not supported"),
        (&["build", "--security-opt=x", "context"], "--security-opt is not supported"),
        (&["build", "--decryption-key=x", "context"], "skopeo copy --decryption-key"),
        (&["pull", "--decryption-key=x", "y"], "skopeo copy --decryption-key"),
        (&["push", "--sign-by=x", "x:v1"], "imgctl sign"),
        (&["push", "--encryption-key=x", "x:v1"], "does not encrypt"),
        (&["manifest", "push", "--sign-by=x", "l:v1"], "imgctl sign"),
    ] {
        let ran = env.imgctl(words);
        match says {
            "" => drop(ran.ok()),
            says => assert!(ran.fails(USAGE).stderr().contains(says), "{words:?}"),
        }
    }
}

#[test]
fn flags_of_buildah_change_what_the_kubefile_says() {
    let env = TestEnv::new();
    let kubefile = "ARG A=1\nFROM scratch\nARG A\nARG B\nLABEL a=$A b=$B\n";
    env.context("context", kubefile, &[("f", "f")]);
    env.write("args", "# arguments\nA=file\nB=file\n\n");
    build(&env, &["-t", "x:v1", "--build-arg-file", "args", "--build-arg", "B=flag"]).ok();
    let config = env.config("x:v1");
    let labels = &config["config"]["Labels"];
    assert_eq!((&labels["a"], &labels["b"]), (&"file".into(), &"flag".into()));
    assert!(!config["history"].as_array().unwrap().is_empty());

    let words =
        ["-t", "y:v1", "--from", "x:v1", "--omit-history", "--os-version=10", "--os-feature=f"];
    build(&env, &words).ok();
    let config = env.config("y:v1");
    assert_eq!(config["os.version"], "10");
    assert_eq!(config["os.features"][0], "f");
    assert_eq!(config["history"].as_array().map_or(0, Vec::len), 0);
    let manifest = env.imgctl(["inspect", "-t", "manifest", "y:v1"]).ok().json();
    let base = &manifest["annotations"]["org.opencontainers.image.base.name"];
    assert_eq!(base, "localhost/x:v1");
}

/// Scripts for buildah work in a mount as in a working container.
#[test]
fn a_mount_is_a_working_container() {
    let env = filled();
    build(&env, &["-q", "-t", "team/x:v1"]).ok();
    let name = env.imgctl(["from", "--isolation=chroot", "team/x:v1"]).ok().stdout();
    assert_eq!(name, "x-working-container");
    assert_eq!(env.imgctl(["from", "team/x:v1"]).ok().stdout(), "x-working-container-1");
    assert_eq!(env.imgctl(["from", "--name", "mine", "team/x:v1"]).ok().stdout(), "mine");
    let path = env.imgctl(["mount", &name]).ok().stdout();
    assert_eq!(std::fs::read(Path::new(&path).join("etc/conf")).unwrap(), b"a=b\n");
    assert_eq!(env.imgctl(["containers", "-q", "-a"]).ok().stdout().lines().count(), 3);
    assert_eq!(env.imgctl(["ps", "-n", "--format", "{{.Name}}"]).ok().stdout().lines().count(), 3);
    env.imgctl(["rm", &name]).ok();
    env.imgctl(["rm", "--all"]).ok();
    assert_eq!(env.imgctl(["list", "-q"]).ok().stdout(), "");
    env.imgctl(["mount", &name]).fails(3);
    env.imgctl(["unshare", "sh", "-c", "true"]).fails(USAGE);
    assert!(env.imgctl(["options"]).ok().stdout().contains("--root"));
    env.imgctl(["docs", "-p", "reference"]).ok();
    let reference = std::fs::read_to_string(env.path("reference/imgctl.md")).unwrap();
    assert!(reference.contains("# imgctl build\n\n```text\n"), "{reference}");
}
