//! The system calls that a sandboxed command may make: those that Docker's default profile allows
//! to a container without additional capabilities, grouped by purpose. Data only.
//!
//! `clone`, `socket` and `personality` are allowed under conditions (see [`super::seccomp`]). Not
//! listed, and therefore forbidden: mounting and namespaces, kernel modules, tracing the kernel
//! (`bpf`, `perf_event_open`), keyrings, clocks, swap, reboot, `io_uring`, `userfaultfd`.

/// Highest call number that the list covers: for a command, calls with greater numbers do not
/// exist. (All architectures have numbered new calls alike since 403.)
pub(super) const NEWEST: u32 = 469;

/// Allowed on every architecture. Calls that are newer than our libc crate are given by number.
#[rustfmt::skip]
pub(super) const COMMON: &[i64] = &[
    // Files: opening, reading, writing.
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readv,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_tee,
    libc::SYS_truncate,
    libc::SYS_vmsplice,
    libc::SYS_write,
    libc::SYS_writev,
    451, // cachestat
    // Files: names, attributes, watching.
    libc::SYS_chdir,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_getcwd,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_linkat,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_name_to_handle_at,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_removexattr,
    libc::SYS_renameat2,
    libc::SYS_setxattr,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_chroot,
    libc::SYS_fanotify_mark,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    452, // fchmodat2
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
    463, // setxattrat
    458, // listmount
    457, // statmount
    // Waiting for events.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_io_cancel,
    libc::SYS_io_destroy,
    libc::SYS_io_getevents,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_signalfd4,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_mseal,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munlockall,
    libc::SYS_munmap,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_process_mrelease,
    libc::SYS_remap_file_pages,
    453, // map_shadow_stack
    // Processes and threads.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getpgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_gettid,
    libc::SYS_ioprio_get,
    libc::SYS_ioprio_set,
    libc::SYS_kill,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_rr_get_interval,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_yield,
    libc::SYS_seccomp,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_setpgid,
    libc::SYS_setpriority,
    libc::SYS_setsid,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_times,
    libc::SYS_tkill,
    libc::SYS_uname,
    libc::SYS_wait4,
    libc::SYS_waitid,
    456, // futex_requeue
    455, // futex_wait
    454, // futex_wake
    // Users and capabilities.
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getuid,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setuid,
    // Communication with other processes; `socket` itself has conditions.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_mq_getsetattr,
    libc::SYS_mq_notify,
    libc::SYS_mq_open,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_unlink,
    libc::SYS_msgctl,
    libc::SYS_msgget,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_semctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_shmget,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // Time, timers, randomness. Reading the clock adjustment needs no privilege; setting it does.
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getitimer,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_gettime,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
];

/// Allowed where they exist: old calls that later architectures omit.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(super) const ARCHITECTURE: &[i64] = &[
    libc::SYS_renameat,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_sync_file_range,
    333, // io_pgetevents
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_creat,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_ctl_old,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_wait_old,
    libc::SYS_eventfd,
    libc::SYS_fork,
    libc::SYS_futimesat,
    libc::SYS_get_thread_area,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_inotify_init,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_modify_ldt,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_set_thread_area,
    libc::SYS_signalfd,
    libc::SYS_stat,
    libc::SYS_symlink,
    libc::SYS_time,
    libc::SYS_unlink,
    335, // uretprobe
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_vfork,
];

/// Allowed where they exist: calls whose names libc lacks for this architecture.
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: &[i64] = &[
    38,  // renameat
    84,  // sync_file_range
    163, // getrlimit
    164, // setrlimit
    292, // io_pgetevents
];

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::{ARCHITECTURE, COMMON};

    /// Name of a call, and its number if the list gives it.
    type Line = (&'static str, Option<i64>);

    /// Returns the lists of this file as they are written: names, numbers if they are given, and
    /// the architecture of each list (`None` for all).
    fn lists() -> Vec<(Option<&'static str>, Vec<Line>)> {
        let source = include_str!("syscalls.rs").split("#[cfg(test)]").next().unwrap();
        let list = |text: &'static str| {
            text.lines()
                .map(str::trim)
                .filter_map(|line| match line.strip_prefix("libc::SYS_") {
                    Some(name) => Some((name.trim_end_matches(','), None)),
                    None => {
                        let (number, name) = line.split_once(',')?;
                        let name = name.trim().strip_prefix("// ")?;
                        Some((name, Some(number.parse().ok()?)))
                    }
                })
                .collect()
        };
        let (common, rest) = source.split_once("ARCHITECTURE").unwrap();
        let (amd64, arm64) = rest.split_once("ARCHITECTURE").unwrap();
        vec![(None, list(common)), (Some("x86_64"), list(amd64)), (Some("aarch64"), list(arm64))]
    }

    /// From this number on, all architectures have the same calls.
    const ALIKE: i64 = 424;

    /// Compiles C against the kernel's headers for `architecture`; `None` without such a compiler.
    fn compiles(architecture: &str, text: &str) -> Option<Result<(), String>> {
        let own = architecture == std::env::consts::ARCH;
        let name = if own { "gcc".to_owned() } else { format!("{architecture}-linux-gnu-gcc") };
        let child = Command::new(name)
            .args(["-x", "c", "-fsyntax-only", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.ok()?;
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        Some(if output.status.success() { Ok(()) } else { Err(errors) })
    }

    #[test]
    fn names_and_numbers_are_those_of_the_kernels_headers() {
        let lists = lists();
        assert_eq!(lists[0].1.len(), COMMON.len(), "every line of the list is understood");
        assert!(lists.iter().all(|(_, list)| list.len() >= 5));
        for architecture in ["x86_64", "aarch64"] {
            let mut text = "#include <asm/unistd.h>\n".to_owned();
            let own = architecture == std::env::consts::ARCH;
            let values = COMMON.iter().chain(ARCHITECTURE).copied();
            let mut values = values.map(Some).chain(std::iter::repeat(None));
            for (of, list) in &lists {
                if of.is_some_and(|of| of != architecture) {
                    continue;
                }
                for (name, number) in list {
                    // Of the list for this machine and the common one, the values that were compiled.
                    let value = values.next().flatten().filter(|_| own || of.is_none());
                    let is_alike = value.is_some_and(|value| value >= ALIKE);
                    let expected = number.or(value.filter(|_| own || is_alike));
                    // Headers may be older than the newest calls, and than those given by number.
                    let is_newer = is_alike || number.is_some();
                    let missing = if is_newer { "" } else { &*format!("#error {name}\n") };
                    let expected =
                        expected.map_or_else(|| format!("__NR_{name}"), |n| n.to_string());
                    let _ = write!(
                        text,
                        "#ifdef __NR_{name}\n_Static_assert(__NR_{name} == {expected}, \"{name}\");\n\
                         #else\n{missing}#endif\n"
                    );
                }
            }
            match compiles(architecture, &text) {
                Some(outcome) => assert_eq!(outcome, Ok(()), "{architecture}"),
                None => imgctl_base::testing::skip(&format!(
                    "no {architecture}-linux-gnu-gcc: run scripts/setup --cross {architecture}-unknown-linux-gnu"
                )),
            }
            // A referee that accepts everything would be none.
            let wrong = "#include <asm/unistd.h>\n_Static_assert(__NR_read == 1234, \"read\");\n";
            assert!(compiles(architecture, wrong).is_none_or(|outcome| outcome.is_err()));
        }
    }
}
