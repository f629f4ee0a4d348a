//! `--chmod` of COPY and ADD: a new mode, or changes to the existing one.

use imgctl_base::error::{Error, Result};

/// `--chmod`: octal, or symbolic as in chmod(1) (`u=rwX,go=rX`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chmod {
    Octal(u32),
    Symbolic(Vec<Clause>),
}

/// One clause of a symbolic mode: `ug=rw-x`, `g=u`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clause {
    who: u32,
    changes: Vec<(u8, Permissions)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Permissions {
    Letters(String),
    /// Those that a class has: the shift of its bits.
    OfClass(u32),
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
    let mut changes = Vec::new();
    let mut rest = rest;
    while let Some(operator) = rest.bytes().next() {
        let end = rest[1..].find(['=', '+', '-']).map_or(rest.len(), |at| at + 1);
        let permissions = match &rest[1..end] {
            "u" => Permissions::OfClass(6),
            "g" => Permissions::OfClass(3),
            "o" => Permissions::OfClass(0),
            letters if letters.chars().all(|c| "rwxXst".contains(c)) => {
                Permissions::Letters(letters.to_owned())
            }
            _ => return None,
        };
        changes.push((operator, permissions));
        rest = &rest[end..];
    }
    Some(Clause { who: if mask == 0 { 0o7777 } else { mask }, changes })
}

impl Clause {
    fn apply(&self, mode: u32, is_directory: bool) -> u32 {
        self.changes.iter().fold(mode, |mode, (operator, permissions)| {
            let bits = permissions.bits(mode, is_directory) & self.who;
            match operator {
                b'+' => mode | bits,
                b'-' => mode & !bits,
                _ => mode & !self.who | bits,
            }
        })
    }
}

impl Permissions {
    /// Returns the bits for all classes.
    fn bits(&self, mode: u32, is_directory: bool) -> u32 {
        let of_letter = |letter| match letter {
            'r' => 0o444,
            'w' => 0o222,
            'x' => 0o111,
            'X' if is_directory || mode & 0o111 != 0 => 0o111,
            's' => 0o6000,
            't' => 0o1000,
            _ => 0,
        };
        match self {
            Self::Letters(letters) => letters.chars().fold(0, |bits, one| bits | of_letter(one)),
            Self::OfClass(shift) => (mode >> shift & 0o7) * 0o111,
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
            ("g=u", 0o640, false, 0o660),
            ("u=g,o=", 0o754, false, 0o550),
            ("ug=o", 0o754, false, 0o444),
            ("u+g", 0o150, false, 0o550),
            ("go-u", 0o477, false, 0o433),
            ("u=rw-x", 0o755, false, 0o655),
            ("u+r+w-x", 0o155, false, 0o655),
        ] {
            assert_eq!(Chmod::parse(text).unwrap().apply(mode, directory), expected, "{text}");
        }
        for bad in ["", "u~x", "789", "77777", "z+x", "u+q", "u=gr", "u=ug", "u"] {
            assert!(Chmod::parse(bad).is_err(), "{bad:?}");
        }
    }
}
