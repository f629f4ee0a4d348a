//! The ID maps of a user namespace, written from outside: the ranges granted in `/etc/subuid` and
//! `/etc/subgid`, through newuidmap and newgidmap, or otherwise only the ID of the current user.
//! Does not know about the other namespaces.

use std::path::Path;
use std::process::{Command, Stdio};

use super::passwd;
use imgctl_base::error::{Error, IoContext, Kind, Result};

/// Message for a user whose sandbox has only one ID.
const ONE_ID: &str = "RUN has only one user ID here, so chown and USER fail: grant ranges in \
                      /etc/subuid and /etc/subgid, and install newuidmap (Debian: uidmap)";

/// Maximum number of ranges that newuidmap accepts on the oldest kernels (user_namespaces(7): five
/// lines).
const MOST_RANGES: usize = 4;

/// A range of host IDs: first, count.
type Range = (u32, u32);

/// Maps IDs for process `pid`, which has just entered a new user namespace. Returns a note for the
/// user.
pub(super) fn write(pid: u32) -> Result<Option<String>> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if let (Some(uids), Some(gids)) = (granted("/etc/subuid", uid), granted("/etc/subgid", uid)) {
        helper("newuidmap", pid, uid, &uids)?;
        helper("newgidmap", pid, gid, &gids)?;
        return Ok(None);
    }
    write_one(pid, uid, gid)?;
    Ok(Some(ONE_ID.to_owned()))
}

/// Maps root inside to `uid:gid` outside, and nothing else.
fn write_one(pid: u32, uid: u32, gid: u32) -> Result<()> {
    // Without this, the kernel rejects a gid_map from an ordinary user (user_namespaces(7)).
    put(pid, "setgroups", "deny")?;
    put(pid, "uid_map", &format!("0 {uid} 1"))?;
    put(pid, "gid_map", &format!("0 {gid} 1"))
}

fn put(pid: u32, file: &str, text: &str) -> Result<()> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::write(&path, text).path("write", &path)
}

fn granted(file: &str, uid: u32) -> Option<Vec<Range>> {
    if !["newuidmap", "newgidmap"].iter().all(|name| program(name).is_some()) {
        return None;
    }
    let text = std::fs::read(file).ok()?;
    let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
    let ranges = ranges(&text, uid, passwd::name_of(&passwd, uid));
    (!ranges.is_empty()).then_some(ranges)
}

/// Returns the ranges of a user in a subuid(5) file, which may identify the user by name or number.
fn ranges(text: &[u8], uid: u32, name: Option<&[u8]>) -> Vec<Range> {
    let number = uid.to_string();
    text.split(|&byte| byte == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|&byte| byte == b':');
            let owner = fields.next()?;
            if owner != number.as_bytes() && Some(owner) != name {
                return None;
            }
            let mut id = || std::str::from_utf8(fields.next()?).ok()?.trim().parse::<u32>().ok();
            let range = (id()?, id()?);
            (range.1 > 0).then_some(range)
        })
        .take(MOST_RANGES)
        .collect()
}

fn program(name: &str) -> Option<String> {
    ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"]
        .iter()
        .map(|directory| format!("{directory}/{name}"))
        .find(|path| Path::new(path).is_file())
}

/// Maps root inside to the current user, and IDs from 1 up to the granted ranges.
fn helper(name: &str, pid: u32, own: u32, ranges: &[Range]) -> Result<()> {
    let path = program(name).unwrap_or_else(|| name.to_owned());
    let mut command = Command::new(&path);
    command.args([pid.to_string(), "0".to_owned(), own.to_string(), "1".to_owned()]);
    let mut next: u32 = 1;
    for &(first, count) in ranges {
        command.args([next.to_string(), first.to_string(), count.to_string()]);
        next = next.saturating_add(count);
    }
    let output = command.env_clear().stdin(Stdio::null()).output().path("start", &path)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::new(Kind::Denied, format!("{name} cannot map IDs for RUN: {said}"))
        .hint("check the ranges in /etc/subuid and /etc/subgid, and that newuidmap is setuid root"))
}

/// The reverse map: from owners on this machine to those seen inside the sandbox.
#[derive(Clone, Debug)]
pub struct Inside {
    uids: Vec<Mapped>,
    gids: Vec<Mapped>,
}

/// First ID on this machine, count, first ID inside.
type Mapped = (u32, u32, u32);

impl Inside {
    /// Returns the map of this process's sandboxes; `None` for root, whose sandboxes use the same
    /// IDs.
    pub fn current() -> Option<Self> {
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        if rustix::process::geteuid().is_root() {
            return None;
        }
        let ranges = granted("/etc/subuid", uid.as_raw()).zip(granted("/etc/subgid", uid.as_raw()));
        let (uids, gids) = ranges.unwrap_or_default();
        Some(Self { uids: mapped(uid.as_raw(), &uids), gids: mapped(gid.as_raw(), &gids) })
    }

    /// Returns the owner inside; IDs that no sandbox can have assigned stay unchanged.
    pub fn owner(&self, uid: u32, gid: u32) -> (u32, u32) {
        (inside(&self.uids, uid), inside(&self.gids, gid))
    }
}

fn mapped(own: u32, ranges: &[Range]) -> Vec<Mapped> {
    let mut all = vec![(own, 1, 0)];
    let mut next: u32 = 1;
    for &(first, count) in ranges {
        all.push((first, count, next));
        next = next.saturating_add(count);
    }
    all
}

fn inside(map: &[Mapped], id: u32) -> u32 {
    map.iter()
        .find_map(|&(first, count, inside)| {
            let offset = id.checked_sub(first).filter(|offset| *offset < count)?;
            inside.checked_add(offset)
        })
        .unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_mapped_back() {
        let map = mapped(1000, &[(100_000, 65536)]);
        for (outside, expected) in [(1000, 0), (100_000, 1), (100_999, 1000), (5, 5)] {
            assert_eq!(inside(&map, outside), expected, "{outside}");
        }
    }

    #[test]
    fn ranges_are_found_by_name_and_number() {
        let text =
            b"# c\nann:100000:65536\nbob:200000:10\n1000:300000:5\nann:x:1\nann:1\nann:7:0\n";
        type Case = (u32, Option<&'static [u8]>, &'static [Range]);
        let cases: [Case; 4] = [
            (1000, Some(b"ann"), &[(100_000, 65_536), (300_000, 5)]),
            (1001, Some(b"bob"), &[(200_000, 10)]),
            (1000, None, &[(300_000, 5)]),
            (5, Some(b"eve"), &[]),
        ];
        for (uid, name, expected) in cases {
            assert_eq!(ranges(text, uid, name), expected);
        }
    }
}
