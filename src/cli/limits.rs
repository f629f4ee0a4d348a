//! Global flags that limit the resources of untrusted archives and layers. They are rarely needed,
//! so docs/cli.md describes them and the help does not.

use clap::Args;

use crate::cli::duration;
use imgctl_base::error::{Error, Result};
use imgctl_store::layer::Limits;

/// Limits for archives, layers and their entries.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LimitsArgs {
    /// Maximum number of entries in a layer or an archive
    #[arg(long, global = true, hide = true, value_name = "N")]
    max_entries: Option<u64>,

    /// Maximum uncompressed size of a layer or an archive
    #[arg(long, global = true, hide = true, value_name = "SIZE")]
    max_size: Option<String>,

    /// Maximum length of an entry's path, in bytes
    #[arg(long, global = true, hide = true, value_name = "N")]
    max_path: Option<usize>,

    /// Maximum number of components in an entry's path
    #[arg(long, global = true, hide = true, value_name = "N")]
    max_depth: Option<usize>,

    /// Maximum size of an entry's extended header
    #[arg(long, global = true, hide = true, value_name = "SIZE")]
    max_pax: Option<String>,

    /// Maximum number of uncompressed bytes per compressed byte, beyond the first GiB
    #[arg(long, global = true, hide = true, value_name = "N")]
    max_ratio: Option<u64>,
}

impl LimitsArgs {
    /// Returns the limits, with defaults for those that are not set.
    pub(crate) fn limits(&self) -> Result<Limits> {
        let size = |given: &Option<String>, usual: u64| match given {
            Some(text) => duration::bytes(text),
            None => Ok(usual),
        };
        let usual = Limits::default();
        let limits = Limits {
            entries: self.max_entries.unwrap_or(usual.entries),
            size: size(&self.max_size, usual.size)?,
            path: self.max_path.unwrap_or(usual.path),
            depth: self.max_depth.unwrap_or(usual.depth),
            pax: size(&self.max_pax, usual.pax)?,
            ratio: self.max_ratio.unwrap_or(usual.ratio),
            ratio_from: usual.ratio_from,
        };
        // The system does not accept longer ones, and headers are held in memory.
        let bounds = [
            ("--max-path", limits.path as u64, 4096),
            ("--max-depth", limits.depth as u64, 2048),
            ("--max-pax", limits.pax, 64 << 20),
        ];
        for (flag, given, most) in bounds {
            if given > most {
                return Err(Error::usage(format!("{flag} must be at most {most}")));
            }
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_as_usual() {
        let given = LimitsArgs {
            max_entries: Some(7),
            max_size: Some("2GiB".to_owned()),
            ..LimitsArgs::default()
        };
        let expected = Limits { entries: 7, size: 2 << 30, ..Limits::default() };
        assert_eq!(given.limits().unwrap(), expected);
        for wrong in [
            LimitsArgs { max_size: Some("big".to_owned()), ..LimitsArgs::default() },
            LimitsArgs { max_path: Some(4097), ..LimitsArgs::default() },
        ] {
            assert!(wrong.limits().is_err(), "{wrong:?}");
        }
    }
}
