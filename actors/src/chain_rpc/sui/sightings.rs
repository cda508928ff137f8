//! Finds out where a sent transaction is.

use covault_core::networks::sui::{SentTransaction, read_sent};

use super::{
    SuiNode, TransactionFate, digest, fate_of, objects_of,
    proto::{
        BATCH_GET_OBJECTS, BatchGetObjectsResponse, FieldMask, GET_CHECKPOINT, GET_EPOCH,
        GET_SERVICE_INFO, GET_TRANSACTION, GetCheckpointRequest, GetEpochRequest, GetEpochResponse,
        GetServiceInfoRequest, GetTransactionRequest, Timestamp, TransactionResponse,
    },
};
use crate::chain_rpc::{
    CallError, ChainError, Inclusion, Refusal as _, TrackedTransaction, TransactionSighting,
    grpc::{GrpcCall, GrpcStatus},
};

/// Where a node has a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuiPlace {
    /// In a checkpoint, which is final.
    Checkpoint(Inclusion),
    /// Executed, and in no checkpoint yet.
    Executed,
    Nowhere,
}

impl SuiNode {
    pub(super) async fn sight(
        &self,
        transaction: &TrackedTransaction,
        now_ms: u64,
    ) -> Result<TransactionSighting, ChainError> {
        let hash = transaction.signed.tx_hash.as_str();
        let nonsense = "the node's answer about a transaction makes no sense";
        let found = match self.grpc.ask(by_digest(hash)).await {
            Ok(answer) => {
                Ok(place(&answer, hash).ok_or_else(|| ChainError::Unknown(nonsense.into()))?)
            }
            Err(error) => Err(error),
        };
        match or_nowhere(found)? {
            SuiPlace::Nowhere => self.sight_missing(transaction, now_ms).await,
            SuiPlace::Executed | SuiPlace::Checkpoint(_) => match self.agreed_place(hash).await? {
                SuiPlace::Checkpoint(found) => Ok(TransactionSighting::Final(found)),
                SuiPlace::Executed => Ok(TransactionSighting::Waiting),
                // One node alone said so.
                SuiPlace::Nowhere => self.sight_missing(transaction, now_ms).await,
            },
        }
    }

    /// Whether one that a node does not know can still come: what it uses is there, and so is its epoch.
    async fn sight_missing(
        &self,
        transaction: &TrackedTransaction,
        now_ms: u64,
    ) -> Result<TransactionSighting, ChainError> {
        let unreadable = |_| ChainError::Unknown("the signed transaction cannot be read".into());
        let sent = read_sent(&transaction.signed.transaction).map_err(unreadable)?;
        let hash = transaction.signed.tx_hash.as_str();
        let fate = self.agreed_fate(&sent, hash).await?;
        let is_over = match (&fate, sent.last_epoch) {
            (TransactionFate::Open, Some(last)) => {
                let read = |answer: &GetEpochResponse| Some(answer.epoch.as_ref()?.epoch? > last);
                let request = GetEpochRequest {
                    read_mask: FieldMask::of(&["epoch"]),
                };
                self.grpc
                    .query_quorum(GET_EPOCH.call(request), read)
                    .await?
            }
            _ => false,
        };
        let sighting = match fate {
            // The node that did not know it may stand still.
            TransactionFate::Executed => {
                return Ok(match self.agreed_place(hash).await {
                    Ok(SuiPlace::Checkpoint(found)) => TransactionSighting::Final(found),
                    _ => TransactionSighting::Waiting,
                });
            }
            TransactionFate::Void { by } => TransactionSighting::Replaced(by),
            TransactionFate::Open if is_over => TransactionSighting::Expired,
            TransactionFate::Open => return Ok(TransactionSighting::Missing),
        };
        // Asked last: from now on it can no longer be executed.
        let place = if transaction.is_remembered(now_ms) {
            self.agreed_place(hash).await?
        } else if let Some(place) = self.remembered_place(transaction).await {
            place
        } else {
            return Ok(TransactionSighting::Missing);
        };
        Ok(match place {
            SuiPlace::Nowhere => sighting,
            SuiPlace::Executed | SuiPlace::Checkpoint(_) => TransactionSighting::Waiting,
        })
    }

    async fn agreed_place(&self, hash: &str) -> Result<SuiPlace, ChainError> {
        let read = |answer: &TransactionResponse| place(answer, hash);
        or_nowhere(self.grpc.query_quorum(by_digest(hash), read).await)
    }

    /// Where one is that is older than what all nodes remember, by as many nodes as have to agree whose transactions reach
    /// back to before it was sent; `None` where there are not so many.
    async fn remembered_place(&self, transaction: &TrackedTransaction) -> Option<SuiPlace> {
        let said = |node| self.place_of_archive(node, transaction);
        let said = self.grpc.witnesses(said).await?;
        // A node that has it is right, whatever others say.
        let mut known = said.into_iter();
        let is_known = |place: &SuiPlace| *place != SuiPlace::Nowhere;
        Some(known.find(is_known).unwrap_or(SuiPlace::Nowhere))
    }

    /// What one node says of a transaction, where it has all from before that was sent.
    async fn place_of_archive(
        &self,
        node: usize,
        transaction: &TrackedTransaction,
    ) -> Option<SuiPlace> {
        let call = GET_SERVICE_INFO.call(GetServiceInfoRequest {});
        let info = self.grpc.at(node, call).await.ok()?;
        let call = GET_CHECKPOINT.call(GetCheckpointRequest {
            sequence_number: Some(info.lowest_available_checkpoint?),
            read_mask: FieldMask::of(&["summary.timestamp"]),
        });
        let first = self.grpc.at(node, call).await.ok()?.checkpoint?.summary?;
        let milliseconds = |time: Timestamp| u64::try_from(time.seconds).ok()?.checked_mul(1_000);
        let (from_ms, to_ms) = (
            milliseconds(first.timestamp?)?,
            milliseconds(info.timestamp?)?,
        );
        if !transaction.is_within(from_ms, to_ms) {
            return None;
        }
        let hash = transaction.signed.tx_hash.as_str();
        match self.grpc.at(node, by_digest(hash)).await {
            Err(CallError::Node(status)) if status.is_absence() => Some(SuiPlace::Nowhere),
            answer => place(&answer.ok()?, hash),
        }
    }

    async fn agreed_fate(
        &self,
        sent: &SentTransaction,
        hash: &str,
    ) -> Result<TransactionFate, ChainError> {
        if sent.objects.is_empty() {
            return Ok(TransactionFate::Open);
        }
        let read = |answer: &BatchGetObjectsResponse| Some(fate_of(answer, sent, hash));
        let call = BATCH_GET_OBJECTS.call(objects_of(sent));
        Ok(self.grpc.query_quorum(call, read).await?)
    }
}

fn by_digest(hash: &str) -> GrpcCall<GetTransactionRequest, TransactionResponse> {
    GET_TRANSACTION.call(GetTransactionRequest {
        digest: Some(hash.into()),
        read_mask: FieldMask::of(&["digest", "effects.status", "checkpoint"]),
    })
}

/// What nodes say of a transaction that they do not have comes as an error.
fn or_nowhere(answer: Result<SuiPlace, CallError<GrpcStatus>>) -> Result<SuiPlace, ChainError> {
    match answer {
        Err(CallError::Node(status)) if status.is_absence() => Ok(SuiPlace::Nowhere),
        answer => Ok(answer?),
    }
}

fn place(answer: &TransactionResponse, hash: &str) -> Option<SuiPlace> {
    if digest(answer) != Some(hash) {
        return None;
    }
    let executed = answer.transaction.as_ref()?;
    Some(match executed.checkpoint {
        None => SuiPlace::Executed,
        Some(block) => SuiPlace::Checkpoint(Inclusion {
            block,
            success: executed.effects.as_ref()?.status.as_ref()?.success?,
        }),
    })
}
