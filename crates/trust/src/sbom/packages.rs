//! Packages recorded by a distribution's package manager: the databases of dpkg and apk. Parses
//! text into values; skips malformed records.

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

/// Returns how the file at `path` is read, if it is a package manager's database or a record of one.
pub fn database(path: &[u8]) -> Option<fn(&str) -> Vec<Package>> {
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

/// Returns the installed packages in a dpkg status file (deb822; deb-control(5)).
pub(super) fn dpkg(text: &str) -> Vec<Package> {
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
        .collect()
}

/// Returns the packages in an apk database.
pub(super) fn apk(text: &str) -> Vec<Package> {
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
        .collect()
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

    #[test]
    fn dpkg_lists_what_is_installed() {
        let text = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9+deb12u4\nDescription: C\n more: text\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n\nPackage: tzdata\nVersion: 2024a-0\n\nnonsense\n";
        let packages = dpkg(text);
        let names: Vec<(&str, &str)> =
            packages.iter().map(|package| (&*package.name, &*package.version)).collect();
        assert_eq!(names, [("libc6", "2.36-9+deb12u4"), ("tzdata", "2024a-0")]);
        assert_eq!(packages[0].architecture, "amd64");
    }

    #[test]
    fn apk_lists_all_records() {
        let text = "C:Q1x=\nP:musl\nV:1.2.4-r2\nA:x86_64\nF:lib\nR:libc.so\n\nP:busybox\nV:1.36.1-r5\nA:x86_64\n";
        let packages = apk(text);
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
            for (valid, read) in [(deb, dpkg as fn(&str) -> Vec<Package>), (apk_, apk)] {
                for text in [input.to_vec(), damaged(valid.as_bytes(), input)] {
                    let text = String::from_utf8_lossy(&text);
                    let found = read(&text);
                    assert!(found.len() <= text.lines().count());
                    let is_line = |part: &str| !part.contains('\n') && text.contains(part);
                    assert!(found.iter().all(|one| is_line(&one.name) && is_line(&one.version)));
                }
            }
            let _ = distribution(&String::from_utf8_lossy(input));
        });
    }
}
