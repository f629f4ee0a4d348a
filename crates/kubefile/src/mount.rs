//! `RUN --mount=…`: its options and their defaults. Must not depend on stages; mounts nothing.

use super::ast::{CacheMount, CacheSharing, Mount, MountKind, MountSpec};
use super::diagnostic::Problem;
use super::expand::{self, ExpandError};
use super::ignore;
use imgctl_base::suggest::closest;

const TYPES: [&str; 5] = ["bind", "cache", "tmpfs", "secret", "ssh"];

const KEYS: [&str; 20] = [
    "type",
    "from",
    "source",
    "src",
    "target",
    "dst",
    "destination",
    "readonly",
    "ro",
    "readwrite",
    "rw",
    "id",
    "sharing",
    "required",
    "size",
    "tmpfs-size",
    "tmpfs-mode",
    "mode",
    "uid",
    "gid",
];

/// Options of buildah and podman, in lower case, that have no effect here: a build's mounts are
/// private and are never relabelled, chowned or propagated.
const IGNORED: [&str; 18] = [
    "z",
    "u",
    "relabel",
    "shared",
    "rshared",
    "private",
    "rprivate",
    "slave",
    "rslave",
    "bind-propagation",
    "bind-nonrecursive",
    "consistency",
    "no-dereference",
    "nosuid",
    "nodev",
    "noexec",
    "notmpcopyup",
    "tmpcopyup",
];

/// Mode of an in-memory file system (that of `/tmp`).
const TMPFS_MODE: u32 = 0o1777;

/// Default directory of secrets.
const SECRETS: &str = "/run/secrets";

impl MountSpec {
    /// Parses the options and checks what does not depend on variables.
    pub(super) fn parse(raw: &str, escape: char) -> Result<Self, Problem> {
        let mut from = None;
        let mut variable = false;
        for field in fields(raw)? {
            let (key, value) = split(&field);
            let key = key.to_ascii_lowercase();
            if IGNORED.contains(&key.as_str()) {
                continue;
            }
            if key != "env" && !KEYS.contains(&key.as_str()) {
                let problem = Problem::new(format!("--mount has no option {key}")).at(raw);
                return Err(match closest(&key, KEYS) {
                    Some(known) => problem.hint(format!("did you mean {known}?")),
                    None => problem,
                });
            }
            let Some(value) = value else { continue };
            let used = expand::variables(value, escape);
            let used = used.map_err(|error| Problem::from(error).at(raw))?;
            variable |= !used.is_empty();
            if key == "from" {
                if !used.is_empty() {
                    return Err(Problem::new("from= in --mount takes no variables")
                        .at(raw)
                        .hint("give the image a name: FROM $IMAGE AS name, then from=name"));
                }
                from = named(value.to_owned());
            }
        }
        let spec = Self { raw: raw.to_owned(), from };
        if !variable {
            let no_values = |word: &str| expand::expand(word, escape, &|_| None);
            spec.resolve(&no_values).map_err(|problem| problem.at(raw))?;
        }
        Ok(spec)
    }

    /// Returns the mount with variables expanded, options checked and defaults filled in.
    pub fn resolve(
        &self,
        expand: &dyn Fn(&str) -> Result<String, ExpandError>,
    ) -> Result<Mount, Problem> {
        let mut options = Options::default();
        for field in fields(&self.raw)? {
            let (key, value) = split(&field);
            if IGNORED.contains(&key.to_ascii_lowercase().as_str()) {
                options.ignored.push(key.to_owned());
                continue;
            }
            let value = value.map(expand).transpose()?;
            options.set(&key.to_ascii_lowercase(), value)?;
        }
        options.mount()
    }
}

/// Splits at commas; a field in double quotes may contain commas (RFC 4180).
fn fields(raw: &str) -> Result<Vec<String>, Problem> {
    let mut fields = Vec::new();
    let mut field = String::new();
    let mut quoted = false;
    let mut chars = raw.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    if quoted {
        return Err(Problem::new("a quote in --mount is not closed").at(raw));
    }
    fields.push(field);
    if let Some(empty) = fields.iter().position(|field| field.trim().is_empty()) {
        return Err(Problem::new(format!("option {} of --mount is empty", empty + 1)).at(raw));
    }
    Ok(fields)
}

fn split(field: &str) -> (&str, Option<&str>) {
    match field.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value)),
        None => (field.trim(), None),
    }
}

/// Treats an empty `from=` as unset: the build context or an empty cache (BuildKit).
fn named(from: String) -> Option<String> {
    Some(from).filter(|name| !name.is_empty())
}

/// The options as given.
#[derive(Default)]
struct Options {
    kind: Option<String>,
    from: Option<String>,
    source: Option<String>,
    target: Option<String>,
    read_only: Option<bool>,
    id: Option<String>,
    sharing: Option<CacheSharing>,
    required: Option<bool>,
    env: Option<String>,
    size: Option<u64>,
    tmpfs_mode: Option<u32>,
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    ignored: Vec<String>,
}

impl Options {
    fn set(&mut self, key: &str, value: Option<String>) -> Result<(), Problem> {
        let Some(value) = value else {
            match key {
                "readonly" | "ro" => self.read_only = Some(true),
                "readwrite" | "rw" => self.read_only = Some(false),
                "required" => self.required = Some(true),
                _ => return Err(Problem::new(format!("{key} in --mount needs a value"))),
            }
            return Ok(());
        };
        let wrong = |what: &str| Problem::new(format!("{key}={value} in --mount: expected {what}"));
        let flag = || boolean(&value).ok_or_else(|| wrong("true or false"));
        let number = || value.parse::<u32>().map_err(|_| wrong("a number"));
        match key {
            "type" => {
                let kind = value.to_ascii_lowercase();
                if !TYPES.contains(&kind.as_str()) {
                    let problem = Problem::new(format!("unknown mount type {value}"));
                    let begun = || TYPES.into_iter().find(|known| known.starts_with(&kind));
                    return Err(match closest(&kind, TYPES).or_else(begun) {
                        Some(known) => problem.hint(format!("did you mean {known}?")),
                        None => problem.hint(format!("the types are {}", TYPES.join(", "))),
                    });
                }
                self.kind = Some(kind);
            }
            "readonly" | "ro" => self.read_only = Some(flag()?),
            "readwrite" | "rw" => self.read_only = Some(!flag()?),
            "required" => self.required = Some(flag()?),
            "sharing" => {
                self.sharing = Some(match value.to_ascii_lowercase().as_str() {
                    "shared" => CacheSharing::Shared,
                    "private" => CacheSharing::Private,
                    "locked" => CacheSharing::Locked,
                    _ => return Err(wrong("shared, private or locked")),
                });
            }
            "size" | "tmpfs-size" => {
                self.size = Some(bytes(&value).ok_or_else(|| wrong("a size such as 64m"))?);
            }
            "mode" | "tmpfs-mode" => {
                let mode = u32::from_str_radix(&value, 8).ok().filter(|m| *m <= 0o7777);
                let mode = Some(mode.ok_or_else(|| wrong("an octal mode such as 0755"))?);
                match key {
                    "mode" => self.mode = mode,
                    _ => self.tmpfs_mode = mode,
                }
            }
            "uid" => self.uid = Some(number()?),
            "gid" => self.gid = Some(number()?),
            "from" => self.from = named(value),
            "source" | "src" => self.source = Some(value),
            "target" | "dst" | "destination" => self.target = Some(value),
            "id" => self.id = Some(value),
            "env" => self.env = Some(value),
            other => return Err(Problem::new(format!("--mount has no option {other}"))),
        }
        Ok(())
    }

    fn mount(self) -> Result<Mount, Problem> {
        let kind = self.kind.clone().unwrap_or_else(|| "bind".to_owned());
        self.refuse_foreign(&kind)?;
        match kind.as_str() {
            "cache" => Ok(self.cache()),
            "tmpfs" => Ok(Mount {
                target: self.place(),
                read_only: self.read_only.unwrap_or(false),
                kind: MountKind::Tmpfs {
                    size: self.size,
                    mode: self.tmpfs_mode.unwrap_or(TMPFS_MODE),
                },
                ignored: self.ignored,
            }),
            "secret" => self.secret(),
            "ssh" => Ok(Mount {
                target: self.target,
                read_only: self.read_only.unwrap_or(true),
                kind: MountKind::Ssh {
                    id: self.id.unwrap_or_else(|| "default".into()),
                    required: self.required.unwrap_or(false),
                    mode: self.mode.unwrap_or(0o600),
                    uid: self.uid.unwrap_or(0),
                    gid: self.gid.unwrap_or(0),
                },
                ignored: self.ignored,
            }),
            _ => Ok(Mount {
                target: self.place(),
                read_only: self.read_only.unwrap_or(true),
                kind: MountKind::Bind { from: self.from, source: self.source },
                ignored: self.ignored,
            }),
        }
    }

    /// Rejects options that the mount type does not have.
    fn refuse_foreign(&self, kind: &str) -> Result<(), Problem> {
        let foreign = [
            ("from", self.from.is_some(), &["bind", "cache"][..]),
            ("source", self.source.is_some(), &["bind", "cache", "secret"]),
            ("id", self.id.is_some(), &["cache", "secret", "ssh"]),
            ("sharing", self.sharing.is_some(), &["cache"]),
            ("required", self.required.is_some(), &["secret", "ssh"]),
            ("env", self.env.is_some(), &["secret"]),
            ("size", self.size.is_some(), &["tmpfs"]),
            ("tmpfs-mode", self.tmpfs_mode.is_some(), &["tmpfs"]),
            ("mode", self.mode.is_some(), &["cache", "secret", "ssh"]),
            ("uid", self.uid.is_some(), &["cache", "secret", "ssh"]),
            ("gid", self.gid.is_some(), &["cache", "secret", "ssh"]),
        ];
        for (option, given, kinds) in foreign {
            if given && !kinds.contains(&kind) {
                return Err(Problem::new(format!("a {kind} mount has no option {option}"))
                    .hint(format!("{option} belongs to type={}", kinds.join(" or type="))));
            }
        }
        match self.ignored.first() {
            Some(option) if matches!(kind, "secret" | "ssh") => {
                Err(Problem::new(format!("a {kind} mount has no option {option}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the target; a missing or empty target means the working directory.
    fn place(&self) -> Option<String> {
        self.target.clone().filter(|target| !target.is_empty())
    }

    fn cache(self) -> Mount {
        let target = self.place();
        let id = self.id.filter(|id| !id.is_empty());
        Mount {
            read_only: self.read_only.unwrap_or(false),
            kind: MountKind::Cache(CacheMount {
                id: id.unwrap_or_else(|| cleaned(target.as_deref().unwrap_or_default())),
                sharing: self.sharing.unwrap_or(CacheSharing::Shared),
                from: self.from,
                source: self.source,
                mode: self.mode,
                uid: self.uid,
                gid: self.gid,
            }),
            target,
            ignored: self.ignored,
        }
    }

    fn secret(self) -> Result<Mount, Problem> {
        if self.id.is_some() && self.source.is_some() {
            return Err(Problem::new("a secret mount has an id or a source, not both"));
        }
        let id = match self.id.or(self.source) {
            Some(id) => id,
            None => match &self.target {
                Some(target) => last_name(target).to_owned(),
                None => {
                    return Err(Problem::new("a secret mount needs an id")
                        .hint("add id=NAME, and give --secret id=NAME,… to the build"));
                }
            },
        };
        let target = match (self.target, &self.env) {
            (Some(target), _) => Some(target),
            (None, Some(_)) => None,
            (None, None) => Some(format!("{SECRETS}/{}", last_name(&id))),
        };
        Ok(Mount {
            target,
            read_only: self.read_only.unwrap_or(true),
            kind: MountKind::Secret {
                id,
                env: self.env,
                required: self.required.unwrap_or(false),
                mode: self.mode.unwrap_or(0o400),
                uid: self.uid.unwrap_or(0),
                gid: self.gid.unwrap_or(0),
            },
            ignored: self.ignored,
        })
    }
}

/// Normalizes a target into a cache ID: `/c`, `/c/` and `/x/../c` are the same.
fn cleaned(target: &str) -> String {
    let clean = ignore::clean(target.as_bytes());
    let clean = String::from_utf8_lossy(&clean);
    let root = if target.starts_with('/') { "/" } else { "" };
    format!("{root}{}", clean.trim_start_matches('/'))
}

fn last_name(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

/// Parses a Boolean in the spellings that Go's flags accept.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a size with an optional binary unit: `64m`, `1.5GiB`, `1024`.
fn bytes(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let unit = unit.trim();
    let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return None,
    };
    let scale = 1_u64 << shift;
    match number.split_once('.') {
        None => number.parse::<u64>().ok()?.checked_mul(scale),
        Some((whole, fraction)) if fraction.len() <= 3 => {
            let part = fraction.parse::<u64>().ok()?;
            let part = part.checked_mul(scale)? / 10_u64.pow(u32::try_from(fraction.len()).ok()?);
            whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(part)
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(raw: &str) -> Result<Mount, String> {
        let values = |name: &str| (name == "U").then(|| "7".to_owned());
        let expand = |word: &str| expand::expand(word, '\\', &values);
        MountSpec::parse(raw, '\\')
            .and_then(|spec| spec.resolve(&expand))
            .map_err(|problem| problem.message)
    }

    #[test]
    fn each_type_has_its_defaults() {
        let mount = parse("target=/x").unwrap();
        assert_eq!((mount.target.as_deref(), mount.read_only), (Some("/x"), true));
        assert!(matches!(mount.kind, MountKind::Bind { from: None, source: None }));

        let mount = parse("type=cache,dst=/c,sharing=locked,uid=$U,mode=0700").unwrap();
        assert!(!mount.read_only);
        let MountKind::Cache(cache) = mount.kind else { panic!("not a cache") };
        assert_eq!((cache.id.as_str(), cache.sharing), ("/c", CacheSharing::Locked));
        assert_eq!((cache.mode, cache.uid, cache.gid), (Some(0o700), Some(7), None));

        let mount = parse("TYPE=tmpfs,target=/t,size=1.5k").unwrap();
        let tmpfs = |size, mode| MountKind::Tmpfs { size, mode };
        assert_eq!(mount.kind, tmpfs(Some(1536), 0o1777));
        let mount = parse("type=tmpfs,target=/t,tmpfs-size=1m,tmpfs-mode=0700").unwrap();
        assert_eq!(mount.kind, tmpfs(Some(1 << 20), 0o700));

        let mount = parse("type=secret,id=a/b").unwrap();
        assert_eq!(mount.target.as_deref(), Some("/run/secrets/b"));
        assert_eq!(parse("type=secret,id=a,env=A").unwrap().target, None);
        let mount = parse("type=secret,target=/x/key,required").unwrap();
        assert!(matches!(mount.kind, MountKind::Secret { id, required: true, .. } if id == "key"));

        let mount = parse("type=ssh").unwrap();
        assert!(matches!(mount.kind, MountKind::Ssh { id, mode: 0o600, .. } if id == "default"));
        assert!(!parse("type=bind,target=/x,rw").unwrap().read_only);
        assert!(!parse("type=bind,target=/x,ro=false").unwrap().read_only);
        assert_eq!(parse(r#"type=bind,"target=/a,b""#).unwrap().target.as_deref(), Some("/a,b"));
    }

    #[test]
    fn without_a_target_the_working_directory_is_meant() {
        for raw in ["type=bind", "from=st", "type=tmpfs", "type=cache,target="] {
            assert_eq!(parse(raw).unwrap().target, None, "{raw}");
        }
        // The cache still has an ID, as in BuildKit.
        for (raw, expected) in [
            ("type=cache", "."),
            ("type=cache,target=/c/", "/c"),
            ("type=cache,target=/x/../c", "/c"),
            ("type=cache,target=c/./d", "c/d"),
            ("type=cache,target=/c,id=x/", "x/"),
        ] {
            let MountKind::Cache(cache) = parse(raw).unwrap().kind else { panic!("not a cache") };
            assert_eq!(cache.id, expected, "{raw}");
        }
    }

    #[test]
    fn an_empty_from_is_none() {
        let spec = MountSpec::parse("type=bind,from=,target=/x", '\\').unwrap();
        assert_eq!(spec.from, None);
        let mount = parse("type=bind,from=,target=/x").unwrap();
        assert!(matches!(mount.kind, MountKind::Bind { from: None, .. }));
        assert!(parse("type=tmpfs,from=,target=/x").is_ok());
    }

    #[test]
    fn options_of_buildah_are_taken_and_remembered() {
        let mount = parse("type=bind,target=/x,Z,bind-propagation=rslave,ro=false").unwrap();
        assert_eq!(mount.ignored, ["Z", "bind-propagation"]);
        assert!(!mount.read_only);
        let mount = parse("type=tmpfs,tmpcopyup,target=/x").unwrap();
        assert_eq!(mount.ignored, ["tmpcopyup"]);
    }

    #[test]
    fn mistakes_are_refused() {
        for (raw, message) in [
            ("type=bnid,target=/x", "unknown mount type bnid"),
            ("type=secret,id=a,z", "a secret mount has no option z"),
            ("type=bind,target=/x,tmpfs-mode=0700", "a bind mount has no option tmpfs-mode"),
            ("type=tmpfs,target=/x,from=a", "a tmpfs mount has no option from"),
            ("type=bind,target=/x,sharing=shared", "a bind mount has no option sharing"),
            (
                "type=cache,target=/x,sharing=all",
                "sharing=all in --mount: expected shared, private or locked",
            ),
            (
                "type=cache,target=/x,mode=9",
                "mode=9 in --mount: expected an octal mode such as 0755",
            ),
            ("type=secret", "a secret mount needs an id"),
            ("type=secret,id=a,source=b", "a secret mount has an id or a source, not both"),
            ("type=bind,target=/x,from=$U", "from= in --mount takes no variables"),
            ("type=bind,tagret=/x", "--mount has no option tagret"),
            ("target=/x,,ro", "option 2 of --mount is empty"),
            ("target", "target in --mount needs a value"),
            ("\"target=/x", "a quote in --mount is not closed"),
            ("target=${", "the closing } of ${ is missing"),
            ("target=/x,ro=perhaps", "ro=perhaps in --mount: expected true or false"),
            (
                "type=tmpfs,target=/x,size=99999999999999t",
                "size=99999999999999t in --mount: expected a size such as 64m",
            ),
        ] {
            assert_eq!(parse(raw).unwrap_err(), message, "{raw}");
        }
    }
}
