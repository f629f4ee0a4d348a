//! The binary for arm64, under Debian's qemu-user: what needs no features of the kernel; as the agent
//! of a host; and programs for arm64 in `RUN` steps of this machine's imgctl.
//!
//! The tests register the emulator in a user namespace of their own, which needs Linux 6.7: other
//! programs of this machine do not see it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use imgctl_base::testing::skip;
use imgctl_host::agent::Agent as _;
use imgctl_host::agent::install::Binaries;
use imgctl_host::agent::remote::testing;

use crate::common::registry::Registry;
use crate::common::{IMGCTL, Ran, TestEnv, repository, tool};

const QEMU: &str = "/usr/bin/qemu-aarch64-static";

/// The binary for arm64; `None`, with a word, when this test is skipped.
fn binary() -> Option<PathBuf> {
    let given = std::env::var_os("IMGCTL_ARM64").map(PathBuf::from);
    let path = given.unwrap_or_else(|| repository().join("target/imgctl-aarch64"));
    if path.is_file() && PathBuf::from(QEMU).is_file() {
        return Some(path);
    }
    skip("there is no target/imgctl-aarch64, or no qemu-user-static: scripts/arm64 makes them");
    None
}

/// The command line of imgctl for arm64.
fn arm64<S: AsRef<OsStr>>(env: &TestEnv, arguments: impl IntoIterator<Item = S>) -> Option<Ran> {
    let binary = binary()?;
    let mut command = tool(QEMU, [binary.as_os_str(), "--root".as_ref(), env.root().as_os_str()]);
    command.args(arguments).current_dir(env.path("."));
    Some(Ran::new(command))
}

/// Shell code that lets the programs after it run programs for arm64, in a namespace of its own.
/// `flags` are those of the registration.
fn registered(flags: &str) -> String {
    let magic = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00";
    let mask = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff";
    format!(
        "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && \
         printf '%s' ':qemu-aarch64:M::{magic}:{mask}:{QEMU}:{flags}' >/proc/sys/fs/binfmt_misc/register && "
    )
}

/// `sh -c CODE` as root of a user namespace; `None`, with a word, where the kernel has one table of
/// emulators for all.
fn apart(code: &str) -> Option<Command> {
    let mut words = vec!["--user", "--map-root-user", "--mount", "sh", "-c"];
    let probe = registered("F") + "true";
    words.push(&probe);
    if !Ran::new(tool("unshare", &words)).success() {
        skip("this kernel has no emulators by user namespace (Linux 6.7)");
        return None;
    }
    words.pop();
    words.push(code);
    Some(tool("unshare", &words))
}

#[test]
fn it_builds_checks_pushes_and_checks_out() {
    let env = TestEnv::new();
    let context = env.context("app", "FROM scratch\nCOPY . /etc/\nENV A=1\n", &[("a/b", "text")]);
    let context = context.to_str().unwrap();
    let Some(version) = arm64(&env, ["--version"]) else {
        return;
    };
    assert!(version.ok().stdout().starts_with("imgctl "));
    let run = |words: &[&str]| arm64(&env, words).unwrap().ok();
    let version = run(&["version", "-o", "json"]).json();
    assert_eq!(version["platform"], "linux/arm64");

    run(&["build", "--check", context]);
    let registry = Registry::start();
    let name = format!("{}/app:v1", registry.host);
    let id = run(&["build", "--tls-verify=false", "--push", "-t", &name, context]).stdout();
    registry.assert_serves("app:v1");
    run(&["pull", "--tls-verify=false", &name]);
    let mounted = run(&["mount", "--backend", "checkout", &name]).stdout();
    let file = PathBuf::from(&mounted).join("etc/a/b");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "text");
    run(&["umount", &mounted]);

    // The same bytes as on this machine, but for the architecture that the config names.
    let here = TestEnv::new();
    let words = ["build", "-q", "--platform", "linux/arm64", "-t", "app:v1", context];
    assert_eq!(here.imgctl(words).ok().stdout(), id);
}

/// Generated Kubefiles (`corpus::generated`) give the same images on every machine.
#[test]
fn it_makes_the_images_that_this_machine_makes() {
    // The files have other owners.
    if !crate::common::needs_root() {
        return;
    }
    let Some(binary) = binary() else { return };
    crate::corpus::generated::check_machines(&|env, work, words| {
        let mut command =
            tool(QEMU, [binary.as_os_str(), "--root".as_ref(), env.root().as_os_str()]);
        command.args(words).current_dir(work);
        Ran::new(command)
    });
}

#[test]
fn a_host_with_arm64_gets_the_agent_for_arm64() {
    let Some(binary) = binary() else {
        return;
    };
    // A host on which `uname` and the programs are those of arm64.
    let uname = "uname() { if [ \"$1\" = -m ]; then echo aarch64; else echo Linux; fi; }; ";
    let setup = format!("{} exec sh -c '{uname}'\"$1\" sh", registered("F"));
    if apart("true").is_none() {
        return;
    }
    let words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &setup, "sh"];
    let words = words.map(str::to_owned).to_vec();
    let runtime = testing::runtime();
    let directory = tempfile::tempdir().unwrap();
    let own = PathBuf::from(IMGCTL);

    let without = Binaries::new(own.clone(), None, Some(directory.path().to_owned()));
    let host = testing::Host::through(&runtime, words.clone(), without);
    let error = host.remote.facts().unwrap_err();
    assert!(format!("{error:#}").contains("its architecture is arm64 (aarch64)"), "{error:#}");
    assert!(error.hints()[0].contains("imgctl-agents"), "{:?}", error.hints());

    std::os::unix::fs::symlink(&binary, directory.path().join("imgctl-linux-arm64")).unwrap();
    let binaries = Binaries::new(own, None, Some(directory.path().to_owned()));
    let host = testing::Host::through(&runtime, words, binaries);
    let facts = host.remote.facts().unwrap();
    assert_eq!(facts.architecture, "arm64");
    assert!(facts.cpus >= 1);
    let kept: Vec<_> = std::fs::read_dir(host.directory.path().join("kept"))
        .unwrap()
        .map(|entry| std::fs::metadata(entry.unwrap().path()).unwrap().len())
        .collect();
    assert_eq!(kept, [std::fs::metadata(&binary).unwrap().len()], "one program, that of arm64");
}

/// A context whose only RUN step executes a program for arm64, which is imgctl itself.
fn foreign(env: &TestEnv) -> Option<PathBuf> {
    let binary = binary()?;
    let kubefile = "FROM scratch\nCOPY imgctl /bin/\n\
        RUN [\"/bin/imgctl\", \"docs\", \"--path\", \"/made\"]\n";
    let context = env.context("foreign", kubefile, &[]);
    std::fs::copy(binary, context.join("imgctl")).unwrap();
    Some(context)
}

/// Builds `context` for arm64 after `setup`, in a user namespace.
fn build_after(env: &TestEnv, setup: &str, context: &std::path::Path) -> Option<Ran> {
    let mut command = apart(&format!("{setup} exec \"$0\" \"$@\""))?;
    command.args([IMGCTL.as_ref(), "--root".as_ref(), env.root().as_os_str()]);
    command.args(["build", "-q", "--no-cache", "--platform", "linux/arm64", "-t", "foreign:v1"]);
    Some(Ran::new({
        command.arg(context);
        command
    }))
}

#[test]
fn run_executes_programs_for_arm64_through_a_registered_emulator() {
    let env = TestEnv::new();
    let Some(context) = foreign(&env) else {
        return;
    };
    let Some(ran) = build_after(&env, &registered("F"), &context) else {
        return;
    };
    ran.ok();
    let made = env.imgctl(["ls", "foreign:v1:/made"]).ok();
    assert!(made.stdout().contains("imgctl.md"), "{}", made.report());
}

#[test]
fn run_says_what_to_install_where_no_emulator_is_registered() {
    let env = TestEnv::new();
    let Some(context) = foreign(&env) else {
        return;
    };
    let nothing = "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && ";
    let Some(ran) = build_after(&env, nothing, &context) else {
        return;
    };
    let said = ran.fails(9).stderr();
    assert!(said.contains("another architecture (arm64; this machine is"), "{said}");
    assert!(said.contains("qemu-user-static"), "{said}");
    assert!(said.contains("tonistiigi/binfmt --install arm64"), "{said}");
    let lost = build_after(&env, &registered(""), &context).unwrap().fails(9).stderr();
    assert!(lost.contains("is registered without the flag F"), "{lost}");
}
