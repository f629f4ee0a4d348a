//! ADD of URLs and git repositories.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use imgctl_base::testing::free_port;
use rustix::mount::{MountFlags, UnmountFlags};

use super::Language;
use crate::common::{Ran, needs_root, tool};

/// Exit codes of docs/cli.md.
const NETWORK: i32 = 7;
const NO_SPACE: i32 = 8;

/// Answers `GET` with the path and the `Authorization` header of the request.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut head = BufReader::new(connection.try_clone().unwrap());
            let (mut request, mut login) = (String::new(), "none".to_owned());
            head.read_line(&mut request).unwrap();
            loop {
                let mut line = String::new();
                head.read_line(&mut line).unwrap();
                match line.trim_end().split_once(": ") {
                    Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                        value.clone_into(&mut login);
                    }
                    None => break,
                    _ => {}
                }
            }
            let path = request.split(' ').nth(1).unwrap();
            let body = format!("{path} {login}");
            let status =
                if path == "/private" && login == "none" { "401 Unauthorized" } else { "200 OK" };
            let _ = write!(
                connection,
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
        }
    });
    address
}

/// A server that leads every request to `place`.
fn leading_to(place: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let place = place.to_owned();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut head = BufReader::new(connection.try_clone().unwrap());
            let mut request = String::new();
            head.read_line(&mut request).unwrap();
            let path = request.split(' ').nth(1).unwrap_or("/");
            let answer = format!(
                "HTTP/1.1 302 Found\r\nLocation: {place}{path}\r\nContent-Length: 0\r\n\r\n"
            );
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn a_token_of_git_stays_with_its_host() {
    let language = Language::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = leading_to(&format!("http://{}", other.local_addr().unwrap()));
    language.env.write("token", "secret");
    fs::set_permissions(language.env.path("token"), fs::Permissions::from_mode(0o600)).unwrap();
    let secret =
        format!("--secret=id=GIT_AUTH_TOKEN.{server},src={}", language.env.path("token").display());
    let kubefile = format!("FROM scratch\nADD http://{server}/a.git /a\n");
    let said = language.build(&kubefile, &[&secret]).fails(NETWORK).stderr();
    assert!(said.contains("name that address"), "{said}");
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "the other host was asked");
}

#[test]
fn who_logs_in_is_neither_shown_nor_kept() {
    let language = Language::new();
    let server = echo();
    let kubefile = format!("FROM scratch\nADD http://me:hidden@{server}/file /\n");
    let said = language.build(&kubefile, &["--progress=plain"]).ok().stderr();
    let kept = language.env.imgctl(["inspect", "app"]).ok().stdout();
    let history = language.env.imgctl(["history", "--no-trunc", "app"]).ok().stdout();
    for text in [&said, &kept, &history] {
        assert!(!text.contains("hidden"), "{text}");
    }
    assert!(history.contains(&format!("ADD http://{server}/file")), "{history}");
    // Nothing listens there.
    let gone = format!("FROM scratch\nADD http://me:hidden@127.0.0.1:{}/file /\n", free_port());
    let said = language.build(&gone, &[]).fails(NETWORK).stderr();
    assert!(said.contains("ADD http://*********@127.0.0.1") && !said.contains("hidden"), "{said}");
}

#[test]
fn a_download_has_the_decoded_name_of_its_url() {
    let language = Language::new();
    let server = echo();
    for (path, name) in
        [("/a%20b", "a b"), ("/dir/", "dir"), ("/", "__unnamed__"), ("/x?query=/y", "x")]
    {
        let kubefile = format!("FROM scratch\nADD http://{server}{path} /d/\n");
        let exported = language.exported(&kubefile, &[]);
        let names: Vec<_> =
            fs::read_dir(exported.join("d")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [name], "{path}");
    }
}

#[test]
fn secrets_named_after_a_host_log_in_there() {
    let language = Language::new();
    let server = echo();
    language.env.write("token", "hush\n");
    let token = language.env.path("token").display().to_string();
    let kubefile = format!("FROM scratch\nADD http://{server}/private /f\n");
    for (id, expected) in [
        ("HTTP_AUTH_TOKEN_127.0.0.1".to_owned(), "/private Bearer hush"),
        (format!("HTTP_AUTH_TOKEN_{server}"), "/private Bearer hush"),
        ("HTTP_AUTH_HEADER_127.0.0.1".to_owned(), "/private hush"),
    ] {
        let secret = format!("--secret=id={id},src={token}");
        assert_eq!(language.built(&kubefile, &[&secret], "/f"), expected, "{id}");
    }
    for flags in [&[][..], &[&*format!("--secret=id=HTTP_AUTH_TOKEN_example.com,src={token}")]] {
        let said = language.build(&kubefile, flags);
        assert!(
            !said.success() && said.stderr().contains("--secret id=HTTP_AUTH_TOKEN_HOST"),
            "{}",
            said.report()
        );
        assert!(!said.report().contains("hush"));
    }
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Repositories with two commits, each tagged, behind git's own server and behind one for plain files.
pub(super) struct Repositories {
    pub(super) language: Language,
    pub(super) served: String,
    pub(super) plain: String,
    _daemons: [Daemon; 2],
}

impl Repositories {
    pub(super) fn new() -> Self {
        let language = Language::new();
        let root = language.env.path("git");
        fs::create_dir(&root).unwrap();
        let (git_port, http_port) = (free_port(), free_port());
        let served = format!("git://127.0.0.1:{git_port}");
        let mut daemon = Command::new("git");
        daemon.args(["daemon", "--export-all", "--reuseaddr", "--listen=127.0.0.1"]);
        daemon.arg(format!("--port={git_port}")).arg(format!("--base-path={}", root.display()));
        let mut files = Command::new("python3");
        files.args(["-m", "http.server", "--bind", "127.0.0.1", &http_port.to_string()]);
        let started = [&mut daemon, &mut files].map(|command| {
            command.current_dir(&root).stdout(Stdio::null()).stderr(Stdio::null());
            Daemon(command.spawn().expect("git and python3 are missing: run scripts/setup"))
        });
        for port in [git_port, http_port] {
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
        let all = Self {
            language,
            served,
            plain: format!("http://127.0.0.1:{http_port}"),
            _daemons: started,
        };
        all.make("a.git", &[]);
        all
    }

    pub(super) fn git(&self, directory: &Path, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args([
                "-c",
                "user.name=n",
                "-c",
                "user.email=a@example.org",
                "-c",
                "protocol.file.allow=always",
            ])
            .args(arguments)
            .current_dir(directory)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn make(&self, name: &str, init: &[&str]) {
        let work = self.language.env.path(format!("work-{name}"));
        fs::create_dir(&work).unwrap();
        self.git(&work, &[&["init", "-q", "-b", "main"], init].concat());
        fs::write(work.join("f"), "one").unwrap();
        self.git(&work, &["add", "."]);
        self.git(&work, &["commit", "-qm", "one"]);
        self.git(&work, &["tag", "v1"]);
        self.git(&work, &["branch", "older"]);
        fs::write(work.join("f"), "two").unwrap();
        fs::create_dir(work.join("sub")).unwrap();
        fs::write(work.join("sub/g"), "sub").unwrap();
        self.git(&work, &["add", "."]);
        self.git(&work, &["commit", "-qm", "two"]);
        self.git(&work, &["tag", "-am", "annotated", "v2"]);
        self.publish(name);
    }

    pub(super) fn publish(&self, name: &str) {
        let bare = self.language.env.path(format!("git/{name}"));
        let _ = fs::remove_dir_all(&bare);
        let work = self.language.env.path(format!("work-{name}"));
        self.git(&work, &["clone", "-q", "--bare", ".", bare.to_str().unwrap()]);
        self.git(&bare, &["update-server-info"]);
    }

    pub(super) fn commit(&self, name: &str, revision: &str) -> String {
        self.git(&self.language.env.path(format!("git/{name}")), &["rev-parse", revision])
    }

    /// Builds without the cache, and returns the digests of the layers.
    fn layers(&self, kubefile: &str) -> serde_json::Value {
        self.language.build(kubefile, &["--no-cache"]).ok();
        self.language.env.config("app")["rootfs"]["diff_ids"].clone()
    }

    fn added(&self, words: &str, path: &str) -> String {
        self.language.built(&format!("FROM scratch\nADD {words} /r/\n"), &[], &format!("/r/{path}"))
    }
}

#[test]
fn a_repository_that_does_not_fit_on_the_disk_is_not_checked_out() {
    if !needs_root() {
        return;
    }
    let all = Repositories::new();
    let work = all.language.env.path("work-a.git");
    fs::write(work.join("zeros"), vec![0; 40 << 20]).unwrap();
    all.git(&work, &["add", "."]);
    all.git(&work, &["commit", "-qm", "zeros"]);
    all.publish("a.git");
    let root = all.language.env.root();
    fs::create_dir_all(&root).unwrap();
    let options = c"size=80m,mode=755";
    rustix::mount::mount("tmpfs", &root, "tmpfs", MountFlags::empty(), options).unwrap();
    let ran = all.language.build(&format!("FROM scratch\nADD {}/a.git /r/\n", all.served), &[]);
    rustix::mount::unmount(&root, UnmountFlags::DETACH).unwrap();
    let said = ran.fails(NO_SPACE).stderr();
    assert!(said.contains("more bytes do not fit into"), "{said}");
}

#[test]
fn an_address_of_git_chooses_reference_directory_and_commit() {
    let all = Repositories::new();
    let url = format!("{}/a.git", all.served);
    let (first, second) = (all.commit("a.git", "v1"), all.commit("a.git", "main"));
    let short = &first[..8];
    for (rest, path, expected) in [
        ("", "f", "two"),
        ("#v1", "f", "one"),
        ("#main:sub", "g", "sub"),
        ("?tag=v1", "f", "one"),
        ("?tag=v1#refs/tags/v1", "f", "one"),
        ("#refs/tags/v1", "f", "one"),
        ("?mtime=checkout#v1", "f", "one"),
        (&format!("?fetch-by-commit=1&commit={first}#main"), "f", "one"),
        ("?tag=v2", "f", "two"),
        ("?branch=older", "f", "one"),
        ("?ref=main&subdir=sub", "g", "sub"),
        ("?subdir=/sub", "g", "sub"),
        (&format!("?tag=v1&commit={first}"), "f", "one"),
        (&format!("?commit={first}"), "f", "one"),
        (&format!("?commit={short}"), "f", "one"),
        (&format!("#{first}"), "f", "one"),
        ("?keep-git-dir=true", ".git/HEAD", &second),
    ] {
        assert_eq!(all.added(&format!("{url}{rest}"), path), expected, "{rest}");
    }
    for checksum in [&first, short, &first.to_uppercase()] {
        assert_eq!(all.added(&format!("--checksum={checksum} {url}#v1"), "f"), "one");
    }
    // Of an annotated tag, both its own ID and that of its commit.
    for revision in ["v2", "v2^{commit}"] {
        let id = all.commit("a.git", revision);
        assert_eq!(all.added(&format!("--checksum={id} {url}#v2"), "f"), "two");
    }
    for (words, why) in [
        (format!("--checksum={second} {url}#v1"), "is at commit"),
        (format!("{url}?tag=v1&commit={second}"), "is at commit"),
        (format!("--checksum=sha256:{} {url}", "0".repeat(64)), "is not a commit"),
        (format!("{url}?deep=1"), "no parameter deep"),
        (format!("{url}?fetch-by-commit#v1"), "fetch-by-commit needs the commit"),
        (format!("{url}#v3"), "v3"),
        (format!("{url}?commit={}", "0".repeat(40)), "cannot clone"),
    ] {
        let said = all.language.build(&format!("FROM scratch\nADD {words} /r/\n"), &[]);
        assert!(!said.success() && said.stderr().contains(why), "{words}: {}", said.report());
    }
}

#[test]
fn a_repository_of_any_kind_is_cloned_with_its_submodules() {
    let all = Repositories::new();
    let plain = format!("{}/a.git", all.plain);
    let first = all.commit("a.git", "v1");
    for rest in ["#v1", &format!("#{first}"), &format!("?branch=older&commit={first}")] {
        assert_eq!(all.added(&format!("{plain}{rest}"), "f"), "one", "{rest}");
    }
    all.make("new.git", &["--object-format=sha256"]);
    let first = all.commit("new.git", "v1");
    for server in [&all.served, &all.plain] {
        for rest in ["#v1", &format!("#{first}"), &format!("?branch=older&commit={first}")] {
            assert_eq!(all.added(&format!("{server}/new.git{rest}"), "f"), "one", "{server}{rest}");
        }
    }
    // One submodule has an absolute address, the other one is relative to the repository.
    all.make("outer.git", &[]);
    let work = all.language.env.path("work-outer.git");
    let inner = format!("{}/a.git", all.served);
    all.git(&work, &["submodule", "--quiet", "add", &inner, "module"]);
    all.git(&work, &["config", "-f", ".gitmodules", "submodule.module.url", "../a.git"]);
    all.git(&work, &["submodule", "--quiet", "add", "--name", "other", &inner, "deep/other"]);
    all.git(&work, &["commit", "-qam", "modules"]);
    all.publish("outer.git");
    let url = format!("{}/outer.git", all.served);
    let exported = all.language.exported(&format!("FROM scratch\nADD {url} /r/\n"), &[]);
    for path in ["r/f", "r/module/f", "r/deep/other/sub/g"] {
        assert!(exported.join(path).is_file(), "{path}");
    }
    for path in ["r/.git", "r/module/.git"] {
        assert!(!exported.join(path).exists(), "{path}");
    }
    let exported =
        all.language.exported(&format!("FROM scratch\nADD {url}?submodules=0 /r/\n"), &[]);
    assert!(exported.join("r/f").is_file() && !exported.join("r/module/f").exists());
    let kubefile = format!("FROM scratch\nADD --keep-git-dir {url} /r/\n");
    assert_eq!(all.layers(&kubefile), all.layers(&kubefile));
}

#[test]
fn a_kept_git_dir_is_the_same_at_every_build_and_knows_where_it_comes_from() {
    let all = Repositories::new();
    let url = format!("{}/a.git", all.served);
    let first = all.commit("a.git", "v1");
    for (rest, name, described) in [
        ("#v1", Some("refs/tags/v1"), Some("v1")),
        ("?tag=v2", Some("refs/tags/v2"), Some("v2")),
        ("#older", Some("refs/heads/older"), None),
        ("", Some("refs/heads/main"), None),
        (&format!("#{first}"), None, None),
        (&format!("?fetch-by-commit&commit={first}#main"), Some("refs/heads/main"), None),
    ] {
        let kubefile = format!("FROM scratch\nADD --keep-git-dir {url}{rest} /r/\n");
        assert_eq!(all.layers(&kubefile), all.layers(&kubefile), "{rest}");
        let to = all.language.env.path("exported");
        let _ = fs::remove_dir_all(&to);
        let there = all.language.env.export("app", "exported").join("r");
        for gone in [".git/logs", ".git/FETCH_HEAD", ".git/hooks"] {
            assert!(!there.join(gone).exists(), "{rest}: {gone}");
        }
        assert_eq!(all.git(&there, &["remote", "get-url", "origin"]), url);
        let names = all.git(&there, &["for-each-ref", "--format=%(refname)"]);
        assert_eq!(names, name.unwrap_or_default(), "{rest}");
        if let Some(described) = described {
            assert_eq!(all.git(&there, &["describe", "--tags", "--dirty"]), described);
        }
        assert_eq!(all.git(&there, &["status", "--porcelain"]), "", "{rest}");
    }
}

#[test]
fn flags_of_add_hold_for_the_files_of_a_repository() {
    let all = Repositories::new();
    let kubefile = format!(
        "FROM scratch\nADD --exclude=sub --chmod=600 --chown=7:8 {}/a.git /r/\n",
        all.served
    );
    let exported = all.language.exported(&kubefile, &[]);
    assert!(!exported.join("r/sub").exists());
    assert_eq!(mode(&exported.join("r/f")), 0o600);
}

#[test]
fn provenance_names_everything_that_came_from_outside() {
    let all = Repositories::new();
    let (language, server) = (&all.language, echo());
    language.shell();
    let env = &language.env;
    for name in ["copied", "mounted", "layout"] {
        let context = env.context(name, "FROM scratch\nCOPY f /f\n", &[("f", name)]);
        env.build(name, &context).ok();
    }
    let layout = format!("{}:v1", env.path("oci").display());
    env.imgctl(["copy", "-q", "localhost/layout", &format!("oci:{layout}")]).ok();
    let images = env.imgctl(["images", "--json"]).ok().json();
    let digest = |name: &str| {
        let name = format!("localhost/{name}:latest");
        let has_name = |image: &&serde_json::Value| image["names"][0] == name.as_str();
        let image = images.as_array().unwrap().iter().find(has_name).expect(&name);
        image["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned()
    };
    let kubefile = format!(
        "FROM localhost/shell\nADD http://me:hush@{server}/x /x\nADD {}/a.git#v1 /g/\n\
         COPY --from=copied /f /f\nCOPY --from=low /f /l\nRUN --mount=from=mounted,target=/m ls /m\n",
        all.served
    );
    let context = format!("--build-context=low=oci-layout://{layout}");
    let flags = ["--provenance=p.json", &context, "--platform=linux/amd64"];
    language.build(&kubefile, &flags).ok();
    let statement = crate::common::json(&env.path("p.json"));
    let found = statement["predicate"]["buildDefinition"]["resolvedDependencies"].clone();
    let image = |kind: &str, name: &str| {
        let (uri, digest) = match kind {
            "oci" => {
                let digest = digest(name);
                (format!("pkg:oci/low?digest=sha256:{digest}&platform=linux%2Famd64"), digest)
            }
            _ => {
                let uri = format!("pkg:docker/localhost/{name}@latest?platform=linux%2Famd64");
                (uri, digest(name))
            }
        };
        serde_json::json!({ "uri": uri, "digest": { "sha256": digest } })
    };
    let body = language.content("/x");
    env.write("body", &body);
    let sum = Ran::new(tool("sha256sum", [env.path("body")])).ok().stdout();
    let expected = serde_json::json!([
        { "uri": format!("{}/a.git#v1", all.served), "digest": { "sha1": all.commit("a.git", "v1") } },
        { "uri": format!("http://{server}/x"), "digest": { "sha256": &sum[..64] } },
        image("docker", "copied"),
        image("docker", "mounted"),
        image("docker", "shell"),
        image("oci", "layout"),
    ]);
    assert_eq!(found, expected);
    assert!(!statement.to_string().contains("hush"));
}

#[test]
fn neither_the_callers_repository_nor_its_settings_take_part() {
    let all = Repositories::new();
    let language = &all.language;
    let kubefile = format!("FROM scratch\nADD --keep-git-dir {}/a.git#v1 /r/\n", all.served);
    let reference = language.exported(&kubefile, &[]);
    assert!(!reference.join("r/.git/hooks").exists());
    assert_eq!(mode(&reference.join("r/f")), 0o644);
    let names = ["r/f", "r/.git/HEAD"].map(|name| (name, fs::read(reference.join(name)).unwrap()));

    let env = &language.env;
    let hook = env.write("hooks/post-checkout", "#!/bin/sh\necho hooked >>f\n");
    fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    env.write("template/hooks/sample", "");
    env.write(".config/git/attributes", "* text eol=crlf\n");
    env.write(
        ".gitconfig",
        format!(
            "[core]\nautocrlf = true\nhooksPath = {}\n[init]\ntemplateDir = {}\n",
            env.path("hooks").display(),
            env.path("template").display()
        ),
    );
    // The caller is a hook of another repository, with a strict umask.
    let mine = env.path("work-a.git");
    let before = state(&mine);
    env.write("Kubefile", &kubefile);
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077 && exec \"$0\" \"$@\""]);
    let context = env.path("context");
    let build = env.command(["build", "--network=none", "-t", "app", context.to_str().unwrap()]);
    command.arg(build.get_program()).args(build.get_args()).current_dir(env.path("."));
    command.args(["-f", env.path("Kubefile").to_str().unwrap()]).env_clear();
    for (name, value) in build.get_envs() {
        command.env(name, value.unwrap());
    }
    command.env("GIT_DIR", mine.join(".git")).env("GIT_WORK_TREE", &mine);
    command.env("GIT_INDEX_FILE", mine.join(".git/index"));
    command.env("GIT_CONFIG_PARAMETERS", "'core.autocrlf=true'");
    Ran::new(command).ok();
    assert_eq!(state(&mine), before);
    let _ = fs::remove_dir_all(&reference);
    let found = env.export("app", "exported");
    for (name, content) in names {
        assert_eq!(fs::read(found.join(name)).unwrap(), content, "{name}");
    }
    assert_eq!(mode(&found.join("r/f")), 0o644);
    assert_eq!(mode(&found.join("r/.git")), 0o755);
    assert!(!found.join("r/.git/hooks").exists());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Returns every file of a repository, with its content.
fn state(repository: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut directories = vec![repository.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                found.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}
