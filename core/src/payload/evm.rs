//! EVM payload kinds: evmSendNative, evmSendErc20, evmSendCustom, evmMessage.

/// A checked EVM payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvmPayload {}
