//! `grpc.health.v1.Health`: what `/readyz` says, for the whole server and for each service.

use std::{pin::Pin, sync::Arc, time::Duration};

use covault_core::fault::{Class, Fault};
use futures::{Stream, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_server::Health,
};

use super::status;
use crate::{
    api::{Api, headers::RequestId},
    http::server::RequestGuard,
    shutdown::{self, StopSignal},
};

/// How often a watcher's answer is looked for again.
const EVERY: Duration = Duration::from_secs(2);
/// Watchers at once: anyone may be one.
const WATCHERS: usize = 256;

/// Asks when it is asked, so that nothing can be out of date.
pub struct ByAsking {
    api: Arc<Api>,
    /// Full names of the services.
    services: Arc<[String]>,
    stop: StopSignal,
    watchers: Arc<Semaphore>,
}

impl ByAsking {
    /// Health of `services`, and of the server, whose name is empty.
    pub fn new(api: Arc<Api>, services: Vec<String>, stop: StopSignal) -> Self {
        Self {
            api,
            services: services.into(),
            stop,
            watchers: Arc::new(Semaphore::new(WATCHERS)),
        }
    }

    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.iter().any(|name| name == service)
    }
}

async fn serving(api: &Api, stop: &StopSignal) -> ServingStatus {
    if !*stop.borrow() && api.gateway.ready().await.is_ok() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

fn request_id<T>(request: &Request<T>) -> String {
    let id = request.extensions().get::<RequestId>();
    id.map(|RequestId(id)| id.clone()).unwrap_or_default()
}

#[async_trait::async_trait]
impl Health for ByAsking {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !self.knows(&request.get_ref().service) {
            return Err(Status::not_found("unknown service"));
        }
        let status = serving(&self.api, &self.stop).await;
        Ok(Response::new(answer(status)))
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let id = request_id(&request);
        let place = Arc::clone(&self.watchers).try_acquire_owned();
        let place = place.map_err(|_| {
            let fault = Fault::new(Class::Limited, "too many health watchers");
            status::of(fault, &id)
        })?;
        let watcher = HealthWatcher {
            api: Arc::clone(&self.api),
            known: self.knows(&request.get_ref().service),
            stop: self.stop.clone(),
            last: None,
            _held: (place, request.extensions().get::<RequestGuard>().cloned()),
        };
        let answers = stream::unfold(watcher, |mut watcher| async move {
            let status = watcher.next().await?;
            Some((Ok(answer(status)), watcher))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// A watcher that is sent each change.
struct HealthWatcher {
    api: Arc<Api>,
    known: bool,
    stop: StopSignal,
    last: Option<ServingStatus>,
    _held: (OwnedSemaphorePermit, Option<RequestGuard>),
}

impl HealthWatcher {
    /// The next change; nothing once the process stops, which is told before.
    async fn next(&mut self) -> Option<ServingStatus> {
        loop {
            let stopping = *self.stop.borrow();
            let now = if self.known {
                serving(&self.api, &self.stop).await
            } else {
                ServingStatus::ServiceUnknown
            };
            if self.last != Some(now) {
                self.last = Some(now);
                return Some(now);
            }
            if stopping {
                return None;
            }
            tokio::select! {
                () = shutdown::requested(&mut self.stop) => {}
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }
}
