//! Finds the parts of an archive, wherever they lie and whatever they are called, and reads them as
//! one stream whose every part has its digest.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::transfer::parts::list::{Part, PartList};
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::image::{Digest, Hasher};
use imgctl_base::progress::Task;

/// Size of the buffer for hashing, in bytes.
const BUFFER: usize = 256 << 10;
/// Maximum number of files in a directory that are considered.
const MAX_FILES: usize = 100_000;
/// Maximum number of parts in a message.
const SHOWN: usize = 10;

/// The parts of one archive, and where each of them is.
#[derive(Clone, Debug)]
pub struct PartSet {
    list: PartList,
    places: Vec<Place>,
}

#[derive(Clone, Debug)]
enum Place {
    /// A file of the right size.
    Here(PathBuf),
    /// A file of the part's name and another size.
    Wrong(PathBuf, u64),
    Missing,
}

/// What is wrong with a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its number, counted from 1.
    pub number: usize,
    pub part: Part,
    pub damage: Damage,
}

/// How a part is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    Missing,
    /// It has this many bytes.
    Size(u64),
    /// Its content has this digest.
    Digest(Digest),
}

impl Fault {
    /// Says what is wrong, as the end of a sentence that begins with the part.
    pub fn detail(&self) -> String {
        match &self.damage {
            Damage::Missing => "is missing".to_owned(),
            Damage::Size(size) => {
                format!("is damaged (it has {size} bytes instead of {})", self.part.size)
            }
            Damage::Digest(digest) => format!("is damaged (its content has the digest {digest})"),
        }
    }
}

impl PartSet {
    /// Looks for the parts in `directories` and among the files `loose`, from which it takes those
    /// that are parts: first by name, then by content.
    pub(in crate::transfer) fn locate(
        list: PartList,
        directories: &[PathBuf],
        loose: &mut Vec<PathBuf>,
    ) -> Result<Self> {
        let mut places = Vec::with_capacity(list.parts.len());
        for part in &list.parts {
            places.push(by_name(part, directories, loose)?);
        }
        let mut set = Self { list, places };
        if set.places.iter().any(|place| !matches!(place, Place::Here(_))) {
            set.by_content(directories, loose)?;
        }
        Ok(set)
    }

    /// Looks for parts with other names: files of a missing part's size with its digest.
    fn by_content(&mut self, directories: &[PathBuf], loose: &mut Vec<PathBuf>) -> Result<()> {
        let mut candidates = loose.clone();
        for directory in directories {
            for entry in std::fs::read_dir(directory).path("read", directory)?.take(MAX_FILES) {
                candidates.push(entry.path("read", directory)?.path());
            }
        }
        let used: Vec<PathBuf> = self.places.iter().filter_map(Place::path).collect();
        candidates.sort();
        candidates.dedup();
        candidates.retain(|path| !used.contains(path));
        let mut known: HashMap<PathBuf, Digest> = HashMap::new();
        for (part, place) in self.list.parts.iter().zip(&mut self.places) {
            if matches!(place, Place::Here(_)) {
                continue;
            }
            for path in &candidates {
                if size_of(path)? != Some(part.size) {
                    continue;
                }
                let digest = match known.get(path) {
                    Some(digest) => digest.clone(),
                    None => {
                        let digest = hashed(path, &mut |_| {})?;
                        known.insert(path.clone(), digest.clone());
                        digest
                    }
                };
                if digest == part.digest {
                    loose.retain(|other| other != path);
                    *place = Place::Here(path.clone());
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the list.
    pub fn list(&self) -> &PartList {
        &self.list
    }

    /// Returns the parts that are known to be unusable without reading any.
    pub fn absent(&self) -> Vec<Fault> {
        let damage = |place: &Place| match place {
            Place::Here(_) => None,
            Place::Wrong(_, size) => Some(Damage::Size(*size)),
            Place::Missing => Some(Damage::Missing),
        };
        let places = self.places.iter().enumerate();
        places.filter_map(|(at, place)| Some(self.fault(at, damage(place)?))).collect()
    }

    /// Reads all parts and returns those that are unusable.
    pub fn faults(&self, task: &dyn Task) -> Result<Vec<Fault>> {
        let mut faults = self.absent();
        for (at, (part, place)) in self.list.parts.iter().zip(&self.places).enumerate() {
            if let Place::Here(path) = place {
                let digest = hashed(path, &mut |bytes| task.advance(bytes))?;
                if digest != part.digest {
                    faults.push(self.fault(at, Damage::Digest(digest)));
                }
            }
        }
        faults.sort_by_key(|fault| fault.number);
        Ok(faults)
    }

    fn fault(&self, at: usize, damage: Damage) -> Fault {
        let part = self.list.parts[at].clone();
        Fault { number: at + 1, part, damage }
    }

    /// Returns the error that asks for the parts in `faults`, of which there is at least one.
    pub fn asks_for(&self, faults: &[Fault]) -> Error {
        let count = self.list.parts.len();
        let is_missing = faults.iter().all(|fault| fault.damage == Damage::Missing);
        let kind = if is_missing { Kind::NotFound } else { Kind::BadContent };
        let message = match faults {
            [fault] => {
                let Fault { number, part, .. } = fault;
                format!("part {number} of {count}, {}, {}", part.name, fault.detail())
            }
            _ => {
                let said = |fault: &Fault| {
                    format!("part {}, {}, {}", fault.number, fault.part.name, fault.detail())
                };
                let mut said: Vec<String> = faults.iter().take(SHOWN).map(said).collect();
                if faults.len() > SHOWN {
                    said.push(format!("and {} more", faults.len() - SHOWN));
                }
                format!("{} of the {count} parts: {}", faults.len(), said.join("; "))
            }
        };
        let these = if faults.len() == 1 { "it" } else { "them" };
        Error::new(kind, message).hint(format!(
            "copy {these} again beside the others, or name the directories and files with parts \
             one by one"
        ))
    }

    /// Opens the archive. Reading fails at a part that is unusable.
    pub fn open(&self) -> impl Read + Send + 'static {
        Joined { set: self.clone(), next: 0, current: None }
    }
}

impl Place {
    fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Here(path) | Self::Wrong(path, _) => Some(path.clone()),
            Self::Missing => None,
        }
    }
}

/// Looks for a part by its name. A file of the right size is preferred.
fn by_name(part: &Part, directories: &[PathBuf], loose: &mut Vec<PathBuf>) -> Result<Place> {
    let mut found = Place::Missing;
    let is_named = |path: &PathBuf| path.file_name().is_some_and(|name| name == &*part.name);
    let named: Vec<PathBuf> = loose.iter().filter(|path| is_named(path)).cloned().collect();
    loose.retain(|path| !is_named(path));
    let beside = directories.iter().map(|directory| directory.join(&part.name));
    for path in named.into_iter().chain(beside) {
        match size_of(&path)? {
            Some(size) if size == part.size => return Ok(Place::Here(path)),
            Some(size) => found = Place::Wrong(path, size),
            None => {}
        }
    }
    Ok(found)
}

/// The size of a regular file; `None` if there is none.
fn size_of(path: &Path) -> Result<Option<u64>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_file().then_some(metadata.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("cannot look at {}", path.display()), error)),
    }
}

fn hashed(path: &Path, moved: &mut dyn FnMut(u64)) -> Result<Digest> {
    let mut file = File::open(path).path("open", path)?;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                moved(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(format!("cannot read {}", path.display()), error)),
        }
    }
}

/// The parts one after another.
struct Joined {
    set: PartSet,
    next: usize,
    current: Option<Current>,
}

/// The part being read.
struct Current {
    file: File,
    hasher: Hasher,
    read: u64,
}

impl Read for Joined {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(current) = &mut self.current else {
                let Some(place) = self.set.places.get(self.next) else {
                    return Ok(0);
                };
                let Place::Here(path) = place else {
                    return Err(self.set.asks_for(&self.set.absent()).into());
                };
                let file = File::open(path).path("open", path)?;
                self.current = Some(Current { file, hasher: Hasher::new(), read: 0 });
                continue;
            };
            let count = current.file.read(buffer)?;
            current.hasher.update(&buffer[..count]);
            current.read += count as u64;
            if count > 0 {
                return Ok(count);
            }
            self.verify()?;
        }
    }
}

impl Joined {
    /// Ends the current part, which must be what the list says.
    fn verify(&mut self) -> Result<()> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let part = &self.set.list.parts[self.next];
        let digest = current.hasher.finish();
        let damage = if current.read != part.size {
            Damage::Size(current.read)
        } else if digest != part.digest {
            Damage::Digest(digest)
        } else {
            self.next += 1;
            return Ok(());
        };
        Err(self.set.asks_for(&[self.set.fault(self.next, damage)]))
    }
}
