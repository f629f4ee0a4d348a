//! Which login is found for which repository.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

fn auth(user: &str, password: &str) -> String {
    format!(
        r#"{{"auth":"{}"}}"#,
        STANDARD.encode(format!("{user}:{password}"))
    )
}

/// Credentials in files of these names and contents; the directory keeps them alive.
fn credentials(files: &[(&str, &str)]) -> (Credentials, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut credentials = Credentials::default();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        credentials.files.push(path);
    }
    (credentials, directory)
}

/// `user:password`, `identity:…`, `bearer:…` or `-`.
fn told(found: Option<&Credential>) -> String {
    match found.map(|found| &found.login) {
        None => "-".to_owned(),
        Some(Login::Password { user, password }) => format!("{user}:{}", password.expose()),
        Some(Login::Identity(token)) => format!("identity:{}", token.expose()),
        Some(Login::Bearer(token)) => format!("bearer:{}", token.expose()),
    }
}

#[test]
fn the_most_specific_key_of_the_first_file_counts() {
    let first = format!(
        r#"{{"auths":{{
            "r.io":{host}, "r.io/a":{a}, "r.io/a/b/c":{abc}, "r.io/none":{{}},
            "index.docker.io":{hub}, "https://old.io/v1/":{old}, "http://older.io":{older},
            "id.io":{{"identitytoken":"t1","auth":"{idauth}"}}, "bearer.io":{{"registrytoken":"t2"}},
            "plain.io":{{"username":"pu","password":"pp"}}
        }}}}"#,
        host = auth("host", "1:2"),
        a = auth("a", "1"),
        abc = auth("abc", "1"),
        hub = auth("hub", "1"),
        old = auth("old", "1"),
        older = auth("older", "1\0\0"),
        idauth = STANDARD.encode("00000000-0000-0000-0000-000000000000:"),
    );
    let second = format!(
        r#"{{"auths":{{"r.io":{two},"r.io/none/x":{none},"two.io":{two}}}}}"#,
        two = auth("two", "2"),
        none = auth("second", "2"),
    );
    let legacy = format!(r#"{{"https://legacy.io/v1/":{}}}"#, auth("legacy", "3"));
    let (credentials, _kept) = credentials(&[
        ("auth.json", &first),
        ("config.json", &second),
        (".dockercfg", &legacy),
    ]);
    for (registry, repository, expected) in [
        ("r.io", "x", "host:1:2"),
        ("r.io", "", "host:1:2"),
        ("r.io", "a", "a:1"),
        ("r.io", "a/b", "a:1"),
        ("r.io", "a/b/c", "abc:1"),
        ("r.io", "a/b/c/d", "abc:1"),
        ("r.io", "ab", "host:1:2"),
        // An empty entry hides the host's own in this file, not in the next.
        ("r.io", "none/x", "second:2"),
        ("r.io", "none/y", "two:2"),
        ("two.io", "x", "two:2"),
        ("legacy.io", "x", "legacy:3"),
        ("docker.io", "library/x", "hub:1"),
        ("registry-1.docker.io", "library/x", "hub:1"),
        ("old.io", "x", "old:1"),
        ("older.io", "x", "older:1"),
        ("id.io", "x", "identity:t1"),
        ("bearer.io", "x", "bearer:t2"),
        ("plain.io", "x", "pu:pp"),
        ("r.io:5000", "x", "-"),
        ("absent.io", "x", "-"),
    ] {
        let found = credentials.find(registry, repository).unwrap();
        assert_eq!(told(found.as_ref()), expected, "{registry} {repository}");
    }
    let found = credentials.find("two.io", "x").unwrap().unwrap();
    assert!(found.source.ends_with("/config.json"), "{}", found.source);
    assert!(!format!("{found:?}").contains(":2"), "{found:?}");
}

#[test]
fn what_is_given_on_the_command_line_counts_for_every_registry() {
    let (mut credentials, _kept) = credentials(&[("auth.json", "broken")]);
    credentials.explicit = Some(Login::Bearer(Secret::new("x")));
    let found = credentials.find("any.io", "x").unwrap();
    assert_eq!(found.unwrap().source, "--creds");
}

#[test]
fn a_bad_file_is_named_and_not_shown() {
    for text in [
        "{\n\"auths\": sEcret}",
        "[\"sEcret\"]",
        r#"{"auths":"sEcret"}"#,
        r#"{"auths":{"r.io":"sEcret"}}"#,
        r#"{"auths":{"r.io":{"auth":"sEcret!"}}}"#,
        r#"{"auths":{"r.io":{"auth":"c0VjcmV0"}}}"#,
    ] {
        let (credentials, _kept) = credentials(&[("auth.json", text)]);
        let error = credentials.find("r.io", "x").unwrap_err();
        let told = format!("{error:?} {:?}", error.hints());
        assert!(told.contains("auth.json"), "{told}");
        assert!(!told.contains("sEcret") && !told.contains("c0Vj"), "{told}");
        assert_eq!(error.kind(), crate::error::Kind::Usage);
    }
}

#[test]
fn empty_and_missing_files_hold_nothing() {
    let (mut credentials, _kept) =
        credentials(&[("a", ""), ("b", "{}"), ("c", r#"{"auths":null}"#)]);
    credentials.files.push("/nonexistent/auth.json".into());
    assert_eq!(credentials.find("r.io", "x").unwrap(), None);
}
