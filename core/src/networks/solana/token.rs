//! Tokens: what is asked about them, and how they are sent.
//!
//! They go from the sender's associated token account to the recipient's, with one
//! TransferChecked; with TransferCheckedWithFee where the mint takes a fee, so that the chain takes
//! the one that was shown or refuses. Where the recipient has none, CreateAssociatedTokenAccountIdempotent comes
//! first; the sender pays its deposit.

use serde::{Deserialize, Serialize};
use solana_pubkey::Pubkey;
use spl_associated_token_account_interface::address::get_associated_token_address_with_program_id;
use spl_token_interface::state::{Account as TokenAccount, GenericTokenAccount as _};

pub use super::extensions::{TransferFee, TransferFees};
use super::{
    address::parse_key,
    extensions::{Extensions, FROZEN},
};
use crate::fault::Fault;

/// The Token program.
pub const TOKEN: Pubkey = spl_token_interface::ID;
/// The Token-2022 program, also called Token Extensions: the same instructions and more.
pub const TOKEN_2022: Pubkey =
    Pubkey::from_str_const("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb");

/// The one account for a token that everyone can derive from its owner: where tokens are sent.
pub fn associated_account(owner: &Pubkey, mint: &Pubkey, program: &Pubkey) -> Pubkey {
    get_associated_token_address_with_program_id(owner, mint, program)
}

/// What must be known about a token and its accounts before it can be sent. All addresses are
/// base58.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenQueries {
    /// The token.
    pub mint: String,
    /// Who sends it.
    pub sender: String,
    /// Who gets it: the wallet, not its token account.
    pub recipient: String,
}

/// What is known about a token and its accounts. All addresses are base58.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenChainData {
    /// The program that the mint belongs to.
    pub program: String,
    /// The mint's decimals.
    pub decimals: u8,
    /// Who owns the sender's associated token account (of that program); `None` when there is no
    /// such token account.
    pub sender_account_owner: Option<String>,
    /// Who owns the recipient's associated token account; `None` when there is no such token
    /// account.
    pub recipient_account_owner: Option<String>,
    /// The program that the account at the recipient's own address belongs to; `None` when there is
    /// no account.
    pub recipient_program: Option<String>,
    /// What the mint takes of a transfer in the present epoch; `None` for one that has no such fee.
    pub transfer_fee: Option<TransferFee>,
}

/// An account, as `getMultipleAccounts` shows it with encoding base64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountInfo {
    /// The program that it belongs to, base58.
    pub owner: String,
    /// All its data.
    pub data: Vec<u8>,
}

/// Bytes of a mint without extensions.
const MINT_BYTES: usize = 82;
/// Where a mint has its decimals, and after them whether it is initialized
/// (`spl_token_interface::state::Mint`).
const MINT_DECIMALS: usize = 44;
/// Bytes of a token account without extensions.
const ACCOUNT_BYTES: usize = 165;
/// Where a token account has its state (`spl_token_interface::state::Account`).
const ACCOUNT_STATE: usize = 108;
/// Token-2022: an account with extensions has its type here, mints too.
const TYPE: usize = ACCOUNT_BYTES;
const TYPE_MINT: u8 = 1;
const TYPE_ACCOUNT: u8 = 2;
/// No token account has so many bytes: those are multisignature accounts.
const MULTISIG_BYTES: usize = 355;

impl TokenQueries {
    /// The accounts to ask for, base58, for one call of `getMultipleAccounts`. Its answers, in this
    /// order, go to [`TokenQueries::chain_data`].
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when these are not the needs of a payload.
    pub fn accounts(&self) -> Result<Vec<String>, Fault> {
        let key = |text: &str| parse_key(text).map_err(Fault::bug);
        let (mint, sender) = (key(&self.mint)?, key(&self.sender)?);
        let recipient = key(&self.recipient)?;
        let mut accounts = vec![mint, recipient];
        for program in [TOKEN, TOKEN_2022] {
            accounts.push(associated_account(&sender, &mint, &program));
            accounts.push(associated_account(&recipient, &mint, &program));
        }
        Ok(accounts.iter().map(Pubkey::to_string).collect())
    }

    /// What the accounts say; `None` for one that does not exist. The transfer fee, which hangs on the
    /// epoch, comes of [`TokenQueries::transfer_fees`].
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field of the payload when there is no such
    /// token, and when the token program would refuse the transfer for what mint and accounts say:
    /// it would be paid for and do nothing. And [`crate::fault::Class::Bug`] when the answers are not to
    /// [`TokenQueries::accounts`].
    pub fn chain_data(&self, accounts: &[Option<AccountInfo>]) -> Result<TokenChainData, Fault> {
        let [
            mint,
            recipient,
            sender_1,
            recipient_1,
            sender_2,
            recipient_2,
        ] = accounts
        else {
            return Err(Fault::bug("the answer does not match the queried accounts"));
        };
        let mint = mint
            .as_ref()
            .ok_or_else(|| Fault::field("mintAddress", "does not exist on this chain"))?;
        let not_a_token = || Fault::field("mintAddress", "is not a token");
        let program = token_program(&mint.owner).ok_or_else(not_a_token)?;
        let decimals = decimals(&program, &mint.data).ok_or_else(not_a_token)?;
        let (sender, receiver) = if program == TOKEN {
            (sender_1, recipient_1)
        } else {
            (sender_2, recipient_2)
        };
        let held = |account: &Option<AccountInfo>| -> Option<TokenHolding> {
            let account = account.as_ref()?;
            let owned = account.owner == program.to_string();
            holding(&program, &account.data)
                .filter(|held| owned && held.mint.to_string() == self.mint)
        };
        if let Some(blocker) = extensions(&program, &mint.data).blocker() {
            return Err(Fault::field("mintAddress", blocker));
        }
        let (sender, receiver) = (held(sender), held(receiver));
        if sender.as_ref().is_some_and(|held| held.frozen) {
            return Err(Fault::field("from", FROZEN_ACCOUNT));
        }
        match &receiver {
            Some(held) if held.frozen => return Err(Fault::field("to", FROZEN_ACCOUNT)),
            Some(held) if held.demands_memo => {
                let problem = "its account for this token requires a memo with each transfer (MemoTransfer), which \
                               this payload kind does not support";
                return Err(Fault::field("to", problem));
            }
            None if extensions(&program, &mint.data).freezes_new_accounts() => {
                let problem = "has no account for this token, and a new one would be frozen until the \
                               token's issuer thaws it (DefaultAccountState)";
                return Err(Fault::field("to", problem));
            }
            Some(_) | None => {}
        }
        Ok(TokenChainData {
            program: program.to_string(),
            decimals,
            sender_account_owner: sender.map(|held| held.owner.to_string()),
            recipient_account_owner: receiver.map(|held| held.owner.to_string()),
            recipient_program: recipient.as_ref().map(|account| account.owner.clone()),
            transfer_fee: None,
        })
    }

    /// What the mint takes of transfers, by the same accounts; `None` for one without such a fee.
    pub fn transfer_fees(&self, accounts: &[Option<AccountInfo>]) -> Option<TransferFees> {
        let mint = accounts.first()?.as_ref()?;
        extensions(&token_program(&mint.owner)?, &mint.data).transfer_fees()
    }
}

const FROZEN_ACCOUNT: &str = "its account for this token is frozen by the token's issuer";

/// One of the two token programs.
pub(super) fn token_program(text: &str) -> Option<Pubkey> {
    let program = parse_key(text).ok()?;
    [TOKEN, TOKEN_2022].contains(&program).then_some(program)
}

/// The decimals of an initialized mint.
fn decimals(program: &Pubkey, data: &[u8]) -> Option<u8> {
    let whole = data.len() == MINT_BYTES || extended(program, data, TYPE_MINT);
    match data.get(MINT_DECIMALS..)? {
        [decimals, 1, ..] if whole => Some(*decimals),
        _ => None,
    }
}

/// An initialized token account.
struct TokenHolding {
    mint: Pubkey,
    owner: Pubkey,
    /// Its issuer lets nothing in or out.
    frozen: bool,
    /// Nothing comes in without a memo.
    demands_memo: bool,
}

fn holding(program: &Pubkey, data: &[u8]) -> Option<TokenHolding> {
    let whole = data.len() == ACCOUNT_BYTES || extended(program, data, TYPE_ACCOUNT);
    let basic = data.get(..ACCOUNT_BYTES).filter(|_| whole)?;
    Some(TokenHolding {
        mint: *TokenAccount::unpack_account_mint(basic)?,
        owner: *TokenAccount::unpack_account_owner(basic)?,
        frozen: basic.get(ACCOUNT_STATE) == Some(&FROZEN),
        demands_memo: extensions(program, data).demands_memo(),
    })
}

/// The extensions of a mint or token account; none where it is not extended.
fn extensions<'a>(program: &Pubkey, data: &'a [u8]) -> Extensions<'a> {
    let has = [TYPE_MINT, TYPE_ACCOUNT]
        .iter()
        .any(|kind| extended(program, data, *kind));
    Extensions(data.get(TYPE + 1..).filter(|_| has).unwrap_or_default())
}

fn extended(program: &Pubkey, data: &[u8], kind: u8) -> bool {
    *program == TOKEN_2022 && data.len() != MULTISIG_BYTES && data.get(TYPE) == Some(&kind)
}
