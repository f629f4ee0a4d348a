//! Writes an inventory as SPDX 2.3 JSON (spdx.github.io/spdx-spec/v2.3). Must not depend on the
//! source of the inventory.

use std::cell::RefCell;
use std::io::{self, BufWriter, Write};

use serde::ser::{Error as _, SerializeMap as _};
use serde::{Serialize, Serializer};
use serde_json::{Value, json, ser::Formatter};

use crate::sbom::contents::{File, sha1_of};
use crate::sbom::embedded::Embedded;
use crate::sbom::packages::Package;
use crate::sbom::{Files, Inventory, Layer};
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::image::Digest;

const IMAGE: &str = "SPDXRef-Image";
const DOCUMENT: &str = "SPDXRef-DOCUMENT";
const UNKNOWN: &str = "NOASSERTION";

/// Writes the document.
pub(super) fn write(inventory: &Inventory<'_>, out: &mut dyn Write) -> Result<()> {
    let mut out = BufWriter::with_capacity(64 << 10, out);
    write_to(inventory, &mut serde_json::Serializer::pretty(&mut out))?;
    out.write_all(b"\n").and_then(|()| out.flush()).doing(doing)
}

/// Writes the document without white space.
pub(super) fn write_inside(inventory: &Inventory<'_>, out: &mut dyn Write) -> Result<()> {
    let mut out = BufWriter::with_capacity(64 << 10, out);
    write_to(inventory, &mut serde_json::Serializer::new(&mut out))?;
    out.flush().doing(doing)
}

fn doing() -> String {
    "cannot write the SPDX document".to_owned()
}

fn write_to<W: Write, F: Formatter>(
    inventory: &Inventory<'_>,
    serializer: &mut serde_json::Serializer<W, F>,
) -> Result<()> {
    let mut packages = vec![image(inventory)?];
    for (index, layer) in inventory.layers.iter().enumerate() {
        packages.push(self::layer(index, layer));
    }
    packages.extend(inventory.embedded.iter().map(embedded));
    packages.extend(inventory.packages.iter().map(|p| package(p, inventory)));
    let document = Written { inventory, packages, failed: RefCell::default() };
    let written = document.serialize(serializer);
    if let Some(error) = document.failed.take() {
        return Err(error);
    }
    written.map_err(io::Error::from).doing(doing)
}

/// The document, whose files are found while it is written.
struct Written<'a> {
    inventory: &'a Inventory<'a>,
    packages: Vec<Value>,
    /// Why a file could not be described.
    failed: RefCell<Option<Error>>,
}

impl Written<'_> {
    fn files(&self) -> impl Iterator<Item = &dyn Files> {
        self.inventory.files.iter().map(|files| &**files)
    }
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let inventory = self.inventory;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("spdxVersion", "SPDX-2.3")?;
        map.serialize_entry("dataLicense", "CC0-1.0")?;
        map.serialize_entry("SPDXID", DOCUMENT)?;
        map.serialize_entry("name", &name(inventory))?;
        map.serialize_entry("documentNamespace", &namespace(inventory))?;
        let information = json!({
            "created": inventory.created,
            "creators": [concat!("Tool: imgctl-", env!("CARGO_PKG_VERSION"))],
        });
        map.serialize_entry("creationInfo", &information)?;
        map.serialize_entry("packages", &self.packages)?;
        if self.files().any(|files| files.paths().next().is_some()) {
            let failed = |error| {
                self.failed.replace(Some(error));
                S::Error::custom("a file cannot be described")
            };
            // The first error ends the list, and the document.
            let files = || {
                let files = self.files().flat_map(|files| files.files());
                files.map_while(|it| it.map(|it| file(&it)).map_err(failed).ok())
            };
            map.serialize_entry("files", &Each(files))?;
            if self.failed.borrow().is_some() {
                return Err(S::Error::custom("a file cannot be described"));
            }
        }
        let related = || {
            let describes = relationship(DOCUMENT, "DESCRIBES", &Value::from(IMAGE));
            let packages = self.packages.iter().skip(1).map(|part| part["SPDXID"].clone());
            let files = self.files().flat_map(|files| files.paths());
            let parts = packages.chain(files.map(|path| id_of(path.as_bytes()).into()));
            std::iter::once(describes).chain(parts.map(|id| relationship(IMAGE, "CONTAINS", &id)))
        };
        map.serialize_entry("relationships", &Each(related))?;
        map.end()
    }
}

/// A list that is made while it is written.
struct Each<F>(F);

impl<F: Fn() -> I, I: Iterator<Item = Value>> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// Returns the identifier of a file.
fn id_of(path: &[u8]) -> String {
    format!("SPDXRef-File-{}", &Digest::of(path).hex()[..32])
}

fn name(inventory: &Inventory<'_>) -> String {
    match &inventory.name {
        Some(name) => name.to_string(),
        None => inventory.digest.to_string(),
    }
}

/// The namespace identifies a document, so documents with and without files have different
/// namespaces.
fn namespace(inventory: &Inventory<'_>) -> String {
    let variant = match inventory.files {
        Some(_) => "",
        None => "-without-files",
    };
    let name = inventory.name.as_ref().map_or("image", |n| n.repository());
    let hex = inventory.digest.hex();
    format!("https://spdx.org/spdxdocs/imgctl/{name}-{hex}{variant}")
}

fn image(inventory: &Inventory<'_>) -> Result<Value> {
    let mut value = thing(IMAGE, &name(inventory), "CONTAINER");
    value["versionInfo"] = inventory.digest.to_string().into();
    value["checksums"] = checksum(&inventory.digest);
    if let Some(name) = &inventory.name {
        let repository = name.repository();
        let url = purl_oci(repository, &name.name(), name.tag(), &inventory.digest)
            + &format!("&arch={}", escaped(&inventory.architecture));
        value["externalRefs"] = purl(&url);
    }
    if let Some(files) = &inventory.files {
        value["filesAnalyzed"] = true.into();
        // SHA-1 over the sorted SHA-1 of all files (SPDX 2.3, 7.9).
        value["packageVerificationCode"] = json!({
            "packageVerificationCodeValue": sha1_of(files.sha1s()?),
        });
    }
    Ok(value)
}

fn layer(index: usize, layer: &Layer) -> Value {
    let id = format!("SPDXRef-Layer-{index}");
    let mut value = thing(&id, &layer.digest.to_string(), "ARCHIVE");
    value["checksums"] = checksum(&layer.digest);
    if let Some(kind) = layer.kind {
        value["comment"] = format!("layer {index}, kind {kind}").into();
    }
    value
}

fn embedded(image: &Embedded) -> Value {
    let tag = image.tag.as_deref();
    let name = match tag {
        Some(tag) => format!("{}:{tag}", image.repository),
        None => format!("{}@{}", image.repository, image.digest),
    };
    let id = format!("SPDXRef-Embedded-{}", &Digest::of(name.as_bytes()).hex()[..16]);
    let mut value = thing(&id, &image.repository, "CONTAINER");
    value["versionInfo"] = tag.map_or_else(|| image.digest.to_string(), str::to_owned).into();
    value["checksums"] = checksum(&image.digest);
    let url = purl_oci(&image.repository, &image.repository, tag, &image.digest);
    value["externalRefs"] = purl(&url);
    value["comment"] = "container image in the embedded registry".into();
    value
}

fn package(package: &Package, inventory: &Inventory<'_>) -> Value {
    let Package { kind, name, version, architecture } = package;
    let key = format!("{kind}/{name}/{version}/{architecture}");
    let hex = Digest::of(key.as_bytes());
    let id = format!("SPDXRef-Package-{kind}-{}-{}", identifier(name), &hex.hex()[..8]);
    let mut value = thing(&id, name, "LIBRARY");
    value["versionInfo"] = version.as_str().into();
    let fallback = if *kind == "deb" { "debian" } else { "alpine" };
    let namespace = inventory.distribution.as_deref().unwrap_or(fallback);
    let mut url =
        format!("pkg:{kind}/{namespace}/{}@{}", escaped(&name.to_lowercase()), escaped(version));
    if !architecture.is_empty() {
        url += &format!("?arch={}", escaped(architecture));
    }
    value["externalRefs"] = purl(&url);
    value
}

fn file(file: &File) -> Value {
    let path = file.path.as_bytes();
    let mut name = "./".to_owned();
    // SPDX file names are text. A name that is not UTF-8 is percent-encoded, including the percent
    // sign itself.
    match str::from_utf8(path) {
        Ok(text) => name += text,
        Err(_) => {
            for byte in path {
                match byte {
                    b' '..=b'~' if *byte != b'%' => name.push(char::from(*byte)),
                    _ => name += &format!("%{byte:02X}"),
                }
            }
        }
    }
    json!({
        "SPDXID": id_of(path),
        "fileName": name,
        "checksums": [
            { "algorithm": "SHA1", "checksumValue": file.sha1 },
            { "algorithm": "SHA256", "checksumValue": file.sha256 },
        ],
        "licenseConcluded": UNKNOWN,
        "licenseInfoInFiles": [UNKNOWN],
        "copyrightText": UNKNOWN,
    })
}

/// A package with the members common to all packages.
fn thing(id: &str, name: &str, purpose: &str) -> Value {
    json!({
        "SPDXID": id,
        "name": name,
        "primaryPackagePurpose": purpose,
        "downloadLocation": UNKNOWN,
        "filesAnalyzed": false,
        "licenseConcluded": UNKNOWN,
        "licenseDeclared": UNKNOWN,
        "copyrightText": UNKNOWN,
    })
}

fn relationship(from: &str, kind: &str, to: &Value) -> Value {
    json!({
        "spdxElementId": from,
        "relationshipType": kind,
        "relatedSpdxElement": to,
    })
}

fn checksum(digest: &Digest) -> Value {
    let algorithm = digest.algorithm().as_str().to_uppercase();
    json!([{ "algorithm": algorithm, "checksumValue": digest.hex() }])
}

fn purl(url: &str) -> Value {
    json!([{
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": url,
    }])
}

/// purl-spec, type `oci`: the name is the last path component, the version the digest.
fn purl_oci(repository: &str, url: &str, tag: Option<&str>, digest: &Digest) -> String {
    let name = repository.rsplit('/').next().unwrap_or(repository);
    let mut text = format!(
        "pkg:oci/{}@{}?repository_url={}",
        escaped(name),
        escaped(&digest.to_string()),
        escaped(url)
    );
    if let Some(tag) = tag {
        text += &format!("&tag={}", escaped(tag));
    }
    text
}

/// Percent-encodes text for package URLs.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// Restricts text to the characters of SPDX identifiers: letters, digits, `.` and `-`.
fn identifier(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::image::Reference;
    use imgctl_layer::LayerPath;

    impl Files for Vec<File> {
        fn paths(&self) -> Box<dyn Iterator<Item = LayerPath> + '_> {
            Box::new(self.iter().map(|file| file.path.clone()))
        }

        fn files(&self) -> Box<dyn Iterator<Item = Result<File>> + '_> {
            Box::new(self.iter().cloned().map(Ok))
        }

        fn sha1s(&self) -> Result<Box<dyn Iterator<Item = String> + '_>> {
            Ok(Box::new(self.iter().map(|file| file.sha1.clone())))
        }
    }

    fn text(inventory: &Inventory<'_>) -> Vec<u8> {
        let mut text = Vec::new();
        write(inventory, &mut text).unwrap();
        text
    }

    fn inventory() -> Inventory<'static> {
        Inventory {
            name: Some(Reference::parse("q.io/team/app:v1").unwrap()),
            digest: Digest::of(b"image"),
            architecture: "amd64".to_owned(),
            created: "2024-01-02T03:04:05Z".to_owned(),
            layers: vec![Layer { digest: Digest::of(b"layer"), kind: None }],
            embedded: vec![Embedded {
                repository: "coredns/coredns".to_owned(),
                tag: Some("v1".to_owned()),
                digest: Digest::of(b"embedded"),
            }],
            distribution: None,
            packages: vec![Package {
                kind: "deb",
                name: "libstdc++6".to_owned(),
                version: "1:2+b1".to_owned(),
                architecture: "amd64".to_owned(),
            }],
            files: Some(Box::new(vec![File {
                path: LayerPath::parse(b"etc/\xff%").unwrap(),
                sha1: sha1_of([]),
                sha256: Digest::of(b"").hex().to_owned(),
            }])),
        }
    }

    #[test]
    fn the_document_names_everything_once_and_relates_it() {
        let text = text(&inventory());
        assert_eq!(text, self::text(&inventory()));
        let document: Value = serde_json::from_slice(&text).unwrap();
        let ids: Vec<&str> = document["packages"]
            .as_array()
            .unwrap()
            .iter()
            .chain(document["files"].as_array().unwrap())
            .map(|part| part["SPDXID"].as_str().unwrap())
            .collect();
        assert_eq!(ids.len(), 5);
        let is_valid =
            |id: &&str| id.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b));
        assert!(ids.iter().all(is_valid), "{ids:?}");
        let related = document["relationships"].as_array().unwrap();
        assert_eq!(related.len(), ids.len());
        for id in ids {
            assert!(related.iter().any(|r| r["relatedSpdxElement"] == id), "{id}");
        }
        assert_eq!(document["files"][0]["fileName"], "./etc/%FF%25");
        let locator = &document["packages"][3]["externalRefs"][0]["referenceLocator"];
        assert_eq!(locator, "pkg:deb/debian/libstdc%2B%2B6@1%3A2%2Bb1?arch=amd64");
        let code = &document["packages"][0]["packageVerificationCode"];
        let expected = sha1_of([sha1_of([])]);
        assert_eq!(code["packageVerificationCodeValue"], expected);
    }

    #[test]
    fn without_files_the_document_is_another_one() {
        let with = namespace(&inventory());
        let without = Inventory { files: None, ..inventory() };
        assert_ne!(namespace(&without), with);
        let document: Value = serde_json::from_slice(&text(&without)).unwrap();
        assert_eq!(document["packages"][0]["filesAnalyzed"], false);
        assert!(document.get("files").is_none());
    }
}
