//! Which login is found for each repository.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

fn auth(user: &str, password: &str) -> String {
    format!(r#"{{"auth":"{}"}}"#, STANDARD.encode(format!("{user}:{password}")))
}

/// Creates credentials in files with these names and contents. The returned directory must outlive
/// them.
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

/// Formats a credential as `user:password`, `identity:…`, `bearer:…` or `-`.
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
    let (credentials, _kept) =
        credentials(&[("auth.json", &first), ("config.json", &second), (".dockercfg", &legacy)]);
    for (registry, repository, expected) in [
        ("r.io", "x", "host:1:2"),
        ("r.io", "", "host:1:2"),
        ("r.io", "a", "a:1"),
        ("r.io", "a/b", "a:1"),
        ("r.io", "a/b/c", "abc:1"),
        ("r.io", "a/b/c/d", "abc:1"),
        ("r.io", "ab", "host:1:2"),
        // An empty entry hides the entry of the host in this file, but not in the next.
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
fn entries_in_the_forms_of_other_programs_are_read() {
    let long = "p".repeat(100);
    let lines = STANDARD.encode(format!("u:{long}")).as_bytes().chunks(76).fold(
        String::new(),
        |mut text, line| {
            text.push_str(std::str::from_utf8(line).unwrap());
            text.push_str("\\n");
            text
        },
    );
    let bare = STANDARD.encode("u:pp").trim_end_matches('=').to_owned();
    let text = format!(
        r#"{{"Auths":{{
            "api.io/v1/":{api}, "slash.io/":{slash}, "lines.io":{{"auth":"{lines}"}},
            "bare.io":{{"auth":"{bare}","email":null}}, "null.io":null, "nulls.io":{{"auth":null}},
            "camel.io":{{"identityToken":"t"}}, "file.io":{file}, "nobody.io":{file}
        }},"credHelpers":{{"file.io":"","nobody.io":null}},"credsStore":"absent"}}"#,
        api = auth("api", "1"),
        slash = auth("slash", "1"),
        file = auth("file", "1"),
    );
    let find = |text: &str, registry: &str| {
        let (credentials, _kept) = credentials(&[("config.json", text)]);
        credentials.find(registry, "x").map(|found| told(found.as_ref())).unwrap()
    };
    // An empty name of a helper means the file, whatever the store for all others is.
    assert_eq!(find(&text, "file.io"), "file:1");
    assert_eq!(find(&text, "nobody.io"), "file:1");
    let text = text.replace("absent", "");
    for (registry, expected) in [
        ("api.io", "api:1"),
        ("slash.io", "slash:1"),
        ("lines.io", &*format!("u:{long}")),
        ("bare.io", "u:pp"),
        ("null.io", "-"),
        ("nulls.io", "-"),
        ("camel.io", "identity:t"),
    ] {
        assert_eq!(find(&text, registry), expected, "{registry}");
    }
}

#[test]
fn what_is_given_on_the_command_line_counts_for_every_registry() {
    let (mut credentials, _kept) = credentials(&[("auth.json", "broken")]);
    credentials.explicit = Some(Login::Bearer(Secret::new("x")));
    let found = credentials.find("any.io", "x").unwrap();
    assert_eq!(found.unwrap().source, "the command line");
}

#[test]
fn what_the_environment_holds_comes_before_files_and_is_never_written() {
    let file =
        format!(r#"{{"auths":{{"a.io":{},"b.io":{}}}}}"#, auth("file", "1"), auth("file", "2"));
    let (mut credentials, _kept) = credentials(&[("auth.json", &file)]);
    let inline = format!(r#"{{"auths":{{"a.io":{}}}}}"#, auth("inline", "3"));
    credentials.inline = Some(Secret::new(inline));
    let find = |credentials: &Credentials, registry: &str| {
        told(credentials.find(registry, "x").unwrap().as_ref())
    };
    assert_eq!(find(&credentials, "a.io"), "inline:3");
    assert_eq!(find(&credentials, "b.io"), "file:2");
    let found = credentials.find("a.io", "x").unwrap().unwrap();
    assert_eq!(found.source, "DOCKER_AUTH_CONFIG");
    let place = credentials.store(&key("a.io"), "me", &Secret::new("4")).unwrap();
    assert!(place.ends_with("/auth.json"), "{place}");
    credentials.inline = Some(Secret::new(r#"{"auths":"sEcret"}"#));
    assert_eq!(find(&credentials, "a.io"), "me:4");
    let error = credentials.find("c.io", "x").unwrap_err();
    let told = format!("{error} {error:?} {credentials:?}");
    assert!(told.contains("DOCKER_AUTH_CONFIG") && !told.contains("sEcret"), "{told}");
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
        assert_eq!(error.kind(), imgctl_base::error::Kind::Usage);
    }
}

#[test]
fn empty_and_missing_files_hold_nothing() {
    let (mut credentials, _kept) =
        credentials(&[("a", ""), ("b", "{}"), ("c", r#"{"auths":null}"#)]);
    credentials.files.push("/nonexistent/auth.json".into());
    assert_eq!(credentials.find("r.io", "x").unwrap(), None);
}

#[test]
fn a_broken_place_does_not_hide_a_good_one() {
    let good = format!(r#"{{"auths":{{"r.io":{}}}}}"#, auth("u", "p"));
    let (credentials, _kept) = credentials(&[("broken", "{"), ("good", &good)]);
    assert_eq!(told(credentials.find("r.io", "x").unwrap().as_ref()), "u:p");
    assert!(credentials.find("other.io", "x").is_err());
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// Creates credentials in a file with this name and content.
fn kept_in(name: &str, text: &str) -> (Credentials, tempfile::TempDir, PathBuf) {
    let (mut credentials, directory) = credentials(&[]);
    let path = directory.path().join("containers").join(name);
    credentials.files.push(path.clone());
    if !text.is_empty() {
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    (credentials, directory, path)
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn what_is_stored_is_found_and_what_is_removed_is_not() {
    use std::os::unix::fs::PermissionsExt as _;
    let (credentials, _directory, path) = kept_in("auth.json", "");
    let me = Secret::new("pä:ss");
    for name in ["r.io:5000", "r.io:5000/team", "docker.io"] {
        let place = credentials.store(&key(name), "me", &me).unwrap();
        assert_eq!(place, path.display().to_string());
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    let names: Vec<_> = fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["auth.json"]);

    let find = |registry: &str| told(credentials.find(registry, "team/x").unwrap().as_ref());
    assert_eq!(find("r.io:5000"), "me:pä:ss");
    assert_eq!(find("registry-1.docker.io"), "me:pä:ss");
    assert!(credentials.remove(&key("r.io:5000/team")).unwrap());
    assert_eq!(find("r.io:5000"), "me:pä:ss");
    assert!(credentials.remove(&key("r.io:5000")).unwrap());
    assert_eq!(find("r.io:5000"), "-");
    assert!(!credentials.remove(&key("r.io:5000")).unwrap());
    assert_eq!(credentials.remove_all().unwrap(), ["docker.io"]);
    assert_eq!(find("docker.io"), "-");

    let error = credentials.store(&key("r.io"), "a:b", &me).unwrap_err();
    assert!(error.to_string().contains("a:b"));
}

#[test]
fn what_others_wrote_in_the_file_stays() {
    let text = r#"{"HttpHeaders":{"X":"y"},"auths":{"a.io":{"auth":"eDp5"},
        "docker.io":{"auth":"b2xkOjE="},"http://b.io/v1/":{"auth":"b2xkOjE="}},"psFormat":"t"}"#;
    let (credentials, directory, path) = kept_in("config.json", text);
    // The user keeps the file elsewhere.
    let elsewhere = directory.path().join("dotfiles.json");
    fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    for name in ["docker.io", "b.io", "c.io"] {
        credentials.store(&key(name), "u", &Secret::new("")).unwrap();
    }
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    let kept = json(&path);
    assert_eq!(kept["HttpHeaders"]["X"], "y");
    assert_eq!(kept["psFormat"], "t");
    let names: Vec<_> = kept["auths"].as_object().unwrap().keys().collect();
    // The symlink's target is not named config.json, so docker.io is stored under its plain name.
    assert_eq!(names, ["a.io", "docker.io", "b.io", "c.io"]);
    assert_eq!(kept["auths"]["a.io"]["auth"], "eDp5");
    assert_eq!(kept["auths"]["b.io"]["auth"], "dTo=");
}

#[test]
fn dockers_own_file_has_docker_io_under_dockers_key() {
    let (credentials, _directory, path) = kept_in("config.json", "{}");
    credentials.store(&key("docker.io"), "u", &Secret::new("p")).unwrap();
    assert_eq!(json(&path)["auths"]["https://index.docker.io/v1/"]["auth"], "dTpw");
    assert_eq!(told(credentials.find("docker.io", "x").unwrap().as_ref()), "u:p");
    assert!(credentials.remove(&key("docker.io")).unwrap());
    assert_eq!(json(&path), serde_json::json!({"auths": {}}));
}

#[test]
fn a_file_that_does_not_parse_is_not_overwritten() {
    let (credentials, _directory, path) = kept_in("auth.json", "{ sEcret");
    assert!(credentials.store(&key("a.io"), "u", &Secret::new("p")).is_err());
    assert!(credentials.remove(&key("a.io")).is_err());
    assert_eq!(fs::read_to_string(path).unwrap(), "{ sEcret");
}

#[test]
fn concurrent_logins_do_not_lose_each_other() {
    let (credentials, _directory, path) = kept_in("auth.json", "");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let credentials = &credentials;
            scope.spawn(move || {
                let key = key(&format!("r{number}.io"));
                credentials.store(&key, "u", &Secret::new("p")).unwrap();
            });
        }
    });
    assert_eq!(json(&path)["auths"].as_object().unwrap().len(), 8);
}

/// A helper that stores its input in files next to itself.
const HELPER: &str = r#"#!/bin/sh
dir=$(dirname "$0")/kept; mkdir -p "$dir"
input=$(cat)
case $1 in
store) name=$(printf %s "$input" | sed 's/.*"ServerURL":"\([^"]*\)".*/\1/' | tr / _)
       printf %s "$input" >"$dir/$name";;
*) file=$dir/$(printf %s "$input" | tr / _)
   [ -f "$file" ] || { echo credentials not found in native keychain; exit 1; }
   case $1 in get) cat "$file";; erase) rm "$file";; esac;;
esac
"#;

fn install_helper(directory: &Path) {
    // Written by a child process; otherwise a concurrent fork could cause ETXTBSY.
    let status = std::process::Command::new("sh")
        .args(["-c", r#"printf %s "$1" >"$0" && chmod 755 "$0""#])
        .arg(directory.join("docker-credential-shelf"))
        .arg(HELPER)
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn helpers_are_used_where_files_name_them() {
    let text = format!(
        r#"{{"credHelpers":{{"h.io":"shelf","https://index.docker.io/v1/":"shelf"}},
            "auths":{{"h.io":{plain},"p.io":{plain}}}}}"#,
        plain = auth("plain", "1")
    );
    let (mut credentials, directory, path) = kept_in("auth.json", &text);
    credentials.search_path = vec![directory.path().to_owned()];
    assert!(credentials.find("h.io", "x").is_err(), "the helper is not there yet");
    install_helper(directory.path());
    let find = |registry: &str| {
        let found = credentials.find(registry, "x").unwrap();
        told(found.as_ref())
    };
    assert_eq!(find("h.io"), "-", "the file does not count where there is a helper");
    assert_eq!(find("p.io"), "plain:1");
    for name in ["h.io", "docker.io"] {
        let place = credentials.store(&key(name), "u", &Secret::new("p")).unwrap();
        assert!(place.starts_with("docker-credential-shelf (named in "), "{place}");
        assert_eq!(find(name), "u:p");
    }
    assert_eq!(json(&path)["auths"]["h.io"], serde_json::json!({}));
    assert!(!fs::read_to_string(&path).unwrap().contains("dTpw"));
    let removed = credentials.remove_all().unwrap();
    assert_eq!(removed, ["p.io", "h.io", "docker.io"]);
    assert_eq!(fs::read_dir(directory.path().join("kept")).unwrap().count(), 0);
    assert_eq!(find("h.io"), "-");
}

#[test]
fn a_store_for_all_comes_before_the_file_and_registries_conf_before_both() {
    let text = format!(r#"{{"credsStore":"shelf","auths":{{"p.io":{}}}}}"#, auth("plain", "1"));
    let (mut credentials, directory, _path) = kept_in("config.json", &text);
    install_helper(directory.path());
    credentials.search_path = vec![directory.path().to_owned()];
    let find = |credentials: &Credentials| told(credentials.find("p.io", "a/b").unwrap().as_ref());
    assert_eq!(find(&credentials), "plain:1");
    credentials.store(&key("p.io"), "u", &Secret::new("2")).unwrap();
    assert_eq!(find(&credentials), "u:2");

    credentials.helpers = vec!["shelf".to_owned(), "containers-auth.json".to_owned()];
    credentials.store(&key("p.io/a"), "v", &Secret::new("3")).unwrap();
    assert_eq!(find(&credentials), "v:3");
    assert!(credentials.remove(&key("p.io/a")).unwrap());
    assert_eq!(find(&credentials), "u:2");
    assert!(credentials.remove_all().is_err());
}

#[test]
fn whatever_a_file_holds_is_read_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let quoted = serde_json::to_string(&text).unwrap();
        let files = [
            text.clone().into_owned(),
            format!(r#"{{"auths":{{{quoted}:{{"auth":"dTpw"}}}}}}"#),
            format!(r#"{{"auths":{{"r.io":{{"auth":{quoted}}}}}}}"#),
            format!(r#"{{"credsStore":{quoted}}}"#),
        ];
        for file in files {
            let (credentials, _kept) = credentials(&[("auth.json", &file)]);
            let _ = credentials.find("r.io", "a/b");
        }
        if let Ok(key) = Key::parse(&text) {
            assert_eq!(Key::parse(&key.to_string()).unwrap(), key);
        }
    });
}
