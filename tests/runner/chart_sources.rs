//! Charts that `imgctl init` takes from servers: at an address, and in a registry.

use std::fs;
use std::io::{Cursor, Read};

use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest, Reference, media_type};
use imgctl_registry::{Client, ClientOptions, Target};

use super::recipes::init;
use crate::common::proxy::{Fault, Proxy};
use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, repository, tool};

const NOT_FOUND: i32 = 3;
const BAD_CONTENT: i32 = 4;

/// The chart of the examples, packed.
fn packed(env: &TestEnv) -> Vec<u8> {
    let packed = env.path("hello.tgz");
    let charts = repository().join("Kubefile.examples/app-helm/charts");
    let arguments = ["-C", charts.to_str().unwrap(), "-czf", packed.to_str().unwrap(), "hello"];
    Ran::new(tool("tar", arguments)).ok();
    fs::read(&packed).unwrap()
}

#[test]
fn a_chart_alone_becomes_an_application_also_from_a_server() {
    let env = TestEnv::new();
    let packed = packed(&env);
    let server = Proxy::alone("127.0.0.1");
    server.on("GET", "/hello-0.1.0.tgz", Fault::answer("200 OK", &[], packed.clone()));
    server.on("GET", "/page.tgz", Fault::answer("200 OK", &[], "<html>not a chart</html>"));
    let url = |name: &str| format!("http://{}/{name}", server.host);
    let folder = env.path("app");
    let place = folder.to_str().unwrap();
    for (name, code, expected) in [
        ("none.tgz", 7, "the server answered 404"),
        ("page.tgz", BAD_CONTENT, "is not a packed chart"),
    ] {
        let ran = init(&env, &[place, "--from-helm", &url(name)]).fails(code);
        assert!(ran.stderr().contains(expected), "{}", ran.report());
        assert!(!folder.exists());
    }
    init(&env, &[place, "--from-helm", &url("hello-0.1.0.tgz")]).ok();
    assert_eq!(fs::read(folder.join("charts/hello.tgz")).unwrap(), packed);
    let kubefile = fs::read_to_string(folder.join("Kubefile")).unwrap();
    assert!(kubefile.contains("bin/") && !kubefile.contains("sealos.io.type"), "{kubefile}");
    let found = env.imgctl(["build", "--images-report", "--json", place]).ok().json();
    assert_eq!(found["images"][0]["name"], "docker.io/library/nginx:1.29-alpine", "{found}");
    assert!(!folder.join("Clusterfile").exists());
}

/// Puts a chart into a registry as `helm push` does. Returns the digest of its manifest.
fn push_chart(registry: &Registry, name: &str, bytes: &[u8], config: &str) -> String {
    let client = Client::new(ClientOptions::default()).unwrap();
    let reference = Reference::parse(&format!("{}/{name}", registry.host)).unwrap();
    let repository = client.repository(&reference).unwrap();
    let put = |kind: &str, bytes: &[u8]| {
        let blob = Descriptor::new(kind, Digest::of(bytes), bytes.len() as u64);
        let own = bytes.to_vec();
        let open = move |offset: u64| -> Result<Box<dyn Read + Send>> {
            Ok(Box::new(Cursor::new(own[usize::try_from(offset).unwrap()..].to_vec())))
        };
        repository.push_blob(&blob, &[], &open, &|_| {}).unwrap();
        blob
    };
    let content = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": put(config, b"{\"name\":\"hello\"}"),
        "layers": [put(content, bytes)],
    });
    let text = manifest.to_string();
    repository
        .push_document(&Target::of(&reference), media_type::OCI_MANIFEST, text.as_bytes())
        .unwrap();
    Digest::of(text.as_bytes()).to_string()
}

#[test]
fn a_chart_of_a_registry_is_taken_by_its_digest_and_locked() {
    const HELM: &str = "application/vnd.cncf.helm.config.v1+json";
    let (env, registry) = (TestEnv::new(), Registry::start());
    let bytes = packed(&env);
    push_chart(&registry, "team/hello:0.2.0-rc.1", &bytes, HELM);
    push_chart(&registry, "team/hello:0.0.9", b"an old one", HELM);
    let manifest = push_chart(&registry, "team/hello:0.1.0", &bytes, HELM);
    push_chart(&registry, "team/image:1", &bytes, media_type::OCI_CONFIG);
    push_chart(&registry, "team/broken:1", b"not a chart", HELM);
    push_chart(&registry, "team/unreleased:latest", &bytes, HELM);

    let folder = env.path("app");
    let place = folder.to_str().unwrap();
    let address = |name: &str| format!("oci://{}/team/{name}", registry.host);
    let other = Digest::of(b"other");
    for (name, code, expected) in [
        ("nothing:1", NOT_FOUND, "cannot take the chart"),
        ("image:1", BAD_CONTENT, "is not a Helm chart but of the type"),
        ("broken:1", BAD_CONTENT, "is not a packed chart"),
        ("unreleased", NOT_FOUND, "has no released version"),
        (&*format!("hello@{other}"), NOT_FOUND, "cannot take the chart"),
    ] {
        let ran = init(&env, &[place, "--from-helm", &address(name)]).fails(code);
        assert!(ran.stderr().contains(expected), "{name}: {}", ran.report());
        assert!(!folder.exists(), "{name}");
    }
    // The newest released version, and the lock says which that was.
    init(&env, &[place, "--from-helm", &address("hello")]).ok();
    assert_eq!(fs::read(folder.join("charts/hello.tgz")).unwrap(), bytes);
    let locked = env.imgctl(["lock", "--json", place]).ok().json()["charts"].clone();
    let expected = serde_json::json!([{
        "file": "charts/hello.tgz", "from": address("hello:0.1.0"), "manifest": manifest,
        "digest": Digest::of(&bytes).to_string(),
    }]);
    assert_eq!(locked, expected);
    let shown = env.imgctl(["lock", place]).ok().stdout();
    assert!(shown.contains(&address("hello:0.1.0")), "{shown}");
    let report = ["build", "--images-report", place];
    env.imgctl(report).ok();

    // A part that comes later leaves the entry, and a chart that comes later gets one.
    init(&env, &[place, "--add", "helm", "--chart", &address(&format!("hello@{manifest}"))]).ok();
    assert_eq!(env.imgctl(["lock", "--json", place]).ok().json()["charts"], expected);
    fs::remove_file(folder.join("imgctl.lock")).unwrap();
    fs::write(folder.join("imgctl.lock"), "version = 1\n").unwrap();
    let by_digest = address(&format!("hello@{manifest}"));
    init(&env, &[place, "--add", "helm", "--chart", &by_digest]).ok();
    let later = env.imgctl(["lock", "--json", place]).ok().json()["charts"].clone();
    assert_eq!((&later[0]["from"], &later[0]["manifest"]), (&by_digest.into(), &manifest.into()));

    // Somebody puts another one in its place.
    let mut changed = bytes.clone();
    changed.extend([0; 8]);
    fs::write(folder.join("charts/hello.tgz"), &changed).unwrap();
    for more in [&[][..], &["--locked"]] {
        let ran = env.imgctl([&report[..], more].concat()).fails(BAD_CONTENT);
        for part in ["charts/hello.tgz is not the chart in", &Digest::of(&changed).to_string()] {
            assert!(ran.stderr().contains(part), "{part}: {}", ran.report());
        }
    }
    fs::remove_file(folder.join("charts/hello.tgz")).unwrap();
    let gone = env.imgctl(report).fails(BAD_CONTENT);
    assert!(gone.stderr().contains("is not there"), "{}", gone.report());
}
