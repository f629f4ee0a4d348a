//! Power cuts: what a command has acknowledged (exit code 0) is there and whole on the disk as it
//! was at that instant; what it had begun is there whole or not at all.
//!
//! The store is on ext4 on a loop device. At a random instant the command is killed or stopped (in
//! a third of the rounds it has just ended), the device's backing file is copied, and the copy is
//! mounted in its place, as after a reboot: ext4 replays its journal, and everything that was only
//! in the page cache of the store's file system is lost. The next round goes on from there.
//!
//! What the copy has: the loop driver writes into the page cache of the backing file before it
//! completes a request (no direct I/O), and a read of that file sees it. So all that ext4 has sent
//! to its device is in the copy, which fsync waits for, and nothing else is. The copy is of one
//! instant: it counts only if the device had no request in flight and completed none meanwhile.
//! Not seen: a device that loses what it has taken but not flushed; the flush is ext4's business.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, long, needs_root, tool};
use crate::faults::support::{noise, random};

/// Power cuts in the short selection and in the long one.
const ROUNDS: (usize, usize) = (30, 1000);
/// Images that are pulled and loaded in turn.
const VARIANTS: usize = 3;
/// Bytes of the store's file system.
const DISK: u64 = 96 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Build,
    Pull,
    Load,
    Tag,
    Rmi,
    Prune,
}

const VERBS: [Verb; 6] = [Verb::Build, Verb::Pull, Verb::Load, Verb::Tag, Verb::Rmi, Verb::Prune];

/// What one command does to the names.
struct Change {
    arguments: Vec<String>,
    /// The name that it sets and the marker of that image.
    sets: Option<(String, String)>,
    removes: Option<String>,
}

/// A machine whose only disk is a file.
struct Machine {
    env: TestEnv,
    registry: Registry,
    /// Where the disks are; in memory if that can be, so that a flush costs nothing.
    disks: tempfile::TempDir,
    disk: PathBuf,
    cuts: usize,
    /// Markers of the images that must be there, by their full names.
    known: BTreeMap<String, String>,
    digests: BTreeMap<String, String>,
    /// How long each command takes at least when it is left alone.
    times: BTreeMap<Verb, Duration>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.env.root()).output();
    }
}

/// Files that are nobody else's, and one that tells which image it is.
fn context(env: &TestEnv, directory: &str, marker: &str) -> PathBuf {
    let kubefile = "FROM scratch\nCOPY data /data\nCOPY marker /marker\n";
    let context = env.context(directory, kubefile, &[("marker", marker)]);
    for number in 0..4 {
        env.write(format!("{directory}/data/{number}"), noise(random(), 250_000));
    }
    context
}

impl Machine {
    fn new() -> Self {
        let env = TestEnv::new();
        let registry = Registry::start();
        // The images to pull and to load come from a store of their own.
        let elsewhere = TestEnv::new();
        for variant in 0..VARIANTS {
            for kind in ["pulled", "loaded"] {
                let name = format!("{kind}:{variant}");
                elsewhere.build(&name, &context(&elsewhere, "context", &name));
            }
            registry.fill(&elsewhere.root(), &format!("pulled:{variant}"));
            let archive = env.path(format!("loaded-{variant}.tar"));
            let loaded = format!("loaded:{variant}");
            elsewhere.imgctl(["save", &loaded, "-o", archive.to_str().unwrap()]).ok();
        }
        let disks = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let disks = disks.unwrap();
        let disk = disks.path().join("disk-0");
        let file = std::fs::File::create(&disk).unwrap();
        file.set_len(DISK).unwrap();
        // Nothing is left to be initialised in the background.
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        let path = disk.to_str().unwrap();
        Ran::new(tool("mkfs.ext4", ["-q", "-F", "-m", "0", "-E", lazy, path])).ok();
        std::fs::create_dir(env.root()).unwrap();
        let machine = Self {
            env,
            registry,
            disks,
            disk,
            cuts: 0,
            known: BTreeMap::new(),
            digests: BTreeMap::new(),
            times: BTreeMap::new(),
        };
        machine.mount();
        machine
    }

    fn mount(&self) {
        let (disk, root) = (self.disk.to_str().unwrap(), self.env.root());
        let words = ["-t", "ext4", "-o", "loop", disk, root.to_str().unwrap()];
        Ran::new(tool("mount", words)).ok();
    }

    /// The kernel's figures of the device under the store: requests completed (reads, writes,
    /// discards, flushes apart), and those in flight.
    fn device(&self) -> (Vec<u64>, u64) {
        let root = self.env.root();
        let words = ["--noheadings", "--output", "SOURCE", root.to_str().unwrap()];
        let device = Ran::new(tool("findmnt", words)).ok().stdout();
        let name = Path::new(device.trim()).file_name().unwrap().to_owned();
        let path = Path::new("/sys/block").join(name).join("stat");
        let text = std::fs::read_to_string(path).unwrap();
        let figures: Vec<u64> =
            text.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
        let writes = [4, 6, 11, 13, 15];
        let completed = writes.iter().filter_map(|at| figures.get(*at).copied());
        (completed.collect(), figures[8])
    }

    /// Cuts the power and boots again: the disk is what it was at this instant.
    fn cut(&mut self, running: Option<&mut Child>) {
        self.cuts += 1;
        let copy = self.disks.path().join(format!("disk-{}", self.cuts));
        let begun = Instant::now();
        loop {
            let (before, flying) = self.device();
            if flying == 0 {
                std::fs::copy(&self.disk, &copy).unwrap();
                if self.device() == (before, 0) {
                    break;
                }
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "the device never rests");
            std::thread::sleep(Duration::from_millis(2));
        }
        if let Some(child) = running {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let root = self.env.root();
        Ran::new(tool("umount", [root.to_str().unwrap()])).ok();
        std::fs::remove_file(&self.disk).unwrap();
        self.disk = copy;
        self.mount();
    }

    fn change(&self, verb: Verb, round: usize) -> Change {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let some = |number: u64| {
            let at = usize::try_from(number).unwrap_or_default() % self.known.len();
            self.known.iter().nth(at).unwrap()
        };
        match verb {
            Verb::Build => {
                let name = format!("localhost/built:{round}");
                let path = context(&self.env, "context", &name);
                Change {
                    arguments: words(&["build", "-t", &name, path.to_str().unwrap()]),
                    sets: Some((name.clone(), name)),
                    removes: None,
                }
            }
            Verb::Pull => {
                let variant = format!("pulled:{}", round % VARIANTS);
                let name = format!("{}/{variant}", self.registry.host);
                Change {
                    arguments: words(&["pull", "--unpack", &name]),
                    sets: Some((name, variant)),
                    removes: None,
                }
            }
            Verb::Load => {
                let variant = round % VARIANTS;
                let archive = format!("loaded-{variant}.tar");
                let marker = format!("loaded:{variant}");
                Change {
                    arguments: words(&["load", "-i", &archive]),
                    sets: Some((format!("localhost/{marker}"), marker)),
                    removes: None,
                }
            }
            Verb::Tag => {
                let (from, marker) = some(random());
                let name = format!("localhost/tagged:{round}");
                Change {
                    arguments: words(&["tag", from, &name]),
                    sets: Some((name, marker.clone())),
                    removes: None,
                }
            }
            Verb::Rmi => {
                let (name, _) = some(random());
                Change { arguments: words(&["rmi", name]), sets: None, removes: Some(name.clone()) }
            }
            Verb::Prune => {
                Change { arguments: words(&["prune", "--all"]), sets: None, removes: None }
            }
        }
    }

    /// Runs the command, cuts the power after `delay` (`None`: when it has ended), and looks at what
    /// there is. Says whether the command had ended.
    fn round(&mut self, verb: Verb, round: usize, delay: Option<Duration>) -> bool {
        let change = self.change(verb, round);
        let errors = self.env.path("errors");
        let mut command = self.env.command(&change.arguments);
        let file = std::fs::File::create(&errors).unwrap();
        let begun = Instant::now();
        let mut child = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let ended = match delay {
            None => Some(child.wait().unwrap()),
            Some(delay) => {
                std::thread::sleep(delay);
                child.try_wait().unwrap()
            }
        };
        if let Some(status) = ended {
            let said = std::fs::read_to_string(&errors).unwrap();
            assert!(status.success(), "{:?}: {said}", change.arguments);
            if delay.is_none() {
                let time = self.times.entry(verb).or_insert(Duration::MAX);
                *time = begun.elapsed().min(*time);
            }
            self.cut(None);
            if let Some((name, marker)) = &change.sets {
                self.digests.remove(name);
                self.known.insert(name.clone(), marker.clone());
            }
            if let Some(name) = &change.removes {
                self.known.remove(name);
                self.digests.remove(name);
            }
        } else {
            // Stopped, it keeps what the kernel would let go at its end.
            if random().is_multiple_of(2) {
                kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
                self.cut(Some(&mut child));
            } else {
                child.kill().unwrap();
                child.wait().unwrap();
                self.cut(None);
            }
        }
        println!("round {round}: {verb:?} {delay:?}, ended: {}", ended.is_some());
        self.check(&change, ended.is_some());
        ended.is_some()
    }

    fn check(&mut self, change: &Change, ended: bool) {
        self.env.imgctl(["scrub"]).ok();
        let images = self.env.imgctl(["images", "--json"]).ok().json();
        let mut here: BTreeMap<String, String> = BTreeMap::new();
        for image in images.as_array().unwrap() {
            let names = image["names"].as_array().unwrap().iter();
            let digest = image["digest"].as_str().unwrap();
            here.extend(names.map(|name| (name.as_str().unwrap().to_owned(), digest.to_owned())));
        }
        if !ended {
            // All of it or nothing.
            if let Some((name, marker)) = &change.sets
                && here.contains_key(name)
            {
                self.known.insert(name.clone(), marker.clone());
            }
            if let Some(name) = &change.removes
                && !here.contains_key(name)
            {
                self.known.remove(name);
                self.digests.remove(name);
            }
        }
        let expected: Vec<&String> = self.known.keys().collect();
        let found: Vec<&String> = here.keys().collect();
        assert_eq!(found, expected, "names after {:?}", change.arguments);
        for (name, digest) in here {
            let before = self.digests.entry(name.clone()).or_insert(digest.clone());
            assert_eq!(*before, digest, "{name}");
        }
        if self.known.is_empty() {
            return;
        }
        let markers: Vec<String> = self.known.keys().map(|n| format!("{n}:/marker")).collect();
        let words = std::iter::once("cat").chain(markers.iter().map(String::as_str));
        let read = self.env.imgctl(words).ok().stdout();
        let expected: String = self.known.values().map(String::as_str).collect();
        assert_eq!(read, expected);
    }
}

#[test]
fn power_cuts_lose_nothing_that_was_acknowledged() {
    if !needs_root() {
        return;
    }
    let mut machine = Machine::new();
    // Left alone first, each once.
    for (number, verb) in VERBS.into_iter().enumerate() {
        machine.round(verb, number, None);
    }
    let rounds = if long() { ROUNDS.1 } else { ROUNDS.0 };
    let mut hit = 0;
    for round in 0..rounds {
        let verb = match VERBS[round % VERBS.len()] {
            // Without images there is nothing to tag or to remove.
            Verb::Tag | Verb::Rmi if machine.known.is_empty() => Verb::Build,
            // The disk is small.
            _ if machine.known.len() > 12 => Verb::Rmi,
            verb => verb,
        };
        let part = (random() >> 11) as f64 / (1_u64 << 53) as f64;
        // Each verb in turn is left alone in every third of its rounds.
        let is_cut = (round + round / VERBS.len()) % 3 != 2;
        let delay = is_cut.then(|| machine.times[&verb].mul_f64(part));
        hit += usize::from(!machine.round(verb, VERBS.len() + round, delay));
    }
    println!("{hit} of {rounds} commands were cut off");
    assert!(hit * 6 >= rounds, "only {hit} of {rounds} were cut off");
}
