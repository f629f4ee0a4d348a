//! ADD of URLs and git repositories.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use imgctl_base::testing::free_port;

use super::Language;

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
struct Repositories {
    language: Language,
    served: String,
    plain: String,
    _daemons: [Daemon; 2],
}

impl Repositories {
    fn new() -> Self {
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

    fn git(&self, directory: &Path, arguments: &[&str]) -> String {
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

    fn publish(&self, name: &str) {
        let bare = self.language.env.path(format!("git/{name}"));
        let _ = fs::remove_dir_all(&bare);
        let work = self.language.env.path(format!("work-{name}"));
        self.git(&work, &["clone", "-q", "--bare", ".", bare.to_str().unwrap()]);
        self.git(&bare, &["update-server-info"]);
    }

    fn commit(&self, name: &str, revision: &str) -> String {
        self.git(&self.language.env.path(format!("git/{name}")), &["rev-parse", revision])
    }

    fn added(&self, words: &str, path: &str) -> String {
        self.language.built(&format!("FROM scratch\nADD {words} /r/\n"), &[], &format!("/r/{path}"))
    }
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
    assert_eq!(all.added(&format!("{}/new.git#v1", all.served), "f"), "one");
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
}
