//! Signatures without keys: the flags that name the services of a signature, where the identity
//! token comes from (flag, variables of CI systems), and the flags that demand an identity.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use crate::{context::Context, duration};
use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::secret::Secret;
use imgctl_registry::Client;
use imgctl_trust::keys::PrivateKey;
use imgctl_trust::sigstore::root::{MAX_ROOT, TrustedRoot};
use imgctl_trust::sigstore::sign::{
    LogService, LogVersion, MAX_CONFIG, Sealer, Services, github_token,
};
use imgctl_trust::sigstore::verify::{Keyless, Pattern, SignerPattern};

/// Default of `--timeout`.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum size of an identity token, in bytes.
const MAX_TOKEN: u64 = 64 << 10;

/// Services used for signing.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sigstore options")]
pub struct ServiceArgs {
    /// Sign as the identity of a token, with a certificate in place of a key [default: without
    /// --key]
    #[arg(long, conflicts_with = "key")]
    keyless: bool,

    /// File with the identity token, - for stdin [env: SIGSTORE_ID_TOKEN; in GitHub Actions it is
    /// requested]
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    identity_token: Option<PathBuf>,

    /// Services to use, as a signing configuration (signing_config.json, v0.2)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fulcio_url", "rekor_url", "timestamp_server_url"])]
    signing_config: Option<PathBuf>,

    /// Authority that certifies the identity [default: https://fulcio.sigstore.dev]
    #[arg(long, value_name = "URL", conflicts_with = "key")]
    fulcio_url: Option<String>,

    /// Transparency log to record the signature in [default: https://rekor.sigstore.dev; none with
    /// --key]
    #[arg(long, value_name = "URL")]
    rekor_url: Option<String>,

    /// Version of the transparency log's interface: 1 or 2
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2), requires = "rekor_url")]
    rekor_version: u8,

    /// Time-stamping authority (RFC 3161)
    #[arg(long, value_name = "URL")]
    timestamp_server_url: Option<String>,

    /// How long services that do not answer are asked again [default: 2m]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
}

impl ServiceArgs {
    /// Returns whether the signature is to be made without a key.
    pub fn is_keyless(&self, has_key: bool, context: &Context) -> Result<bool> {
        if has_key {
            return Ok(false);
        }
        let has_token = self.identity_token.is_some()
            || context.environment.text(TOKEN)?.is_some()
            || context.environment.text(REQUEST_URL)?.is_some();
        if self.keyless || has_token {
            return Ok(true);
        }
        Err(Error::usage("neither a key nor an identity to sign with")
            .hint("pass --key FILE, or --keyless with an identity token"))
    }

    /// Returns whether any service is named.
    pub fn are_given(&self) -> bool {
        self.signing_config.is_some()
            || self.rekor_url.is_some()
            || self.timestamp_server_url.is_some()
    }

    /// Returns the services to use; with a key, only those that are named.
    pub fn services(&self, keyless: bool) -> Result<Services> {
        if let Some(file) = &self.signing_config {
            let text = read(file, MAX_CONFIG)?;
            return Services::parse(&text)
                .context(|| format!("cannot use the signing configuration {}", file.display()));
        }
        let mut services = if keyless { Services::public() } else { Services::default() };
        if let Some(url) = &self.fulcio_url {
            services.authority = Some(url.clone());
        }
        if let Some(url) = &self.rekor_url {
            let version = if self.rekor_version == 2 { LogVersion::V2 } else { LogVersion::V1 };
            services.logs = vec![LogService { url: url.clone(), version }];
        }
        services.stampers.extend(self.timestamp_server_url.clone());
        Ok(services)
    }

    /// Returns when services are no longer asked.
    pub fn until(&self) -> Result<Instant> {
        let timeout = self.timeout.as_deref().map(duration::parse).transpose()?;
        Ok(Instant::now() + timeout.unwrap_or(TIMEOUT))
    }

    /// Prepares to sign with `key`, or without one by the identity of a token.
    pub fn sealer<'a>(
        &self,
        key: Option<&'a PrivateKey>,
        client: &'a Client,
        services: &'a Services,
        context: &Context,
    ) -> Result<Sealer<'a>> {
        let until = self.until()?;
        match key {
            Some(key) => Ok(Sealer::with_key(client, services, key, until)),
            None => {
                let token = self.token(context, client, until)?;
                Sealer::keyless(client, services, &token, until)
            }
        }
    }

    /// Returns the identity token: of the flag, of the variable, or GitHub's.
    fn token(&self, context: &Context, client: &Client, until: Instant) -> Result<Secret> {
        let text = match &self.identity_token {
            Some(file) if file == Path::new("-") => {
                let mut text = String::new();
                std::io::stdin()
                    .take(MAX_TOKEN)
                    .read_to_string(&mut text)
                    .doing(|| "cannot read the identity token from stdin".to_owned())?;
                Some(text)
            }
            Some(file) => Some(String::from_utf8(read(file, MAX_TOKEN)?).map_err(|_| {
                Error::bad_content(format!("{} is not an identity token", file.display()))
            })?),
            None => context.environment.text(TOKEN)?.map(str::to_owned),
        };
        if let Some(text) = text {
            let text = text.trim();
            let is_token =
                text.split('.').count() == 3 && text.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_token {
                return Err(Error::bad_content("the identity token is not a JSON web token"));
            }
            return Ok(Secret::new(text));
        }
        let environment = &context.environment;
        match (environment.text(REQUEST_URL)?, environment.text(REQUEST_TOKEN)?) {
            (Some(url), Some(token)) => github_token(client, url, &Secret::new(token), until),
            _ => Err(Error::usage("no identity token to sign with").hint(format!(
                "pass --identity-token FILE or set {TOKEN}; a GitHub Actions job needs \
                 `permissions: id-token: write`"
            ))),
        }
    }
}

/// Variable of the identity token (sigstore; also `id_tokens` of GitLab).
const TOKEN: &str = "SIGSTORE_ID_TOKEN";
/// Variables of GitHub Actions, where a job requests its token.
const REQUEST_URL: &str = "ACTIONS_ID_TOKEN_REQUEST_URL";
const REQUEST_TOKEN: &str = "ACTIONS_ID_TOKEN_REQUEST_TOKEN";

/// The identity that must have signed.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sigstore options")]
pub struct IdentityArgs {
    /// Identity that must have signed: a URI or mail address in the certificate
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = ["keys", "certificate_identity_regexp"])]
    certificate_identity: Option<String>,

    /// Regular expression for that identity; it may match anywhere, so anchor it
    #[arg(long, value_name = "REGEX", value_parser = NonEmptyStringValueParser::new(), conflicts_with = "keys")]
    certificate_identity_regexp: Option<String>,

    /// Issuer of the signer's identity token
    #[arg(long, value_name = "URL", value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = ["keys", "certificate_oidc_issuer_regexp"])]
    certificate_oidc_issuer: Option<String>,

    /// Regular expression for that issuer; it may match anywhere, so anchor it
    #[arg(long, value_name = "REGEX", value_parser = NonEmptyStringValueParser::new(), conflicts_with = "keys")]
    certificate_oidc_issuer_regexp: Option<String>,

    /// Authorities and logs to trust (trusted_root.json)
    #[arg(long, value_name = "FILE", conflicts_with = "keys")]
    trusted_root: Option<PathBuf>,

    /// Accept certificates that no certificate transparency log has seen
    #[arg(long, conflicts_with = "keys")]
    insecure_ignore_sct: bool,

    /// Accept signatures that no transparency log has recorded; a timestamp must prove the time
    #[arg(long, conflicts_with = "keys")]
    insecure_ignore_tlog: bool,
}

impl IdentityArgs {
    /// Returns whether an identity is demanded.
    pub fn is_given(&self) -> bool {
        self.certificate_identity.is_some() || self.certificate_identity_regexp.is_some()
    }

    /// Returns the demands, which must be complete.
    pub fn keyless(&self) -> Result<Keyless> {
        let missing = |what: &str, hint: &str| {
            Error::usage(format!("{what} is missing to verify a signature without a key"))
                .hint(format!("pass {hint}"))
        };
        let identity = pattern(
            self.certificate_identity.as_deref(),
            self.certificate_identity_regexp.as_deref(),
        )?
        .ok_or_else(|| missing("the signer's identity", "--certificate-identity NAME, or --key"))?;
        let issuer = pattern(
            self.certificate_oidc_issuer.as_deref(),
            self.certificate_oidc_issuer_regexp.as_deref(),
        )?
        .ok_or_else(|| missing("the issuer of the identity", "--certificate-oidc-issuer URL"))?;
        let file = self
            .trusted_root
            .as_deref()
            .ok_or_else(|| missing("the trusted root", "--trusted-root trusted_root.json"))?;
        let root = TrustedRoot::parse(&read(file, MAX_ROOT)?)
            .context(|| format!("cannot use the trusted root {}", file.display()))?;
        Ok(Keyless {
            root,
            signers: vec![SignerPattern { identity, issuer }],
            ignore_certificate_log: self.insecure_ignore_sct,
            ignore_log: self.insecure_ignore_tlog,
        })
    }
}

fn pattern(exactly: Option<&str>, expression: Option<&str>) -> Result<Option<Pattern>> {
    match (exactly, expression) {
        (Some(text), _) => Ok(Some(Pattern::Exactly(text.to_owned()))),
        (None, Some(text)) => Pattern::expression(text).map(Some),
        (None, None) => Ok(None),
    }
}

/// Reads a file; refuses files above the limit.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .path("read", path)?;
    if bytes.len() as u64 > limit {
        return Err(Error::bad_content(format!("{} is larger than {limit} bytes", path.display())));
    }
    Ok(bytes)
}
