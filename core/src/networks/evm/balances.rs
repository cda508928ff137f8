//! Many balances by one `eth_call` that calls no contract: it runs a program that is not on the chain (it would make a
//! contract of what the program returns), with what is asked for behind it.

use serde_json::Value;

use super::transfers::BlockError;
use crate::{
    amount::U256,
    deposit::transfer::{Account, NOBODY},
};

/// Most balances of one call: nodes bound the gas of a call (50 million by default, 30 million at some), and a token
/// takes up to 0.2 million here.
pub const MOST: usize = 200;

/// The program. Behind it stand pairs of account and token of 20 bytes each; for the token 0 it takes the account's coin.
/// It returns the number of the block whose state it has read (code must not begin with 0xef, EIP-3541), and then one word
/// for each pair: the balance, or 2^256 - 1 where the token gives none within 200,000 gas.
///
/// ```text
///       PUSH1 a0 PUSH1 len                    the place of the next answer, and of the next pair
/// loop: DUP1 CODESIZE GT ISZERO PUSH1 end JUMPI
///       PUSH1 28 DUP2 PUSH1 40 CODECOPY       the pair
///       PUSH1 40 MLOAD PUSH1 60 SHR  PUSH1 54 MLOAD PUSH1 60 SHR  DUP1 PUSH1 token JUMPI
///       POP BALANCE PUSH1 store JUMP
/// token: PUSH4 70a08231 PUSH1 e0 SHL PUSH1 0 MSTORE  SWAP1 PUSH1 4 MSTORE    balanceOf(account)
///       PUSH1 20 PUSH1 40 PUSH1 24 PUSH1 0 DUP5 PUSH3 30d40 STATICCALL
///       RETURNDATASIZE PUSH1 1f LT AND PUSH1 good JUMPI
///       POP PUSH1 0 NOT PUSH1 store JUMP
/// good: POP PUSH1 40 MLOAD
/// store: DUP3 MSTORE  PUSH1 28 ADD SWAP1 PUSH1 20 ADD SWAP1  PUSH1 loop JUMP
/// end:  POP NUMBER PUSH1 80 MSTORE  PUSH1 80 SWAP1 SUB PUSH1 80 RETURN
/// ```
const PROGRAM: &str = "60a060745b8038111560675760288160403960405160601c60545160601c8060275750316059565b6370a0823160e01b\
    6000529060045260206040602460008462030d40fa3d601f1016605457506000196059565b506040515b8252602801906020\
    01906004565b5043608052608090036080f3";

/// The `data` of the call. `None`: the coin.
pub fn call_data(pairs: &[(Account, Option<Account>)]) -> String {
    let mut data = format!("0x{PROGRAM}");
    for (account, token) in pairs {
        data.push_str(&hex::encode(account.0));
        data.push_str(&hex::encode(token.unwrap_or(NOBODY).0));
    }
    data
}

/// Big-endian, in the order of the pairs; `None` where a token gives none.
pub type Balances = Vec<Option<[u8; 32]>>;

/// The number of the block that the call has named, and the balances of so many pairs. Some chains name a block of another
/// chain there.
///
/// # Errors
/// [`BlockError`] when it is something else.
pub fn read(returned: &Value, count: usize) -> Result<(u64, Balances), BlockError> {
    let other = BlockError("these are not the balances that were asked for");
    let text = returned.as_str().and_then(|text| text.strip_prefix("0x"));
    let bytes = text.and_then(|text| hex::decode(text).ok());
    let bytes = bytes.ok_or(BlockError("the balances cannot be read"))?;
    let (words, rest) = bytes.as_chunks::<32>();
    let (first, words) = words.split_first().ok_or(other)?;
    let number = U256::from_be_bytes(*first).try_into().map_err(|_| other)?;
    if words.len() != count || !rest.is_empty() {
        return Err(other);
    }
    let given = |word: &[u8; 32]| (*word != [u8::MAX; 32]).then_some(*word);
    Ok((number, words.iter().map(given).collect()))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn balances__should_be_exactly_those_that_were_asked_for() {
        let word = |byte: u8| hex::encode([byte; 32]);
        let returned = |words: &[u8]| {
            let words: String = words.iter().map(|byte| word(*byte)).collect();
            json!(format!("0x{words}"))
        };
        let read = |returned: &Value| super::read(returned, 2);
        assert_eq!(
            read(&returned(&[0, 5, 0xff])).unwrap(),
            (0, vec![Some([5; 32]), None])
        );
        let named = format!("0x{:064x}{}{}", 123_456_789, word(5), word(6));
        assert_eq!(read(&json!(named)).unwrap().0, 123_456_789);
        for bad in [
            returned(&[0, 5]),
            returned(&[0, 5, 6, 7]),
            returned(&[1, 5, 6]),
            returned(&[]),
            json!("0x00"),
            json!("5"),
            Value::Null,
        ] {
            assert!(read(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn call__should_have_the_pairs_behind_the_program() {
        let data = call_data(&[
            (Account([1; 20]), None),
            (Account([2; 20]), Some(Account([3; 20]))),
        ]);
        let expected = [[1; 20], [0; 20], [2; 20], [3; 20]]
            .map(hex::encode)
            .concat();
        // The program knows its own length, and never has to change where its pairs begin.
        let behind = data.get(2 + 2 * 0x74..).unwrap();
        assert_eq!(behind, expected);
        assert!(!PROGRAM.contains(' '));
    }
}
