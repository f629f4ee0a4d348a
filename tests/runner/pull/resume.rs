//! Pulls that are killed, and pulls side by side.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::pull::proxy::Proxy;
use crate::pull::{Bench, noise};

/// Bytes of the layer.
const SIZE: usize = 4 << 20;

/// Waits until `directory` has a file that has grown to `size`.
fn wait_for(directory: &Path, size: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    let grown = || {
        std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.metadata().ok())
            .any(|metadata| metadata.len() >= size)
    };
    while !grown() {
        assert!(Instant::now() < end, "nothing comes");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_pull_is_gone_on_with() {
    for unpack in [&[][..], &["--unpack"]] {
        let bench = Bench::new();
        let proxy = Proxy::start(&bench.registry.host);
        let files = [("big", noise(SIZE)), ("small", "x".to_owned())];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        bench.fill("app:v1", &files, &["--compression", "none"]);
        let name = format!("{}/app:v1", proxy.host);
        proxy.slow(4 << 20);
        let words = ["pull", name.as_str()];
        let mut command = bench.env.command(words.iter().chain(unpack));
        let mut pull = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for(&bench.env.root().join("store/ingest"), SIZE as u64 / 2);
        pull.kill().unwrap();
        pull.wait().unwrap();
        assert_eq!(bench.env.imgctl(["images", "-q"]).ok().stdout(), "");
        proxy.slow(0);
        let before = proxy.bytes();
        let words = ["pull", "--json", name.as_str()];
        let pulled = bench.env.imgctl(words.iter().chain(unpack)).ok().json();
        let came = proxy.bytes() - before;
        assert!(came < SIZE as u64 / 2 + (64 << 10), "{came} bytes came again");
        assert!(pulled[0]["bytesCopied"].as_u64().unwrap() < SIZE as u64 / 2 + 4096);
        let tree = bench.env.export(&name, "tree");
        assert_eq!(std::fs::read_to_string(tree.join("big")).unwrap(), files[0].1);
        bench.env.imgctl(["scrub", "--deep"]).ok();
    }
}

#[test]
fn two_pulls_of_one_image_download_it_once() {
    let bench = Bench::new();
    let proxy = Proxy::start(&bench.registry.host);
    bench.fill("app:v1", &[("big", &noise(SIZE))], &["--compression", "none"]);
    let name = format!("{}/app:v1", proxy.host);
    proxy.slow(16 << 20);
    let pulls: Vec<_> = [&[][..], &["--unpack"], &[]]
        .into_iter()
        .map(|unpack| {
            let words = ["pull", name.as_str()];
            let mut command = bench.env.command(words.iter().chain(unpack));
            command.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut pull in pulls {
        assert!(pull.wait().unwrap().success());
    }
    let came = proxy.bytes();
    assert!(came < SIZE as u64 * 5 / 4, "{came} bytes came");
    bench.env.imgctl(["scrub", "--deep"]).ok();
}
