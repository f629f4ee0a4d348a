//! Blobs and lengths that are not what the manifest says, and answers without an end.

use std::time::Duration;

use serde_json::json;

use crate::common::long;
use crate::common::proxy::Fault;
use crate::faults::archive::{Layout, Tar, gzip, plain_layer, sha256, zstd};
use crate::registry_faults::bench::{BAD_CONTENT, Bench, CHECK_FAILED, NETWORK, says};

const BLOB: &str = "/v2/team/app/blobs/";

#[test]
fn a_blob_of_another_content() {
    let bench = Bench::new();
    let digest = bench.layer();
    bench.proxy.on(
        "GET",
        &format!("{BLOB}{digest}"),
        Fault::edit(|_, answer| {
            let middle = answer.body.len() / 2;
            answer.body[middle] ^= 1;
        }),
    );
    let words = [&*digest, "other content", &bench.repository(), "hint:"];
    bench.refuses("a flipped bit", BAD_CONTENT, &words);
    bench.proxy.behave();
    bench.pulls(&[]);
}

#[test]
fn a_blob_of_another_length() {
    let bench = Bench::new();
    let digest = bench.layer();
    let path = format!("{BLOB}{digest}");
    let repository = bench.repository();
    for (what, fault, code) in [
        ("shorter, and says so", Fault::edit(|_, answer| answer.body.truncate(1000)), BAD_CONTENT),
        (
            "longer, and says so",
            Fault::edit(|_, answer| answer.body.extend([0; 1000])),
            BAD_CONTENT,
        ),
        (
            "said to be longer than any disk",
            Fault::edit(|_, answer| answer.length = Some(usize::MAX >> 1)),
            BAD_CONTENT,
        ),
        ("nothing", Fault::answer("200 OK", &[], ""), BAD_CONTENT),
        ("no content", Fault::answer("204 No Content", &[], ""), BAD_CONTENT),
        (
            "shorter than it says, every time anew",
            Fault::edit(|_, answer| {
                answer.length = Some(answer.body.len());
                answer.body.clear();
            }),
            NETWORK,
        ),
        ("endless", Fault::Endless, BAD_CONTENT),
    ] {
        bench.proxy.on("GET", &path, fault);
        bench.refuses(what, code, &[&digest, &repository]);
        bench.proxy.behave();
    }
}

#[test]
fn a_config_of_another_content() {
    let bench = Bench::new();
    let (manifest, _) = bench.manifest();
    let digest = manifest["config"]["digest"].as_str().unwrap();
    let path = format!("{BLOB}{digest}");
    for (what, fault) in [
        ("another config", Fault::edit(|_, answer| answer.body[10] ^= 1)),
        ("an endless config", Fault::Endless),
    ] {
        bench.proxy.on("GET", &path, fault);
        bench.refuses(what, BAD_CONTENT, &[digest, &bench.repository()]);
        bench.proxy.behave();
    }
}

/// Unpacking refuses it; without, nobody looks into a layer before somebody needs what is in it.
#[track_caller]
fn refused_when_it_is_unpacked(what: &str, layout: &Layout, word: &str) {
    let bench = Bench::of(layout);
    let ran = bench.pull(["--unpack"]).fails(BAD_CONTENT);
    says(what, &ran, &[&bench.repository(), word]);
    bench.assert_nothing_left();
    bench.pull([""; 0]).ok();
    let files = format!("{}:/", bench.name());
    for words in [&["ls", &*files][..], &["mount", &bench.name()]] {
        let ran = bench.env.imgctl(words).fails(BAD_CONTENT);
        says(what, &ran, &[word]);
    }
    bench.env.imgctl(["scrub", "--deep"]).fails(CHECK_FAILED);
    bench.env.imgctl(["rmi", "--all", "--yes"]).ok();
    bench.env.imgctl(["prune", "--all"]).ok();
    bench.assert_nothing_left();
}

#[test]
fn layers_that_are_not_what_the_config_says() {
    let layer = gzip(&plain_layer(b"x"));
    let other = Layout::with_diff_ids(std::slice::from_ref(&layer), &[sha256(b"another")]);
    refused_when_it_is_unpacked("another diff-id", &other, "uncompressed");
    let truncated = gzip(&plain_layer(b"x")[..512]);
    refused_when_it_is_unpacked("half a tar", &Layout::of(&[truncated]), "layer");

    let layout = Layout::of(&[layer]);
    let fewer = layout.edit_config(|config| config["rootfs"]["diff_ids"] = json!([]));
    let bench = Bench::of(&fewer);
    bench.refuses("no diff-ids", BAD_CONTENT, &["layers"]);
}

#[test]
fn a_decompression_bomb() {
    // Frames of zeros one after another: more than 4 GiB, beyond which ratios are looked at.
    let header = Tar::new().lying(b'0', b"zeros", b"", b"", 8 << 30).end();
    let mut bomb = zstd(&header[..512]);
    let zeros = zstd(&vec![0; 64 << 20]);
    for _ in 0..72 {
        bomb.extend_from_slice(&zeros);
    }
    let mut layout = Layout::with_diff_ids(&[], &[]).edit_config(|config| {
        config["rootfs"]["diff_ids"] = json!([format!("sha256:{}", sha256(b"any"))]);
    });
    let layer = layout.put("application/vnd.oci.image.layer.v1.tar+zstd", bomb);
    let layout = layout.edit(|manifest| manifest["layers"] = json!([layer]));
    let bench = Bench::of(&layout);
    if long() {
        let ran = bench.pull(["--unpack"]).fails(BAD_CONTENT);
        says("unpacked", &ran, &["times its size", &bench.repository()]);
        bench.assert_nothing_left();
    }
    bench.pull([""; 0]).ok();
    let files = format!("{}:/", bench.name());
    let ran = bench.env.imgctl(["ls", &files]).fails(BAD_CONTENT);
    says("looked into", &ran, &["times its size"]);
}

#[test]
fn an_answer_that_comes_too_slowly_is_given_up() {
    // The patience of the binary is a minute; the client's own tests have less.
    if !long() {
        return;
    }
    let bench = Bench::new();
    let digest = bench.layer();
    let path = format!("{BLOB}{digest}");
    for (what, fault) in [
        ("silence", Fault::Stall(1000)),
        ("a byte at a time", Fault::Drip(Duration::from_millis(50))),
    ] {
        bench.proxy.on("GET", &path, fault);
        let ran = bench.pull(["--retry=1"]).fails(NETWORK);
        says(what, &ran, &[&digest, &bench.repository(), "60 s"]);
        bench.assert_nothing_left();
        bench.proxy.behave();
    }
}
