//! Images that a Kubefile names and that are not in the store.

use crate::pull::Bench;
use crate::pull::proxy::Proxy;

#[test]
fn missing_images_of_from_and_copy_are_pulled() {
    let bench = Bench::new();
    let env = &bench.env;
    let proxy = Proxy::start(&bench.registry.host);
    bench.fill("base:v1", &[("base", "one")], &[]);
    bench.fill("tools:v1", &[("tool", "hammer")], &[]);
    let (base, tools) = (format!("{}/base:v1", proxy.host), format!("{}/tools:v1", proxy.host));
    let kubefile = format!("FROM {base}\nCOPY --from={tools} /tool /tool\n");
    let context = env.context("app", &kubefile, &[]);
    let context = context.to_str().unwrap();
    let never = env.imgctl(["build", "--pull=never", "-t", "app", context]).fails(3);
    assert!(never.stderr().contains("--pull"), "{}", never.stderr());
    assert_eq!(proxy.requests(), [""; 0]);
    env.imgctl(["build", "-t", "app", context]).ok();
    let tree = env.export("app", "tree");
    assert_eq!(std::fs::read_to_string(tree.join("tool")).unwrap(), "hammer");
    assert_eq!(std::fs::read_to_string(tree.join("base")).unwrap(), "one");
    // Both are in the store now: no registry is asked.
    proxy.requests();
    env.imgctl(["build", "-t", "app", context]).ok();
    assert_eq!(proxy.requests(), [""; 0]);
    // A tag that has moved is seen when it is asked for.
    bench.fill("base:v1", &[("base", "two")], &[]);
    env.imgctl(["build", "-t", "app", context]).ok();
    let tree = env.export("app", "old");
    assert_eq!(std::fs::read_to_string(tree.join("base")).unwrap(), "one");
    env.imgctl(["build", "--pull", "-t", "app", context]).ok();
    let tree = env.export("app", "new");
    assert_eq!(std::fs::read_to_string(tree.join("base")).unwrap(), "two");
}

#[test]
fn what_is_built_on_a_pulled_image_is_pushed_without_its_layers() {
    let bench = Bench::new();
    let env = &bench.env;
    bench.fill("base:v1", &[("base", "one")], &[]);
    let kubefile = format!("FROM {}\nCOPY mine /mine\n", bench.name("base:v1"));
    let context = env.context("app", &kubefile, &[("mine", "m")]);
    env.build("app", &context);
    let target = format!("docker://{}", bench.name("team/app:v1"));
    let pushed = env.imgctl(["push", "--json", "app", &target]).ok().json();
    assert_eq!(pushed["blobs"]["mounted"], 1, "{pushed}");
    assert_eq!(pushed["blobs"]["copied"], 2, "{pushed}");
}

#[test]
fn each_platform_of_a_build_gets_its_own_base() {
    let bench = Bench::new();
    let env = &bench.env;
    let platforms = ["--platform", "linux/amd64,linux/arm64"];
    bench.fill("base:v1", &[("base", "x")], &platforms);
    let kubefile = format!("FROM {}\nCOPY mine /mine\n", bench.name("base:v1"));
    let context = env.context("app", &kubefile, &[("mine", "m")]);
    let words = ["build", platforms[0], platforms[1], "-t", "app"];
    let context = context.to_str().unwrap();
    env.imgctl(words.iter().chain(&[context])).ok();
    for platform in ["linux/amd64", "linux/arm64"] {
        let words = ["inspect", "--platform", platform, "app"];
        let image = env.imgctl(words).ok().json();
        let architecture = image["OCIv1"]["architecture"].as_str().unwrap();
        assert_eq!(format!("linux/{architecture}"), platform);
    }
}

#[test]
fn what_no_registry_has_is_told_with_where_it_was_looked_for() {
    let bench = Bench::new();
    let env = &bench.env;
    let missing = bench.name("none:v1");
    for (image, code, expected) in
        [(missing.as_str(), 3, missing.as_str()), ("localhost/none:v1", 3, "not in the store")]
    {
        let context = env.context("app", &format!("FROM {image}\n"), &[]);
        let context = context.to_str().unwrap();
        let failed = env.imgctl(["build", "-t", "app", context]).fails(code);
        assert!(failed.stderr().contains(expected), "{}", failed.stderr());
        assert!(failed.stderr().contains("pull"), "{}", failed.stderr());
    }
}
