//! How long people took to approve requests.

use std::time::Duration;

use covault_core::{
    fault::Fault,
    request::{RequestState, SigningRequest},
};

use crate::{
    process::meter::{RequestStage, request_stage},
    services::Services,
};

/// Counts how long a request waited for people, where it did and goes on now.
pub async fn measure(
    services: &Services,
    before: &RequestState,
    request: &SigningRequest,
    now_ms: u64,
) {
    let waited = matches!(before, RequestState::AwaitingApproval { .. });
    let goes_on = !matches!(
        request.state,
        RequestState::AwaitingApproval { .. } | RequestState::Failed { .. }
    );
    if !waited || !goes_on {
        return;
    }
    // What cannot be read now is not worth a word: it is one number less.
    let vault: Result<_, Fault> = services.hot_vault(request.vault).await;
    let Ok(Some((vault, _))) = vault else {
        return;
    };
    if let Some((scheme, _)) = vault.shares(request.network.curve()) {
        let took_ms = now_ms.saturating_sub(request.created_at_ms);
        request_stage(scheme, RequestStage::Wait, Duration::from_millis(took_ms));
    }
}
