//! What was to pay the same rows of a batch payment before: whoever approves another try may pay them twice.

use std::time::Duration;

use covault_actors::{operations::GetBatchPayment, users::SignedIn};
use covault_core::schema::{admin, wire};
use tokio::time::{Instant, timeout_at};

use super::{
    ConsoleCall,
    pages::details,
    response::PageError,
    standing::status,
    views::{EarlierTry, RequestView},
};

/// The stage of a request of a batch payment that pays its rows.
pub const SEND: &str = "send";
/// How long a page waits for all of them.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often what a request replaces is looked for: it may replace another.
const REPLACED: usize = 16;

/// Adds what was tried before each. What cannot be looked up is said, too.
pub async fn add(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    requests: &mut [(wire::SigningRequest, RequestView)],
) {
    let end = Instant::now() + PATIENCE;
    for (request, view) in requests {
        let found = timeout_at(end, before(call, signed_in, request)).await;
        view.earlier_try = match found {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => EarlierTry::Unknown,
        };
    }
}

async fn before(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    request: &wire::SigningRequest,
) -> Result<EarlierTry, PageError> {
    if request.batch_payment_uuid.is_empty() {
        return Ok(EarlierTry::None);
    }
    let asked = admin::GetBatchPaymentRequest {
        uuid: request.batch_payment_uuid.clone(),
    };
    let batch = call.operation::<GetBatchPayment>(signed_in, &asked).await?;
    let requests = batch.batch_payment.unwrap_or_default().requests;
    let (mut uuid, mut replaces) = (request.uuid.clone(), request.replaces_uuid.clone());
    // What replaces a request of the batch is none of its own, and pays what that would have paid.
    for _ in 0..REPLACED {
        if replaces.is_empty() || requests.iter().any(|made| made.uuid == uuid) {
            break;
        }
        let replaced = details(call, signed_in, &replaces).await?;
        (uuid, replaces) = (replaced.uuid, replaced.replaces_uuid);
    }
    let Some(made) = requests.iter().position(|made| made.uuid == uuid) else {
        return Ok(EarlierTry::Unknown);
    };
    let Some(uuid) = earlier_of(&requests, made) else {
        return Ok(EarlierTry::None);
    };
    let status = match details(call, signed_in, uuid).await {
        Ok(request) => status(&request),
        Err(_) => "it cannot be shown".to_owned(),
    };
    let uuid = uuid.to_owned();
    Ok(EarlierTry::Made { uuid, status })
}

/// The newest one before the one at a place, of those that pay; nothing where that one does not.
fn earlier_of(requests: &[admin::BatchStageRequest], place: usize) -> Option<&str> {
    let (made, before) = requests.get(..=place)?.split_last()?;
    let mut paying = before.iter().rev().filter(|made| made.stage == SEND);
    let earlier = paying.next().filter(|_| made.stage == SEND)?;
    Some(&earlier.uuid)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn earlier_try__should_be_the_newest_one_before_that_was_to_pay() {
        let made = |(uuid, stage): (&str, &str)| admin::BatchStageRequest {
            uuid: uuid.to_owned(),
            stage: stage.to_owned(),
        };
        let all = [
            ("a", "allowance"),
            ("b", "send"),
            ("c", "allowance"),
            ("d", "send"),
            ("e", "send"),
        ];
        let all = all.map(made);
        let earlier = [None, None, None, Some("b"), Some("d"), None];
        for (place, earlier) in earlier.into_iter().enumerate() {
            assert_eq!(earlier_of(&all, place), earlier, "{place}");
        }
    }
}
