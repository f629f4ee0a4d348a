//! Backups and restores of clusters on real hosts: nothing that was acknowledged before a backup is
//! lost, and whatever dies on the way, the same command again brings it to its end.

mod disaster;
mod kills;
mod rehearsal;
