//! RUN: what a command finds in its sandbox.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;

use super::Language;
use crate::common::needs_root;

/// The agent's own socket belongs to whoever builds.
#[test]
fn the_socket_of_an_ssh_agent_has_the_owner_and_mode_asked_for() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let agent = language.env.path("agent");
    let listener = UnixListener::bind(&agent).unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            // It is asked for its keys, and has none.
            let mut asked = [0; 5];
            connection.read_exact(&mut asked).unwrap();
            assert_eq!(asked, [0, 0, 0, 1, 11]);
            connection.write_all(&[0, 0, 0, 5, 12, 0, 0, 0, 0]).unwrap();
        }
    });
    let ssh = format!("--ssh=default={}", agent.display());
    for (options, expected) in [("", "0 0 600"), (",uid=7,gid=8,mode=0640", "7 8 640")] {
        let kubefile = format!(
            "FROM localhost/shell\nRUN --mount=type=ssh{options} stat -c '%u %g %a' $SSH_AUTH_SOCK >/seen\n\
             RUN --mount=type=ssh{options} printf '\\0\\0\\0\\1\\013' | /bin/busybox nc local:$SSH_AUTH_SOCK \
             | /bin/busybox od -An -tx1 >/said || echo no nc >/said\n"
        );
        assert_eq!(language.built(&kubefile, &[&ssh], "/seen"), expected);
        let said = language.content("/said");
        let said = said.trim();
        assert!(["00 00 00 05 0c 00 00 00 00", "no nc", ""].contains(&said), "{said}");
    }
}

#[test]
fn hosts_of_the_command_line_are_addresses_in_etc_hosts() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let from = "FROM localhost/shell\nRUN grep up /etc/hosts >/seen || echo none >/seen\n";
    let seen = |flags: &[&str]| language.built(from, flags, "/seen").replace('\t', " ");
    assert_eq!(seen(&[]), "none");
    // The step is not taken from the cache of a build with other hosts.
    assert_eq!(seen(&["--add-host=up:10.0.0.5"]), "10.0.0.5 up");
    assert_eq!(seen(&["--add-host=up=10.0.0.6"]), "10.0.0.6 up");
    assert_eq!(seen(&["--add-host=up:[2001:db8::5]"]), "2001:db8::5 up");
    for wrong in ["up:999.1.1.1", "up:somewhere", "up", "a b:10.0.0.5"] {
        let flag = format!("--add-host={wrong}");
        let said = language.build(from, &[&flag]);
        assert!(!said.success() && said.stderr().contains("--add-host"), "{}", said.report());
    }
}

/// BuildKit binds only `hosts` and `resolv.conf`. Images for virtual machines bring a host name.
#[test]
fn the_file_with_the_host_name_is_the_image_s() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let kubefile = "FROM localhost/shell\nRUN echo web >/etc/hostname; hostname >/seen\n\
                    RUN cat /etc/hostname >>/seen; /bin/busybox rm /etc/hostname\n";
    assert_eq!(language.built(kubefile, &[], "/seen"), "buildkitsandbox\nweb");
    assert!(!language.env.imgctl(["ls", "app:/etc"]).ok().stdout().contains("hostname"));
}
