//! Answers requests from containerd on this host, which arrive over the loopback interface, and from other hosts.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use serde_json::json;

use crate::agent::peers::Settings;
use crate::agent::peers::index::Index;
use crate::agent::peers::inventory::{ByDigest, Holdings};
use crate::agent::peers::placement::Placement;
use crate::agent::peers::reply::{Reply, nothing, text};
use crate::agent::peers::search::Search;
use crate::agent::peers::stream;
use crate::agent::peers::wire::{COUNTS, HOLDERS, LONGEST, TOLD, Told};
use imgctl_base::error::Result;
use imgctl_base::image::Digest;
use imgctl_base::workers::lock;
use imgctl_registry::server::{ServeOptions, Service};
use imgctl_registry::serving::Handler;

/// The service of one host.
pub(super) struct Node {
    pub(super) settings: Settings,
    pub(super) placement: Placement,
    pub(super) index: Mutex<Index>,
    /// What this host has; empty until containerd has answered.
    pub(super) own: Mutex<HashSet<Digest>>,
    pub(super) search: Search,
    /// Bytes that came from other hosts.
    pub(super) fetched: Arc<AtomicU64>,
    /// Whether a client at this address is containerd of this host.
    pub(super) is_local: fn(IpAddr) -> bool,
    registry: Service,
}

impl Node {
    pub(super) fn new(settings: Settings, source: Arc<dyn Holdings>) -> Result<Self> {
        let options =
            ServeOptions { token: settings.secret(), read_only: true, ..ServeOptions::default() };
        Ok(Self {
            placement: Placement::new(&settings.peers),
            index: Mutex::default(),
            own: Mutex::default(),
            search: Search::new(&settings)?,
            fetched: Arc::default(),
            is_local: |address| address.is_loopback(),
            registry: Service::new(&options, Arc::new(ByDigest(source)))?,
            settings,
        })
    }

    /// Returns the digests on this host whose records `host` keeps.
    pub(super) fn kept_by(&self, host: &str) -> Vec<Digest> {
        let own = lock(&self.own);
        let kept = |digest: &&Digest| self.placement.keeps(host, digest);
        own.iter().filter(kept).cloned().collect()
    }

    fn is_authorised(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.settings.token else { return true };
        let shown = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let shown = shown.and_then(|value| value.strip_prefix(b"Bearer "));
        shown.is_some_and(|shown| verify_slices_are_equal(shown, token.as_bytes()).is_ok())
    }

    /// Answers containerd on this host. Any failure is a 404: containerd then asks a registry host.
    async fn local(&self, request: &Request<Incoming>) -> Response<Reply> {
        let path = request.uri().path();
        if !self.is_authorised(request) || !matches!(*request.method(), Method::GET | Method::HEAD)
        {
            return nothing();
        }
        match path {
            "/v2/" => return text(StatusCode::OK, "{}"),
            COUNTS => return self.counts(),
            _ => {}
        }
        let Some(digest) = wanted(path) else { return nothing() };
        let holders = self.holders(&digest).await;
        let found = stream::fetch(&self.search, request, &digest, holders, &self.fetched).await;
        found.unwrap_or_else(nothing)
    }

    /// Returns hosts that have `digest`, according to the hosts that keep its records.
    async fn holders(&self, digest: &Digest) -> Vec<String> {
        let own = self.settings.address.as_str();
        for keeper in self.placement.keepers(digest) {
            let holders = if keeper == own {
                lock(&self.index).holders(digest, own)
            } else {
                self.search.ask(keeper, digest).await
            };
            // Only peers: a record must not send this host elsewhere.
            let holders: Vec<String> = holders
                .into_iter()
                .filter(|host| host != own && self.placement.has(host))
                .collect();
            if !holders.is_empty() {
                return holders;
            }
        }
        Vec::new()
    }

    async fn other(&self, request: Request<Incoming>) -> Response<Reply> {
        let path = request.uri().path();
        if path == "/v2" || path.starts_with("/v2/") {
            return self.registry.answer(request).await.map(Reply::Registry);
        }
        if !self.is_authorised(&request) {
            return text(StatusCode::UNAUTHORIZED, "");
        }
        if let Some(digest) = path.strip_prefix(HOLDERS)
            && request.method() == Method::GET
        {
            let Ok(digest) = Digest::parse(digest) else { return nothing() };
            let holders = lock(&self.index).holders(&digest, "");
            return text(StatusCode::OK, json!(holders).to_string());
        }
        if path == TOLD && request.method() == Method::POST {
            return self.told(request.into_body()).await;
        }
        nothing()
    }

    async fn told(&self, body: Incoming) -> Response<Reply> {
        let Ok(body) = Limited::new(body, LONGEST).collect().await else {
            return text(StatusCode::BAD_REQUEST, "too long");
        };
        let Ok(told) = serde_json::from_slice::<Told>(&body.to_bytes()) else {
            return text(StatusCode::BAD_REQUEST, "malformed");
        };
        if !self.placement.has(&told.from) {
            return text(StatusCode::FORBIDDEN, "not a host of this cluster");
        }
        let Told { from, has, gone, all } = told;
        self.note(&from, has, &gone, all);
        let answer = Told {
            from: self.settings.address.clone(),
            has: if all { self.kept_by(&from) } else { Vec::new() },
            all,
            ..Told::default()
        };
        match serde_json::to_vec(&answer) {
            Ok(answer) => text(StatusCode::OK, answer),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, ""),
        }
    }

    /// Records what `host` has told.
    pub(super) fn note(&self, host: &str, has: Vec<Digest>, gone: &[Digest], all: bool) {
        let own = self.settings.address.as_str();
        let kept = |digest: &Digest| self.placement.keeps(own, digest);
        let mut index = lock(&self.index);
        if all {
            index.forget(host);
        }
        index.add(host, has.into_iter().filter(kept));
        index.remove(host, gone);
    }

    fn counts(&self) -> Response<Reply> {
        let fetched = self.fetched.load(Ordering::Relaxed);
        let counts = json!({ "blobs": lock(&self.own).len(), "fetchedBytes": fetched });
        text(StatusCode::OK, counts.to_string())
    }
}

/// Returns the digest that `/v2/NAME/blobs/DIGEST` or `/v2/NAME/manifests/DIGEST` asks for; `None` for tags
/// and everything else.
fn wanted(path: &str) -> Option<Digest> {
    let (before, last) = path.strip_prefix("/v2/")?.rsplit_once('/')?;
    let (_, kind) = before.rsplit_once('/')?;
    matches!(kind, "blobs" | "manifests").then(|| Digest::parse(last).ok())?
}

impl Handler for Node {
    type Body = Reply;

    async fn answer(
        &self,
        peer: Option<SocketAddr>,
        request: Request<Incoming>,
    ) -> Response<Self::Body> {
        match peer {
            Some(peer) if (self.is_local)(peer.ip().to_canonical()) => self.local(&request).await,
            _ => self.other(request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digests_are_looked_for() {
        let digest = Digest::of(b"x");
        for (path, expected) in [
            (format!("/v2/team/app/blobs/{digest}"), Some(&digest)),
            (format!("/v2/app/manifests/{digest}"), Some(&digest)),
            ("/v2/app/manifests/v1".to_owned(), None),
            (format!("/v2/app/tags/{digest}"), None),
            (format!("/v2/blobs/{digest}"), None),
            (format!("/v3/app/blobs/{digest}"), None),
            ("/v2/app/blobs/sha256:../../etc/passwd".to_owned(), None),
        ] {
            assert_eq!(wanted(&path).as_ref(), expected, "{path}");
        }
    }
}
