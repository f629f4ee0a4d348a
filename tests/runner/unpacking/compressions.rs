//! One layer in several compressions: each image is read by its own blob, in any order, and whatever an
//! earlier version left in the store.

use std::fs;
use std::path::Path;

use crate::common::tree::{self, Compare};
use crate::common::{Ran, TestEnv, noise, tool};

/// Files large enough that a compressed layer has several points to start from.
fn context(env: &TestEnv) -> std::path::PathBuf {
    let context =
        env.context("context", "FROM scratch\nCOPY . /\n", &[("etc/app.conf", "port 1\n")]);
    for number in 0..4 {
        let name = format!("data/{number}");
        fs::create_dir_all(context.join("data")).unwrap();
        fs::write(context.join(name), noise(number, 3 << 20)).unwrap();
    }
    context
}

/// Every way to read single files of an image gives those of the context.
fn read_in_every_way(env: &TestEnv, image: &str, context: &Path) {
    for file in ["data/3", "etc/app.conf", "data/0"] {
        let ran = env.imgctl(["cat", &format!("{image}:/{file}")]).ok();
        assert!(ran.bytes() == fs::read(context.join(file)).unwrap(), "{image} {file}");
    }
    let out = env.path("exported");
    let _ = fs::remove_dir_all(&out);
    env.imgctl(["export", image, "-o", out.to_str().unwrap()]).ok();
    let found = tree::list(&out);
    for (name, entry) in tree::list(&context.join("data")) {
        assert_eq!(found[&format!("data/{name}")].content, entry.content, "{image} {name}");
    }
    let sbom = env.imgctl(["sbom", image]).ok();
    assert_eq!(
        sbom.json()["files"].as_array().unwrap().len(),
        found.values().filter(|entry| entry.kind == 'f').count()
    );
    if crate::common::is_root() {
        for backend in ["checkout", "overlay", "erofs"] {
            let ran = env.imgctl(["mount", "--read-only", "--backend", backend, image]).ok();
            let mounted = tree::list(Path::new(&ran.stdout()));
            tree::assert_same(backend, &found, &mounted, Compare::default());
            env.imgctl(["umount", &ran.stdout()]).ok();
        }
    }
}

#[test]
fn a_layer_in_several_compressions_is_read_by_its_own_blob() {
    if crate::common::is_root() {
        crate::unpacking::private_mounts();
    }
    let env = TestEnv::new();
    let context = context(&env);
    let compressions = ["zstd", "gzip", "none", "zstd:9"];
    let name = |number: usize| format!("a:{number}");
    for (number, compression) in compressions.iter().enumerate() {
        let mut build = env.command(["build", "-t", &name(number), "--compression", compression]);
        build.arg(&context);
        Ran::new(build).ok();
    }
    let all: Vec<usize> = (0..compressions.len()).collect();
    for number in all.iter().chain(all.iter().rev()) {
        read_in_every_way(&env, &name(*number), &context);
    }
    let ran = env.imgctl(["diff", "--files", &name(0), &name(1)]).ok();
    assert_eq!(ran.stdout(), "");
    // What a mirror makes of it.
    let saved = env.path("saved.tar");
    env.imgctl(["save", &name(0), "-o", saved.to_str().unwrap()]).ok();
    let mirrored = env.path("mirrored.tar");
    let mut copy =
        tool("skopeo", ["--insecure-policy", "copy", "--quiet", "--dest-compress-format", "gzip"]);
    copy.arg(format!("oci-archive:{}", saved.display()));
    copy.arg(format!("oci-archive:{}", mirrored.display()));
    Ran::new(copy).ok();
    env.imgctl(["load", "--tag", "x:1", "-i", mirrored.to_str().unwrap()]).ok();
    read_in_every_way(&env, "x:1", &context);
    read_in_every_way(&env, &name(0), &context);
    let scrubbed = env.imgctl(["scrub"]).ok();
    assert!(!scrubbed.report().contains("damaged"), "{}", scrubbed.report());
    // The new tables are garbage once their images are gone.
    env.imgctl(["rmi", &name(1), &name(3), "x:1"]).ok();
    env.imgctl(["prune"]).ok();
    read_in_every_way(&env, &name(0), &context);
}

/// Tables of the version before named no blob: they are made again.
#[test]
fn tables_of_an_earlier_version_are_made_again() {
    let env = TestEnv::new();
    let context = context(&env);
    env.build("a:1", &context);
    let store = env.root().join("store");
    for entry in fs::read_dir(store.join("toc")).unwrap() {
        let path = entry.unwrap().path();
        let mut table = fs::read(&path).unwrap();
        let version = table.iter().position(|byte| *byte == b'\n').unwrap() - 1;
        table[version] = b'2';
        let signed = table.len() - blake3::OUT_LEN;
        let checksum = blake3::hash(&table[..signed]);
        table[signed..].copy_from_slice(checksum.as_bytes());
        fs::write(&path, table).unwrap();
    }
    fs::remove_dir_all(store.join("restarts")).unwrap();
    let ran = env.imgctl(["cat", "a:1:/data/3"]).ok();
    assert!(ran.bytes() == fs::read(context.join("data/3")).unwrap());
    assert_eq!(fs::read_dir(store.join("restarts")).unwrap().count(), 1);
}
