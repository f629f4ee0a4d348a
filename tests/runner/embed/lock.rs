//! `imgctl.lock`: written, used, insisted on.

use crate::common::TestEnv;
use crate::embed::support::{Upstream, build, listing};

#[test]
fn a_locked_build_needs_no_registry_and_gives_the_same_image() {
    let upstream = Upstream::new();
    upstream.image("a:v1", "base", "a");
    upstream.index("b:v1", "base", "b");
    let env = TestEnv::new();
    let names = [upstream.name("a:v1"), upstream.name("b:v1")];
    let context = listing(&env, "context", &names);
    let lock = context.join("imgctl.lock");
    build(&env, "none", &context, &["--locked"]).fails(2);
    build(&env, "plain", &context, &[]).ok();
    assert!(!lock.exists(), "only --update-lock writes into the context");
    let first = build(&env, "locked", &context, &["--update-lock"]).ok().stdout();
    let text = std::fs::read_to_string(&lock).unwrap();
    for part in [&*names[0], &*upstream.digest("a:v1"), &*upstream.digest("b:v1")] {
        assert!(text.contains(part), "{text}");
    }
    // The tag moves on; the lock does not.
    upstream.image("a:v1", "base", "changed");
    assert_eq!(build(&env, "used", &context, &[]).ok().stdout(), first);
    drop(upstream);
    let again = build(&env, "offline", &context, &["--locked"]).ok().stdout();
    assert_eq!(again, first);
    let anew = build(&env, "offline", &context, &["--locked", "--no-cache"]);
    assert_eq!(anew.ok().stdout(), first);
    env.imgctl(["prune"]).ok();
    assert_eq!(build(&env, "pruned", &context, &["--locked"]).ok().stdout(), first);
    assert_eq!(std::fs::read_to_string(&lock).unwrap(), text);
}

#[test]
fn drift_is_refused_with_what_has_changed() {
    let upstream = Upstream::new();
    for name in ["a:v1", "b:v1"] {
        upstream.image(name, "base", name);
    }
    let env = TestEnv::new();
    let names = [upstream.name("a:v1"), upstream.name("b:v1")];
    let context = listing(&env, "context", &names[..1]);
    let lock = env.path("other.lock");
    let flags = ["--update-lock", "--lock-file", lock.to_str().unwrap()];
    build(&env, "cluster", &context, &flags).ok();
    assert!(!context.join("imgctl.lock").exists());
    let flags = ["--locked", "--lock-file", lock.to_str().unwrap()];
    build(&env, "cluster", &context, &flags).ok();
    std::fs::write(context.join("images/shim/list"), &names[1]).unwrap();
    let error = build(&env, "cluster", &context, &flags).fails(2).stderr();
    assert!(error.contains(&format!("{} is new", names[1])), "{error}");
    assert!(error.contains(&format!("{} is no longer used", names[0])), "{error}");
    assert!(error.contains("--update-lock"), "{error}");
}
