//! Packs `images/recipes` into one compressed file, which the library carries: for each file a line with mode, length and
//! path, and then its bytes. Links between folders are followed.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

#[allow(clippy::disallowed_methods, reason = "cargo tells a build script its folder so")]
fn output() -> io::Result<PathBuf> {
    std::env::var_os("OUT_DIR")
        .map(PathBuf::from)
        .ok_or_else(|| io::Error::other("cargo did not set OUT_DIR"))
}

#[allow(clippy::print_stdout, reason = "cargo reads it")]
fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/recipes");
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let packed = fs::File::create(output()?.join("recipes.gz"))?;
    let mut packed = GzEncoder::new(packed, Compression::best());
    for file in files {
        let mode = fs::metadata(&file)?.permissions().mode() & 0o111;
        let mode = if mode == 0 { 0o644 } else { 0o755 };
        let path = file.strip_prefix(&root).map_err(io::Error::other)?;
        let bytes = fs::read(&file)?;
        writeln!(packed, "{mode:o} {} {}", bytes.len(), path.display())?;
        packed.write_all(&bytes)?;
    }
    packed.finish()?;
    Ok(())
}

/// Adds the files below `folder`, and asks cargo to look at them again when they change.
#[allow(clippy::print_stdout, reason = "cargo reads it")]
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            println!("cargo::rerun-if-changed={}", path.display());
            files.push(path);
        }
    }
    Ok(())
}
