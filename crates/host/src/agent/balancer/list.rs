//! The server list file: which servers exist, and which are temporarily out of service.
//!
//! `#out ADDRESS:PORT SECONDS` takes a server out of service for that time after the file was
//! written, because its writer may never come back. A balancer that does not know the line skips it
//! as a comment, and therefore does not find the server in the list.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use imgctl_base::error::{Error, IoContext, Result};

/// Maximum size of the server list, in bytes.
const LONGEST_FILE: u64 = 64 * 1024;
/// Maximum time that a server stays out of service, whatever the file says.
const LONGEST_OUT: Duration = Duration::from_secs(60 * 60);
const OUT: &str = "#out ";

/// A server as listed in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) address: String,
    /// Remaining time out of service.
    pub(super) out: Option<Duration>,
}

/// Modification stamp that distinguishes one version of a file from another.
pub(super) type Stamp = (SystemTime, u64, u64);

/// Returns the stamp of the file without reading its content.
pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.ino(), found.len()))
}

/// Reads the list: one `address:port` per line. Empty lines and other `#` comments are skipped.
pub(super) fn read(path: &Path) -> Result<Vec<Listed>> {
    let found = std::fs::metadata(path).path("read", path)?;
    if found.len() > LONGEST_FILE {
        return Err(Error::usage(format!("{} is too long for a list of servers", path.display())));
    }
    // A modification time in the future (the clock was set back) counts as just now.
    let age = found.modified().ok().and_then(|time| time.elapsed().ok());
    let text = std::fs::read_to_string(path).path("read", path)?;
    let mut list: Vec<Listed> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let wrong = || {
            Error::usage(format!("{}:{}: `{line}` is not address:port", path.display(), number + 1))
        };
        let (address, seconds) = match line.strip_prefix(OUT) {
            Some(rest) => {
                let (address, seconds) = rest.trim().split_once(' ').ok_or_else(wrong)?;
                let seconds: u64 = seconds.trim().parse().map_err(|_| wrong())?;
                (address, Some(Duration::from_secs(seconds)))
            }
            None if line.is_empty() || line.starts_with('#') => continue,
            None => (line, None),
        };
        address.parse::<SocketAddr>().map_err(|_| wrong())?;
        let out = seconds
            .map(|wanted| wanted.min(LONGEST_OUT).saturating_sub(age.unwrap_or_default()))
            .filter(|left| !left.is_zero());
        if list.iter().all(|listed| listed.address != address) {
            let address = address.to_owned();
            list.push(Listed { address, out });
        }
    }
    if list.is_empty() {
        return Err(Error::usage(format!("{} lists no servers", path.display()))
            .hint("write one address:port per line"));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_out_for_as_long_as_the_file_says_and_no_longer() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers");
        std::fs::write(
            &file,
            "# control planes\n10.0.0.11:6443\n#out 10.0.0.12:6443 600\n\n#out [fd00::3]:6443 999999\n",
        )
        .unwrap();
        let list = read(&file).unwrap();
        let addresses: Vec<&str> = list.iter().map(|one| one.address.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.11:6443", "10.0.0.12:6443", "[fd00::3]:6443"]);
        assert_eq!(list[0].out, None);
        let out = list[1].out.unwrap();
        assert!(out > Duration::from_secs(500) && out <= Duration::from_secs(600));
        assert!(list[2].out.unwrap() <= LONGEST_OUT);
        // The writer never came back.
        let then = SystemTime::now() - Duration::from_secs(601);
        std::fs::File::open(&file).unwrap().set_modified(then).unwrap();
        assert_eq!(read(&file).unwrap()[1].out, None);
        for wrong in ["10.0.0.1\n", "#out 10.0.0.1:6443\n", "#out x:1 5\n", "\n"] {
            std::fs::write(&file, wrong).unwrap();
            assert!(read(&file).is_err(), "{wrong}");
        }
    }
}
