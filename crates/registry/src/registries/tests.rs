//! Results of configuration files: routes, mirrors, short names.

use std::fs;
use std::path::Path;

use super::*;

/// Reads registries from `main` and then `drop_ins`.
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

/// Formats `host/repository`, with `!` if insecure, and `d` or `t` if used only by digest or tag.
fn told(endpoint: &Endpoint) -> String {
    let mut text = format!("{}/{}", endpoint.host, endpoint.repository);
    if endpoint.path != "v2" {
        text = format!("{}/{}/{}", endpoint.host, endpoint.path, endpoint.repository);
    }
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
        ("index.docker.io/nginx", "registry-1.docker.io/library/nginx"),
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
    let digest = imgctl_base::image::Digest::of(b"");
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
        (&format!("registry.com/a/b@{digest}"), &["mirror.registry.com/a/b d", "registry.com/a/b"]),
        ("registry.com:5000/a", &["registry.com:5000/a"]),
        (
            "docker.io/nginx",
            &["hub.local/cache/library/nginx", "registry-1.docker.io/library/nginx"],
        ),
        // A mirror does not inherit the TLS settings of its registry.
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

#[test]
fn later_files_replace_what_earlier_ones_say_of_the_same_prefix() {
    let registries = registries(
        MIRRORS,
        &[
            "[[registry]]\nlocation = 'registry.com'\ninsecure = true\n[aliases]\na='x.io/a'\nb='x.io/b'",
            "credential-helpers = ['pass']\n[aliases]\na='y.io/a'\nb=''",
        ],
    )
    .unwrap();
    assert_eq!(reads(&registries, "registry.com/a"), ["registry.com/a!"]);
    assert_eq!(reads(&registries, "docker.io/x").len(), 2);
    assert_eq!(registries.credential_helpers(), ["pass"]);
    assert_eq!(candidates(&registries, "a"), ["y.io/a:latest"]);
    assert_eq!(candidates(&registries, "b"), ["docker.io/library/b:latest"]);
}

fn candidates(registries: &Registries, name: &str) -> Vec<String> {
    let found = registries.candidates(&reference(name)).unwrap();
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn short_names_are_looked_up_by_alias_then_in_each_registry() {
    let conf = "unqualified-search-registries = ['a.io', 'docker.io', 'localhost:5000/']\n\
                [aliases]\n'box' = 'quay.io/x/box'\n'team/box' = 'r.io/t'\n'bad' = 'no-host'";
    let listed = registries(conf, &[]).unwrap();
    let digest = imgctl_base::image::Digest::of(b"");
    let pinned = format!("quay.io/x/box@{digest}");
    for (name, expected) in [
        ("quay.io/a:1", &["quay.io/a:1"][..]),
        ("box:2", &["quay.io/x/box:2"]),
        (&format!("box@{digest}"), &[&pinned]),
        ("team/box", &["r.io/t:latest"]),
        ("quay.io/a", &["quay.io/a:latest"]),
        ("other:1", &["a.io/other:1", "docker.io/library/other:1", "localhost:5000/other:1"]),
        (
            "u/other",
            &["a.io/u/other:latest", "docker.io/u/other:latest", "localhost:5000/u/other:latest"],
        ),
    ] {
        assert_eq!(candidates(&listed, name), expected, "{name}");
    }
    assert!(listed.candidates(&reference("bad")).is_err());
    assert_eq!(candidates(&Registries::default(), "etcd:v1"), ["docker.io/library/etcd:v1"]);
}

#[test]
fn enforced_short_names_are_not_guessed() {
    let several = "unqualified-search-registries = ['a.io', 'b.io']\nshort-name-mode = 'enforcing'";
    let error = registries(several, &[]).unwrap().candidates(&reference("x:1")).unwrap_err();
    assert!(error.to_string().contains("a.io, b.io"), "{error}");
    assert!(error.hints()[0].contains("a.io/x:1"));
    let one = several.replace(", 'b.io'", "");
    assert_eq!(candidates(&registries(&one, &[]).unwrap(), "x:1"), ["a.io/x:1"]);
    for mode in ["permissive", "disabled", ""] {
        let conf = several.replace("enforcing", mode);
        let both = candidates(&registries(&conf, &[]).unwrap(), "x:1");
        assert_eq!(both, ["a.io/x:1", "b.io/x:1"], "{mode}");
    }
}

#[test]
fn version_1_is_read_as_containers_reads_it() {
    let conf = "[registries.search]\nregistries = ['a.io']\n\
                [registries.insecure]\nregistries = ['b.io', 'c.io']\n\
                [registries.block]\nregistries = ['c.io']\n";
    let version_1 = registries(conf, &["[aliases]\nx = 'q.io/x'"]).unwrap();
    assert_eq!(candidates(&version_1, "y:1"), ["a.io/y:1"]);
    assert_eq!(candidates(&version_1, "x:1"), ["q.io/x:1"]);
    assert_eq!(reads(&version_1, "b.io/y"), ["b.io/y!"]);
    assert!(version_1.route(&reference("c.io/y")).is_err());
    assert!(registries("", &[conf]).is_err());
    assert!(registries(&format!("unqualified-search-registries=['a.io']\n{conf}"), &[]).is_err());
}

#[test]
fn mistakes_name_the_file_and_what_is_wrong() {
    for (conf, expected) in [
        ("\n\nx = [", "registries.conf:3: "),
        ("[[registry]]\nlocation = 'a.io'\ninsecure = 'yes'", "registries.conf:3: "),
        ("[[registry]]\nlocation = 'https://a.io'", "scheme"),
        ("[[registry]]\nlocation = 'a.io/B c'", "`a.io/B c`"),
        ("[[registry]]\nlocation = 'plain/x'", "a domain or a port"),
        ("[[registry]]\nprefix = '*.a.io/x'", "`*.a.io/x`"),
        ("[[registry]]\nblocked = true", "neither prefix nor location"),
        ("[[registry]]\nlocation='a.io'\n[[registry]]\nlocation='a.io'\nblocked=true", "twice"),
        ("[[registry]]\nlocation='a.io'\n[[registry.mirror]]\npull-from-mirror='both'", "`both`"),
        (
            "[[registry]]\nlocation='a.io'\nmirror-by-digest-only=true\n\
             [[registry.mirror]]\nlocation='b.io'\npull-from-mirror='all'",
            "mirror-by-digest-only",
        ),
        ("short-name-mode = 'guess'", "`guess`"),
        ("unqualified-search-registries = ['a b']", "`a b`"),
    ] {
        let error = registries(conf, &[]).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains("registries.conf"), "{conf}: {text}");
    }
    registries("unknown = 1\n[[registry]]\nlocation = 'a.io'\nnew-key = true", &[]).unwrap();
}

/// Creates a tree of certificates or of hosts.toml with these files.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    tree
}

#[test]
fn certificates_are_those_of_the_first_directory_for_the_host() {
    let first = tree(&[
        ("a.io:5000/ca.crt", ""),
        ("a.io:5000/client.cert", ""),
        ("a.io:5000/client.key", ""),
        ("a.io:5000/readme", ""),
        ("bad.io/client.cert", ""),
        ("bad2.io/client.key", ""),
        ("docker.io/hub.crt", ""),
    ]);
    let second = tree(&[("a.io:5000/other.crt", ""), ("b.io/b.crt", "")]);
    let registries = Registries::read(ConfigurationFiles {
        certificate_trees: vec![first.path().into(), second.path().into()],
        ..ConfigurationFiles::default()
    })
    .unwrap();
    let of = |name: &str| registries.route(&reference(name)).map(|route| route.write.certificates);
    let in_first = |name: &str| Pem::from(first.path().join(name));
    let a = of("a.io:5000/x").unwrap();
    assert_eq!(a.authorities, [in_first("a.io:5000/ca.crt")]);
    let pair = (in_first("a.io:5000/client.cert"), in_first("a.io:5000/client.key"));
    assert_eq!(a.client, Some(pair));
    assert_eq!(of("docker.io/x").unwrap().authorities, [in_first("docker.io/hub.crt")]);
    assert_eq!(of("b.io/x").unwrap().authorities, [Pem::from(second.path().join("b.io/b.crt"))]);
    assert_eq!(of("a.io/x").unwrap(), Certificates::default());
    assert_eq!(of("bad.io/x").unwrap_err().kind(), Kind::Usage);
    assert_eq!(of("bad2.io/x").unwrap_err().kind(), Kind::Usage);
}

#[test]
fn a_certificate_directory_is_for_every_host_and_has_to_exist() {
    let directory = tree(&[("ca.crt", "")]);
    let mut registries = Registries {
        certificate_directory: Some(directory.path().into()),
        ..Registries::default()
    };
    let route = registries.route(&reference("any.io/x")).unwrap();
    assert_eq!(route.write.certificates.authorities, [Pem::from(directory.path().join("ca.crt"))]);
    registries.certificate_directory = Some("/nonexistent".into());
    let error = registries.route(&reference("any.io/x")).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[test]
fn mirrors_of_containerd_and_docker_come_after_those_of_registries_conf() {
    let containerd = tree(&[
        (
            "docker.io/hosts.toml",
            "server = 'https://registry-1.docker.io'\nca = 'ca.pem'\n[host.'http://c.io:5000']\n\
             capabilities = ['pull']\n",
        ),
        ("r.io/hosts.toml", "server = 'https://real.io'\n"),
        ("s.io/hosts.toml", "skip_verify = true\n"),
    ]);
    let docker = tree(&[(
        "daemon.json",
        r#"{"registry-mirrors": ["https://d.io"], "insecure-registries": ["10.0.0.0/8"]}"#,
    )]);
    let conf = tree(&[(
        "registries.conf",
        "[[registry]]\nlocation = 'docker.io'\n[[registry.mirror]]\nlocation = 'm.io'",
    )]);
    let registries = Registries::read(ConfigurationFiles {
        main: Some(conf.path().join("registries.conf")),
        docker_daemons: vec![docker.path().join("daemon.json")],
        containerd_trees: vec![containerd.path().into()],
        ..ConfigurationFiles::default()
    })
    .unwrap();
    for (name, expected) in [
        (
            "docker.io/x",
            &[
                "m.io/library/x",
                "c.io:5000/library/x! d",
                "d.io/library/x",
                "registry-1.docker.io/library/x",
            ][..],
        ),
        ("r.io/x", &["real.io/x"]),
        ("s.io/x", &["s.io/x!"]),
        ("10.1.2.3:5000/x", &["10.1.2.3:5000/x!"]),
        ("11.1.2.3:5000/x", &["11.1.2.3:5000/x"]),
    ] {
        assert_eq!(reads(&registries, name), expected, "{name}");
    }
    let write = |name: &str| registries.route(&reference(name)).unwrap().write;
    let hub = write("docker.io/x");
    assert_eq!(
        hub.certificates.authorities,
        [Pem::from(containerd.path().join("docker.io/ca.pem"))]
    );
    // A registry that is read from another address is still written to its own.
    assert_eq!(told(&write("r.io/x")), "r.io/x");
    assert_eq!(told(&write("s.io/x")), "s.io/x!");
}

#[test]
fn whatever_a_file_says_is_read_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let prefix = text.replace(['\'', '\\', '\n'], "");
        let confs = [
            text.clone().into_owned(),
            format!("[[registry]]\nprefix = '{prefix}'\nlocation = 'a.io'\n"),
            format!("[[registry]]\nprefix = 'r.io/a'\nlocation = '{prefix}'\n"),
        ];
        for conf in confs {
            if let Ok(registries) = registries(&conf, &[]) {
                let _ = registries.route(&reference("r.io/a/b:1"));
                let _ = registries.candidates(&reference("a:1"));
            }
        }
    });
}
