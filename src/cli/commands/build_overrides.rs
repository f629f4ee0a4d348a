//! Flags of buildah that change what the Kubefile says: its first base, its arguments, its history, its
//! operating system.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_build::build::options::Overrides;
use imgctl_frontend::{environment::Environment, names::pairs_or_environment};

/// Maximum size of a file of arguments, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Changes to what the Kubefile says.
#[derive(Args, Debug)]
pub(crate) struct OverrideArgs {
    /// Image to use in the first FROM instead of the one written there
    #[arg(long, value_name = "IMAGE")]
    from: Option<String>,

    /// File with an ARG in each line, as NAME=VALUE; --build-arg takes precedence (may be repeated)
    #[arg(long = "build-arg-file", value_name = "FILE")]
    build_arg_files: Vec<PathBuf>,

    /// Leave out the history of the image
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true, action = clap::ArgAction::Set)]
    omit_history: bool,

    /// Version of the operating system in the image's config
    #[arg(long, value_name = "VERSION", hide = true)]
    os_version: Option<String>,

    /// Feature of the operating system that the image needs (may be repeated)
    #[arg(long = "os-feature", value_name = "FEATURE", hide = true)]
    os_features: Vec<String>,
}

impl OverrideArgs {
    /// Returns the flags as options.
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            from: self.from.clone(),
            omit_history: self.omit_history,
            os_version: self.os_version.clone(),
            os_features: self.os_features.clone(),
        }
    }

    /// Returns the arguments of all files and of `--build-arg`, which take precedence.
    pub(crate) fn arguments(
        &self,
        given: &[String],
        environment: &Environment,
    ) -> Result<BTreeMap<String, String>> {
        let mut arguments = BTreeMap::new();
        for path in &self.build_arg_files {
            let lines = lines(path)?;
            arguments.extend(pairs_or_environment(&lines, "--build-arg-file", environment)?);
        }
        arguments.extend(pairs_or_environment(given, "--build-arg", environment)?);
        Ok(arguments)
    }
}

/// Reads the lines of a file, without comments.
fn lines(path: &Path) -> Result<Vec<String>> {
    if std::fs::metadata(path).path("read the arguments in", path)?.len() > MAX_FILE {
        return Err(Error::usage(format!("{} is too large for arguments", path.display())));
    }
    let text = std::fs::read_to_string(path).path("read the arguments in", path)?;
    let lines = text.lines().map(str::trim);
    Ok(lines.filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned).collect())
}
