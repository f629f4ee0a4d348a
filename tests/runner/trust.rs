//! Signatures, policies and SBOMs with docker-registry in between: openssl and NaCl read our keys
//! and signatures, we read those of skopeo with gpg; what is not good is refused by its reason.
//! (Debian's skopeo and podman are built without sigstore.)

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, json, tool};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const BAD_CONTENT: i32 = 4;
const DENIED: i32 = 5;
const BUSY: i32 = 6;

/// A registry with the image `app:v1`, and a key pair `ours`.
struct Site {
    env: TestEnv,
    registry: Registry,
}

impl Site {
    fn new() -> Self {
        let env = TestEnv::new();
        let registry = Registry::start();
        let context = env.context("context", "FROM scratch\nCOPY a /a\n", &[("a", "a\n")]);
        let site = Self { env, registry };
        site.env.build(&site.image("v1"), &context);
        site.env.imgctl(["push", &site.image("v1")]).ok();
        site.generate("ours");
        site
    }

    /// `127.0.0.1:PORT/team/app:TAG`.
    fn image(&self, tag: &str) -> String {
        format!("{}:{tag}", self.repository())
    }

    fn repository(&self) -> String {
        format!("{}/team/app", self.registry.host)
    }

    fn imgctl(&self, arguments: &[&str]) -> Ran {
        let mut command = self.env.command(arguments);
        command.env("COSIGN_PASSWORD", "pw");
        Ran::new(command)
    }

    fn generate(&self, prefix: &str) {
        self.imgctl(&["key", "generate", "--output-key-prefix", prefix]).ok();
    }

    fn sign(&self, more: &[&str]) -> Ran {
        let image = self.image("v1");
        let mut arguments = vec!["sign", "--key", "ours.key", &image];
        arguments.extend(more);
        self.imgctl(&arguments)
    }

    fn verify(&self, more: &[&str]) -> Ran {
        let image = self.image("v1");
        let mut arguments = vec!["verify", "--key", "ours.pub", &image];
        arguments.extend(more);
        self.imgctl(&arguments)
    }

    fn digest(&self, tag: &str) -> String {
        let image = format!("docker://{}", self.image(tag));
        let format = ["inspect", "--tls-verify=false", "--format", "{{.Digest}}"];
        Ran::new(tool("skopeo", format.iter().chain([&image.as_str()]))).ok().stdout()
    }

    /// The manifest at `tag`, as it is.
    fn raw(&self, tag: &str) -> serde_json::Value {
        let image = format!("docker://{}", self.image(tag));
        let arguments = ["inspect", "--tls-verify=false", "--raw", &image];
        Ran::new(tool("skopeo", arguments)).ok().json()
    }

    /// Where the registry keeps a blob.
    fn blob(&self, digest: &serde_json::Value) -> PathBuf {
        let hex = digest.as_str().unwrap().trim_start_matches("sha256:");
        let relative = format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
        self.registry.data().join(relative)
    }

    /// A policy that rejects everything but what fulfils `requirement` in our registry; gives its
    /// path.
    fn policy(&self, name: &str, requirement: &serde_json::Value) -> String {
        let policy = serde_json::json!({
            "default": [{ "type": "reject" }],
            "transports": { "docker": { &self.registry.host: [requirement] } },
        });
        let path = self.env.write(name, policy.to_string());
        path.to_str().unwrap().to_owned()
    }

    /// Requires a sigstore signature by `key` for this repository, under any tag.
    fn sigstore(&self, key: &str) -> String {
        let requirement = serde_json::json!({
            "type": "sigstoreSigned",
            "keyPath": self.env.path(key),
            "signedIdentity": { "type": "matchRepository" },
        });
        self.policy(&format!("policy-{key}.json"), &requirement)
    }

    /// registries.d of the user, for all tools that look at HOME.
    fn registries_d(&self, section: &str) -> PathBuf {
        let text = format!("docker:\n  {}:\n    {section}\n", self.registry.host);
        let path = ".config/containers/registries.d/test.yaml";
        self.env.write(path, text).parent().unwrap().to_owned()
    }

    fn pull(&self, policy: &str) -> Ran {
        let image = self.image("v1");
        let _ = self.env.imgctl(["rmi", &image]);
        self.imgctl(&["pull", "--signature-policy", policy, &image])
    }
}

#[test]
fn keys_are_made_once_and_kept_from_others() {
    let site = Site::new();
    let mode = |name: &str| {
        let metadata = std::fs::metadata(site.env.path(name)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!((mode("ours.key"), mode("ours.pub")), (0o600, 0o644));
    let again = ["key", "generate", "--output-key-prefix", "ours"];
    site.imgctl(&again).fails(BUSY);
    let public = site.imgctl(&["key", "public", "--key", "ours.key"]).ok();
    let written = std::fs::read_to_string(site.env.path("ours.pub")).unwrap();
    assert_eq!(public.stdout(), written.trim_end());
    let mut wrong = site.env.command(["key", "public", "--key", "ours.key"]);
    wrong.env("COSIGN_PASSWORD", "wrong");
    Ran::new(wrong).fails(DENIED);
    // Neither a variable nor a terminal.
    let asked = site.env.imgctl(["key", "public", "--key", "ours.key"]);
    let asked = asked.fails(USAGE);
    assert!(asked.stderr().contains("COSIGN_PASSWORD"), "{}", asked.report());
    let swapped = ["sign", "--key", "ours.pub", &site.image("v1")];
    let swapped = site.imgctl(&swapped).fails(BAD_CONTENT);
    assert!(swapped.stderr().contains("not a private key"));
}

#[test]
fn what_we_sign_is_good_for_openssl_and_for_the_policy() {
    let site = Site::new();
    let digest = site.digest("v1");
    let before = site.verify(&[]).fails(DENIED);
    assert!(before.stderr().contains("has no signatures"), "{}", before.report());
    let signed = site.sign(&[]).ok();
    assert_eq!(signed.stdout(), format!("{}@{digest}", site.repository()));
    let claims = site.verify(&[]).ok().json();
    let critical = &claims[0]["critical"];
    assert_eq!(critical["image"]["docker-manifest-digest"], digest);
    assert_eq!(critical["identity"]["docker-reference"], site.repository());

    // The signature is over the blob's very bytes.
    let tag = format!("{}.sig", digest.replace(':', "-"));
    let layer = &site.raw(&tag)["layers"][0];
    let signature = layer["annotations"]["dev.cosignproject.cosign/signature"].as_str();
    site.env.write("signature.base64", signature.unwrap());
    let payload = site.blob(&layer["digest"]);
    let mut openssl = tool("sh", ["-c"]);
    openssl
        .arg("base64 -d signature.base64 > signature && openssl dgst -sha256 -verify ours.pub -signature signature \"$0\"")
        .arg(payload)
        .current_dir(site.env.path("."));
    Ran::new(openssl).ok();

    site.generate("other");
    let (good, bad) = (site.sigstore("ours.pub"), site.sigstore("other.pub"));
    let refused = site.pull(&good).fails(DENIED);
    assert!(refused.stderr().contains("no place"), "{}", refused.report());
    site.registries_d("use-sigstore-attachments: true");
    site.pull(&bad).fails(DENIED);
    site.pull(&good).ok();
}

/// Opens and makes key files of cosign's form with other people's scrypt and NaCl.
const SEALED: &str = r#"
import base64, hashlib, json, os, textwrap
from nacl.secret import SecretBox
def box(n, salt):
    key = hashlib.scrypt(b"pw", salt=salt, n=n, r=8, p=1, maxmem=1 << 28, dklen=32)
    return SecretBox(key)
lines = open("ours.key").read().splitlines()
sealed = json.loads(base64.b64decode("".join(lines[1:-1])))
params, b64 = sealed["kdf"]["params"], base64.b64decode
opened = box(params["N"], b64(sealed["kdf"]["salt"])).decrypt(
    b64(sealed["ciphertext"]), b64(sealed["cipher"]["nonce"]))
open("ours.der", "wb").write(opened)
salt, nonce = os.urandom(32), os.urandom(24)
text = lambda data: base64.b64encode(data).decode()
sealed = {
    "kdf": {"name": "scrypt", "params": {"N": 65536, "r": 8, "p": 1}, "salt": text(salt)},
    "cipher": {"name": "nacl/secretbox", "nonce": text(nonce)},
    "ciphertext": text(box(65536, salt).encrypt(opened, nonce).ciphertext),
}
body = "\n".join(textwrap.wrap(text(json.dumps(sealed).encode()), 64))
label = "ENCRYPTED COSIGN PRIVATE KEY"
open("theirs.key", "w").write(f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
"#;

#[test]
fn key_files_are_those_of_cosign() {
    let env = TestEnv::new();
    let imgctl = |arguments: &[&str]| {
        let mut command = env.command(arguments);
        command.env("COSIGN_PASSWORD", "pw");
        Ran::new(command).ok()
    };
    imgctl(&["key", "generate", "--output-key-prefix", "ours"]);
    // Debian's, which has python3-nacl.
    let mut python = tool("/usr/bin/python3", ["-c", SEALED]);
    python.current_dir(env.path("."));
    Ran::new(python).ok();
    let mut openssl = tool("openssl", ["pkey", "-inform", "DER", "-in", "ours.der", "-pubout"]);
    openssl.current_dir(env.path("."));
    let public = std::fs::read_to_string(env.path("ours.pub")).unwrap();
    assert_eq!(Ran::new(openssl).ok().stdout(), public.trim_end());
    let theirs = imgctl(&["key", "public", "--key", "theirs.key"]);
    assert_eq!(theirs.stdout(), public.trim_end());
}

#[test]
fn a_signature_that_names_a_tag_counts_for_that_tag() {
    let site = Site::new();
    site.registries_d("use-sigstore-attachments: true");
    let (v1, v2) = (site.image("v1"), site.image("v2"));
    site.imgctl(&["tag", &v1, &v2]).ok();
    site.imgctl(&["push", &v2]).ok();
    // As skopeo and podman sign.
    site.sign(&["--sign-container-identity", &v2]).ok();
    let verify = |image: &str| site.imgctl(&["verify", "--key", "ours.pub", image]);
    verify(&v2).ok();
    let other = verify(&v1).fails(DENIED);
    assert!(other.stderr().contains(&format!("for the name {v2}")), "{}", other.report());
    let identity = ["verify", "--key", "ours.pub", "--identity", &v2, &v1];
    site.imgctl(&identity).ok();

    let exact =
        serde_json::json!({ "type": "sigstoreSigned", "keyPath": site.env.path("ours.pub") });
    let policy = site.policy("exact.json", &exact);
    let pull = |image: &str| site.imgctl(&["pull", "--signature-policy", &policy, image]);
    pull(&v2).ok();
    pull(&v1).fails(DENIED);
    pull(&format!("{}@{}", site.repository(), site.digest("v1"))).ok();
}

#[test]
fn signatures_add_up_and_are_made_once() {
    let site = Site::new();
    site.sign(&[]).ok();
    let again = site.sign(&["--json"]).ok().json();
    assert_eq!(again[0]["existed"], true);
    site.sign(&["-a", "commit=3f1c"]).ok();
    site.generate("other");
    let image = site.image("v1");
    site.imgctl(&["sign", "--key", "other.key", &image]).ok();
    let tag = format!("{}.sig", site.digest("v1").replace(':', "-"));
    assert_eq!(site.raw(&tag)["layers"].as_array().unwrap().len(), 3);
    site.verify(&["-a", "commit=3f1c"]).ok();
    site.verify(&["-a", "commit=other"]).fails(DENIED);
    assert_eq!(site.verify(&[]).ok().json().as_array().unwrap().len(), 2);
    site.imgctl(&["verify", "--key", "other.pub", &image]).ok();
}

#[test]
fn several_who_sign_at_once_lose_none() {
    let site = Site::new();
    let annotations: Vec<String> = (0..4).map(|number| format!("by={number}")).collect();
    std::thread::scope(|scope| {
        for annotation in &annotations {
            scope.spawn(|| site.sign(&["-a", annotation]).ok());
        }
    });
    // Registries have no compare-and-swap: one that was overwritten is there after another try.
    for annotation in &annotations {
        if !site.verify(&["-a", annotation]).success() {
            site.sign(&["-a", annotation]).ok();
        }
        site.verify(&["-a", annotation]).ok();
    }
}

#[test]
fn an_index_is_signed_with_all_it_lists_and_vouches_for_it() {
    let site = Site::new();
    let context = site.env.path("context");
    let image = site.image("multi");
    let platforms = "--platform=linux/amd64,linux/arm64";
    let build = ["build", platforms, "-t", &image, context.to_str().unwrap()];
    site.imgctl(&build).ok();
    site.imgctl(&["push", &image]).ok();
    let sign = |more: &[&str]| {
        let mut arguments = vec!["sign", "--json", "--key", "ours.key", &image];
        arguments.extend(more);
        site.imgctl(&arguments).ok().json()
    };
    assert_eq!(sign(&[]).as_array().unwrap().len(), 1);
    site.registries_d("use-sigstore-attachments: true");
    let policy = site.sigstore("ours.pub");
    site.imgctl(&["rmi", &image]).ok();
    // Only this machine's platform is taken out of the index that is signed.
    site.imgctl(&["pull", "--signature-policy", &policy, &image]).ok();
    let all = sign(&["--recursive"]);
    assert_eq!(all.as_array().unwrap().len(), 3);
    for signed in all.as_array().unwrap() {
        let name = signed["image"].as_str().unwrap();
        site.imgctl(&["verify", "--key", "ours.pub", name]).ok();
    }
}

#[test]
fn referrers_carry_signatures_too() {
    let site = Site::new();
    let signed = site.sign(&["--referrers", "--json"]).ok().json();
    let place = signed[0]["signature"].as_str().unwrap();
    assert!(place.starts_with("referrer sha256:"), "{place}");
    site.verify(&[]).ok();
    let again = site.sign(&["--referrers", "--json"]).ok().json();
    assert_eq!(again[0]["existed"], true);
}

#[test]
fn what_was_tampered_with_is_refused_by_its_reason() {
    let site = Site::new();
    site.sign(&[]).ok();
    let tag = format!("{}.sig", site.digest("v1").replace(':', "-"));
    let payload = site.blob(&site.raw(&tag)["layers"][0]["digest"]);
    let good = std::fs::read(&payload).unwrap();
    std::fs::write(&payload, vec![b' '; good.len()]).unwrap();
    let refused = site.verify(&[]).fails(DENIED);
    assert!(refused.stderr().contains("something else"), "{}", refused.report());
    std::fs::write(&payload, good).unwrap();
    site.verify(&[]).ok();

    // A signature of another image at our image's tag.
    let context = site.env.context("second", "FROM scratch\nCOPY b /b\n", &[("b", "b\n")]);
    let second = site.image("second");
    site.env.build(&second, &context);
    site.imgctl(&["push", &second]).ok();
    let moved = format!("{}.sig", site.digest("second").replace(':', "-"));
    let (from, to) =
        (format!("docker://{}", site.image(&tag)), format!("docker://{}", site.image(&moved)));
    let copy = [
        "--insecure-policy",
        "copy",
        "--src-tls-verify=false",
        "--dest-tls-verify=false",
        &from,
        &to,
    ];
    Ran::new(tool("skopeo", copy)).ok();
    let refused = site.imgctl(&["verify", "--key", "ours.pub", &second]).fails(DENIED);
    assert!(refused.stderr().contains("another image"), "{}", refused.report());

    site.imgctl(&["verify", "--key", "ours.pub", &site.image("missing")]).fails(NOT_FOUND);
}

/// A gpg home; its agent ends with the value.
struct Gpg(PathBuf);

impl Gpg {
    fn new(env: &TestEnv, name: &str) -> Self {
        let home = env.path(name);
        std::fs::create_dir(&home).unwrap();
        std::fs::set_permissions(&home, PermissionsExt::from_mode(0o700)).unwrap();
        let gpg = Self(home);
        let user = format!("{name}@example.com");
        let generate = ["--quick-gen-key", &user, "ed25519", "sign", "never"];
        Ran::new(gpg.command(&generate)).ok();
        let public = env.path(format!("{name}.gpg"));
        let export = ["--output", public.to_str().unwrap(), "--export", &user];
        Ran::new(gpg.command(&export)).ok();
        gpg
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command =
            tool("gpg", ["--batch", "--pinentry-mode", "loopback", "--passphrase", ""]);
        command.args(arguments).env("GNUPGHOME", &self.0);
        command
    }
}

impl Drop for Gpg {
    fn drop(&mut self) {
        let mut command = tool("gpgconf", ["--kill", "all"]);
        let _ = command.env("GNUPGHOME", &self.0).output();
    }
}

#[test]
fn simple_signatures_by_gpg_are_found_in_lookasides() {
    let site = Site::new();
    let (gpg, _other) = (Gpg::new(&site.env, "signer"), Gpg::new(&site.env, "other"));
    let lookaside = site.env.path("lookaside");
    let registries_d = site.registries_d(&format!("lookaside: file://{}", lookaside.display()));
    let by = |keys: &str| {
        let requirement = serde_json::json!({
            "type": "signedBy", "keyType": "GPGKeys", "keyPath": site.env.path(keys),
        });
        site.policy(&format!("{keys}.json"), &requirement)
    };
    let (good, bad) = (by("signer.gpg"), by("other.gpg"));
    let refused = site.pull(&good).fails(DENIED);
    assert!(refused.stderr().contains("there is none"), "{}", refused.report());

    let image = format!("docker://{}", site.image("v1"));
    let mut skopeo = tool("skopeo", ["--insecure-policy", "--registries.d"]);
    skopeo
        .arg(&registries_d)
        .args(["copy", "--src-tls-verify=false", "--dest-tls-verify=false"])
        .args(["--sign-by", "signer@example.com", &image, &image])
        .env("GNUPGHOME", &gpg.0);
    Ran::new(skopeo).ok();
    site.pull(&good).ok();
    let refused = site.pull(&bad).fails(DENIED);
    assert!(refused.stderr().contains("another key"), "{}", refused.report());
    let names = site.env.imgctl(["images", "-q", &site.image("v1")]);
    assert_eq!(names.stdout(), "", "a refused image got a name");

    // The same from a web server.
    let mut server = Server::start(&lookaside);
    site.registries_d(&format!("lookaside: http://127.0.0.1:{}", server.port));
    site.pull(&good).ok();
    server.stop();
    site.pull(&good).fails(7);
}

/// Files by HTTP.
struct Server {
    child: std::process::Child,
    port: u16,
}

impl Server {
    fn start(directory: &Path) -> Self {
        use std::io::BufRead as _;
        let script = "import http.server as h,sys,functools\n\
            s=h.ThreadingHTTPServer(('127.0.0.1',0),functools.partial(h.SimpleHTTPRequestHandler,directory=sys.argv[1]))\n\
            print(s.server_port,flush=True)\ns.serve_forever()\n";
        let mut child = tool("python3", ["-c", script])
            .arg(directory)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufReader::new(stdout).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap() }
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn policies_hold_for_pull_copy_and_from_and_only_there() {
    let site = Site::new();
    let image = site.image("v1");
    let reject = site.policy("reject.json", &serde_json::json!({ "type": "reject" }));
    let context = site.env.context("child", &format!("FROM {image}\nCOPY c /c\n"), &[("c", "c")]);
    let context = context.to_str().unwrap();
    site.env.imgctl(["rmi", &image]).ok();
    let source = format!("docker://{image}");
    let to = format!("oci:{}", site.env.path("layout").display());
    for arguments in
        [vec!["pull", &image], vec!["copy", &source, &to], vec!["build", "-t", "child:v1", context]]
    {
        let mut denied = arguments.clone();
        denied.extend(["--signature-policy", &reject]);
        let ran = site.imgctl(&denied).fails(DENIED);
        assert!(ran.stderr().contains("reject"), "{}", ran.report());
        site.imgctl(&arguments).ok();
        let _ = site.env.imgctl(["rmi", &image]);
    }
    // A policy at its usual place counts without being named; one that is not understood lets
    // nothing through.
    let usual = ".config/containers/policy.json";
    for (text, code) in [
        (r#"{"default": [{"type": "reject"}]}"#, DENIED),
        (r#"{"default": [{"type": "later"}]}"#, BAD_CONTENT),
    ] {
        site.env.write(usual, text);
        site.imgctl(&["pull", &image]).fails(code);
    }
    site.env.write(usual, r#"{"default": [{"type": "insecureAcceptAnything"}]}"#);
    site.imgctl(&["pull", &image]).ok();
    let missing = ["pull", "--signature-policy", "/nonexistent", &image];
    site.imgctl(&missing).fails(NOT_FOUND);
}

#[test]
fn an_sbom_names_files_layers_packages_and_embedded_images() {
    let site = Site::new();
    let app = site.image("v1");
    let digest = site.digest("v1");
    let status =
        "Package: libc6\nStatus: install ok installed\nVersion: 2.36\nArchitecture: amd64\n";
    let context = site.env.context(
        "cluster",
        "FROM scratch\nCOPY . .\n",
        &[
            ("etc/hosts", "::1 localhost\n"),
            ("etc/os-release", "ID=debian\n"),
            ("var/lib/dpkg/status", status),
            ("images/shim/list", &format!("{app}\n")),
        ],
    );
    let cluster = format!("{}/team/cluster:v1", site.registry.host);
    site.env.build(&cluster, &context);
    let sbom = |more: &[&str]| {
        let mut arguments = vec!["sbom", &cluster];
        arguments.extend(more);
        site.imgctl(&arguments).ok()
    };
    let document = sbom(&[]).json();
    assert_eq!(sbom(&[]).json(), document);
    let names = |list: &serde_json::Value, member: &str| -> Vec<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|part| part[member].as_str().unwrap().to_owned()).collect()
    };
    let packages = names(&document["packages"], "name");
    assert!(packages.contains(&"libc6".to_owned()), "{packages:?}");
    let embedded = document["packages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|package| package["name"] == "team/app")
        .unwrap_or_else(|| panic!("{packages:?}"));
    assert_eq!(embedded["versionInfo"], "v1");
    assert_eq!(embedded["checksums"][0]["checksumValue"], digest[7..]);
    assert!(names(&document["files"], "fileName").contains(&"./etc/hosts".to_owned()));
    let hosts =
        &document["files"].as_array().unwrap().iter().find(|f| f["fileName"] == "./etc/hosts");
    let sums = &hosts.unwrap()["checksums"];
    let mut sha = tool("sha256sum", [context.join("etc/hosts")]);
    let sha = Ran::new({
        sha.env("LC_ALL", "C");
        sha
    })
    .ok()
    .stdout();
    assert!(sha.starts_with(sums[1]["checksumValue"].as_str().unwrap()));

    // Attached, it is found by whoever asks for what refers to the image.
    let attach = ["--files=false", "--attach", "-o", "sbom.json"];
    let mut arguments = vec!["sbom", &cluster];
    arguments.extend(attach);
    site.imgctl(&arguments).fails(NOT_FOUND);
    site.imgctl(&["push", &cluster]).ok();
    sbom(&attach);
    let written = json(&site.env.path("sbom.json"));
    assert!(written.get("files").is_none());
    let place = sbom(&["--files=false", "--attach"]).stdout();
    let raw = ["inspect", "--tls-verify=false", "--raw"];
    let manifest = Ran::new(tool("skopeo", raw.iter().chain([&&*format!("docker://{place}")])));
    let manifest = manifest.ok().json();
    assert_eq!(manifest["artifactType"], "application/spdx+json");
    let blob = site.blob(&manifest["layers"][0]["digest"]);
    assert_eq!(json(&blob), written);
}

#[test]
fn a_build_writes_the_list_that_sbom_gives() {
    let site = Site::new();
    let context = site.env.context("made", "FROM scratch\nCOPY a /a\n", &[("a", "x")]);
    let context = context.to_str().unwrap();
    let made = ["build", "--sbom=sbom.json", "-t", "made:v1", context];
    site.imgctl(&made).ok();
    let written = std::fs::read_to_string(site.env.path("sbom.json")).unwrap();
    let shown = site.imgctl(&["sbom", "made:v1"]).ok().stdout();
    assert_eq!(shown, written.trim_end());
    let both = "--platform=linux/amd64,linux/arm64";
    site.imgctl(&["build", both, "--sbom=both.json", context]).fails(2);
    assert!(!site.env.path("both.json").exists());
}

#[test]
fn provenance_names_kubefile_arguments_bases_and_embedded_images() {
    let site = Site::new();
    let app = site.image("v1");
    let kubefile = format!("FROM {app}\nARG VERSION\nARG API_TOKEN\nCOPY images images\n");
    let list = format!("{app}\n");
    let context = site.env.context("made", &kubefile, &[("images/shim/list", &list)]);
    let made = format!("{}/team/made:v1", site.registry.host);
    let build = || {
        let arguments = [
            "build",
            "--provenance=provenance.json",
            "--build-arg=VERSION=1",
            "--build-arg=API_TOKEN=s3cret",
            "-t",
            &made,
            context.to_str().unwrap(),
        ];
        site.imgctl(&arguments).ok();
        std::fs::read_to_string(site.env.path("provenance.json")).unwrap()
    };
    let text = build();
    assert_eq!(build(), text);
    assert!(!text.contains("s3cret"));
    let statement: serde_json::Value = serde_json::from_str(&text).unwrap();
    let definition = &statement["predicate"]["buildDefinition"];
    let parameters = &definition["externalParameters"];
    assert_eq!(parameters["buildArgs"]["VERSION"], "1");
    let sum = Ran::new(tool("sha256sum", [context.join("Kubefile")])).ok().stdout();
    let digest = parameters["kubefile"]["digest"]["sha256"].as_str().unwrap();
    assert!(sum.starts_with(digest), "{sum} {digest}");
    let materials = definition["resolvedDependencies"].as_array().unwrap();
    let digest = site.digest("v1");
    let uris: Vec<&str> = materials
        .iter()
        .map(|material| {
            assert_eq!(material["digest"]["sha256"], digest[7..]);
            material["uri"].as_str().unwrap()
        })
        .collect();
    let platform = imgctl_base::image::Platform::host().to_string().replace('/', "%2F");
    let base = format!("pkg:docker/{}?platform={platform}", app.replace(":v1", "@v1"));
    assert_eq!(uris, [base.as_str(), "pkg:docker/team/app@v1"]);

    site.imgctl(&["push", &made]).ok();
    let attached = site.imgctl(&["attach", "provenance.json", &made]).ok();
    let raw = ["inspect", "--tls-verify=false", "--raw"];
    let place = format!("docker://{}", attached.stdout());
    let manifest = Ran::new(tool("skopeo", raw.iter().chain([&&*place])));
    let manifest = manifest.ok().json();
    assert_eq!(manifest["artifactType"], "application/vnd.in-toto+json");
    let subject = &statement["subject"][0]["digest"]["sha256"];
    let of = manifest["subject"]["digest"].as_str().unwrap();
    assert_eq!(of.trim_start_matches("sha256:"), subject);
    site.imgctl(&["attach", "context/a", &made]).fails(USAGE);
}
