//! Mirrors of addresses: `--mirror`, and the files that configure them for every build.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::{context::Context, names::split, registry_options::config_home};
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_build::build::mirrors::{MAX_MIRRORS, Mirrors};

/// The system's mirrors.
const SYSTEM: &str = "/etc/imgctl/mirrors.toml";

/// Mirrors of addresses.
#[derive(Args, Clone, Debug, Default)]
pub struct MirrorArgs {
    /// Take what ADD downloads from addresses that begin with FROM out of TO: a directory, file:// or
    /// http(s):// (may be repeated)
    #[arg(long = "mirror", value_name = "FROM=TO")]
    mirrors: Vec<String>,
}

impl MirrorArgs {
    /// Returns the mirrors of the flags, then those of the user's file and of the system's.
    pub fn mirrors(&self, context: &Context) -> Result<Mirrors> {
        let mut mirrors = Mirrors::default();
        for spec in &self.mirrors {
            let (from, to) = split(spec, '=', "--mirror", "FROM=TO")?;
            mirrors.add(&from, &to, Path::new(""))?;
        }
        let own = config_home(&context.environment).map(|home| home.join("imgctl/mirrors.toml"));
        for path in own.into_iter().chain([PathBuf::from(SYSTEM)]) {
            if let Some(text) = read(&path)? {
                mirrors.add_file(&text, &path)?;
            }
        }
        Ok(mirrors)
    }
}

/// Reads a file of mirrors, if it exists.
fn read(path: &Path) -> Result<Option<String>> {
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.path("read the mirrors in", path)?,
    };
    let mut text = String::new();
    file.take(MAX_MIRRORS + 1).read_to_string(&mut text).path("read the mirrors in", path)?;
    if text.len() as u64 > MAX_MIRRORS {
        return Err(Error::usage(format!(
            "{} is too large to be a file of mirrors",
            path.display()
        )));
    }
    Ok(Some(text))
}
