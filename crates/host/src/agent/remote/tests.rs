//! Tests with a real agent in a process of its own: this test program, started through a real
//! shell.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::agent::protocol::Assemble;
use crate::agent::remote::testing::{self, Host, agent_script, runtime};
use imgctl_base::error::{Error, Kind};
use imgctl_layer::delta::{self, Base};
use imgctl_layer::{Compression, Entry, EntryKind, LayerPath, LayerWriter};

/// Not a test: the agent that the tests start. Its store is the working directory.
#[test]
#[ignore = "it is the agent that the tests here start"]
fn child() {
    testing::serve();
}

/// Returns pseudorandom bytes.
fn content(size: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

fn descriptor(bytes: &[u8]) -> Descriptor {
    Descriptor::new("x/y", Digest::of(bytes), bytes.len() as u64)
}

fn send(host: &Host, bytes: &Arc<Vec<u8>>) -> Result<u64> {
    let sent = AtomicU64::new(0);
    let open = |offset: u64| -> Result<Box<dyn Read + Send>> {
        let mut reader = std::io::Cursor::new(Shared(Arc::clone(bytes)));
        reader.set_position(offset);
        Ok(Box::new(reader))
    };
    host.remote.send_blob(&descriptor(bytes), &open, &|count| {
        sent.fetch_add(count, Ordering::Relaxed);
    })?;
    Ok(sent.into_inner())
}

struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn a_shell_that_talks_hides_no_agent_and_files_come_and_go() {
    let runtime = runtime();
    let motd = "echo Welcome; echo >&2 oh; printf 'last login'; ";
    let host = Host::with(&runtime, motd, true, &agent_script);
    let facts = host.remote.facts().unwrap();
    assert!(facts.skew_ms.abs() < 500, "{}", facts.skew_ms);
    assert!(facts.cpus > 0 && facts.writable);
    let file =
        FileToWrite { path: host.path("deep/file"), mode: 0o640, content: (0..=255).collect() };
    assert!(host.remote.write_file(&file).unwrap());
    assert!(!host.remote.write_file(&file).unwrap());
    let read = host.remote.read_file(&file.path, 1000).unwrap();
    assert_eq!(read.unwrap(), file.content);
    let error = host.remote.read_file(&file.path, 10).unwrap_err();
    assert_eq!(error.kind(), Kind::BadContent);
    assert!(error.to_string().starts_with("10.9.9.9: "), "{error}");
    let left = host.remote.remove(&[host.path("deep"), "relative".to_owned()]);
    assert_eq!(left.unwrap().len(), 1);
    assert_eq!(host.remote.read_file(&file.path, 1000).unwrap(), None);
    let wrong = HostsBlock { cluster: "a\nb".to_owned(), entries: Vec::new() };
    assert_eq!(host.remote.set_hosts(&wrong).unwrap_err().kind(), Kind::Usage);
    assert_eq!(host.agents(), 1);
}

#[test]
fn parts_of_files_go_both_ways_as_they_are() {
    let runtime = runtime();
    let host = Host::with(&runtime, "", true, &agent_script);
    let path = host.path("deep/large");
    // Also what looks like JSON, and nothing at all.
    let parts = [content(3 << 20, 7), b"{}\n\"".to_vec(), Vec::new(), content(100, 8)];
    let (mut offset, whole) = (0, parts.concat());
    for (number, part) in parts.iter().enumerate() {
        let write = WritePart {
            path: path.clone(),
            mode: 0o600,
            offset,
            content: part.clone(),
            compressed: false,
            is_last: number == 3,
        };
        host.remote.write_part(&write).unwrap();
        offset += part.len() as u64;
    }
    for (offset, length) in [(0, 4 << 20), (0, 1), (3 << 20, 4), (offset, 1)] {
        let part = ReadPart { path: path.clone(), offset, length, compress: false };
        let read = host.remote.read_part(&part).unwrap();
        let start = usize::try_from(offset).unwrap();
        let end = whole.len().min(start + usize::try_from(length).unwrap());
        assert!(read == whole[start..end], "{offset} {length} {}", read.len());
    }
    let missing = ReadPart { path: host.path("no"), offset: 0, length: 1, compress: false };
    assert_eq!(host.remote.read_part(&missing).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn blobs_of_all_sizes_arrive_once() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    let mut blobs = Vec::new();
    for (seed, size) in [0, 1, 2, 1000, 256 << 10, (256 << 10) + 1, 3 << 20].into_iter().enumerate()
    {
        let bytes = Arc::new(content(size, u8::try_from(seed).unwrap()));
        assert_eq!(send(&host, &bytes).unwrap(), size as u64);
        // Reported as sent, although nothing is sent.
        assert_eq!(send(&host, &bytes).unwrap(), size as u64);
        assert!(host.store().verify_blob(&descriptor(&bytes).digest).unwrap());
        blobs.push(descriptor(&bytes).digest);
    }
    let question = InventoryQuestion {
        blobs: [&blobs[..], &[Digest::of(b"not there")]].concat(),
        ..InventoryQuestion::default()
    };
    assert_eq!(host.remote.inventory(&question).unwrap().blobs, blobs);
}

#[test]
fn a_blob_goes_on_after_the_agent_was_killed() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    let bytes = Arc::new(content(48 << 20, 7));
    let (sent, kills, offsets) = (AtomicU64::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let open = |offset: u64| -> Result<Box<dyn Read + Send>> {
        offsets.lock().unwrap().push(offset);
        let mut reader = std::io::Cursor::new(Shared(Arc::clone(&bytes)));
        reader.set_position(offset);
        Ok(Box::new(Slow(reader)))
    };
    let outcome = host.remote.send_blob(&descriptor(&bytes), &open, &|count| {
        let sent = sent.fetch_add(count, Ordering::Relaxed) + count;
        let kills_due = [12 << 20, 30 << 20].iter().filter(|due| sent > **due).count();
        if kills.load(Ordering::Relaxed) < kills_due {
            kills.fetch_add(1, Ordering::Relaxed);
            host.kill();
        }
    });
    outcome.unwrap();
    assert_eq!(sent.into_inner(), bytes.len() as u64);
    let offsets = offsets.into_inner().unwrap();
    assert_eq!(offsets.len(), 3, "{offsets:?}");
    assert!(offsets[1] > 4 << 20 && offsets[2] > offsets[1], "{offsets:?}");
    assert_eq!(host.agents(), 3);
    assert!(host.store().verify_blob(&descriptor(&bytes).digest).unwrap());
}

/// A source that delivers 1 MiB every 10 ms.
struct Slow<R>(R);

impl<R: Read> Read for Slow<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_millis(10));
        let length = buffer.len().min(1 << 20);
        self.0.read(&mut buffer[..length])
    }
}

#[test]
fn a_source_that_fails_and_bytes_of_another_blob_are_errors() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    let bytes = content(2 << 20, 3);
    let short = |_| -> Result<Box<dyn Read + Send>> { Ok(Box::new(&b"short"[..])) };
    let error = host.remote.send_blob(&descriptor(&bytes), &short, &|_| {});
    let error = error.unwrap_err();
    assert!(error.to_string().contains("too early"), "{error}");
    let denied = |_| -> Result<Box<dyn Read + Send>> { Err(Error::denied("no")) };
    let error = host.remote.send_blob(&descriptor(&bytes), &denied, &|_| {});
    assert_eq!(error.unwrap_err().kind(), Kind::Denied);
    let other = |_| -> Result<Box<dyn Read + Send>> {
        Ok(Box::new(std::io::Cursor::new(content(2 << 20, 4))))
    };
    let blob = Descriptor::new("x/y", Digest::of(b"else"), 2 << 20);
    let error = host.remote.send_blob(&blob, &other, &|_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::BadContent, "{error}");
    assert!(host.store().blob_size(&blob.digest).unwrap().is_none());
    assert_eq!(send(&host, &Arc::new(bytes)).unwrap(), 2 << 20);
}

#[test]
fn a_hundred_calls_at_once_share_one_agent() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    std::thread::scope(|scope| {
        for number in 0..100 {
            let host = &host;
            scope.spawn(move || {
                let file = FileToWrite {
                    path: host.path(&format!("many/{number}")),
                    mode: 0o644,
                    content: vec![u8::try_from(number).unwrap(); 10_000],
                };
                assert!(host.remote.write_file(&file).unwrap());
                let read = host.remote.read_file(&file.path, 20_000).unwrap();
                assert_eq!(read.unwrap(), file.content);
            });
        }
    });
    assert_eq!(host.agents(), 1);
}

#[test]
fn a_lost_agent_is_started_anew_and_ends_with_its_controller() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    host.remote.facts().unwrap();
    for agents in 2..=3 {
        host.kill();
        assert!(host.remote.read_file("/proc/version", 10_000).unwrap().is_some());
        assert_eq!(host.agents(), agents);
    }
    let Host { shell, remote, directory: _directory } = host;
    let pid = *shell.pids.lock().unwrap().last().unwrap();
    drop(remote);
    for _ in 0..500 {
        if !Path::new(&format!("/proc/{pid}/cwd")).exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("agent {pid} is still there");
}

#[test]
fn what_is_no_agent_is_told() {
    let runtime = runtime();
    for (script, expected) in [
        ("#!/bin/sh\necho; echo imgctl-agent 77 9.9.9; sleep 1\n", "9.9.9 (protocol 77)"),
        (
            "#!/bin/sh\necho cannot load libx.so >&2; exit 127\n",
            "with code 127: cannot load libx.so",
        ),
        ("#!/bin/sh\necho hello; kill -9 $$\n", "by signal 9: hello"),
        ("#!/nowhere/interpreter\n", "with code 127"),
        ("#!/bin/sh\necho; echo imgctl-agent-needed Plan9 mips\n", "cannot be run"),
    ] {
        let host = Host::with(&runtime, "", true, &|_| script.to_owned());
        let error = host.remote.facts().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
        assert!(text.starts_with("10.9.9.9: cannot start the agent"), "{text}");
    }
}

#[test]
fn the_program_is_sent_once() {
    let runtime = runtime();
    let host = Host::with(&runtime, "echo hi; ", false, &agent_script);
    host.remote.facts().unwrap();
    // One command each to query, upload and start.
    assert_eq!(host.shell.lines.load(Ordering::Relaxed), 3);
    host.kill();
    host.remote.read_file("/proc/version", 10_000).unwrap();
    assert_eq!(host.shell.lines.load(Ordering::Relaxed), 4);
    let kept = std::fs::read_dir(host.path("kept")).unwrap().count();
    assert_eq!(kept, 1);
}

#[test]
fn eight_hosts_serve_each_other() {
    let runtime = runtime();
    let hosts: Vec<Host> = (0..8).map(|_| Host::new(&runtime)).collect();
    let blobs: Vec<Arc<Vec<u8>>> =
        (0..8).map(|seed| Arc::new(content((1 << 20) + usize::from(seed), seed))).collect();
    let descriptors: Vec<Descriptor> = blobs.iter().map(|bytes| descriptor(bytes)).collect();
    for (host, bytes) in hosts.iter().zip(&blobs) {
        send(host, bytes).unwrap();
    }
    let offers: Vec<PeerSource> = hosts.iter().map(|host| host.remote.offer().unwrap()).collect();
    std::thread::scope(|scope| {
        for (number, host) in hosts.iter().enumerate() {
            let (offers, descriptors) = (&offers, &descriptors);
            scope.spawn(move || {
                for (from, offer) in offers.iter().enumerate() {
                    let bytes = AtomicU64::new(0);
                    let wanted = [descriptors[from].clone(), descriptor(b"nobody has it")];
                    let mut offer = offer.clone();
                    // Nothing listens at this address; the next one is the right one.
                    offer.addresses.insert(0, "127.9.9.9".to_owned());
                    let fetched = |count| {
                        bytes.fetch_add(count, Ordering::Relaxed);
                    };
                    let mut missing = host.remote.fetch(&offer, &wanted, &fetched).unwrap();
                    // A busy machine may accept a connection later than a host waits.
                    for _ in 0..20 {
                        if missing.len() < wanted.len() {
                            break;
                        }
                        missing = host.remote.fetch(&offer, &wanted, &fetched).unwrap();
                    }
                    assert_eq!(missing, [descriptor(b"nobody has it").digest]);
                    // A machine that stands still for a minute loses connections. The repeated
                    // call then finds the blob in the store and has nothing to report.
                    if host.agents() == 1 {
                        let expected = if from == number { 0 } else { wanted[0].size };
                        assert_eq!(bytes.into_inner(), expected);
                    }
                }
            });
        }
    });
    for host in &hosts {
        for blob in &descriptors {
            assert!(host.store().verify_blob(&blob.digest).unwrap());
        }
    }
}

#[test]
fn offers_are_for_those_who_know_the_token_and_end() {
    let runtime = runtime();
    let (giver, taker) = (Host::new(&runtime), Host::new(&runtime));
    let bytes = Arc::new(content(100_000, 1));
    send(&giver, &bytes).unwrap();
    let blobs = [descriptor(&bytes)];
    let offer = giver.remote.offer().unwrap();
    assert_eq!(giver.remote.offer().unwrap().port, offer.port);
    let take = |offer: &PeerSource| taker.remote.fetch(offer, &blobs, &|_| {}).unwrap();
    let missing = [blobs[0].digest.clone()];
    let mut wrong = offer.clone();
    wrong.token = "0".repeat(64);
    assert_eq!(take(&wrong), missing);
    wrong = offer.clone();
    wrong.addresses = vec!["not an address".to_owned()];
    assert_eq!(take(&wrong), missing);
    wrong.addresses.clear();
    assert_eq!(take(&wrong), missing);
    giver.remote.withdraw().unwrap();
    assert_eq!(take(&offer), missing);
    let fresh = giver.remote.offer().unwrap();
    assert_ne!(fresh.token, offer.token);
    assert_eq!(take(&fresh), []);
    assert_eq!(taker.store().read_blob(&blobs[0].digest, 1 << 20).unwrap(), *bytes);
}

#[test]
fn receiving_needs_little_memory() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    let size = 192 << 20;
    let open = |offset: u64| -> Result<Box<dyn Read + Send>> {
        assert_eq!(offset, 0);
        Ok(Box::new(std::io::repeat(7).take(size)))
    };
    let mut hasher = imgctl_base::image::Hasher::new();
    let block = vec![7; 1 << 20];
    (0..size >> 20).for_each(|_| hasher.update(&block));
    let blob = Descriptor::new("x/y", hasher.finish(), size);
    let most = AtomicU64::new(0);
    let look = |_| {
        let pid = *host.shell.pids.lock().unwrap().last().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let text = line.unwrap().trim().trim_end_matches(" kB").to_owned();
        most.fetch_max(text.parse().unwrap(), Ordering::Relaxed);
    };
    host.remote.send_blob(&blob, &open, &look).unwrap();
    let most = most.into_inner();
    assert!(most > 0 && most < 48 << 10, "{most} kB");
}

#[test]
#[ignore = "a measurement: cargo test --release --lib agent::remote::tests::speed -- --ignored --nocapture"]
fn speed() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    let size: u64 = 1 << 30;
    let path = host.directory.path().join("source");
    std::fs::write(&path, content(1 << 30, 9)).unwrap();
    let mut hasher = imgctl_base::image::Hasher::new();
    hasher.update(&std::fs::read(&path).unwrap());
    let blob = Descriptor::new("x/y", hasher.finish(), size);
    let open = |offset: u64| -> Result<Box<dyn Read + Send>> {
        use std::io::Seek;
        let mut file = std::fs::File::open(&path).unwrap();
        file.seek(std::io::SeekFrom::Start(offset)).unwrap();
        Ok(Box::new(file))
    };
    host.remote.facts().unwrap();
    let begun = Instant::now();
    host.remote.send_blob(&blob, &open, &|_| {}).unwrap();
    let sent = begun.elapsed();
    let pid = *host.shell.pids.lock().unwrap().last().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let most = status.lines().find(|line| line.starts_with("VmHWM"));
    let begun = Instant::now();
    for _ in 0..1000 {
        host.remote.read_file("/proc/version", 1000).unwrap();
    }
    let calls = begun.elapsed();
    let taker = Host::new(&runtime);
    taker.remote.facts().unwrap();
    let offer = host.remote.offer().unwrap();
    let begun = Instant::now();
    let missing = taker.remote.fetch(&offer, &[blob], &|_| {}).unwrap();
    let fetched = begun.elapsed();
    assert!(missing.is_empty());
    let rate = |time: Duration| 1073.7 / time.as_secs_f64();
    use std::io::Write;
    #[expect(clippy::disallowed_methods, reason = "for who measures")]
    let mut out = std::io::stderr();
    let _ = writeln!(
        out,
        "sent {:.0} MB/s, fetched {:.0} MB/s, 1000 calls {calls:?}, agent {most:?}",
        rate(sent),
        rate(fetched)
    );
}

/// Two versions of a layer, with the recipe that makes the second from the first.
struct Versions {
    blobs: [(Descriptor, Digest, Vec<u8>); 2],
    recipe: Arc<Vec<u8>>,
}

fn versions() -> Versions {
    let mut bytes = content(6 << 20, 3);
    let made = [false, true].map(|is_new| {
        if is_new {
            bytes[1_000_000..1_010_000].fill(7);
        }
        let mut writer = LayerWriter::start(Vec::new(), ZSTD, 2).unwrap();
        let path = LayerPath::parse(b"usr/binary").unwrap();
        let kind = EntryKind::File { size: bytes.len() as u64 };
        writer.add(Entry::new(path, kind, 0o755), &mut &bytes[..]).unwrap();
        writer.finish().unwrap()
    });
    let file = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        file
    };
    let [(old, old_layer), (new, new_layer)] = made;
    let old_toc = Arc::new(old_layer.toc.unpack().unwrap());
    let base = Base::layer(old_layer.digest.clone(), file(&old), old_toc);
    let new_toc = new_layer.toc.unpack().unwrap();
    let options = delta::Options { level: 3, threads: 2, advance: &|_| {} };
    let mut recipe = tempfile::tempfile().unwrap();
    delta::create(&new_layer.digest, &file(&new), &new_toc, &[base], &options, &recipe).unwrap();
    let mut written = Vec::new();
    std::io::Seek::rewind(&mut recipe).unwrap();
    recipe.read_to_end(&mut written).unwrap();
    Versions {
        blobs: [
            (descriptor(&old), old_layer.diff_id, old),
            (descriptor(&new), new_layer.diff_id, new),
        ],
        recipe: Arc::new(written),
    }
}

const ZSTD: Compression = Compression::Zstd { level: 3 };

impl Versions {
    fn request(&self, host: &Host) -> Assemble {
        Assemble {
            blob: self.blobs[1].0.clone(),
            recipe: descriptor(&self.recipe),
            root: host.path("data"),
        }
    }
}

#[test]
fn a_layer_is_made_out_of_an_older_one_even_if_the_agent_is_killed() {
    let runtime = runtime();
    let versions = versions();
    let (new, size) = (&versions.blobs[1].0, versions.blobs[1].2.len());
    assert!(versions.recipe.len() * 20 < size, "{} of {size}", versions.recipe.len());
    for delay in [None, Some(0), Some(10), Some(40), Some(120)] {
        let host = Host::new(&runtime);
        send(&host, &Arc::new(versions.blobs[0].2.clone())).unwrap();
        send(&host, &versions.recipe).unwrap();
        std::thread::scope(|scope| {
            let host = &host;
            if let Some(delay) = delay {
                scope.spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(delay));
                    host.kill();
                });
            }
            host.remote.assemble(&versions.request(host)).unwrap();
        });
        assert!(host.store().verify_blob(&new.digest).unwrap());
        // Again: nothing to do, and no recipe is needed.
        host.remote.assemble(&versions.request(&host)).unwrap();
        assert_eq!(host.store().blob_size(&descriptor(&versions.recipe).digest).unwrap(), None);
    }
}

#[test]
fn a_recipe_that_lies_or_meets_another_base_makes_nothing() {
    let runtime = runtime();
    let versions = versions();
    let host = Host::new(&runtime);
    let new = &versions.blobs[1].0.digest;
    // Without the base.
    send(&host, &versions.recipe).unwrap();
    let error = host.remote.assemble(&versions.request(&host)).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    // With a damaged one of the same size.
    let mut damaged = versions.blobs[0].2.clone();
    let half = damaged.len() / 2;
    damaged[..half].reverse();
    send(&host, &Arc::new(versions.blobs[0].2.clone())).unwrap();
    let path = host.store().blob_path(&versions.blobs[0].0.digest);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(&path, damaged).unwrap();
    send(&host, &versions.recipe).unwrap();
    let error = host.remote.assemble(&versions.request(&host)).unwrap_err();
    assert_eq!(error.kind(), Kind::BadContent, "{error}");
    std::fs::write(&path, &versions.blobs[0].2).unwrap();
    // Recipes of nothing, of another blob, and cut off.
    let cut = versions.recipe[..versions.recipe.len() / 2].to_vec();
    for bytes in [content(100_000, 9), Vec::new(), cut] {
        let bytes = Arc::new(bytes);
        send(&host, &bytes).unwrap();
        let request = Assemble { recipe: descriptor(&bytes), ..versions.request(&host) };
        let error = host.remote.assemble(&request).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{error}");
        assert_eq!(host.store().blob_size(&descriptor(&bytes).digest).unwrap(), None);
    }
    send(&host, &versions.recipe).unwrap();
    let other = Assemble { blob: descriptor(b"other"), ..versions.request(&host) };
    assert_eq!(host.remote.assemble(&other).unwrap_err().kind(), Kind::BadContent);
    assert_eq!(host.store().blob_size(new).unwrap(), None);
    send(&host, &versions.recipe).unwrap();
    host.remote.assemble(&versions.request(&host)).unwrap();
}

#[test]
fn what_the_registry_directory_has_is_a_base_too() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    let data = content(2 << 20, 5);
    let digest = Digest::of(&data);
    let hex = digest.hex();
    let path = format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
    let there = std::path::PathBuf::from(host.path("data/registry")).join(&path);
    std::fs::create_dir_all(there.parent().unwrap()).unwrap();
    std::fs::write(&there, &data).unwrap();
    let question = InventoryQuestion {
        root: host.path("data"),
        registry_files: vec![digest.clone(), Digest::of(b"other")],
        ..InventoryQuestion::default()
    };
    let inventory = host.remote.inventory(&question).unwrap();
    assert_eq!(inventory.registry_files, std::slice::from_ref(&digest));

    let mut writer = LayerWriter::start(Vec::new(), Compression::None, 1).unwrap();
    let inside = LayerPath::parse(format!("registry/{path}").as_bytes()).unwrap();
    let kind = EntryKind::File { size: data.len() as u64 };
    writer.add(Entry::new(inside.clone(), kind, 0o644), &mut &data[..]).unwrap();
    let (blob, layer) = writer.finish().unwrap();
    let mut whole = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut whole, &blob).unwrap();
    let file = std::fs::File::open(&there).unwrap();
    let base = Base::file(digest, file, inside, data.len() as u64, None);
    let options = delta::Options { level: 3, threads: 2, advance: &|_| {} };
    let out = tempfile::NamedTempFile::new().unwrap();
    let toc = layer.toc.unpack().unwrap();
    delta::create(&layer.digest, &whole, &toc, &[base], &options, out.as_file()).unwrap();
    let recipe = Arc::new(std::fs::read(out.path()).unwrap());
    assert!(recipe.len() < 20_000, "{}", recipe.len());
    send(&host, &recipe).unwrap();
    let request =
        Assemble { blob: descriptor(&blob), recipe: descriptor(&recipe), root: host.path("data") };
    host.remote.assemble(&request).unwrap();
    assert!(host.store().verify_blob(&layer.digest).unwrap());
}
