//! Certificates that the rootfs image declares: made by the authorities of the controller before a host
//! joins, and again when the image or a name has changed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::action::{Action, Site};
use crate::certificates::authority::{Algorithm, Authority};
use crate::certificates::pki;
use crate::certificates::validity::Validity;
use crate::certificates::{
    declared,
    declared::{Declared, DeclaredAuthority},
};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, Host};

const LONGEST_FILE: u64 = 1 << 20;

/// Returns the file with the certificates that the rootfs image declares, on a host.
pub(crate) fn declared_file(context: &ClusterContext) -> Result<Option<String>> {
    let Some(value) = context.rootfs().and_then(|rootfs| rootfs.label(&[declared::LABEL])) else {
        return Ok(None);
    };
    let is_plain = value.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !is_plain {
        return Err(Error::bad_content(format!(
            "the label {} of the image is `{value}`, which is no path in its tree",
            declared::LABEL
        )));
    }
    Ok(Some(format!("{}/{value}", context.paths.rootfs())))
}

/// Returns the actions that make the certificates of a host.
pub(super) fn actions(
    context: &ClusterContext,
    host: &Host,
    validity: Validity,
) -> Result<Vec<Action>> {
    let Some(file) = declared_file(context)? else { return Ok(Vec::new()) };
    let says = format!("make the certificates that {file} declares, unless they are good");
    let with_keys = host.is_control_plane();
    Ok(vec![Action::new("certificates", says, move |site| {
        let declared = read(site.agent, &file)?;
        for one in &declared.authorities {
            let authority = authority(site, one, validity)?;
            write(site.agent, &one.certificate, 0o644, &authority.certificate)?;
            if with_keys {
                write(site.agent, &one.key, 0o600, authority.key.pem.expose())?;
            }
        }
        for one in &declared.certificates {
            let authority = authority(site, declared.authority(&one.authority)?, validity)?;
            let leaf = one.leaf()?;
            let margin = validity.leaves / 3;
            let is_good = text(site.agent, &one.certificate)?
                .is_some_and(|own| authority.stands_behind(&own, &leaf, margin))
                && text(site.agent, &one.key)?.is_some();
            if is_good {
                continue;
            }
            let signed = authority.sign(&leaf, Algorithm::EcdsaP256, validity.leaves)?;
            // The key first: a certificate without its key would count as good next time.
            write(site.agent, &one.key, 0o600, signed.key.pem.expose())?;
            write(site.agent, &one.certificate, 0o644, &signed.certificate)?;
        }
        Ok(())
    })])
}

/// Reads what is declared for a host.
pub(crate) fn read(agent: &dyn Agent, file: &str) -> Result<Declared> {
    match text(agent, file)? {
        Some(text) => Declared::parse(&text, file).context(|| agent.host().to_owned()),
        None => Err(Error::not_found(format!("{}: there is no {file}", agent.host()))
            .hint(format!("the label {} of the image names it", declared::LABEL))),
    }
}

/// Returns the declared authority of the controller; makes it if there is none.
fn authority(
    site: &Site<'_>,
    declared: &DeclaredAuthority,
    validity: Validity,
) -> Result<Authority> {
    // Hosts ask for it at the same time, and the first one makes it.
    static MAKING: Mutex<()> = Mutex::new(());
    let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let file = controller_file(&declared.name);
    pki::authority(
        site.state(),
        &file,
        &declared.name,
        Algorithm::EcdsaP256,
        validity.authorities.max(Duration::from_secs(1)),
    )
}

/// Returns the file of a declared authority below the controller's `pki/`, without extension.
pub(crate) fn controller_file(name: &str) -> String {
    format!("declared/{name}")
}

pub(super) fn text(agent: &dyn Agent, path: &str) -> Result<Option<String>> {
    let bytes = agent.read_file(path, LONGEST_FILE)?;
    Ok(bytes.and_then(|bytes| String::from_utf8(bytes).ok()))
}

pub(super) fn write(agent: &dyn Agent, path: &str, mode: u32, text: &str) -> Result<()> {
    agent
        .write_file(&FileToWrite { path: path.to_owned(), mode, content: text.as_bytes().to_vec() })
        .map(|_| ())
        .context(|| format!("{}: cannot write {path}", agent.host()))
}
