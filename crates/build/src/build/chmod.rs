//! `--chmod` of COPY and ADD: a new mode, or changes to the existing one.

use imgctl_base::error::{Error, Result};

/// `--chmod`: octal, or symbolic as in chmod(1) (`u=rwX,go=rX`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chmod {
    Octal(u32),
    Symbolic(Vec<Clause>),
}

/// One clause of a symbolic mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clause {
    who: u32,
    operator: u8,
    permissions: String,
}

impl Chmod {
    /// Parses the flag's expanded value.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`{text}` is not a mode"))
                .about(text)
                .hint("--chmod takes an octal mode (0755) or a symbolic one (u=rwX,go=rX)")
        };
        if text.bytes().all(|b| b.is_ascii_digit()) {
            let mode = u32::from_str_radix(text, 8).map_err(|_| wrong())?;
            return if mode <= 0o7777 { Ok(Self::Octal(mode)) } else { Err(wrong()) };
        }
        let clauses: Option<Vec<Clause>> = text.split(',').map(parse_clause).collect();
        Ok(Self::Symbolic(clauses.ok_or_else(wrong)?))
    }

    /// Returns the new mode of a file whose mode is `mode`.
    pub(super) fn apply(&self, mode: u32, is_directory: bool) -> u32 {
        match self {
            Self::Octal(mode) => *mode,
            Self::Symbolic(clauses) => {
                clauses.iter().fold(mode, |mode, clause| clause.apply(mode, is_directory))
            }
        }
    }
}

fn parse_clause(text: &str) -> Option<Clause> {
    let at = text.find(['=', '+', '-'])?;
    let (who, rest) = text.split_at(at);
    let mut mask = 0;
    for letter in who.chars() {
        mask |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    let (operator, permissions) = rest.split_at(1);
    if !permissions.chars().all(|c| "rwxXst".contains(c)) {
        return None;
    }
    Some(Clause {
        who: if mask == 0 { 0o7777 } else { mask },
        operator: *operator.as_bytes().first()?,
        permissions: permissions.to_owned(),
    })
}

impl Clause {
    fn apply(&self, mode: u32, is_directory: bool) -> u32 {
        let mut bits = 0;
        for letter in self.permissions.chars() {
            bits |= match letter {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                'X' if is_directory || mode & 0o111 != 0 => 0o111,
                's' => 0o6000,
                't' => 0o1000,
                _ => 0,
            };
        }
        bits &= self.who;
        match self.operator {
            b'+' => mode | bits,
            b'-' => mode & !bits,
            _ => mode & !self.who | bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        for (text, mode, directory, expected) in [
            ("755", 0o600, false, 0o755),
            ("0644", 0o4755, false, 0o644),
            ("u=rwX,go=rX", 0o600, false, 0o644),
            ("u=rwX,go=rX", 0o600, true, 0o755),
            ("u=rwX,go=rX", 0o700, false, 0o755),
            ("+x", 0o644, false, 0o755),
            ("a-w", 0o666, false, 0o444),
            ("u+s", 0o755, false, 0o4755),
            ("go=", 0o777, false, 0o700),
        ] {
            assert_eq!(Chmod::parse(text).unwrap().apply(mode, directory), expected, "{text}");
        }
        for bad in ["", "u~x", "789", "77777", "z+x", "u+q"] {
            assert!(Chmod::parse(bad).is_err(), "{bad:?}");
        }
    }
}
