//! `copy` between registries, the store, layouts and archives, with skopeo as referee.

use crate::pull::{Bench, skopeo};

const FILES: [(&str, &str); 2] = [("a", "first"), ("b", "second")];

#[test]
fn between_registries_nothing_changes_and_within_one_nothing_is_sent() {
    let bench = Bench::new();
    let env = &bench.env;
    let other = crate::common::registry::Registry::start();
    bench.fill("team/app:v1", &FILES, &["--platform", "linux/amd64,linux/arm64"]);
    let from = format!("docker://{}", bench.name("team/app:v1"));
    let digest = bench.digest("team/app:v1");
    let within = format!("docker://{}", bench.name("mirror/app:v1"));
    let words = ["copy", "--json", "--all-platforms", &from, &within];
    let mounted = env.imgctl(words).ok().json();
    assert_eq!(mounted["blobs"]["copied"], 0, "{mounted}");
    assert_eq!(mounted["bytesCopied"], 0, "{mounted}");
    assert_eq!(bench.digest("mirror/app:v1"), digest);
    let away = format!("docker://{}/app:v1", other.host);
    let copied = env.imgctl(["copy", "--all", &from, &away]).ok();
    assert_eq!(copied.stdout(), digest);
    let again = env.imgctl(["copy", "--json", "--all", &from, &away]).ok().json();
    assert_eq!(again["blobs"]["copied"], 0, "{again}");
    // One platform of it has another digest, unless that is forbidden.
    let one = format!("docker://{}/one:v1", other.host);
    assert_ne!(env.imgctl(["copy", &from, &one]).ok().stdout(), digest);
    env.imgctl(["copy", "--preserve-digests", &from, &one]).fails(2);
    // The store has seen none of it.
    assert_eq!(env.imgctl(["images", "-a", "-q"]).ok().stdout(), "");
}

#[test]
fn artifacts_go_from_registry_to_registry_but_not_into_the_store() {
    let bench = Bench::new();
    let env = &bench.env;
    let layout = env.path("artifact");
    let config = "{}";
    let config_digest = crate::pull::sha256(config.as_bytes());
    let layer_digest = crate::pull::sha256(b"chart");
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.cncf.helm.config.v1+json",
                   "digest": config_digest, "size": 2},
        "layers": [{"mediaType": "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
                    "digest": layer_digest, "size": 5}],
    })
    .to_string();
    let digest = crate::pull::sha256(manifest.as_bytes());
    for (name, content) in
        [(&config_digest, config), (&layer_digest, "chart"), (&digest, &manifest)]
    {
        let path = format!("artifact/blobs/{}", name.replace(':', "/"));
        env.write(path, content);
    }
    env.write("artifact/oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest, "size": manifest.len(),
    }]});
    env.write("artifact/index.json", index.to_string());
    let from = format!("oci:{}", layout.display());
    let there = format!("docker://{}", bench.name("chart:v1"));
    assert_eq!(env.imgctl(["copy", &from, &there]).ok().stdout(), digest);
    let further = format!("docker://{}", bench.name("other/chart:v1"));
    env.imgctl(["copy", &there, &further]).ok();
    assert_eq!(bench.digest("other/chart:v1"), digest);
    let refused = env.imgctl(["pull", &bench.name("chart:v1")]).fails(4);
    assert!(refused.stderr().contains("artifact"), "{}", refused.stderr());
}

#[test]
fn layouts_and_archives_are_read_and_written_as_skopeo_does() {
    let bench = Bench::new();
    let env = &bench.env;
    bench.fill("app:v1", &FILES, &[]);
    let remote = format!("docker://{}", bench.name("app:v1"));
    let path = |name: &str| env.path(name).display().to_string();
    let oci = format!("oci:{}:v1", path("layout"));
    let oci_archive = format!("oci-archive:{}:v1", path("oci.tar"));
    let docker_archive = format!("docker-archive:{}:reg.io/app:v1", path("docker.tar"));
    let directory = format!("dir:{}", path("dir"));
    let config = |place: &str| {
        let words = ["inspect", "--config", "--tls-verify=false", place];
        skopeo(&words).stdout()
    };
    for place in [&oci, &oci_archive, &docker_archive, &directory] {
        env.imgctl(["copy", &remote, place]).ok();
        assert_eq!(config(place), config(&remote), "{place}");
        // And back, into the store.
        let name = format!("from-{}", place.split(':').next().unwrap());
        env.imgctl(["copy", place, &name]).ok();
        let tree = env.export(&name, &format!("tree-{name}"));
        assert_eq!(std::fs::read_to_string(tree.join("b")).unwrap(), "second");
    }
    // A second image joins the first in a layout.
    bench.fill("app:v2", &FILES[..1], &[]);
    let second = format!("docker://{}", bench.name("app:v2"));
    env.imgctl(["copy", &second, &format!("oci:{}:v2", path("layout"))]).ok();
    assert_eq!(config(&oci), config(&remote));
    let unclear = format!("oci:{}", path("layout"));
    let several = env.imgctl(["copy", &unclear, "x"]).fails(2);
    assert!(several.stderr().contains("v1, v2"), "{}", several.stderr());
}
