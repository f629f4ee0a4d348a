//! Each way on which an image comes from a registry moves only what changed.

use super::{Bench, FORMS, context};
use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, tool};
use crate::pull::proxy::Proxy;

/// What may move: three files of a hundred kilobytes, the new one, headers, the list, the documents.
const CHANGED: u64 = 420_000;

#[test]
fn a_pull_moves_what_changed_and_says_so() {
    for compression in FORMS {
        for flags in [&[][..], &["--unpack"]] {
            let bench = Bench::new(compression);
            let proxy = Proxy::start(&bench.registry.host);
            let name = format!("{}/team/app:v2", proxy.host);
            let words = ["pull", "--json", &name];
            let pulled = bench.env.imgctl(words.iter().chain(flags)).ok().json();
            let (came, size) = (proxy.bytes(), bench.layer_size(2));
            assert!(
                came < CHANGED && came < size / 10,
                "{compression} {flags:?}: {came} of {size}"
            );
            let number = |member: &str| pulled[0][member].as_u64().unwrap();
            assert!(number("bytesCopied") <= came, "{pulled}");
            assert!(number("bytesCopied") + 30_000 > came, "{pulled} and {came}");
            assert!(number("bytesReused") > size * 9 / 10, "{pulled}");
            bench.assert_is_new(&name);
            let first = bench.env.imgctl(["diff", "--files", &bench.name(1), &name]).ok();
            assert_eq!(first.stdout().lines().filter(|line| line.contains("bin/f")).count(), 4);
        }
    }
}

/// The layers that a build here makes serve as well as those of the registry, and so do old names.
#[test]
fn images_that_were_built_here_or_have_other_names_count() {
    let bench = Bench::new("zstd");
    bench.env.imgctl(["rmi", "--all", "--yes"]).ok();
    bench.env.imgctl(["prune", "--all"]).ok();
    let built = context(&bench.env, 1);
    bench.env.imgctl(["build", "-t", "other:v7", built.to_str().unwrap()]).ok();
    let pulled = bench.env.imgctl(["pull", "--json", &bench.name(2)]).ok().json();
    assert!(pulled[0]["bytesCopied"].as_u64().unwrap() < CHANGED, "{pulled}");
    bench.assert_is_new(&bench.name(2));
}

#[test]
fn the_manifest_is_the_same_from_the_cache_and_names_the_list() {
    let bench = Bench::new("zstd");
    let layer = bench.layer(2);
    let annotations = layer["annotations"].as_object().unwrap();
    let of_list = |name: &&String| name.starts_with("io.github.containers.zstd-chunked.");
    assert_eq!(annotations.keys().filter(of_list).count(), 3, "{layer}");
    let built = context(&bench.env, 2);
    let digest = || {
        let ran = bench.env.imgctl(["build", "--json", "-t", "x:v2", built.to_str().unwrap()]);
        ran.ok().json()["digest"].as_str().unwrap().to_owned()
    };
    assert_eq!(digest(), digest());
    let pushed = bench.manifest(&bench.name(2));
    assert_eq!(digest(), crate::pull::sha256(pushed.bytes()));
}

#[test]
fn copies_and_mirrors_move_what_changed() {
    let bench = Bench::new("none");
    let (env, host) = (&bench.env, &bench.registry.host);
    let tree = env.path("tree");
    let tree = tree.to_str().unwrap();
    let counted = |from: &Proxy, words: &[&str]| {
        let before = from.bytes();
        let done = env.imgctl(words).ok();
        let came = from.bytes() - before;
        assert!(came < CHANGED, "{words:?}: {came} bytes came\n{}", done.report());
    };
    // A registry on disk that has the first version.
    let only = format!("docker://{}", bench.name(1));
    env.imgctl(["copy", &only, &format!("registry-dir:{tree}:team/app:v1")]).ok();
    let proxy = Proxy::start(host);
    counted(&proxy, &["registry", "sync", &proxy.host, tree]);
    Registry::over(tree.as_ref()).assert_serves("team/app:v2");
    // What the store has counts for archives and for other registries.
    let from = format!("docker://{}/team/app:v2", proxy.host);
    let archive = env.path("app.tar");
    counted(&proxy, &["copy", &from, &format!("oci-archive:{}", archive.display())]);
    env.imgctl(["load", "-i", archive.to_str().unwrap(), "--tag", "loaded:v2"]).ok();
    bench.assert_is_new("loaded:v2");
    env.imgctl(["rmi", "loaded:v2"]).ok();
    env.imgctl(["prune", "--all"]).ok();
    let other = Registry::start();
    counted(&proxy, &["copy", &from, &format!("docker://{}/team/app:v2", other.host)]);
    other.assert_serves("team/app:v2");
}

/// The first pull of an image asks for whole blobs, and one of which most changed, too.
#[test]
fn without_use_nothing_is_asked_for_in_parts() {
    let bench = Bench::new("zstd");
    bench.env.imgctl(["rmi", "--all", "--yes"]).ok();
    bench.env.imgctl(["prune", "--all"]).ok();
    bench.registry.blobs_read();
    bench.env.imgctl(["pull", &bench.name(2)]).ok();
    assert_eq!(bench.registry.blobs_read().len(), 2, "the config and the layer");
}

/// podman's own zstd:chunked layers, which are cut in another way, have the same list.
#[test]
fn layers_of_podman_are_fetched_in_part() {
    let env = TestEnv::new();
    let registry = Registry::start();
    let podman = |words: &[&str]| {
        let mut command = tool("podman", ["--root"]);
        command.arg(env.path("storage")).arg("--runroot").arg(env.path("run"));
        command.args(["--storage-driver", "vfs"]).args(words);
        Ran::new(command).ok()
    };
    let name = |version| format!("{}/podman/app:v{version}", registry.host);
    for version in [1, 2] {
        let context = context(&env, version);
        let tar = env.path("context.tar");
        let mut pack = tool("tar", ["-cf"]);
        pack.arg(&tar).arg("-C").arg(&context).args(["--mtime=@1000000000", "--sort=name", "bin"]);
        Ran::new(pack).ok();
        let id = podman(&["import", "-q", tar.to_str().unwrap()]).stdout();
        let form = ["push", "-q", "--tls-verify=false", "--compression-format", "zstd:chunked"];
        let to = format!("docker://{}", name(version));
        podman(&form.into_iter().chain([id.trim(), &to]).collect::<Vec<_>>());
    }
    env.imgctl(["pull", &name(1)]).ok();
    let pulled = env.imgctl(["pull", "--json", &name(2)]).ok().json();
    assert!(pulled[0]["bytesCopied"].as_u64().unwrap() < CHANGED, "{pulled}");
    // Podman 4.3 leaves the end of the archive out, so that no such layer, however it was fetched, has
    // the diff ID that podman writes into the config: blobs are compared, not trees.
    env.imgctl(["scrub"]).ok();
}
