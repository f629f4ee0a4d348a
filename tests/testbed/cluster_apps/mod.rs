//! What the commands of application images mean, on a host of the test bed whose cluster is a script.

use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root};

/// Stands in for kubectl and helm: writes where and with what it was called.
const RECORD: &str =
    "#!/bin/bash\nprintf '%s|%s|%s\\n' \"${PWD##*/}\" \"${0##*/}\" \"$*\" >>/var/log/called\n";
const ROOTFS: &str = "FROM scratch\nLABEL sealos.io.type=rootfs sealos.io.version=v1beta1 \
     sealos.io.distribution=script version=v1 init=init.sh clean=clean.sh\nCOPY . .\n";
/// One line per element, in the order of ENTRYPOINT and CMD.
const LIST: &str = "FROM scratch\nENV NAME=web OPTS=\"--set a=b\" ODD=\"a 'b' \\\"c\\\" \\\\ \\$d\"\nCOPY . .\n\
     ENTRYPOINT [\"kubectl create ns $(NAME)\"]\n\
     CMD [\"helm upgrade -i $(NAME) charts/$(NAME) ${OPTS} ${X:-d}\", \"kubectl apply -f $(echo manifests)\", \"bash odd.sh\"]\n";
/// The shell's form is one line of shell.
const SHELL: &str = "FROM scratch\nCOPY . .\n\
     CMD false || true ; kubectl apply -f one.yaml && \\\n    kubectl wait --for=$(WHAT)\n";
const FAILS: &str =
    "FROM scratch\nCOPY . .\nCMD [\"echo no such thing >&2; exit 7\", \"kubectl never\"]\n";

fn keyed(bed: &Bed, arguments: &[&str]) -> Ran {
    let mut command = bed.command(arguments);
    if matches!(arguments[0], "run") {
        command.arg("--pk").arg(bed.key());
    }
    Ran::new(command)
}

/// What was called since the last look: `(directory, program, arguments)` as they were written.
fn called(bed: &Bed) -> Vec<String> {
    let text = bed.says(1, "cat /var/log/called 2>/dev/null; rm -f /var/log/called");
    let line = |line: &str| {
        let (directory, rest) = line.split_once('|').unwrap();
        assert!(directory.starts_with("workdir"), "{line}");
        rest.to_owned()
    };
    text.lines().map(line).collect()
}

fn built(bed: &Bed, name: &str, kubefile: &str, files: &[(&str, &str)]) {
    let context = bed.env.context(name, kubefile, files);
    bed.env.build(&format!("{name}:v1"), &context);
}

#[test]
fn commands_of_applications() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(1);
    let install =
        "install -m 755 record /usr/local/bin/kubectl\ninstall -m 755 record /usr/local/bin/helm\n";
    let clean = "rm -f /usr/local/bin/kubectl /usr/local/bin/helm\n";
    let files =
        [("scripts/init.sh", install), ("scripts/clean.sh", clean), ("scripts/record", RECORD)];
    built(&bed, "base", ROOTFS, &files);
    let odd = "kubectl odd \"$ODD\" \"$HOST_IP\"\n";
    let uninstall = "kubectl gone $NAME\n";
    built(&bed, "list", LIST, &[("odd.sh", odd), ("uninstall.sh", uninstall)]);
    built(&bed, "shell", SHELL, &[("one.yaml", "")]);
    built(&bed, "fails", FAILS, &[("f", "")]);
    keyed(&bed, &["run", "base:v1", "--masters", &bed.ip(1)]).ok();
    assert!(called(&bed).is_empty());

    let ip = bed.ip(1);
    keyed(&bed, &["run", "list:v1"]).ok();
    let expected = |name: &str, options: &str| {
        [
            format!("kubectl|create ns {name}"),
            format!("helm|upgrade -i {name} charts/{name} {options} d"),
            "kubectl|apply -f manifests".to_owned(),
            format!("kubectl|odd a 'b' \"c\" \\ $d {ip}"),
        ]
    };
    assert_eq!(called(&bed), expected("web", "--set a=b"));
    // Once is enough, unless it is asked for.
    keyed(&bed, &["run", "list:v1"]).ok();
    assert!(called(&bed).is_empty());
    keyed(&bed, &["run", "list:v1", "--force"]).ok();
    assert_eq!(called(&bed), expected("web", "--set a=b"));

    keyed(&bed, &["run", "shell:v1", "--env", "WHAT=a b"]).ok();
    let shell = ["kubectl|apply -f one.yaml", "kubectl|wait --for=a b"];
    assert_eq!(called(&bed), shell);
    let cmd = ["run", "shell:v1", "--force", "--cmd", "kubectl other $(WHAT)"];
    keyed(&bed, &cmd).ok();
    assert_eq!(called(&bed), ["kubectl|other a b"]);

    // The first line that fails ends it, and says why.
    let failed = keyed(&bed, &["run", "fails:v1"]);
    assert!(!failed.success());
    let report = failed.report();
    assert!(report.contains("exit code 7") && report.contains("no such thing"), "{report}");
    assert!(called(&bed).is_empty());

    let gone = keyed(&bed, &["uninstall", "list:v1", "--yes"]);
    gone.ok();
    assert_eq!(called(&bed), ["kubectl|gone web"]);
    keyed(&bed, &["reset", "--yes"]).ok();
    assert!(!bed.exec(1, "ls /usr/local/bin/kubectl").success());
}
