//! User-maintained image lists: `images/shim/*`, `images/skopeo/tar.txt` and `--image`.
//!
//! A list is explicit, so an entry that is not an image name is an error.

use crate::found::{FoundArchive, How, Place};
use crate::search::collector::{Collector, entries};
use crate::search::names;
use imgctl_base::error::{Error, Result};

/// Directory that paths in `tar.txt` are relative to.
const ARCHIVES: &str = "images/skopeo";

/// Reads a list with one image per line; blank lines and `#` comments are skipped.
pub(super) fn images(text: &str, file: &str, found: &mut Collector) -> Result<()> {
    for (line, text) in entries(text) {
        let place = Place { file: file.to_owned(), line, how: How::List };
        let name = text.trim_matches(['"', '\'']).trim();
        let reference = names::normalise(name).map_err(|error| wrong(error, &place))?;
        found.image(name, reference, place);
    }
    Ok(())
}

/// `docker-archive:FILE@NAME` and `oci-archive:FILE@NAME` lines.
pub(super) fn archives(text: &str, file: &str, found: &mut Collector) -> Result<()> {
    for (line, text) in entries(text) {
        let place = Place { file: file.to_owned(), line, how: How::Archive };
        let archive = archive(text, place.clone()).map_err(|error| wrong(error, &place))?;
        found.archives.push(archive);
    }
    Ok(())
}

fn archive(text: &str, place: Place) -> Result<FoundArchive> {
    let malformed = || {
        Error::usage(format!("`{text}` does not name an image in an archive"))
            .hint("write docker-archive:FILE@NAME or oci-archive:FILE@NAME")
    };
    let (transport, rest) = text.split_once(':').ok_or_else(malformed)?;
    if !matches!(transport, "docker-archive" | "oci-archive") {
        return Err(malformed());
    }
    let (path, name) = rest.split_once('@').ok_or_else(malformed)?;
    let path = path.strip_prefix("./").unwrap_or(path);
    let leaves = path.split('/').any(|component| component == "..");
    if path.is_empty() || path.starts_with('/') || leaves {
        return Err(Error::usage(format!(
            "`{path}` is not a path below {ARCHIVES} of the build context"
        )));
    }
    Ok(FoundArchive {
        transport: transport.to_owned(),
        path: format!("{ARCHIVES}/{path}"),
        reference: names::normalise(name)?,
        place,
    })
}

fn wrong(error: Error, place: &Place) -> Error {
    error.context(place.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_their_mistakes_have_lines() {
        let mut found = Collector::new("b/c:1\n");
        images("# x\n\nnginx # web\n\"a/b:1\"\nb/c:1\n", "list", &mut found).unwrap();
        let error = images("a\nb c\n", "images/shim/l", &mut found).unwrap_err();
        assert!(error.to_string().starts_with("images/shim/l:2"), "{error}");
        let found = found.finish();
        let names: Vec<String> = found
            .images
            .iter()
            .map(|image| format!("{} {}", image.reference, image.places[0]))
            .collect();
        assert_eq!(
            names,
            [
                "docker.io/a/b:1 list:4",
                "docker.io/library/a:latest images/shim/l:1",
                "docker.io/library/nginx:latest list:3",
            ]
        );
        assert_eq!(found.skipped[0].text, "b/c:1");
    }

    #[test]
    fn lists_of_other_systems_are_read() {
        let mut found = Collector::new("\u{feff}a/left:1\t# not yet\r\n");
        let text = "\u{feff}a/b:1\r\n\ta/c:1\t# tabs\r\n  # comment\r\n\r\na/left:1\r\n";
        images(text, "list", &mut found).unwrap();
        let found = found.finish();
        let names: Vec<String> = found.images.iter().map(|i| i.reference.to_string()).collect();
        assert_eq!(names, ["docker.io/a/b:1", "docker.io/a/c:1"]);
        assert_eq!(found.skipped[0].text, "a/left:1");
    }

    #[test]
    fn archives_are_below_their_directory() {
        let mut found = Collector::new("");
        archives(
            "docker-archive:a.tar@x:1\noci-archive:d/b.tar@quay.io/y\n",
            "tar.txt",
            &mut found,
        )
        .unwrap();
        let found = found.finish().archives;
        assert_eq!(found[0].path, "images/skopeo/a.tar");
        assert_eq!(found[1].reference.to_string(), "quay.io/y:latest");
        for wrong in [
            "a.tar@x",
            "dir:a@x",
            "docker-archive:../a@x",
            "docker-archive:/a@x",
            "docker-archive:a",
            "docker-archive:a@X",
        ] {
            assert!(archives(wrong, "tar.txt", &mut Collector::new("")).is_err(), "{wrong}");
        }
    }
}
