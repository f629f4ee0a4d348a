//! A wrapper of `sudo` for the commands of images: sudo has its own search path, which lacks the wrappers of kubectl
//! and helm. Must not depend on clusters.
//!
//! The commands run as root. In a call for root, the wrappers precede sudo's own path, and nothing else changes. A call
//! for another user, of a login shell, or with unknown options stays as it is, because only root can reach the wrappers.

use imgctl_base::quote::quote;

/// Letters of options that take no value and do not affect which program runs. Letters may be combined.
pub(super) const PLAIN: &str = "AbEHnPS";
pub(super) const ROOT: &str = "root";

/// Returns the script that replaces `sudo`. What sudo runs gets `variables`, and searches `own`, the directory of the
/// wrappers, first.
pub(super) fn script(own: &str, variables: &[(&str, &str)]) -> String {
    let assignments: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={}", quote(value))).collect();
    let inner =
        format!("export PATH={}:\"$PATH\" {}; exec \"$@\"", quote(own), assignments.join(" "));
    format!(
        r#"#!/bin/sh
# Written by imgctl while the commands of an image run, and removed then.
real= IFS=:
for folder in $PATH; do
  if [ "$folder" != {own} ] && [ -x "$folder/sudo" ]; then real=$folder/sudo; break; fi
done
unset IFS
[ -n "$real" ] || {{ echo 'sudo: command not found' >&2; exit 127; }}
# Words before the program go to the end one by one; `left` are still in front.
left=$# known=yes options=yes value=
while [ "$left" -gt 0 ]; do
  if [ -n "$value" ]; then
    [ "$1" = {ROOT} ] || known=
    value=
  else
    case $options$1 in
      yes--) options= ;;
      yes-u | yes--user) value=yes ;;
      yes-u{ROOT} | yes--user={ROOT}) ;;
      yes-*[!{PLAIN}-]* | yes--* | yes-) known= ;;
      yes-*) ;;
      *[A-Za-z_]*=*) ;;
      *) break ;;
    esac
  fi
  [ -n "$known" ] || break
  set -- "$@" "$1"; shift; left=$((left - 1))
done
if [ -n "$known" ] && [ "$left" -gt 0 ] && "$real" -n -l /bin/sh >/dev/null 2>&1; then
  set -- "$@" /bin/sh -c {inner} sudo
fi
while [ "$left" -gt 0 ]; do set -- "$@" "$1"; shift; left=$((left - 1)); done
exec "$real" "$@"
"#,
        own = quote(own),
        inner = quote(&inner),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    fn program(path: &Path, text: &str) {
        std::fs::write(path, format!("#!/bin/sh\n{text}")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns the output of `sudo ARGUMENTS`, where sudo has its own search path.
    fn ran(arguments: &[&str], allows: bool) -> String {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for folder in ["it's own", "host", "secure"] {
            std::fs::create_dir(at(folder)).unwrap();
        }
        program(&at("it's own/kubectl"), "echo \"wrapped $OBJECTS $*\"\n");
        program(&at("secure/kubectl"), "echo \"real $*\"\n");
        let sudo = format!(
            "if [ \"$1 $2\" = '-n -l' ]; then exit {}; fi\n\
             while :; do case $1 in -u) shift 2 ;; --) shift; break ;; -*) shift ;; *) break ;; esac; done\n\
             exec env -i PATH={}:/usr/bin:/bin \"$@\"\n",
            if allows { 0 } else { 1 },
            at("secure").display()
        );
        program(&at("host/sudo"), &sudo);
        let own = at("it's own");
        program(&own.join("sudo"), &script(own.to_str().unwrap(), &[("OBJECTS", "o b")]));
        let path = format!("{}:{}:/usr/bin:/bin", own.display(), at("host").display());
        let made = std::process::Command::new(own.join("sudo"))
            .args(arguments)
            .env_clear()
            .env("PATH", path)
            .output()
            .unwrap();
        String::from_utf8(made.stdout).unwrap() + &String::from_utf8(made.stderr).unwrap()
    }

    #[test]
    fn what_sudo_runs_as_root_finds_the_wrappers() {
        for arguments in [
            &["kubectl", "a b", "-u"][..],
            &["-E", "-n", "kubectl", "a b", "-u"],
            &["-nE", "--", "kubectl", "a b", "-u"],
            &["-u", "root", "kubectl", "a b", "-u"],
            &["-uroot", "A=b c", "kubectl", "a b", "-u"],
            &["--user=root", "sh", "-c", "kubectl \"$@\"", "sh", "a b", "-u"],
        ] {
            assert_eq!(ran(arguments, true), "wrapped o b a b -u\n", "{arguments:?}");
        }
    }

    #[test]
    fn every_other_call_stays_as_it_is() {
        for arguments in [
            &["-u", "app", "kubectl", "x", "y z"][..],
            &["-uapp", "kubectl", "x", "y z"],
            &["--login", "kubectl", "x", "y z"],
            &["-Ei", "kubectl", "x", "y z"],
        ] {
            assert_eq!(ran(arguments, true), "real x y z\n", "{arguments:?}");
        }
        // The host's rules may allow only a few programs.
        assert_eq!(ran(&["kubectl", "x"], false), "real x\n");
        assert!(ran(&["-v"], true).starts_with("PATH="));
    }
}
