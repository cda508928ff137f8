//! What nodes say about accounts, in bags of cells and base64, and what a signed transaction says
//! of itself.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};
use tycho_types::{
    cell::{Cell, CellBuilder, CellFamily as _, CellSlice, HashBytes, Load as _, Store as _},
    dict::RawDict,
    models::StdAddr,
};

use super::{
    address::TonAddress,
    cells,
    wallet::{self, WalletOrder, WalletVersion},
};
use crate::fault::Fault;

/// Bits of a wallet's data behind the flag of v5r1, without plugins or extensions: seqno, id, key.
const DATA_BITS: u16 = 32 + 32 + 256;
/// What TEP-64 begins content with that is on the chain.
const ON_CHAIN: u8 = 0x00;
/// What TEP-64 begins a snake with.
const SNAKE: u8 = 0x00;
/// TEP-64: the decimals of a jetton whose content is on the chain and names none.
const DEFAULT_DECIMALS: u8 = 9;

/// What a wallet contract keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WalletData {
    /// The number of its next transaction.
    pub seqno: u32,
    /// Whether it takes transactions by signature; v5r1 can be told not to.
    pub takes_signatures: bool,
}

impl WalletData {
    /// What it keeps at first.
    pub const FIRST: Self = Self {
        seqno: 0,
        takes_signatures: true,
    };
}

/// Reads the data (base64) of a wallet's account; `None` when it is not that of this wallet: the
/// key in it must give the address.
pub fn read_wallet(data: &str, wallet: &TonAddress) -> Option<WalletData> {
    let cell = decode(data)?;
    WalletVersion::ALL.into_iter().find_map(|version| {
        let mut slice = cell.as_slice().ok()?;
        let takes_signatures = match version {
            WalletVersion::V5r1 => slice.load_bit().ok()?,
            WalletVersion::V4r2 => true,
        };
        // The dictionary of plugins or extensions is behind.
        if slice.size_bits() != DATA_BITS + 1 {
            return None;
        }
        let seqno = slice.load_u32().ok()?;
        slice.load_u32().ok()?;
        let key = slice.load_u256().ok()?;
        let address = version.address(&key.0).ok()?;
        address.is_account(wallet).then_some(WalletData {
            seqno,
            takes_signatures,
        })
    })
}

/// An address as an argument of a get-method: a bag of cells, in base64.
///
/// # Errors
/// [`crate::fault::Class::Bug`].
pub fn address_argument(address: &TonAddress) -> Result<String, Fault> {
    let mut builder = CellBuilder::new();
    address
        .std()
        .store_into(&mut builder, Cell::empty_context())
        .map_err(Fault::bug)?;
    let cell = builder.build().map_err(Fault::bug)?;
    Ok(STANDARD.encode(cells::write(cell.as_ref())))
}

/// Reads an address that a get-method gave, as a contract's.
pub fn read_address(boc: &str) -> Option<TonAddress> {
    let cell = decode(boc)?;
    let mut slice = cell.as_slice().ok()?;
    let address = StdAddr::load_from(&mut slice).ok()?;
    slice
        .is_empty()
        .then(|| TonAddress::of(&address, true))
        .flatten()
}

/// The decimals in a jetton's content (TEP-64, base64), where they are on the chain.
pub fn read_decimals(content: &str) -> Option<u8> {
    let cell = decode(content)?;
    let mut slice = cell.as_slice().ok()?;
    if slice.load_u8().ok()? != ON_CHAIN {
        return None;
    }
    let values = RawDict::<256>::load_from(&mut slice).ok()?;
    let find = |name: &str| {
        let key = HashBytes(Sha256::digest(name).into());
        let key = CellBuilder::build_from(key).ok()?;
        values.get(key.as_slice().ok()?).ok()
    };
    if let Some(value) = find("decimals")? {
        return text(value)?.parse().ok();
    }
    // The rest of the content is elsewhere, and the decimals may be there.
    find("uri")?.is_none().then_some(DEFAULT_DECIMALS)
}

/// The text of one cell of a content, with or without the byte of a snake.
fn text(value: CellSlice<'_>) -> Option<String> {
    let mut slice = value.get_reference_as_slice(0).unwrap_or(value);
    let mut bytes = Vec::new();
    while !slice.is_data_empty() {
        bytes.push(slice.load_u8().ok()?);
    }
    let bytes = bytes.strip_prefix(&[SNAKE]).unwrap_or(&bytes);
    String::from_utf8(bytes.to_vec()).ok()
}

/// A signed transaction that is on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentMessage {
    /// The wallet.
    pub wallet: TonAddress,
    /// The number of the transaction.
    pub seqno: u32,
    /// Until when it is good, in seconds since the Unix epoch.
    pub valid_until: u32,
    /// How many messages it sends.
    pub messages: usize,
    /// What these carry together, in nanoton.
    pub value: u128,
    /// The hash of its body, by which it is found in the chain.
    pub body_hash: [u8; 32],
}

/// Reads what [`crate::networks::DynNetworkRules::assemble`] made.
///
/// # Errors
/// [`crate::fault::Class::Bug`] for anything else.
pub fn read_sent(transaction: &str) -> Result<SentMessage, Fault> {
    let unreadable = || Fault::bug("the signed transaction cannot be read");
    let message = decode(transaction).ok_or_else(unreadable)?;
    let (order, body) = WalletOrder::read_signed(&message).ok_or_else(unreadable)?;
    let mut value = 0_u128;
    for message in &order.messages {
        let seen = wallet::look(message).ok_or_else(unreadable)?;
        value = value.checked_add(seen.value).ok_or_else(unreadable)?;
    }
    Ok(SentMessage {
        wallet: order.wallet,
        seqno: order.seqno,
        valid_until: order.valid_until,
        messages: order.messages.len(),
        value,
        body_hash: body.0,
    })
}

fn decode(boc: &str) -> Option<Cell> {
    cells::read(&STANDARD.decode(boc).ok()?).ok()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use proptest::prelude::*;
    use tycho_types::dict::Dict;

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn encode(builder: CellBuilder) -> String {
        STANDARD.encode(cells::write(builder.build().unwrap().as_ref()))
    }

    fn data(version: WalletVersion, seqno: u32, takes_signatures: bool, key: &[u8; 32]) -> String {
        let mut builder = CellBuilder::new();
        if version == WalletVersion::V5r1 {
            builder.store_bit(takes_signatures).unwrap();
        }
        builder.store_u32(seqno).unwrap();
        builder.store_u32(1).unwrap();
        builder.store_u256(HashBytes::wrap(key)).unwrap();
        builder.store_bit_zero().unwrap();
        encode(builder)
    }

    fn address(account: u8) -> TonAddress {
        TonAddress {
            workchain: 0,
            account: [account; 32],
            bounce: true,
        }
    }

    #[test]
    fn wallet_data__should_be_that_of_the_address() {
        for version in WalletVersion::ALL {
            let wallet = version.address(&KEY).unwrap();
            let read = |data: &str| read_wallet(data, &wallet);
            let expected = WalletData {
                seqno: 77,
                takes_signatures: true,
            };
            assert_eq!(read(&data(version, 77, true, &KEY)), Some(expected));
            assert_eq!(read(&data(version, 77, true, &[8; 32])), None);
            for other in WalletVersion::ALL
                .into_iter()
                .filter(|other| *other != version)
            {
                assert_eq!(read(&data(other, 77, true, &KEY)), None);
            }
            for nonsense in ["", "AAAA", "é", &encode(CellBuilder::new())] {
                assert_eq!(read(nonsense), None);
            }
        }
        let wallet = WalletVersion::V5r1.address(&KEY).unwrap();
        let closed = read_wallet(&data(WalletVersion::V5r1, 0, false, &KEY), &wallet).unwrap();
        assert!(!closed.takes_signatures);
    }

    #[test]
    fn addresses__should_come_back() {
        for address in [
            address(1),
            TonAddress {
                workchain: -1,
                ..address(2)
            },
        ] {
            let argument = address_argument(&address).unwrap();
            assert_eq!(read_address(&argument), Some(address));
        }
        // addr_none; an address and something else.
        let mut none = CellBuilder::new();
        none.store_zeros(2).unwrap();
        let mut more = CellBuilder::new();
        let context = Cell::empty_context();
        address(1).std().store_into(&mut more, context).unwrap();
        more.store_bit_one().unwrap();
        for nonsense in [encode(none), encode(more), String::new()] {
            assert_eq!(read_address(&nonsense), None);
        }
    }

    #[test]
    fn decimals__should_be_read_where_they_are_on_the_chain() {
        let snake_cell = |text: &str, tag: bool| {
            let mut builder = CellBuilder::new();
            if tag {
                builder.store_u8(SNAKE).unwrap();
            }
            cells::store_bytes(&mut builder, text.as_bytes()).unwrap();
            builder.build().unwrap()
        };
        let content = |tag: u8, values: &[(&str, Cell)]| {
            let mut dict = Dict::<HashBytes, Cell>::new();
            for (name, value) in values {
                dict.set(HashBytes(Sha256::digest(name).into()), value.clone())
                    .unwrap();
            }
            let mut builder = CellBuilder::new();
            builder.store_u8(tag).unwrap();
            dict.store_into(&mut builder, Cell::empty_context())
                .unwrap();
            encode(builder)
        };
        let name = ("name", snake_cell("Token", true));
        let uri = ("uri", snake_cell("https://a.b/c.json", true));
        let six = |tag| ("decimals", snake_cell("6", tag));
        for (content, expected) in [
            (content(0, &[six(true), name.clone()]), Some(6)),
            (content(0, &[six(false), uri.clone()]), Some(6)),
            (content(0, std::slice::from_ref(&name)), Some(9)),
            (content(0, &[]), Some(9)),
            (content(0, &[name, uri]), None),
            (content(0, &[("decimals", snake_cell("six", true))]), None),
            (content(0, &[("decimals", snake_cell("256", true))]), None),
            (content(1, &[six(true)]), None),
            (encode(CellBuilder::new()), None),
            ("AAAA".into(), None),
        ] {
            assert_eq!(read_decimals(&content), expected);
        }
    }

    proptest! {
        #[test]
        fn answers__should_never_make_it_panic(bytes: Vec<u8>, text: String) {
            let boc = STANDARD.encode([&[0xb5, 0xee, 0x9c, 0x72], bytes.as_slice()].concat());
            for text in [&boc, &text] {
                let _ = read_wallet(text, &address(1));
                let _ = read_address(text);
                let _ = read_decimals(text);
                let _ = read_sent(text);
            }
        }

        #[test]
        fn content__should_never_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let mut inner = CellBuilder::new();
            cells::store_bytes(&mut inner, &bytes).unwrap();
            let mut builder = CellBuilder::new();
            builder.store_u8(ON_CHAIN).unwrap();
            builder.store_bit_one().unwrap();
            builder.store_reference(inner.build().unwrap()).unwrap();
            let _ = read_decimals(&encode(builder));
        }
    }
}
