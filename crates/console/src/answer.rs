//! Answers requests: judges them, collects data, and makes pages or JSON of them.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{ALLOW, HeaderName, LOCATION, SET_COOKIE};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::browse;
use crate::changes::{self, Subject};
use crate::events;
use crate::guard::{Admission, Guard, Refusal};
use crate::reply::{self, Body, Reply};
use crate::routes::{Route, parameter};
use crate::source::Source;
use imgctl_base::error::{Error, Kind as ErrorKind, Result};
use imgctl_ops::report::Recorded;
use imgctl_registry::serving::Handler;
use imgctl_report::Rendered;
use imgctl_report::console::{self, Message};
use imgctl_report::model::Kind;
use imgctl_store::store::Store;

/// Number of requests that read at the same time; others wait.
const READERS: usize = 2;
/// Maximum number of pages that receive events; a browser opens six connections at most.
const FOLLOWERS: usize = 24;
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// What all requests share.
pub(crate) struct Console {
    pub(crate) guard: Guard,
    pub(crate) source: Arc<Source>,
    readers: Semaphore,
    followers: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Console {
    /// `stop` becomes true when the console ends: then nothing is followed any longer.
    pub(crate) fn new(
        guard: Guard,
        store: Store,
        recorded: Recorded,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let base = guard.base().to_owned();
        Self {
            guard,
            source: Arc::new(Source { store, recorded, base }),
            readers: Semaphore::new(READERS),
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
            stop,
        }
    }
}

impl Handler for Console {
    type Body = Body;

    async fn answer(&self, _: Option<SocketAddr>, request: Request<Incoming>) -> Response<Body> {
        let (head, _) = request.into_parts();
        let is_head = head.method == Method::HEAD;
        let reply = match self.guard.admit(&head) {
            Err(refusal) => self.refused(refusal),
            Ok(Admission::Enter) => self.entered(),
            Ok(Admission::Page) => self.routed(&head).await,
        };
        if is_head { reply::without_content(reply) } else { reply }
    }
}

impl Console {
    fn refused(&self, refusal: Refusal) -> Reply {
        let message = Message {
            title: "Refused",
            text: refusal.message,
            hints: refusal.hint.map(str::to_owned).into_iter().collect(),
        };
        let about = self.source.recorded.about(Kind::Controller);
        let mut reply = reply::page(refusal.status, message.page(&about, None));
        if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
            reply::set(reply.headers_mut(), ALLOW, "GET, HEAD");
        }
        reply
    }

    /// Gives the cookie, and leads to an address without the token, which the history then has.
    fn entered(&self) -> Reply {
        let mut reply = reply::whole(StatusCode::SEE_OTHER, "text/plain", bytes::Bytes::new());
        reply::set(reply.headers_mut(), LOCATION, &format!("{}/", self.guard.base()));
        reply::set(reply.headers_mut(), SET_COOKIE, &self.guard.cookie());
        reply
    }

    async fn routed(&self, head: &Parts) -> Reply {
        let path = head.uri.path().strip_prefix(self.guard.base());
        let Some(route) = path.and_then(Route::parse) else {
            return self.source.failed(
                &Error::not_found("the console has no such page")
                    .hint("start from the store, the clusters, the runs or the plans"),
            );
        };
        let query = head.uri.query().map(str::to_owned);
        if let Route::Events { cluster, run } = route {
            return self.follow(&cluster, &run, query.as_deref(), head);
        }
        if let Route::Changes(subject) = route {
            return self.follow_list(subject, query.as_deref(), head);
        }
        self.read(move |source| source.answer(&route, query.as_deref())).await
    }

    /// Reads on a thread that may wait for the disk.
    async fn read(&self, read: impl FnOnce(&Source) -> Result<Reply> + Send + 'static) -> Reply {
        let Ok(_place) = self.readers.acquire().await else {
            return self.source.failed(&Error::failed("the console ends"));
        };
        let source = Arc::clone(&self.source);
        let job = tokio::task::spawn_blocking(move || {
            read(&source).unwrap_or_else(|error| source.failed(&error))
        });
        job.await.unwrap_or_else(|_| {
            self.source
                .failed(&Error::failed("the page could not be made: this is a bug in imgctl"))
        })
    }

    /// Reserves a place for one more page that receives events.
    fn place(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.followers).try_acquire_owned().map_err(|_| {
            Error::busy("too many pages are open").hint("close some pages of runs and lists")
        })
    }

    /// Sends the changes of a list.
    fn follow_list(&self, subject: Subject, query: Option<&str>, head: &Parts) -> Reply {
        let place = match self.place() {
            Ok(place) => place,
            Err(error) => return self.source.failed(&error),
        };
        let (sender, pieces) = mpsc::channel(events::WAITING);
        let (source, stop, at) =
            (Arc::clone(&self.source), self.stop.clone(), position(query, head));
        tokio::spawn(async move {
            changes::follow(subject, source, at, sender, stop).await;
            drop(place);
        });
        reply::events(pieces)
    }

    /// Sends the progress of a run.
    fn follow(&self, cluster: &str, run: &str, query: Option<&str>, head: &Parts) -> Reply {
        let place = match self.place() {
            Ok(place) => place,
            Err(error) => return self.source.failed(&error),
        };
        let follower = match self.source.recorded.follow(cluster, run, position(query, head)) {
            Ok(follower) => follower,
            Err(error) => return self.source.failed(&error),
        };
        let (sender, pieces) = mpsc::channel(events::WAITING);
        // HEAD has no content: with the receiver, the task ends at once.
        let stop = self.stop.clone();
        tokio::spawn(async move {
            events::follow(follower, sender, stop).await;
            drop(place);
        });
        reply::events(pieces)
    }
}

/// Returns the position from which to send events: a browser that reconnects says where it was.
fn position(query: Option<&str>, head: &Parts) -> u64 {
    let last = head.headers.get(LAST_EVENT).and_then(|value| value.to_str().ok());
    let at = last.map(str::to_owned).or_else(|| parameter(query, "at"));
    at.and_then(|at| at.parse().ok()).unwrap_or(0)
}

/// Makes the response of data, or of their page.
fn shown(as_json: bool, data: &impl Serialize, page: impl FnOnce() -> Rendered) -> Result<Reply> {
    if as_json {
        let bytes = serde_json::to_vec(data)
            .map_err(|error| Error::failed("cannot write the data as JSON").caused_by(error))?;
        return Ok(reply::json(bytes));
    }
    Ok(reply::page(StatusCode::OK, page()))
}

impl Source {
    fn answer(&self, route: &Route, query: Option<&str>) -> Result<Reply> {
        let as_json = parameter(query, "format").as_deref() == Some("json");
        // Taken before the data are read, so that no change in between is missed.
        let at = changes::now();
        let (store, recorded, base) = (&self.store, &self.recorded, self.base.as_str());
        match route {
            Route::Store => {
                let report = browse::list(store, recorded.about(Kind::Store))?;
                shown(as_json, &report, || console::store(&report, at, base))
            }
            Route::Image { digest } => {
                let platform = parameter(query, "platform");
                let older = parameter(query, "compare");
                let described = browse::describe(
                    store,
                    (digest, platform.as_deref()),
                    older.as_deref(),
                    &recorded.about(Kind::Image),
                )?;
                let report = &described.report;
                shown(as_json, report, || console::image(report, digest, &described.others, base))
            }
            Route::Files { digest, platform, path } => {
                let about = recorded.about(Kind::Files);
                let report = browse::files(store, (digest, platform), path, about)?;
                shown(as_json, &report, || console::files(&report, base))
            }
            Route::Clusters | Route::Runs | Route::Plans => {
                let report = recorded.all()?;
                shown(as_json, &report, || match route {
                    Route::Clusters => console::clusters(&report, at, base),
                    Route::Runs => console::runs(&report, at, base),
                    _ => console::plans(&report, at, base),
                })
            }
            Route::Cluster { name } => {
                let report = recorded.cluster(name)?;
                shown(as_json, &report, || console::cluster(&report, at, base))
            }
            Route::Run { cluster, run } => {
                let (report, at) = recorded.run(cluster, run)?;
                shown(as_json, &report, || console::run(&report, cluster, at, base))
            }
            Route::Plan { cluster, id } => self.plan(as_json, &recorded.kept_plan(cluster, id)?),
            Route::PlanFile { number } => self.plan(as_json, &recorded.plan_in_file(*number)?),
            Route::Events { .. } | Route::Changes(_) => Err(Error::failed("events are no page")),
        }
    }

    fn plan(&self, as_json: bool, plan: &imgctl_ops::report::ReadPlan) -> Result<Reply> {
        let about = self.recorded.about(Kind::Plan);
        let report = plan.report(&about.generator, about.created.clone());
        shown(as_json, &report, || console::plan(&report, &self.base))
    }

    /// Makes the page of an error.
    fn failed(&self, error: &Error) -> Reply {
        let status = match error.kind() {
            // A name that cannot be one does not exist either.
            ErrorKind::NotFound | ErrorKind::Usage => StatusCode::NOT_FOUND,
            ErrorKind::Busy => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let hints = error.hints().into_iter().map(str::to_owned).collect();
        let text = error.to_string();
        let message = Message { title: "This cannot be shown", text: &text, hints };
        reply::page(status, message.page(&self.recorded.about(Kind::Controller), Some(&self.base)))
    }
}
