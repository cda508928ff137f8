//! Stellar addresses and assets in text: strkeys (SEP-23), and assets as `CODE:ISSUER` (SEP-11).

use std::fmt;

use stellar_strkey::{DecodeError, Strkey};
use stellar_xdr::{
    AccountId, AlphaNum4, AlphaNum12, Asset, AssetCode, ChangeTrustAsset, MuxedAccount,
    MuxedAccountMed25519, PublicKey, Uint256,
};

/// Letters and digits of an asset code.
const MAX_CODE: usize = 12;

/// Why a text is not a Stellar address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not a strkey of an account.
    #[error("must be a Stellar account: 56 capital letters and digits that begin with G")]
    Form,
    /// A strkey with a typing error.
    #[error("has an invalid checksum: check for a typo")]
    Checksum,
    /// `S...`, or what looks like it.
    #[error("is a secret seed, which must never be shared: give the account, which begins with G")]
    Seed,
    /// `C...`, which payments cannot reach.
    #[error("is a contract; it must be an account, which begins with G")]
    Contract,
    /// `M...` where only the account itself can stand.
    #[error("is a muxed address (M...); it must be the account itself, which begins with G")]
    Muxed,
}

/// Why a text is not an asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssetError {
    /// Nothing stands between code and issuer.
    #[error("must be an asset as CODE:ISSUER; the issuer begins with G")]
    Form,
    /// The code is not one.
    #[error("must be 1 to 12 letters or digits")]
    Code,
    /// The issuer is not one.
    #[error(transparent)]
    Issuer(#[from] AddressError),
}

/// Parses an account (`G...`) or a muxed address (`M...`, an account with a number that its owner
/// gives meaning to; CAP-27). Not every account is a point of the curve, so that is not asked for.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_address(text: &str) -> Result<MuxedAccount, AddressError> {
    match Strkey::from_string(text) {
        Ok(Strkey::PublicKeyEd25519(key)) => Ok(MuxedAccount::Ed25519(Uint256(key.0))),
        Ok(Strkey::MuxedAccountEd25519(muxed)) => {
            Ok(MuxedAccount::MuxedEd25519(MuxedAccountMed25519 {
                id: muxed.id,
                ed25519: Uint256(muxed.ed25519),
            }))
        }
        Ok(Strkey::Contract(_) | Strkey::MuxedContract(_)) => Err(AddressError::Contract),
        Err(DecodeError::ChecksumMismatch) => Err(AddressError::Checksum),
        Err(DecodeError::PrivateKey) => Err(AddressError::Seed),
        Ok(_) | Err(_) => Err(AddressError::Form),
    }
}

/// Parses an account (`G...`).
///
/// # Errors
/// See [`AddressError`].
pub fn parse_account(text: &str) -> Result<AccountId, AddressError> {
    match parse_address(text)? {
        account @ MuxedAccount::Ed25519(_) => Ok(account.account_id()),
        MuxedAccount::MuxedEd25519(_) => Err(AddressError::Muxed),
    }
}

/// The key of an account.
pub(crate) fn account_key(account: &AccountId) -> &[u8; 32] {
    let AccountId(PublicKey::PublicKeyTypeEd25519(Uint256(key))) = account;
    key
}

/// The key of the account of an address.
pub(crate) fn address_key(address: &MuxedAccount) -> &[u8; 32] {
    match address {
        MuxedAccount::Ed25519(Uint256(key)) => key,
        MuxedAccount::MuxedEd25519(muxed) => &muxed.ed25519.0,
    }
}

/// An asset that an account issues: everything but lumens. Printed as `CODE:ISSUER`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IssuedAsset {
    /// 1 to 12 letters or digits; capitals and small letters differ.
    pub code: AssetCode,
    /// Who issues it.
    pub issuer: AccountId,
}

impl IssuedAsset {
    /// Parses an asset by its parts.
    ///
    /// # Errors
    /// See [`AssetError`].
    pub fn new(code: &str, issuer: &str) -> Result<Self, AssetError> {
        Ok(Self {
            code: parse_code(code)?,
            issuer: parse_account(issuer)?,
        })
    }

    /// Parses `CODE:ISSUER`.
    ///
    /// # Errors
    /// See [`AssetError`].
    pub fn parse(text: &str) -> Result<Self, AssetError> {
        let (code, issuer) = text.split_once(':').ok_or(AssetError::Form)?;
        Self::new(code, issuer)
    }

    /// The asset of a decoded transaction, whose code may be one that the network refuses; `None`
    /// for lumens.
    pub(crate) fn of(asset: &Asset) -> Option<Self> {
        let (code, issuer) = match asset {
            Asset::Native => return None,
            Asset::CreditAlphanum4(asset) => (
                AssetCode::CreditAlphanum4(asset.asset_code.clone()),
                &asset.issuer,
            ),
            Asset::CreditAlphanum12(asset) => (
                AssetCode::CreditAlphanum12(asset.asset_code.clone()),
                &asset.issuer,
            ),
        };
        Some(Self {
            code,
            issuer: issuer.clone(),
        })
    }

    /// As payments name it.
    pub(crate) fn to_asset(&self) -> Asset {
        let issuer = self.issuer.clone();
        match self.code.clone() {
            AssetCode::CreditAlphanum4(asset_code) => {
                Asset::CreditAlphanum4(AlphaNum4 { asset_code, issuer })
            }
            AssetCode::CreditAlphanum12(asset_code) => {
                Asset::CreditAlphanum12(AlphaNum12 { asset_code, issuer })
            }
        }
    }

    /// As trust lines name it.
    pub(crate) fn to_line(&self) -> ChangeTrustAsset {
        let issuer = self.issuer.clone();
        match self.code.clone() {
            AssetCode::CreditAlphanum4(asset_code) => {
                ChangeTrustAsset::CreditAlphanum4(AlphaNum4 { asset_code, issuer })
            }
            AssetCode::CreditAlphanum12(asset_code) => {
                ChangeTrustAsset::CreditAlphanum12(AlphaNum12 { asset_code, issuer })
            }
        }
    }
}

impl fmt::Display for IssuedAsset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.code, self.issuer)
    }
}

/// Parses an asset code.
///
/// # Errors
/// [`AssetError::Code`].
pub(crate) fn parse_code(text: &str) -> Result<AssetCode, AssetError> {
    // The library's parser takes escape sequences too.
    let fits = (1..=MAX_CODE).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    fits.then(|| text.parse().ok())
        .flatten()
        .ok_or(AssetError::Code)
}
