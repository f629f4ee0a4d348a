//! Signed statements about files: `imgctl attest-blob` and `verify-blob-attestation`, with the flags
//! of cosign's commands of these names.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::cli::commands::keys::{PasswordArg, private, public};
use imgctl_base::error::{Context as _, IoContext as _, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_base::image::{Digest, Hasher};
use imgctl_frontend::signing_options::{IdentityArgs, ServiceArgs, read};
use imgctl_frontend::{context::Context, registry_options::RegistryArgs};
use imgctl_trust::verify::Trust;
use imgctl_trust::{
    blob,
    blob::{MAX_BUNDLE, MAX_STATEMENT},
};

/// Sign a statement about files
#[derive(Args, Debug)]
#[command(
    after_help = "The statement (in-toto v1, for example SLSA provenance) names its files with their SHA-256 digests.
It is signed as it is; the result is a sigstore bundle (v0.3), which cosign, gh and the libraries of
sigstore verify.

Examples:
  imgctl attest-blob --statement provenance.json --key cosign.key --bundle release.sigstore.json
  imgctl attest-blob --statement provenance.json --keyless --bundle release.sigstore.json"
)]
pub(crate) struct AttestBlobArgs {
    /// In-toto statement to sign
    #[arg(long, value_name = "FILE")]
    statement: PathBuf,

    /// File to write the bundle to instead of stdout
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,

    /// Private key (imgctl key generate, cosign, or PEM)
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    #[command(flatten)]
    password: PasswordArg,

    #[command(flatten)]
    services: ServiceArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Signs the statement and writes the bundle.
pub(crate) fn attest(args: &AttestBlobArgs, context: &Context) -> Result<()> {
    let statement = read(&args.statement, MAX_STATEMENT)?;
    let keyless = args.services.is_keyless(args.key.is_some(), context)?;
    let key = match &args.key {
        Some(path) => Some(private(path, &args.password, context)?),
        None => None,
    };
    let client = args.registry.client(context)?;
    let services = args.services.services(keyless)?;
    let sealer = args.services.sealer(key.as_ref(), &client, &services, context)?;
    let bundle = blob::sign_statement(&statement, &sealer)
        .context(|| format!("cannot sign {}", args.statement.display()))?;
    let Some(path) = &args.bundle else {
        return context.ui.content(&bundle);
    };
    output::write(path, &bundle, 0o644, Durability::Atomic)?;
    let view = json!({ "bundle": path, "digest": Digest::of(&bundle) });
    context.ui.result(&view, &path.display().to_string())
}

/// Verify a signed statement about files
#[derive(Args, Debug)]
#[command(
    after_help = "The bundle must be signed by one of the keys or by the identity, and must name each file with its
digest. Otherwise the exit code is 5, and the error says what is wrong.

Examples:
  imgctl verify-blob-attestation --key cosign.pub --bundle release.sigstore.json SHA256SUMS
  imgctl verify-blob-attestation --trusted-root trusted_root.json \\
    --certificate-oidc-issuer https://token.actions.githubusercontent.com \\
    --certificate-identity https://github.com/team/app/.github/workflows/release.yml@refs/tags/v1 \\
    --type slsaprovenance1 --bundle app.sigstore.json app.tar.gz"
)]
pub(crate) struct VerifyBlobArgs {
    /// File that the statement must be about
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Sigstore bundle
    #[arg(long, value_name = "FILE")]
    bundle: PathBuf,

    /// Public key (may be repeated; one of them must have signed)
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,

    /// Type that the statement must have: a URI, or slsaprovenance1, spdx, cyclonedx, … [default: any]
    #[arg(long = "type", value_name = "TYPE")]
    predicate_type: Option<String>,

    #[command(flatten)]
    certificate: IdentityArgs,
}

/// Verifies the bundle and prints which files it is about.
pub(crate) fn verify(args: &VerifyBlobArgs, context: &Context) -> Result<()> {
    let predicate = args.predicate_type.as_deref().map(blob::predicate_type).transpose()?;
    let trust = if args.keys.is_empty() {
        Trust::Keyless(Box::new(args.certificate.keyless()?))
    } else {
        Trust::Keys(args.keys.iter().map(|path| public(path)).collect::<Result<Vec<_>>>()?)
    };
    let bundle = read(&args.bundle, MAX_BUNDLE)?;
    let mut files = Vec::new();
    for path in &args.files {
        files.push((path.display().to_string(), digest(path)?));
    }
    let attested = blob::verify_statement(&bundle, &trust, predicate.as_deref(), &files)
        .context(|| format!("cannot verify with {}", args.bundle.display()))?;
    if let Some(signer) = &attested.signer {
        context.ui.say(&format!("signed by {} ({})", signer.identity, signer.issuer));
    }
    if context.ui.is_json() {
        let names = |(name, digest): &(String, Digest)| json!({ "file": name, "digest": digest });
        let signer = attested
            .signer
            .as_ref()
            .map(|signer| json!({ "identity": signer.identity, "issuer": signer.issuer }));
        return context.ui.json(&json!({
            "verified": files.iter().map(names).collect::<Vec<_>>(),
            "predicateType": attested.statement["predicateType"],
            "signer": signer,
        }));
    }
    for (name, _) in &files {
        context.ui.line(&format!("{name}: verified"))?;
    }
    Ok(())
}

/// Returns the digest of a file of any size.
fn digest(path: &Path) -> Result<Digest> {
    let mut file = std::fs::File::open(path).path("open", path)?;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).path("read", path)?;
        if count == 0 {
            return Ok(hasher.finish());
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
    }
}
