//! A client for the real API server that plays kubelets and controllers: not the one under test.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::inplace::kube::api::{Answer, Api, ApiError, PatchKind};
use crate::inplace::kube::testing::credentials::TOKEN;
use imgctl_base::error::Result;

struct Client {
    http: reqwest::Client,
    server: String,
    runtime: Runtime,
}

/// The API server of a kubeconfig of [`crate::inplace::kube::testing::credentials`], by its token.
pub(crate) fn connect_kubeconfig(path: &Path) -> Result<Arc<dyn Api>> {
    // Of several tests in one process only the first does.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let text = std::fs::read_to_string(path).unwrap();
    let server = text.split("server: '").nth(1).unwrap();
    let authority = std::fs::read(path.with_file_name("ca.crt")).unwrap();
    let http = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&authority).unwrap()])
        .timeout(Duration::from_secs(30))
        .no_proxy()
        .build()
        .unwrap();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    Ok(Arc::new(Client {
        http,
        server: server.split('\'').next().unwrap().to_owned(),
        runtime: runtime.worker_threads(1).enable_all().build().unwrap(),
    }))
}

impl Client {
    fn ask(&self, method: Method, path: &str, media: &str, body: &Value) -> Answer<Vec<u8>> {
        let silent =
            |error: reqwest::Error| ApiError { message: error.to_string(), ..ApiError::default() };
        let url = format!("{}{path}", self.server);
        let mut request = self.http.request(method, url).bearer_auth(TOKEN);
        if !body.is_null() {
            request = request.header("content-type", media).body(body.to_string());
        }
        let (code, bytes) = self
            .runtime
            .block_on(async {
                let response = request.send().await?;
                let code = response.status().as_u16();
                Ok((code, response.bytes().await?.to_vec()))
            })
            .map_err(silent)?;
        if code < 300 {
            return Ok(bytes);
        }
        let status: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
        Err(ApiError {
            code,
            reason: text("reason"),
            message: text("message"),
            ..ApiError::default()
        })
    }

    fn object(&self, method: Method, path: &str, media: &str, body: &Value) -> Answer<Value> {
        let bytes = self.ask(method, path, media, body)?;
        Ok(serde_json::from_slice(&bytes).unwrap())
    }
}

const JSON: &str = "application/json";

impl Api for Client {
    fn raw(&self, path: &str) -> Answer<Vec<u8>> {
        self.ask(Method::GET, path, JSON, &Value::Null)
    }

    fn get(&self, path: &str) -> Answer<Value> {
        self.object(Method::GET, path, JSON, &Value::Null)
    }

    fn list(&self, path: &str) -> Answer<Vec<Value>> {
        Ok(self.get(path)?["items"].as_array().unwrap().clone())
    }

    fn create(&self, path: &str, object: &Value) -> Answer<Value> {
        self.object(Method::POST, path, JSON, object)
    }

    fn replace(&self, path: &str, object: &Value) -> Answer<Value> {
        self.object(Method::PUT, path, JSON, object)
    }

    fn patch(&self, path: &str, kind: PatchKind, patch: &Value) -> Answer<Value> {
        let media = match kind {
            PatchKind::Json => "application/json-patch+json",
            PatchKind::Merge => "application/merge-patch+json",
            PatchKind::Strategic => "application/strategic-merge-patch+json",
        };
        self.object(Method::PATCH, path, media, patch)
    }

    fn delete(&self, path: &str, options: &Value) -> Answer<Value> {
        self.object(Method::DELETE, path, JSON, options)
    }
}
