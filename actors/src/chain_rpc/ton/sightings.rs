//! Finds out where a sent transaction is.

use covault_core::networks::ton::ledger::{self, SentMessage};

use super::{
    CLOCK_SKEW_S, LIFETIME_S, MAX_PAGES, TonNode,
    answers::{self, AccountStatus, TonWallet, TransactionCursor, TransactionSearch},
    transactions,
};
use crate::chain_rpc::{
    ChainError, Inclusion, NodeResponse, TrackedTransaction, TransactionSighting,
};

impl TonNode {
    pub(super) async fn sight(
        &self,
        transaction: &TrackedTransaction,
    ) -> Result<TransactionSighting, ChainError> {
        let unreadable = |_| ChainError::unknown("the signed transaction cannot be read");
        let sent = ledger::read_sent(&transaction.signed.transaction).map_err(unreadable)?;
        let wallet = self.wallet(&sent.wallet, 0).await?;
        if wallet.state == AccountStatus::Frozen {
            return Err(ChainError::unknown(
                "the wallet's account is frozen; its earlier transactions cannot be seen",
            ));
        }
        if wallet.data.seqno > sent.seqno {
            // It may have been sent long before it was known that it was.
            let sent_s = (transaction.sent_at_ms / 1_000).min(u64::from(sent.valid_until));
            let made_s = sent_s.saturating_sub(LIFETIME_S);
            // As many as have to agree say that it is there, wherever it is looked for from.
            let mut found = self.find(&sent, made_s, wallet.last).await;
            if self.rest.agree() > 1 && !matches!(found, Ok(Some(_))) {
                // Where it is not, from where it was looked for is no matter of one node's word either.
                let same = |one: &TonWallet, other: &TonWallet| one.last == other.last;
                let wallet = self.wallet_by(&sent.wallet, same).await?;
                found = self.find(&sent, made_s, wallet.last).await;
            }
            return Ok(match found? {
                Some(found) => TransactionSighting::Final(found),
                None => TransactionSighting::Replaced(None),
            });
        }
        Ok(match self.none_can_have(&sent).await {
            Ok(true) => TransactionSighting::Expired,
            // What waits to get into a block nodes do not say.
            Ok(false) | Err(_) => TransactionSighting::Missing,
        })
    }

    /// Looks for it among the wallet's transactions, back to when it was made at the earliest, in seconds since
    /// the Unix epoch. As many nodes as have to agree say where it is.
    pub(super) async fn find(
        &self,
        sent: &SentMessage,
        made_s: u64,
        mut from: TransactionCursor,
    ) -> Result<Option<Inclusion>, ChainError> {
        let since_s = made_s.saturating_sub(CLOCK_SKEW_S);
        for _ in 0..MAX_PAGES {
            let read =
                |answer: &NodeResponse| answers::page(answer, &sent.body_hash, since_s, &from);
            let call = transactions(&sent.wallet, &from).about("a wallet's transactions");
            match self.rest.query_quorum(call, read).await? {
                TransactionSearch::Here { sent: count, lt } => {
                    return Ok(Some(Inclusion {
                        block: lt,
                        // A wallet that cannot pay its messages leaves them out.
                        success: count > 0,
                    }));
                }
                TransactionSearch::Over => return Ok(None),
                TransactionSearch::More(place) => from = place,
            }
        }
        Err(ChainError::unknown(
            "the wallet has too many transactions since",
        ))
    }
}
