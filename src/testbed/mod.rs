//! The test bed's program: hosts in systemd-nspawn on this machine. It is written in Python, because it runs
//! from a checkout before there is a binary (`scripts/testbed`), and is embedded here so that the binary alone
//! has it. Must not know the verb's flags; what hosts are and do is in the program.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::directory;
use imgctl_base::text::hex;
use sha2::{Digest as _, Sha256};

/// The files of the program, as they are in this folder.
const FILES: [(&str, &str); 14] = [
    ("customise", include_str!("customise")),
    ("failure.py", include_str!("failure.py")),
    ("first-process", include_str!("first-process")),
    ("groups.py", include_str!("groups.py")),
    ("harden", include_str!("harden")),
    ("keeper.py", include_str!("keeper.py")),
    ("life.py", include_str!("life.py")),
    ("machine.py", include_str!("machine.py")),
    ("main.py", include_str!("main.py")),
    ("network.py", include_str!("network.py")),
    ("packages", include_str!("packages")),
    ("store.py", include_str!("store.py")),
    ("template.py", include_str!("template.py")),
    ("warden.py", include_str!("warden.py")),
];

/// The file that is run.
const MAIN: &str = "main.py";

/// Maximum size of a file that is compared, in bytes.
const LONGEST: u64 = 1 << 20;

/// Puts the program below `cache`, a directory of root's, and returns the path of its main file. Files that
/// are there with the same content stay. Other versions have other directories: their hosts may be running.
pub(crate) fn unpack(cache: &Path) -> Result<PathBuf> {
    let mut digest = Sha256::new();
    for (name, text) in FILES {
        digest.update(format!("{name}\0{text}\0"));
    }
    let version = hex(&digest.finalize()[..8]);
    let place = cache.join(".program").join(version);
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o755).create(&place).path("create", &place)?;
    // Root runs what is there, so nobody else may be able to put something there.
    for directory in [cache, &cache.join(".program"), &place] {
        let metadata = directory.metadata().path("read", directory)?;
        let own = rustix::process::geteuid().as_raw();
        if metadata.uid() != own || metadata.mode() & 0o022 != 0 {
            return Err(Error::denied(format!(
                "{} can be written by others, and the test bed's program would run from there",
                directory.display()
            ))
            .hint("set TESTBED_CACHE to a directory that only root can write"));
        }
    }
    for (name, text) in FILES {
        let path = place.join(name);
        if directory::read_text(&path, LONGEST)?.as_deref() != Some(text) {
            let mode = if name.contains('.') { 0o644 } else { 0o755 };
            atomic::write(&path, text.as_bytes(), mode, Durability::Atomic)?;
        }
    }
    Ok(place.join(MAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testbed");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut there: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        there.retain(|name| !["mod.rs", "__pycache__"].contains(&name.as_str()));
        there.sort();
        assert_eq!(there, FILES.map(|(name, _)| name.to_owned()));
    }

    #[test]
    fn the_program_is_put_right_and_refused_where_others_write() {
        let folder = tempfile::tempdir().unwrap();
        let main = unpack(folder.path()).unwrap();
        std::fs::write(&main, "import nothing").unwrap();
        assert_eq!(unpack(folder.path()).unwrap(), main);
        assert!(std::fs::read_to_string(&main).unwrap().contains("def main("));
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(main.parent().unwrap(), open).unwrap();
        let error = unpack(folder.path()).unwrap_err();
        assert!(error.to_string().contains("can be written by others"), "{error}");
    }
}
