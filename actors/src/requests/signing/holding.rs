//! Payments that signers hold: they are told of the approvals before there is a transaction, and the request waits as a row
//! until enough of them sign it. Any approver can reject it in the meantime.

use std::{sync::Arc, time::Duration};

use covault_core::{
    fault::{Class, Fault, FaultCode},
    moment::utc,
    request::{RequestEvent, SigningRequest},
};
use tokio::sync::watch;

use super::{Msg, SigningState};
use crate::{
    port::SignerHold,
    process::mailbox::ActorMailbox,
    requests::recipients,
    services::Services,
    vaults::vault::{KeyShares, SharesInUse},
};

/// How long signers have to answer. Who does not says so when it is to sign.
const PATIENCE: Duration = Duration::from_secs(3);
/// The shortest and the longest that a signer's word is believed, in milliseconds: a minute, and eight days. No policy holds
/// anything for longer than seven.
const BELIEVED_MS: (u64, u64) = (60_000, 8 * 24 * 3_600_000);

/// Tells the signers of the approvals of a request.
pub(super) async fn tell_of_approvals(
    services: Arc<Services>,
    in_use: watch::Receiver<SharesInUse>,
    request: SigningRequest,
) -> Msg {
    let shares = in_use.borrow().of(request.network.curve()).cloned();
    let Some(KeyShares { generation, .. }) = shares else {
        return Msg::ApprovalsTold(Ok(None));
    };
    let now_ms = services.now_ms();
    let mut order = request.approval_notice(
        generation.epoch,
        now_ms,
        now_ms.saturating_add(services.settings.signing_deadline_ms),
    );
    // They may have expired since there were enough.
    if order.approvals.given.is_empty() {
        return Msg::ApprovalsTold(Ok(None));
    }
    // Signers hold what pays wallets of the same vault for no new recipient. Else they hold it for too long.
    if let Ok(own) = recipients::own(&services, &request, &[]).await {
        order.recipient_indices = own;
    }
    let session = services.new_session_id();
    let client_signer = request.consent.rule.client_signer();
    let signers = &services.signers;
    let told = signers.tell_of_approvals(&order, session, &generation, client_signer, PATIENCE);
    Msg::ApprovalsTold(match told.await {
        Err(fault)
            if fault.code() != FaultCode::ApprovalsMissing
                && *fault.class() != Class::Unavailable =>
        {
            tracing::warn!(request = %request.id, ?fault, "failed to tell signers of approvals");
            Ok(None)
        }
        told => told,
    })
}

impl SigningState {
    /// Signers hold it or want more approvals, so that it waits; or it continues.
    pub(super) async fn approvals_told(
        &mut self,
        myself: &ActorMailbox<Msg>,
        told: Result<Option<SignerHold>, Fault>,
    ) -> Result<(), Fault> {
        if let Err(fault) = &told
            && *fault.class() == Class::Unavailable
        {
            let reason = fault.message().to_owned();
            return self.retry_build(myself, reason, u32::MAX).await;
        }
        self.told = true;
        if !self.stored()?.request.has_approvals_to_tell() {
            return Ok(());
        }
        match told {
            Ok(Some(SignerHold { until_ms, by })) => {
                let until_ms = self.believed(until_ms);
                let (by, until) = (by.join(", "), utc(until_ms));
                let reason =
                    format!("held by {by} until {until}: until then any approver can reject it");
                self.hold(reason, until_ms).await
            }
            Ok(None) => Ok(()),
            // There is no transaction yet: people take longer than one is good on some chains.
            Err(wants) => self.ask_people(&wants).await.map(|_| ()),
        }
    }

    /// Has it wait where signers that were to sign it hold it. True when they do.
    pub(super) async fn is_held(&mut self, refusal: &Fault) -> Result<bool, Fault> {
        let FaultCode::Held { until_ms } = refusal.code() else {
            return Ok(false);
        };
        if self.stored()?.request.consent.rule.of.is_empty() {
            return Ok(false);
        }
        self.hold(refusal.lines(), until_ms).await?;
        Ok(true)
    }

    /// What of a signer's word is believed.
    fn believed(&self, until_ms: u64) -> u64 {
        let now_ms = self.services.now_ms();
        let (least, most) = BELIEVED_MS;
        until_ms.clamp(now_ms.saturating_add(least), now_ms.saturating_add(most))
    }

    async fn hold(&mut self, reason: String, until_ms: u64) -> Result<(), Fault> {
        let until_ms = self.believed(until_ms);
        self.advance(vec![RequestEvent::ApprovalHeld { until_ms, reason }])
            .await
    }
}
