//! How k3s is set up on a host, as programs find out. Must not know what is done with it.

/// Sets `k3s` to its program, `unit` to its service and `data` to its data directory.
pub(crate) const HOST: &str = include_str!("scripts/host.sh");
/// The functions `start_k3s`, `touch_backup` and `put_back`, which need [`HOST`] and those for files.
pub(super) const SERVICE: &str = include_str!("scripts/service.sh");
