//! The recordings of terminals: small pictures that run nothing, load nothing, stand still for whoever
//! wants that, and are shown on some page.

use std::path::PathBuf;

use crate::{pages, read, repository};

/// Maximum size of a recording, in bytes.
const MOST: usize = 200_000;

fn recordings() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join("docs/recordings")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Fails unless every element ends in order: a check for what `scripts/recordings` writes, which has
/// neither comments nor CDATA.
fn check_elements(name: &str, text: &str) {
    let mut open = Vec::new();
    for piece in text.split('<').skip(1) {
        let (tag, rest) = piece.split_once('>').unwrap_or_else(|| panic!("{name}: <{piece}"));
        assert!(!rest.contains('>'), "{name}: {rest}");
        for entity in rest.split('&').skip(1) {
            let is_known =
                ["amp;", "lt;", "gt;", "quot;", "#"].iter().any(|one| entity.starts_with(one));
            assert!(is_known, "{name}: &{entity}");
        }
        match tag.strip_prefix('/') {
            Some(ended) => assert_eq!(open.pop(), Some(ended), "{name}"),
            None if tag.ends_with('/') => {}
            None => open.extend(tag.split_whitespace().next()),
        }
    }
    assert_eq!(open, Vec::<&str>::new(), "{name}");
}

#[test]
fn recordings_are_harmless_pictures_on_a_page() {
    let texts: Vec<String> =
        pages("docs").into_iter().chain(["README.md".into()]).map(read).collect();
    let found = recordings();
    assert!(!found.is_empty());
    for path in found {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.ends_with(".svg"), "{name}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() <= MOST, "{name} has {} bytes", text.len());
        check_elements(&name, &text);
        let namespace = " xmlns=\"http://www.w3.org/2000/svg\"";
        assert!(text.contains(namespace), "{name}");
        let rest = text.replacen(namespace, "", 1).to_lowercase();
        for foreign in
            ["<script", "http:", "https:", "href", "url(", "@import", "<foreignobject", "<image"]
        {
            assert!(!rest.contains(foreign), "{name} has {foreign}");
        }
        // Without animation, the last frame shows: in print, and in viewers that cannot animate.
        let needed = [".last{visibility:visible}", "@media screen and (prefers-reduced-motion"];
        for needed in ["<title>", "prefers-color-scheme", "<text"].iter().chain(&needed) {
            assert!(rest.contains(needed), "{name} lacks {needed}");
        }
        assert!(texts.iter().any(|text| text.contains(&format!("recordings/{name}"))), "{name}");
    }
}
