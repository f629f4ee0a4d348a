//! Clones a repository: asks the server what it has, fetches what is wanted, and leaves a work tree
//! and a `.git` that are the same at every build. Must not know where the files go.

use std::path::{Component, PathBuf};

use crate::build::git::address::{Repository, is_hex};
use crate::build::git::command::Git;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};

/// What a fetch takes if the address names nothing.
const DEFAULT: &str = "HEAD";
/// Size of a block of the disk, in bytes: a file takes whole ones.
const BLOCK: u64 = 4096;
/// The result of the last fetch.
const FETCHED: &str = "FETCH_HEAD";

/// What a server says about what is wanted.
struct Advertised {
    /// The whole name of the reference; a commit has none.
    name: Option<String>,
    is_sha256: bool,
}

/// What was checked out.
pub(super) struct CheckedOut {
    pub commit: String,
    /// An annotated tag; otherwise the commit.
    object: String,
}

impl Repository {
    /// Makes what the address names the work tree, with no branch checked out. The commit must be
    /// each of `expected`; it is `locked`, wherever the reference is now.
    pub(super) fn check_out(
        &self,
        git: &Git<'_>,
        expected: &[&str],
        locked: Option<&str>,
    ) -> Result<CheckedOut> {
        let reference = self.reference.as_deref();
        let commit = expected.first().copied();
        let wanted = if self.by_commit {
            commit.ok_or_else(|| {
                Error::usage("fetch-by-commit needs the commit")
                    .about(&self.source)
                    .hint("add commit=ID to the address, or --checksum=ID to ADD")
            })?
        } else {
            reference.or(commit).unwrap_or(DEFAULT)
        };
        let Advertised { name, is_sha256 } = self.advertised(git, wanted)?;
        let format: &[&str] = if is_sha256 { &["--object-format=sha256"] } else { &[] };
        git.run(&[&["init", "--quiet"], format].concat())?;
        let commit_of = |object: String| -> Result<CheckedOut> {
            let commit = git.run(&["rev-parse", "--verify", &format!("{object}^{{commit}}")])?;
            Ok(CheckedOut { commit: commit.trim().to_owned(), object })
        };
        let mut found = commit_of(self.fetch(git, name.as_deref().unwrap_or(wanted))?)?;
        if let Some(locked) = locked.filter(|locked| *locked != found.commit) {
            let fetched = self.fetch(git, locked).map_err(|error| {
                error.context(format!("the locked commit {locked} is not there")).hint(
                    "its reference has moved; `imgctl build --update-lock` takes the commit of now",
                )
            });
            found = commit_of(fetched?)?;
        }
        self.expect(&found, expected)?;
        // `git describe` and the like need the name. The commit was fetched for that of a branch.
        let own = |reference: &str| match reference {
            full if full.starts_with("refs/") => full.to_owned(),
            branch => format!("refs/heads/{branch}"),
        };
        let name =
            if self.by_commit { reference.filter(|one| !is_hex(one)).map(own) } else { name };
        if let Some(name) = name {
            git.run(&["update-ref", &name, &found.object])?;
        }
        git.run(&["remote", "add", "origin", &self.url])?;
        // The work tree, and the copy of it that the build reads.
        (git.room)(size(git, &found.commit)?.saturating_mul(2))?;
        git.run(&["checkout", "--quiet", "--detach", &found.commit])?;
        if self.submodules && git.directory.join(".gitmodules").is_file() {
            let update = ["submodule", "--quiet", "update", "--init", "--recursive"];
            let shallow = [&update[..], &["--depth", "1"]].concat();
            git.run(&shallow).or_else(|error| match error.kind() {
                Kind::NoSpace => Err(error),
                _ => git.run(&update),
            })?;
        }
        Ok(found)
    }

    fn expect(&self, found: &CheckedOut, expected: &[&str]) -> Result<()> {
        let is_it = |id: &&&str| found.commit.starts_with(**id) || found.object.starts_with(**id);
        match expected.iter().find(|id| !is_it(id)) {
            None => Ok(()),
            Some(other) => Err(Error::bad_content(format!(
                "{} is at commit {}, not at {other}",
                self.source, found.commit
            ))
            .hint("the reference has moved, or the commit belongs to another one")),
        }
    }

    /// Asks the server for the whole name of `wanted`, a branch before a tag as in BuildKit, and for the
    /// length of its IDs.
    fn advertised(&self, git: &Git<'_>, wanted: &str) -> Result<Advertised> {
        let list = ["ls-remote", "--symref", "--", &self.url, DEFAULT, wanted];
        let printed = git.run(&list).map_err(|error| {
            if says(&error, &["could not read Username", "Authentication failed"]) {
                return error.hint("pass a token with --secret id=GIT_AUTH_TOKEN.HOST,src=FILE");
            }
            error
        })?;
        let listed = || printed.lines().filter_map(|line| line.split_once('\t'));
        let mut ids = listed().map(|(id, _)| id).filter(|id| is_hex(id));
        let is_sha256 = ids.next().unwrap_or(wanted).len() == 64;
        if wanted == DEFAULT {
            let mut names = listed().filter(|(_, name)| *name == DEFAULT);
            let branch = names.find_map(|(target, _)| target.strip_prefix("ref: "));
            return Ok(Advertised { name: branch.map(str::to_owned), is_sha256 });
        }
        let below =
            |prefix: &str| format!("{prefix}{}", wanted.strip_prefix(prefix).unwrap_or(wanted));
        let names = ["refs/", "refs/heads/", "refs/tags/"].map(below);
        let is_listed = |name: &String| listed().any(|(_, listed)| listed == name);
        Ok(Advertised { name: names.into_iter().find(is_listed), is_sha256 })
    }

    /// Fetches `wanted`, alone if the server can do that. Returns the ID of the tag or commit.
    fn fetch(&self, git: &Git<'_>, wanted: &str) -> Result<String> {
        let fetch = ["fetch", "--quiet", "--no-tags"];
        let place = ["--", &self.url, wanted];
        let fetched = || Ok(git.run(&["rev-parse", "--verify", FETCHED])?.trim().to_owned());
        let Err(error) = git.run(&[&fetch[..], &["--depth", "1"], &place].concat()) else {
            return fetched();
        };
        if says(&error, &["dumb http transport"]) && git.run(&[&fetch[..], &place].concat()).is_ok()
        {
            return fetched();
        }
        // Not every server gives out a commit that no reference names, and none a shortened one.
        let unnamed =
            ["unadvertised object", "not our ref", "couldn't find remote ref", "dumb http"];
        if is_hex(wanted) && says(&error, &unnamed) {
            let all = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];
            git.run(&[&fetch[..], &["--", &self.url], &all].concat())?;
            let revision = format!("{wanted}^{{commit}}");
            return git
                .run(&["rev-parse", "--verify", "--quiet", "--end-of-options", &revision])
                .map(|id| id.trim().to_owned())
                .map_err(|_| error);
        }
        Err(error)
    }
}

/// Returns what the files of a commit take on the disk, in bytes.
fn size(git: &Git<'_>, commit: &str) -> Result<u64> {
    let listed = git.run(&["ls-tree", "-r", "-l", "-z", "--full-tree", commit])?;
    // MODE TYPE ID SIZE, a tab, and the path; a submodule has no size.
    let sizes = listed.split('\0').filter_map(|line| {
        let (facts, _) = line.split_once('\t')?;
        facts.split_ascii_whitespace().nth(3)?.parse::<u64>().ok()
    });
    Ok(sizes.fold(0, |sum, size| sum.saturating_add(size).saturating_add(BLOCK)))
}

fn says(error: &Error, words: &[&str]) -> bool {
    let text = error.chain().join(" ");
    words.iter().any(|word| text.contains(word))
}

/// Removes what differs from build to build from `.git`, also from those of submodules: the record of
/// the fetch, and the state of this machine's files in the index.
pub(super) fn settle(git: &Git<'_>) -> Result<()> {
    git.run(&["read-tree", "HEAD"])?;
    let own = std::fs::canonicalize(git.directory).path("find", git.directory)?.join(".git");
    let mut directories = vec![own.clone()];
    if git.directory.join(".git/modules").is_dir() {
        let each = ["submodule", "--quiet", "foreach", "--recursive"];
        git.run(&[&each[..], &["git read-tree HEAD"]].concat())?;
        let printed = git.run(&[&each[..], &["git rev-parse --absolute-git-dir"]].concat())?;
        // A path may have a line break, and the rest of it be the path of something else.
        let is_below = |path: &PathBuf| {
            path.starts_with(&own) && !path.components().any(|part| part == Component::ParentDir)
        };
        directories.extend(printed.lines().map(PathBuf::from).filter(is_below));
    }
    for directory in directories {
        let record = directory.join(FETCHED);
        if record.exists() {
            std::fs::remove_file(&record).path("remove", &record)?;
        }
    }
    Ok(())
}
