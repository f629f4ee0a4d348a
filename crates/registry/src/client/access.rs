//! Access to one repository for another machine: what this machine knows about the way there
//! (mirrors, certificates, credentials), as a value that can be sent.
//!
//! It contains secrets: it goes only to the machine that reads, over a channel that others cannot
//! read, and is never stored. `Debug` shows none of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::challenge::{self, Auth};
use crate::client::hosts::{Place, Pool, Shared, is_local_name};
use crate::client::http::Pace;
use crate::client::{ClientOptions, Inner, Repository};
use crate::credentials::{Credential, Login};
use crate::registries::{Certificates, Pem};
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;

/// Timeout for a connection: the registry is near the machine that reads.
const CONNECT: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Clone, Serialize, Deserialize)]
pub struct Access {
    name: String,
    attempts: Option<u32>,
    /// Mirrors in order, the registry itself last.
    places: Vec<AccessPlace>,
}

#[derive(Clone, Serialize, Deserialize)]
struct AccessPlace {
    host: String,
    repository: String,
    path: String,
    headers: Vec<(String, String)>,
    insecure: bool,
    by_digest: bool,
    asked: bool,
    authorities: Vec<PemText>,
    client: Option<(PemText, PemText)>,
    credential: Option<GivenCredential>,
}

#[derive(Clone, Serialize, Deserialize)]
struct PemText {
    name: String,
    text: String,
}

#[derive(Clone, Serialize, Deserialize)]
struct GivenCredential {
    source: String,
    login: GivenLogin,
}

#[derive(Clone, Serialize, Deserialize)]
enum GivenLogin {
    Password { user: String, password: String },
    Identity(String),
    Bearer(String),
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Access {
    /// Returns `registry/repository`, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the registry is at a loopback address, which is another machine for whoever
    /// gets this value.
    pub fn is_loopback(&self) -> bool {
        self.places.last().is_some_and(|place| is_local_name(&place.host))
    }
}

impl PemText {
    fn read(pem: &Pem) -> Result<Self> {
        let text = String::from_utf8(pem.read()?)
            .map_err(|_| Error::usage(format!("{pem} is not a PEM file")))?;
        Ok(Self { name: pem.to_string(), text })
    }

    fn given(&self) -> Pem {
        Pem::Given { name: self.name.clone(), text: Secret::new(self.text.clone()) }
    }
}

impl GivenCredential {
    fn of(credential: &Credential) -> Self {
        let secret = |secret: &Secret| secret.expose().to_owned();
        let login = match &credential.login {
            Login::Password { user, password } => {
                GivenLogin::Password { user: user.clone(), password: secret(password) }
            }
            Login::Identity(token) => GivenLogin::Identity(secret(token)),
            Login::Bearer(token) => GivenLogin::Bearer(secret(token)),
        };
        Self { source: format!("{} of the controller", credential.source), login }
    }

    fn credential(&self) -> Credential {
        let login = match &self.login {
            GivenLogin::Password { user, password } => {
                Login::Password { user: user.clone(), password: Secret::new(password.clone()) }
            }
            GivenLogin::Identity(token) => Login::Identity(Secret::new(token.clone())),
            GivenLogin::Bearer(token) => Login::Bearer(Secret::new(token.clone())),
        };
        Credential { login, source: self.source.clone() }
    }
}

impl AccessPlace {
    async fn of(place: &Place) -> Result<Self> {
        let certificates = &place.host.certificates;
        let pair = |(certificate, key): &(Pem, Pem)| -> Result<(PemText, PemText)> {
            Ok((PemText::read(certificate)?, PemText::read(key)?))
        };
        Ok(Self {
            host: place.host.name.clone(),
            repository: place.repository.clone(),
            path: place.path.clone(),
            headers: place
                .headers
                .iter()
                .map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    (name.to_string(), value.into_owned())
                })
                .collect(),
            insecure: place.host.insecure,
            by_digest: place.by_digest,
            asked: place.host.asked,
            authorities: certificates
                .authorities
                .iter()
                .map(PemText::read)
                .collect::<Result<_>>()?,
            client: certificates.client.as_ref().map(pair).transpose()?,
            credential: place.credential().await?.as_ref().map(GivenCredential::of),
        })
    }

    fn place(&self, shared: &Arc<Shared>, mirror: bool) -> Result<Place> {
        let certificates = Certificates {
            authorities: self.authorities.iter().map(PemText::given).collect(),
            client: self
                .client
                .as_ref()
                .map(|(certificate, key)| (certificate.given(), key.given())),
        };
        let pool = Pool { insecure: self.insecure, public: false, certificates };
        let credential = self.credential.as_ref().map(GivenCredential::credential);
        let headers = self.headers.iter();
        let headers: Vec<_> =
            headers.map(|(name, value)| (name.clone(), Secret::new(value.clone()))).collect();
        let auth = Auth::with_credential(&self.repository, credential);
        Ok(Place {
            shared: Arc::clone(shared),
            host: Arc::new(shared.new_host(&self.host, pool, self.asked, auth)?),
            repository: self.repository.clone(),
            path: self.path.clone(),
            headers: challenge::headers(&headers)?,
            by_digest: self.by_digest,
            by_tag: false,
            mirror,
        })
    }
}

impl Repository {
    /// Returns what another machine needs to read this repository as this one does, with the
    /// credentials. Proxies are not part of it.
    pub fn access(&self) -> Result<Access> {
        let Inner { shared, name, read, .. } = &*self.inner;
        let places = shared.run(async {
            let mut places = Vec::new();
            for place in read {
                places.push(AccessPlace::of(place).await?);
            }
            Ok(places)
        })?;
        Ok(Access { name: name.clone(), attempts: shared.options.attempts, places })
    }

    /// Returns the repository that another machine has given access to. No file of this machine
    /// is read but its list of public certificate authorities.
    pub fn of_access(access: &Access) -> Result<Self> {
        let options = ClientOptions { attempts: access.attempts, ..ClientOptions::default() };
        let shared = Arc::new(Shared::new(options, Pace { connect: CONNECT, ..Pace::default() }));
        let last = access.places.len().saturating_sub(1);
        let places = access.places.iter().enumerate();
        let read = places
            .map(|(at, place)| place.place(&shared, at < last))
            .collect::<Result<Vec<_>>>()?;
        let write = read.last().cloned();
        let write = write.ok_or_else(|| Error::bad_content("no registry is named"))?;
        let name = access.name.clone();
        Ok(Self { inner: Arc::new(Inner { shared, name, read, write }) })
    }
}
