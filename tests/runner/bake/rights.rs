//! What a bake file, a compose file and a build context of somebody else reach on this machine.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{Ran, TestEnv};

const USAGE: i32 = 2;
const DENIED: i32 = 5;
const SECRET: &str = "LABEL stolen-text";

/// A project beside files of the operator.
fn project() -> TestEnv {
    let env = TestEnv::new();
    env.write("home/secret", SECRET);
    env.write("project/c/Kubefile", "FROM scratch\nCOPY file /file\n");
    env.write("project/c/file", "x");
    for directory in ["a=", "target:", "git@"] {
        fs::create_dir_all(env.path("project").join(directory)).unwrap();
    }
    symlink("../home", env.path("project/link")).unwrap();
    env
}

fn bake(env: &TestEnv, words: &[&str]) -> Ran {
    let mut command = env.command([&["bake"], words].concat());
    command.current_dir(env.path("project")).env("SSH_AUTH_SOCK", env.path("agent"));
    Ran::new(command)
}

#[test]
fn each_way_out_of_the_directory_is_asked_for() {
    let env = project();
    let home = env.path("home");
    let secret = home.join("secret").display().to_string();
    let home = home.display().to_string();
    for (target, right) in [
        (r#""context": "c", "dockerfile": "../../home/secret""#, format!("fs.read={secret}")),
        (r#""context": "c", "dockerfile": "../home/secret""#, format!("fs.read={secret}")),
        (r#""context": "target:/../../home""#, format!("fs.read={home}")),
        (r#""context": "c", "contexts": {"x": "git@/../../home"}"#, format!("fs.read={home}")),
        (
            r#""context": "c", "contexts": {"x": "oci-layout://link:t@sha256:00"}"#,
            format!("fs.read={home}"),
        ),
        (r#""context": "c", "secret": ["id=s,src=link/secret"]"#, format!("fs.read={secret}")),
        (r#""context": "c", "secret": ["id=link/secret"]"#, format!("fs.read={secret}")),
        (r#""context": "c", "ssh": ["default"]"#, "ssh".to_owned()),
        (
            r#""context": "c", "ssh": [{"id": "k=/var/run/docker.sock"}]"#,
            "fs.read=/run/docker.sock".to_owned(),
        ),
        (r#""context": "c", "output": ["a=/../../home/new"]"#, format!("fs.write={home}/new")),
        (
            r#""context": "c", "output": ["type=local,dest=link/new"]"#,
            format!("fs.write={home}/new"),
        ),
        (
            r#""context": "c", "cache-to": ["type=local,dest=link/new"]"#,
            format!("fs.write={home}/new"),
        ),
        (
            r#""context": "c", "cache-from": ["type=local,src=link/old"]"#,
            format!("fs.read={home}/old"),
        ),
        (r#""context": "c", "network": "host""#, "network.host".to_owned()),
        (
            r#""context": "c", "entitlements": ["security.insecure,network.host"]"#,
            "network.host, security.insecure".to_owned(),
        ),
    ] {
        let file = format!(r#"{{"target": {{"default": {{{target}}}}}}}"#);
        env.write("project/docker-bake.json", file);
        for words in [&[][..], &["--check"]] {
            let told = bake(&env, words).stderr();
            // `/var/run` may be a link or none.
            let is_told = told.contains(&right)
                || (right.contains("docker.sock") && told.contains("fs.read=/var/run/docker.sock"));
            // A check has no outputs and writes no cache.
            if words.is_empty() || !target.contains("new") {
                assert!(is_told && told.contains("asks for"), "{target}: {told}");
            }
            assert!(!told.contains("stolen-text"), "{target}: {told}");
        }
    }
    assert!(!env.path("home/new").exists());
    // What stays below the directory needs no right.
    let file = r#"{"target": {"default": {"context": "c", "output": ["out"], "tags": ["localhost/x:1"]}}}"#;
    env.write("project/docker-bake.json", file);
    bake(&env, &[]).ok();
    assert!(env.path("project/out/file").exists());
}

#[test]
fn files_that_nobody_named_are_no_links_to_elsewhere() {
    let env = project();
    env.write("home/credentials", "[default]\nkey = stolen-text\n");
    symlink("../home/credentials", env.path("project/.env")).unwrap();
    let file = "services: {a: {build: {context: c, labels: {x: \"${key:-none}\"}}, image: \"localhost/x:1\"}}\n";
    env.write("project/compose.yaml", file);
    let told = bake(&env, &["--print"]).fails(DENIED).stderr();
    assert!(told.contains(".env asks for fs.read="), "{told}");
    bake(&env, &["--print", "--allow", "fs.read=../home"]).ok();
    fs::remove_file(env.path("project/compose.yaml")).unwrap();
    symlink("../home/secret", env.path("project/docker-bake.hcl")).unwrap();
    let told = bake(&env, &["--print"]).fails(DENIED).stderr();
    assert!(told.contains("docker-bake.hcl asks for") && !told.contains("stolen-text"), "{told}");
}

/// A directory that somebody else has made, built without any flag.
#[test]
fn a_context_of_somebody_else_reads_and_writes_nothing_outside() {
    let env = project();
    let build = |words: &[&str]| env.imgctl([&["build", "-t", "x"], words].concat());
    let secret = env.path("home/secret");

    // The Kubefile and its ignore file.
    for name in ["Kubefile", "Dockerfile", "Containerfile"] {
        let context = env.path(format!("of-{name}"));
        fs::create_dir(&context).unwrap();
        symlink(&secret, context.join(name)).unwrap();
        let told = build(&[context.to_str().unwrap()]).fails(USAGE).stderr();
        assert!(told.contains("leads out of the context") && !told.contains("stolen"), "{told}");
    }
    let context = env.context("ignored", "FROM scratch\nCOPY . /\n", &[("stolen-text", "x")]);
    env.write("home/rules", "stolen-text\n");
    symlink(env.path("home/rules"), context.join(".dockerignore")).unwrap();
    build(&[context.to_str().unwrap()]).ok();
    assert!(env.imgctl(["ls", "x"]).ok().stdout().contains("stolen-text"));
    // Links inside of the context count.
    let context =
        env.context("inside", "FROM scratch\n", &[("docker/File", "FROM scratch\nLABEL a=b\n")]);
    fs::remove_file(context.join("Kubefile")).unwrap();
    symlink("docker/File", context.join("Dockerfile")).unwrap();
    build(&[context.to_str().unwrap()]).ok();
    assert_eq!(env.config("x")["config"]["Labels"]["a"], "b");

    // The lock file.
    let context = env.context("locked", "FROM scratch\nCOPY Kubefile /\n", &[]);
    let inside = context.join(secret.strip_prefix("/").unwrap());
    fs::create_dir_all(inside.parent().unwrap()).unwrap();
    fs::write(&inside, "version = 1\n").unwrap();
    symlink(&secret, context.join("imgctl.lock")).unwrap();
    for words in [&[][..], &["--update-lock"], &["--locked"]] {
        let all = [&[context.to_str().unwrap()], words].concat();
        let told = build(&all).fails(USAGE).stderr();
        assert!(told.contains("imgctl.lock is a link") && told.contains("--lock-file"), "{told}");
    }
    assert_eq!(fs::read_to_string(&secret).unwrap(), SECRET);
    fs::remove_file(context.join("imgctl.lock")).unwrap();
    build(&["--update-lock", context.to_str().unwrap()]).ok();
    assert!(context.join("imgctl.lock").is_file());
}

/// Names that a layer reads as a deletion.
#[test]
fn a_working_directory_deletes_nothing() {
    let env = TestEnv::new();
    for name in ["/etc/.wh.victim", "/etc/.wh.victim/below", "/etc/.wh..wh..opq"] {
        let kubefile = format!("FROM scratch\nCOPY victim /etc/victim\nWORKDIR {name}\n");
        let context = env.context("c", &kubefile, &[("victim", "x")]);
        let told = env.imgctl(["build", context.to_str().unwrap()]).fails(USAGE).stderr();
        assert!(told.contains("mark deletions"), "{name}: {told}");
    }
}
