//! Addresses and ports as they are written in URLs and in configuration. Must not resolve names.

/// Returns `address:port`, with brackets around an IPv6 address.
pub fn join_port(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}
