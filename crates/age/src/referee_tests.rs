//! Debian's age is the referee: it opens what we seal, and we open what it seals.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Identities, Recipients, decrypt, encrypt};
use imgctl_base::secret::Secret;

fn age(arguments: &[&str], input: &[u8], directory: &Path) -> Vec<u8> {
    let mut child = Command::new("age")
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cannot run age (scripts/setup installs what tests need)");
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "age {arguments:?}");
    output.stdout
}

#[test]
fn age_opens_what_we_seal_and_the_other_way_round() {
    let scratch = tempfile::tempdir().unwrap();
    let keys = ["one", "two"].map(|name| {
        let path = scratch.path().join(name);
        let made = Command::new("age-keygen").arg("-o").arg(&path).output();
        assert!(made.expect("cannot run age-keygen").status.success());
        let text = std::fs::read_to_string(&path).unwrap();
        let recipient = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
        (recipient.to_owned(), Identities::parse(&Secret::new(&*text), name).unwrap())
    });
    let all = format!("# both\n{}\n{}\n", keys[0].0, keys[1].0);
    let recipients = Recipients::parse(&all, "all").unwrap();
    assert_eq!(recipients.text().unwrap(), format!("{}\n{}\n", keys[0].0, keys[1].0));
    for length in [0, 1, 65_536, 65_537, 1_000_000] {
        let content: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[0]).collect();
        let mut file = Vec::new();
        let mut writer = encrypt(&mut file, &recipients).unwrap();
        writer.write_all(&content).unwrap();
        writer.finish().unwrap();
        for name in ["one", "two"] {
            assert_eq!(age(&["-d", "-i", name], &file, scratch.path()), content, "{length} {name}");
        }
        let theirs = age(&["-r", &keys[0].0, "-r", &keys[1].0], &content, scratch.path());
        for (_, identities) in &keys {
            let mut opened = Vec::new();
            let mut reader = decrypt(theirs.as_slice(), identities).unwrap();
            reader.read_to_end(&mut opened).unwrap();
            assert_eq!(opened, content, "{length}");
        }
    }
}
