//! The messages of `sui.proto`, and the methods that take them.

use crate::chain_rpc::grpc::GrpcMethod;

include!(concat!(env!("OUT_DIR"), "/sui.rpc.v2.rs"));

/// Chain and version of the node.
pub(super) const GET_SERVICE_INFO: GrpcMethod<GetServiceInfoRequest, GetServiceInfoResponse> =
    GrpcMethod::new("/sui.rpc.v2.LedgerService/GetServiceInfo");
/// The present epoch, where the request names none.
pub(super) const GET_EPOCH: GrpcMethod<GetEpochRequest, GetEpochResponse> =
    GrpcMethod::new("/sui.rpc.v2.LedgerService/GetEpoch");
/// Objects, at their last version or at one that is named.
pub(super) const BATCH_GET_OBJECTS: GrpcMethod<BatchGetObjectsRequest, BatchGetObjectsResponse> =
    GrpcMethod::new("/sui.rpc.v2.LedgerService/BatchGetObjects");
/// A transaction that was executed.
pub(super) const GET_TRANSACTION: GrpcMethod<GetTransactionRequest, TransactionResponse> =
    GrpcMethod::new("/sui.rpc.v2.LedgerService/GetTransaction");
/// A checkpoint.
pub(super) const GET_CHECKPOINT: GrpcMethod<GetCheckpointRequest, GetCheckpointResponse> =
    GrpcMethod::new("/sui.rpc.v2.LedgerService/GetCheckpoint");
/// What an address owns; coins with the richest first.
pub(super) const LIST_OWNED_OBJECTS: GrpcMethod<ListOwnedObjectsRequest, ListOwnedObjectsResponse> =
    GrpcMethod::new("/sui.rpc.v2.StateService/ListOwnedObjects");
/// What an address has of one coin type.
pub(super) const GET_BALANCE: GrpcMethod<GetBalanceRequest, GetBalanceResponse> =
    GrpcMethod::new("/sui.rpc.v2.StateService/GetBalance");
/// Executes, and answers once that is final.
pub(super) const EXECUTE_TRANSACTION: GrpcMethod<ExecuteTransactionRequest, TransactionResponse> =
    GrpcMethod::new("/sui.rpc.v2.TransactionExecutionService/ExecuteTransaction");
/// Executes without a trace. Nodes call it an internal error when its inputs cannot be.
pub(super) const SIMULATE_TRANSACTION: GrpcMethod<SimulateTransactionRequest, TransactionResponse> =
    GrpcMethod::new("/sui.rpc.v2.TransactionExecutionService/SimulateTransaction")
        .explaining()
        .costly();

impl FieldMask {
    pub fn of(paths: &[&str]) -> Option<Self> {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        Some(Self { paths })
    }
}

impl EncodedBcs {
    pub fn of(bytes: Vec<u8>) -> Self {
        let value = Some(bytes);
        Self {
            bcs: Some(Bcs { value }),
        }
    }
}
