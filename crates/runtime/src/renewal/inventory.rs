//! Which certificates a host has, and what they say. One command on the host, which prints certificates
//! alone: keys never leave it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;

use crate::action::{Line, Site};
use crate::certificates::again::{is_due, life};
use crate::certificates::declared::Declared;
use crate::certificates::validity;
use crate::certificates::{inspect, inspect::Certificate};
use crate::k3s::host::HOST;
use crate::renewal::record::{self, Record, State};
use crate::renewal::settings;
use crate::script::declared_file;
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::Agent;
use imgctl_model::context::ClusterContext;

const LONGEST_FILE: u64 = 1 << 20;

/// One certificate of a host.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Path on the host.
    pub file: String,
    #[serde(flatten)]
    pub certificate: Certificate,
    /// Number of certificates in the file: several authorities are trusted while one is rotated.
    #[serde(rename = "inFile")]
    pub in_file: usize,
    /// The time for which it was issued, in seconds.
    #[serde(skip)]
    pub life: i64,
}

impl Found {
    pub(crate) fn is_due(&self, now: i64) -> bool {
        !self.certificate.is_authority && is_due(&self.certificate, self.life, now)
    }
}

/// The certificates of one host, and what its timer did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OfHost {
    pub certificates: Vec<Found>,
    /// `None`: the host has no timer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewal: Option<Record>,
}

impl OfHost {
    /// Returns the certificate that expires first.
    pub fn soonest(&self) -> Option<&Found> {
        self.certificates.iter().min_by_key(|one| one.certificate.not_after)
    }

    /// Returns what is wrong with the certificates at `now`, in seconds since 1970, and what will be.
    pub fn complaints(&self, now: i64) -> (Vec<String>, Vec<String>) {
        let (mut problems, mut warnings) = (Vec::new(), Vec::new());
        for one in &self.certificates {
            let left = one.certificate.not_after - now;
            if left <= 0 {
                problems.push(format!("the certificate in {} has expired", one.file));
            } else if left.saturating_mul(10) < one.life {
                let left = validity::left(left);
                warnings.push(format!("the certificate in {} expires in {left}", one.file));
            }
        }
        match &self.renewal {
            Some(record) if record.state == State::Failed => warnings.push(format!(
                "certificates were not renewed at {}: {}",
                record.checked, record.reason
            )),
            Some(record) if record.state == State::Waiting => {
                warnings.push(format!("the renewal of certificates waits: {}", record.reason));
            }
            _ => {}
        }
        (problems, warnings)
    }
}

/// Reads the certificates of the host of `site`.
pub fn ask(site: &Site<'_>, runtime: &str) -> Result<OfHost> {
    let declared = declared_file(site.context)?;
    let line = line(site.agent, runtime, &site.context.paths.rootfs(), declared.as_deref())?;
    let certificates = parse(&site.run(&line)?, site.agent.host())?;
    Ok(OfHost { certificates, renewal: record_of(site.agent, site.context) })
}

fn record_of(agent: &dyn Agent, context: &ClusterContext) -> Option<Record> {
    let path = format!("{}/{}", settings::directory(context), record::FILE);
    Record::read(&agent.read_file(&path, LONGEST_FILE).ok()??)
}

/// Returns the line that prints `== FILE` and the certificates of each file.
pub(crate) fn line(
    agent: &dyn Agent,
    runtime: &str,
    rootfs: &str,
    declared: Option<&str>,
) -> Result<Line> {
    let more = declared.map(|file| declared_paths(agent, file)).transpose()?.unwrap_or_default();
    Ok(listing(runtime, rootfs, &more))
}

/// `more` are paths of other certificates.
fn listing(runtime: &str, rootfs: &str, more: &[String]) -> Line {
    let line = Line::script(&[HOST, include_str!("scripts/list-certificates.sh")]).with([
        ("IMGCTL_RUNTIME", runtime),
        ("IMGCTL_ROOTFS", rootfs),
        ("IMGCTL_FILES", &more.join("\n")),
    ]);
    Line { quiet: true, ..line }
}

fn declared_paths(agent: &dyn Agent, file: &str) -> Result<Vec<String>> {
    let Some(text) = agent.read_file(file, LONGEST_FILE)? else { return Ok(Vec::new()) };
    let declared = Declared::parse(&String::from_utf8_lossy(&text), file)?;
    let authorities = declared.authorities.into_iter().map(|one| one.certificate);
    Ok(authorities.chain(declared.certificates.into_iter().map(|one| one.certificate)).collect())
}

/// Reads what the line has printed.
pub(crate) fn parse(text: &str, host: &str) -> Result<Vec<Found>> {
    let mut files: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        if let Some(file) = line.strip_prefix("== ") {
            files.push((file, String::new()));
        } else if let Some((_, content)) = files.last_mut() {
            match line.strip_prefix("data ") {
                Some(data) => {
                    let decoded = STANDARD.decode(data).unwrap_or_default();
                    content.push_str(&String::from_utf8_lossy(&decoded));
                }
                None => content.push_str(line),
            }
            content.push('\n');
        }
    }
    let mut found: Vec<Found> = Vec::new();
    // A kubelet.conf without a certificate names a file, which is listed itself.
    for (file, content) in files.iter().filter(|(_, content)| !content.trim().is_empty()) {
        if found.iter().any(|known| known.file == *file) {
            continue;
        }
        let certificate = inspect::read(content).map_err(|error| {
            Error::bad_content(format!("{host}: the certificate in {file} cannot be read"))
                .caused_by(error)
        })?;
        let in_file = content.matches("-----BEGIN CERTIFICATE-----").count();
        found.push(Found { file: (*file).to_owned(), certificate, in_file, life: 0 });
    }
    let authorities: Vec<Certificate> = found
        .iter()
        .filter(|one| one.certificate.is_authority)
        .map(|one| one.certificate.clone())
        .collect();
    for one in &mut found {
        let issuer = authorities.iter().find(|authority| {
            authority.common_name == one.certificate.issuer
                && authority.not_before == one.certificate.not_before
        });
        one.life = life(&one.certificate, issuer);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::authority::{Algorithm, Authority, Key, Leaf};
    use std::time::Duration;

    #[test]
    fn the_line_reads_kubeconfigs_of_every_form() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_str().unwrap();
        let file = format!("{root}/it's a.conf");
        let line = listing("script", root, &[format!("{root}/none.crt"), file.clone()]);
        let forms = ["QUJD", "\"QUJD\"", ">-\n      QU\n      JD"];
        for form in forms {
            for after in ["\n    client-key-data: eA==\n", "\n"] {
                let text = format!("users:\n- user:\n    client-certificate-data: {form}{after}");
                std::fs::write(&file, text).unwrap();
                let mut bash = std::process::Command::new("bash");
                let bash = bash.args(["-ec", &line.line]).envs(line.environment.to_map());
                let told = String::from_utf8(bash.output().unwrap().stdout).unwrap();
                assert_eq!(told, format!("== {file}\ndata QUJD\n"), "{form}");
            }
        }
    }

    #[test]
    fn certificates_and_kubeconfigs_are_read() {
        let key = Key::generate(Algorithm::EcdsaP256).unwrap();
        let day = Duration::from_secs(86_400);
        let authority = Authority::create("kubernetes", key, day).unwrap();
        let signed =
            authority.sign(&Leaf::client("admin", None), Algorithm::EcdsaP256, day / 2).unwrap();
        let text = format!(
            "== /ca.crt\n{ca}{ca}== /admin.conf\ndata {}\n== /kubelet.conf\n",
            STANDARD.encode(&signed.certificate),
            ca = authority.certificate,
        );
        let found = parse(&text, "h").unwrap();
        let shown: Vec<_> = found.iter().map(|one| (one.file.as_str(), one.in_file)).collect();
        assert_eq!(shown, [("/ca.crt", 2), ("/admin.conf", 1)]);
        let of_host = OfHost { certificates: found, renewal: None };
        let now = i64::try_from(validity::now()).unwrap();
        assert_eq!(of_host.complaints(now), (Vec::new(), Vec::new()));
        assert_eq!(of_host.soonest().unwrap().file, "/admin.conf");
        let (problems, soon) = of_host.complaints(now + 42_000);
        assert!(problems.is_empty() && soon.len() == 1, "{soon:?}");
        assert_eq!(of_host.complaints(now + 90_000).0.len(), 2);
        assert!(parse("== /x.crt\n-----BEGIN CERTIFICATE-----\nx\n", "h").is_err());
    }
}
