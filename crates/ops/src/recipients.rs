//! Those for whom backups and the state of clusters are encrypted, as the user names them.

use std::path::Path;

use imgctl_age::{Recipients, is_identity};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::fs::directory::read_text;
use imgctl_base::fs::secret_file::{self, Exposed};
use imgctl_base::secret::Secret;

/// Maximum size of a file of recipients, identities or a passphrase, in bytes.
const LONGEST: u64 = 1 << 20;

/// Returns the recipients that the values of `flag` name (`age1…`, or a file of recipients); `None`
/// if there are no values.
pub(crate) fn recipients(named: &[String], flag: &str) -> Result<Option<Recipients>> {
    let mut all: Option<Recipients> = None;
    for name in named {
        let one = if name.starts_with("age1") || is_identity(name) {
            Recipients::parse(name, flag)?
        } else {
            let missing = || Error::not_found(format!("the file {name} does not exist"));
            let text = read_text(Path::new(name), LONGEST)
                .and_then(|text| text.ok_or_else(missing))
                .context(|| "cannot read a key".to_owned())
                .map_err(|error| {
                    error.hint(format!("{flag} takes a recipient (age1…) or a file of recipients"))
                })?;
            Recipients::parse(&text, name)?
        };
        all = Some(match all {
            None => one,
            Some(others) => others.and(one)?,
        });
    }
    Ok(all)
}

/// Reads a file of identities or with a passphrase, which must exist.
pub(crate) fn read_key(file: &Path) -> Result<Secret> {
    if is_identity(&file.to_string_lossy()) {
        // Not quoted: it is a secret.
        return Err(Error::usage(
            "an identity itself was given in place of the file that contains it",
        )
        .hint("arguments are visible to all users of this machine: write it into a file"));
    }
    let text = secret_file::read(file, LONGEST, Exposed::Told)
        .context(|| "cannot read a key".to_owned())?;
    let missing = || Error::not_found(format!("the file {} does not exist", file.display()));
    text.ok_or_else(missing)
}
