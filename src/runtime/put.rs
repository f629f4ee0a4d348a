//! Shell that replaces files of a host: whole or not at all, and never under a program that runs.
//!
//! Must not know what the files are.

/// Functions for lines of shell. `put SOURCE TARGET [MODE]` does nothing when both are the same;
/// `ours FILE ROOT RELATIVE` is true when some tree of an image below `ROOT` brought `FILE` as it is,
/// that is, nobody has changed it since.
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
