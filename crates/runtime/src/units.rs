//! Removal of the systemd units that imgctl installed on a host. Must not know what the units run.

/// Returns a shell command that stops the units and removes their files, if they are there. Nothing remains,
/// not even as a failed unit in `systemctl --failed`. It continues where it was killed before.
pub fn removal(units: &[&str]) -> String {
    let units = units.join(" ");
    format!(
        r#"if command -v systemctl >/dev/null; then
gone=
for unit in {units}; do
  [ -e "/etc/systemd/system/$unit" ] || systemctl is-active -q "$unit" || systemctl is-failed -q "$unit" || continue
  systemctl disable --quiet "$unit" 2>/dev/null || true
  systemctl stop "$unit" || true
  if systemctl is-active -q "$unit"; then echo "$unit does not stop; see systemctl status $unit" >&2; exit 1; fi
  rm -f "/etc/systemd/system/$unit"
  gone="$gone $unit"
done
if [ -n "$gone" ]; then
  systemctl daemon-reload
  for unit in $gone; do systemctl reset-failed "$unit" 2>/dev/null || true; done
fi
fi"#
    )
}
