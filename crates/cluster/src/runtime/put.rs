//! Shell code that replaces files on a host atomically, also while a program runs from them.
//!
//! Must not depend on what the files are.

/// Shell functions. `put SOURCE TARGET [MODE]` does nothing if both are equal; `ours FILE ROOT
/// RELATIVE` succeeds if `FILE` is identical to the one in some image tree below `ROOT`, which
/// means that it was not modified on the host.
pub(crate) const FUNCTIONS: &str = r#"put() {
  if [ -e "$2" ] && [ ! -L "$2" ] && cmp -s "$1" "$2"; then return 0; fi
  mkdir -p "$(dirname "$2")"
  rm -rf "$2.imgctl-new"
  cp -L --preserve=mode,ownership,timestamps "$1" "$2.imgctl-new"
  if [ -n "${3:-}" ]; then chown 0:0 "$2.imgctl-new"; chmod "$3" "$2.imgctl-new"; fi
  sync "$2.imgctl-new"
  mv -f "$2.imgctl-new" "$2"
  sync "$(dirname "$2")"
  echo "$2 is replaced"
}
ours() {
  local tree
  for tree in "$2"/rootfs "$2"/rootfs.*; do
    if cmp -s "$1" "$tree/$3"; then return 0; fi
  done
  return 1
}
where() { type -P "$1" || echo "/usr/bin/$1"; }
"#;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Child, Command, Output};

    use super::FUNCTIONS;

    /// Stops the program at the end of the test.
    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn bash(line: &str, words: &[&Path]) -> Output {
        let mut command = Command::new("bash");
        command.args(["-e", "-c", &format!("{FUNCTIONS}\n{line}"), "bash"]);
        command.args(words).env("LC_ALL", "C").output().unwrap()
    }

    #[test]
    fn a_program_that_runs_is_replaced_under_itself() {
        let directory = tempfile::tempdir().unwrap();
        let (new, target) = (directory.path().join("new"), directory.path().join("kubelet"));
        std::fs::copy("/bin/sleep", &target).unwrap();
        std::fs::copy("/bin/true", &new).unwrap();
        let mut running = Running(Command::new(&target).arg("60").spawn().unwrap());
        // Writing into the file fails.
        let into = bash("cat \"$1\" >\"$2\"", &[&new, &target]);
        let said = String::from_utf8_lossy(&into.stderr).into_owned();
        assert!(!into.status.success() && said.contains("Text file busy"), "{said}");
        let put = bash("put \"$1\" \"$2\" 0755", &[&new, &target]);
        let said = String::from_utf8_lossy(&put.stderr).into_owned();
        assert!(put.status.success(), "{said}");
        assert_eq!(std::fs::read(&target).unwrap(), std::fs::read(&new).unwrap());
        assert!(Command::new(&target).status().unwrap().success());
        // The old program keeps running.
        assert!(running.0.try_wait().unwrap().is_none());
        let exe = format!("/proc/{}/exe", running.0.id());
        let exe = std::fs::read_link(exe).unwrap();
        assert!(exe.to_string_lossy().ends_with("(deleted)"), "{exe:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
