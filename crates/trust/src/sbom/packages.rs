//! Packages recorded by a distribution's package manager: the databases of dpkg and apk. Parses
//! text into values; skips malformed records. What all databases of a command may take has one limit.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use imgctl_base::error::{Error, Result};

/// One installed package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// `deb` or `apk`: the type of its package URL.
    pub kind: &'static str,
    pub name: String,
    pub version: String,
    pub architecture: String,
}

/// Files with dpkg records: the whole database, or one file per package (distroless images).
pub(super) const DPKG: [&str; 2] = ["var/lib/dpkg/status", "var/lib/dpkg/status.d"];
/// apk's database, in its old and new locations.
pub(super) const APK: [&str; 2] = ["lib/apk/db/installed", "usr/lib/apk/db/installed"];

/// Maximum number of files whose packages one command reads.
const MAX_FILES: u64 = 1_000_000;
/// Maximum size of all databases that one command reads, in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// Maximum number of names of files that one command keeps because they may hide a database.
const MAX_NAMES: u64 = 8_000_000;

/// What the package databases of one command may take, in all images and layers. Threads may share it.
pub struct Budget {
    files: Counter,
    bytes: Counter,
    names: Counter,
    packages: Counter,
}

impl Budget {
    /// Allows `packages` different packages.
    pub fn new(packages: u64) -> Self {
        let counter = |what, most| Counter { what, most, count: Mutex::new(0) };
        Self {
            files: counter("files with packages", MAX_FILES),
            bytes: counter("bytes of package databases", MAX_BYTES),
            names: counter("files in layers", MAX_NAMES),
            packages: counter("packages in package databases", packages),
        }
    }

    /// Reads a database, and adds each of its packages to `found` once.
    pub fn read(&self, parse: Parse, text: &str, found: &mut BTreeSet<Package>) -> Result<()> {
        self.files.add(1)?;
        self.bytes.add(u64::try_from(text.len()).unwrap_or(u64::MAX))?;
        parse(text, &mut |package| self.keep(package, found))
    }

    /// Adds a package to `found`, if it is not there yet.
    pub fn keep(&self, package: Package, found: &mut BTreeSet<Package>) -> Result<()> {
        if !found.contains(&package) {
            self.packages.add(1)?;
            found.insert(package);
        }
        Ok(())
    }

    /// Counts the name of a file, which is kept because the file may hide a database.
    pub fn name(&self) -> Result<()> {
        self.names.add(1)
    }
}

struct Counter {
    what: &'static str,
    most: u64,
    count: Mutex<u64>,
}

impl Counter {
    fn add(&self, more: u64) -> Result<()> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_add(more);
        if *count > self.most {
            let Self { what, most, .. } = self;
            return Err(Error::bad_content(format!("there are more than {most} {what}")));
        }
        Ok(())
    }
}

/// Parses a database, and passes each package on.
pub type Parse = fn(&str, &mut dyn FnMut(Package) -> Result<()>) -> Result<()>;

/// Returns how the file at `path` is read, if it is a package manager's database or a record of one.
pub fn database(path: &[u8]) -> Option<Parse> {
    let text = str::from_utf8(path).ok()?.trim_start_matches('/');
    let [whole, directory] = DPKG;
    let record = text.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/'));
    // distroless has a list of digests next to each record.
    if text == whole || record.is_some_and(|name| !name.ends_with(".md5sums")) {
        Some(dpkg)
    } else if APK.contains(&text) {
        Some(apk)
    } else {
        None
    }
}

/// Passes on the installed packages in a dpkg status file (deb822; deb-control(5)).
fn dpkg(text: &str, take: &mut dyn FnMut(Package) -> Result<()>) -> Result<()> {
    records(text)
        .filter_map(|record| {
            let field = |name: &str| {
                record.lines().find_map(|line| {
                    let value = line.strip_prefix(name)?.strip_prefix(':')?;
                    Some(value.trim().to_owned())
                })
            };
            // Files in status.d have no such field.
            let status = field("Status").unwrap_or_else(|| "install ok installed".to_owned());
            let package = Package {
                kind: "deb",
                name: field("Package")?,
                version: field("Version")?,
                architecture: field("Architecture").unwrap_or_default(),
            };
            status.ends_with(" installed").then_some(package)
        })
        .try_for_each(take)
}

/// Passes on the packages in an apk database.
fn apk(text: &str, take: &mut dyn FnMut(Package) -> Result<()>) -> Result<()> {
    records(text)
        .filter_map(|record| {
            let field = |name: &str| {
                let value = record.lines().find_map(|line| line.strip_prefix(name));
                value.map(|value| value.trim().to_owned())
            };
            Some(Package {
                kind: "apk",
                name: field("P:")?,
                version: field("V:")?,
                architecture: field("A:").unwrap_or_default(),
            })
        })
        .try_for_each(take)
}

/// The `ID` of an os-release file (os-release(5)): the namespace of package URLs.
pub(super) fn distribution(os_release: &str) -> Option<String> {
    let id = os_release
        .lines()
        .find_map(|line| line.trim().strip_prefix("ID="))?
        .trim_matches(['"', '\'']);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (!id.is_empty() && id.bytes().all(is_plain)).then(|| id.to_ascii_lowercase())
}

/// Splits at empty lines.
fn records(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n\n").filter(|record| !record.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    fn all(parse: Parse, text: &str) -> Vec<Package> {
        let mut found = Vec::new();
        parse(text, &mut |package| {
            found.push(package);
            Ok(())
        })
        .unwrap();
        found
    }

    #[test]
    fn databases_share_one_budget_and_equal_packages_count_once() {
        let records = |from: u32, to: u32| {
            (from..to).map(|number| format!("P:p{number}\nV:1\n\n")).collect::<String>()
        };
        let budget = Budget::new(10);
        let mut found = BTreeSet::new();
        budget.read(apk, &"P:p0\nV:1\n\n".repeat(1000), &mut found).unwrap();
        budget.read(apk, &records(0, 6), &mut found).unwrap();
        assert_eq!(found.len(), 6);
        // Packages of another image.
        let mut other = BTreeSet::new();
        let error = budget.read(apk, &records(100, 106), &mut other).unwrap_err().to_string();
        assert_eq!(error, "there are more than 10 packages in package databases");
        assert_eq!(other.len(), 4);

        let mut budget = Budget::new(10);
        budget.bytes.most = 19;
        let read = || budget.read(apk, "P:p0\nV:1\n\n", &mut BTreeSet::new());
        read().unwrap();
        let error = read().unwrap_err().to_string();
        assert_eq!(error, "there are more than 19 bytes of package databases");
        budget.files.most = 2;
        let error = budget.read(apk, "", &mut BTreeSet::new()).unwrap_err().to_string();
        assert_eq!(error, "there are more than 2 files with packages");
    }

    #[test]
    fn dpkg_lists_what_is_installed() {
        let text = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9+deb12u4\nDescription: C\n more: text\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n\nPackage: tzdata\nVersion: 2024a-0\n\nnonsense\n";
        let packages = all(dpkg, text);
        let names: Vec<(&str, &str)> =
            packages.iter().map(|package| (&*package.name, &*package.version)).collect();
        assert_eq!(names, [("libc6", "2.36-9+deb12u4"), ("tzdata", "2024a-0")]);
        assert_eq!(packages[0].architecture, "amd64");
    }

    #[test]
    fn apk_lists_all_records() {
        let text = "C:Q1x=\nP:musl\nV:1.2.4-r2\nA:x86_64\nF:lib\nR:libc.so\n\nP:busybox\nV:1.36.1-r5\nA:x86_64\n";
        let packages = all(apk, text);
        assert_eq!(packages.len(), 2);
        assert_eq!((&*packages[1].name, &*packages[1].version), ("busybox", "1.36.1-r5"));
    }

    #[test]
    fn the_distribution_is_its_id() {
        assert_eq!(distribution("NAME=x\nID=\"alpine\"\n").as_deref(), Some("alpine"));
        assert_eq!(distribution("ID=a/b\n"), None);
    }

    #[test]
    fn any_database_is_read_in_full_or_in_part() {
        let (deb, apk_) = (
            "Package: a\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n\nPackage: b\nVersion: 2\n",
            "P:a\nV:1\nA:x86_64\n\nP:b\nV:2\n",
        );
        bolero::check!().for_each(|input: &[u8]| {
            for (valid, read) in [(deb, dpkg as Parse), (apk_, apk)] {
                for text in [input.to_vec(), damaged(valid.as_bytes(), input)] {
                    let text = String::from_utf8_lossy(&text);
                    let found = all(read, &text);
                    assert!(found.len() <= text.lines().count());
                    let is_line = |part: &str| !part.contains('\n') && text.contains(part);
                    assert!(found.iter().all(|one| is_line(&one.name) && is_line(&one.version)));
                }
            }
            let _ = distribution(&String::from_utf8_lossy(input));
        });
    }
}
