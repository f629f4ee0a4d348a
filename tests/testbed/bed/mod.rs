//! The test bed itself: hosts that boot systemd, are apart from each other and from this machine, can
//! be cut off, slowed down, lost and rebooted, and leave nothing behind.

mod faults;
mod hosts;
mod leftovers;
