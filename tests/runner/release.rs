//! `scripts/release` and `install.sh`, with small programs in place of the binaries: each is a script
//! that calls the imgctl of this machine.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{IMGCTL, Ran, TestEnv, json, repository, tool};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a release is made of in these tests.
struct Parts<'a> {
    env: &'a TestEnv,
    binaries: PathBuf,
}

impl<'a> Parts<'a> {
    fn new(env: &'a TestEnv) -> Self {
        for architecture in ["amd64", "arm64"] {
            let text = format!("#!/bin/sh\n# {architecture}\nexec '{IMGCTL}' \"$@\"\n");
            let path = env.write(format!("binaries/imgctl-linux-{architecture}"), text);
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        env.write("busybox", "#!/bin/sh\n");
        env.write("certificates.pem", "certificates\n");
        let words = ["key", "generate", "--output-key-prefix", "release"];
        Ran::new(Self::with_password(env.command(words))).ok();
        Self { env, binaries: env.path("binaries") }
    }

    fn with_password(mut command: Command) -> Command {
        command.env("COSIGN_PASSWORD", "secret");
        command
    }

    /// Makes the release and gives its directory.
    fn release(&self, output: &str, arguments: &[&str]) -> PathBuf {
        let output = self.env.path(output);
        let script = repository().join("scripts/release");
        let mut command = tool(script.to_str().unwrap(), [VERSION, "--fast", "--dirty"]);
        command.arg("--binaries").arg(&self.binaries).arg("--output").arg(&output);
        command
            .args(arguments)
            .env("BUSYBOX_AMD64", self.env.path("busybox"))
            .env("BUSYBOX_ARM64", self.env.path("busybox"))
            .env("CA_CERTIFICATES", self.env.path("certificates.pem"))
            .env("SOURCE_DATE_EPOCH", "1700000000");
        Ran::new(Self::with_password(command)).ok();
        output
    }

    /// `install.sh` of a release, with an imgctl on the PATH that can verify signatures.
    fn install(&self, release: &Path, prefix: &str, arguments: &[&str]) -> Ran {
        let programs = self.env.path("programs");
        let _ = std::fs::create_dir(&programs);
        let _ = std::os::unix::fs::symlink(IMGCTL, programs.join("imgctl"));
        let path = format!("{}:/usr/bin:/bin", programs.display());
        self.install_with(release, prefix, arguments, &path)
    }

    /// The same with the programs of `path`.
    fn install_with(&self, release: &Path, prefix: &str, arguments: &[&str], path: &str) -> Ran {
        let mut command = tool("sh", [release.join("install.sh")]);
        command
            .arg("--base-url")
            .arg(format!("file://{}", release.display()))
            .arg("--prefix")
            .arg(self.env.path(prefix))
            .args(arguments)
            .env("PATH", path);
        Ran::new(command)
    }
}

/// The files of a directory, by name.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// A copy of a release in which `name` was replaced; without content it is missing.
fn changed(env: &TestEnv, release: &Path, name: &str, content: Option<&[u8]>) -> PathBuf {
    let copy = env.path(format!("changed-{name}"));
    Ran::new(tool("cp", ["-R".as_ref(), release.as_os_str(), copy.as_os_str()])).ok();
    match content {
        Some(content) => std::fs::write(copy.join(name), content).unwrap(),
        None => std::fs::remove_file(copy.join(name)).unwrap(),
    }
    copy
}

#[test]
fn two_runs_give_the_same_bytes() {
    let env = TestEnv::new();
    let parts = Parts::new(&env);
    let one = parts.release("one", &[]);
    // Another time, place and umask.
    std::fs::rename(&parts.binaries, env.path("others")).unwrap();
    let parts = Parts { binaries: env.path("others"), env: &env };
    let key = env.path("release.key");
    let other = parts.release("other", &["--key", key.to_str().unwrap()]);
    let (one, mut others) = (files(&one), files(&other));
    assert!(others.remove(&format!("imgctl-{VERSION}.sigstore.json")).is_some());
    for (name, bytes) in &one {
        assert!(others.get(name) == Some(bytes), "{name} differs");
    }
    let names: Vec<&str> = one.keys().map(String::as_str).collect();
    let expected = [
        "SHA256SUMS".to_owned(),
        format!("imgctl-{VERSION}-image.tar"),
        format!("imgctl-{VERSION}-linux-amd64.tar.gz"),
        format!("imgctl-{VERSION}-linux-arm64.tar.gz"),
        format!("imgctl-{VERSION}.provenance.json"),
        format!("imgctl-{VERSION}.spdx.json"),
        format!("imgctl-agents_{VERSION}_all.deb"),
        format!("imgctl_{VERSION}_amd64.deb"),
        format!("imgctl_{VERSION}_arm64.deb"),
        "install.sh".to_owned(),
    ];
    assert_eq!(names, expected);
    assert_eq!(others.len(), one.len());

    let mut check = tool("sha256sum", ["--check", "--strict", "--quiet", "SHA256SUMS"]);
    Ran::new({
        check.current_dir(&other);
        check
    })
    .ok();
    // Every file but the signature and itself is a subject of the provenance.
    let statement = json(&other.join(format!("imgctl-{VERSION}.provenance.json")));
    assert_eq!(statement["subject"].as_array().unwrap().len(), expected.len() - 1);
    let sbom = json(&other.join(format!("imgctl-{VERSION}.spdx.json")));
    let crates = sbom["packages"].as_array().unwrap();
    assert!(crates.iter().any(|package| package["name"] == "rustls"));
    assert!(!crates.iter().any(|package| package["name"] == "proptest"), "only what is linked");
    let signed = format!("imgctl-{VERSION}.sigstore.json");
    let verify = |key: &str, file: &Path| {
        let mut command = env.command(["verify-blob-attestation", "--type", "slsaprovenance1"]);
        command.arg("--key").arg(env.path(key)).arg("--bundle").arg(other.join(&signed)).arg(file);
        Ran::new(command)
    };
    for name in ["SHA256SUMS", "install.sh"] {
        verify("release.pub", &other.join(name)).ok();
    }
    verify("release.pub", &env.path("busybox")).fails(5);

    for architecture in ["amd64", "arm64"] {
        let package = other.join(format!("imgctl_{VERSION}_{architecture}.deb"));
        let list = Ran::new(tool("dpkg-deb", ["-c".as_ref(), package.as_os_str()])).ok().stdout();
        for line in ["-rwxr-xr-x root/root", " ./usr/bin/imgctl\n", "man1/imgctl-build.1.gz"] {
            assert!(list.contains(line), "{line}: {list}");
        }
        let archive = other.join(format!("imgctl-{VERSION}-linux-{architecture}.tar.gz"));
        let list = Ran::new(tool("tar", ["-tzf".as_ref(), archive.as_os_str()])).ok().stdout();
        for name in ["imgctl", "LICENSE", "completions/_imgctl", "man1/imgctl-build.1"] {
            let path = format!("imgctl-{VERSION}-linux-{architecture}/{name}\n");
            assert!(list.contains(&path), "{path}: {list}");
        }
        let image = format!("oci-archive:{}/imgctl-{VERSION}-image.tar", other.display());
        let words = ["--override-arch", architecture, "inspect", "--config", &image];
        let config = Ran::new(tool("skopeo", words)).ok().json();
        assert_eq!(config["architecture"], architecture);
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/local/bin/imgctl");
    }
}

#[test]
fn install_sh_installs_what_it_verified_and_nothing_else() {
    let env = TestEnv::new();
    let parts = Parts::new(&env);
    let key = env.path("release.key");
    let release = parts.release("release", &["--key", key.to_str().unwrap()]);
    let public = env.path("release.pub");
    let public = public.to_str().unwrap();
    let amd64 = cfg!(target_arch = "x86_64");
    let (own, other) = if amd64 { ("amd64", "arm64") } else { ("arm64", "amd64") };
    let installed = |prefix: &str, name: &str| env.path(prefix).join(name);

    let said = parts.install(&release, "a", &["--version", VERSION]).ok();
    assert!(said.stderr().contains("signature was not verified: pass --key"), "{}", said.report());
    let ran = Ran::new(tool(installed("a", "bin/imgctl").to_str().unwrap(), ["--version"]));
    assert_eq!(ran.ok().stdout(), format!("imgctl {VERSION}"));
    // Again, over what is there; with a signature and the agents.
    let words = ["--key", public, "--require-signature", "--agents"];
    let said = parts.install(&release, "a", &words).ok().stdout();
    assert!(said.contains("the signature is valid"), "{said}");
    let agent = installed("a", &format!("lib/imgctl/imgctl-linux-{other}"));
    assert!(std::fs::read_to_string(agent).unwrap().contains(other));

    let archive = format!("imgctl-{VERSION}-linux-{own}.tar.gz");
    let mut content = std::fs::read(release.join(&archive)).unwrap();
    *content.last_mut().unwrap() ^= 1;
    let tampered = changed(&env, &release, &archive, Some(&content));
    let said = parts.install(&tampered, "b", &[]).fails(1).stderr();
    assert!(said.contains("does not have the checksum of SHA256SUMS"), "{said}");
    let missing = changed(&env, &release, "SHA256SUMS", None);
    parts.install(&missing, "b", &[]).fails(1);

    // Archive and checksum fit each other, but nobody signed them.
    let sums = std::fs::read_to_string(release.join("SHA256SUMS")).unwrap();
    let digest = Ran::new(tool("sha256sum", [tampered.join(&archive)])).ok().stdout();
    let line = sums.lines().find(|line| line.ends_with(&archive)).unwrap();
    let forged = sums.replace(&line[..64], &digest[..64]);
    std::fs::write(tampered.join("SHA256SUMS"), forged).unwrap();
    let said = parts.install(&tampered, "b", &["--key", public]).fails(1).stderr();
    assert!(said.contains("the signature is not valid"), "{said}");
    let unsigned = format!("imgctl-{VERSION}.sigstore.json");
    std::fs::remove_file(tampered.join(unsigned)).unwrap();
    let identity = ["--certificate-identity", "x", "--certificate-oidc-issuer", "https://x"];
    for words in [&["--key", public][..], &["--key", public, "--require-signature"], &identity] {
        let said = parts.install(&tampered, "b", words).fails(1).stderr();
        assert!(said.contains("the release has no signature"), "{said}");
    }
    // Whoever is named in part, or not at all, is nobody.
    for (words, missing) in [
        (&["--require-signature"][..], "needs a signer"),
        (&identity[..2], "--certificate-oidc-issuer is missing"),
        (&identity[2..], "--certificate-identity is missing"),
        (&["--trusted-root", public], "--certificate-identity is missing"),
        (&["--key", public, "--certificate-identity", "x"], "exclude each other"),
        (&["--key", "/no/such"], "cannot read the key"),
    ] {
        let said = parts.install(&release, "b", words).fails(1).stderr();
        assert!(said.contains(missing), "{said}");
    }
    // A signature that nothing here can verify.
    let said = parts.install_with(&release, "b", &["--key", public], "/usr/bin:/bin").fails(1);
    assert!(said.stderr().contains("the signature cannot be verified"), "{}", said.report());

    let said = parts.install(&release, "b", &["--version", "99.0.0"]).fails(1).stderr();
    assert!(said.contains("not 99.0.0"), "{said}");
    for wrong in [&["--version", "../x"][..], &["--base-url", "http://x"], &["--no-such"]] {
        parts.install(&release, "b", wrong).fails(1);
    }
    assert!(!env.path("b").exists(), "nothing was installed");
    let help = Ran::new(tool("sh", [release.join("install.sh").as_os_str(), "--help".as_ref()]));
    assert!(help.ok().stdout().contains("--require-signature"));
}

#[test]
fn the_setup_action_takes_a_release() {
    let env = TestEnv::new();
    let parts = Parts::new(&env);
    let key = env.path("release.key");
    let release = parts.release("releases/latest/download", &["--key", key.to_str().unwrap()]);
    let script = repository().join("ci/github/setup/install");
    let setup = |releases: String, variables: &[(&str, &str)]| {
        let mut command = tool(script.to_str().unwrap(), [] as [&str; 0]);
        command
            .env("IMGCTL_RELEASES", releases)
            .env("INPUT_VERSION", "latest")
            .env("RUNNER_TOOL_CACHE", env.path("tools"))
            .env("RUNNER_TEMP", env.path("."))
            .env("GITHUB_PATH", env.path("path"))
            .env("PATH", format!("{}:/usr/bin:/bin", env.path("programs").display()))
            .envs(variables.iter().copied());
        Ran::new(command)
    };
    let here = || format!("file://{}", env.path("releases").display());
    let said = setup(here(), &[]).ok().stdout();
    assert!(said.contains(&format!("imgctl {VERSION}")), "{said}");
    assert!(said.contains("::warning title=imgctl setup::the signature"), "{said}");
    let path = std::fs::read_to_string(env.path("path")).unwrap();
    assert!(PathBuf::from(path.trim()).join("imgctl").is_file());

    // With a signer, and something that can verify: another imgctl, or what GitHub's runners have.
    let public = env.path("release.pub");
    let by_key = [("INPUT_KEY", public.to_str().unwrap())];
    let refused = setup(here(), &by_key).fails(1).stdout();
    assert!(refused.contains("::error title=imgctl setup::the signature cannot"), "{refused}");
    let workflow = "https://github.com/o/imgctl/.github/workflows/release.yml@refs/tags/v{version}";
    let by_workflow = [("IMGCTL_SIGNER", workflow), ("INPUT_REQUIRE_SIGNATURE", "true")];
    setup(here(), &by_workflow).fails(1);
    setup(here(), &by_workflow[1..]).fails(1);
    std::fs::create_dir_all(env.path("programs")).unwrap();
    let gh = env.write(
        "programs/gh",
        "#!/bin/sh\necho \"$*\" >\"$RUNNER_TEMP/asked\"\nexit ${GH_FAILS:-0}\n",
    );
    std::fs::set_permissions(&gh, PermissionsExt::from_mode(0o755)).unwrap();
    let said = setup(here(), &by_workflow[..1]).ok().stdout();
    assert!(said.contains("the signature is valid"), "{said}");
    let asked = std::fs::read_to_string(env.path("asked")).unwrap();
    let identity = workflow.replace("{version}", VERSION);
    assert!(asked.contains(&format!("--owner o --cert-identity {identity} ")), "{asked}");
    let invalid = [by_workflow[0], ("GH_FAILS", "1")];
    assert!(setup(here(), &invalid).fails(1).stdout().contains("is not valid"));
    std::os::unix::fs::symlink(IMGCTL, env.path("programs/imgctl")).unwrap();
    assert!(setup(here(), &by_key).ok().stdout().contains("the signature is valid"));
    std::fs::remove_file(release.join(format!("imgctl-{VERSION}.sigstore.json"))).unwrap();
    assert!(setup(here(), &by_key).fails(1).stdout().contains("has no signature"));
    for plain in ["http://127.0.0.1:1/releases", "ftp://127.0.0.1/releases"] {
        let said = setup(plain.to_owned(), &[]).fails(1).stdout();
        assert!(said.contains("neither an https:// nor a file:/// URL"), "{said}");
    }
}
