//! Addresses of the console's pages, which links lead to and its server understands.

/// Makes addresses below a base, which is a path as in `/3f9a1c`.
#[derive(Clone, Copy, Debug)]
pub struct Links<'a>(pub &'a str);

impl Links<'_> {
    pub fn store(self) -> String {
        format!("{}/", self.0)
    }

    pub fn clusters(self) -> String {
        format!("{}/clusters", self.0)
    }

    pub fn runs(self) -> String {
        format!("{}/runs", self.0)
    }

    pub fn plans(self) -> String {
        format!("{}/plans", self.0)
    }

    /// Page of an image; of an index, of one platform.
    pub fn image(self, digest: &str, platform: Option<&str>) -> String {
        let query = platform.map(|platform| format!("?platform={}", encode(platform.as_bytes())));
        format!("{}/images/{}{}", self.0, encode(digest.as_bytes()), query.unwrap_or_default())
    }

    /// Beginning of the addresses of an image's files: the path, percent-encoded, follows.
    pub fn files(self, digest: &str, platform: &str) -> String {
        format!("{}/files/{}/{}/", self.0, encode(digest.as_bytes()), encode(platform.as_bytes()))
    }

    pub fn cluster(self, cluster: &str) -> String {
        format!("{}/clusters/{}", self.0, encode(cluster.as_bytes()))
    }

    pub fn run(self, cluster: &str, run: &str) -> String {
        format!("{}/runs/{}/{}", self.0, encode(cluster.as_bytes()), encode(run.as_bytes()))
    }

    /// Events of a run from byte `at` of its journal on.
    pub fn events(self, cluster: &str, run: &str, at: u64) -> String {
        let (cluster, run) = (encode(cluster.as_bytes()), encode(run.as_bytes()));
        format!("{}/events/{cluster}/{run}?at={at}", self.0)
    }

    /// Events of the list of images: it changed after `at`, in milliseconds since 1970.
    pub fn changes_of_store(self, at: u64) -> String {
        format!("{}/changes/store?at={at}", self.0)
    }

    /// Events of the lists of clusters, runs and plans, of all clusters or of one.
    pub fn changes(self, cluster: Option<&str>, at: u64) -> String {
        let cluster = cluster.map(|name| format!("/{}", encode(name.as_bytes())));
        format!("{}/changes/recorded{}?at={at}", self.0, cluster.unwrap_or_default())
    }

    /// Page of a plan that a cluster keeps.
    pub fn plan(self, cluster: &str, id: &str) -> String {
        format!("{}/plans/{}/{}", self.0, encode(cluster.as_bytes()), encode(id.as_bytes()))
    }

    /// Page of a plan in a file.
    pub fn plan_file(self, number: &str) -> String {
        format!("{}/plans/{}", self.0, encode(number.as_bytes()))
    }
}

/// Percent-encodes what is not unreserved (RFC 3986): the result is one segment of a path, or one value
/// of a query.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_whatever_it_contains() {
        let links = Links("/b");
        assert_eq!(links.run("c", "../x?y#z\"<"), "/b/runs/c/..%2Fx%3Fy%23z%22%3C");
        assert_eq!(links.files("sha256:0", "linux/arm64"), "/b/files/sha256%3A0/linux%2Farm64/");
        assert_eq!(encode(b"\xff \xc3\xa4"), "%FF%20%C3%A4");
    }
}
