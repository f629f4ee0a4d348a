//! What is pulled, what is not pulled again, and what is refused.

use std::fs;

use crate::common::registry::{PASSWORD, Registry, USER};
use crate::common::{Ran, TestEnv, tool};
use crate::pull::proxy::Proxy;
use crate::pull::{Bench, skopeo};

const FILES: [(&str, &str); 3] = [("a", "first"), ("b", "second"), ("c", "third")];

#[test]
fn what_skopeo_pushed_comes_in_and_nothing_comes_twice() {
    let bench = Bench::new();
    let (env, proxy) = (&bench.env, Proxy::start(&bench.registry.host));
    bench.fill("team/app:v1", &FILES, &[]);
    let name = format!("{}/team/app:v1", proxy.host);
    let first = env.imgctl(["pull", &name]).ok();
    assert_eq!(first.stdout().len(), 64);
    let listed = env.imgctl(["images", "--json"]).ok().json();
    assert_eq!(listed[0]["names"][0], *name, "{listed}");
    let tree = env.export(&name, "tree");
    assert_eq!(fs::read_to_string(tree.join("c")).unwrap(), "third");
    proxy.requests();
    let again = env.imgctl(["pull", "--json", &name]).ok().json();
    let requests = proxy.requests();
    let manifests = requests.iter().filter(|line| line.contains("/manifests/"));
    assert_eq!(manifests.count(), 1, "{requests:?}");
    assert!(!requests.iter().any(|line| line.contains("/blobs/")), "{requests:?}");
    assert_eq!(again[0]["blobs"]["copied"], 0, "{again}");
    assert_eq!(again[0]["blobs"]["existed"], 4, "{again}");
    assert_eq!(again[0]["bytesCopied"], 0, "{again}");
    // A changed image moves only what has changed.
    bench.fill("team/app:v1", &[FILES[0], FILES[1], ("c", "changed")], &[]);
    let changed = env.imgctl(["pull", "--json", &name]).ok().json();
    assert_eq!(changed[0]["blobs"]["copied"], 2, "{changed}");
    assert_eq!(proxy.blob_requests().len(), 2);
    // The policies: an image that is here is not asked for.
    for policy in ["missing", "never"] {
        env.imgctl(["pull", "--policy", policy, &name]).ok();
        assert_eq!(proxy.requests(), [""; 0]);
    }
    let missing = env.imgctl(["pull", "--policy=never", "reg.invalid/x:1"]).fails(3);
    assert!(missing.stderr().contains("never"), "{}", missing.stderr());
    drop(bench.registry);
    let newer = env.imgctl(["pull", "--policy=newer", "--retry=0", &name]).ok();
    assert!(newer.stderr().contains("using the image in the store"), "{}", newer.stderr());
}

#[test]
fn dockers_formats_and_every_compression_are_understood() {
    let bench = Bench::new();
    for compression in ["gzip", "zstd", "none"] {
        let root = bench.fill("a:v1", &FILES, &["--compression", compression]);
        let source = format!("oci:{}:localhost/a:v1", root.join("store").display());
        for format in ["oci", "v2s2"] {
            let target = format!("docker://{}", bench.name(&format!("{format}:{compression}")));
            // Docker's formats have no zstd.
            if (format, compression) == ("v2s2", "zstd") {
                continue;
            }
            let format = ["--format", format];
            let flags = ["copy", "--dest-tls-verify=false"];
            let words: Vec<&str> = flags.into_iter().chain(format).collect();
            skopeo(&[&words[..], &[&source, &target]].concat());
            let name = &target["docker://".len()..];
            bench.env.imgctl(["pull", "--unpack", &target]).ok();
            let tree = bench.env.export(name, &name.replace(['/', ':'], "-"));
            assert_eq!(fs::read_to_string(tree.join("b")).unwrap(), "second", "{name}");
        }
    }
}

#[test]
fn platforms_and_digests() {
    let bench = Bench::new();
    let env = &bench.env;
    bench.fill("multi:v1", &FILES, &["--platform", "linux/amd64,linux/arm64"]);
    let name = bench.name("multi:v1");
    let index = bench.digest("multi:v1");
    let architecture = |image: &str, arguments: &[&str]| {
        let words = ["inspect", "--format", "{{.OCIv1.Architecture}}", image];
        env.imgctl(words.iter().chain(arguments)).ok().stdout()
    };
    let host = env.imgctl(["pull", "--json", &name]).ok().json();
    assert_ne!(host[0]["digest"], *index);
    let ours = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    assert_eq!(architecture(&name, &[]), ours);
    env.imgctl(["pull", "--platform", "linux/arm64", &name]).ok();
    assert_eq!(architecture(&name, &[]), "arm64");
    let none = env.imgctl(["pull", "--platform", "linux/s390x", &name]).fails(3);
    assert!(none.stderr().contains("linux/amd64, linux/arm64"), "{}", none.stderr());
    let all = env.imgctl(["pull", "--json", "--all-platforms", &name]).ok().json();
    assert_eq!(all[0]["digest"], *index);
    for platform in ["amd64", "arm64"] {
        let wanted = ["--platform", &format!("linux/{platform}")].map(str::to_owned);
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        assert_eq!(architecture(&name, &wanted), platform);
    }
    // By digest, in a store that knows nothing yet.
    let by_digest = format!("{}@{index}", bench.name("multi"));
    let root = env.path("other");
    let other = |words: &[&str]| {
        let mut command = tool(crate::common::IMGCTL, ["--root"]);
        command.arg(&root).args(words);
        Ran::new(command)
    };
    let pulled = other(&["pull", "--json", &by_digest]).ok().json();
    assert_eq!(pulled[0]["digest"], *index);
    let names = other(&["images", "--json"]).ok().json();
    assert_eq!(names[0]["digest"], *index, "{names}");
    other(&["inspect", &by_digest]).ok();
    // A child of the index by its own digest.
    let child = env.imgctl(["inspect", "-t", "manifest", &name]).ok().json();
    let child = child["manifests"][1]["digest"].as_str().unwrap().to_owned();
    let by_digest = format!("{}@{child}", bench.name("multi"));
    let pulled = other(&["pull", "--json", &by_digest]).ok().json();
    assert_eq!(pulled[0]["digest"], *child);
}

#[test]
fn all_tags_and_remote_looks() {
    let bench = Bench::new();
    let env = &bench.env;
    bench.fill("team/app:v1", &FILES, &[]);
    bench.fill("team/app:v2", &FILES[..2], &[]);
    let repository = bench.name("team/app");
    assert_eq!(env.imgctl(["tags", &repository]).ok().stdout(), "v1\nv2");
    let listed = env.imgctl(["search", "tags", "--json", &repository]).ok().json();
    assert_eq!(listed["tags"], serde_json::json!(["v1", "v2"]));
    // Nothing is brought in by looking.
    let remote = format!("docker://{}", bench.name("team/app:v2"));
    let inspected = env.imgctl(["inspect", &remote]).ok().json();
    assert_eq!(inspected["OCIv1"]["config"]["Labels"]["test"], "yes");
    assert_eq!(inspected["FromImageDigest"], *bench.digest("team/app:v2"));
    let layers = env.imgctl(["inspect", "-t", "layer", &remote]).ok().json();
    assert_eq!(layers.as_array().unwrap().len(), 2);
    assert_eq!(env.imgctl(["images", "-q"]).ok().stdout(), "");
    env.imgctl(["pull", "--all-tags", &repository]).ok();
    let names = env.imgctl(["images", "--json"]).ok().json().to_string();
    assert!(names.contains("app:v1") && names.contains("app:v2"), "{names}");
    env.imgctl(["pull", "-a", &bench.name("team/app:v1")]).fails(2);
    let nowhere = env.imgctl(["pull", &bench.name("team/none:v1")]).fails(3);
    assert!(nowhere.stderr().contains("team/none"), "{}", nowhere.stderr());
    env.imgctl(["tags", &bench.name("team/none")]).fails(3);
}

#[test]
fn logins_and_certificates() {
    let env = TestEnv::new();
    let certificates = env.path("certs");
    fs::create_dir(&certificates).unwrap();
    let (certificate, key) = (certificates.join("ca.crt"), env.path("server.key"));
    let mut openssl = tool(
        "openssl",
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext".split(' '),
    );
    openssl
        .arg("subjectAltName=IP:127.0.0.1,DNS:localhost")
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    Ran::new(openssl).ok();
    let registry = Registry::with_tls(&certificate, &key);
    let bench = Bench { env, registry };
    let env = &bench.env;
    let context = env.context("app", "FROM scratch\nCOPY a /a\n", &[("a", "content")]);
    env.build("app:v1", &context);
    let login = format!("{USER}:{PASSWORD}");
    let name = bench.name("app:v1");
    skopeo(&[
        "copy",
        "--dest-tls-verify=false",
        "--dest-creds",
        &login,
        &format!("oci:{}:localhost/app:v1", env.root().join("store").display()),
        &format!("docker://{name}"),
    ]);
    let verified = "--tls-verify=true";
    let unknown = env.imgctl(["pull", verified, "--retry=0", "--creds", &login, &name]);
    assert!(!unknown.success(), "{}", unknown.report());
    let directory = certificates.to_str().unwrap();
    let anonymous = env.imgctl(["pull", verified, "--cert-dir", directory, &name]).fails(5);
    assert!(anonymous.stderr().contains("imgctl login"), "{}", anonymous.stderr());
    let wrong = ["pull", verified, "--cert-dir", directory, "--creds", "me:wrong", &name];
    let wrong = env.imgctl(wrong).fails(5);
    assert!(wrong.stderr().contains("from the command line"), "{}", wrong.stderr());
    assert!(!wrong.stderr().contains("me:wrong"), "{}", wrong.stderr());
    env.imgctl(["pull", verified, "--cert-dir", directory, "--creds", &login, &name]).ok();
    env.imgctl(["pull", "--tls-verify=false", "--creds", &login, &name]).ok();
}

#[test]
fn content_that_is_not_what_its_digest_says_stays_outside() {
    let bench = Bench::new();
    let env = &bench.env;
    bench.fill("bad:v1", &[("a", &crate::pull::noise(100_000))], &["--compression", "none"]);
    let name = bench.name("bad:v1");
    let layers = env.imgctl(["inspect", "-t", "layer", &format!("docker://{name}")]).ok().json();
    let digest = layers[0]["digest"].as_str().unwrap().to_owned();
    let hex = &digest["sha256:".len()..];
    let blob = format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
    let blob = bench.registry.data().join(blob);
    let mut content = fs::read(&blob).unwrap();
    content[50_000] ^= 1;
    fs::write(&blob, content).unwrap();
    for unpack in [&[][..], &["--unpack"]] {
        let words = ["pull", name.as_str()];
        let refused = env.imgctl(words.iter().chain(unpack)).fails(4);
        assert!(refused.stderr().contains(&digest), "{}", refused.stderr());
        assert!(refused.stderr().contains(&name), "{}", refused.stderr());
        assert_eq!(env.imgctl(["images", "-q"]).ok().stdout(), "");
        let store = env.root().join("store");
        assert!(!store.join("blobs/sha256").join(hex).exists());
        assert_eq!(fs::read_dir(store.join("snapshots")).unwrap().count(), 0);
        // What else was on its way may be gone on with; what is wrong may not.
        let left = fs::read_dir(store.join("ingest")).unwrap();
        let left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
        let is_wrong = |name: &&std::ffi::OsString| name.to_string_lossy().contains(hex);
        assert_eq!(left.iter().find(is_wrong), None);
        env.imgctl(["scrub"]).ok();
    }
}

#[test]
fn a_name_without_a_tag_means_latest_wherever_a_registry_is_asked() {
    let bench = Bench::new();
    let env = &bench.env;
    bench.fill("team/app:latest", &FILES, &[]);
    bench.fill("team/app:v1", &[("a", "other")], &[]);
    let (latest, other) = (bench.digest("team/app:latest"), bench.digest("team/app:v1"));
    let bare = bench.name("team/app");
    let remote = format!("docker://{bare}");
    let digest_in_store = |name: &str| {
        let listed = env.imgctl(["images", "--json", name]).ok().json();
        listed[0]["digest"].as_str().unwrap().to_owned()
    };
    // Pulled under the full name, with and without a transport.
    for written in [&bare, &remote] {
        let pulled = env.imgctl(["pull", "--json", written]).ok().json();
        assert_eq!(pulled[0]["name"], format!("{bare}:latest"), "{written}");
        assert_eq!(pulled[0]["digest"], *latest, "{written}");
        env.imgctl(["rmi", &format!("{bare}:latest")]).ok();
    }
    // Digests stay digests.
    let by_digest = format!("{bare}@{other}");
    let pulled = env.imgctl(["pull", "--json", &by_digest]).ok().json();
    assert_eq!(pulled[0]["digest"], *other);
    env.imgctl(["rmi", "--all", "--force"]).ok();
    // Copied: a bare name that only the registry has, and to a bare name.
    let copied = env.imgctl(["copy", &bare, &format!("{remote}/copy")]).ok().stdout();
    assert_eq!(copied, latest);
    assert_eq!(bench.digest("team/app/copy:latest"), latest);
    // Shown.
    for verb in [&["inspect", "-t", "manifest"][..], &["manifest", "inspect"][..]] {
        let shown = env.imgctl(verb.iter().chain(&[&*remote])).ok().json();
        assert_eq!(shown["layers"].as_array().unwrap().len(), FILES.len());
    }
    env.imgctl(["manifest", "create", "list", &bare]).ok();
    let list = env.imgctl(["manifest", "inspect", "list"]).ok().json();
    assert_eq!(list["manifests"][0]["digest"], *latest);
    // Built on.
    let kubefile = format!("FROM {bare}\nCOPY own /own\n");
    let context = env.context("on-top", &kubefile, &[("own", "x")]);
    env.build("built", &context);
    let tree = env.export("built", "built-tree");
    assert_eq!(fs::read_to_string(tree.join("c")).unwrap(), "third");
    assert_eq!(digest_in_store(&format!("{bare}:latest")), latest);
    // Pushed.
    let to = bench.name("team/pushed");
    env.imgctl(["push", "built", &to]).ok();
    assert_eq!(bench.digest("team/pushed:latest"), digest_in_store("built"));
    // Mirrored.
    let mirror = env.path("mirror");
    let mut save = env.command(["registry", "save", "--images", &bare, "--registry-dir"]);
    Ran::new({
        save.arg(&mirror);
        save
    })
    .ok();
    let listed = env.imgctl(["registry", "ls", mirror.to_str().unwrap()]).ok();
    assert!(listed.stdout().contains(&latest[7..19]), "{}", listed.stdout());
    // Signed and verified: the tag that is asked for is the tag that must be signed.
    let key = env.path("key");
    let mut generate = env.command(["key", "generate", "--output-key-prefix"]);
    generate.arg(&key).env("COSIGN_PASSWORD", "");
    Ran::new(generate).ok();
    let mut sign = env.command(["sign", "--key", "key.key", &bare]);
    Ran::new({
        sign.env("COSIGN_PASSWORD", "");
        sign
    })
    .ok();
    let verified = env.imgctl(["verify", "--json", "--key", "key.pub", &bare]).ok().json();
    assert_eq!(verified[0]["digest"], *latest, "{verified}");
    // Removed.
    env.imgctl(["registry", "rm", &bare]).ok();
    let gone = env.imgctl(["pull", &bare]).fails(3);
    assert!(gone.stderr().contains("latest"), "{}", gone.stderr());
    assert_eq!(bench.digest("team/app:v1"), other);
}
