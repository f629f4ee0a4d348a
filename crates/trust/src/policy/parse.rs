//! Parses the text of a policy into requirements. Strict: an unknown member or type makes the whole
//! file an error, so that no requirement is silently weakened.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;

use crate::policy::certified::{Certified, Fulcio};
use crate::policy::{KeySource, Requirement, Scheme, SignedIdentity};
use imgctl_base::error::{Context as _, Error, Result};

type Parsed = (Vec<Requirement>, BTreeMap<String, BTreeMap<String, Vec<Requirement>>>);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Vec<Entry>,
    #[serde(default)]
    transports: Unique<Unique<Vec<Entry>>>,
}

#[derive(serde::Deserialize)]
#[serde(tag = "type", deny_unknown_fields, rename_all_fields = "camelCase")]
enum Entry {
    #[serde(rename = "insecureAcceptAnything")]
    AcceptAnything {},
    #[serde(rename = "reject")]
    Reject {},
    #[serde(rename = "signedBy")]
    SignedBy {
        key_type: String,
        key_path: Option<PathBuf>,
        key_paths: Option<Vec<PathBuf>>,
        key_data: Option<String>,
        #[serde(default)]
        signed_identity: SignedIdentity,
    },
    #[serde(rename = "sigstoreSigned")]
    Sigstore {
        key_path: Option<PathBuf>,
        key_paths: Option<Vec<PathBuf>>,
        key_data: Option<String>,
        key_datas: Option<Vec<String>>,
        fulcio: Option<Box<Fulcio>>,
        pki: Option<Value>,
        rekor_public_key_path: Option<PathBuf>,
        rekor_public_key_paths: Option<Vec<PathBuf>>,
        rekor_public_key_data: Option<String>,
        rekor_public_key_datas: Option<Vec<String>>,
        signed_identity: Option<SignedIdentity>,
    },
    #[serde(rename = "signedBaseLayer")]
    SignedBaseLayer {
        #[serde(rename = "baseLayerIdentity")]
        _identity: Value,
    },
}

/// A map that refuses duplicate names.
struct Unique<T>(BTreeMap<String, T>);

impl<T> Default for Unique<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Unique<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique<T>, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, T>()? {
                    if members.contains_key(&name) {
                        return Err(A::Error::custom(format!("`{name}` appears twice")));
                    }
                    members.insert(name, value);
                }
                Ok(Unique(members))
            }
        }
        deserializer.deserialize_map(Members(PhantomData))
    }
}

/// Parses the default and the requirements of transports and scopes.
pub(super) fn policy(text: &[u8]) -> Result<Parsed> {
    let file: File = serde_json::from_slice(text)
        .map_err(|error| Error::bad_content("it cannot be parsed").caused_by(error))?;
    let default = requirements(file.default).context(|| "`default`".to_owned())?;
    let mut transports = BTreeMap::new();
    for (transport, scopes) in file.transports.0 {
        let mut table = BTreeMap::new();
        for (scope, entries) in scopes.0 {
            let list = requirements(entries)
                .context(|| format!("scope `{scope}` of transport `{transport}`"))?;
            table.insert(scope, list);
        }
        transports.insert(transport, table);
    }
    Ok((default, transports))
}

fn requirements(entries: Vec<Entry>) -> Result<Vec<Requirement>> {
    if entries.is_empty() {
        return Err(Error::bad_content("a list of requirements is empty")
            .hint("write {\"type\": \"insecureAcceptAnything\"} if nothing is required"));
    }
    entries.into_iter().map(requirement).collect()
}

fn requirement(entry: Entry) -> Result<Requirement> {
    match entry {
        Entry::AcceptAnything {} => Ok(Requirement::AcceptAnything),
        Entry::Reject {} => Ok(Requirement::Reject),
        Entry::SignedBaseLayer { .. } => {
            Ok(Requirement::Unsupported("`signedBaseLayer`".to_owned()))
        }
        Entry::SignedBy { key_type, key_path, key_paths, key_data, signed_identity } => {
            signed_identity.check()?;
            if key_type != "GPGKeys" {
                return Ok(Requirement::Unsupported(format!("`keyType` {key_type}")));
            }
            Ok(Requirement::Signed {
                by: Scheme::Gpg,
                keys: keys(key_path, key_paths, key_data, None)?,
                identity: signed_identity,
            })
        }
        Entry::Sigstore {
            key_path,
            key_paths,
            key_data,
            key_datas,
            fulcio,
            pki,
            rekor_public_key_path,
            rekor_public_key_paths,
            rekor_public_key_data,
            rekor_public_key_datas,
            signed_identity,
        } => {
            if let Some(identity) = &signed_identity {
                identity.check()?;
            }
            if pki.is_some() {
                let what = "`pki` (certificates of a private authority)";
                return Ok(Requirement::Unsupported(what.to_owned()));
            }
            let has_rekor = rekor_public_key_path.is_some()
                || rekor_public_key_paths.is_some()
                || rekor_public_key_data.is_some()
                || rekor_public_key_datas.is_some();
            let has_key = key_path.is_some()
                || key_paths.is_some()
                || key_data.is_some()
                || key_datas.is_some();
            let Some(fulcio) = fulcio else {
                if has_rekor {
                    return Ok(Requirement::Unsupported(REKOR.to_owned()));
                }
                return Ok(Requirement::Signed {
                    by: Scheme::Sigstore,
                    keys: keys(key_path, key_paths, key_data, key_datas)?,
                    identity: signed_identity.unwrap_or_default(),
                });
            };
            if has_key {
                return Err(Error::bad_content("`fulcio` and `key…` exclude each other"));
            }
            let rekor = has_rekor.then(|| {
                keys(
                    rekor_public_key_path,
                    rekor_public_key_paths,
                    rekor_public_key_data,
                    rekor_public_key_datas,
                )
            });
            let certified = Certified::new(*fulcio, rekor.transpose()?, signed_identity)?;
            Ok(Requirement::Certified(Box::new(certified)))
        }
    }
}

const REKOR: &str = "`rekorPublicKey…` without `fulcio` (log entries of keys)";

/// Requires exactly one of the four key members.
fn keys(
    path: Option<PathBuf>,
    paths: Option<Vec<PathBuf>>,
    data: Option<String>,
    datas: Option<Vec<String>>,
) -> Result<KeySource> {
    let decode = |texts: Vec<String>| {
        texts
            .iter()
            .map(|text| STANDARD.decode(text))
            .collect::<Result<Vec<_>, _>>()
            .map(KeySource::Data)
            .map_err(|_| Error::bad_content("`keyData` is not base64"))
    };
    let source = match (path, paths, data, datas) {
        (Some(path), None, None, None) => KeySource::Files(vec![path]),
        (None, Some(paths), None, None) if !paths.is_empty() => KeySource::Files(paths),
        (None, None, Some(data), None) => decode(vec![data])?,
        (None, None, None, Some(datas)) if !datas.is_empty() => decode(datas)?,
        _ => {
            return Err(Error::bad_content(
                "exactly one of `keyPath`, `keyPaths`, `keyData` and `keyDatas` (or of the four members \
                 `rekorPublicKey…`) must be set",
            ));
        }
    };
    Ok(source)
}
