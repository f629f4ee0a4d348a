//! Credentials that a program prints: `users[].user.exec` of a kubeconfig, by the protocol of
//! client.authentication.k8s.io. The program runs with this process's environment, as for kubectl,
//! but without a terminal.

use std::process::{Command, Stdio};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::secret::Secret;

/// Version of the protocol, if the kubeconfig names none.
const VERSION: &str = "client.authentication.k8s.io/v1";
/// Maximum size of the answer, in bytes.
const LARGEST: usize = 1 << 20;

/// The program and its arguments.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plugin {
    command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    api_version: Option<String>,
    install_hint: Option<String>,
}

#[derive(Clone, Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// Credentials, and the time until which they are valid.
#[derive(Debug)]
pub(super) struct Printed {
    pub(super) what: Kinds,
    pub(super) until: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) enum Kinds {
    /// PEM of the certificate with its chain, PEM of its key.
    Certificate(Vec<u8>, Secret),
    Token(Secret),
}

/// Values may be secrets.
impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Plugin {
    /// Runs the program.
    pub(super) fn run(&self) -> Result<Printed> {
        let name = &self.command;
        let version = self.api_version.as_deref().unwrap_or(VERSION);
        let question = json!({
            "apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": false},
        });
        let mut command = Command::new(name);
        command
            .args(self.args.iter().flatten())
            .envs(self.env.iter().flatten().map(|one| (&one.name, &one.value)))
            .env("KUBERNETES_EXEC_INFO", question.to_string())
            .stdin(Stdio::null());
        let answer = command.output().map_err(|error| {
            let hint = self.install_hint.clone().unwrap_or_else(|| {
                "the kubeconfig gets its credentials from this program: install it".to_owned()
            });
            Error::io(format!("cannot run {name}"), error).hint(hint)
        })?;
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.stderr);
            let last: String = said.trim().chars().rev().take(400).collect();
            let last: String = last.chars().rev().collect();
            let how = answer.status;
            return Err(Error::new(
                Kind::Denied,
                format!("{name}, which has the kubeconfig's credentials, failed ({how}): {last}"),
            )
            .hint("log in with that program first; it gets no terminal from imgctl"));
        }
        if answer.stdout.len() > LARGEST {
            return Err(self.unusable("is too long"));
        }
        self.read(&answer.stdout)
    }

    /// Reads an `ExecCredential`.
    fn read(&self, answer: &[u8]) -> Result<Printed> {
        // The underlying error may quote the answer, which is a secret.
        let answer: Value =
            serde_json::from_slice(answer).map_err(|_| self.unusable("is not JSON"))?;
        let status = &answer["status"];
        let text = |name: &str| status[name].as_str().filter(|text| !text.is_empty());
        let until = match text("expirationTimestamp") {
            None => None,
            Some(time) => Some(time.parse().map_err(|_| self.unusable("has no valid time"))?),
        };
        let what = match (text("clientCertificateData"), text("clientKeyData")) {
            (Some(certificate), Some(key)) => {
                Kinds::Certificate(certificate.as_bytes().to_vec(), Secret::new(key))
            }
            _ => match text("token") {
                Some(token) => Kinds::Token(Secret::new(token.trim())),
                None => return Err(self.unusable("has neither a token nor a certificate")),
            },
        };
        Ok(Printed { what, until })
    }

    fn unusable(&self, why: &str) -> Error {
        Error::bad_content(format!(
            "the answer of {}, a program for credentials, {why}",
            self.command
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(script: &str) -> Plugin {
        Plugin {
            command: "sh".to_owned(),
            args: Some(vec!["-c".to_owned(), script.to_owned()]),
            env: Some(vec![Variable { name: "T".to_owned(), value: "tok".to_owned() }]),
            api_version: None,
            install_hint: None,
        }
    }

    #[test]
    fn the_program_gets_its_variables_and_its_answer_is_read() {
        let script = r#"case "$KUBERNETES_EXEC_INFO" in *v1*) ;; *) exit 1;; esac
printf '{"status":{"token":"%s","expirationTimestamp":"2030-01-01T00:00:00Z"}}' "$T""#;
        let printed = plugin(script).run().unwrap();
        let Kinds::Token(token) = printed.what else { panic!("{printed:?}") };
        assert_eq!(token.expose(), "tok");
        assert_eq!(printed.until.unwrap().to_string(), "2030-01-01T00:00:00Z");
    }

    #[test]
    fn failures_say_why_and_no_secret() {
        let failed = |script: &str| plugin(script).run().unwrap_err();
        let error = failed("echo expired >&2; exit 3");
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.to_string().contains("expired"), "{error}");
        for script in ["echo s3cret", "echo '{}'", "echo '{\"status\":{\"token\":\"\"}}'"] {
            let error = failed(script);
            assert_eq!(error.kind(), Kind::BadContent);
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        let mut missing = plugin("");
        missing.command = "/nonexistent/plugin".to_owned();
        missing.install_hint = Some("get it there".to_owned());
        assert_eq!(missing.run().unwrap_err().hints(), ["get it there"]);
    }
}
