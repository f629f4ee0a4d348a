//! `load` of archives that lie: wrong digests, sizes and diff-ids, missing parts, documents that
//! are two things at once, bombs. Each is refused with one exit code and a sentence, and leaves
//! the store as it was.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Ran, TestEnv, long};
use crate::faults::archive::{
    CHARACTER_DEVICE, CONFIG, DIRECTORY, FIFO, FILE, INDEX, LAYER, Layout, MANIFEST, Tar,
    docker_archive, gzip, plain_layer, sha256, zstd,
};
use crate::faults::support::{
    Canary, assert_no_garbage, assert_no_mounts, assert_scrubs_clean, noise,
};

/// Foreign content that must be refused (docs/cli.md).
const BAD_CONTENT: i32 = 4;

/// A store with one sound image in it, and a canary beside it.
struct Fixture {
    env: TestEnv,
    canary: Canary,
}

impl Fixture {
    fn new() -> Self {
        let env = TestEnv::new();
        let canary = Canary::new(&env);
        env.write("sound.tar", Layout::of(&[plain_layer(b"sound")]).archive());
        env.imgctl(["load", "-i", "sound.tar", "--tag", "sound:v1"]).ok();
        Self { env, canary }
    }

    fn load(&self, archive: &[u8]) -> Ran {
        self.env.write("hostile.tar", archive);
        self.env.imgctl(["load", "-i", "hostile.tar"])
    }

    /// Panics unless `archive` is refused with this code and these words.
    #[track_caller]
    fn refuses(&self, what: &str, archive: &[u8], words: &str) {
        let ran = self.load(archive).fails(BAD_CONTENT);
        assert!(ran.stderr().contains(words), "{what}: {}", ran.report());
        assert!(!ran.stderr().contains("defect"), "{what}: {}", ran.report());
        self.canary.assert_untouched(what);
        let images = self.env.imgctl(["images", "-q"]).ok().stdout();
        assert_eq!(images.lines().count(), 1, "{what}");
        // What it has brought in is gone without a prune.
        assert_no_garbage(&self.env);
    }

    /// Panics unless `archive` is refused when its layers are unpacked, at once or later; without
    /// that, nobody looks into a layer before somebody needs what is in it.
    #[track_caller]
    fn refuses_when_unpacked(&self, what: &str, layout: &Layout, words: &str) {
        let says = |ran: &Ran| {
            assert!(ran.stderr().contains(words), "{what}: {}", ran.report());
            assert!(!ran.stderr().contains("defect"), "{what}: {}", ran.report());
        };
        self.env.write("hostile.tar", layout.archive());
        says(&self.env.imgctl(["load", "--unpack", "-i", "hostile.tar"]).fails(BAD_CONTENT));
        assert_no_garbage(&self.env);
        self.env.imgctl(["load", "-i", "hostile.tar"]).ok();
        for words in [["ls", "localhost/hostile:v1:/"], ["mount", "localhost/hostile:v1"]] {
            says(&self.env.imgctl(words).fails(BAD_CONTENT));
        }
        self.env.imgctl(["rmi", "localhost/hostile:v1"]).ok();
        self.canary.assert_untouched(what);
        assert_no_mounts(&self.env);
        assert_no_garbage(&self.env);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_scrubs_clean(&self.env);
        }
    }
}

fn sound() -> Layout {
    Layout::of(&[plain_layer(b"one"), gzip(&plain_layer(b"two")), zstd(&plain_layer(b"three"))])
}

#[test]
fn the_archives_are_sound_until_they_are_made_worse() {
    let fixture = Fixture::new();
    fixture.load(&sound().archive()).ok();
    let layers = [("a/layer.tar", plain_layer(b"x")), ("b/layer.tar", plain_layer(b"y"))];
    fixture.load(&docker_archive(&layers, Tar::new())).ok();
}

#[test]
fn oci_archives_that_lie() {
    let fixture = Fixture::new();
    let other = format!("sha256:{}", sha256(b"other"));
    let layer = plain_layer(b"one");
    let lies: Vec<(&str, Layout, &str)> = vec![
        ("flipped bit", sound().damage_layer(|layer| layer[700] ^= 1), "digest"),
        ("short blob", sound().damage_layer(|layer| layer.truncate(100)), "digest"),
        ("longer blob", sound().damage_layer(|layer| layer.push(0)), "digest"),
        (
            "wrong diff-id",
            Layout::with_diff_ids(std::slice::from_ref(&layer), &[sha256(b"else")]),
            "instead of",
        ),
        (
            "diff-id of the compressed bytes",
            Layout::with_diff_ids(&[gzip(&layer)], &[sha256(&gzip(&layer))]),
            "instead of",
        ),
        ("layer size that lies", sound().edit(|m| m["layers"][0]["size"] = json!(5)), "bytes"),
        ("huge size", sound().edit(|m| m["layers"][0]["size"] = json!(u64::MAX)), "bytes"),
        ("negative size", sound().edit(|m| m["layers"][0]["size"] = json!(-1)), "malformed"),
        ("config size that lies", sound().edit(|m| m["config"]["size"] = json!(5)), "bytes"),
        ("missing layer", sound().edit(|m| m["layers"][1]["digest"] = json!(other)), "missing"),
        ("missing config", sound().edit(|m| m["config"]["digest"] = json!(other)), "incomplete"),
        (
            "a path as digest",
            sound().edit(|m| m["layers"][0]["digest"] = json!("sha256:../../canary/file")),
            "digest",
        ),
        (
            "fewer diff-ids than layers",
            sound().edit_config(|c| drop(c["rootfs"]["diff_ids"].as_array_mut().unwrap().pop())),
            "layers",
        ),
        ("manifest and index at once", sound().edit(|m| m["manifests"] = json!([])), "manifest"),
        (
            "manifest that says it is an index",
            sound().edit(|m| m["mediaType"] = json!(INDEX)),
            "index",
        ),
        (
            "artifact",
            sound().edit(|m| m["config"]["mediaType"] = json!("application/x")),
            "artifact",
        ),
        (
            "config that is no JSON",
            {
                let mut layout = sound();
                let mut manifest = layout.manifest();
                manifest["config"] = layout.put(CONFIG, b"{\"os\":".to_vec());
                layout.set_manifest(&manifest);
                layout
            },
            "config",
        ),
    ];
    for (what, layout, words) in lies {
        fixture.refuses(what, &layout.archive(), words);
    }
}

#[test]
fn documents_that_are_not_what_they_should_be() {
    let fixture = Fixture::new();
    let document = |media: &str, bytes: Vec<u8>| {
        let mut layout = sound();
        layout.set_document(media, bytes);
        layout.archive()
    };
    let schema1 = json!({
        "schemaVersion": 1, "name": "x", "tag": "y", "architecture": "amd64",
        "fsLayers": [{"blobSum": format!("sha256:{}", sha256(b""))}], "history": [],
    });
    let many = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": format!("sha256:{}", sha256(b"c")), "size": 1},
        "layers": vec![
            json!({"mediaType": LAYER, "digest": format!("sha256:{}", sha256(b"l")), "size": 1});
            200_000
        ],
    });
    let deep = [vec![b'['; 200_000], vec![b']'; 200_000]].concat();
    let nested = nested_index(12);
    for (what, archive, words) in [
        ("schema 1", document(MANIFEST, schema1.to_string().into_bytes()), "schema"),
        ("200,000 layers", document(MANIFEST, many.to_string().into_bytes()), ""),
        ("deep JSON", document(MANIFEST, deep), "recursion"),
        ("manifest too big", document(MANIFEST, vec![b' '; 17 << 20]), "bytes"),
        ("indexes in indexes", nested.archive(), "nested"),
        (
            "an index of nothing that is there",
            {
                let child = json!({"mediaType": MANIFEST, "digest": format!("sha256:{}", sha256(b"z")),
                "size": 3, "platform": {"os": "linux", "architecture": "amd64"}});
                let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [child]});
                document(INDEX, index.to_string().into_bytes())
            },
            "platform",
        ),
        ("no image", Tar::new().file(b"a", b"b").end(), "not an image archive"),
        (
            "index that is too big",
            {
                let layout = sound();
                Tar::new()
                    .file(b"oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)
                    .file(
                        b"index.json",
                        &[layout.index.to_string().into_bytes(), vec![b' '; 17 << 20]].concat(),
                    )
                    .end()
            },
            "bytes",
        ),
        (
            "another version of the layout",
            {
                Tar::new()
                    .file(b"oci-layout", br#"{"imageLayoutVersion":"2.0.0"}"#)
                    .file(b"index.json", sound().index.to_string().as_bytes())
                    .end()
            },
            "version",
        ),
    ] {
        fixture.refuses(what, &archive, words);
    }
}

/// Indexes inside each other, an image in the innermost.
fn nested_index(depth: usize) -> Layout {
    let mut layout = sound();
    for _ in 0..depth {
        let child = layout.index["manifests"][0].clone();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [child]});
        layout.set_document(INDEX, index.to_string().into_bytes());
    }
    layout
}

#[test]
fn members_of_archives_that_are_not_files() {
    let fixture = Fixture::new();
    let canary = fixture.canary.path.join("file");
    let canary = canary.to_str().unwrap().as_bytes();
    let layers = || [("layer.tar", plain_layer(b"x"))];
    let linked = |extra: Tar| {
        let ids = [format!("sha256:{}", sha256(&plain_layer(b"x")))];
        let config = json!({"architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": ids}});
        extra
            .file(b"config.json", config.to_string().as_bytes())
            .file(
                b"manifest.json",
                json!([{"Config": "config.json", "RepoTags": ["x:1"], "Layers": ["layer.tar"]}])
                    .to_string()
                    .as_bytes(),
            )
            .end()
    };
    for (what, archive, words) in [
        (
            "symlink out",
            linked(Tar::new().symlink(b"layer.tar", b"../canary/file")),
            "outside the archive",
        ),
        (
            "absolute symlink",
            linked(Tar::new().symlink(b"layer.tar", canary)),
            "outside the archive",
        ),
        ("hard link out", linked(Tar::new().hard_link(b"layer.tar", b"../canary/file")), ""),
        ("hard link to nothing", linked(Tar::new().hard_link(b"layer.tar", b"gone")), "contain"),
        (
            "links in circles",
            linked(Tar::new().symlink(b"layer.tar", b"b").symlink(b"b", b"layer.tar")),
            "loop",
        ),
        ("..", docker_archive(&layers(), Tar::new().file(b"../canary/file", b"dead")), ".."),
        (
            "device",
            docker_archive(&layers(), Tar::new().entry(CHARACTER_DEVICE, b"null", b"", b"")),
            "device",
        ),
        ("pipe", docker_archive(&layers(), Tar::new().entry(FIFO, b"pipe", b"", b"")), "pipes"),
        (
            "two files of one name",
            docker_archive(&layers(), Tar::new().file(b"layer.tar", b"other")),
            "twice",
        ),
        (
            "a bad name",
            replace(
                &docker_archive(&layers(), Tar::new()),
                b"localhost/hostile:v1",
                b"../../../../etc/:../",
            ),
            "name",
        ),
    ] {
        fixture.refuses(what, &archive, words);
    }
    // An absolute name is one below the archive's top: nothing is written to it.
    let absolute = Tar::new().file(canary, b"dead").entry(DIRECTORY, b"/", b"", b"");
    fixture.load(&docker_archive(&layers(), absolute)).ok();
    fixture.canary.assert_untouched("absolute name");
    fixture.env.imgctl(["rmi", "localhost/hostile:v1"]).ok();
}

/// Replaces bytes by as many others; checksums cover headers only.
fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

#[test]
fn archives_that_are_cut_short_or_have_a_bit_flipped() {
    let fixture = Fixture::new();
    let archive = sound().archive();
    let end = archive.len() - 1024;
    for cut in (1..end).step_by(end / 9) {
        fixture.load(&archive[..cut]).fails(BAD_CONTENT);
    }
    let compressed = gzip(&archive);
    fixture.refuses("half a gzip", &compressed[..compressed.len() / 2], "");
    assert_no_garbage(&fixture.env);
    for (number, at) in (1..end).step_by(end / 11).enumerate() {
        let mut flipped = archive.clone();
        flipped[at] ^= 1 << (number % 8);
        // A bit of a header or of padding may mean nothing; content is never taken as it is.
        let ran = fixture.load(&flipped);
        if ran.success() {
            fixture.env.imgctl(["rmi", "--force", "localhost/hostile:v1"]).ok();
        } else {
            ran.fails(BAD_CONTENT);
        }
        assert_no_garbage(&fixture.env);
    }
    fixture.canary.assert_untouched("damaged archives");
}

#[test]
fn layers_that_are_not_what_their_digests_promise() {
    let fixture = Fixture::new();
    let layer = plain_layer(b"one");
    for (what, layout, words) in [
        ("no tar", Layout::of(&[gzip(&noise(1, 5000))]), "tar"),
        ("cut short", Layout::of(&[gzip(&layer[..514])]), ""),
        ("no gzip", Layout::with_diff_ids(&[gzip(&layer)[..60].to_vec()], &[sha256(&layer)]), ""),
        (
            "another diff-id",
            Layout::with_diff_ids(&[zstd(&layer)], &[sha256(b"else")]),
            "uncompressed layer",
        ),
    ] {
        fixture.refuses_when_unpacked(what, &layout, words);
    }
}

#[test]
fn decompression_bombs() {
    let fixture = Fixture::new();
    // More of nothing than any real content has: its digests are never looked at.
    let bomb = bomb(b"zeros");
    let layout = Layout::with_diff_ids(std::slice::from_ref(&bomb), &[sha256(b"any")]);
    fixture.refuses_when_unpacked("zstd bomb", &layout, "times its size");
    // An entry that says it has much more than there is.
    let huge = Tar::new().lying(b'0', b"huge", b"", b"", (8 << 30) - 1).end();
    let layout = Layout::of(&[gzip(&huge)]);
    fixture.refuses_when_unpacked("a file of 8 GiB that is not there", &layout, "");
    if long() {
        // The archive itself as a bomb; what it brings is on disk until it is refused.
        fixture.refuses("archive bomb", &bomb, "times its size");
    }
}

/// A compressed tar with a file of 4.5 GiB of zeros. Ratios are looked at beyond 4 GiB.
fn bomb(name: &[u8]) -> Vec<u8> {
    use std::io::Write;
    const SIZE: u64 = 4608 << 20;
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let header = Tar::new().lying(FILE, name, b"", b"", SIZE).end();
    encoder.write_all(&header[..512]).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..SIZE >> 20 {
        encoder.write_all(&zeros).unwrap();
    }
    encoder.write_all(&zeros[..1024]).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_bomb_takes_no_memory() {
    let fixture = Fixture::new();
    // A PAX header, a GNU long name and a sparse map that each claim a gigabyte.
    for (what, flag) in [("PAX header", b'x'), ("global PAX header", b'g'), ("long name", b'L')] {
        let layer = Tar::new().lying(flag, b"x", b"", &[b'a'; 4096], 1 << 30).end();
        let archive = Layout::of(&[gzip(&layer)]).archive();
        fixture.env.write("hostile.tar", &archive);
        let mut command = std::process::Command::new("prlimit");
        command.arg("--as=1500000000").arg(crate::common::IMGCTL);
        command.args([
            Path::new("--root"),
            &fixture.env.root(),
            Path::new("load"),
            Path::new("--unpack"),
            Path::new("-i"),
        ]);
        command.arg(fixture.env.path("hostile.tar"));
        let ran = Ran::new(command).fails(BAD_CONTENT);
        assert!(ran.stderr().contains("bytes"), "{what}: {}", ran.report());
    }
}

#[test]
fn a_plain_layer_that_is_no_tar_is_refused_when_it_is_used() {
    // Its digest holds, so it can be loaded; nothing can be made of it.
    let fixture = Fixture::new();
    for (what, layer) in [("noise", noise(1, 5000)), ("half", plain_layer(b"one")[..514].to_vec())]
    {
        fixture.load(&Layout::of(&[layer]).archive()).ok();
        let image = "localhost/hostile:v1";
        for way in [
            &["ls", "localhost/hostile:v1:/"][..],
            &["export", image, "-o", "out"],
            &["mount", image],
            &["mount", "--backend=checkout", image],
            &["save", "--format=docker-archive", image, "-o", "out.tar"],
        ] {
            let ran = fixture.env.imgctl(way);
            // What is copied whole needs no look inside.
            if way[0] != "save" || !ran.success() {
                ran.fails(BAD_CONTENT);
            }
            assert_no_mounts(&fixture.env);
            println!("{what}: {way:?} is refused");
        }
        fixture.env.imgctl(["rmi", image]).ok();
        assert_no_garbage(&fixture.env);
    }
}

#[test]
fn errors_are_json_on_request() {
    let fixture = Fixture::new();
    let layout = sound().damage_layer(|layer| layer[700] ^= 1);
    fixture.env.write("hostile.tar", layout.archive());
    let ran = fixture.env.imgctl(["--json", "load", "-i", "hostile.tar"]).fails(BAD_CONTENT);
    let error: Value = serde_json::from_str(&ran.stderr()).unwrap();
    assert_eq!(error["error"]["kind"], "bad-content", "{}", ran.report());
}
