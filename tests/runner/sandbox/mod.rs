//! The sandbox of `RUN`, driven through the protocol of `imgctl __sandbox`: a frame with a spec
//! in, a frame with the outcome out. Needs root, and a root made of Debian's busybox-static.

mod confinement;
mod harness;
mod life;
mod mounts;
mod ordinary_user;
mod ways_out;
