//! Images of random layers, written by Python's tarfile: whatever is in them, imgctl's mount back ends
//! and both forms of `export` show the same tree or all refuse.

use std::fs;

use crate::common::{Ran, TestEnv, long, repository, tool};
use crate::unpacking::image::layout;
use crate::unpacking::readers;

#[test]
fn random_layers_are_seen_alike_by_every_back_end() {
    if !crate::common::needs_root() {
        return;
    }
    crate::unpacking::private_mounts();
    let env = TestEnv::new();
    let images = if long() { 400 } else { 10 };
    let script = repository().join("tests/runner/unpacking/layers.py");
    let out = env.path("random");
    let count = images.to_string();
    let mut python = tool("python3", [script.to_str().unwrap(), "random", "1", &count]);
    python.arg(&out);
    Ran::new(python).ok();
    let mut trees = 0;
    for number in 0..images {
        let directory = out.join(number.to_string());
        let mut names: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        let layers: Vec<Vec<u8>> = names.iter().map(|name| fs::read(name).unwrap()).collect();
        let image = layout(&env.path(format!("image{number}")), &layers);
        let read = readers::imgctl(&env, &format!("random image {number}"), &image);
        trees += usize::from(read.is_ok_and(|tree| !tree.is_empty()));
    }
    assert!(trees * 2 > images, "{trees} of {images} images are refused or empty");
}
