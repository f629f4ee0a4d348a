//! Names of clusters, which become directories and parts of keys and are therefore restricted.

use imgctl_base::error::{Error, Result};

pub const DEFAULT: &str = "default";
/// Maximum length of a name, in bytes.
const MAX_LENGTH: usize = 63;
/// Names with another use in the directory of all clusters.
const RESERVED: [&str; 1] = ["logs"];

/// Fails unless `name` is `[a-z0-9][a-z0-9.-]{0,62}` and not reserved.
pub fn check(name: &str) -> Result<()> {
    let is_narrow = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = name.starts_with(is_narrow)
        && name.len() <= MAX_LENGTH
        && name.chars().all(|c| is_narrow(c) || c == '.' || c == '-');
    if !fits {
        return Err(Error::usage(format!("`{}` is not a valid cluster name", name.escape_debug()))
            .hint(format!(
                "use lower-case letters, digits, `-` and `.`, a letter or digit first, at most \
             {MAX_LENGTH}"
            )));
    }
    if RESERVED.contains(&name) {
        return Err(Error::usage(format!("a cluster cannot be called `{name}`")));
    }
    Ok(())
}

/// Maximum length of a UID, in bytes.
const MAX_UID: usize = 64;

/// Whether `text` may be the UID of a cluster: letters, digits and dashes.
pub fn is_uid(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (1..=MAX_UID).contains(&text.len()) && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_directory() {
        for name in ["default", "a", "0", "etcd-1.test", &"a".repeat(63)] {
            assert!(check(name).is_ok(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "-a",
            ".a",
            "A",
            "a b",
            "ä",
            "a\n",
            "logs",
            &"a".repeat(64),
        ] {
            assert!(check(name).is_err(), "{name}");
        }
        assert!(is_uid("6d2c6a1e-0000-4000-8000-000000000001"));
        for wrong in ["", "a b", "../x", &"a".repeat(65)] {
            assert!(!is_uid(wrong), "{wrong}");
        }
    }
}
