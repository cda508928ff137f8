//! The messages of `sui.rpc.v2` that are used here, by field number (sui-apis,
//! `proto/sui/rpc/v2`), and the methods that take them.
//!
//! Fields that are neither set nor read are left out: decoding drops them.

use prost::{Enumeration, Message};

use crate::chain_rpc::grpc::GrpcMethod;

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
    GrpcMethod::new("/sui.rpc.v2.TransactionExecutionService/SimulateTransaction").explaining();

/// `google.protobuf.FieldMask`: what the answer is to hold.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FieldMask {
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}

impl FieldMask {
    pub fn of(paths: &[&str]) -> Option<Self> {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        Some(Self { paths })
    }
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Timestamp {
    /// Since the Unix epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

/// `google.rpc.GrpcStatus`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetServiceInfoRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetServiceInfoResponse {
    /// Digest of the genesis checkpoint, base58.
    #[prost(string, optional, tag = "1")]
    pub chain_id: Option<String>,
    /// `mainnet`, `testnet` and the like.
    #[prost(string, optional, tag = "2")]
    pub chain: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetEpochRequest {
    #[prost(message, optional, tag = "2")]
    pub read_mask: Option<FieldMask>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetEpochResponse {
    #[prost(message, optional, tag = "1")]
    pub epoch: Option<Epoch>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Epoch {
    #[prost(uint64, optional, tag = "1")]
    pub epoch: Option<u64>,
    #[prost(message, optional, tag = "6")]
    pub start: Option<Timestamp>,
    /// MIST per unit of gas.
    #[prost(uint64, optional, tag = "8")]
    pub reference_gas_price: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetObjectRequest {
    #[prost(string, optional, tag = "1")]
    pub object_id: Option<String>,
    #[prost(uint64, optional, tag = "2")]
    pub version: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BatchGetObjectsRequest {
    #[prost(message, repeated, tag = "1")]
    pub requests: Vec<GetObjectRequest>,
    #[prost(message, optional, tag = "2")]
    pub read_mask: Option<FieldMask>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BatchGetObjectsResponse {
    /// One for each request, in their order.
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<GetObjectResult>,
}

/// Either, or.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GetObjectResult {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<RpcStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Object {
    #[prost(string, optional, tag = "2")]
    pub object_id: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    pub version: Option<u64>,
    /// Base58.
    #[prost(string, optional, tag = "4")]
    pub digest: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub owner: Option<Owner>,
    /// The transaction that made this version, base58.
    #[prost(string, optional, tag = "10")]
    pub previous_transaction: Option<String>,
    /// MIST.
    #[prost(uint64, optional, tag = "11")]
    pub storage_rebate: Option<u64>,
    /// Of a coin, in its smallest unit.
    #[prost(uint64, optional, tag = "101")]
    pub balance: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Owner {
    #[prost(enumeration = "OwnerKind", optional, tag = "1")]
    pub kind: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub address: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum OwnerKind {
    Unknown = 0,
    Address = 1,
    Object = 2,
    Shared = 3,
    Immutable = 4,
    ConsensusAddress = 5,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetTransactionRequest {
    /// Base58.
    #[prost(string, optional, tag = "1")]
    pub digest: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub read_mask: Option<FieldMask>,
}

/// `GetTransactionResponse`, `ExecuteTransactionResponse` and `SimulateTransactionResponse`, of
/// which the first field is the same.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TransactionResponse {
    #[prost(message, optional, tag = "1")]
    pub transaction: Option<ExecutedTransaction>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecutedTransaction {
    #[prost(string, optional, tag = "1")]
    pub digest: Option<String>,
    #[prost(message, optional, tag = "4")]
    pub effects: Option<TransactionEffects>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TransactionEffects {
    #[prost(message, optional, tag = "4")]
    pub status: Option<ExecutionStatus>,
    #[prost(message, optional, tag = "6")]
    pub gas_used: Option<GasCostSummary>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecutionStatus {
    #[prost(bool, optional, tag = "1")]
    pub success: Option<bool>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<ExecutionError>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecutionError {
    #[prost(string, optional, tag = "1")]
    pub description: Option<String>,
    #[prost(enumeration = "ExecutionErrorKind", optional, tag = "3")]
    pub kind: Option<i32>,
}

/// Those that mean something here, of 43.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum ExecutionErrorKind {
    Unknown = 0,
    InsufficientGas = 1,
    InsufficientCoinBalance = 8,
    InsufficientFundsForWithdraw = 41,
}

/// All MIST.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GasCostSummary {
    #[prost(uint64, optional, tag = "1")]
    pub computation_cost: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub storage_cost: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub storage_rebate: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListOwnedObjectsRequest {
    #[prost(string, optional, tag = "1")]
    pub owner: Option<String>,
    #[prost(uint32, optional, tag = "2")]
    pub page_size: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub page_token: Option<Vec<u8>>,
    #[prost(message, optional, tag = "4")]
    pub read_mask: Option<FieldMask>,
    #[prost(string, optional, tag = "5")]
    pub object_type: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListOwnedObjectsResponse {
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<Object>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub next_page_token: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetBalanceRequest {
    #[prost(string, optional, tag = "1")]
    pub owner: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub coin_type: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetBalanceResponse {
    #[prost(message, optional, tag = "1")]
    pub balance: Option<Balance>,
}

/// In the coin's smallest unit.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Balance {
    /// All of it.
    #[prost(uint64, optional, tag = "3")]
    pub balance: Option<u64>,
    /// What lies in no coin object (SIP-58).
    #[prost(uint64, optional, tag = "4")]
    pub address_balance: Option<u64>,
}

/// BCS bytes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Bcs {
    #[prost(bytes = "vec", optional, tag = "2")]
    pub value: Option<Vec<u8>>,
}

/// `Transaction` or `UserSignature`, as BCS.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EncodedBcs {
    #[prost(message, optional, tag = "1")]
    pub bcs: Option<Bcs>,
}

impl EncodedBcs {
    pub fn of(bytes: Vec<u8>) -> Self {
        let value = Some(bytes);
        Self {
            bcs: Some(Bcs { value }),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecuteTransactionRequest {
    #[prost(message, optional, tag = "1")]
    pub transaction: Option<EncodedBcs>,
    #[prost(message, repeated, tag = "2")]
    pub signatures: Vec<EncodedBcs>,
    #[prost(message, optional, tag = "3")]
    pub read_mask: Option<FieldMask>,
}

/// Left out: `checks`, which are made by default.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SimulateTransactionRequest {
    #[prost(message, optional, tag = "1")]
    pub transaction: Option<EncodedBcs>,
    #[prost(message, optional, tag = "2")]
    pub read_mask: Option<FieldMask>,
    /// False: a transaction without gas coins is given one.
    #[prost(bool, optional, tag = "4")]
    pub do_gas_selection: Option<bool>,
}
