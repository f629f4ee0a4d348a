/* Tries every known way out of the sandbox of RUN. Prints a line for each that is open; exits with 0 if
 * none is. The arguments are directories that the step may write to. Must run on any kernel that imgctl
 * runs on: what a kernel does not have is shut. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static int ways;
static char **writable;

static void is_open(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("OPEN: ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    ways++;
}

static int is_one_of(const char *text, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(text, *list)) return 1;
    return 0;
}

/* System calls. Arguments are invalid, so that one that is let through fails in another way. */
#define CALL(name, ...) {#name, SYS_##name, {__VA_ARGS__}}
static const struct {
    const char *name;
    long number;
    long arguments[5];
} calls[] = {
    CALL(mount, -1, -1, -1, -1, -1), CALL(umount2, -1, -1), CALL(pivot_root, -1, -1), CALL(setns, -1, 0),
    CALL(unshare, CLONE_NEWUSER), CALL(unshare, CLONE_NEWNS), CALL(unshare, CLONE_NEWNET),
    CALL(keyctl, -1, -1, -1, -1, -1), CALL(add_key, -1, -1, -1, -1, -1), CALL(request_key, -1, -1, -1, -1),
    CALL(bpf, -1, -1, -1), CALL(perf_event_open, -1, -1, -1, -1, -1), CALL(userfaultfd, -1),
    CALL(open_by_handle_at, -1, -1, -1), CALL(init_module, -1, 0, -1), CALL(finit_module, -1, -1, -1),
    CALL(delete_module, -1, 0), CALL(kexec_load, -1, -1, -1, -1), CALL(settimeofday, -1, -1),
    CALL(clock_settime, 0, -1), CALL(sethostname, -1, 1), CALL(setdomainname, -1, 1),
    CALL(reboot, 0, 0, 0, 0), CALL(swapon, -1, 0), CALL(swapoff, -1), CALL(syslog, 3, -1, 1),
    CALL(acct, -1), CALL(quotactl, -1, -1, -1, -1), CALL(fanotify_init, -1, 0), CALL(vhangup, 0),
    CALL(lookup_dcookie, -1, -1, -1), CALL(move_pages, 1, -1, -1, -1, -1), CALL(mbind, -1, -1, -1, -1, -1),
    CALL(process_madvise, -1, -1, -1, -1, -1), CALL(pidfd_getfd, -1, 0, 0),
    CALL(open_tree, -1, -1, 1), CALL(move_mount, -1, -1, -1, -1, 0), CALL(fsopen, -1, 0), CALL(fsmount, -1, 0, 0),
    CALL(fsconfig, -1, 0, 0, 0, 0), CALL(fspick, -1, -1, 0), CALL(io_uring_setup, 1, -1),
    CALL(io_uring_enter, -1, 0, 0, 0, 0), CALL(io_uring_register, -1, 0, 0, 0),
#ifdef SYS_mount_setattr
    CALL(mount_setattr, -1, -1, 0, -1, 0),
#endif
#ifdef SYS_kexec_file_load
    CALL(kexec_file_load, -1, -1, 0, 0, 0),
#endif
#ifdef SYS_iopl
    CALL(iopl, 3), CALL(ioperm, 0, 1, 1),
#endif
};

static void try_calls(void) {
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
        const long *a = calls[at].arguments;
        long result = syscall(calls[at].number, a[0], a[1], a[2], a[3], a[4]);
        if (result >= 0 || (errno != EPERM && errno != ENOSYS))
            is_open("system call %s: %s", calls[at].name, result >= 0 ? "done" : strerror(errno));
    }
    long flags[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET};
    for (size_t at = 0; at < sizeof flags / sizeof *flags; at++) {
        long child = syscall(SYS_clone, flags[at] | SIGCHLD, 0, 0, 0, 0);
        if (child == 0) _exit(0);
        if (child > 0) {
            waitpid(child, NULL, 0);
            is_open("clone with %lx", flags[at]);
        }
    }
    int families[] = {AF_ALG, AF_VSOCK};
    for (size_t at = 0; at < sizeof families / sizeof *families; at++)
        if (socket(families[at], SOCK_SEQPACKET, 0) >= 0 || socket(families[at], SOCK_STREAM, 0) >= 0)
            is_open("socket of family %d", families[at]);
}

static void try_devices(const char *directory) {
    const struct { mode_t kind; unsigned major, minor; } devices[] = {
        {S_IFBLK, 8, 0}, {S_IFBLK, 254, 0}, {S_IFBLK, 259, 0}, {S_IFCHR, 1, 1}, {S_IFCHR, 1, 11}, {S_IFCHR, 10, 229},
    };
    for (size_t at = 0; at < sizeof devices / sizeof *devices; at++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/device", directory);
        if (mknod(path, devices[at].kind | 0666, makedev(devices[at].major, devices[at].minor))) continue;
        if (open(path, O_RDONLY | O_NONBLOCK) >= 0 || errno != EACCES)
            is_open("device %u:%u in %s: %s", devices[at].major, devices[at].minor, directory, strerror(errno));
        unlink(path);
    }
}

static int left;

static int try_write(const char *path, const struct stat *stat, int kind, struct FTW *place) {
    char below[8192];
    if (!left--) return 1;
    if (kind == FTW_D || kind == FTW_DNR || kind == FTW_DP) {
        snprintf(below, sizeof below, "%s/probe-%d", path, getpid());
        int file = open(below, O_CREAT | O_WRONLY, 0600);
        if (file >= 0 || !mkdir(below, 0700) || !symlink("x", below)) is_open("create in %s", path);
    } else if (S_ISREG(stat->st_mode)) {
        int file = open(path, O_WRONLY | O_NONBLOCK);
        if (file >= 0) {
            close(file);
            is_open("write to %s", path);
        }
    }
    if ((S_ISREG(stat->st_mode) || S_ISDIR(stat->st_mode)) && !chmod(path, stat->st_mode & 07777))
        is_open("chmod of %s", path);
    (void)place;
    return 0;
}

static int has(const char *options, const char *wanted) {
    size_t length = strlen(wanted);
    for (const char *at = options; at; at = strchr(at, ','), at = at ? at + 1 : at)
        if (!strncmp(at, wanted, length) && (at[length] == ',' || !at[length])) return 1;
    return 0;
}

/* Whether a path leads to the mount with this number, and not to one that covers it. */
static int leads_to(const char *path, int number) {
    char name[64], line[256];
    int found = -1, fd = open(path, O_PATH | O_NOFOLLOW);
    snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "mnt_id: %d", &found);
    if (file) fclose(file);
    close(fd);
    return found == number;
}

/* The mounts: which may be there, with which flags, and that nothing can be written to the others. */
static void try_mounts(void) {
    static const char *const own[] = {"/", "/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", NULL};
    static const char *const files[] = {"9p", "bcachefs", "btrfs", "ceph", "cifs", "erofs", "ext2", "ext3", "ext4", "f2fs",
                                        "fuse", "nfs", "nfs4", "overlay", "ramfs", "squashfs", "tmpfs", "virtiofs", "xfs",
                                        "zfs", NULL};
    static const char *const views[] = {"proc /proc", "sysfs /sys", "devpts /dev/pts", "mqueue /dev/mqueue", NULL};
    FILE *table = fopen("/proc/self/mountinfo", "r");
    char line[8192], path[4096], options[4096], kind[256], view[4400];
    while (table && fgets(line, sizeof line, table)) {
        char *rest = strstr(line, " - ");
        int number;
        if (sscanf(line, "%d %*s %*s %*s %4095s %4095s", &number, path, options) != 3 || !rest) continue;
        if (!leads_to(path, number)) continue;
        sscanf(rest + 3, "%255s", kind);
        int kernels = !strncmp(path, "/proc/", 6) || !strncmp(path, "/dev/", 5);
        snprintf(view, sizeof view, "%s %s", kind, path);
        struct stat stat;
        int directory = !lstat(path, &stat) && S_ISDIR(stat.st_mode);
        if (!is_one_of(kind, files) && !is_one_of(view, views) && !kernels && !S_ISCHR(stat.st_mode))
            is_open("%s at %s", kind, path);
        if (directory && !has(options, "nodev") && strcmp(path, "/dev/pts")) is_open("devices at %s: %s", path, options);
        if (!has(options, "nosuid") && strcmp(path, "/")) is_open("set-user-ID at %s: %s", path, options);
        if (has(options, "ro")) {
            left = 4000;
            if (strncmp(path, "/proc/", 6)) nftw(path, try_write, 16, FTW_PHYS | FTW_MOUNT);
        } else if (!is_one_of(path, own) && !is_one_of(path, (const char *const *)writable)) {
            is_open("%s is writable: %s", path, options);
        }
        try_devices(path);
    }
    if (!table) is_open("no /proc");
}

static void is_empty(const char *path) {
    struct stat stat;
    char byte;
    if (lstat(path, &stat)) return;
    if (!S_ISDIR(stat.st_mode)) {
        int file = open(path, O_RDONLY | O_NONBLOCK);
        if (file >= 0 && read(file, &byte, 1) > 0) is_open("read %s", path);
        return;
    }
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && (entry = readdir(directory)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) is_open("see %s/%s", path, entry->d_name);
}

static void try_kernel_files(void) {
    static const char *const masked[] = {
        "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
        "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
        "/sys/devices/virtual/powercap", "/sys/fs/cgroup", "/sys/kernel/debug", "/sys/kernel/tracing", "/proc/kmsg", NULL};
    for (const char *const *path = masked; *path; path++) is_empty(*path);
    glob_t found;
    if (!glob("/sys/devices/system/cpu/cpu*/thermal_throttle", 0, NULL, &found))
        for (size_t at = 0; at < found.gl_pathc; at++) is_empty(found.gl_pathv[at]);
    static const char *const fixed[] = {
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/kernel/uevent_helper", "/sys/kernel/profiling", NULL};
    for (const char *const *path = fixed; *path; path++)
        if (open(*path, O_WRONLY) >= 0) is_open("write to %s", *path);
}

/* Other processes, inherited descriptors, groups and privileges. */
static void try_process(void) {
    struct stat own, other;
    stat("/", &own);
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    char path[512], line[512];
    while (directory && (entry = readdir(directory))) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "/proc/%s/root/", entry->d_name);
        if (!stat(path, &other) && (other.st_dev != own.st_dev || other.st_ino != own.st_ino)) is_open("%s", path);
    }
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if ((!directory || fd != dirfd(directory)) && !lstat(path, &other)) is_open("descriptor %d", fd);
    }
    gid_t groups[64];
    int count = getgroups(64, groups), found = 0;
    for (int at = 0; at < count; at++) found |= groups[at] == getegid();
    FILE *file = fopen("/proc/self/setgroups", "r");
    int denied = file && fgets(line, sizeof line, file) && !strncmp(line, "deny", 4);
    if (!found && !denied) is_open("the primary group %d is no supplementary group", (int)getegid());
    file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long value = strtoull(strchr(line, '\t') ? strchr(line, '\t') : "0", NULL, 16);
        if (!strncmp(line, "CapBnd", 6) && value & ~0xa80425fbULL) is_open("%s", line);
        if (!strncmp(line, "NoNewPrivs", 10) && value != 1) is_open("%s", line);
        if (!strncmp(line, "Seccomp:", 8) && value != 2) is_open("%s", line);
    }
}

int main(int count, char **arguments) {
    (void)count;
    writable = arguments + 1;
    umask(0);
    try_process();
    try_calls();
    try_mounts();
    try_kernel_files();
    return ways > 0;
}
