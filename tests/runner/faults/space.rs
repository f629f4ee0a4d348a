//! Full disks: the error says so with its own exit code, the store stays sound, and the same
//! command works once there is space.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::registry::Registry;
use crate::common::{TestEnv, needs_root};
use crate::faults::support::{assert_no_mounts, assert_prunes_clean, assert_scrubs_clean, noise};

/// The exit code of a full file system or an exhausted quota (docs/cli.md).
const NO_SPACE: i32 = 8;

/// A store on a file system of its own and of a size.
struct Small {
    env: TestEnv,
    root: PathBuf,
}

impl Small {
    /// `None`, with a word, when this test is skipped: only root mounts file systems.
    fn new(bytes: usize) -> Option<Self> {
        if !needs_root() {
            return None;
        }
        let env = TestEnv::new();
        let root = env.root();
        std::fs::create_dir(&root).unwrap();
        let options = std::ffi::CString::new(format!("size={bytes},mode=755")).unwrap();
        mount("tmpfs", &root, "tmpfs", MountFlags::empty(), &*options).unwrap();
        Some(Self { env, root })
    }

    /// Takes all the space but `left` bytes.
    fn fill(&self, left: u64) {
        let stat = rustix::fs::statvfs(&self.root).unwrap();
        let free = stat.f_bavail * stat.f_frsize;
        let ballast = std::fs::File::create(self.ballast()).unwrap();
        let length = free.saturating_sub(left);
        rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, length.max(1))
            .unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.root.join("ballast")
    }

    fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    /// With less and less missing, `arguments` fails for want of space until it does not; the
    /// store is sound after each. Returns how many times it failed.
    #[track_caller]
    fn squeeze(&self, arguments: &[&str], steps: &[u64], reset: &dyn Fn()) -> usize {
        let mut failures = 0;
        for left in steps {
            reset();
            self.fill(*left);
            let ran = self.env.imgctl(arguments);
            println!("{left} bytes left: {}", ran.report());
            if !ran.success() {
                failures += 1;
                let ran = ran.fails(NO_SPACE);
                assert!(ran.stderr().contains("hint:"), "{}", ran.report());
            }
            // Looking needs no space.
            self.env.imgctl(["images"]).ok();
            self.env.imgctl(["mounts"]).ok();
            self.env.imgctl(["df"]).ok();
            // Nor does making some, which is what the hint says.
            self.env.imgctl(["prune"]).ok();
            self.free();
            assert_scrubs_clean(&self.env);
            self.env.imgctl(["umount", "--all"]).ok();
            assert_prunes_clean(&self.env);
        }
        reset();
        self.env.imgctl(arguments).ok();
        assert_scrubs_clean(&self.env);
        failures
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = self.env.imgctl(["umount", "--all", "--lazy"]);
        let _ = unmount(&self.root, UnmountFlags::DETACH);
    }
}

const STEPS: [u64; 8] =
    [0, 4 << 10, 40 << 10, 200 << 10, 800 << 10, 1500 << 10, 2100 << 10, 2900 << 10];

/// A context of about 2 MB that does not compress, with many small files too.
fn context(env: &TestEnv) -> PathBuf {
    let path = env.context("context", "FROM scratch\nCOPY data /data\nCOPY small /small\n", &[]);
    for number in 0..4 {
        env.write(path.join(format!("data/{number}")), noise(number + 1, 500_000));
    }
    for number in 0..50 {
        env.write(path.join(format!("small/{number}")), noise(number + 100, 300));
    }
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn build() {
    let Some(small) = Small::new(24 << 20) else {
        return;
    };
    let context = context(&small.env);
    let failures = small.squeeze(&["build", "-t", "app:v1", text(&context)], &STEPS, &|| {
        small.env.imgctl(["rmi", "--all", "--yes"]).ok();
        small.env.imgctl(["prune", "--all"]).ok();
    });
    assert!(failures >= 5, "{failures}");
}

#[test]
fn load() {
    let Some(small) = Small::new(24 << 20) else {
        return;
    };
    let context = context(&small.env);
    small.env.build("app:v1", &context);
    small.env.imgctl(["save", "app:v1", "-o", "app.tar"]).ok();
    let failures = small.squeeze(&["load", "-i", "app.tar"], &STEPS, &|| {
        small.env.imgctl(["rmi", "--all", "--yes"]).ok();
        small.env.imgctl(["prune", "--all"]).ok();
    });
    assert!(failures >= 5, "{failures}");
}

#[test]
fn mount_with_each_back_end() {
    for backend in ["overlay", "erofs", "checkout"] {
        let Some(small) = Small::new(24 << 20) else {
            return;
        };
        let context = context(&small.env);
        // Compressed a little, so that an EROFS mount has to write the tars.
        small.env.imgctl(["build", "--compression=gzip", "-t", "app:v1", text(&context)]).ok();
        let flag = format!("--backend={backend}");
        let failures = small.squeeze(&["mount", &flag, "app:v1"], &STEPS, &|| {
            small.env.imgctl(["umount", "--all"]).ok();
            small.env.imgctl(["prune", "--all"]).ok();
        });
        assert!(failures >= 4, "{backend}: {failures}");
        small.env.imgctl(["umount", "--all"]).ok();
        let inside = text(&small.root).to_owned();
        let table = std::fs::read("/proc/self/mountinfo").unwrap();
        let table = String::from_utf8_lossy(&table);
        assert_eq!(table.lines().filter(|line| line.contains(&inside)).count(), 1, "{table}");
    }
}

#[test]
fn removing_frees_a_full_disk() {
    let Some(small) = Small::new(12 << 20) else {
        return;
    };
    let context = context(&small.env);
    small.env.build("app:v1", &context);
    small.env.build("app:v2", &context);
    small.fill(0);
    // The table of names is replaced by a new file, for which there must be a little room.
    let removed = small.env.imgctl(["rmi", "--all", "--yes"]);
    if !removed.success() {
        removed.fails(NO_SPACE);
        small.env.imgctl(["images"]).ok();
        std::fs::File::options().write(true).open(small.ballast()).unwrap().set_len(1).unwrap();
        small.env.imgctl(["rmi", "--all", "--yes"]).ok();
    }
    assert_eq!(small.env.imgctl(["images", "-q"]).ok().stdout(), "");
    assert_scrubs_clean(&small.env);
}

/// What cannot fit is not begun: neither fetched nor put together.
#[test]
fn a_pull_and_a_delta_that_do_not_fit_write_nothing() {
    let (env, registry) = (TestEnv::new(), Registry::start());
    let context = context(&env);
    env.build("localhost/app:v1", &context);
    env.write(context.join("data/9"), noise(9, 300_000));
    env.build("localhost/app:v2", &context);
    let name = format!("{}/team/app:v2", registry.host);
    env.imgctl(["push", "localhost/app:v2", &name]).ok();
    let bundle = env.path("delta.tar");
    let words = ["bundle", "create", "--delta", "localhost/app:v1", "localhost/app:v2", "-o"];
    env.imgctl(words.into_iter().chain([text(&bundle)])).ok();
    let base = env.path("base.tar");
    env.imgctl(["save", "localhost/app:v1", "-o", text(&base)]).ok();
    let Some(small) = Small::new(24 << 20) else {
        return;
    };
    small.env.imgctl(["load", "-i", text(&base)]).ok();
    for words in [["pull", "--tls-verify=false", &name], ["bundle", "apply", text(&bundle)]] {
        registry.blobs_read();
        // Enough for a part of it.
        small.fill(1 << 20);
        let ran = small.env.imgctl(words).fails(NO_SPACE);
        assert!(ran.stderr().contains("do not fit"), "{}", ran.report());
        let read = registry.blobs_read();
        assert!(read.len() <= 1, "no more than the config: {read:?}");
        let ingest = small.root.join("store/ingest");
        assert_eq!(std::fs::read_dir(ingest).unwrap().count(), 0, "{words:?}");
        small.free();
        small.env.imgctl(words).ok();
        small.env.imgctl(["rmi", "--all", "--yes"]).ok();
        small.env.imgctl(["prune", "--all"]).ok();
        small.env.imgctl(["load", "-i", text(&base)]).ok();
    }
    assert_scrubs_clean(&small.env);
}

#[test]
fn save_and_export_to_a_full_disk() {
    let Some(small) = Small::new(1 << 20) else {
        return;
    };
    // The other way round: the store has room, the target has not.
    let env = TestEnv::new();
    let context = context(&env);
    env.build("app:v1", &context);
    let target = small.root.join("app.tar");
    let ran = env.imgctl(["save", "app:v1", "-o", text(&target)]).fails(NO_SPACE);
    assert!(ran.stderr().contains("app.tar"), "{}", ran.report());
    assert_eq!(std::fs::read_dir(&small.root).unwrap().count(), 0, "half an archive is left");
    env.imgctl(["export", "app:v1", "-o", text(&small.root.join("tree"))]).fails(NO_SPACE);
    env.imgctl(["export", "app:v1", "-o", text(&small.root.join("tree.tar"))]).fails(NO_SPACE);
    assert!(!small.root.join("tree.tar").exists());
    assert_scrubs_clean(&env);
    assert_no_mounts(&env);
}
