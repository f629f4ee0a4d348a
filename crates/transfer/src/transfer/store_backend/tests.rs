//! Tests of the repositories that the names of a store produce.

use super::view::View;
use imgctl_base::image::{Descriptor, Digest, Reference, media_type};
use imgctl_store::store::Named;

fn view(names: &[&str]) -> View {
    let named = |text: &&str| Named {
        reference: Some(Reference::parse(text).unwrap()),
        descriptor: Descriptor::new(media_type::OCI_MANIFEST, Digest::of(text.as_bytes()), 7),
        origin: None,
    };
    let names: Vec<Named> = names.iter().map(named).collect();
    View::new(&names, &View::default())
}

#[test]
fn a_short_name_means_one_image_or_none() {
    for (names, repository, tag, expected) in [
        (&["localhost/a:1", "q.io/a:1"][..], "a", "1", Some("localhost/a:1")),
        (&["q.io/a:1", "docker.io/a:1"], "a", "1", Some("docker.io/a:1")),
        (&["q.io/a:1", "h.io/a:1"], "a", "1", None),
        (&["q.io/a:1", "h.io/a:2"], "a", "1", Some("q.io/a:1")),
        (&["q.io/a:1", "h.io/a:1"], "h.io/a", "1", Some("h.io/a:1")),
        (&["h.io:80/a:1"], "a", "1", Some("h.io:80/a:1")),
        (&["q.io/h.io/a:1", "h.io/a:1"], "h.io/a", "1", Some("h.io/a:1")),
        (&["localhost/a:1"], "b", "1", None),
    ] {
        let view = view(names);
        let found = view
            .repository(repository)
            .and_then(|repository| repository.tag(tag))
            .and_then(|named| named.reference.as_ref())
            .map(ToString::to_string);
        assert_eq!(found.as_deref(), expected, "{names:?}");
    }
}

#[test]
fn the_catalog_has_every_image_once() {
    for (names, expected) in [
        (&["localhost/a:1", "q.io/b/c:1"][..], &["a", "b/c"][..]),
        (&["localhost/a:1", "q.io/a:1"], &["a", "q.io/a"]),
        (&["q.io/a:1", "h.io/a:1"], &["h.io/a", "q.io/a"]),
        (&["q.io/a:1", "h.io/a:2"], &["a"]),
    ] {
        let view = view(names);
        assert_eq!(view.catalog(None, 10), expected, "{names:?}");
        let later = view.catalog(Some(expected[0]), 1);
        assert_eq!(later, expected.get(1..2).unwrap_or_default(), "{names:?}");
    }
}

#[test]
fn a_repository_that_has_not_changed_is_kept() {
    let old = view(&["localhost/a:1", "localhost/b:1"]);
    let names: Vec<Named> = ["localhost/a:1", "localhost/b:2"]
        .map(|text| Named {
            reference: Some(Reference::parse(text).unwrap()),
            descriptor: Descriptor::new(media_type::OCI_MANIFEST, Digest::of(text.as_bytes()), 7),
            origin: None,
        })
        .to_vec();
    let new = View::new(&names, &old);
    let is_kept =
        |name| std::sync::Arc::ptr_eq(old.repository(name).unwrap(), new.repository(name).unwrap());
    assert!(is_kept("a") && !is_kept("b"));
}
