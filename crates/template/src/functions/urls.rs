//! Addresses of the web, divided and joined as Go's `net/url` does. Must not know values.

use std::fmt::Write as _;

/// The parts of an address.
#[derive(Default)]
pub(super) struct Url {
    pub(super) scheme: String,
    pub(super) opaque: String,
    /// As it is written in the address.
    pub(super) userinfo: String,
    pub(super) host: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) fragment: String,
}

impl Url {
    /// Divides an address. The error says what Go refuses.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("unable to parse url: {what}");
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err(wrong("invalid control character in URL"));
        }
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let mut url = Self { fragment: decoded(fragment)?, ..Self::default() };
        let rest = match scheme(rest) {
            Some(("", _)) => return Err(wrong("missing protocol scheme")),
            Some((scheme, rest)) => {
                url.scheme = scheme.to_ascii_lowercase();
                rest
            }
            None => rest,
        };
        let (mut rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        query.clone_into(&mut url.query);
        if !rest.starts_with('/') {
            if !url.scheme.is_empty() {
                rest.clone_into(&mut url.opaque);
                return Ok(url);
            }
            if rest.split('/').next().is_some_and(|first| first.contains(':')) {
                return Err(wrong("first path segment in URL cannot contain colon"));
            }
        }
        let has_authority = !url.scheme.is_empty() || !rest.starts_with("///");
        if let Some(after) = rest.strip_prefix("//").filter(|_| has_authority) {
            let (authority, path) = after.split_at(after.find('/').unwrap_or(after.len()));
            let (userinfo, host) = authority.rsplit_once('@').unwrap_or(("", authority));
            let end = host.rfind(']').map_or(0, |end| end + 1);
            if let Some(port) = host[end..].rsplit_once(':').map(|(_, port)| port)
                && !port.bytes().all(|b| b.is_ascii_digit())
            {
                return Err(wrong(&format!("invalid port {:?} after host", format!(":{port}"))));
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
            if !userinfo.chars().all(plain) {
                return Err(wrong("net/url: invalid userinfo"));
            }
            if host.contains(' ') {
                return Err(wrong("invalid character \" \" in host name"));
            }
            userinfo.clone_into(&mut url.userinfo);
            url.host = decoded(host)?;
            rest = path;
        }
        url.path = decoded(rest)?;
        Ok(url)
    }

    /// Returns the host without its port.
    pub(super) fn hostname(&self) -> &str {
        let name = match self.host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => &self.host,
        };
        name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name)
    }

    /// Joins the parts.
    pub(super) fn joined(&self) -> String {
        let mut out = String::new();
        if !self.scheme.is_empty() {
            let _ = write!(out, "{}:", self.scheme);
        }
        if self.opaque.is_empty() {
            if !self.host.is_empty()
                || !self.userinfo.is_empty()
                || !(self.scheme.is_empty() || self.path.is_empty())
            {
                out.push_str("//");
            }
            if !self.userinfo.is_empty() {
                let _ = write!(out, "{}@", self.userinfo);
            }
            out.push_str(&escaped(&self.host, "-_.~!$&'()*+,;=:[]<>\""));
            let path = escaped(&self.path, "-_.~$&+,/:;=@!'()*");
            if !path.is_empty() && !path.starts_with('/') && !self.host.is_empty() {
                out.push('/');
            }
            if out.is_empty() && path.split('/').next().is_some_and(|first| first.contains(':')) {
                out.push_str("./");
            }
            out.push_str(&path);
        } else {
            out.push_str(&self.opaque);
        }
        if !self.query.is_empty() {
            let _ = write!(out, "?{}", self.query);
        }
        if !self.fragment.is_empty() {
            let _ = write!(out, "#{}", escaped(&self.fragment, "-_.~$&+,/:;=?@!()*'"));
        }
        out
    }
}

/// Splits off a scheme; an empty one is an error.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)))?;
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == ':');
    (starts && text[end..].starts_with(':')).then(|| (&text[..end], &text[end + 1..]))
}

/// Replaces `%41` by its character.
fn decoded(text: &str) -> Result<String, String> {
    if !text.contains('%') {
        return Ok(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let is_hex = |digits: &&str| digits.bytes().all(|b| b.is_ascii_hexdigit());
        let byte = digits.filter(is_hex).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let byte = byte.ok_or_else(|| {
            let wrong: String =
                format!("%{}", String::from_utf8_lossy(after)).chars().take(3).collect();
            format!("unable to parse url: invalid URL escape {wrong:?}")
        })?;
        bytes.push(byte);
        rest = &after[2..];
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Escapes all characters but letters, digits and `kept`.
fn escaped(text: &str, kept: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || (c.is_ascii() && kept.contains(c)) {
            out.push(c);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
