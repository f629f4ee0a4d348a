//! A small image whose scripts count what they do and bear no second run, in several versions.

use std::path::PathBuf;

use crate::cluster_etcd::support::run;
use crate::common::Ran;
use crate::common::testbed::Bed;

/// Every script appends to /var/log/counted what it did. `upgrade` and `rollback` fail when the host is
/// not at the version that they start from, so a second run of one fails; but a host that was given its
/// files and not upgraded yet may go back, which counts as `idle`. /run/ill makes the gate fail, /run/ill-VERSION
/// that of one version, /run/slow makes scripts slow, /run/begun says that one has begun.
const SCRIPT: &str = r#"set -eu
word=$1 member=/var/lib/member
echo "begin $word" >>/run/begun
fail() { echo "$*" >&2; exit 3; }
wait_a_bit() { sleep "$(cat /run/slow 2>/dev/null || echo 0)"; }
step() {
  [ "$(cat $member)" = "${IMGCTL_FROM_VERSION#v}" ] || fail "$word of $(cat $member), not of $IMGCTL_FROM_VERSION"
  wait_a_bit
  echo "${IMGCTL_TO_VERSION#v}" >$member
}
case $word in
  init | join) [ ! -e $member ] || fail "a member already"; echo "$counted" >$member ;;
  upgrade) step ;;
  rollback) if [ "$(cat $member)" = "${IMGCTL_TO_VERSION#v}" ]; then word=idle; else step; fi ;;
  before) [ -e $member ] ;;
  health) [ ! -e /run/ill ] || fail "ill on request"; [ ! -e /run/ill-$counted ] || fail "ill with $counted"; [ "$(cat $member)" = "$counted" ] || fail "$(cat $member) runs" ;;
  backup) wait_a_bit; cat $member >"$IMGCTL_BACKUP/snapshot.db" ;;
  restore)
    case $IMGCTL_PHASE in
      stop) : ;;
      restore) cat "$IMGCTL_SNAPSHOT" >$member ;;
      start) : ;;
    esac
    word=$IMGCTL_PHASE ;;
  clean) rm -f $member ;;
esac
case $word in
  before | health) ;;
  *) echo "$word" >>/var/log/counted; mkdir -p ../etc; echo "$word" >>"../etc/written-by-$counted" ;;
esac
"#;

/// Builds counting:VERSION; `mark` tells two images of one version apart.
pub(crate) fn build(bed: &Bed, version: &str, mark: &str) {
    build_as(bed, &format!("counting:{version}"), version, mark);
}

/// The same under any name.
pub(crate) fn build_as(bed: &Bed, name: &str, version: &str, mark: &str) {
    bed.env.build(name, &context(bed, version, mark, ""));
}

/// The context of counting:VERSION, with `more` at the end of its Kubefile.
pub(crate) fn context(bed: &Bed, version: &str, mark: &str, more: &str) -> PathBuf {
    let words =
        ["init", "join", "upgrade", "rollback", "health", "before", "backup", "restore", "clean"];
    let labels: Vec<String> =
        words.iter().map(|word| format!("{word}=\"does.sh {word}\"")).collect();
    let kubefile = format!(
        "FROM scratch\nENV counted={version}\n\
         LABEL sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script \
         version=v{version} {}\nCOPY scripts scripts\nCOPY only-{version} only-{version}\n{more}",
        labels.join(" ")
    );
    bed.env.context(
        &format!("counting-{version}"),
        &kubefile,
        &[("scripts/does.sh", SCRIPT), (&format!("only-{version}"), mark)],
    )
}

/// A bed of three with counting:1.0.0 on it, h1 the control plane, and 1.1.0 and 1.2.0 built.
pub(crate) fn cluster() -> Bed {
    let bed = Bed::up(3).with_agent();
    for version in ["1.0.0", "1.1.0", "1.2.0"] {
        build(&bed, version, "");
    }
    create(&bed);
    bed
}

/// Makes the cluster.
pub(crate) fn create(bed: &Bed) {
    create_with(bed, &[]);
}

/// The same with further arguments of `run`.
pub(crate) fn create_with(bed: &Bed, more: &[&str]) {
    let command =
        ["run", "counting:1.0.0", "--masters", &bed.ip(1), "--nodes", &bed.ips(2..=bed.len())];
    run(bed, &[&command[..], more].concat()).ok();
    let did = all_counted(bed);
    assert!(did[0] == "init" && did[1..].iter().all(|did| did == "join"), "{did:?}");
}

/// The record behind which all hosts have moved and it is on record, and only the end is missing, in
/// an upgrade that begins now; for [`die_at`].
pub(crate) fn last_record(bed: &Bed, image: &str) -> u64 {
    let shown = bed.imgctl(["upgrade", image, "--dry-run", "--json"]).ok().json();
    let phases = shown["phases"].as_array().unwrap().iter();
    let lanes = phases.flat_map(|phase| phase["hosts"].as_array().unwrap());
    let steps: usize = lanes.map(|lane| lane["steps"].as_array().unwrap().len()).sum();
    // The start; two for each step; of the last its begin.
    2 * steps as u64
}

/// `imgctl ARGUMENTS --yes` that dies with its `record`th record.
#[track_caller]
pub(crate) fn die_at(bed: &Bed, arguments: &[&str], record: u64) {
    let mut command = bed.command([arguments, &["--yes"]].concat());
    command.env("IMGCTL_DIE_AFTER", record.to_string());
    let ran = Ran::new(command);
    assert!(ran.report().contains("signal: 9"), "{}", ran.report());
}

/// What the scripts did on each host since the last question.
pub(crate) fn all_counted(bed: &Bed) -> Vec<String> {
    let line = "cat /var/log/counted 2>/dev/null; rm -f /var/log/counted /run/begun";
    (1..=bed.len())
        .map(|host| {
            let said = bed.says(host, line);
            said.split_whitespace().collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// What runs on each host.
pub(crate) fn versions(bed: &Bed) -> Vec<String> {
    (1..=bed.len()).map(|host| bed.says(host, "cat /var/lib/member")).collect()
}

/// The rootfs on each host, by the file that only that version has.
pub(crate) fn trees(bed: &Bed) -> Vec<String> {
    let line = "cd /var/lib/sealos/data/default/rootfs/ && echo only-* | sed 's/only-//g'";
    (1..=bed.len()).map(|host| bed.says(host, line)).collect()
}

/// `imgctl upgrade ARGUMENTS --yes`.
pub(crate) fn upgrade(bed: &Bed, arguments: &[&str]) -> Ran {
    bed.imgctl([&["upgrade"], arguments, &["--yes"]].concat())
}

/// It failed and says `words`.
#[track_caller]
pub(crate) fn refused(ran: &Ran, words: &str) {
    assert!(!ran.success(), "{}", ran.report());
    assert!(ran.stderr().contains(words), "{words}: {}", ran.report());
}

/// Its error has all of these.
#[track_caller]
pub(crate) fn says(ran: &Ran, words: &[&str]) {
    for words in words {
        refused(ran, words);
    }
}
