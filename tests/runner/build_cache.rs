//! `--cache-from` and `--cache-to`: a second machine (a second store) finds what the first one built,
//! in Debian's docker-registry or in a directory; an unchanged cache sends nothing; a cache that lies,
//! is damaged or does not answer changes no image.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::common::proxy::{Fault, Proxy};
use crate::common::registry::Registry;
use crate::common::{IMGCTL, Ran, TestEnv, json, needs_root, noise};

mod remote;
mod tampered;
mod trust;

use serde_json::{Value, json};
use sha2::Digest as _;

const USAGE: i32 = 2;
const NETWORK: i32 = 7;

/// Three layers in the result, of which one does not compress and one is a directory that the build
/// makes, and one in another stage.
pub(crate) fn filled() -> TestEnv {
    let env = TestEnv::new();
    let kubefile = "FROM scratch AS first\nCOPY etc /data\nFROM scratch\nCOPY bin /bin\n\
        WORKDIR /work/dir\nCOPY --from=first /data/conf /etc/conf\n";
    env.context("context", kubefile, &[("bin/x", "#!/bin/sh\n"), ("etc/conf", "a=b\n")]);
    env.write("context/bin/large", noise(1, 1 << 20));
    set_times(&env.path("context"), 1_600_000_000);
    env
}

/// What a fresh clone does: the same files with other times.
pub(crate) fn set_times(directory: &Path, seconds: u64) {
    for entry in walkdir::WalkDir::new(directory) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        std::fs::File::open(entry.unwrap().path()).unwrap().set_modified(time).unwrap();
    }
}

/// `imgctl --json` with the store `machine`, which a new name makes an empty one.
pub(crate) fn on(env: &TestEnv, machine: &str) -> Command {
    let mut command = Command::new(IMGCTL);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", env.path("home"));
    command.arg("--json").arg("--root").arg(env.path(machine)).current_dir(env.path(""));
    command
}

/// Builds `context` on a machine.
pub(crate) fn build(env: &TestEnv, machine: &str, words: &[&str]) -> Ran {
    let mut command = on(env, machine);
    command.args(["build", "--network=none", "-t", "app"]).args(words).arg("context");
    Ran::new(command)
}

/// Digest of what was built, and how many steps came from the cache.
pub(crate) fn result(ran: Ran) -> (String, u64) {
    let json = ran.ok().json();
    (json["digest"].as_str().unwrap().to_owned(), json["cachedSteps"].as_u64().unwrap())
}

pub(crate) fn sha(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A cache in a directory, opened up: what a liar can do who may write it.
struct Layout {
    path: std::path::PathBuf,
}

impl Layout {
    fn blob(&self, digest: &Value) -> std::path::PathBuf {
        self.path.join("blobs").join(digest.as_str().unwrap().replace(':', "/"))
    }

    fn put(&self, bytes: &[u8]) -> String {
        let digest = sha(bytes);
        std::fs::write(self.path.join("blobs/sha256").join(&digest), bytes).unwrap();
        format!("sha256:{digest}")
    }

    fn manifest(&self) -> Value {
        let index = json(&self.path.join("index.json"));
        json(&self.blob(&index["manifests"][0]["digest"]))
    }

    fn records(&self) -> Value {
        let bytes = std::fs::read(self.blob(&self.manifest()["config"]["digest"])).unwrap();
        serde_json::from_slice(&zstd::decode_all(bytes.as_slice()).unwrap()).unwrap()
    }

    /// Replaces the records; all digests of documents are right again afterwards.
    fn set_records(&self, compressed: &[u8]) {
        let mut manifest = self.manifest();
        manifest["config"]["digest"] = json!(self.put(compressed));
        manifest["config"]["size"] = json!(compressed.len());
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let mut index = json(&self.path.join("index.json"));
        index["manifests"][0]["digest"] = json!(self.put(&bytes));
        index["manifests"][0]["size"] = json!(bytes.len());
        std::fs::write(self.path.join("index.json"), index.to_string()).unwrap();
    }

    fn change(&self, change: impl Fn(&mut Value)) {
        let mut records = self.records();
        change(&mut records);
        let text = serde_json::to_vec(&records).unwrap();
        self.set_records(&zstd::encode_all(text.as_slice(), 3).unwrap());
    }
}

/// All layers of all records.
fn layers(records: &mut Value) -> Vec<&mut Value> {
    let steps = records["steps"].as_object_mut().unwrap().values_mut();
    steps.flat_map(|step| step["layers"].as_array_mut().unwrap()).collect()
}

#[test]
fn another_machine_makes_the_same_image_whatever_the_times_of_its_files() {
    let (env, registry) = (filled(), Registry::start());
    let cache = format!("{}/team/app/cache:main", registry.host);
    let (first, _) = result(build(&env, "one", &["--cache-to", &cache]));
    set_times(&env.path("context"), 1_700_000_000);
    let (alone, cached) = result(build(&env, "two", &[]));
    assert_eq!(cached, 0);
    assert_ne!(alone, first, "the times are in the layers");
    let (second, cached) = result(build(&env, "three", &["--cache-from", &cache]));
    assert_eq!(second, first);
    assert_eq!(cached, 3);
    // All that the records name can be had with other tools, and nothing was fetched needlessly.
    let reads = registry.blobs_read();
    assert_eq!(reads.len(), 1, "only the records: {reads:?}");
}

#[test]
fn an_unchanged_cache_sends_nothing_and_a_change_sends_its_layer() {
    let (env, registry) = (filled(), Registry::start());
    let proxy = Proxy::start(&registry.host);
    let cache = format!("{}/team/cache", proxy.host);
    let both = ["--cache-from", &cache, "--cache-to", &cache];
    let (first, _) = result(build(&env, "one", &both));
    proxy.requests();
    let (second, _) = result(build(&env, "two", &both));
    assert_eq!(second, first);
    let requests = proxy.requests();
    let written: Vec<_> = requests
        .iter()
        .filter(|request| !matches!(&*request.method, "GET" | "HEAD"))
        .map(|request| &request.path)
        .collect();
    assert!(written.is_empty(), "{written:?}");
    assert!(requests.len() <= 5, "{}", requests.len());
    env.write("context/etc/conf", "a=c\n");
    result(build(&env, "three", &both));
    let uploads = proxy.count("POST", "/blobs/uploads/");
    // The layer of /etc and the records.
    assert_eq!(uploads, 2);
    // The layers of other builds stay.
    env.write("context/etc/conf", "a=b\n");
    set_times(&env.path("context/etc"), 1_650_000_000);
    assert_eq!(result(build(&env, "four", &both)).0, first);
}

#[test]
fn a_directory_holds_a_cache_without_what_nothing_names() {
    let env = filled();
    let (first, _) = result(build(&env, "one", &["--cache-to", "type=local,dest=cache,mode=max"]));
    set_times(&env.path("context"), 1_700_000_000);
    let (second, cached) = result(build(&env, "two", &["--cache-from", "type=local,src=cache"]));
    assert_eq!((second, cached), (first, 4), "mode=max has the other stage as well");
    let blobs = || std::fs::read_dir(env.path("cache/blobs/sha256")).unwrap().count();
    let before = blobs();
    env.write("context/etc/conf", "a=c\n");
    let both = ["--cache-from", "type=local,src=cache", "--cache-to", "type=local,dest=cache"];
    result(build(&env, "three", &both));
    assert_eq!(blobs(), before + 1, "one layer more; new records and a new manifest for the old");
    let layout = Layout { path: env.path("cache") };
    for layer in layout.manifest()["layers"].as_array().unwrap() {
        let bytes = std::fs::read(layout.blob(&layer["digest"])).unwrap();
        assert_eq!(json!(format!("sha256:{}", sha(&bytes))), layer["digest"]);
    }
}

#[test]
fn a_command_does_not_run_again_on_another_machine() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY --chmod=755 busybox /bin/sh\nCOPY --chmod=755 busybox /bin/cat\n\
        RUN cat /proc/sys/kernel/random/uuid >/id\nRUN cat /id /id >/ids\n";
    env.context("context", kubefile, &[]);
    std::fs::copy("/bin/busybox", env.path("context/busybox")).expect("no busybox: scripts/setup");
    let cache = "type=local,dest=cache";
    let (first, _) = result(build(&env, "one", &["--cache-to", cache]));
    let (other, _) = result(build(&env, "two", &[]));
    assert_ne!(first, other, "a command of which every run gives another result");
    let from = "type=local,src=cache";
    let trusting = &*format!("{from},trust=all");
    let (second, cached) = result(build(&env, "three", &["--cache-from", trusting]));
    assert_eq!((second, cached), (first.clone(), 4));
    let ran = build(&env, "four", &["--cache-from", from]).ok();
    assert!(ran.stderr().contains("trust=all"), "{}", ran.report());
    let (third, cached) = result(ran);
    assert_eq!(cached, 2, "what a command made cannot be verified");
    assert_ne!(third, first);
    // The layer of a command with other content than its digest says is not used.
    let layout = Layout { path: env.path("cache") };
    for layer in layers(&mut layout.records()) {
        std::fs::write(layout.blob(&layer["digest"]), b"other").unwrap();
    }
    let ran = build(&env, "five", &["--cache-from", trusting]).ok();
    assert!(ran.stderr().contains("is not used"), "{}", ran.report());
    assert_eq!(ran.json()["cachedSteps"], 2);
}

#[test]
fn a_cache_that_lies_changes_no_image() {
    let env = filled();
    let (expected, _) =
        result(build(&env, "one", &["--cache-to", "type=local,dest=good,mode=max"]));
    let copy = |name: &str| {
        let to = env.path(name);
        Ran::new(crate::common::tool("cp", [Path::new("-a"), &env.path("good"), &to])).ok();
        Layout { path: to }
    };
    let names_others = |records: &mut Value| {
        let all = layers(records);
        let members: Vec<Value> = all.iter().map(|layer| (**layer).clone()).collect();
        for (at, layer) in all.into_iter().enumerate() {
            *layer = members[(at + 1) % members.len()].clone();
        }
    };
    let set = |name: &'static str, value: Value| {
        move |records: &mut Value| {
            for layer in layers(records) {
                layer[name] = value.clone();
            }
        }
    };
    let digest = json!(format!("sha256:{}", sha(b"")));
    type Lie = Box<dyn Fn(&mut Value)>;
    let lies: Vec<(&str, Lie)> = vec![
        ("others", Box::new(names_others)),
        ("digest", Box::new(set("digest", digest.clone()))),
        ("diff", Box::new(set("diffId", digest))),
        ("size", Box::new(set("size", json!(1_u64 << 60)))),
        ("newest", Box::new(set("newest", json!(i64::MAX)))),
        ("times", Box::new(set("times", json!([[u64::MAX, 1], [2, 3]])))),
        ("no-times", Box::new(set("times", json!([])))),
        ("kind", Box::new(set("kind", json!("registry")))),
        ("type", Box::new(set("mediaType", json!("application/vnd.oci.image.layer.v1.tar")))),
        ("strange", Box::new(set("mediaType", json!("text/html")))),
        (
            "origin",
            Box::new(|records: &mut Value| {
                for step in records["steps"].as_object_mut().unwrap().values_mut() {
                    step["basis"] = json!("run");
                }
            }),
        ),
        ("version", Box::new(|records: &mut Value| records["version"] = json!(2))),
    ];
    for (name, lie) in lies {
        let layout = copy(name);
        layout.change(lie);
        let from = format!("type=local,src={name}");
        let (found, _) = result(build(&env, &format!("m-{name}"), &["--cache-from", &from]));
        assert_eq!(found, expected, "{name}");
    }
    // Not even records, or far too many of them.
    let spaces = std::io::Read::take(std::io::repeat(b' '), 300 << 20);
    let bomb = zstd::encode_all(spaces, 1).unwrap();
    for (name, bytes) in [("bomb", bomb), ("rubbish", noise(1, 4000)), ("empty", Vec::new())] {
        copy(name).set_records(&bytes);
        let from = format!("type=local,src={name}");
        let ran = build(&env, &format!("m-{name}"), &["--cache-from", &from]);
        assert!(ran.stderr().contains("cannot be used"), "{}", ran.report());
        assert_eq!(result(ran).0, expected, "{name}");
    }
    // An export replaces what cannot be read.
    let both = ["--cache-from", "type=local,src=rubbish", "--cache-to", "type=local,dest=rubbish"];
    result(build(&env, "m-rubbish", &both));
    let (_, cached) = result(build(&env, "m-repaired", &both[..2]));
    assert_eq!(cached, 3);
}

#[test]
fn a_cache_that_does_not_answer_is_a_warning() {
    let (env, registry) = (filled(), Registry::start());
    let proxy = Proxy::start(&registry.host);
    let cache = format!("{}/team/cache", proxy.host);
    let (expected, _) = result(build(&env, "one", &["--cache-to", &cache]));
    for (name, path, fault) in [
        ("lost", "/blobs/", Fault::answer("404 Not Found", &[], "")),
        ("other", "/blobs/", Fault::edit(|_, answer| answer.body[20] ^= 1)),
        ("denied", "/manifests/", Fault::answer("403 Forbidden", &[], "")),
        ("endless", "/manifests/", Fault::Endless),
    ] {
        proxy.on("GET", path, fault);
        let ran = build(&env, name, &["--cache-from", &cache]);
        assert!(ran.stderr().contains("cannot be used"), "{}", ran.report());
        assert_eq!(result(ran).0, expected, "{name}");
        proxy.behave();
    }
    let nobody = "127.0.0.1:1/team/cache";
    let ran = build(&env, "nobody", &["--retry=1", "--cache-from", nobody, "--cache-to", nobody]);
    assert!(ran.stderr().contains("cannot write the build cache"), "{}", ran.report());
    assert_eq!(result(ran).0, expected);
    let strict = format!("type=registry,ref={nobody},ignore-error=false");
    build(&env, "nobody", &["--retry=1", "--cache-to", &strict]).fails(NETWORK);
    build(&env, "nobody", &["--cache-to", "type=s3,bucket=x"]).fails(USAGE);
    // The name of an image is not a cache, and no cache replaces it unasked.
    let image = format!("{}/team/image", registry.host);
    let mut push = on(&env, "one");
    push.args(["push", "app", &image]);
    Ran::new(push).ok();
    let ran = build(&env, "image", &["--cache-from", &image]);
    assert!(ran.stderr().contains("it is an image"), "{}", ran.report());
    assert_eq!(result(ran).0, expected);
}

#[test]
fn writers_of_one_cache_at_the_same_time_all_survive() {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 4;
    let (env, registry) = (TestEnv::new(), Registry::start());
    for number in 0..WRITERS {
        let files = [("file", &*format!("{number}\n"))];
        env.context(&format!("c{number}"), "FROM scratch\nCOPY file /file\n", &files);
    }
    // A registry has no locks: a writer that pauses for longer than the others wait, between its look at
    // the name and its write, replaces theirs. On a busy machine one round can lose a record so.
    let lost = (0..ROUNDS).map(|round| {
        let cache = format!("{}/team/cache{round}", registry.host);
        let run = |number: usize, machine: String, flag: &str| {
            let mut command = on(&env, &machine);
            command.args(["build", "-t", "app", flag, &cache]);
            command.arg(env.path(format!("c{number}")));
            result(Ran::new(command))
        };
        std::thread::scope(|threads| {
            for number in 0..WRITERS {
                let run = &run;
                threads.spawn(move || run(number, format!("w{round}-{number}"), "--cache-to"));
            }
        });
        let cached = |number| run(number, format!("r{round}-{number}"), "--cache-from").1;
        WRITERS as u64 - (0..WRITERS).map(cached).sum::<u64>()
    });
    assert!(lost.into_iter().any(|lost| lost == 0), "each of {ROUNDS} rounds lost records");
}
