//! Functions that are random in Helm, or ask a cluster or the network. Here they return the same value
//! at every call, so that a chart always renders to the same text. The keys, certificates and passwords are not real: they
//! only have the form that templates check.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::call::{Answer, Call, Group, int, text, value};
use super::encoding::{decode_base64, sha256};
use crate::value::{Object, Value};

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const DIGITS: &str = "0123456789";
/// Maximum length of a pseudo-random string.
const LONGEST: usize = 1 << 20;

pub(super) const GROUP: Group = &[
    ("randAlphaNum", "*", |a| repeated(a, &format!("{LETTERS}{DIGITS}"))),
    ("randAlpha", "*", |a| repeated(a, LETTERS)),
    ("randNumeric", "*", |a| repeated(a, DIGITS)),
    ("randAscii", "*", |a| repeated(a, &format!("{LETTERS}{DIGITS}"))),
    ("randBytes", "*", |a| {
        let text = repeated(a, LETTERS)?;
        Ok(Value::text(STANDARD.encode(super::call::text(&[text], 0).as_bytes())))
    }),
    ("randInt", "**", |a| Ok(Value::Int(int(a, 0)))),
    ("uuidv4", "", |_| Ok(Value::text("00000000-0000-4000-8000-000000000000"))),
    ("bcrypt", "s", |a| Ok(Value::text(hashed(&text(a, 0))))),
    ("htpasswd", "ss+", |a| Ok(Value::text(format!("{}:{}", text(a, 0), hashed(&text(a, 1)))))),
    ("derivePassword", "*sss*", |a| {
        Ok(Value::text(sha256(&text(a, 2)).chars().take(20).collect::<String>()))
    }),
    ("encryptAES", "ss", |a| Ok(Value::text(STANDARD.encode(text(a, 1).as_bytes())))),
    ("decryptAES", "ss", |a| decoded(a, 1)),
    ("genPrivateKey", "s", |a| {
        let kind = match text(a, 0).as_ref() {
            "rsa" => "RSA PRIVATE KEY",
            "ecdsa" => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        Ok(Value::text(pem(kind, "key")))
    }),
    ("genCA", "s*", |a| certificate(&text(a, 0))),
    ("genCAWithKey", "s*s", |a| certificate(&text(a, 0))),
    ("genSelfSignedCert", "s***", |a| certificate(&text(a, 0))),
    ("genSelfSignedCertWithKey", "s***s", |a| certificate(&text(a, 0))),
    ("genSignedCert", "s****", |a| certificate(&text(a, 0))),
    ("genSignedCertWithKey", "s****s", |a| certificate(&text(a, 0))),
    ("buildCustomCert", "ss", |a| {
        Ok(Value::object(Pair { certificate: decoded(a, 0)?, key: decoded(a, 1)? }))
    }),
    ("shuffle", "s", |a| Ok(value(a, 0))),
    ("lookup", "ssss", |_| Ok(Value::map::<&str>([]))),
    ("getHostByName", "s", |_| Ok(Value::text(""))),
];

fn decoded(a: &Call<'_>, index: usize) -> Answer {
    decode_base64(&a.with(&[value(a, index)]))
}

fn repeated(a: &[Value], letters: &str) -> Answer {
    let count = usize::try_from(int(a, 0)).map_err(|_| "a negative length".to_owned())?;
    if count > LONGEST {
        return Err(format!("more than {LONGEST} characters"));
    }
    Ok(Value::text(letters.chars().cycle().take(count).collect::<String>()))
}

/// Returns a string in the form of a bcrypt hash.
fn hashed(password: &str) -> String {
    format!("$2a$10${}", sha256(password).chars().take(53).collect::<String>())
}

fn certificate(name: &str) -> Answer {
    let (certificate, key) = (pem("CERTIFICATE", name), pem("RSA PRIVATE KEY", name));
    Ok(Value::object(Pair { certificate: Value::text(certificate), key: Value::text(key) }))
}

/// A certificate and its key.
struct Pair {
    certificate: Value,
    key: Value,
}

impl Object for Pair {
    fn type_name(&self) -> &'static str {
        "sprig.certificate"
    }

    fn show(&self) -> String {
        "{placeholder}".to_owned()
    }

    fn data(&self) -> Value {
        Value::map([("Cert", self.certificate.clone()), ("Key", self.key.clone())])
    }

    fn member(&self, name: &str, _: &[Value]) -> Option<Result<Value, String>> {
        match name {
            "Cert" => Some(Ok(self.certificate.clone())),
            "Key" => Some(Ok(self.key.clone())),
            _ => None,
        }
    }
}

/// Returns a string in the form of a PEM block whose content is the digest of a name.
fn pem(kind: &str, name: &str) -> String {
    let content = STANDARD.encode(sha256(name));
    let lines: Vec<&str> =
        content.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"))
}
