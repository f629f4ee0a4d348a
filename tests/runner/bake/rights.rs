//! What a bake file or a compose file of somebody else reaches on this machine.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{Ran, TestEnv};

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
