//! Information about an entry from the headers that precede its own: PAX records and GNU long
//! names.

use tar::EntryType;

use super::readings;
use super::stream::refuse;
use crate::pax::{self, Records};
use crate::sparse::PaxSparse;
use crate::tar_header::{self as header, BLOCK, Field};
use imgctl_base::error::Result;

/// Information from the headers that precede an entry's own.
#[derive(Debug, Default)]
pub(super) struct Announced {
    pub(super) pax: Option<Records>,
    pub(super) sparse: PaxSparse,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl Announced {
    pub(super) fn is_empty(&self) -> bool {
        self.pax.is_none() && self.long_name.is_none() && self.long_link.is_none()
    }

    pub(super) fn add_pax(&mut self, body: &[u8]) -> Result<()> {
        if self.pax.is_some() {
            return Err(refuse("two PAX headers describe one entry"));
        }
        let mut records = Records::new();
        for (key, value) in pax::parse(body)? {
            if let Some(key) = key.strip_prefix(pax::SPARSE) {
                self.sparse.add(key, value)?;
                continue;
            }
            readings::check_record(key, value)?;
            if records.insert(key.to_vec(), value.to_vec()).is_some() {
                return Err(refuse(format!(
                    "the PAX record `{}` appears twice",
                    key.escape_ascii()
                )));
            }
        }
        // Python's tarfile searches the whole header for them, also inside other records.
        let looks_sparse =
            |value: &Vec<u8>| value.windows(pax::SPARSE.len()).any(|part| part == pax::SPARSE);
        if self.sparse.is_sparse() && records.values().any(looks_sparse) {
            return Err(refuse("a PAX record has the name of another inside"));
        }
        self.pax = Some(records);
        Ok(())
    }

    pub(super) fn add_long(&mut self, flag: EntryType, body: &[u8]) -> Result<()> {
        let text = header::until_nul(body);
        if body[text.len()..].iter().any(|byte| *byte != 0) {
            return Err(refuse("a GNU long name contains a NUL byte"));
        }
        let place = match flag {
            EntryType::GNULongName => &mut self.long_name,
            _ => &mut self.long_link,
        };
        if text.is_empty() {
            return Err(refuse("a GNU long name is empty"));
        }
        match place.replace(text.to_vec()) {
            None => Ok(()),
            Some(_) => Err(refuse("two GNU long names are given for one entry")),
        }
    }

    /// Returns a record of this entry's own PAX header.
    pub(super) fn record(&self, key: &[u8]) -> Option<&[u8]> {
        self.pax.as_ref()?.get(key).map(Vec::as_slice)
    }

    /// Returns the entry's name, which only one of the headers may give besides the entry's own.
    pub(super) fn name(&self, block: &[u8; BLOCK]) -> Result<Vec<u8>> {
        let given = [self.long_name.as_deref(), self.record(pax::PATH), self.sparse.name()];
        if let Some(name) = only(given, "name")? {
            return Ok(name.to_vec());
        }
        let name = header::text(block, Field::NAME);
        let prefix = readings::prefix(block);
        if prefix.is_empty() {
            return Ok(name.to_vec());
        }
        Ok([prefix, b"/", name].concat())
    }

    /// Returns the target of a link.
    pub(super) fn link(&self, block: &[u8; BLOCK]) -> Result<Vec<u8>> {
        let given = [self.long_link.as_deref(), self.record(pax::LINKPATH), None];
        let link = only(given, "link")?.unwrap_or_else(|| header::text(block, Field::LINK));
        Ok(link.to_vec())
    }
}

/// Returns the only name given; readers prefer different ones.
fn only<'a>(given: [Option<&'a [u8]>; 3], what: &str) -> Result<Option<&'a [u8]>> {
    let mut given = given.into_iter().flatten();
    let first = given.next();
    match (first, given.next()) {
        (Some(one), Some(other)) => Err(refuse(format!(
            "its headers give it two {what}s, `{}` and `{}`",
            String::from_utf8_lossy(one),
            String::from_utf8_lossy(other)
        ))),
        _ => Ok(first),
    }
}
