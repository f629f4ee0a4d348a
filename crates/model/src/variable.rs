//! `NAME=VALUE` as users write it in `spec.env`, `hosts[].env` and `--env`.

use imgctl_base::error::{Error, Result};

/// Maximum length of a value, in bytes: Linux' limit for one string of an environment.
const MAX_LENGTH: usize = 128 << 10;
/// Prefix of names that only imgctl sets.
const RESERVED: &str = "SEALOS_SYS";

/// Splits at the first `=`; the value may contain anything but NUL.
pub fn parse(entry: &str) -> Result<(String, String)> {
    let Some((name, value)) = entry.split_once('=') else {
        return Err(Error::usage(format!("`{}` has no `=`", shown(entry))).hint("write NAME=VALUE"));
    };
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let fits = name.starts_with(is_first)
        && name.chars().all(|c| is_first(c) || c.is_ascii_digit() || c == '.' || c == '-');
    if !fits {
        return Err(Error::usage(format!("`{}` is not a valid variable name", shown(name))).hint(
            "use letters, digits and `_`, not a digit first (`.` and `-` are for templates \
                 only)",
        ));
    }
    if name.starts_with(RESERVED) {
        return Err(Error::usage(format!("`{name}` is reserved"))
            .hint(format!("imgctl sets the variables {RESERVED}_* itself")));
    }
    if value.contains('\0') || entry.len() >= MAX_LENGTH {
        return Err(Error::usage(format!(
            "the value of `{name}` contains a NUL or is longer than {} KiB",
            MAX_LENGTH >> 10
        )));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Shortens an entry for display: without `=`, it may be a misplaced secret.
fn shown(entry: &str) -> String {
    let mut text: String = entry.chars().take(20).collect();
    if text.len() < entry.len() {
        text.push('…');
    }
    text.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_equals_sign_divides_and_values_stay_as_they_are() {
        for (entry, name, value) in [
            ("A=1", "A", "1"),
            ("A=", "A", ""),
            ("A=b=c,d", "A", "b=c,d"),
            ("A=\" $x \\ `y`\n'", "A", "\" $x \\ `y`\n'"),
            ("_a.b-c=ü", "_a.b-c", "ü"),
        ] {
            assert_eq!(parse(entry).unwrap(), (name.into(), value.into()));
        }
        for wrong in ["A", "", "=1", "1A=1", "A B=1", "SEALOS_SYS_X=1", "A=\0", "ä=1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
