//! How a request ends that is not to be signed: a client rejects it, or its wallet is archived.
//!
//! Both end it only before its transaction or message is built: from then on it is being signed.
//! This actor alone changes the request, so neither can fall together with that step.

use covault_core::{
    fault::{Class, Fault},
    ids::WalletId,
    request::RequestEvent,
    wallet::WalletStatus,
};
use ractor::RpcReplyPort;

use super::SigningState;
use crate::{commands::command_commit::CommandCommit, requests::request_store::CommitExtras};

/// Why a request failed that was rejected.
pub const REJECTED: &str = "rejected before it was signed (rejectSigningRequest)";

/// Why a request failed whose wallet was put away.
const ARCHIVED: &str = "the wallet was archived before the request was signed";

impl SigningState {
    /// Ends the request, unless it is too late for that. True when it ended.
    pub(super) async fn reject(
        &mut self,
        command_commit: &CommandCommit,
        reply: RpcReplyPort<Result<(), Fault>>,
    ) -> Result<bool, Fault> {
        if let Some(reason) = self.stored()?.request.state.past_rejection() {
            let _ = reply.send(Err(not_rejected(reason)));
            return Ok(false);
        }
        let ended = self.end(REJECTED, Some(command_commit)).await;
        // The caller may have gone; the request has ended regardless.
        let _ = reply.send(ended.clone());
        ended.map(|()| true)
    }

    /// Ends the request when its wallet was archived before it was built. True when it ended.
    pub(super) async fn wallet_archived(&mut self, wallet: WalletId) -> Result<bool, Fault> {
        let request = &self.stored()?.request;
        if request.wallet != wallet || request.state.past_rejection().is_some() {
            return Ok(false);
        }
        // It may be active again.
        Ok(self.active_wallet_version().await?.is_none())
    }

    /// The version of the wallet's row in which it is active; `None` when it is archived, and the
    /// request, which is not built yet, has ended with that.
    pub(super) async fn active_wallet_version(&mut self) -> Result<Option<u64>, Fault> {
        let (wallet, version) = self.services.wallet(self.stored()?.request.wallet).await?;
        match wallet.status {
            WalletStatus::Active => Ok(Some(version)),
            WalletStatus::Archived => {
                self.end(ARCHIVED, None).await?;
                Ok(None)
            }
        }
    }

    async fn end(
        &mut self,
        reason: &str,
        command_commit: Option<&CommandCommit>,
    ) -> Result<(), Fault> {
        let reason = reason.to_owned();
        let extras = CommitExtras {
            command_commit,
            wallet: None,
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
