//! How long a request takes from state to state.

use std::time::Duration;

use covault_core::request::RequestState;
use tokio::time::Instant;

use super::SigningState;
use crate::{
    process::meter::{RequestStage, request_stage},
    requests::request_store::StoredRequest,
};

/// In which stage a request is, and since when.
#[derive(Debug, Default)]
pub(super) struct StageClock(Option<(RequestStage, Instant)>);

impl StageClock {
    /// The stage that has ended with this state, and how long it took.
    fn ended(&mut self, state: &RequestState) -> Option<(RequestStage, Duration)> {
        let now = stage(state);
        if self.0.map(|(stage, _)| stage) == now {
            return None;
        }
        let begun = now.map(|stage| (stage, Instant::now()));
        let (stage, since) = std::mem::replace(&mut self.0, begun)?;
        Some((stage, since.elapsed()))
    }
}

fn stage(state: &RequestState) -> Option<RequestStage> {
    match state {
        RequestState::Preparing { .. } => Some(RequestStage::Build),
        RequestState::Prepared { .. } | RequestState::Signing { .. } => Some(RequestStage::Sign),
        RequestState::Signed { .. }
        | RequestState::Broadcasting { .. }
        | RequestState::InDoubt { .. } => Some(RequestStage::Broadcast),
        RequestState::Received
        | RequestState::Screened { .. }
        | RequestState::AwaitingApproval { .. }
        | RequestState::Succeeded { .. }
        | RequestState::Failed { .. } => None,
    }
}

impl SigningState {
    /// Counts what has ended with the state that it has come to. What fails says nothing of how long things take.
    pub(super) fn measure(&mut self) {
        let Self {
            current: Some(StoredRequest { request, .. }),
            stages,
            in_use,
            services,
            ..
        } = self
        else {
            return;
        };
        let ended = stages.ended(&request.state);
        let has_succeeded = matches!(request.state, RequestState::Succeeded { .. });
        let has_failed = matches!(request.state, RequestState::Failed { .. });
        if has_failed || (ended.is_none() && !has_succeeded) {
            return;
        }
        let curve = request.network.curve();
        let Some(scheme) = in_use.borrow().of(curve).map(|shares| shares.scheme) else {
            return;
        };
        if let Some((stage, took)) = ended {
            request_stage(scheme, stage, took);
        }
        if has_succeeded {
            let took_ms = services.now_ms().saturating_sub(request.created_at_ms);
            request_stage(scheme, RequestStage::All, Duration::from_millis(took_ms));
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stage__should_last_from_its_first_state_to_the_next_stage() {
        let mut clock = StageClock::default();
        let preparing = RequestState::Preparing {
            broadcast: true,
            deadline_ms: 0,
        };
        let succeeded = RequestState::Succeeded {
            signatures: Vec::new(),
            signed: None,
            sent: false,
            handed_over: None,
        };
        assert_eq!(clock.ended(&RequestState::Received), None);
        assert_eq!(clock.ended(&preparing), None);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(clock.ended(&preparing), None);
        tokio::time::advance(Duration::from_secs(3)).await;
        let took = Duration::from_secs(5);
        assert_eq!(clock.ended(&succeeded), Some((RequestStage::Build, took)));
        assert_eq!(clock.ended(&succeeded), None);
    }
}
