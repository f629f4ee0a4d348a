//! Quoting for a POSIX shell: of what hosts execute, and of commands in hints, which somebody pastes.

/// Quotes `text` as a single shell word that stands for exactly `text`.
pub fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
