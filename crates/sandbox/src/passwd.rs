//! Resolves users from the text of an image's `/etc/passwd` and `/etc/group`. Pure: reads no files,
//! and never uses the host's users.

use super::spec::Identity;
use imgctl_base::error::{Error, Kind, Result};

/// Greatest accepted ID: with greater ones, overflows in other programs have ended at user 0
/// (CVE-2024-40635).
const GREATEST: u32 = i32::MAX as u32;

/// A user as named by `USER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// IDs to run with.
    pub identity: Identity,
    /// Home directory; `/` for a user without an entry in the passwd file.
    pub home: Vec<u8>,
}

/// One line of passwd(5).
struct Entry<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
}

/// One line of group(5).
struct Group<'a> {
    name: &'a [u8],
    gid: u32,
    members: &'a [u8],
}

/// Resolves `user`, `user:group` or nothing (root), where each part is a name or a number, as
/// Docker does for `USER`. A number need not exist, and then has group 0. If a group is given,
/// there are no supplementary groups. A name that does not exist is a `NotFound` error.
pub fn resolve(spec: &[u8], passwd: &[u8], group: &[u8]) -> Result<User> {
    let (user, group_name) = parts(spec);
    let number = number(user, spec)?;
    let entry = entries(passwd).find(|entry| match (user, number) {
        (b"", _) => entry.uid == 0,
        (_, Some(number)) => entry.uid == number,
        (name, None) => entry.name == name,
    });
    let uid = match (&entry, number) {
        (Some(entry), _) => entry.uid,
        (None, Some(number)) => number,
        (None, None) if user.is_empty() => 0,
        (None, None) => return Err(unknown("user", user, "/etc/passwd")),
    };
    let mut identity =
        Identity { uid, gid: entry.as_ref().map_or(0, |entry| entry.gid), groups: Vec::new() };
    if let Some(name) = group_name {
        identity.gid = group_id(name, spec, group)?;
    } else if let Some(entry) = &entry {
        identity.groups = groups(group)
            .filter(|group| {
                group.members.split(|&byte| byte == b',').any(|name| name == entry.name)
            })
            .map(|group| group.gid)
            .collect();
    }
    let home = entry.map(|entry| entry.home).filter(|home| !home.is_empty());
    Ok(User { identity, home: home.unwrap_or(b"/").to_vec() })
}

/// Resolves the owner of `COPY --chown`: like [`resolve`], but the group of a number without a
/// group is that number (a name without a group has its own group, as in buildah). Returns user and
/// group.
pub fn resolve_owner(spec: &[u8], passwd: &[u8], group: &[u8]) -> Result<(u32, u32)> {
    let identity = resolve(spec, passwd, group)?.identity;
    let (user, group) = parts(spec);
    let is_number = user.iter().all(u8::is_ascii_digit);
    Ok(match group {
        None if is_number => (identity.uid, identity.uid),
        _ => (identity.uid, identity.gid),
    })
}

/// Resolves the owner of `COPY --chown`. An unknown user is 0, so that `root:root` works without
/// account files. An unknown group counts as the user's own, an empty one (`app:`) as 0; it is an error if the
/// image has no groups at all (BuildKit). Also returns whether a name is unknown.
pub fn resolve_copied(spec: &[u8], passwd: &[u8], group: &[u8]) -> Result<((u32, u32), bool)> {
    let is_unknown = |error: &Error| error.kind() == Kind::NotFound;
    match resolve_owner(spec, passwd, group) {
        Err(error) if is_unknown(&error) => {}
        Ok((uid, _)) if spec.ends_with(b":") => return Ok(((uid, 0), false)),
        resolved => return Ok((resolved?, false)),
    }
    let (user, group_name) = parts(spec);
    let known = resolve_owner(user, passwd, group).ok();
    let (uid, own_gid) = known.unwrap_or_default();
    let gid = match group_name.map(|name| group_id(name, spec, group)) {
        None => own_gid,
        Some(Err(error)) if is_unknown(&error) => {
            if group.is_empty() && group_name != Some(b"root") {
                return Err(error);
            }
            own_gid
        }
        Some(gid) => gid?,
    };
    let is_root = |name: Option<&[u8]>| name.is_none_or(|name| name == b"root");
    Ok(((uid, gid), !(is_root(Some(user)) && is_root(group_name))))
}

/// Resolves the owner of directories that `WORKDIR` creates for `USER spec`: an unknown user counts
/// as root, an unknown group as the user's own (BuildKit). Also returns whether both are known.
pub fn resolve_maker(spec: &[u8], passwd: &[u8], group: &[u8]) -> ((u32, u32), bool) {
    if spec.is_empty() {
        return ((0, 0), true);
    }
    match resolve_owner(spec, passwd, group) {
        Ok(owner) => (owner, true),
        Err(_) => {
            let alone = resolve_owner(parts(spec).0, passwd, group);
            (alone.unwrap_or_default(), false)
        }
    }
}

/// Returns the first name for `uid` in a passwd file.
pub fn name_of(passwd: &[u8], uid: u32) -> Option<&[u8]> {
    entries(passwd).find(|entry| entry.uid == uid).map(|entry| entry.name)
}

/// Splits `user[:group]`; an empty group counts as none.
fn parts(spec: &[u8]) -> (&[u8], Option<&[u8]>) {
    match spec.iter().position(|&byte| byte == b':') {
        Some(at) => (&spec[..at], Some(&spec[at + 1..]).filter(|group| !group.is_empty())),
        None => (spec, None),
    }
}

fn group_id(name: &[u8], spec: &[u8], text: &[u8]) -> Result<u32> {
    let number = number(name, spec)?;
    let found = groups(text).find(|group| match number {
        Some(number) => group.gid == number,
        None => group.name == name,
    });
    match (found, number) {
        (Some(group), _) => Ok(group.gid),
        (None, Some(number)) => Ok(number),
        (None, None) => Err(unknown("group", name, "/etc/group")),
    }
}

/// Parses a numeric ID; returns `None` for a name, and an error for a number out of range.
fn number(text: &[u8], spec: &[u8]) -> Result<Option<u32>> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Ok(None);
    }
    id(text).filter(|&id| id <= GREATEST).map(Some).ok_or_else(|| {
        let spec = String::from_utf8_lossy(spec);
        Error::usage(format!("the id in `{spec}` is above {GREATEST}")).about(spec)
    })
}

fn unknown(what: &str, name: &[u8], file: &str) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::not_found(format!("{what} `{name}` is not in {file} of the image"))
        .about(name)
        .hint("create it in an earlier RUN or COPY the file, or use a numeric id")
}

fn entries(text: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    lines(text).filter_map(|line| {
        let fields: Vec<&[u8]> = line.splitn(7, |&byte| byte == b':').collect();
        Some(Entry {
            name: fields.first()?,
            uid: id(fields.get(2)?)?,
            gid: id(fields.get(3)?)?,
            home: fields.get(5).copied().unwrap_or_default(),
        })
    })
}

fn groups(text: &[u8]) -> impl Iterator<Item = Group<'_>> {
    lines(text).filter_map(|line| {
        let fields: Vec<&[u8]> = line.splitn(4, |&byte| byte == b':').collect();
        Some(Group {
            name: fields.first()?,
            gid: id(fields.get(2)?)?,
            members: fields.get(3).copied().unwrap_or_default(),
        })
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
}

fn id(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::error::Kind;
    use proptest::prelude::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\n# comment\nbroken:x:one:1::/:\n\napp:x:1000:1001:App:/home/app:/bin/sh\n7:x:70:71::/seven:\nnohome:x:5:5:::\n";
    const GROUP: &[u8] =
        b"root:x:0:\nwheel:x:10:root,app\napp:x:1001:\ndocker:x:99:other,app\nshort:x\n";

    #[test]
    fn users_are_resolved_as_docker_does() {
        type Case = (&'static str, (u32, u32), &'static [u32], &'static str);
        let cases: [Case; 12] = [
            ("", (0, 0), &[10], "/root"),
            ("root", (0, 0), &[10], "/root"),
            ("app", (1000, 1001), &[10, 99], "/home/app"),
            ("1000", (1000, 1001), &[10, 99], "/home/app"),
            ("app:", (1000, 1001), &[10, 99], "/home/app"),
            ("app:wheel", (1000, 10), &[], "/home/app"),
            ("app:4242", (1000, 4242), &[], "/home/app"),
            ("4242", (4242, 0), &[], "/"),
            ("4242:app", (4242, 1001), &[], "/"),
            ("7", (7, 0), &[], "/"),
            ("nohome", (5, 5), &[], "/"),
            (":wheel", (0, 10), &[], "/root"),
        ];
        for (spec, (uid, gid), groups, home) in cases {
            let user = resolve(spec.as_bytes(), PASSWD, GROUP).unwrap();
            assert_eq!((user.identity.uid, user.identity.gid), (uid, gid), "{spec}");
            assert_eq!(user.identity.groups, groups, "{spec}");
            assert_eq!(user.home, home.as_bytes(), "{spec}");
        }
    }

    #[test]
    fn an_image_without_users_still_has_numbers_and_root() {
        assert_eq!(resolve(b"", b"", b"").unwrap().identity, Identity::default());
        assert_eq!(resolve(b"5:6", b"", b"").unwrap().identity.gid, 6);
    }

    #[test]
    fn what_does_not_exist_or_overflows_is_an_error() {
        let cases = [
            ("nobody", Kind::NotFound),
            ("app:nobody", Kind::NotFound),
            ("broken", Kind::NotFound),
            ("-1", Kind::NotFound),
            ("2147483648", Kind::Usage),
            ("4294967296", Kind::Usage),
            ("0:99999999999999999999", Kind::Usage),
        ];
        for (spec, kind) in cases {
            assert_eq!(resolve(spec.as_bytes(), PASSWD, GROUP).unwrap_err().kind(), kind, "{spec}");
        }
    }

    #[test]
    fn a_lone_number_is_its_own_group_and_a_lone_name_has_its_users() {
        let cases = [
            ("app", (1000, 1001)),
            ("55", (55, 55)),
            ("55:wheel", (55, 10)),
            ("app:app", (1000, 1001)),
        ];
        for (spec, expected) in cases {
            assert_eq!(resolve_owner(spec.as_bytes(), PASSWD, GROUP).unwrap(), expected, "{spec}");
        }
    }

    /// What BuildKit gives files for the same words.
    #[test]
    fn files_belong_to_the_users_own_group_where_the_one_named_is_unknown() {
        let cases = [
            ("app", (1000, 1001), false),
            ("app:", (1000, 0), false),
            ("app:nobody", (1000, 1001), true),
            ("5000", (5000, 5000), false),
            ("5000:", (5000, 0), false),
            ("5000:nobody", (5000, 5000), true),
            (":wheel", (0, 10), false),
            ("nobody:wheel", (0, 10), true),
            ("nobody", (0, 0), true),
            ("0:nobody", (0, 0), true),
        ];
        for (spec, owner, unknown) in cases {
            let resolved = resolve_copied(spec.as_bytes(), PASSWD, GROUP).unwrap();
            assert_eq!(resolved, (owner, unknown), "{spec}");
        }
    }

    #[test]
    fn a_working_directory_is_the_users_or_else_roots() {
        let cases = [
            ("", (0, 0), true),
            ("app", (1000, 1001), true),
            ("app:wheel", (1000, 10), true),
            ("55", (55, 55), true),
            ("55:66", (55, 66), true),
            (":wheel", (0, 10), true),
            ("nobody", (0, 0), false),
            ("nobody:wheel", (0, 0), false),
            ("app:nobody", (1000, 1001), false),
            ("4294967296", (0, 0), false),
        ];
        for (spec, owner, known) in cases {
            let resolved = resolve_maker(spec.as_bytes(), PASSWD, GROUP);
            assert_eq!(resolved, (owner, known), "{spec}");
        }
    }

    proptest! {
        #[test]
        fn hostile_texts_never_give_another_user(passwd: Vec<u8>, group: Vec<u8>, uid in 0..=GREATEST) {
            let user = resolve(uid.to_string().as_bytes(), &passwd, &group).unwrap();
            prop_assert_eq!(user.identity.uid, uid);
        }
    }
}
