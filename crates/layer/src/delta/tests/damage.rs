//! Recipes that are damaged yield their blob or an error.

use super::*;

/// The whole file instead of its instructions: header, sources, groups and patches of a recipe that works, damaged.
#[test]
fn a_damaged_recipe_yields_the_blob_or_an_error() {
    let old = Made::new(&[file("a", content(1, 20_000)), file("b", noise(5000))], ZSTD);
    let new = Made::new(&[file("a", edited(&content(1, 20_000), 2)), file("b", noise(5000))], ZSTD);
    let (valid, _) = make(&new, &[old.base()], 5);
    let there = There::with(&[&old]);
    let expected = bytes_of(&new.file);
    assert!(applied(&valid, &there).unwrap() == expected);
    bolero::check!().for_each(|input: &[u8]| {
        for recipe in [input.to_vec(), imgctl_base::testing::damaged(&valid, input)] {
            let mut out = Vec::new();
            let length = recipe.len() as u64;
            let done = apply(&mut recipe.as_slice(), length, &there, 1, &mut out);
            if let Ok(header) = read_header(&mut recipe.as_slice()) {
                assert!(out.len() as u64 <= header.size);
                if done.is_ok() {
                    assert_eq!((Digest::of(&out), out.len() as u64), (header.digest, header.size));
                }
            } else {
                assert!(done.is_err() && out.is_empty());
            }
        }
    });
}
