//! The Kubefile of a composition. Must not know which files are written beside it: it is told the folders.

use std::fmt::Write as _;

use crate::choice::Part;
use crate::declaration::{ANY, Download};

/// Where the stages of publishers' files put those that the image has as they are, and unpacked archives.
const TREE: &str = "/tree/";
const ARCHIVES: &str = "/archives/";

/// What a Kubefile is written from.
pub(crate) struct Layout<'a> {
    pub(crate) parts: &'a [Part<'a>],
    pub(crate) architectures: &'a [String],
    /// Comments at the top, without `#`.
    pub(crate) head: &'a [String],
    /// Folders of the context that the image has.
    pub(crate) folders: &'a [&'a str],
    /// Commands of the image.
    pub(crate) command: Option<&'a str>,
}

/// Returns the text.
pub(crate) fn text(layout: &Layout<'_>) -> String {
    let mut text = String::new();
    for line in layout.head {
        let _ = writeln!(text, "# {line}");
    }
    let files: Vec<&Download> = layout.parts.iter().flat_map(|part| &part.release.files).collect();
    let by_architecture: Vec<&Download> =
        files.iter().copied().filter(|file| file.is_by_architecture()).collect();
    if !by_architecture.is_empty() {
        for architecture in layout.architectures {
            let _ = writeln!(text, "\nFROM scratch AS files-{architecture}");
            for file in &by_architecture {
                let _ = writeln!(text, "{}", add(file, architecture, &staged(file)));
            }
        }
        text.push_str("\nFROM files-${TARGETARCH} AS files\n");
    }
    text.push_str("\nFROM scratch\n");
    for part in layout.parts {
        text.push_str(&part.recipe.kubefile.replace("@VERSION@", &part.release.version));
    }
    if by_architecture.iter().any(|file| file.take.is_empty()) {
        let _ = writeln!(text, "COPY --from=files {TREE} /");
    }
    let mut taken: Vec<(&str, Vec<String>)> = Vec::new();
    for file in by_architecture.iter().filter(|file| !file.take.is_empty()) {
        let paths = file.take.iter().map(|path| format!("{}{path}", staged(file)));
        match taken.iter_mut().find(|(to, _)| *to == file.to) {
            Some((_, all)) => all.extend(paths),
            None => taken.push((&file.to, paths.collect())),
        }
    }
    for (to, paths) in taken {
        let _ = writeln!(text, "COPY --from=files {} {to}", paths.join(" "));
    }
    for file in files.iter().filter(|file| !file.is_by_architecture()) {
        let _ = writeln!(text, "{}", add(file, ANY, &file.to));
    }
    if !layout.folders.is_empty() {
        let _ = writeln!(text, "COPY --parents {} ./", layout.folders.join(" "));
    }
    if let Some(command) = layout.command {
        let _ = writeln!(text, "CMD [\"{command}\"]");
    }
    text
}

/// Where a file lies in the stage of its architecture.
fn staged(file: &Download) -> String {
    if file.take.is_empty() {
        return format!("{TREE}{}", file.to);
    }
    let name = file.url.rsplit('/').next().unwrap_or_default();
    let name = name.split(['-', '.']).next().unwrap_or_default();
    format!("{ARCHIVES}{name}/")
}

/// The instruction that downloads a file.
fn add(file: &Download, architecture: &str, to: &str) -> String {
    let mut line = String::from("ADD");
    if let Some(sha256) = file.sha256(architecture) {
        let _ = write!(line, " --checksum=sha256:{sha256}");
    }
    if file.unpack {
        line.push_str(" --unpack");
    }
    if let Some(mode) = &file.mode {
        let _ = write!(line, " --chmod={mode}");
    }
    let _ = write!(line, " {} {to}", file.url(architecture));
    line
}
