//! How much memory a pull takes: it must not grow with the image.

use crate::common::{Ran, TestEnv, peak};
use crate::pull::Bench;

/// Kibibytes of RSS that are enough whatever is pulled.
const LIMIT: u64 = 128 << 10;
/// Layers, more than are brought in at the same time, and mebibytes of each.
const LAYERS: usize = 6;
const LAYER: usize = 36;

/// Half of it shrinks and half does not, as in the binaries of an image.
fn content(seed: usize) -> Vec<u8> {
    let mut noise = vec![0; 4 << 10];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    let mut stream = hasher.finalize_xof();
    let mut bytes = Vec::new();
    while bytes.len() < LAYER << 20 {
        stream.fill(&mut noise);
        bytes.extend_from_slice(&noise);
        bytes.extend_from_slice(&[seed as u8; 4 << 10]);
    }
    bytes
}

#[test]
fn large_layers_are_pulled_and_unpacked_in_bounded_memory() {
    let bench = Bench::new();
    let mut kubefile = "FROM scratch\n".to_owned();
    for number in 0..LAYERS {
        bench.env.write(format!("big/{number}"), content(number));
        kubefile += &format!("COPY {number} /{number}\n");
    }
    let context = bench.env.context("big", &kubefile, &[]);
    for compression in ["zstd", "gzip"] {
        let root = bench.env.path(format!("{compression}-root"));
        let words = ["build", "-t", "big", "--compression", compression, "--root"];
        let mut build = bench.env.command(words);
        build.arg(&root).arg(&context);
        Ran::new(build).ok();
        bench.push(&root, "big:latest");
        std::fs::remove_dir_all(&root).unwrap();
        for flags in [&["--unpack"][..], &[]] {
            let target = TestEnv::new();
            let name = bench.name("big");
            let arguments = [&["pull"][..], flags, &[&name]].concat();
            let peak = peak(&target, arguments);
            println!("{compression} {flags:?}: {peak} KiB");
            assert!(peak <= LIMIT, "{compression} {flags:?}: {peak} KiB");
        }
    }
}
