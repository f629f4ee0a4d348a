//! `imgctl update`: newer versions of what a directory names.

use crate::common::TestEnv;
use crate::embed::support::{Upstream, build};

#[test]
fn newer_versions_are_shown_and_written() {
    let upstream = Upstream::new();
    for name in ["base:v1.2.0", "base:v1.10.1", "base:v2.0.0", "a:1.0", "a:1.1", "b:3"] {
        upstream.image(name, "base", name);
    }
    let env = TestEnv::new();
    let (base, a, b) = (upstream.name("base:v1.2.0"), upstream.name("a:1.0"), upstream.name("b:3"));
    let context = env.context(
        "context",
        &format!("ARG V=1\nFROM {base} AS one\nCOPY images images\nFROM one\n"),
        &[("images/shim/list", &format!("{a}\n{b}\n"))],
    );
    let path = context.to_str().unwrap();
    let update = |flags: &[&str]| env.imgctl(["update"].iter().chain(flags).copied().chain([path]));
    build(&env, "first", &context, &["--update-lock"]).ok();
    let read = |file: &str| std::fs::read_to_string(context.join(file)).unwrap();
    let before = [read("Kubefile"), read("images/shim/list"), read("imgctl.lock")];

    let shown = update(&["--check"]).fails(10);
    for part in ["v1.10.1", "Kubefile:2", "images/shim/list:1"] {
        assert!(shown.stdout().contains(part), "{}", shown.report());
    }
    assert!(!shown.stdout().contains("v2.0.0"), "{}", shown.report());
    assert!(
        shown.stderr().contains("newer versions of 2 images are available"),
        "{}",
        shown.report()
    );
    assert_eq!([read("Kubefile"), read("images/shim/list"), read("imgctl.lock")], before);

    update(&[]).ok();
    assert!(read("Kubefile").contains(&format!("FROM {} AS one", upstream.name("base:v1.10.1"))));
    assert_eq!(read("images/shim/list"), format!("{}\n{b}\n", upstream.name("a:1.1")));
    assert!(read("imgctl.lock").contains(&upstream.digest("a:1.1")), "{}", read("imgctl.lock"));
    build(&env, "second", &context, &["--locked"]).ok();
    update(&["--check"]).ok();

    let majors = update(&["--check", "--major", "--json"]).fails(10).json();
    let newer = |name: &str| {
        let images = majors["images"].as_array().unwrap();
        let name = upstream.name(name);
        images.iter().find(|image| image["name"] == *name).unwrap()["newer"].clone()
    };
    assert_eq!(newer("base"), "v2.0.0");
    assert!(newer("b").is_null());

    // A repository that cannot be asked is shown, and the others are compared.
    let gone = "127.0.0.1:1/team/app:1.0";
    std::fs::write(context.join("images/shim/list"), format!("{gone}\n")).unwrap();
    let ran = update(&["--check", "--retry=0"]).fails(7);
    assert!(ran.stdout().contains("not compared"), "{}", ran.report());
    assert!(ran.stderr().contains("127.0.0.1:1"), "{}", ran.report());
    let ran = update(&["--retry=0"]).ok();
    assert!(ran.stderr().contains("not compared: "), "{}", ran.report());
    env.imgctl(["update", "--check", env.path("nowhere").to_str().unwrap()]).fails(3);
}
