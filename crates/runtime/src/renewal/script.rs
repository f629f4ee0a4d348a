//! Renewal of the certificates that an image declares.

use std::time::Duration;

use crate::certificates::again;
use crate::certificates::declared::Declared;
use crate::renewal::change::{Machine, NewFile, Pending};
use imgctl_base::error::{Context as _, Error, Result};

/// Reads the declared certificates of this host.
pub(crate) fn declared(machine: &Machine<'_>) -> Result<Declared> {
    let Some(file) = &machine.settings.declared else { return Ok(Declared::default()) };
    match machine.read(file)? {
        Some(text) => Declared::parse(&text, file),
        None => Ok(Declared::default()),
    }
}

/// Signs the certificate in `file` again; `false`: it is not one of the declared.
pub(crate) fn renew(machine: &Machine<'_>, pending: &mut Pending, file: &str) -> Result<bool> {
    let declared = declared(machine)?;
    let Some(one) = declared.certificates.iter().find(|one| one.certificate == file) else {
        return Ok(false);
    };
    let authority = declared.authority(&one.authority)?;
    let key = machine.read(&authority.key)?.ok_or_else(|| {
        Error::not_found(format!("the key of the authority {} is not on this host", one.authority))
            .hint("renew it from the controller: imgctl cert --renew all")
    })?;
    let signer = again::authority_in(&machine.need(&authority.certificate)?, &key)?;
    let validity = machine.settings.validity.map(Duration::from_secs);
    let signed = again::renew(&signer, &machine.need(file)?, &machine.need(&one.key)?, validity)
        .context(|| file.to_owned())?;
    let new = NewFile { path: file.to_owned(), mode: 0o644, text: Some(signed.certificate) };
    machine.change(pending, &new, one.changed.as_deref())?;
    Ok(true)
}
