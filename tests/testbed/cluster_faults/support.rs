//! A small cluster image, a bed to run it on, and what an error has to say.

use std::ffi::OsString;

use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root};

const LABELS: &str = "LABEL sealos.io.type=rootfs sealos.io.version=v1beta1 \
    sealos.io.distribution=script\n\
    LABEL check=check.sh init=init.sh join=join.sh clean=clean.sh\n";

/// A bed; `None`, with a word, when this test is skipped.
pub(crate) fn bed(hosts: usize) -> Option<Bed> {
    needs_root().then(|| Bed::up(hosts))
}

/// Builds a rootfs image `name` whose scripts append their names to /var/lib/NAME.ran. `more` are
/// further lines of its Kubefile, `files` further files and other scripts.
pub(crate) fn image(bed: &Bed, name: &str, more: &str, files: &[(&str, &str)]) {
    let kubefile = format!("FROM scratch\n{LABELS}{more}\nCOPY . .\n");
    let context = bed.env.context(&format!("context-{}", name.replace(':', "-")), &kubefile, &[]);
    for script in ["check", "init", "join", "clean"] {
        let text = format!("echo {script} on $HOST_NAME\necho {script} >> /var/lib/ran\n");
        std::fs::create_dir_all(context.join("scripts")).unwrap();
        std::fs::write(context.join("scripts").join(format!("{script}.sh")), text).unwrap();
    }
    for (path, content) in files {
        let path = context.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    bed.env.build(name, &context);
}

/// `imgctl VERB … --cluster CLUSTER` with the bed's key and further arguments.
pub(crate) fn arguments(bed: &Bed, verb: &[&str], cluster: &str, more: &[&str]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = verb.iter().map(OsString::from).collect();
    arguments.extend(["--cluster".into(), cluster.into()]);
    arguments.extend(["--pk".into(), bed.key().into_os_string()]);
    arguments.extend(more.iter().map(OsString::from));
    arguments
}

/// `imgctl run IMAGE` on these hosts, as control planes.
pub(crate) fn run(bed: &Bed, image: &str, cluster: &str, hosts: &str, more: &[&str]) -> Ran {
    let more = [&["--masters", hosts], more].concat();
    bed.imgctl(arguments(bed, &["run", image], cluster, &more))
}

/// Takes a cluster down; nothing of it is left.
#[track_caller]
pub(crate) fn reset(bed: &Bed, cluster: &str) {
    bed.imgctl(arguments(bed, &["reset", "--yes"], cluster, &[])).ok();
}

/// The error names all of `words`, and a log that is there, and says what to do next, what is
/// special to the fault before what is always true.
#[track_caller]
pub(crate) fn says(ran: &Ran, words: &[&str]) {
    let text = error(ran);
    for word in words {
        assert!(text.contains(word), "no `{word}`\n{}", ran.report());
    }
    let log = text.lines().find_map(|line| line.strip_prefix("hint: read the log: `less "));
    let log = log.and_then(|log| log.strip_suffix('`'));
    let log = log.unwrap_or_else(|| panic!("no log is named\n{}", ran.report()));
    assert!(std::path::Path::new(log).exists(), "{log}");
    let mut hints = text.lines().filter(|line| line.starts_with("hint: "));
    let last = hints.next_back().unwrap_or_default();
    let again = "run the same command again";
    assert!(last.contains(again), "{}", ran.report());
}

/// What was said after the run: the error with causes and hints.
#[track_caller]
pub(crate) fn error(ran: &Ran) -> String {
    let text = ran.stderr();
    let start = text.rfind("\nerror: ").map(|place| place + 1);
    let start = start.or_else(|| text.starts_with("error: ").then_some(0));
    let start = start.unwrap_or_else(|| panic!("no error\n{}", ran.report()));
    text[start..].to_owned()
}
