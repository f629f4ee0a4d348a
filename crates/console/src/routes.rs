//! Paths and queries of requests. Must not know what pages show.

use crate::changes::Subject;

/// What is asked for, below the base. Segments are decoded: they may contain anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Store,
    Image {
        digest: String,
    },
    /// A path inside an image: components between slashes, each decoded.
    Files {
        digest: String,
        platform: String,
        path: Vec<u8>,
    },
    Clusters,
    Cluster {
        name: String,
    },
    Runs,
    Run {
        cluster: String,
        run: String,
    },
    Events {
        cluster: String,
        run: String,
    },
    /// Events of a list.
    Changes(Subject),
    Plans,
    Plan {
        cluster: String,
        id: String,
    },
    PlanFile {
        number: usize,
    },
}

impl Route {
    /// Reads a path behind the base; `None` if it leads nowhere.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        if path.is_empty() || path == "/" {
            return Some(Self::Store);
        }
        let mut parts = path.strip_prefix('/')?.splitn(4, '/');
        let kind = parts.next()?;
        let mut next = || parts.next().map(text);
        // Present and readable, absent, or present and unreadable.
        let (first, second) = (next(), next());
        let rest = parts.next();
        if let (Some(None), _) | (_, Some(None)) = (&first, &second) {
            return None;
        }
        let (first, second) = (first.flatten(), second.flatten());
        if kind == "files" {
            let path =
                rest.unwrap_or_default().split('/').map(bytes).collect::<Option<Vec<_>>>()?;
            return Some(Self::Files { digest: first?, platform: second?, path: path.join(&b'/') });
        }
        if rest.is_some() {
            return None;
        }
        Some(match (kind, first, second) {
            ("images", Some(digest), None) => Self::Image { digest },
            ("clusters", None, None) => Self::Clusters,
            ("clusters", Some(name), None) => Self::Cluster { name },
            ("runs", None, None) => Self::Runs,
            ("runs", Some(cluster), Some(run)) => Self::Run { cluster, run },
            ("events", Some(cluster), Some(run)) => Self::Events { cluster, run },
            ("changes", Some(what), None) if what == "store" => Self::Changes(Subject::Store),
            ("changes", Some(what), cluster) if what == "recorded" => {
                Self::Changes(Subject::Recorded(cluster))
            }
            ("plans", None, None) => Self::Plans,
            ("plans", Some(number), None) => Self::PlanFile { number: number.parse().ok()? },
            ("plans", Some(cluster), Some(id)) => Self::Plan { cluster, id },
            _ => return None,
        })
    }
}

/// Returns the decoded value of a parameter; `None` if it is missing, empty or not text.
pub(crate) fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(found, _)| *found == name).map(|(_, value)| value);
    // Forms write a space as a plus sign.
    text(&values.next()?.replace('+', " ")).filter(|value| !value.is_empty())
}

fn text(encoded: &str) -> Option<String> {
    String::from_utf8(bytes(encoded)?).ok()
}

/// Decodes percent-encoding; `None` if it is malformed.
fn bytes(encoded: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = behind;
            continue;
        }
        let (digits, behind) = behind.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        // A sign would be accepted as a part of a number.
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = behind;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_report::console::{Links, encode};

    #[test]
    fn what_links_say_is_understood() {
        let hostile = "../a/b?c#d&e=f%2f\u{202e} +";
        let links = Links("");
        let parse = |link: String| {
            let path = link.split('?').next().unwrap().to_owned();
            Route::parse(&path).unwrap_or_else(|| panic!("{link}"))
        };
        let own = || hostile.to_owned();
        assert_eq!(parse(links.store()), Route::Store);
        assert_eq!(parse(links.image(hostile, Some("x"))), Route::Image { digest: own() });
        assert_eq!(parse(links.clusters()), Route::Clusters);
        assert_eq!(parse(links.cluster(hostile)), Route::Cluster { name: own() });
        assert_eq!(parse(links.runs()), Route::Runs);
        assert_eq!(parse(links.run(hostile, "r")), Route::Run { cluster: own(), run: "r".into() });
        let events = links.events(hostile, hostile, 17);
        assert_eq!(parameter(events.split_once('?').map(|(_, query)| query), "at").unwrap(), "17");
        assert_eq!(parse(events), Route::Events { cluster: own(), run: own() });
        let changes = |of| Route::Changes(of);
        assert_eq!(parse(links.changes_of_store(7)), changes(Subject::Store));
        assert_eq!(parse(links.changes(None, 7)), changes(Subject::Recorded(None)));
        assert_eq!(parse(links.changes(Some(hostile), 7)), changes(Subject::Recorded(Some(own()))));
        assert_eq!(parse(links.plans()), Route::Plans);
        assert_eq!(parse(links.plan("c", hostile)), Route::Plan { cluster: "c".into(), id: own() });
        assert_eq!(parse(links.plan_file("3")), Route::PlanFile { number: 3 });
        let files = format!("{}etc/{}", links.files(hostile, "linux/amd64"), encode(b"\xff x"));
        assert_eq!(
            parse(files),
            Route::Files {
                digest: own(),
                platform: "linux/amd64".into(),
                path: b"etc/\xff x".to_vec()
            }
        );
        let query = format!("a=b&platform={}", encode(hostile.as_bytes()));
        assert_eq!(parameter(Some(&query), "platform").unwrap(), hostile);
    }

    #[test]
    fn other_paths_lead_nowhere() {
        for path in [
            "x",
            "/x",
            "/runs/a",
            "/runs/a/b/c",
            "/plans/x",
            "/plans/-1",
            "/clusters/%zz",
            "/clusters/%2",
            "/clusters/%+1",
            "/images/%ff",
            "/images",
            "//",
            "/files/x",
            "/changes",
            "/changes/x",
            "/changes/store/x",
            "/assets/../x",
            "/files/a/b/%f",
        ] {
            assert_eq!(Route::parse(path), None, "{path}");
        }
        for query in [None, Some(""), Some("at"), Some("at="), Some("at=%"), Some("bat=1")] {
            assert_eq!(parameter(query, "at"), None, "{query:?}");
        }
    }
}
