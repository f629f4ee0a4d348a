//! Files of the user that hold a secret: tokens, passwords, passphrases, private keys. Other users of this
//! machine must not be able to read them.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::{Error, IoContext as _, Result};
use crate::secret::Secret;

/// What becomes of a secret that other users can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposed {
    /// It is refused, as ssh refuses a private key: it protects a service for as long as that runs.
    Refused,
    /// The log says so: passwords and keys are often mounted with modes that the user does not choose.
    Told,
}

/// Reads a secret, at most `longest` bytes of it; `None` if the file does not exist. A pipe, such as
/// that of `<(command)`, belongs to whoever has opened it.
pub fn read(path: &Path, longest: u64, exposed: Exposed) -> Result<Option<Secret>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.path("open", path)?,
    };
    check(&file, path, exposed)?;
    let mut text = String::new();
    file.take(longest).read_to_string(&mut text).path("read", path)?;
    Ok(Some(Secret::new(text)))
}

/// Looks whether others may read an open file that holds a secret.
pub fn check(file: &File, path: &Path, exposed: Exposed) -> Result<()> {
    let metadata = file.metadata().path("read", path)?;
    if !metadata.is_file() || metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let what = format!(
        "{} holds a secret, and other users of this machine can read it (mode {:04o})",
        path.display(),
        metadata.mode() & 0o7777
    );
    if exposed == Exposed::Told {
        tracing::warn!("{what}");
        return Ok(());
    }
    Err(Error::usage(what).hint(format!("chmod 600 {}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn every_mode_that_lets_others_in_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "s").unwrap();
        for mode in 0..0o1000 {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode | 0o400)).unwrap();
            let read = read(&path, 100, Exposed::Refused);
            match mode & 0o077 {
                0 => assert_eq!(read.unwrap().unwrap().expose(), "s"),
                _ => {
                    let error = read.unwrap_err();
                    assert!(error.hints()[0].starts_with("chmod 600"), "{mode:o}: {error}");
                    assert!(super::read(&path, 100, Exposed::Told).unwrap().is_some());
                }
            }
        }
        assert!(read(&directory.path().join("missing"), 100, Exposed::Refused).unwrap().is_none());
    }

    #[test]
    fn a_pipe_is_nobody_elses() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, b"s").unwrap();
        drop(writer);
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let secret = read(Path::new(&path), 100, Exposed::Refused).unwrap().unwrap();
        assert_eq!(secret.expose(), "s");
    }
}
