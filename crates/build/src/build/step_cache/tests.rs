//! Tests of the step cache and the stat cache.

use super::*;

fn state(inode: u64, changed: i64) -> FileState {
    FileState { device: 1, inode, size: 5, mtime: changed, ctime: changed, nanoseconds: [7, 9] }
}

const KNOWN: Known = Known { content: [3; 32], has_xattrs: true, names_nothing: false };

#[test]
fn what_is_saved_is_found_again_in_the_same_state_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stat");
    let mut cache = StatCache::open(path.clone(), 1000);
    cache.put(&state(1, 900), KNOWN);
    cache.save().unwrap();
    let mut cache = StatCache::open(path, 1001);
    assert_eq!(cache.get(&state(1, 900)), Some(KNOWN));
    assert_eq!(cache.get(&state(1, 901)), None, "another time is another state");
    assert_eq!(cache.get(&FileState { size: 6, ..state(1, 900) }), None);
}

#[test]
fn the_latest_record_of_a_file_counts_and_the_others_stay() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stat");
    let mut cache = StatCache::open(path.clone(), 1000);
    for inode in [7, 3, 9, 1, 5] {
        cache.put(&state(inode, 900), KNOWN);
    }
    cache.save().unwrap();
    let other = Known { content: [4; 32], has_xattrs: false, names_nothing: true };
    let mut cache = StatCache::open(path.clone(), 2000);
    cache.put(&state(5, 901), KNOWN);
    assert_eq!(cache.get(&state(5, 901)), Some(KNOWN));
    cache.put(&state(5, 902), other);
    cache.put(&state(0, 900), other);
    cache.put(&state(10, 900), other);
    assert_eq!(cache.get(&state(5, 902)), Some(other));
    assert_eq!(cache.get(&state(5, 901)), None);
    cache.save().unwrap();
    let mut cache = StatCache::open(path, 2001);
    for inode in [1, 3, 7, 9] {
        assert_eq!(cache.get(&state(inode, 900)), Some(KNOWN), "{inode}");
    }
    for (inode, time) in [(0, 900), (5, 902), (10, 900)] {
        assert_eq!(cache.get(&state(inode, time)), Some(other), "{inode}");
    }
    assert_eq!(cache.get(&state(5, 900)), None);
    assert_eq!(cache.known.len(), 7);
}

#[test]
fn what_names_no_image_is_remembered_with_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stat");
    let mut cache = StatCache::open(path.clone(), 1000);
    cache.remember_nothing(&state(1, 900));
    assert!(!cache.names_nothing(&state(1, 900)), "there is no record yet");
    cache.put(&state(1, 900), KNOWN);
    cache.put(&state(2, 900), KNOWN);
    cache.remember_nothing(&state(3, 900));
    cache.put(&state(3, 901), KNOWN);
    cache.save().unwrap();
    let mut cache = StatCache::open(path, 1001);
    assert!(cache.names_nothing(&state(1, 900)));
    assert!(!cache.names_nothing(&state(1, 901)));
    assert!(!cache.names_nothing(&state(3, 901)));
    assert!(!cache.names_nothing(&state(2, 900)));
    cache.remember_nothing(&state(2, 900));
    assert!(cache.names_nothing(&state(2, 900)));
}

#[test]
fn a_file_that_just_changed_is_not_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stat");
    let mut cache = StatCache::open(path, 1000);
    cache.put(&state(1, 999), KNOWN);
    assert_eq!(cache.get(&state(1, 999)), Some(KNOWN), "it is the same build");
    cache.save().unwrap();
    let mut cache = StatCache::open(directory.path().join("stat"), 1001);
    assert_eq!(cache.get(&state(1, 999)), None);
}

#[test]
fn a_damaged_file_is_an_empty_cache() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stat");
    let mut cache = StatCache::open(path.clone(), 1000);
    cache.put(&state(1, 900), KNOWN);
    cache.save().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(StatCache::open(path, 1001).get(&state(1, 900)), None);
}
