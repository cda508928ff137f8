//! Bitcoin addresses in text.

use bitcoin::{Address, Network, WitnessVersion, XOnlyPublicKey, address::NetworkUnchecked};

/// Why a text is not a Bitcoin address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither Base58Check nor a segwit address (BIP-173, BIP-350), or a wrong checksum.
    #[error("must be a Bitcoin address with a valid checksum: check for a typo")]
    Form,
    /// Of a test network.
    #[error("is an address of a test network: only mainnet is supported")]
    Network,
    /// Of witness version 1, but not 32 bytes that are a point (BIP-341): everyone could spend
    /// what is sent there, or nobody.
    #[error("is a bc1p address without a valid taproot key: funds sent to it are lost")]
    NoKey,
}

/// The longest address in Base58Check: 25 bytes.
const MAX_BASE58_CHARS: usize = 35;
/// How segwit addresses begin, those of test networks too.
const SEGWIT_PREFIXES: [&str; 3] = ["bc1", "tb1", "bcrt1"];

/// Parses an address of mainnet: P2PKH, P2SH, P2WPKH, P2WSH, P2TR, and segwit addresses of
/// versions 2 to 16, which BIP-350 wants senders to accept before they have a meaning. In
/// segwit addresses all letters may be upper case.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_address(text: &str) -> Result<Address, AddressError> {
    // Raw messages name addresses of any network: most need no decoding to see that it is another's.
    let begins = |prefix: &&str| {
        let start = text.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    if text.len() > MAX_BASE58_CHARS && !SEGWIT_PREFIXES.iter().any(begins) {
        return Err(AddressError::Form);
    }
    let address: Address<NetworkUnchecked> = text.parse().map_err(|_| AddressError::Form)?;
    let address = address
        .require_network(Network::Bitcoin)
        .map_err(|_| AddressError::Network)?;
    match address.witness_program() {
        Some(program) if program.version() == WitnessVersion::V1 => {
            XOnlyPublicKey::from_slice(program.program().as_bytes())
                .map_err(|_| AddressError::NoKey)?;
        }
        _ => {}
    }
    Ok(address)
}
