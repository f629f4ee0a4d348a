//! The same walk on several threads, which read directories and examine entries at the same time. The
//! results are joined in layer order.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use super::{Found, Level, Visit, enter, report, walk_below};
use crate::error::{Error, IoContext, Result};
use crate::fs::root::Root;

/// Number of subtrees per thread: with several, a thread that gets small ones does not sit idle.
const SUBTREES: usize = 8;
/// Maximum number of levels that are read before the work is divided.
const LEVELS: usize = 4;

/// Decides about each path, as in [`walk`](super::walk).
pub type Visitor<'a> = Box<dyn FnMut(&[u8], bool) -> Visit + 'a>;

/// Walks like [`walk`](super::walk), on up to `threads` threads, and returns the results of `make` in
/// layer order. Each subtree gets its own visitor from `visitor`. The walk ends with one of its errors,
/// if there are any.
pub fn walk_in_parallel<'v, T: Send>(
    root: &Root,
    threads: usize,
    visitor: &(dyn Fn() -> Visitor<'v> + Sync),
    make: &(dyn Fn(Found<'_>) -> Result<Option<T>> + Sync),
) -> Result<Vec<T>> {
    let mut parts = split(root, Level::of(root)?, 1, visitor, make)?;
    for _ in 1..LEVELS {
        if threads < 2 || unread(&parts) >= threads * SUBTREES || unread(&parts) == 0 {
            break;
        }
        let mut finer = Vec::new();
        for part in parts {
            match part {
                Part::Unread(unread) => {
                    if let Some((level, depth)) = unread.read(root)? {
                        finer.extend(split(root, level, depth, visitor, make)?);
                    }
                }
                made => finer.push(made),
            }
        }
        parts = finer;
    }
    let walk = |unread: Unread| {
        let mut made = Vec::new();
        if let Some((level, depth)) = unread.read(root)? {
            let mut emit = |found: Found<'_>| {
                made.extend(make(found)?);
                Ok(())
            };
            walk_below(root, level, depth, &mut visitor(), &mut emit)?;
        }
        Ok(made)
    };
    assemble(parts, threads, &walk)
}

/// A part of the tree.
enum Part<T> {
    Made(Vec<T>),
    Unread(Unread),
}

/// A directory whose content has not been visited.
struct Unread {
    parent: Arc<OwnedFd>,
    name: CString,
    /// Its path, including the trailing slash.
    path: Vec<u8>,
    /// Number of levels from the start of the walk to its content.
    depth: usize,
}

impl Unread {
    fn read(self, root: &Root) -> Result<Option<(Level, usize)>> {
        let level = enter(root, &self.parent, &self.name, self.path)?;
        Ok(level.map(|level| (level, self.depth)))
    }
}

/// Visits the entries of one directory, and leaves its subdirectories unread.
fn split<'v, T>(
    root: &Root,
    mut level: Level,
    depth: usize,
    visitor: &(dyn Fn() -> Visitor<'v> + Sync),
    make: &(dyn Fn(Found<'_>) -> Result<Option<T>> + Sync),
) -> Result<Vec<Part<T>>> {
    let mut parts = Vec::new();
    let mut made = Vec::new();
    let mut path = Vec::new();
    let mut visit = visitor();
    while let Some(event) = level.events.pop() {
        if event.enter {
            let Some(name) = level.names.name(&event) else { continue };
            parts.push(Part::Made(std::mem::take(&mut made)));
            parts.push(Part::Unread(Unread {
                parent: Arc::clone(&level.fd),
                name: name.to_owned(),
                path: level.below(name),
                depth: depth + 1,
            }));
            continue;
        }
        report(root, &mut level, &event, &mut path, &mut visit, &mut |found| {
            made.extend(make(found)?);
            Ok(())
        })?;
    }
    parts.push(Part::Made(made));
    Ok(parts)
}

/// Walks the unread parts, and joins all parts in order.
fn assemble<T: Send>(
    parts: Vec<Part<T>>,
    threads: usize,
    walk: &(dyn Fn(Unread) -> Result<Vec<T>> + Sync),
) -> Result<Vec<T>> {
    let mut whole = Vec::new();
    let workers = threads.min(unread(&parts));
    if workers < 2 {
        for part in parts {
            match part {
                Part::Made(made) => whole.extend(made),
                Part::Unread(directory) => whole.extend(walk(directory)?),
            }
        }
        return Ok(whole);
    }
    let mut order = Vec::new();
    let mut queue = Vec::new();
    for part in parts {
        order.push(match part {
            Part::Made(made) => Ok(made),
            Part::Unread(directory) => {
                let (sender, receiver) = mpsc::sync_channel(1);
                queue.push((directory, sender));
                Err(receiver)
            }
        });
    }
    let queue = Mutex::new(queue.into_iter());
    let stop = AtomicBool::new(false);
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((directory, done)) = next else { return };
            // Nobody waits for it after an error.
            let _ = done.send(walk(directory));
        }
    };
    thread::scope(|scope| {
        for _ in 0..workers {
            thread::Builder::new()
                .name("walk".to_owned())
                .spawn_scoped(scope, work)
                .doing(|| "cannot start a thread".to_owned())?;
        }
        for part in order {
            let made = part.or_else(|done| {
                let died = |_| Error::failed("a thread that walks a directory has died");
                done.recv().map_err(died)?
            });
            whole.extend(made.inspect_err(|_| stop.store(true, Ordering::Relaxed))?);
        }
        Ok(whole)
    })
}

/// Returns the number of parts to be walked.
fn unread<T>(parts: &[Part<T>]) -> usize {
    parts.iter().filter(|part| matches!(part, Part::Unread(_))).count()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::fs::walk::walk;

    /// Makes directories of different shapes: wide, deep, empty, names that sort around `/`.
    fn tree(directory: &Path) -> Root {
        for n in 0..40 {
            let below = directory.join(format!("d{}/{n}/x", n % 3));
            std::fs::create_dir_all(&below).unwrap();
            for file in 0..n {
                std::fs::write(below.join(format!("f{file}")), "").unwrap();
            }
            std::fs::write(directory.join(format!("d{}/{n}-a", n % 3)), "").unwrap();
            std::fs::write(directory.join(format!("d{}/{n}.a", n % 3)), "").unwrap();
        }
        std::fs::create_dir_all(directory.join("deep/1/2/3/4/5/6/7")).unwrap();
        std::fs::create_dir_all(directory.join("skip/this/or")).unwrap();
        std::fs::write(directory.join("skip/this/or/that"), "").unwrap();
        std::fs::create_dir_all(directory.join("prune/all")).unwrap();
        symlink("/", directory.join("deep/up")).unwrap();
        Root::open(directory).unwrap()
    }

    fn decide(path: &[u8], _is_directory: bool) -> Visit {
        match path {
            b"skip" | b"skip/this" => Visit::Skip,
            b"prune" | b"d0/3" => Visit::Prune,
            _ => Visit::Keep,
        }
    }

    fn in_parallel(root: &Root, threads: usize) -> Result<Vec<Vec<u8>>> {
        walk_in_parallel(root, threads, &|| Box::new(decide), &|found| {
            Ok(Some(found.path.to_vec()))
        })
    }

    #[test]
    fn any_number_of_threads_finds_the_same_in_the_same_order() {
        let directory = tempfile::tempdir().unwrap();
        let root = tree(directory.path());
        let mut found = Vec::new();
        walk(&root, &mut decide, &mut |one| {
            found.push(one.path.to_vec());
            Ok(())
        })
        .unwrap();
        assert!(found.len() > 900);
        for threads in [0, 1, 2, 3, 16, 500] {
            assert_eq!(in_parallel(&root, threads).unwrap(), found, "{threads} threads");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(in_parallel(&Root::open(empty.path()).unwrap(), 4).unwrap().is_empty());
    }

    #[test]
    fn an_error_ends_the_walk() {
        let directory = tempfile::tempdir().unwrap();
        let root = tree(directory.path());
        let fail = |found: Found<'_>| match found.path {
            b"d1/13/x/f3" => Err(Error::failed("no")),
            _ => Ok(Some(())),
        };
        for threads in [1, 2, 8] {
            let error = walk_in_parallel(&root, threads, &|| Box::new(decide), &fail).unwrap_err();
            assert_eq!(error.message(), "no", "{threads} threads");
        }
    }
}
