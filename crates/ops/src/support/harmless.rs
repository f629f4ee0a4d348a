//! Which words and values are no secrets, by their shape alone: numbers, times, versions, addresses, paths,
//! digests, names of Kubernetes' objects, and the words of logs. Everything else could be a secret.
//!
//! Knows nothing of where a word stands.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

/// Words of logs and settings: those of this program and its documents, of Kubernetes, of container runtimes
/// and of systemd, and what technical English is made of. No names.
static WORDS: LazyLock<HashSet<&'static str>> =
    LazyLock::new(|| include_str!("words.txt").lines().collect());

/// The last labels of host names.
const DOMAINS: [&str; 24] = [
    "com",
    "org",
    "net",
    "io",
    "dev",
    "cn",
    "de",
    "eu",
    "uk",
    "us",
    "fr",
    "jp",
    "in",
    "ru",
    "gov",
    "edu",
    "local",
    "internal",
    "lan",
    "cluster",
    "svc",
    "localdomain",
    "example",
    "test",
];

/// The characters of the random parts of Kubernetes' names.
const RANDOM: &str = "bcdfghjklmnpqrstvwxz2456789";

/// Words that are not letters alone.
const WITH_DIGITS: [&str; 12] = [
    "k3s", "k8s", "x86", "x86_64", "amd64", "arm64", "armv7", "s390x", "ppc64le", "i386", "utf8",
    "x509",
];

/// Units behind a number.
const UNITS: [&str; 30] = [
    "%", "ns", "us", "µs", "ms", "s", "m", "h", "d", "w", "y", "b", "k", "g", "t", "ki", "mi",
    "gi", "ti", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "hz", "mhz", "ghz", "x",
];

/// What becomes of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Harmless,
    /// An identifier of random digits, or a key: replaced by a name that is the same for the same one.
    Identifier(String),
    Unknown,
}

/// What is harmless in one archive.
#[derive(Default)]
pub(super) struct Harmless {
    /// Names of the cluster's own objects.
    names: HashSet<String>,
    /// Differs from archive to archive, so that nobody can try identifiers.
    hasher: RandomState,
}

impl Harmless {
    /// Adds a name that is no secret.
    pub(super) fn name(&mut self, name: &str) {
        self.names.insert(name.to_owned());
    }

    /// Adds the names in the tables of kubectl: those of objects, namespaces and Nodes.
    pub(super) fn names_of_tables(&mut self, text: &str) {
        const COLUMNS: [&str; 4] = ["NAMESPACE", "NAME", "NODE", "OBJECT"];
        let mut columns: Vec<usize> = Vec::new();
        for line in text.lines() {
            if line.starts_with("NAME") {
                let starts = line.split_whitespace().filter(|word| COLUMNS.contains(word));
                columns = starts.filter_map(|word| column(line, word)).collect();
            } else if line.is_empty() || line.starts_with('$') {
                columns.clear();
            }
            for start in columns.iter().filter(|_| !line.starts_with("NAME")) {
                let cell = line.get(*start..).and_then(|rest| rest.split_whitespace().next());
                let name = cell.map(|cell| cell.rsplit('/').next().unwrap_or(cell));
                let is_name = |name: &&str| {
                    all(name, 1, 253, |b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
                };
                if let Some(name) = name.filter(is_name) {
                    self.name(name);
                }
            }
        }
    }

    /// Judges one word of a text.
    pub(super) fn judge(&self, word: &str) -> Verdict {
        let letters = word.chars().filter(|c| c.is_alphanumeric()).count();
        let is_harmless = letters == 0
            || word.chars().count() == 1
            || self.names.contains(word)
            || is_value(word)
            || is_name(word)
            || is_host(word)
            || is_image(word)
            || is_mode(word);
        if is_harmless {
            return Verdict::Harmless;
        }
        if is_identifier(word) {
            // `crictl` lists the beginning of what logs have whole.
            let short = word.get(..12).unwrap_or(word);
            let number = self.hasher.hash_one(short) & 0xff_ffff;
            return Verdict::Identifier(format!("id-{number:06x}"));
        }
        Verdict::Unknown
    }

    /// Returns whether a value is harmless whatever its name is.
    pub(super) fn is_plain_value(&self, value: &str) -> bool {
        let is_switch =
            ["true", "false", "null", "yes", "no", "on", "off", "none"].contains(&value);
        let is_long_number = value.len() > 5 && value.bytes().all(|byte| byte.is_ascii_digit());
        let is_path = value.starts_with('/')
            && value
                .split('/')
                .all(|part| part.is_empty() || self.judge(part) == Verdict::Harmless);
        is_switch || is_path || (is_value(value) && !is_long_number) || self.names.contains(value)
    }
}

/// Returns where a column of a table begins.
fn column(header: &str, name: &str) -> Option<usize> {
    let ends = |at: usize| header[at + name.len()..].chars().next().is_none_or(char::is_whitespace);
    let begins = |at: usize| at == 0 || header[..at].ends_with(' ');
    header.match_indices(name).map(|(at, _)| at).find(|at| begins(*at) && ends(*at))
}

/// Numbers, times, addresses, versions and digests.
fn is_value(word: &str) -> bool {
    is_number(word) || is_time(word) || is_address(word) || is_version(word) || is_digest(word)
}

fn all(text: &str, shortest: usize, longest: usize, of: impl Fn(u8) -> bool) -> bool {
    (shortest..=longest).contains(&text.len()) && text.bytes().all(of)
}

fn digits(text: &str, longest: usize) -> bool {
    all(text, 1, longest, |byte| byte.is_ascii_digit())
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// `12`, `-1.5`, `80%`, `3.5GiB`, `1h2m3.5s`, `0x1f`, `5d21h`, `12,345`.
fn is_number(word: &str) -> bool {
    let word = word.strip_prefix(['+', '-', '~']).unwrap_or(word);
    if let Some(rest) = word.strip_prefix("0x") {
        return all(rest, 1, 16, is_hex);
    }
    let word = word.strip_suffix("/s").unwrap_or(word);
    let (mut rest, mut parts) = (word, 0);
    while !rest.is_empty() && parts < 6 {
        let number = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if number == 0 || number > 13 {
            return false;
        }
        rest = &rest[number..];
        if let Some(behind) = rest.strip_prefix(['.', ',']) {
            let decimals =
                behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            if decimals == 0 || decimals > 9 {
                return false;
            }
            rest = &behind[decimals..];
        }
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (unit, behind) = rest.split_at(unit);
        if !unit.is_empty() && !UNITS.contains(&unit.to_lowercase().as_str()) {
            return false;
        }
        rest = behind;
        parts += 1;
    }
    rest.is_empty() && parts > 0
}

/// `2026-01-02T03:04:05.6Z`, `2026-01-02`, `03:04:05`, and the `I0102` of Kubernetes' logs.
fn is_time(word: &str) -> bool {
    if let Some(rest) = word.strip_prefix(['I', 'W', 'E', 'F']) {
        return all(rest, 4, 4, |byte| byte.is_ascii_digit());
    }
    let is_clock = |text: &str| {
        let text = text.strip_suffix('Z').unwrap_or(text);
        let text = text.rsplit_once(['+', '-']).map_or(text, |(time, zone)| {
            if zone.len() <= 5 && zone.bytes().all(|byte| byte.is_ascii_digit() || byte == b':') {
                time
            } else {
                text
            }
        });
        let (text, fraction) = text.split_once(['.', ',']).unwrap_or((text, "0"));
        let parts: Vec<&str> = text.split(':').collect();
        digits(fraction, 9)
            && (2..=3).contains(&parts.len())
            && parts.iter().all(|part| digits(part, 2))
    };
    let is_date = |text: &str| {
        let parts: Vec<&str> = text.split(['-', '/']).collect();
        parts.len() == 3 && parts[0].len() == 4 && parts.iter().all(|part| digits(part, 4))
    };
    match word.split_once(['T', '_']) {
        Some((date, clock)) if is_date(date) => is_clock(clock),
        _ => is_date(word) || is_clock(word),
    }
}

/// An address, with a port or a prefix.
fn is_address(word: &str) -> bool {
    if word.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let (address, prefix) = word.split_once('/').unwrap_or((word, "0"));
    let (address, zone) = address.split_once('%').unwrap_or((address, "eth0"));
    let address =
        address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    digits(prefix, 3) && is_name(zone) && address.parse::<IpAddr>().is_ok()
}

/// `v1.30.2`, `1.30.2+k3s1`, `6.1.0-18-amd64`, `1.7.12~ds1-2`.
fn is_version(word: &str) -> bool {
    let word = word.trim_start_matches(['v', '=', '~', '^', '<', '>']);
    let parts: Vec<&str> = word.split(['.', '-', '+', '~', '_', ':']).collect();
    let is_part = |part: &str| {
        let letters = part.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = part.len() - letters.len();
        digits(part, 8)
            || (number <= 4 && (is_word(letters) || all(letters, 1, 4, |b| b.is_ascii_lowercase())))
            || WITH_DIGITS
                .iter()
                .any(|word| part.strip_prefix(word).is_some_and(|end| end.len() < 2))
    };
    (2..=9).contains(&parts.len())
        && digits(parts[0], 5)
        && digits(parts[1], 5)
        && parts.iter().skip(2).all(|part| is_part(part))
}

/// `sha256:…` as images have it: a digest, which is public.
fn is_digest(word: &str) -> bool {
    word.strip_prefix("sha256:").is_some_and(|hex| all(hex, 64, 64, is_hex))
        || word.strip_prefix("sha512:").is_some_and(|hex| all(hex, 128, 128, is_hex))
}

/// Hexadecimal digits, or a UUID.
fn is_identifier(word: &str) -> bool {
    let parts: Vec<&str> = word.split(['-', '_']).collect();
    let is_uuid = parts.len() == 5
        && parts
            .iter()
            .zip([8, 4, 4, 4, 12])
            .all(|(part, length)| all(part, length, length, is_hex));
    is_uuid || all(word, 12, 256, is_hex)
}

/// A word of [`WORDS`], whatever its case is.
fn is_word(word: &str) -> bool {
    word.len() <= 32
        && word.bytes().all(|byte| byte.is_ascii_alphabetic())
        && WORDS.contains(word.to_ascii_lowercase().as_str())
}

/// Words joined by hyphens, dots and capitals, as names of objects, fields and files are, with small numbers
/// and the random endings that Kubernetes gives: `kube-proxy-x2k4f`, `CrashLoopBackOff`, `etcd.service`.
fn is_name(word: &str) -> bool {
    // What people make of such words and a number is a secret more often than a name.
    let lower = word.to_ascii_lowercase();
    let has_number = word.bytes().any(|byte| byte.is_ascii_digit());
    if has_number
        && ["secret", "passw", "token", "credential"].iter().any(|part| lower.contains(part))
    {
        return false;
    }
    let parts: Vec<&str> = word.split(['-', '_', '.']).collect();
    let named = parts.iter().rposition(|part| is_part(part)).map_or(0, |last| last + 1);
    let endings = &parts[named..];
    let is_ending =
        |part: &str| matches!(part.len(), 5 | 8..=10) && part.chars().all(|c| RANDOM.contains(c));
    parts[..named].iter().all(|part| part.is_empty() || is_part(part))
        && (endings.is_empty()
            || (endings.len() <= 2
                && parts[..named].iter().any(|part| is_word(part))
                && endings.iter().all(|part| is_ending(part))))
        && parts.iter().any(|part| !part.is_empty())
}

/// `kube`, `node1`, `v1beta1`, `12`, `BackOff`.
fn is_part(part: &str) -> bool {
    let is_small_number = part.len() <= 6 && is_number(part);
    if is_word(part) || is_small_number || part.len() == 1 || WITH_DIGITS.contains(&part) {
        return true;
    }
    let letters = part.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = part.len() - letters.len();
    if number <= 3 && (is_word(letters) || (letters == "v" && number > 0) || is_camel(letters)) {
        return true;
    }
    let api =
        part.strip_prefix('v').map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    api.is_some_and(|rest| {
        ["alpha1", "alpha2", "alpha3", "beta1", "beta2", "beta3", "beta4"].contains(&rest)
    })
}

/// Words that begin with capitals: `ImagePullBackOff`, `podCIDR`. Random letters are none, because their
/// pieces are short.
fn is_camel(text: &str) -> bool {
    if !text.bytes().all(|byte| byte.is_ascii_alphabetic()) || text.len() > 64 {
        return false;
    }
    let bytes = text.as_bytes();
    let mut starts = vec![0];
    for at in 1..bytes.len() {
        let (before, here) = (bytes[at - 1].is_ascii_uppercase(), bytes[at].is_ascii_uppercase());
        let next_is_small = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
        if here && (!before || next_is_small) {
            starts.push(at);
        }
    }
    starts.push(bytes.len());
    let pieces: Vec<&str> = starts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
    let is_long_enough = text.len() * 2 >= pieces.len() * 7 || pieces.len() <= 2;
    pieces.len() > 1 && is_long_enough && pieces.iter().all(|piece| is_word(piece))
}

/// `registry.example.com:5000`.
fn is_host(word: &str) -> bool {
    let (host, port) = word.rsplit_once(':').unwrap_or((word, "0"));
    let labels: Vec<&str> = host.trim_end_matches('.').split('.').collect();
    let is_label =
        |label: &&str| is_name(label) || all(label, 1, 15, |byte| byte.is_ascii_lowercase());
    digits(port, 5)
        && labels.len() > 1
        && labels.last().is_some_and(|last| DOMAINS.contains(last))
        && labels.iter().all(is_label)
}

/// `-rw-r--r--`, as `ls` shows modes.
fn is_mode(word: &str) -> bool {
    matches!(word.len(), 10 | 11) && word.chars().all(|c| "-dlbcpsrwxStT.+".contains(c))
}

/// `docker.io/labring/kubernetes:v1.30.2`, with a digest or without.
fn is_image(word: &str) -> bool {
    let (name, digest) = match word.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (word, None),
    };
    let Some((registry, path)) = name.split_once('/') else { return false };
    let (path, tag) = match path.rsplit_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (path, None),
    };
    let is_registry =
        is_host(registry) || is_address(registry) || registry.starts_with("localhost");
    let is_component = |part: &str| {
        is_name(part) || all(part, 2, 20, |byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    is_registry
        && path.split('/').all(is_component)
        && tag.is_none_or(|tag| is_version(tag) || is_name(tag))
        && digest.is_none_or(is_digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_logs_are_made_of_is_harmless() {
        let harmless = Harmless::default();
        for word in [
            "Pod",
            "CrashLoopBackOff",
            "ImagePullBackOff",
            "kube-proxy-x2k4f",
            "coredns-5d78c9869d-bx7zt",
            "etcd.service",
            "10.0.0.1:6443",
            "fe80::1/64",
            "[::1]:443",
            "10.244.0.0/16",
            "v1.30.2",
            "1.30.2+k3s1",
            "6.1.0-18-amd64",
            "2026-01-02T03:04:05.678Z",
            "03:04:05",
            "I0102",
            "80%",
            "3.5GiB",
            "1h2m3.5s",
            "node.kubernetes.io",
            "registry.example.com:5000",
            "docker.io/labring/etcd:v3.5.9",
            "sha256:4a1d98d62aaadd8ad2a4e7e6b17d84fc2dd108e0201511265e3ff742ae4ba153",
            "kube-system",
            "node1",
            "eth0",
            "podCIDR",
            "MountVolume.SetUp",
            "kubelet.go",
            "--",
            "●",
            "0x1f",
            "5d21h",
            "-1",
        ] {
            assert_eq!(harmless.judge(word), Verdict::Harmless, "{word}");
        }
    }

    #[test]
    fn what_could_be_a_secret_is_unknown() {
        let harmless = Harmless::default();
        for word in [
            "hunter22",
            "Sup3rS3cret",
            "geheim",
            "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
            "glpat-xxYYzz112233445566",
            "AKIAIOSFODNN7EXAMPLE",
            "wJalrXUtnFEMI",
            "bPxRfiCYEXAMPLEKEY",
            "xoxb-123456789012-AbCdEfGhIjKl",
            "dXNlcjpwYXNz",
            "$2y$05$abcdefgh",
            "abcdef.0123456789abcdef",
            "QWxhZGRpbjpvcGVu",
            "OperatorSecret-77",
            "password1",
            "aGVsbG8",
            "p@ssw0rd",
            "K10abc",
            "tr0ub4dor",
            "xkcdq",
        ] {
            assert_eq!(harmless.judge(word), Verdict::Unknown, "{word}");
        }
    }

    #[test]
    fn identifiers_are_named_the_same_and_cannot_be_read() {
        let harmless = Harmless::default();
        let whole = "4a1d98d62aaadd8ad2a4e7e6b17d84fc2dd108e0201511265e3ff742ae4ba153";
        let Verdict::Identifier(name) = harmless.judge(whole) else { panic!("{whole}") };
        assert!(name.len() == 9 && !whole.contains(&name[3..]), "{name}");
        assert_eq!(harmless.judge(&whole[..13]), Verdict::Identifier(name));
        let uuid = "0b1e0c2f-4a1d-98d6-2aaa-dd8ad2a4e7e6";
        assert!(matches!(harmless.judge(uuid), Verdict::Identifier(_)));
    }

    #[test]
    fn names_of_objects_are_known_from_tables() {
        let mut harmless = Harmless::default();
        harmless.names_of_tables(
            "$ kubectl get pods -A -o wide\nNAMESPACE   NAME     READY   NODE\nacme        wobbly   1/1     zork\n\n\
             NAMESPACE   LAST SEEN   TYPE     OBJECT        MESSAGE\nacme        5m          Normal   pod/fizzle    Sup3r\n",
        );
        for (name, known) in
            [("acme", true), ("wobbly", true), ("zork", true), ("fizzle", true), ("Sup3r", false)]
        {
            assert_eq!(harmless.judge(name) == Verdict::Harmless, known, "{name}");
        }
    }

    #[test]
    fn the_words_are_a_sorted_list() {
        let words: Vec<&str> = include_str!("words.txt").lines().collect();
        assert!(words.is_sorted() && words.len() > 4000);
        assert!(words.iter().all(|word| all(word, 2, 32, |byte| byte.is_ascii_lowercase())));
    }
}
