//! Tests overlay mounts against the kernel, in a mount namespace of the test's own thread.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use imgctl_base::testing::needs_root;

/// Creates a mount namespace for this thread. Mounts in it do not outlive the test.
pub(crate) fn private_mounts() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS | nix::sched::CloneFlags::CLONE_FS)
        .expect("these tests run as root (scripts/test)");
    rustix::mount::mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )
    .unwrap();
}

struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        private_mounts();
        // overlayfs does not accept an upper directory on another overlay, and /tmp is on one in
        // some containers.
        let directory = tempfile::tempdir().unwrap();
        for name in ["upper", "work", "merged"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn lower(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let lower = self.path(name);
        fs::create_dir(&lower).unwrap();
        for (file, content) in files {
            fs::write(lower.join(file), content).unwrap();
        }
        lower
    }

    fn spec(&self, lowers: Vec<PathBuf>, writable: bool) -> OverlaySpec {
        OverlaySpec {
            source: "imgctl:test".into(),
            lowers,
            upper: writable
                .then(|| Upper { directory: self.path("upper"), work: self.path("work") }),
            user_xattrs: false,
            volatile: false,
            no_devices: true,
        }
    }
}

type Attach = fn(&OverlaySpec, &Path) -> Result<()>;
const WAYS: [(&str, Attach); 2] = [("context", attach), ("compat", attach_with_options)];

#[test]
fn the_last_lower_wins_and_changes_go_to_the_upper() {
    if !needs_root() {
        return;
    }
    for (way, attach) in WAYS {
        let fixture = Fixture::new();
        // A colon and a comma would break an option string.
        let below = fixture.lower("be:lo,w", &[("both", "below"), ("only", "below")]);
        let above = fixture.lower("abo\\ve", &[("both", "above")]);
        let spec = fixture.spec(vec![below.clone(), above], true);
        let merged = fixture.path("merged");
        attach(&spec, &merged).unwrap_or_else(|error| panic!("{way}: {error}"));
        assert_eq!(fs::read(merged.join("both")).unwrap(), b"above", "{way}");
        assert_eq!(fs::read(merged.join("only")).unwrap(), b"below", "{way}");
        fs::write(merged.join("only"), "changed").unwrap();
        assert_eq!(fs::read(fixture.path("upper/only")).unwrap(), b"changed");
        assert_eq!(fs::read(below.join("only")).unwrap(), b"below");
        let mountinfo = fs::read("/proc/thread-self/mountinfo").unwrap();
        let mountinfo = String::from_utf8_lossy(&mountinfo);
        assert!(mountinfo.contains(" overlay imgctl:test "), "{way}");
    }
}

#[test]
fn without_an_upper_it_is_read_only() {
    if !needs_root() {
        return;
    }
    for (way, attach) in WAYS {
        let fixture = Fixture::new();
        let lowers = vec![fixture.lower("empty", &[]), fixture.lower("one", &[("file", "x")])];
        let merged = fixture.path("merged");
        attach(&fixture.spec(lowers, false), &merged).unwrap();
        assert_eq!(fs::read(merged.join("file")).unwrap(), b"x", "{way}");
        let error = fs::write(merged.join("file"), "y").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
}

#[test]
fn as_many_lowers_as_the_kernel_takes_with_long_paths() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let long = "d".repeat(240);
    fs::create_dir(fixture.path(&long)).unwrap();
    let lowers: Vec<PathBuf> = (0..MAX_LOWERS)
        .map(|number| {
            fixture.lower(
                &format!("{long}/{number:0>200}"),
                &[("top", &number.to_string()), (&number.to_string(), "")],
            )
        })
        .collect();
    for (way, attach) in WAYS {
        let merged = fixture.path("merged");
        attach(&fixture.spec(lowers.clone(), true), &merged)
            .unwrap_or_else(|error| panic!("{way}: {error}"));
        assert_eq!(fs::read(merged.join("top")).unwrap(), b"499", "{way}");
        assert_eq!(fs::read_dir(&merged).unwrap().count(), 501, "{way}");
        rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::empty()).unwrap();
    }
    let mut more = lowers.clone();
    more.push(lowers[0].clone());
    let error = attach(&fixture.spec(more, true), &fixture.path("merged")).unwrap_err();
    assert!(error.to_string().contains("501 lower directories"), "{error}");
}

#[test]
fn the_kernels_own_words_reach_the_user() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let lower = fixture.lower("lower", &[]);
    let mut spec = fixture.spec(vec![lower], true);
    let context = FsContext::open("overlay").unwrap();
    let error = context.flag("nonsense").unwrap_err();
    assert!(error.to_string().contains("Unknown parameter"), "{error}");
    // overlayfs explains some refusals only in the kernel log.
    spec.upper = Some(Upper { directory: fixture.path("upper"), work: fixture.path("upper") });
    let error = attach(&spec, &fixture.path("merged")).unwrap_err();
    assert!(error.hints()[0].contains("dmesg"), "{error}");
}

#[test]
fn a_spec_survives_json() {
    if !needs_root() {
        return;
    }
    let fixture = Fixture::new();
    let spec = fixture.spec(vec!["/x/fs".into()], true);
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<OverlaySpec>(&json).unwrap(), spec);
}
