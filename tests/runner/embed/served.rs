//! What another registry serves out of the tree that a build wrote.

use crate::common::TestEnv;
use crate::common::registry::Registry;
use crate::embed::support::{
    Upstream, build, digest, fetched, listing, raw, registry_layers, serve,
};

#[test]
fn single_images_indexes_and_digests_are_served_byte_for_byte() {
    let upstream = Upstream::new();
    upstream.image("team/single:v1", "base", "single");
    upstream.index("team/index:v1", "base", "index");
    upstream.index("team/pinned:v1", "base", "pinned");
    let pinned = upstream.digest("team/pinned:v1");
    let env = TestEnv::new();
    let images = [
        upstream.name("team/single:v1"),
        upstream.name("team/index:v1"),
        upstream.name(&format!("team/pinned@{pinned}")),
    ];
    let context = listing(&env, "context", &images);
    let platforms = ["--platform=linux/amd64,linux/arm64"];
    build(&env, "cluster", &context, &platforms).ok();
    let served = serve(&env, "cluster", "out");
    for name in ["team/single:v1", "team/index:v1", &format!("team/pinned@{pinned}")] {
        assert_eq!(raw(&served, name), upstream.raw(name), "{name}");
        let whole = fetched(&served, name, true);
        assert_eq!(whole, fetched(&upstream.registry, name, true), "{name}");
    }
    // Without a tag of its own, a digest gets none.
    let tags = served.data_of("team/pinned/_manifests/tags");
    assert!(!tags.exists(), "{}", tags.display());
    // Both platforms' images have the same layers.
    assert_eq!(registry_layers(&env, "cluster").len(), 4);
}

#[test]
fn one_platform_alone_is_complete_under_its_tag() {
    let upstream = Upstream::new();
    upstream.index("team/app:v1", "base", "own");
    let root = upstream.digest("team/app:v1");
    let env = TestEnv::new();
    let context = listing(&env, "context", &[upstream.name("team/app:v1")]);
    build(&env, "cluster", &context, &[]).ok();
    let served = serve(&env, "cluster", "out");
    // Everything that the tag leads to is there, the other platform is not.
    let whole = fetched(&served, "team/app:v1", true);
    assert_eq!(whole, fetched(&upstream.registry, "team/app:v1", false));
    assert_ne!(digest(&served, "team/app:v1"), root);
    // The index stays pullable by its digest, and leads to this platform.
    let by_digest = format!("team/app@{root}");
    assert_eq!(raw(&served, &by_digest), upstream.raw(&by_digest));
    assert_eq!(fetched(&served, &by_digest, false), whole);

    // With a reference that pins the index, the tag means the index as well.
    let pinned = format!("team/app:v1@{root}");
    let context = listing(&env, "pinned", &[upstream.name(&pinned)]);
    build(&env, "pinned", &context, &[]).ok();
    let served = serve(&env, "pinned", "out-pinned");
    assert_eq!(digest(&served, "team/app:v1"), root);
    // --all brings every platform.
    let context = listing(&env, "all", &[upstream.name("team/app:v1")]);
    build(&env, "all", &context, &["--all"]).ok();
    let served = serve(&env, "all", "out-all");
    let whole = fetched(&served, "team/app:v1", true);
    assert_eq!(whole, fetched(&upstream.registry, "team/app:v1", true));
}

#[test]
fn a_collision_is_an_error_unless_registries_are_kept_apart() {
    let (one, two) = (Upstream::new(), Upstream::new());
    one.image("team/app:v1", "base", "one");
    two.image("team/app:v1", "base", "two");
    let env = TestEnv::new();
    let names = [one.name("team/app:v1"), two.name("team/app:v1")];
    let context = listing(&env, "context", &names);
    let error = build(&env, "cluster", &context, &[]).fails(2).stderr();
    for name in &names {
        assert!(error.contains(name.as_str()), "{error}");
    }
    assert!(error.contains("--registry-namespace"), "{error}");
    build(&env, "cluster", &context, &["--registry-namespace"]).ok();
    let served = serve(&env, "cluster", "out");
    for upstream in [&one, &two] {
        let host = upstream.registry.host.replace(':', "-");
        let name = format!("{host}/team/app:v1");
        assert_eq!(raw(&served, &name), upstream.raw("team/app:v1"));
    }
}

#[test]
fn archives_and_images_of_the_store_are_embedded_too() {
    let env = TestEnv::new();
    let app = env.context("app", "FROM scratch\nCOPY f /f\n", &[("f", "content")]);
    env.build("localhost/app:v1", &app);
    let context = env.context(
        "context",
        "FROM scratch\nCOPY m /m\n",
        &[
            ("m", ""),
            ("images/skopeo/tar.txt", "oci-archive:app.tar@quay.io/team/app:v2\n"),
            ("manifests/pod.yaml", "spec: {containers: [{image: 'localhost/app:v1'}]}\n"),
        ],
    );
    let archive = context.join("images/skopeo/app.tar");
    let archive = archive.to_str().unwrap();
    env.imgctl(["save", "--format=oci-archive", "-o", archive, "localhost/app:v1"]).ok();
    build(&env, "cluster", &context, &[]).ok();
    let served = serve(&env, "cluster", "out");
    assert_eq!(raw(&served, "team/app:v2"), raw(&served, "app:v1"));
    fetched(&served, "team/app:v2", true);
}

#[test]
fn builds_that_embed_the_same_archive_do_not_disturb_each_other() {
    let env = TestEnv::new();
    let app = env.context("app", "FROM scratch\nCOPY f /f\n", &[("f", "content")]);
    env.build("localhost/app:v1", &app);
    let list = "oci-archive:app.tar@quay.io/team/app:v2\n";
    let files = [("images/skopeo/tar.txt", list)];
    let context = env.context("context", "FROM scratch\n", &files);
    let archive = context.join("images/skopeo/app.tar");
    let archive = archive.to_str().unwrap();
    let save = ["save", "--format=oci-archive", "-o", archive];
    env.imgctl([&save[..], &["localhost/app:v1"]].concat()).ok();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (env, context) = (&env, &context);
            scope.spawn(move || build(env, &format!("cluster:{number}"), context, &[]).ok());
        }
    });
    let names = env.imgctl(["images"]).ok().stdout();
    assert!(!names.contains("embedded-archive"), "{names}");
}

#[test]
fn a_registry_folder_is_taken_apart_and_nothing_is_there_twice() {
    let upstream = Upstream::new();
    for (name, own) in [("a:v1", "a"), ("b:v1", "b"), ("c:v1", "c")] {
        upstream.image(name, "base", own);
    }
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY registry registry\n";
    let names = [upstream.name("a:v1"), upstream.name("b:v1")];
    let list = names.join("\n");
    let context = env.context("context", kubefile, &[("images/shim/list", &list)]);
    let copied = context.join("registry");
    let from = upstream.registry.data();
    let arguments = ["-R".as_ref(), from.as_os_str(), copied.as_os_str()];
    crate::common::Ran::new(crate::common::tool("cp", arguments)).ok();
    let before = env.tree_of(&context);
    build(&env, "cluster", &context, &[]).ok();
    assert_eq!(env.tree_of(&context), before, "the context was written to");
    // Three images, the layer they share, empty directories of uploads; the list names nothing that
    // is not there.
    let first = registry_layers(&env, "cluster");
    assert_eq!(first.len(), 5, "{first:?}");
    let served = serve(&env, "cluster", "out");
    for name in ["a:v1", "b:v1", "c:v1"] {
        let whole = fetched(&served, name, true);
        assert_eq!(whole, fetched(&upstream.registry, name, true), "{name}");
    }
    drop(served);

    upstream.image("c:v1", "base", "changed");
    std::fs::remove_dir_all(&copied).unwrap();
    crate::common::Ran::new(crate::common::tool("cp", arguments)).ok();
    build(&env, "cluster", &context, &[]).ok();
    let second = registry_layers(&env, "cluster");
    let same = second.values().filter(|layer| first.values().any(|other| other == *layer));
    assert!(same.count() >= 4, "{first:?}\n{second:?}");
}

trait Look {
    fn data_of(&self, path: &str) -> std::path::PathBuf;
}

impl Look for Registry {
    fn data_of(&self, path: &str) -> std::path::PathBuf {
        let repositories = self.data().join("docker/registry/v2/repositories");
        repositories.join(path)
    }
}

trait Listed {
    /// Every path below `directory` with its size and modification time.
    fn tree_of(&self, directory: &std::path::Path) -> String;
}

impl Listed for TestEnv {
    fn tree_of(&self, directory: &std::path::Path) -> String {
        let arguments = [directory.to_str().unwrap(), "-printf", "%p %y %s %T@ %C@\\n"];
        let found = crate::common::Ran::new(crate::common::tool("find", arguments)).ok();
        let mut lines: Vec<String> = found.stdout().lines().map(str::to_owned).collect();
        lines.sort();
        lines.join("\n")
    }
}

#[test]
fn a_kubefile_may_copy_the_registry_that_sealos_creates() {
    let upstream = Upstream::new();
    upstream.image("a:v1", "base", "a");
    let name = upstream.name("a:v1");
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY registry registry\n";
    let context = env.context("context", kubefile, &[("images/shim/list", &name)]);
    build(&env, "copied", &context, &[]).ok();
    let served = serve(&env, "copied", "out");
    assert_eq!(fetched(&served, "a:v1", true), fetched(&upstream.registry, "a:v1", true));
    drop(served);

    env.write("context/Kubefile", "FROM scratch\nCOPY registry /opt/registry\n");
    let elsewhere = build(&env, "elsewhere", &context, &[]).fails(2);
    let text = elsewhere.stderr();
    assert!(text.contains("the embedded images go to /registry, not to /opt/registry"), "{text}");

    env.write("context/Kubefile", kubefile);
    let nothing = build(&env, "nothing", &context, &["--save-image=false"]).fails(3);
    assert!(nothing.stderr().contains("but the build embeds none"), "{}", nothing.stderr());
}
