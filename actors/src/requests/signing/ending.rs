//! How a request ends without being signed: it is rejected, or its wallet is archived; and how it goes back
//! to people when a signer wants more approvals.
//!
//! The first two end it only before its transaction or message is built: from then on it is being signed.
//! This actor alone changes the request, so neither can fall together with that step. What is over and
//! handed over is given up by the vault's actor.

use covault_core::{
    fault::{Class, Fault, FaultCode},
    ids::WalletId,
    request::RequestEvent,
    wallet::WalletStatus,
};
use ractor::RpcReplyPort;

use super::SigningState;
use crate::{commands::command_commit::CommandCommit, requests::request_store::CommitExtras};

/// Why a request failed that was rejected.
pub const REJECTED: &str = "rejected before it was signed (rejectSigningRequest)";

/// Why a request failed that was handed over.
pub const GIVEN_UP: &str = "given up after it was handed over (rejectSigningRequest): anyone who has the signed \
    transaction can still send it, until another transaction has used the same nonce, outputs or objects";

/// Why a request failed whose wallet was put away.
pub const ARCHIVED: &str = "the wallet was archived before the request was signed";

impl SigningState {
    /// Ends the request, unless it is too late for that. True when it ended.
    pub(super) async fn reject(
        &mut self,
        reason: &str,
        command_commit: &CommandCommit,
        reply: RpcReplyPort<Result<(), Fault>>,
    ) -> Result<bool, Fault> {
        let state = &self.stored()?.request.state;
        if state.is_final() {
            // This actor ends. Without an answer the caller looks again.
            return Ok(false);
        }
        if let Some(reason) = state.past_rejection() {
            let _ = reply.send(Err(not_rejected(reason)));
            return Ok(false);
        }
        let ended = self.end(reason, Some(command_commit)).await;
        // The caller may have gone; the request has ended regardless.
        let _ = reply.send(ended.clone());
        ended.map(|()| true)
    }

    /// Ends the request when its wallet was archived before it was built. True when it ended.
    pub(super) async fn wallet_archived(&mut self, wallet: WalletId) -> Result<bool, Fault> {
        let request = &self.stored()?.request;
        let state = &request.state;
        if request.wallet != wallet || state.is_final() || state.past_rejection().is_some() {
            return Ok(false);
        }
        // It may be active again.
        Ok(self.active_wallet_version().await?.is_none())
    }

    /// The version of the wallet's row in which it is active; `None` when it is archived, and the
    /// request, which is not built yet, has ended with that.
    pub(super) async fn active_wallet_version(&mut self) -> Result<Option<u64>, Fault> {
        let (wallet, version) = self
            .services
            .hot_wallet(self.stored()?.request.wallet)
            .await?;
        match wallet.status {
            WalletStatus::Active => Ok(Some(version)),
            WalletStatus::Archived => {
                self.end(ARCHIVED, None).await?;
                Ok(None)
            }
        }
    }

    /// Has people asked where a signer wants more approvals, or others: with a higher fee, or for longer. True when
    /// they are.
    pub(super) async fn ask_people(&mut self, refusal: &Fault) -> Result<bool, Fault> {
        let is_about_approvals = refusal.code() == FaultCode::ApprovalsMissing
            || refusal
                .path()
                .is_some_and(|path| path.starts_with("approvals"));
        if !is_about_approvals || self.stored()?.request.consent.rule.of.is_empty() {
            return Ok(false);
        }
        let reason = refusal.lines();
        self.advance(vec![RequestEvent::ApprovalWanted { reason }])
            .await?;
        Ok(true)
    }

    async fn end(
        &mut self,
        reason: &str,
        command_commit: Option<&CommandCommit>,
    ) -> Result<(), Fault> {
        let reason = reason.to_owned();
        let extras = CommitExtras {
            command_commit,
            ..CommitExtras::default()
        };
        self.advance_with(vec![RequestEvent::Rejected { reason }], extras)
            .await?;
        // No retry is scheduled for it.
        self.is_waiting = false;
        Ok(())
    }
}

/// Why a request is not rejected.
pub fn not_rejected(reason: &str) -> Fault {
    let sentence = format!("the request cannot be rejected: {reason}");
    Fault::new(Class::WrongState, sentence)
}
