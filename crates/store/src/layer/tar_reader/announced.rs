//! Information about an entry from the headers that precede its own: PAX records and GNU long
//! names.

use tar::EntryType;

use super::stream::refuse;
use crate::layer::pax::{self, Records};
use crate::layer::sparse::PaxSparse;
use crate::layer::tar_header::{self as header, BLOCK, Field};
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
            records.insert(key.to_vec(), value.to_vec());
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
        match place.replace(text.to_vec()) {
            None => Ok(()),
            Some(_) => Err(refuse("two GNU long names are given for one entry")),
        }
    }

    /// Returns a record of this entry's own PAX header; an empty value counts as missing.
    pub(super) fn record(&self, key: &[u8]) -> Option<&[u8]> {
        let value = self.pax.as_ref()?.get(key)?;
        (!value.is_empty()).then_some(value)
    }

    pub(super) fn name(&self, block: &[u8; BLOCK]) -> Vec<u8> {
        if let Some(name) = &self.sparse.name {
            return name.clone();
        }
        if let Some(name) = self.record(pax::PATH) {
            return name.to_vec();
        }
        if let Some(name) = &self.long_name {
            return name.clone();
        }
        let name = header::text(block, Field::NAME);
        let prefix = prefix(block);
        if prefix.is_empty() {
            return name.to_vec();
        }
        [prefix, b"/", name].concat()
    }

    pub(super) fn link(&self, block: &[u8; BLOCK]) -> Vec<u8> {
        let linkpath = self.record(pax::LINKPATH);
        match linkpath.or(self.long_link.as_deref()) {
            Some(link) => link.to_vec(),
            None => header::text(block, Field::LINK).to_vec(),
        }
    }
}

/// Returns the first half of a long name, if the format has one.
fn prefix(block: &[u8; BLOCK]) -> &[u8] {
    if !header::get(block, Field::MAGIC).starts_with(b"ustar\0") {
        return b"";
    }
    if header::get(block, Field::STAR_TRAILER) == b"tar\0" {
        return header::text(block, Field::STAR_PREFIX);
    }
    header::text(block, Field::PREFIX)
}
