//! Quoting for a POSIX shell: of what hosts execute, and of commands in hints, which somebody pastes.

/// Quotes `text` as a single shell word that stands for exactly `text`.
pub fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Maximum length of a line that is encoded: Linux limits one argument to 128 KiB.
const LONGEST_ENCODED: usize = 120 << 10;

/// Returns the command that runs `line` with `/bin/sh`, for any login shell.
///
/// csh replaces `!` and ends at a line break also within quotes, and fish drops backslashes there: a
/// line with these is sent with escapes that only `printf` reads.
pub fn for_login_shell(line: &str) -> String {
    if line.contains(['!', '\n', '\\']) {
        let mut text = String::with_capacity(line.len());
        for character in line.trim_end_matches('\n').chars() {
            match character {
                '!' | '\n' | '\\' | '\'' => {
                    text.push_str(&format!("\\0{:03o}", u32::from(character)));
                }
                other => text.push(other),
            }
        }
        if text.len() <= LONGEST_ENCODED {
            let decode = quote("exec /bin/sh -c \"$(printf %b \"$1\")\"");
            return format!("exec /bin/sh -c {decode} sh {}", quote(&text));
        }
    }
    format!("exec /bin/sh -c {}", quote(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What csh and fish read differently from sh within quotes is not in the command at all.
    #[test]
    fn a_command_is_the_same_for_every_login_shell() {
        for text in
            ["id", "echo 'hi!there'", "a() {\n echo \\\\; }\na\n", "printf '%s\\n' \"it's\" %b"]
        {
            let command = for_login_shell(text);
            assert!(!command.contains(['!', '\n']), "{command}");
            let inner = command.replace("'\\''", "");
            assert!(!inner.contains("\\\\"), "{command}");
            let ran = |line: &str| {
                let output = std::process::Command::new("/bin/sh").arg("-c").arg(line).output();
                output.unwrap().stdout
            };
            assert_eq!(ran(&command), ran(text), "{command}");
        }
        let long = "#!\n".repeat(40 << 10);
        assert!(for_login_shell(&long).starts_with("exec /bin/sh -c '#!"));
    }

    #[test]
    fn the_shell_gives_back_what_was_quoted() {
        for text in ["", "a", "a b", "it's", "'", "$HOME `id` \\ \" \n * ~", "é\u{1F600}"] {
            let output = std::process::Command::new("/bin/sh")
                .arg("-c")
                .arg(format!("printf %s {}", quote(text)))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }
}
