//! The network of a sandbox: its loopback interface, and the user-mode helper that connects it to
//! the outside. Does not know about the host's interfaces or addresses.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::fs::MemfdFlags;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use imgctl_base::error::{Error, IoContext, Result};

/// The program that connects a sandbox's network to the outside.
const HELPER: &str = "slirp4netns";
/// Address of the name server that the helper provides (slirp4netns(1)).
const NAME_SERVER: &str = "10.0.2.3";
/// Maximum length of the helper's error output to show, in bytes.
const COMPLAINT: u64 = 512;

/// Search path for the helper. Not `PATH`, which only the command-line layer reads.
const DIRECTORIES: [&str; 6] =
    ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Brings up `lo` of the current network namespace with a netlink request (rtnetlink(7)).
pub(super) fn raise_loopback() -> Result<()> {
    let doing = || "cannot bring up the loopback interface of the sandbox".to_owned();
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE is 0
    )
    .doing(doing)?;
    let request = loopback_request();
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &kernel).doing(doing)?;
    let mut reply = [0; 128];
    let (length, _) = rustix::net::recv(&socket, &mut reply, RecvFlags::empty()).doing(doing)?;
    // nlmsghdr (16 bytes), followed by the error number: 0 or negative.
    let error = reply
        .get(16..20)
        .filter(|_| length >= 20)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(-1, i32::from_ne_bytes);
    if error == 0 {
        return Ok(());
    }
    Err(Error::io(doing(), std::io::Error::from_raw_os_error(-error)))
}

/// RTM_NEWLINK for interface 1, which is always `lo`: sets IFF_UP.
fn loopback_request() -> Vec<u8> {
    const RTM_NEWLINK: u16 = 16;
    const NLM_F_REQUEST_ACK: u16 = 1 | 4;
    const IFF_UP: u32 = 1;
    let mut message = Vec::with_capacity(32);
    message.extend_from_slice(&32_u32.to_ne_bytes());
    message.extend_from_slice(&RTM_NEWLINK.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes()); // sequence number
    message.extend_from_slice(&0_u32.to_ne_bytes()); // to the kernel
    message.extend_from_slice(&[0; 4]); // any address family, any hardware type
    message.extend_from_slice(&1_u32.to_ne_bytes()); // interface
    message.extend_from_slice(&IFF_UP.to_ne_bytes()); // flags
    message.extend_from_slice(&IFF_UP.to_ne_bytes()); // which of them to change
    message
}

/// Returns the path of the helper, if it is installed.
pub(super) fn installed() -> Option<String> {
    DIRECTORIES
        .iter()
        .map(|directory| format!("{directory}/{HELPER}"))
        .find(|path| Path::new(path).is_file())
}

/// A running slirp4netns. It ends when this value is dropped or this process ends, because it
/// watches the pipe that is its standard input.
pub(super) struct Helper {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Helper {
    /// Connects the network namespace of process `pid`; the error is a message for the user.
    pub(super) fn start(pid: u32) -> Result<Self, String> {
        let program =
            installed().ok_or_else(|| format!("install {HELPER}, or use --network=host"))?;
        let failed =
            |why: String| format!("{HELPER} does not work here ({why}); see --network=host");
        // In memory: a pipe that is never read would eventually block the helper.
        let complaints = rustix::fs::memfd_create(HELPER, MemfdFlags::CLOEXEC)
            .map_err(|error| failed(error.to_string()))?;
        let mut complaints = File::from(complaints);
        let stderr = complaints.try_clone().map_err(|error| failed(error.to_string()))?;
        // Services that listen on the host's loopback trust their clients, so they must stay
        // unreachable.
        let mut child = Command::new(&program)
            .args(["--configure", "--mtu=65520", "--disable-host-loopback"])
            .args(["--ready-fd=1", "--exit-fd=0", &pid.to_string(), "tap0"])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let stdin = child.stdin.take();
        let ready = child.stdout.take().map(|mut pipe| pipe.read_exact(&mut [0]));
        let helper = Self { child, stdin };
        if matches!(ready, Some(Ok(()))) {
            return Ok(helper);
        }
        drop(helper);
        let mut text = Vec::new();
        let _ = complaints.rewind();
        let _ = complaints.take(COMPLAINT).read_to_end(&mut text);
        Err(failed(String::from_utf8_lossy(&text).trim().replace('\n', "; ")))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a resolv.conf with the helper's name server in place of the existing ones.
pub(super) fn with_name_server(text: &[u8]) -> Vec<u8> {
    let mut out = format!("nameserver {NAME_SERVER}\n").into_bytes();
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        if !line.trim_ascii_start().starts_with(b"nameserver") {
            out.extend_from_slice(line);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_replaced_and_the_rest_stays() {
        let text = b"search a b\nnameserver 127.0.0.53\n nameserver ::1\noptions edns0";
        assert_eq!(with_name_server(text), b"nameserver 10.0.2.3\nsearch a b\noptions edns0");
    }

    #[test]
    fn the_netlink_message_has_the_length_it_claims() {
        let message = loopback_request();
        assert_eq!(message.len(), 32);
        assert_eq!(message[..4], 32_u32.to_ne_bytes());
    }
}
