//! TON addresses in text: raw (`0:` and 64 hex digits) and user-friendly (TEP-2).

use std::fmt;

use tycho_types::{
    cell::HashBytes,
    models::{StdAddr, StdAddrFormat},
};

/// Workchains that exist: the base chain and the masterchain.
const WORKCHAINS: [i8; 2] = [0, -1];

/// An account, and how the text that named it wants to be paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TonAddress {
    /// 0 or, for the masterchain, -1.
    pub workchain: i8,
    /// The account: the hash of its first state.
    pub account: [u8; 32],
    /// Whether money comes back when nobody takes it there. Contracts want that (`EQ...`); an
    /// account that does not exist yet can only be paid without (`UQ...`).
    pub bounce: bool,
}

/// Why a text is not a TON address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither form, or a wrong checksum.
    #[error(
        "must be a valid TON address: UQ... or EQ... of 48 characters, or 0: and 64 hex digits"
    )]
    Form,
    /// Flagged for test networks.
    #[error("is a testnet-only address: use the one that begins with UQ or EQ")]
    Testnet,
    /// Of a workchain that does not exist.
    #[error("has an unsupported workchain: only 0 and -1 exist")]
    Workchain,
}

impl TonAddress {
    /// The form of wallets: URL-safe, not bounceable (`UQ...`).
    pub fn wallet_form(&self) -> String {
        let bounce = false;
        Self { bounce, ..*self }.to_string()
    }

    /// The form of contracts: URL-safe, bounceable (`EQ...`).
    pub fn contract_form(&self) -> String {
        let bounce = true;
        Self { bounce, ..*self }.to_string()
    }

    /// Whether both are the same account.
    pub fn is_account(&self, other: &Self) -> bool {
        (self.workchain, self.account) == (other.workchain, other.account)
    }

    pub(super) fn std(&self) -> StdAddr {
        StdAddr::new(self.workchain, HashBytes(self.account))
    }

    /// The address as a message contains it; `None` when it has an anycast prefix or is in a
    /// workchain that does not exist.
    pub(super) fn of(address: &StdAddr, bounce: bool) -> Option<Self> {
        let known = address.anycast.is_none() && WORKCHAINS.contains(&address.workchain);
        known.then_some(Self {
            workchain: address.workchain,
            account: address.address.0,
            bounce,
        })
    }
}

/// URL-safe, with the flag that it has.
impl fmt::Display for TonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.std().display_base64_url(self.bounce).fmt(f)
    }
}

/// Parses an address: user-friendly in either base64 alphabet, or raw. A raw one does not say
/// whether it bounces; it is taken for a contract's.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_address(text: &str) -> Result<TonAddress, AddressError> {
    let (address, flags) =
        StdAddr::from_str_ext(text, StdAddrFormat::any()).map_err(|_| AddressError::Form)?;
    if flags.testnet {
        return Err(AddressError::Testnet);
    }
    let is_raw = text.contains(':');
    let bounce = is_raw || flags.bounceable;
    // The library reads more than one text for one address (`+0:`, unknown flags).
    let is_exact = if is_raw {
        address.to_string().eq_ignore_ascii_case(text)
    } else {
        let url_safe = text.replace('+', "-").replace('/', "_");
        address.display_base64_url(bounce).to_string() == url_safe
    };
    if !is_exact {
        return Err(AddressError::Form);
    }
    TonAddress::of(&address, bounce).ok_or(AddressError::Workchain)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // From TEP-2.
    const RAW: &str = "0:e4d954ef9f4e1250a26b5bbad76a1cdd17cfd08babad6f4c23e372270aef6f76";
    const CONTRACT: &str = "EQDk2VTvn04SUKJrW7rXahzdF8_Qi6utb0wj43InCu9vdjrR";
    const WALLET: &str = "UQDk2VTvn04SUKJrW7rXahzdF8_Qi6utb0wj43InCu9vdmcU";

    #[test]
    fn address__should_be_read_in_every_form_and_keep_its_flag() {
        let raw = parse_address(RAW).unwrap();
        assert!(raw.bounce);
        assert_eq!(raw.to_string(), CONTRACT);
        assert_eq!(raw.wallet_form(), WALLET);
        assert_eq!(parse_address(&RAW.to_uppercase()), Ok(raw));
        assert_eq!(parse_address(CONTRACT), Ok(raw));
        let wallet = parse_address(WALLET).unwrap();
        assert!(!wallet.bounce && wallet.is_account(&raw) && wallet != raw);
        assert_eq!(wallet.to_string(), WALLET);
        assert_eq!(wallet.contract_form(), CONTRACT);
        for text in [CONTRACT, WALLET] {
            let standard = text.replace('-', "+").replace('_', "/");
            assert_eq!(parse_address(&standard), parse_address(text));
        }
        let master = parse_address("Ef_9g7SiBmJ8EoFZEy1_uZHOd58thXg7NBkYe0W3c9MMWBdT").unwrap();
        assert_eq!((master.workchain, master.bounce), (-1, true));
    }

    #[test]
    fn address__should_be_exact() {
        for text in [
            "",
            "0:",
            &CONTRACT[..47],
            &CONTRACT[1..],
            &format!("{CONTRACT}="),
            &format!(" {CONTRACT}"),
            &format!("{RAW}0"),
            &RAW[..65],
            &format!("+{RAW}"),
            &format!("0{RAW}"),
            &format!("-{RAW}"),
            &RAW.replacen("e4", "0xe4", 1),
            &format!("{RAW}:"),
            // A typing error.
            &CONTRACT.replace("VT", "Vt"),
            &CONTRACT.replace("vdj", "vdk"),
            // Both alphabets at once.
            "EQDk2VTvn04SUKJrW7rXahzdF8_Qi6utb0wj43InCu9vdjr+",
            "TJRabPrwbZy45sbavfcjinPJC18kjpRTv8",
            "é",
            &"é".repeat(24),
        ] {
            assert_eq!(parse_address(text), Err(AddressError::Form), "{text}");
        }
        for text in [
            "0QCzhX8UMF-q7gamM_JgyU9yb1RojCQoua8cjcuufiMYwGkj",
            "kQCzhX8UMF-q7gamM_JgyU9yb1RojCQoua8cjcuufiMYwDTm",
        ] {
            assert_eq!(parse_address(text), Err(AddressError::Testnet));
        }
        for workchain in ["1", "-2", "127", "-128"] {
            let text = RAW.replacen('0', workchain, 1);
            assert_eq!(parse_address(&text), Err(AddressError::Workchain), "{text}");
        }
        assert_eq!(
            parse_address(&RAW.replacen('0', "128", 1)),
            Err(AddressError::Form)
        );
    }

    #[test]
    fn address__should_have_a_flag_byte_that_is_known() {
        use base64::{Engine as _, engine::general_purpose::URL_SAFE};
        let good = URL_SAFE.decode(CONTRACT).unwrap();
        for flags in 0..=u8::MAX {
            let mut bytes = good.clone();
            bytes[0] = flags;
            let crc = tycho_types::crc::crc_16(&bytes[..34]);
            bytes[34..].copy_from_slice(&crc.to_be_bytes());
            let parsed = parse_address(&URL_SAFE.encode(&bytes));
            assert_eq!(parsed.is_ok(), [0x11, 0x51].contains(&flags), "{flags:x}");
        }
    }

    proptest! {
        #[test]
        fn address__should_return_what_was_written(account: [u8; 32], bounce: bool, master: bool) {
            let workchain = if master { -1 } else { 0 };
            let address = TonAddress { workchain, account, bounce };
            prop_assert_eq!(parse_address(&address.to_string()), Ok(address));
            let raw = format!("{workchain}:{}", hex::encode(account));
            prop_assert!(parse_address(&raw).unwrap().is_account(&address));
        }

        #[test]
        fn address__should_never_panic(text in "(-?[0-9]{1,3}:)?.{0,70}") {
            let _ = parse_address(&text);
        }

        #[test]
        fn address__should_never_panic_on_its_length(text in "[A-Za-z0-9_/+-]{48}") {
            let _ = parse_address(&text);
        }
    }
}
