//! Registries of other forms: without the referrers API, and with an API below a path.

use super::fake::{Answer, Fake, Request};
use super::*;
use crate::credentials::Secret;
use imgctl_base::image::Index;

/// Answers a list of referrers with `status` and `body`, and knows the fallback tag of `subject`.
fn without_api(status: &'static str, body: &'static str, subject: &Digest) -> Fake {
    let tag = format!("/manifests/sha256-{}", subject.hex());
    let listed = serde_json::to_vec(&Index::new(vec![blob(b"signature")])).unwrap();
    Fake::start(move |request| {
        if request.target.contains("/referrers/") {
            return Answer::new(status, &[("Content-Type", "text/html")], body.as_bytes());
        }
        if request.target.ends_with(&tag) {
            return Answer::new("200 OK", &[("Content-Type", media_type::OCI_INDEX)], &listed);
        }
        Answer::not_found()
    })
}

#[test]
fn the_fallback_tag_counts_whatever_a_registry_without_the_api_answers() {
    let (subject, other) = (Digest::of(b"subject"), Digest::of(b"other"));
    for (status, body) in [
        ("404 Not Found", "{}"),
        ("400 Bad Request", "{\"errors\":[]}"),
        ("405 Method Not Allowed", ""),
        ("406 Not Acceptable", ""),
        ("410 Gone", ""),
        ("501 Not Implemented", ""),
        ("403 Forbidden", ""),
        ("200 OK", "<html>hello</html>"),
        ("200 OK", ""),
        ("200 OK", "{}"),
        ("200 OK", "[]"),
    ] {
        let fake = without_api(status, body, &subject);
        let repository = on(&client(None), &fake.host, "app");
        let found = repository.referrers(&subject, None).unwrap();
        assert_eq!(found, [blob(b"signature")], "{status} {body}");
        let found = repository.referrers(&other, None);
        match status {
            // Without the tag, it may be the list that is refused.
            "403 Forbidden" => assert_eq!(found.unwrap_err().kind(), Kind::Denied),
            _ => assert_eq!(found.unwrap(), [], "{status} {body}"),
        }
    }
    // A registry that is ill may have the API: what the tag says may be old.
    let fake = without_api("500 Internal Server Error", "", &subject);
    let found = on(&client(None), &fake.host, "app").referrers(&subject, None);
    assert_eq!(found.unwrap_err().kind(), Kind::Network);
}

#[test]
fn a_later_page_that_is_no_list_is_an_error() {
    let page = serde_json::to_string(&Index::new(vec![blob(b"one")])).unwrap();
    let fake = Fake::start(move |request| match &*request.target {
        target if target.contains("/referrers/") && !target.contains("page=2") => {
            let next = format!("<{target}?page=2>; rel=\"next\"");
            Answer::new("200 OK", &[("Link", &next)], page.as_bytes())
        }
        _ => Answer::json("<html>"),
    });
    let found = on(&client(None), &fake.host, "app").referrers(&Digest::of(b"x"), None);
    assert_eq!(found.unwrap_err().kind(), Kind::BadContent);
}

#[test]
fn an_api_below_a_path_gets_its_headers_and_a_redirect_does_not() {
    let seen = |request: &Request| request.header("x-key").map(str::to_owned);
    let elsewhere = Fake::start(|_| Answer::new("200 OK", &[], b"content"));
    let away = format!("http://{}/signed", elsewhere.host);
    let fake = Fake::start(move |request| match &*request.target {
        target if target.starts_with("/api/hub/v2/library/app/blobs/") => {
            Answer::new("307 Temporary Redirect", &[("Location", &away)], b"")
        }
        _ => Answer::not_found(),
    });
    let mut mirror = endpoint(&fake.host, "library/app");
    mirror.path = "api/hub/v2".to_owned();
    mirror.headers = vec![("X-Key".to_owned(), Secret::new("hidden"))];
    let write = endpoint("127.0.0.1:1", "library/app");
    let route = Route { read: vec![mirror], write };
    let repository = client(None).routed("docker.io/library/app".to_owned(), &route).unwrap();
    assert_eq!(read(&repository, &blob(b"content"), 0).unwrap(), b"content");
    let asked = fake.asked("GET", "/blobs/");
    assert_eq!(asked.iter().map(seen).collect::<Vec<_>>(), [Some("hidden".to_owned())]);
    assert_eq!(elsewhere.asked("GET", "/signed").iter().map(seen).collect::<Vec<_>>(), [None]);
    // Another machine reads from the same place.
    let text = serde_json::to_string(&repository.access().unwrap()).unwrap();
    let given = Repository::of_access(&serde_json::from_str(&text).unwrap()).unwrap();
    assert_eq!(read(&given, &blob(b"content"), 0).unwrap(), b"content");
    assert_eq!(fake.asked("GET", "/blobs/").iter().filter_map(seen).count(), 2);
}
