//! Wallet contracts: their addresses, the body that is signed, the external message around it.

use tycho_types::{
    boc::Boc,
    cell::{Cell, CellBuilder, CellFamily as _, CellSlice, HashBytes, Lazy, Store as _},
    error::Error,
    models::{
        BaseMessage, CurrencyCollection, ExtInMsgInfo, IntAddr, MessageLayout, MsgInfo, OutAction,
        OutActionsRevIter, OwnedMessage, OwnedRelaxedMessage, RelaxedIntMsgInfo, RelaxedMessage,
        RelaxedMsgInfo, SendMsgFlags, StateInit, StdAddr,
    },
};

use super::{
    address::TonAddress,
    cells::{self, BocError},
    code,
};
use crate::fault::Fault;

/// `wallet_id` of v5r1 (its README): global id -239 (mainnet) xor the context of a client wallet
/// in workchain 0, version 0, subwallet 0 (`0x80000000`).
const V5R1_ID: u32 = 0x7fff_ff11;
/// `subwallet_id` of v4r2 that wallets use: 698983191.
const V4R2_ID: u32 = 0x29a9_a317;
/// Opcode of a body of v5r1 that comes from outside ("sign").
const V5R1_SIGNED: u32 = 0x7369_676e;
/// The operation of v4r2 that sends.
const V4R2_SEND: u8 = 0;
const SIGNATURE_BITS: u16 = 512;

/// Sender pays the fees beside the value; a message that cannot be sent is left out, so that it
/// is not tried again until the balance is gone in gas.
const SEND_MODE: SendMsgFlags = SendMsgFlags::PAY_FEE_SEPARATELY.union(SendMsgFlags::IGNORE_ERROR);

/// A wallet contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalletVersion {
    /// What new wallets are.
    V5r1,
    /// Wallets that were made by older software.
    V4r2,
}

impl WalletVersion {
    /// All versions.
    pub const ALL: [WalletVersion; 2] = [WalletVersion::V5r1, WalletVersion::V4r2];

    /// The most messages that one transaction sends.
    pub fn most_messages(self) -> usize {
        match self {
            // TVM's limit of actions.
            WalletVersion::V5r1 => 255,
            // One reference of the body each.
            WalletVersion::V4r2 => 4,
        }
    }

    /// The state of the wallet before its first transaction.
    pub(super) fn state_init(self, public_key: &[u8; 32]) -> Result<StateInit, Fault> {
        self.first_state(public_key).map_err(Fault::bug)
    }

    fn first_state(self, public_key: &[u8; 32]) -> Result<StateInit, Error> {
        let (code, id) = match self {
            WalletVersion::V5r1 => (code::V5R1, V5R1_ID),
            WalletVersion::V4r2 => (code::V4R2, V4R2_ID),
        };
        let mut data = CellBuilder::new();
        if self == WalletVersion::V5r1 {
            // Signatures are allowed.
            data.store_bit_one()?;
        }
        data.store_u32(0)?;
        data.store_u32(id)?;
        data.store_u256(HashBytes::wrap(public_key))?;
        // No extensions or plugins.
        data.store_bit_zero()?;
        Ok(StateInit {
            code: Some(Boc::decode_base64(code).map_err(|_| Error::InvalidData)?),
            data: Some(data.build()?),
            ..StateInit::default()
        })
    }

    /// The address of a key's wallet in the base chain.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the constants in this file are broken.
    pub fn address(self, public_key: &[u8; 32]) -> Result<TonAddress, Fault> {
        let init = self.state_init(public_key)?;
        let state = CellBuilder::build_from(&init).map_err(Fault::bug)?;
        Ok(TonAddress {
            workchain: 0,
            account: state.repr_hash().0,
            bounce: false,
        })
    }
}

/// The message that a wallet sends. Its body stands in the same cell where it fits, as the TON
/// libraries write it.
pub(super) fn internal(
    to: &TonAddress,
    value: u128,
    init: Option<StateInit>,
    body: Cell,
) -> Result<Cell, Error> {
    let mut message = OwnedRelaxedMessage {
        info: RelaxedMsgInfo::Int(RelaxedIntMsgInfo {
            bounce: to.bounce,
            dst: to.std().into(),
            value: CurrencyCollection::new(value),
            ..RelaxedIntMsgInfo::default()
        }),
        init,
        body: body.into(),
        layout: Some(MessageLayout::plain()),
    };
    // The library can find a layout too, but counts the header one bit short.
    match CellBuilder::build_from(&message) {
        Err(Error::CellOverflow) => {
            message.layout = Some(BODY_APART);
            CellBuilder::build_from(&message)
        }
        built => built,
    }
}

/// What is plain to see in a message.
pub(super) struct VisibleMessage<'a> {
    /// Recipient.
    pub to: TonAddress,
    /// nanoton.
    pub value: u128,
    /// The wallet that the message says it is from, where it says so.
    pub from: Option<StdAddr>,
    /// Whether it brings the first state of the recipient.
    pub has_init: bool,
    /// The body.
    pub body: CellSlice<'a>,
}

/// Reads a message that a wallet can send; `None` when it is of another kind, not in its one
/// encoding, or carries what is not counted here: other currencies, and fees for a routing (IHR)
/// that the network has not.
pub(super) fn look(message: &Cell) -> Option<VisibleMessage<'_>> {
    let read: RelaxedMessage<'_> = message.parse().ok()?;
    // Whatever was skipped or written in another way is missing in here.
    let again = CellBuilder::build_from(&read).ok()?;
    if again.repr_hash() != message.repr_hash() {
        return None;
    }
    let RelaxedMsgInfo::Int(info) = read.info else {
        return None;
    };
    let IntAddr::Std(to) = &info.dst else {
        return None;
    };
    let from = match info.src {
        None => None,
        Some(IntAddr::Std(from)) => Some(from),
        Some(IntAddr::Var(_)) => return None,
    };
    let is_plain = info.ihr_disabled && !info.bounced && info.value.other.is_empty();
    is_plain.then_some(VisibleMessage {
        to: TonAddress::of(to, info.bounce)?,
        value: info.value.tokens.into_inner(),
        from,
        has_init: read.init.is_some(),
        body: read.body,
    })
}

/// A transaction: an order to the wallet, before it is signed.
#[derive(Debug)]
pub(super) struct WalletOrder {
    /// The wallet.
    pub wallet: TonAddress,
    /// Its contract.
    pub version: WalletVersion,
    /// Its first state, while it is not on the chain.
    pub init: Option<StateInit>,
    /// Unix seconds.
    pub valid_until: u32,
    /// Number of the transaction.
    pub seqno: u32,
    /// Each of the form of [`internal`]; in order.
    pub messages: Vec<Cell>,
}

impl WalletOrder {
    /// What the hash is signed of.
    pub fn body(&self) -> Result<Cell, Error> {
        let mut builder = CellBuilder::new();
        match self.version {
            WalletVersion::V5r1 => {
                builder.store_u32(V5R1_SIGNED)?;
                builder.store_u32(V5R1_ID)?;
                builder.store_u32(self.valid_until)?;
                builder.store_u32(self.seqno)?;
                // A list of actions, and no extended ones.
                builder.store_bit_one()?;
                builder.store_bit_zero()?;
                let mut list = Cell::default();
                for message in &self.messages {
                    let send = OutAction::SendMsg {
                        mode: SEND_MODE,
                        out_msg: Lazy::from_raw(message.clone())?,
                    };
                    let mut action = CellBuilder::new();
                    action.store_reference(list)?;
                    send.store_into(&mut action, Cell::empty_context())?;
                    list = action.build()?;
                }
                builder.store_reference(list)?;
            }
            WalletVersion::V4r2 => {
                builder.store_u32(V4R2_ID)?;
                builder.store_u32(self.valid_until)?;
                builder.store_u32(self.seqno)?;
                builder.store_u8(V4R2_SEND)?;
                for message in &self.messages {
                    builder.store_u8(SEND_MODE.bits())?;
                    builder.store_reference(message.clone())?;
                }
            }
        }
        builder.build()
    }

    fn read_body(wallet: TonAddress, init: Option<StateInit>, body: &Cell) -> Result<Self, Error> {
        let mut slice = body.as_slice()?;
        let tag = slice.load_u32()?;
        let version = match tag {
            V5R1_SIGNED => WalletVersion::V5r1,
            V4R2_ID => WalletVersion::V4r2,
            _ => return Err(Error::InvalidTag),
        };
        if version == WalletVersion::V5r1 {
            slice.load_u32()?;
        }
        let (valid_until, seqno) = (slice.load_u32()?, slice.load_u32()?);
        let mut messages = Vec::new();
        match version {
            WalletVersion::V5r1 => {
                for action in OutActionsRevIter::new(slice.load_reference_as_slice()?) {
                    let OutAction::SendMsg { out_msg, .. } = action? else {
                        return Err(Error::InvalidTag);
                    };
                    messages.push(out_msg.into_inner());
                }
                messages.reverse();
            }
            WalletVersion::V4r2 => {
                while let Ok(message) = slice.load_reference_cloned() {
                    messages.push(message);
                }
            }
        }
        Ok(Self {
            wallet,
            version,
            init,
            valid_until,
            seqno,
            messages,
        })
    }

    /// The external message around a body.
    fn external(
        &self,
        body: Cell,
        init: Option<StateInit>,
        layout: Option<MessageLayout>,
    ) -> Result<Cell, Error> {
        let message: OwnedMessage = BaseMessage {
            info: MsgInfo::ExtIn(ExtInMsgInfo {
                dst: self.wallet.std().into(),
                ..ExtInMsgInfo::default()
            }),
            init,
            body: body.into(),
            layout,
        };
        CellBuilder::build_from(message)
    }

    /// The transaction without a signature: the external message whose body, in a cell of its
    /// own, is what is signed.
    pub fn unsigned(&self) -> Result<Vec<u8>, Error> {
        let external = self.external(self.body()?, self.init.clone(), Some(BODY_APART))?;
        Ok(cells::write(external.as_ref()))
    }

    /// Reads what [`WalletOrder::unsigned`] gives, and nothing else.
    pub fn read(unsigned: &[u8]) -> Option<Self> {
        let root = cells::read(unsigned).ok()?;
        let message: OwnedMessage = root.parse().ok()?;
        let MsgInfo::ExtIn(info) = message.info else {
            return None;
        };
        let IntAddr::Std(wallet) = &info.dst else {
            return None;
        };
        let wallet = TonAddress::of(wallet, false)?;
        let order = Self::read_body(wallet, message.init, &message.body.1).ok()?;
        let most = order.version.most_messages();
        let is_one = (1..=most).contains(&order.messages.len())
            && order.unsigned().is_ok_and(|again| again == unsigned);
        is_one.then_some(order)
    }

    /// Puts the signature where the contract looks for it.
    pub fn sign(&self, signature: &[u8; 64]) -> Result<SignedOrder, Error> {
        let body = self.body()?;
        let mut builder = CellBuilder::new();
        match self.version {
            WalletVersion::V5r1 => {
                builder.store_slice(body.as_slice()?)?;
                builder.store_raw(signature, SIGNATURE_BITS)?;
            }
            WalletVersion::V4r2 => {
                builder.store_raw(signature, SIGNATURE_BITS)?;
                builder.store_slice(body.as_slice()?)?;
            }
        }
        let body = builder.build()?;
        Ok(SignedOrder {
            body: *body.repr_hash(),
            normal: *self
                .external(body.clone(), None, Some(BODY_APART))?
                .repr_hash(),
            message: self.external(body, self.init.clone(), None)?,
        })
    }

    /// Reads what [`WalletOrder::sign`] gives, and nothing else; with the hash of the signed body.
    pub fn read_signed(message: &Cell) -> Option<(Self, HashBytes)> {
        let read: OwnedMessage = message.parse().ok()?;
        let MsgInfo::ExtIn(info) = read.info else {
            return None;
        };
        let IntAddr::Std(wallet) = &info.dst else {
            return None;
        };
        let wallet = TonAddress::of(wallet, false)?;
        let body = CellSlice::apply(&read.body).ok()?;
        WalletVersion::ALL.into_iter().find_map(|version| {
            let mut unsigned = body;
            let signature = match version {
                WalletVersion::V5r1 => unsigned.load_suffix(SIGNATURE_BITS, 0),
                WalletVersion::V4r2 => unsigned.load_prefix(SIGNATURE_BITS, 0),
            };
            let mut bytes = [0; 64];
            signature.ok()?.load_raw(&mut bytes, SIGNATURE_BITS).ok()?;
            let unsigned = CellBuilder::build_from(unsigned).ok()?;
            let order = Self::read_body(wallet, read.init.clone(), &unsigned).ok()?;
            let again = order.sign(&bytes).ok()?;
            let is_it = order.version == version
                && (1..=version.most_messages()).contains(&order.messages.len())
                && again.message.repr_hash() == message.repr_hash();
            is_it.then_some((order, again.body))
        })
    }

    /// Checks the bounds of the message that will be sent, and of what stands for it before.
    pub fn check_size(&self) -> Result<(), BocError> {
        let unsigned = self.unsigned().map_err(|_| BocError::Form)?;
        let signed = self.sign(&[0; 64]).map_err(|_| BocError::Form)?;
        for bytes in [unsigned, cells::write(signed.message.as_ref())] {
            cells::read(&bytes)?;
        }
        Ok(())
    }
}

/// Until when a signed transaction ([`SignedOrder::message`]) is good, in seconds since the Unix
/// epoch.
pub(super) fn signed_until(bytes: &[u8]) -> Option<u32> {
    let message: OwnedMessage = cells::read(bytes).ok()?.parse().ok()?;
    let (range, cell) = &message.body;
    let mut body = range.apply(cell).ok()?;
    let head = (body.load_u32().ok()?, body.load_u32().ok()?);
    if head != (V5R1_SIGNED, V5R1_ID) {
        // In v4r2 the signature comes first, of which that was the beginning.
        body.skip_first(SIGNATURE_BITS - 64, 0).ok()?;
        if body.load_u32().ok()? != V4R2_ID {
            return None;
        }
    }
    body.load_u32().ok()
}

/// The layout of a normalized message (TEP-467), and of one that is not signed yet.
const BODY_APART: MessageLayout = MessageLayout {
    init_to_cell: false,
    body_to_cell: true,
};

/// A transaction that can be sent.
pub(super) struct SignedOrder {
    /// The hash of its body.
    pub body: HashBytes,
    /// The external message.
    pub message: Cell,
    /// Its hash without what anyone can change on the way (TEP-467).
    pub normal: HashBytes,
}
