//! What configuration files come to: routes, mirrors, short names.

use std::fs;
use std::path::Path;

use super::*;

/// Registries as `main` and then `drop_ins` say.
fn registries(main: &str, drop_ins: &[&str]) -> Result<Registries> {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    Registries::read(ConfigurationFiles {
        main: Some(write("registries.conf", main)),
        drop_ins: drop_ins
            .iter()
            .enumerate()
            .map(|(at, text)| write(&format!("{at}.conf"), text))
            .collect(),
        ..ConfigurationFiles::default()
    })
}

fn reference(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

/// `host/repository`, `!` when insecure, `d` or `t` when asked by digest or tag only.
fn told(endpoint: &Endpoint) -> String {
    let mut text = format!("{}/{}", endpoint.host, endpoint.repository);
    if endpoint.insecure {
        text.push('!');
    }
    match (endpoint.by_digest, endpoint.by_tag) {
        (true, false) => text.push_str(" d"),
        (false, true) => text.push_str(" t"),
        _ => {}
    }
    text
}

fn reads(registries: &Registries, name: &str) -> Vec<String> {
    let route = registries.route(&reference(name)).unwrap();
    route.read.iter().map(told).collect()
}

#[test]
fn without_configuration_names_mean_what_they_say() {
    let none = Registries::default();
    for (name, expected) in [
        ("quay.io/a/b:1", "quay.io/a/b"),
        ("docker.io/nginx", "registry-1.docker.io/library/nginx"),
        (
            "index.docker.io/nginx",
            "registry-1.docker.io/library/nginx",
        ),
        ("docker.io/a/b", "registry-1.docker.io/a/b"),
        ("localhost:5000/a", "localhost:5000/a!"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000/a!"),
        ("[::1]:5000/a", "[::1]:5000/a!"),
    ] {
        let route = none.route(&reference(name)).unwrap();
        assert_eq!(told(&route.write), expected, "{name}");
        assert_eq!(route.read, [route.write], "{name}");
    }
    assert!(none.route(&reference("short")).is_err());
}

const MIRRORS: &str = r#"
[[registry]]
prefix = "example.com/foo"
location = "internal.example.net/bar"
[[registry.mirror]]
location = "m0.local/mirror-for-foo"
[[registry.mirror]]
location = "m1.local:5000"
insecure = true
pull-from-mirror = "tag-only"

[[registry]]
location = "registry.com"
mirror-by-digest-only = true
[[registry.mirror]]
location = "mirror.registry.com"

[[registry]]
prefix = "docker.io"
[[registry.mirror]]
location = "hub.local/cache"

[[registry]]
prefix = "*.wild.io"
insecure = true
[[registry.mirror]]
location = "w.local/wild"

[[registry]]
location = "localhost:5000"
insecure = false

[[registry]]
prefix = "bad.io/evil"
blocked = true

[[registry]]
prefix = "one.io/repo:v1"
location = "two.io/other:v1"
"#;

#[test]
fn mirrors_come_in_order_and_the_origin_last() {
    let registries = registries(MIRRORS, &[]).unwrap();
    let digest = crate::image::Digest::of(b"");
    for (name, expected) in [
        (
            "example.com/foo/image:latest",
            &[
                "m0.local/mirror-for-foo/image",
                "m1.local:5000/image! t",
                "internal.example.net/bar/image",
            ][..],
        ),
        ("example.com/food/image", &["example.com/food/image"]),
        ("example.com/x", &["example.com/x"]),
        (
            &format!("registry.com/a/b@{digest}"),
            &["mirror.registry.com/a/b d", "registry.com/a/b"],
        ),
        ("registry.com:5000/a", &["registry.com:5000/a"]),
        (
            "docker.io/nginx",
            &[
                "hub.local/cache/library/nginx",
                "registry-1.docker.io/library/nginx",
            ],
        ),
        // A mirror does not inherit what its registry says about TLS.
        ("a.b.wild.io/x", &["w.local/wild/x", "a.b.wild.io/x!"]),
        ("wild.io/x", &["wild.io/x"]),
        ("localhost:5000/x", &["localhost:5000/x"]),
        ("one.io/repo:v1", &["two.io/other"]),
        ("one.io/repo:v2", &["one.io/repo"]),
    ] {
        assert_eq!(reads(&registries, name), expected, "{name}");
    }
}

#[test]
fn what_is_written_goes_to_no_mirror() {
    let registries = registries(MIRRORS, &[]).unwrap();
    for (name, expected) in [
        ("example.com/foo/image:latest", "example.com/foo/image"),
        ("a.wild.io/x", "a.wild.io/x!"),
        ("docker.io/nginx", "registry-1.docker.io/library/nginx"),
    ] {
        let route = registries.route(&reference(name)).unwrap();
        assert_eq!(told(&route.write), expected, "{name}");
    }
}

#[test]
fn a_blocked_registry_is_denied() {
    let registries = registries(MIRRORS, &[]).unwrap();
    let error = registries.route(&reference("bad.io/evil/x")).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(registries.route(&reference("bad.io/good")).is_ok());
}

#[test]
fn missing_files_say_nothing() {
    let none = Registries::read(ConfigurationFiles {
        main: Some(Path::new("/nonexistent/registries.conf").into()),
        drop_ins: vec!["/nonexistent/x.conf".into()],
        ..ConfigurationFiles::default()
    })
    .unwrap();
    assert_eq!(reads(&none, "quay.io/a"), ["quay.io/a"]);
}
