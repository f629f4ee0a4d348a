//! Flags that name an output file: a device, a pipe and a symbolic link that are there already stay what
//! they are. The list of flags is checked against the command line.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{TestEnv, needs_root, repository, tool};

/// Verb, flag, and a command line with `{}` in the place of the file.
const WRITTEN: &[(&str, &str, &str)] = &[
    ("build", "iidfile", "build -q -t x --iidfile {} context"),
    ("build", "metadata-file", "build -q -t x --metadata-file {} context"),
    ("build", "output", "build -q -o type=tar,dest={} context"),
    ("build", "output", "build -q -o type=oci,dest={} context"),
    ("build", "output", "build -q -o type=docker,dest={} context"),
    ("build", "provenance", "build -q -t x --provenance={} context"),
    ("build", "sbom", "build -q -t x --sbom={} context"),
    ("export", "output", "export app -o {}"),
    ("gen", "output", "gen app --masters 10.0.0.1 -o {}"),
    ("report image", "output", "report image app -o {}"),
    ("save", "output", "save app -o {}"),
    ("sbom", "output", "sbom app -o {}"),
];

/// Flags of the same kind that need a cluster, a registry or keys; they are written by the function
/// that the ones above use, which has tests of its own (`imgctl-base: fs::output`).
const ALSO_WRITTEN: &[&str] = &[
    "authfile",
    "bundle",
    "digestfile",
    "lock-file",
    "output",
    "output-key-prefix",
    "pid-file",
    "report",
    "request-missing",
    "save-plan",
    "summary",
    "dest-authfile",
];

/// Flags whose file or directory is read, or whose value is none.
const READ: &[&str] = &[
    "attest",
    "batch",
    "build-arg-file",
    "cache-from",
    "cache-to",
    "cert-dir",
    "chart",
    "config-file",
    "dest-cert-dir",
    "encrypt-state",
    "encrypt-to",
    "file",
    "from-helm",
    "from-snapshot",
    "host",
    "htpasswd",
    "identity",
    "identity-token",
    "ignorefile",
    "images-file",
    "input",
    "ips",
    "key",
    "known-hosts",
    "kubeconfig",
    "masters",
    "nodes",
    "passphrase-file",
    "passwd-file",
    "path",
    "pk",
    "pk-passwd-file",
    "plan-file",
    "registry",
    "registry-dir",
    "registry-hosts",
    "request",
    "roles",
    "root",
    "secret",
    "signature-policy",
    "signing-config",
    "src-authfile",
    "src-cert-dir",
    "ssh",
    "ssh-config",
    "state-identity",
    "statement",
    "sudo-passwd-file",
    "tars",
    "tls-cert",
    "tls-key",
    "to",
    "token-file",
    "trusted-root",
    "values",
];
#[test]
fn every_flag_with_a_file_is_known_as_read_or_written() {
    let mut unknown = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let pages = fs::read_dir(repository().join("docs/commands")).unwrap();
    for page in pages.map(|entry| entry.unwrap().path()) {
        for line in fs::read_to_string(&page).unwrap().lines() {
            let Some((_, rest)) = line.split_once("--") else { continue };
            let flag: String =
                rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            let value = rest[flag.len()..].trim_start_matches([' ', '=', '[']);
            let Some(value) = value.strip_prefix('<').and_then(|value| value.split('>').next())
            else {
                continue;
            };
            let words: Vec<&str> = value.split(|c: char| !c.is_ascii_uppercase()).collect();
            let names_a_file = ["FILE", "PATH", "DIR", "SPEC", "LIST", "PREFIX"]
                .iter()
                .any(|word| words.contains(word));
            if !names_a_file {
                continue;
            }
            let flag = flag.as_str();
            let known = ALSO_WRITTEN.contains(&flag)
                || READ.contains(&flag)
                || WRITTEN.iter().any(|(_, written, _)| *written == flag);
            seen.insert(flag.to_owned());
            if !known {
                unknown.insert(format!("--{flag} <{value}> in {}", page.display()));
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "say in this file whether these are read or written, and write with imgctl_base::fs::output: {unknown:#?}"
    );
    for (_, flag, _) in WRITTEN {
        assert!(seen.contains(*flag), "--{flag} is no flag any more");
    }
}

fn run(env: &TestEnv, line: &str, path: &Path) {
    let path = path.to_str().unwrap();
    let words: Vec<String> = line.split(' ').map(|word| word.replace("{}", path)).collect();
    env.imgctl(&words).ok();
}

/// Reads a pipe to its end with a program, so that a command which never writes to it cannot hang the
/// test.
fn from_pipe(pipe: &Path, to: &Path, write: impl FnOnce()) -> Vec<u8> {
    let output = File::create(to).unwrap();
    let mut reader =
        Command::new("cat").arg(pipe).stdin(Stdio::null()).stdout(output).spawn().unwrap();
    write();
    let until = Instant::now() + Duration::from_secs(20);
    while reader.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            reader.kill().unwrap();
            reader.wait().unwrap();
            panic!("nothing was written to {}", pipe.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::read(to).unwrap()
}

#[test]
fn what_is_no_regular_file_stays_what_it_is() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    // `gen` wants an image that a cluster can begin with.
    let kubefile = "FROM scratch\n\
        LABEL sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script version=v1.0.0\n\
        LABEL check=a.sh init=a.sh join=a.sh clean=a.sh\nCOPY . .\n";
    let context = env.context("context", kubefile, &[("scripts/a.sh", "true")]);
    env.build("app", &context);
    for (number, (_, flag, line)) in WRITTEN.iter().enumerate() {
        // A name that every verb takes for a file.
        let place = |kind: &str| -> PathBuf {
            let directory = env.path(format!("{number}-{kind}"));
            fs::create_dir(&directory).unwrap();
            directory.join("out.tar")
        };
        let fresh = place("fresh");
        run(&env, line, &fresh);
        let written = fs::read(&fresh).unwrap();
        assert!(!written.is_empty(), "{line}");

        let device = place("device");
        let made =
            tool("mknod", [device.as_os_str(), "c".as_ref(), "1".as_ref(), "3".as_ref()]).status();
        assert!(made.unwrap().success());
        run(&env, line, &device);
        assert!(fs::symlink_metadata(&device).unwrap().file_type().is_char_device(), "{line}");

        let link = place("link");
        let end = link.with_file_name("end");
        fs::write(&end, "old").unwrap();
        symlink("end", &link).unwrap();
        run(&env, line, &link);
        assert!(link.is_symlink() && end.is_file() && !end.is_symlink(), "{line}");
        assert!(fs::read(&end).unwrap() != b"old", "--{flag}: {line}");

        let pipe = place("pipe");
        assert!(tool("mkfifo", [&pipe]).status().unwrap().success());
        let got = from_pipe(&pipe, &pipe.with_file_name("got"), || run(&env, line, &pipe));
        assert!(!got.is_empty(), "{line}");
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo(), "{line}");
    }
}

/// Beside the files of an image, `-o type=local` writes documents: a link of the image that has the name
/// of one leads nowhere.
#[test]
fn a_document_beside_the_files_of_an_image_follows_no_link_of_it() {
    let env = TestEnv::new();
    let outside = env.write("outside", "kept\n");
    let context = env.context("context", "FROM scratch\nCOPY tree/ /\n", &[("tree/file", "x\n")]);
    symlink(&outside, context.join("tree/provenance.json")).unwrap();
    symlink("../outside", context.join("tree/sbom.spdx.json")).unwrap();
    let words = ["build", "-q", "--provenance=true", "--sbom=true", "-o", "type=local,dest=out"];
    env.imgctl(words.into_iter().chain(["context"])).ok();
    assert_eq!(fs::read_to_string(&outside).unwrap(), "kept\n");
    for name in ["provenance.json", "sbom.spdx.json"] {
        let written = env.path("out").join(name);
        assert!(fs::symlink_metadata(&written).unwrap().is_file(), "{name}");
        assert!(fs::read_to_string(&written).unwrap().starts_with('{'), "{name}");
    }
    assert_eq!(fs::read_to_string(env.path("out/file")).unwrap(), "x\n");
}
