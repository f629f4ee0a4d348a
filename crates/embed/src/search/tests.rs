//! Tests with all sources of a context.

use std::collections::BTreeMap;

use super::*;
use imgctl_base::error::Kind;

/// An in-memory context: a fake that allows a search to be tested without a file system.
#[derive(Default)]
pub(crate) struct Memory(pub BTreeMap<String, Vec<u8>>);

impl Memory {
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter();
        Self(files.map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect())
    }
}

impl ContextFiles for Memory {
    fn list(&self, directory: &str) -> Result<Vec<String>> {
        let start = format!("{directory}/");
        let below = self.0.keys().filter(|name| name.starts_with(&start));
        Ok(below.cloned().collect())
    }

    fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>> {
        match self.0.get(path) {
            None => Err(Error::not_found(format!("{path} is not there"))),
            Some(bytes) if bytes.len() as u64 > limit => {
                Err(Error::new(Kind::BadContent, format!("{path} is too large")))
            }
            Some(bytes) => Ok(bytes.clone()),
        }
    }
}

fn found_in(files: &[(&str, &str)], images: &[&str]) -> Found {
    let options = SearchOptions {
        images: images.iter().map(|name| (*name).to_owned()).collect(),
        ..SearchOptions::default()
    };
    search(&Memory::of(files), &options).unwrap()
}

#[test]
fn all_sources_come_together() {
    let found = found_in(
        &[
            ("images/shim/a", "quay.io/a/b:1\nnginx\n"),
            ("images/shim/sub/b", "nginx:latest\n"),
            ("images/skopeo/tar.txt", "oci-archive:x.tar@x/y:1\n"),
            ("images/skopeo/x.tar", "not read"),
            ("manifests/d/m.yml", "containers:\n- image: nginx\n"),
            ("manifests/readme.md", "image: never/seen\n"),
            ("other/m.yaml", "image: never/seen\n"),
            (".sealignore", "docker.io/left/out:1\n"),
            ("manifests/n.json", "{\"image\": \"left/out:1\"}"),
        ],
        &["left/out:1"],
    );
    let images: Vec<(String, Vec<String>)> = found
        .images
        .iter()
        .map(|image| {
            let places = image.places.iter().map(ToString::to_string).collect();
            (image.reference.to_string(), places)
        })
        .collect();
    let expected: [(&str, &[&str]); 3] = [
        ("docker.io/left/out:1", &["--image"]),
        (
            "docker.io/library/nginx:latest",
            &["images/shim/a:2", "images/shim/sub/b:1", "manifests/d/m.yml:2"],
        ),
        ("quay.io/a/b:1", &["images/shim/a:1"]),
    ];
    let expected: Vec<(String, Vec<String>)> = expected
        .iter()
        .map(|(name, places)| {
            let places = places.iter().map(|place| (*place).to_owned()).collect();
            ((*name).to_owned(), places)
        })
        .collect();
    assert_eq!(images, expected);
    assert_eq!(found.archives.len(), 1);
    assert_eq!(found.skipped.len(), 1, "{:?}", found.skipped);
    assert_eq!(found.skipped[0].place.to_string(), "manifests/n.json:1");
}

#[test]
fn an_empty_context_has_none() {
    assert_eq!(found_in(&[], &[]), Found::default());
}
