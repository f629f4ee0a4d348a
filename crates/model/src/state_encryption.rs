//! Encrypting a cluster's state, to others as well, and decrypting it: all of its private files change
//! together.
//!
//! The new files are made in a directory of their own, whose name changes when all of them are there:
//! from then on they count. Killed before, nothing has changed; killed afterwards, the next command
//! that locks the cluster puts them into their places, for which it needs no identity. The caller holds
//! the cluster's lock.

use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::state_files::{FILES, PrivateFile, RECIPIENTS, REPLACED, StateFiles};
use imgctl_age as age;
use imgctl_age::Recipients;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::atomic;

/// The directory of new files that are not complete yet.
const REPLACING: &str = ".replacing";
/// In [`REPLACED`]: the files are plain from now on.
const PLAIN: &str = "plain";
/// Top directories of private files; those of [`FORMER`] as well.
const DIRECTORIES: [&str; 5] = ["etc", "pki", "tmp", "backup", "restore"];
/// Beginning of the names of directories that an adoption put aside.
const FORMER: &str = "pki.former-";
/// Beginning of the names of top files: the cluster, former clusters of its name, unfinished hosts.
const CLUSTERFILE: &str = "Clusterfile";
/// Of an upgrade, what is known of Pods.
const BEFORE: &str = "before.json";
/// Backups as artifacts, which have their own recipients; what is packed for one; the record of the
/// last one; the copy of an artifact that is restored, and its digest.
const PUBLIC: [&str; 5] =
    ["backup/oci", "backup/staging", "backup/last.json", "restore/oci", "restore/digest"];

/// How many private files there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCount {
    pub encrypted: usize,
    pub plain: usize,
}

impl StateFiles {
    /// Encrypts all private files to `recipients`, or decrypts them; what is written later is
    /// treated in the same way. Returns the number of files.
    pub fn change_recipients(&self, recipients: Option<&Recipients>) -> Result<usize> {
        self.finish_change()?;
        let count = self.make_files(recipients)?;
        self.commit_change()?;
        self.finish_change()?;
        Ok(count)
    }

    /// Makes all files anew, beside those that count.
    fn make_files(&self, recipients: Option<&Recipients>) -> Result<usize> {
        let names = self.private_files()?;
        let replacing = self.path(REPLACING);
        atomic::remove_tree(&replacing)?;
        let files = replacing.join(FILES);
        atomic::make_private(&files)?;
        for name in &names {
            let path = self.path(name);
            // It was there a moment ago, and the cluster is locked.
            let reader = if is_opaque(name) { self.open_opaque(&path) } else { self.open(&path) };
            let mut reader = reader?
                .ok_or_else(|| Error::not_found(format!("{} has disappeared", path.display())))?;
            let mut file = PrivateFile::create(&files.join(name), recipients)?;
            std::io::copy(&mut reader, &mut file).path("copy", &path)?;
            file.commit()?;
        }
        let text = recipients.map(|to| {
            to.text().ok_or_else(|| Error::usage("the state cannot be encrypted with a passphrase"))
        });
        match text.transpose()? {
            Some(text) => atomic::write_private(&replacing.join(RECIPIENTS), &text)?,
            None => atomic::write_private(&replacing.join(PLAIN), "")?,
        }
        Ok(names.len())
    }

    /// From here on the files that were made count.
    fn commit_change(&self) -> Result<()> {
        let replacing = self.path(REPLACING);
        for directory in directories(&replacing)? {
            atomic::sync_directory(&directory)?;
        }
        std::fs::rename(&replacing, self.path(REPLACED)).path("rename", &replacing)?;
        atomic::sync_directory(self.directory())
    }

    /// Ends a change of recipients that was interrupted, and removes what was not completed.
    pub fn finish_change(&self) -> Result<()> {
        let replaced = self.path(REPLACED);
        if replaced.exists() {
            let files = replaced.join(FILES);
            for name in regular_files(&files)? {
                let (from, to) = (files.join(&name), self.path(&name));
                atomic::make_private(to.parent().unwrap_or(self.directory()))?;
                std::fs::rename(&from, &to).path("replace", &to)?;
            }
            if replaced.join(PLAIN).exists() {
                atomic::remove_tree(&self.path(RECIPIENTS))?;
            }
            let recipients = replaced.join(RECIPIENTS);
            if recipients.exists() {
                std::fs::rename(&recipients, self.path(RECIPIENTS)).path("rename", &recipients)?;
            }
            self.remove_partial_files()?;
            for directory in directories(self.directory())? {
                atomic::sync_directory(&directory)?;
            }
            atomic::remove_tree(&replaced)?;
        }
        atomic::remove_tree(&self.path(REPLACING))
    }

    /// Whether a change of recipients is to be ended.
    pub fn is_changing(&self) -> bool {
        self.path(REPLACED).exists()
    }

    /// Counts the private files.
    pub fn count(&self) -> Result<FileCount> {
        let mut count = FileCount::default();
        let is_plain = self.recipients()?.is_none();
        for name in self.private_files()? {
            let path = self.path(&name);
            let file = std::fs::File::open(&path).path("open", &path)?;
            let looks_so = age::is_encrypted(&mut std::io::BufReader::with_capacity(256, file));
            if looks_so && !(is_plain && is_opaque(&name)) {
                count.encrypted += 1;
            } else {
                count.plain += 1;
            }
        }
        Ok(count)
    }

    /// Returns the names of all private files, sorted.
    fn private_files(&self) -> Result<Vec<PathBuf>> {
        let names = regular_files(self.directory())?.into_iter();
        Ok(names.filter(|name| is_private(name) && !is_partial(name)).collect())
    }

    /// Removes what writers left that were killed: it may be in plain text.
    fn remove_partial_files(&self) -> Result<()> {
        for name in regular_files(self.directory())? {
            let is_top = name.parent() == Some(Path::new(""));
            if is_partial(&name) && (is_top || is_private(&name)) {
                atomic::remove_tree(&self.path(&name))?;
            }
        }
        Ok(())
    }
}

/// Whether a file of a state directory may hold secrets.
fn is_private(name: &Path) -> bool {
    if PUBLIC.iter().any(|public| name.starts_with(public)) {
        return false;
    }
    let mut parts = name.components().map(|part| part.as_os_str().to_string_lossy());
    let Some(first) = parts.next() else { return false };
    match parts.next() {
        None => first.starts_with(CLUSTERFILE),
        Some(_) if first.starts_with("upgrade") => {
            name.ends_with(BEFORE)
                || name.ends_with("settings-old")
                || name.ends_with("settings-new")
        }
        Some(_) => DIRECTORIES.contains(&&*first) || first.starts_with(FORMER),
    }
}

/// Whether the content of a private file comes from elsewhere and may be anything.
fn is_opaque(name: &Path) -> bool {
    name.starts_with("backup") || name.starts_with("restore")
}

/// Whether a file was not completed, by its name.
fn is_partial(name: &Path) -> bool {
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".part") || (name.starts_with(".imgctl-") && name.ends_with(".tmp"))
}

/// Returns the names of the regular files below a directory, sorted; none if it does not exist.
fn regular_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    if !directory.exists() {
        return Ok(names);
    }
    for entry in WalkDir::new(directory).sort_by_file_name() {
        let entry = entry.path("list", directory)?;
        if entry.file_type().is_file() {
            let name = entry.path().strip_prefix(directory).unwrap_or(entry.path());
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn directories(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in WalkDir::new(directory) {
        let entry = entry.path("list", directory)?;
        if entry.file_type().is_dir() {
            found.push(entry.into_path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_identity::StateIdentity;
    use crate::testing::{IDENTITY, RECIPIENT};
    use imgctl_base::error::Kind;

    /// Identities, and their recipients.
    const ONE: (&str, &str) = (IDENTITY, RECIPIENT);
    const TWO: (&str, &str) = (
        "AGE-SECRET-KEY-1D7V7TRZH2953276CXWPDGT3M0XTVYQXP2Z0WKDU6Q2SAVTTEZLHQ6WNPPE",
        "age1vt5geq5kqhmr73rnq4gex6evm3c9d3679v7cdcstjldrdaalwsfsml3ta9",
    );
    const SECRET: &str = "-----BEGIN SECRET-----";
    /// Private files, and plain ones.
    const PRIVATE: [&str; 9] = [
        "Clusterfile",
        "Clusterfile.1700000000",
        "Clusterfile.touched",
        "etc/admin.conf",
        "pki/etcd/ca.key",
        "pki.former-1/ca.key",
        "backup/u1/snapshot.db",
        "upgrade/u1/before.json",
        "upgrade/u1/settings-new",
    ];
    const PUBLIC: [&str; 6] = [
        ".lock.holder",
        "journal/x.jsonl",
        "logs/x/h/step",
        "upgrade/state.json",
        "upgrade/u1/plan.json",
        "backup/last.json",
    ];

    struct Bed {
        directory: tempfile::TempDir,
    }

    impl Bed {
        fn new() -> Self {
            let bed = Self { directory: tempfile::tempdir().unwrap() };
            let plain = bed.files(None);
            for name in PRIVATE {
                plain.write(name, &format!("{SECRET} {name}")).unwrap();
            }
            for name in PUBLIC {
                plain.write(name, name).unwrap();
            }
            bed
        }

        fn state(&self) -> PathBuf {
            self.directory.path().join("prod")
        }

        /// The files as somebody with this identity sees them.
        fn files(&self, key: Option<(&str, &str)>) -> StateFiles {
            let path = key.map(|(identity, recipient)| {
                let path = self.directory.path().join(recipient);
                std::fs::write(&path, identity).unwrap();
                path
            });
            StateFiles::new(self.state(), StateIdentity::file(path))
        }

        fn recipients(key: (&str, &str)) -> Recipients {
            Recipients::parse(key.1, "test").unwrap()
        }

        /// All files below the state directory that have the secret in plain text.
        fn in_plain_text(&self) -> Vec<PathBuf> {
            let names = regular_files(&self.state()).unwrap().into_iter();
            let has = |name: &PathBuf| {
                let bytes = std::fs::read(self.state().join(name)).unwrap();
                String::from_utf8_lossy(&bytes).contains(SECRET)
            };
            names.filter(has).collect()
        }
    }

    #[track_caller]
    fn assert_readable(files: &StateFiles) {
        for name in PRIVATE {
            let text = files.read(name, 1 << 20).unwrap().unwrap();
            assert_eq!(text, format!("{SECRET} {name}"));
        }
        for name in PUBLIC {
            assert_eq!(std::fs::read_to_string(files.path(name)).unwrap(), name);
        }
    }

    #[track_caller]
    fn assert_refused(files: &StateFiles) {
        for name in PRIVATE {
            let error = files.read(name, 1 << 20).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "{name}: {error}");
            assert!(error.to_string().contains("the state of cluster prod"), "{error}");
            assert!(error.hints()[0].contains("--state-identity"), "{error}");
        }
    }

    #[test]
    fn all_private_files_change_together_and_nothing_else_does() {
        let bed = Bed::new();
        let (nobody, one, two) = (bed.files(None), bed.files(Some(ONE)), bed.files(Some(TWO)));
        // What killed writers left behind may be secret, too.
        let left = ["pki/.imgctl-77-0.tmp", ".imgctl-77-1.tmp", "backup/u1/snapshot.db.part"];
        left.iter().for_each(|name| nobody.write(name, SECRET).unwrap());
        assert_eq!(nobody.change_recipients(Some(&Bed::recipients(ONE))).unwrap(), PRIVATE.len());
        assert_eq!(bed.in_plain_text(), Vec::<PathBuf>::new());
        assert_readable(&one);
        assert_refused(&two);
        assert_refused(&nobody);
        assert!(two.change_recipients(None).is_err());
        let count = FileCount { encrypted: PRIVATE.len(), plain: 0 };
        assert_eq!(nobody.count().unwrap(), count);

        // What is written now is encrypted; for that, no identity is needed.
        nobody.write("etc/token", SECRET).unwrap();
        let mut large = nobody.create(&nobody.path("backup/u1/data")).unwrap();
        std::io::Write::write_all(&mut large, SECRET.as_bytes()).unwrap();
        large.commit().unwrap();
        assert_eq!(bed.in_plain_text(), Vec::<PathBuf>::new());
        for name in ["etc/token", "backup/u1/data"] {
            assert_eq!(one.read(name, 100).unwrap().unwrap(), SECRET);
            assert_eq!(one.read(name, 5).unwrap().unwrap(), SECRET[..5]);
            std::fs::remove_file(one.path(name)).unwrap();
        }

        one.change_recipients(Some(&Bed::recipients(TWO))).unwrap();
        assert_readable(&two);
        assert_refused(&one);
        assert_eq!(two.change_recipients(None).unwrap(), PRIVATE.len());
        assert_readable(&nobody);
        assert_eq!(nobody.recipients().unwrap().map(|_| ()), None);
        let mut all = regular_files(&bed.state()).unwrap();
        all.retain(|name| !PUBLIC.iter().any(|public| name == Path::new(public)));
        let mut wanted = PRIVATE.map(PathBuf::from).to_vec();
        wanted.sort();
        all.sort();
        assert_eq!(all, wanted);
    }

    #[test]
    fn killed_at_any_point_all_files_are_as_before_or_as_after() {
        // Before the new files are complete, nothing has changed.
        let bed = Bed::new();
        let (one, two) = (bed.files(Some(ONE)), bed.files(Some(TWO)));
        one.change_recipients(Some(&Bed::recipients(ONE))).unwrap();
        one.make_files(Some(&Bed::recipients(TWO))).unwrap();
        assert_readable(&one);
        one.finish_change().unwrap();
        assert_readable(&one);
        assert!(!one.path(REPLACING).exists());

        // Afterwards, all have, wherever it died, and ending the change needs no identity.
        let nobody = bed.files(None);
        for moved in 0..=PRIVATE.len() {
            one.make_files(Some(&Bed::recipients(TWO))).unwrap();
            one.commit_change().unwrap();
            assert!(nobody.is_changing());
            let files = one.path(REPLACED).join(FILES);
            for name in regular_files(&files).unwrap().iter().take(moved) {
                std::fs::rename(files.join(name), one.path(name)).unwrap();
            }
            assert_readable(&two);
            nobody.finish_change().unwrap();
            assert!(!nobody.is_changing());
            assert_readable(&two);
            assert_refused(&one);
            nobody.finish_change().unwrap();
            two.change_recipients(Some(&Bed::recipients(ONE))).unwrap();
            assert_readable(&one);
        }

        // Killed while the rest is cleared away: the recipients stay.
        one.make_files(Some(&Bed::recipients(ONE))).unwrap();
        one.commit_change().unwrap();
        std::fs::rename(one.path(REPLACED).join(RECIPIENTS), one.path(RECIPIENTS)).unwrap();
        nobody.finish_change().unwrap();
        assert_readable(&one);
        assert!(nobody.recipients().unwrap().is_some());
    }

    #[test]
    fn what_is_a_file_of_age_itself_comes_back_as_it_was() {
        let bed = Bed::new();
        let one = bed.files(Some(ONE));
        let own = b"age-encryption.org/v1\n-> of somebody else";
        let path = one.path("backup/u1/snapshot.db");
        std::fs::write(&path, own).unwrap();
        let read = |files: &StateFiles| {
            let mut bytes = Vec::new();
            let mut reader = files.open_opaque(&path).unwrap().unwrap();
            std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(read(&one), own);
        assert_eq!(one.count().unwrap(), FileCount { encrypted: 0, plain: PRIVATE.len() });
        one.change_recipients(Some(&Bed::recipients(ONE))).unwrap();
        assert_ne!(std::fs::read(&path).unwrap(), own);
        assert_eq!(read(&one), own);
        one.change_recipients(None).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), own);
    }

    #[test]
    fn without_its_recipients_nothing_encrypted_becomes_plain_and_damage_is_told() {
        let bed = Bed::new();
        let one = bed.files(Some(ONE));
        one.change_recipients(Some(&Bed::recipients(ONE))).unwrap();
        let whole = std::fs::read(one.path("Clusterfile")).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..whole.len() / 2], &whole[..40]] {
            std::fs::write(one.path("Clusterfile"), damaged).unwrap();
            assert!(one.read("Clusterfile", 100).is_err());
            assert!(one.change_recipients(None).is_err());
        }
        std::fs::write(one.path("Clusterfile"), &whole).unwrap();
        assert_readable(&one);

        std::fs::remove_file(one.path(RECIPIENTS)).unwrap();
        let error = one.write("Clusterfile", "text").unwrap_err();
        assert!(error.to_string().contains("recipients"), "{error}");
        assert_eq!(bed.in_plain_text(), Vec::<PathBuf>::new());
        let error = one.check_identity(&Bed::recipients(TWO)).unwrap_err();
        assert!(error.to_string().contains(TWO.1), "{error}");
        one.check_identity(&Bed::recipients(ONE)).unwrap();
        std::fs::write(one.path(RECIPIENTS), "age1 is not one").unwrap();
        assert!(one.write("etc/token", SECRET).is_err());
        assert!(!one.path("etc/token").exists());
    }
}
