//! The certificates that an image asks for: the file that its label `imgctl.io/certificates` names,
//! rendered for each host. Text to values; must not depend on hosts.

use serde::Deserialize;

use crate::certificates::authority::{Leaf, Use, canonical};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_template::yaml;

/// Label of a rootfs image: path of the file in the image's tree, without `.tmpl`.
pub(crate) const LABEL: &str = "imgctl.io/certificates";

/// Certificates of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    #[serde(default)]
    pub authorities: Vec<DeclaredAuthority>,
    #[serde(default)]
    pub certificates: Vec<DeclaredCertificate>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredAuthority {
    /// Also the common name.
    pub name: String,
    /// File with the certificate, or with several of them while the authority is rotated.
    pub certificate: String,
    /// File with the key, on control planes alone.
    pub key: String,
    /// Shell line, in the image's `scripts/`, that makes a service read `certificate` again.
    #[serde(default)]
    pub changed: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeclaredCertificate {
    pub name: String,
    pub certificate: String,
    pub key: String,
    /// Name of the authority that signs it.
    pub authority: String,
    pub common_name: String,
    #[serde(default)]
    pub organization: Option<String>,
    /// `server`, `client`.
    pub uses: Vec<String>,
    #[serde(default)]
    pub names: Vec<String>,
    /// Shell line, in the image's `scripts/`, that makes a service read the files again.
    #[serde(default)]
    pub changed: Option<String>,
}

impl Declared {
    /// Reads the rendered file `text`; `file` is its path for messages.
    pub fn parse(text: &str, file: &str) -> Result<Self> {
        let value = yaml::parse(text).context(|| format!("{file} cannot be read"))?;
        if value.is_null() {
            return Ok(Self::default());
        }
        let read: Self = serde_json::from_value(value).map_err(|error| {
            Error::bad_content(format!("{file} does not declare certificates"))
                .caused_by(error)
                .hint("docs/cluster-image.md describes the file")
        })?;
        read.check().context(|| file.to_owned())?;
        Ok(read)
    }

    fn check(&self) -> Result<()> {
        let authorities = self.authorities.iter().flat_map(|one| [&one.certificate, &one.key]);
        let certificates = self.certificates.iter().flat_map(|one| [&one.certificate, &one.key]);
        for path in authorities.chain(certificates) {
            let is_plain = path.split('/').all(|part| part != "..") && !path.contains(['\0', '\n']);
            if !path.starts_with('/') || !is_plain {
                return Err(Error::bad_content(format!("`{path}` is not an absolute path")));
            }
        }
        for authority in &self.authorities {
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
            if authority.name.is_empty() || !authority.name.chars().all(fits) {
                return Err(Error::bad_content(format!(
                    "`{}` is no name for an authority: letters, digits and dashes",
                    authority.name
                )));
            }
        }
        for certificate in &self.certificates {
            self.authority(&certificate.authority)?;
            certificate.purpose()?;
        }
        Ok(())
    }

    pub(crate) fn authority(&self, name: &str) -> Result<&DeclaredAuthority> {
        self.authorities
            .iter()
            .find(|one| one.name == name)
            .ok_or_else(|| Error::bad_content(format!("there is no authority `{name}`")))
    }
}

impl DeclaredCertificate {
    fn purpose(&self) -> Result<Use> {
        let uses: Vec<&str> = self.uses.iter().map(String::as_str).collect();
        match uses.as_slice() {
            ["server"] => Ok(Use::Server),
            ["client"] => Ok(Use::Client),
            ["server", "client"] | ["client", "server"] => Ok(Use::Both),
            _ => Err(Error::bad_content(format!(
                "`uses` of the certificate {} must be [server], [client] or [server, client]",
                self.name
            ))),
        }
    }

    pub(crate) fn leaf(&self) -> Result<Leaf> {
        let mut names: Vec<String> = Vec::new();
        for name in self.names.iter().map(|name| canonical(name)) {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(Leaf {
            common_name: self.common_name.clone(),
            organization: self.organization.clone(),
            purpose: self.purpose()?,
            names,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "authorities:\n- {name: etcd-ca, certificate: /etc/x/ca.crt, key: /etc/x/ca.key, changed: restart.sh}\n\
        certificates:\n- {name: server, certificate: /etc/x/s.crt, key: /etc/x/s.key, authority: etcd-ca, commonName: etcd, uses: [server, client], names: [H1, 10.0.0.1, h1]}\n";

    #[test]
    fn a_file_is_read_and_checked() {
        let read = Declared::parse(TEXT, "f").unwrap();
        let leaf = read.certificates[0].leaf().unwrap();
        assert_eq!(leaf.names, ["h1", "10.0.0.1"]);
        assert_eq!(leaf.purpose, Use::Both);
        assert_eq!(Declared::parse("", "f").unwrap(), Declared::default());
        for (from, to) in [
            ("/etc/x/s.key", "etc/s.key"),
            ("/etc/x/s.crt", "/etc/../s.crt"),
            ("authority: etcd-ca", "authority: other"),
            ("[server, client]", "[signing]"),
            ("name: etcd-ca", "name: ../ca"),
            ("changed:", "change:"),
        ] {
            assert!(Declared::parse(&TEXT.replace(from, to), "f").is_err(), "{to}");
        }
    }
}
