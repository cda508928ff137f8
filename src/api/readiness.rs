//! Whether the service can work: asked by orchestration over HTTP and gRPC, by anybody.

use std::time::Duration;

use covault_actors::gateway::Query;
use covault_core::fault::Fault;
use tokio::{sync::Mutex, time::Instant};

use super::{Api, auth};

/// How long an answer holds: a flood of questions must not become a flood of writes.
const FRESH: Duration = Duration::from_millis(250);

/// The last answer, with its time. Whoever asks while it is being looked for waits for it.
#[derive(Default)]
pub struct Readiness(Mutex<Option<(Instant, Result<(), Fault>)>>);

impl Api {
    /// Whether the store can be written and the bus reached.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] with what is away.
    pub async fn ready(&self, request_id: &str) -> Result<(), Fault> {
        let mut last = self.readiness.0.lock().await;
        if let Some((when, answer)) = last.as_ref()
            && when.elapsed() < FRESH
        {
            return answer.clone();
        }
        let caller = auth::internal(request_id);
        let answer = match self.gateway.view(&caller, Query::Ready).await {
            Ok(_) if !(self.bus_reachable)() => {
                Err(Fault::unavailable("the bus cannot be reached"))
            }
            Ok(_) => Ok(()),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = &answer {
            tracing::warn!(request_id, ?fault, "not ready");
        }
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}
