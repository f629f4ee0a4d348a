//! A person at a terminal: a command on a terminal of its own, and keys that are typed when its prompts have come.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `line` of a shell, types each of `keys` when the screen ends with its prompt, and gives back all that was on the
/// screen.
pub(crate) fn on_a_terminal(
    line: &str,
    environment: &[(&str, &Path)],
    keys: &[(&str, &str)],
) -> String {
    let mut child = Command::new("script")
        .args(["-qec", line, "/dev/null"])
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut screen = Vec::new();
    let mut byte = [0];
    for (prompt, key) in keys {
        while !screen.ends_with(prompt.as_bytes()) {
            let told = || String::from_utf8_lossy(&screen).into_owned();
            assert_eq!(output.read(&mut byte).unwrap(), 1, "{prompt}: {}", told());
            screen.push(byte[0]);
        }
        input.write_all(key.as_bytes()).unwrap();
    }
    output.read_to_end(&mut screen).unwrap();
    drop(input);
    child.wait().unwrap();
    String::from_utf8_lossy(&screen).into_owned()
}
