//! What is made of layers that others wrote, or that nobody should write: the trees of imgctl's mount
//! back ends and `export`, of umoci, buildah and containerd, compared entry by entry.

mod cases;
mod compressions;
mod differential;
pub(crate) mod image;
mod random;
pub(crate) mod readers;
mod writers;

/// Everything mounted by this thread and its children goes with it, even if the test panics.
pub(crate) fn private_mounts() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS | nix::sched::CloneFlags::CLONE_FS)
        .expect("these tests mount: run them as root (scripts/test)");
    rustix::mount::mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )
    .unwrap();
}
