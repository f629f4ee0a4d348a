//! Image locations as users write them: `docker://NAME`, `oci:PATH[:NAME]`, `oci-archive:…`,
//! `docker-archive:…`, `dir:PATH`, or a bare name. These are the transports of
//! containers-transports(5), plus `registry-dir:` for a registry's tree on disk.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;

/// A location from which an image is read or to which it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A name without a transport, as typed: looked up in the store, then in registries.
    Name(String),
    /// `docker://NAME`: a registry.
    Registry(Reference),
    /// `oci:PATH[:NAME]`: an OCI image layout in a directory.
    OciDirectory(Archived),
    /// `oci-archive:PATH[:NAME]`: a tar of an OCI image layout.
    OciArchive(Archived),
    /// `docker-archive:PATH[:NAME]`: the format of `docker save`.
    DockerArchive(Archived),
    /// `dir:PATH`: skopeo's flat directory, with one image.
    Directory(PathBuf),
    /// `registry-dir:PATH:REPOSITORY[:TAG|@DIGEST]`: an image in the storage tree of
    /// docker-distribution and `imgctl registry serve`.
    RegistryDirectory { path: PathBuf, name: Reference },
}

/// A file or directory and, if it can hold several images, the name of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    pub path: PathBuf,
    /// As written: a tag, a full name, or another name that the layout uses.
    pub name: Option<String>,
}

impl Location {
    /// Parses a location. An unsupported transport is an error that suggests an alternative.
    pub fn parse(text: &OsStr) -> Result<Self> {
        let bytes = text.as_bytes();
        let transport = bytes
            .iter()
            .position(|byte| *byte == b':')
            .and_then(|end| Some((str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..])));
        match transport {
            Some(("docker", rest)) => {
                let name = rest.strip_prefix(b"//").ok_or_else(|| {
                    Error::usage(format!("`{}` is not a location of an image", text.display()))
                        .hint("an image in a registry is written docker://NAME")
                })?;
                Ok(Self::Registry(Reference::parse(utf8(name)?)?))
            }
            Some(("oci", rest)) => Ok(Self::OciDirectory(archived(rest)?)),
            Some(("oci-archive", rest)) => Ok(Self::OciArchive(archived(rest)?)),
            Some(("docker-archive", rest)) => Ok(Self::DockerArchive(archived(rest)?)),
            Some(("dir", rest)) => Ok(Self::Directory(path(rest)?)),
            Some(("registry-dir", rest)) => registry_directory(rest),
            Some(("containers-storage", _)) => Err(not_ours(
                "the storage of podman and buildah",
                "podman save --format oci-archive -o FILE NAME",
            )),
            Some(("docker-daemon", _)) => {
                Err(not_ours("the storage of the docker daemon", "docker save -o FILE NAME"))
            }
            Some((other @ ("tarball" | "ostree" | "sif" | "atomic" | "static"), _)) => {
                Err(Error::usage(format!("the transport {other}: is not supported"))
                    .hint("docker://, oci:, oci-archive:, docker-archive: and dir: are"))
            }
            _ => Ok(Self::Name(utf8(bytes)?.to_owned())),
        }
    }
}

/// Returns the archive that `text` names: a file or directory, or one after `oci-archive:`,
/// `docker-archive:`, `oci:` or `dir:`, whose image may be named as well. A file that exists by the whole
/// text takes precedence.
pub fn archive(text: &OsStr) -> Result<Archived> {
    let plain = Archived { path: PathBuf::from(text), name: None };
    if plain.path.exists() || text.to_str().is_none() {
        return Ok(plain);
    }
    match Location::parse(text)? {
        Location::OciArchive(place)
        | Location::DockerArchive(place)
        | Location::OciDirectory(place) => Ok(place),
        Location::Directory(path) => Ok(Archived { path, name: None }),
        _ => Ok(plain),
    }
}

/// Returns the archives that are loaded together, and the name of the image if there is one archive.
pub fn archives(texts: &[impl AsRef<OsStr>]) -> Result<(Vec<PathBuf>, Option<String>)> {
    let mut found = texts.iter().map(|text| archive(text.as_ref())).collect::<Result<Vec<_>>>()?;
    if let [one] = &mut found[..] {
        return Ok((vec![one.path.clone()], one.name.take()));
    }
    if let Some(Archived { path, name: Some(name) }) = found.iter().find(|one| one.name.is_some()) {
        return Err(Error::usage(format!(
            "{name} of {} is one image, but several archives are loaded",
            path.display()
        ))
        .hint("load this archive alone"));
    }
    Ok((found.into_iter().map(|one| one.path).collect(), None))
}

fn not_ours(what: &str, command: &str) -> Error {
    Error::usage(format!("{what} cannot be reached")).hint(format!(
        "write the image to a file (`{command}`), then use oci-archive:FILE or docker-archive:FILE"
    ))
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    str::from_utf8(bytes).map_err(|_| {
        let text = String::from_utf8_lossy(bytes);
        Error::usage(format!("`{text}` is not an image name"))
    })
}

fn path(bytes: &[u8]) -> Result<PathBuf> {
    if bytes.is_empty() {
        return Err(Error::usage("a path is missing after the transport"));
    }
    Ok(PathBuf::from(OsString::from(OsStr::from_bytes(bytes))))
}

/// A path that contains a colon is read as a path with a name, as in the other tools.
fn archived(bytes: &[u8]) -> Result<Archived> {
    let (file, name) = match bytes.iter().position(|byte| *byte == b':') {
        Some(end) => (&bytes[..end], Some(&bytes[end + 1..])),
        None => (bytes, None),
    };
    Ok(Archived {
        path: path(file)?,
        name: match name {
            Some(name) if !name.is_empty() => Some(utf8(name)?.to_owned()),
            _ => None,
        },
    })
}

fn registry_directory(bytes: &[u8]) -> Result<Location> {
    let Archived { path, name } = archived(bytes)?;
    let name = name.ok_or_else(|| {
        Error::usage(format!("registry-dir:{} does not name an image", path.display()))
            .hint("an image in a registry's tree is written registry-dir:PATH:REPOSITORY:TAG")
    })?;
    Ok(Location::RegistryDirectory { path, name: Reference::parse(&name)? })
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let archived = |f: &mut fmt::Formatter<'_>, transport: &str, archived: &Archived| {
            write!(f, "{transport}:{}", archived.path.display())?;
            match &archived.name {
                Some(name) => write!(f, ":{name}"),
                None => Ok(()),
            }
        };
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Registry(name) => write!(f, "docker://{name}"),
            Self::OciDirectory(place) => archived(f, "oci", place),
            Self::OciArchive(place) => archived(f, "oci-archive", place),
            Self::DockerArchive(place) => archived(f, "docker-archive", place),
            Self::Directory(path) => write!(f, "dir:{}", Path::display(path)),
            Self::RegistryDirectory { path, name } => {
                write!(f, "registry-dir:{}:{name}", path.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Location> {
        Location::parse(OsStr::new(text))
    }

    #[test]
    fn transports_are_told_from_names() {
        let archived = |path: &str, name: Option<&str>| Archived {
            path: path.into(),
            name: name.map(str::to_owned),
        };
        for (text, place) in [
            ("etcd:v1", Location::Name("etcd:v1".to_owned())),
            ("localhost:5000/a:v1", Location::Name("localhost:5000/a:v1".to_owned())),
            ("docker://reg.io/a:v1", Location::Registry(Reference::parse("reg.io/a:v1").unwrap())),
            ("oci:/x", Location::OciDirectory(archived("/x", None))),
            ("oci:/x:reg.io/a:v1", Location::OciDirectory(archived("/x", Some("reg.io/a:v1")))),
            ("oci-archive:x.tar:v1", Location::OciArchive(archived("x.tar", Some("v1")))),
            ("docker-archive:x.tar", Location::DockerArchive(archived("x.tar", None))),
            ("dir:a:b", Location::Directory("a:b".into())),
            (
                "registry-dir:/srv:team/app:v1",
                Location::RegistryDirectory {
                    path: "/srv".into(),
                    name: Reference::parse("team/app:v1").unwrap(),
                },
            ),
        ] {
            assert_eq!(parse(text).unwrap(), place);
            assert_eq!(place.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_place_says_what_would_be() {
        for (text, expected) in [
            ("docker:x", "docker://NAME"),
            ("docker://Upper", "lower case"),
            ("oci:", "path is missing"),
            ("registry-dir:/srv", "name an image"),
            ("containers-storage:x", "podman save"),
            ("docker-daemon:x:v1", "docker save"),
            ("ostree:x", "not supported"),
        ] {
            let error = parse(text).unwrap_err();
            let all = format!("{error} {}", error.hints().join(" "));
            assert!(all.contains(expected), "{text}: {all}");
        }
    }
}
