//! Call data in words: what `evmInputDataDecode` shows and approvers read.
//!
//! A call is shown only when it is exactly what the ABI makes of the values shown. Data with
//! something hidden behind its end, or with offsets that no compiler writes, is not.

use std::{collections::HashMap, fmt, sync::LazyLock};

use alloy_dyn_abi::{DynSolValue, JsonAbiExt as _};
use alloy_json_abi::{Function, JsonAbi};
use serde_json::Value;

use crate::{
    fault::{Class, Fault},
    schema::wire,
};

/// Longest call data that is decoded, in bytes: offsets can make a decoder copy the same bytes many
/// times over.
const MAX_INPUT: usize = 16 << 10;

/// Most characters of a call in words.
const MAX_WORDS: usize = 32 << 10;

/// Calls that are known without any ABI: tokens, wallets and the usual routers. The selectors are
/// those of the named standards and of the contracts in common use.
const COMMON: &[&str] = &[
    // EIP-20 and what most tokens add
    "transfer(address to, uint256 amount)",
    "transferFrom(address from, address to, uint256 amount)",
    "approve(address spender, uint256 amount)",
    "increaseAllowance(address spender, uint256 addedValue)",
    "decreaseAllowance(address spender, uint256 subtractedValue)",
    "mint(address to, uint256 amount)",
    "burn(uint256 amount)",
    "burnFrom(address account, uint256 amount)",
    // EIP-2612, EIP-3009
    "permit(address owner, address spender, uint256 value, uint256 deadline, uint8 v, bytes32 r, bytes32 s)",
    "transferWithAuthorization(address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce, uint8 v, bytes32 r, bytes32 s)",
    // EIP-721, EIP-1155
    "safeTransferFrom(address from, address to, uint256 tokenId)",
    "safeTransferFrom(address from, address to, uint256 tokenId, bytes data)",
    "safeTransferFrom(address from, address to, uint256 id, uint256 amount, bytes data)",
    "safeBatchTransferFrom(address from, address to, uint256[] ids, uint256[] amounts, bytes data)",
    "setApprovalForAll(address operator, bool approved)",
    // Wrapped coins
    "deposit()",
    "withdraw(uint256 wad)",
    // EIP-4626
    "deposit(uint256 assets, address receiver)",
    "mint(uint256 shares, address receiver)",
    "withdraw(uint256 assets, address receiver, address owner)",
    "redeem(uint256 shares, address receiver, address owner)",
    // Permit2
    "approve(address token, address spender, uint160 amount, uint48 expiration)",
    "transferFrom(address from, address to, uint160 amount, address token)",
    // Multicalls
    "multicall(bytes[] data)",
    "multicall(uint256 deadline, bytes[] data)",
    "aggregate3((address,bool,bytes)[] calls)",
    // Uniswap V2, V3 and the universal router
    "swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] path, address to, uint256 deadline)",
    "swapTokensForExactTokens(uint256 amountOut, uint256 amountInMax, address[] path, address to, uint256 deadline)",
    "swapExactETHForTokens(uint256 amountOutMin, address[] path, address to, uint256 deadline)",
    "swapExactTokensForETH(uint256 amountIn, uint256 amountOutMin, address[] path, address to, uint256 deadline)",
    "addLiquidity(address tokenA, address tokenB, uint256 amountADesired, uint256 amountBDesired, uint256 amountAMin, uint256 amountBMin, address to, uint256 deadline)",
    "removeLiquidity(address tokenA, address tokenB, uint256 liquidity, uint256 amountAMin, uint256 amountBMin, address to, uint256 deadline)",
    "exactInputSingle((address,address,uint24,address,uint256,uint256,uint256,uint160) params)",
    "exactInput((bytes,address,uint256,uint256,uint256) params)",
    "execute(bytes commands, bytes[] inputs, uint256 deadline)",
    "execute(bytes commands, bytes[] inputs)",
    // Safe
    "execTransaction(address to, uint256 value, bytes data, uint8 operation, uint256 safeTxGas, uint256 baseGas, uint256 gasPrice, address gasToken, address refundReceiver, bytes signatures)",
    // Lending
    "supply(address asset, uint256 amount, address onBehalfOf, uint16 referralCode)",
    "borrow(address asset, uint256 amount, uint256 interestRateMode, uint16 referralCode, address onBehalfOf)",
    "repay(address asset, uint256 amount, uint256 interestRateMode, address onBehalfOf)",
    "withdraw(address asset, uint256 amount, address to)",
    // Owners and proxies
    "transferOwnership(address newOwner)",
    "renounceOwnership()",
    "grantRole(bytes32 role, address account)",
    "revokeRole(bytes32 role, address account)",
    "upgradeTo(address newImplementation)",
    "upgradeToAndCall(address newImplementation, bytes data)",
    "pause()",
    "unpause()",
];

static BUILT_IN: LazyLock<AbiTable> = LazyLock::new(|| {
    let mut calls = AbiTable::default();
    for signature in COMMON {
        // A test reads every one of them.
        if let Ok(function) = Function::parse(signature) {
            calls.insert(function);
        }
    }
    calls
});

/// Functions by their selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbiTable {
    functions: HashMap<[u8; 4], Vec<Function>>,
}

impl AbiTable {
    /// The common calls.
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// Adds the functions of a contract's ABI in JSON, as compilers write it: the list itself, or
    /// an object that has it under `abi` (what Hardhat, Foundry and Truffle write).
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with a sentence, when it is not an ABI or has no function.
    pub fn add_abi(&mut self, json: &str) -> Result<(), Fault> {
        let invalid = |problem: String| Fault::new(Class::Invalid, problem);
        let wrong = |problem: &dyn fmt::Display| {
            invalid(format!("is not a contract's ABI in JSON: {problem}"))
        };
        let found: Value = serde_json::from_str(json).map_err(|error| wrong(&error))?;
        let list = match &found {
            Value::Object(artifact) => artifact
                .get("abi")
                .ok_or_else(|| wrong(&"it has no \"abi\""))?,
            list => list,
        };
        let abi: JsonAbi =
            serde_json::from_str(&list.to_string()).map_err(|error| wrong(&error))?;
        if abi.functions.is_empty() {
            return Err(invalid("is an ABI without functions".into()));
        }
        for function in abi.functions() {
            self.insert(function.clone());
        }
        Ok(())
    }

    /// All of these and, before them where selectors meet, all of `own`.
    #[must_use]
    pub fn overridden_by(&self, own: &Self) -> Self {
        let mut all = own.clone();
        for function in self.functions.values().flatten() {
            all.insert(function.clone());
        }
        all
    }

    fn insert(&mut self, function: Function) {
        let known = self.functions.entry(function.selector().0).or_default();
        if !known.contains(&function) {
            known.push(function);
        }
    }

    /// The call in words; `None` for data that no known function makes, and for none.
    pub fn decode(&self, input: &[u8]) -> Option<wire::EvmInputDataDecode> {
        if input.len() > MAX_INPUT {
            return None;
        }
        let (selector, arguments) = input.split_first_chunk::<4>()?;
        self.functions
            .get(selector)?
            .iter()
            .find_map(|function| describe(function, arguments))
    }
}

fn describe(function: &Function, arguments: &[u8]) -> Option<wire::EvmInputDataDecode> {
    let values = function.abi_decode_input(arguments).ok()?;
    if function.abi_encode_input_raw(&values).ok()? != arguments {
        return None;
    }
    let mut words = Vec::with_capacity(values.len());
    let mut args = Vec::with_capacity(values.len());
    for (parameter, value) in function.inputs.iter().zip(&values) {
        let r#type = parameter.selector_type().into_owned();
        words.push(format!("{type} {}", text(value, true)));
        args.push(wire::evm_input_data_decode::Argument {
            name: parameter.name.clone(),
            r#type,
            data: text(value, false),
        });
    }
    let function = format!("{}({})", function.name, words.join(", "));
    (function.len() <= MAX_WORDS).then_some(wire::EvmInputDataDecode { function, args })
}

/// A value in words. Texts among other values are quoted, so that none can look like two.
fn text(value: &DynSolValue, quoted: bool) -> String {
    let list = |values: &[DynSolValue]| {
        let words: Vec<String> = values.iter().map(|value| text(value, true)).collect();
        words.join(", ")
    };
    match value {
        DynSolValue::Bool(value) => value.to_string(),
        DynSolValue::Int(value, _) => value.to_string(),
        DynSolValue::Uint(value, _) => value.to_string(),
        DynSolValue::FixedBytes(word, size) => {
            format!("0x{}", hex::encode(word.get(..*size).unwrap_or_default()))
        }
        DynSolValue::Address(address) => address.to_checksum(None),
        DynSolValue::Function(function) => format!("0x{}", hex::encode(function)),
        DynSolValue::Bytes(bytes) => format!("0x{}", hex::encode(bytes)),
        DynSolValue::String(text) if quoted => serde_json::Value::from(text.as_str()).to_string(),
        DynSolValue::String(text) => text.clone(),
        DynSolValue::Array(values) | DynSolValue::FixedArray(values) => {
            format!("[{}]", list(values))
        }
        DynSolValue::Tuple(values) => format!("({})", list(values)),
        DynSolValue::CustomStruct { tuple, .. } => format!("({})", list(tuple)),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(signature: &str, values: &[DynSolValue]) -> Vec<u8> {
        Function::parse(signature)
            .unwrap()
            .abi_encode_input(values)
            .unwrap()
    }

    #[test]
    fn built_in__should_hold_every_common_call() {
        let known: usize = AbiTable::built_in().functions.values().map(Vec::len).sum();
        assert_eq!(known, COMMON.len());
    }

    #[test]
    fn decode__should_show_a_transfer_as_the_api_says() {
        let input = hex::decode(
            "a9059cbb000000000000000000000000f487a86d0657ee2f86770860ee633c5933e4d67c\
             0000000000000000000000000000000000000000000000000000000000bc614e",
        )
        .unwrap();
        let shown = AbiTable::built_in().decode(&input).unwrap();
        assert_eq!(
            shown.function,
            "transfer(address 0xf487A86D0657ee2f86770860EE633c5933e4D67C, uint256 12345678)"
        );
        let args: Vec<_> = shown
            .args
            .iter()
            .map(|arg| (arg.name.as_str(), arg.r#type.as_str(), arg.data.as_str()))
            .collect();
        assert_eq!(
            args,
            [
                (
                    "to",
                    "address",
                    "0xf487A86D0657ee2f86770860EE633c5933e4D67C"
                ),
                ("amount", "uint256", "12345678"),
            ]
        );
    }

    #[test]
    fn decode__should_show_nothing_that_is_not_all_there_is() {
        let plain = call(
            "burn(uint256 amount)",
            &[DynSolValue::Uint(alloy_primitives::U256::ONE, 256)],
        );
        assert!(AbiTable::built_in().decode(&plain).is_some());
        let longer = [plain.as_slice(), &[0]].concat();
        assert_eq!(AbiTable::built_in().decode(&longer), None);
        assert_eq!(AbiTable::built_in().decode(&plain[..35]), None);
        let dirty = hex::decode(
            "a9059cbb010000000000000000000000f487a86d0657ee2f86770860ee633c5933e4d67c\
             0000000000000000000000000000000000000000000000000000000000bc614e",
        );
        assert_eq!(AbiTable::built_in().decode(&dirty.unwrap()), None);
        assert_eq!(AbiTable::built_in().decode(&[]), None);
        assert_eq!(AbiTable::built_in().decode(&[1, 2, 3, 4]), None);
    }

    #[test]
    fn add_abi__should_teach_calls_of_its_own() {
        let mut own = AbiTable::default();
        own.add_abi(
            r#"[{"type":"function","name":"say","inputs":[
                {"name":"words","type":"string"},
                {"name":"pairs","type":"tuple[]","components":[{"name":"a","type":"int8"},{"name":"b","type":"bool"}]}
            ],"outputs":[],"stateMutability":"nonpayable"}]"#,
        )
        .unwrap();
        let calls = AbiTable::built_in().overridden_by(&own);
        let pair = DynSolValue::Tuple(vec![
            DynSolValue::Int(alloy_primitives::I256::MINUS_ONE, 8),
            DynSolValue::Bool(true),
        ]);
        let values = [
            DynSolValue::String("a, uint256 7".into()),
            DynSolValue::Array(vec![pair.clone(), pair]),
        ];
        let input = call("say(string words, (int8,bool)[] pairs)", &values);
        let shown = calls.decode(&input).unwrap();
        assert_eq!(
            shown.function,
            r#"say(string "a, uint256 7", (int8,bool)[] [(-1, true), (-1, true)])"#
        );
        assert_eq!(shown.args[0].data, "a, uint256 7");
    }

    #[test]
    fn add_abi__should_read_what_compilers_and_tools_write() {
        let list = r#"[{"type":"constructor","inputs":[],"stateMutability":"nonpayable"},
            {"type":"event","name":"Said","inputs":[],"anonymous":false},
            {"type":"function","name":"say","inputs":[{"name":"a","type":"uint8"}],"outputs":[],"stateMutability":"view"}]"#;
        let artifacts = [
            list.to_owned(),
            // Foundry
            format!(
                r#"{{"abi":{list},"bytecode":{{"object":"0x","linkReferences":{{}}}},"id":3}}"#
            ),
            // Hardhat
            format!(
                r#"{{"_format":"hh-sol-artifact-1","contractName":"\u0041","abi":{list},"bytecode":"0x60","linkReferences":{{}}}}"#
            ),
        ];
        let input = call(
            "say(uint8 a)",
            &[DynSolValue::Uint(alloy_primitives::U256::from(7), 8)],
        );
        for artifact in artifacts {
            let mut own = AbiTable::default();
            own.add_abi(&artifact).unwrap();
            let shown = own.decode(&input).unwrap();
            assert_eq!(shown.function, "say(uint8 7)", "{artifact}");
        }
    }

    #[test]
    fn add_abi__should_refuse_what_teaches_nothing() {
        let mut own = AbiTable::default();
        let event = r#"[{"type":"event","name":"Said","inputs":[],"anonymous":false}]"#;
        for (text, problem) in [
            ("", "is not a contract's ABI"),
            ("{}", "is not a contract's ABI"),
            (r#"{"bytecode":"0x"}"#, "is not a contract's ABI"),
            (
                r#"[{"type":"function","name":"a b","inputs":[]}]"#,
                "is not a contract's ABI",
            ),
            ("[]", "without functions"),
            (event, "without functions"),
        ] {
            let refusal = own.add_abi(text).unwrap_err();
            assert!(refusal.message().contains(problem), "{text}: {refusal:?}");
        }
        assert_eq!(own, AbiTable::default());
    }

    #[test]
    fn under__should_show_the_names_of_ones_own_where_selectors_meet() {
        let mut own = AbiTable::default();
        own.add_abi(
            r#"[{"type":"function","name":"burn","inputs":[{"name":"shares","type":"uint256"}],"outputs":[],"stateMutability":"nonpayable"}]"#,
        )
        .unwrap();
        let input = call(
            "burn(uint256 amount)",
            &[DynSolValue::Uint(alloy_primitives::U256::ONE, 256)],
        );
        let calls = AbiTable::built_in().overridden_by(&own);
        assert_eq!(calls.decode(&input).unwrap().args[0].name, "shares");
        let input = call("deposit()", &[]);
        assert!(calls.decode(&input).is_some());
    }

    proptest! {
        #[test]
        fn decode__should_never_panic(which in 0..COMMON.len(), rest: Vec<u8>) {
            let selector = Function::parse(COMMON[which]).unwrap().selector();
            let _ = AbiTable::built_in().decode(&[selector.as_slice(), &rest].concat());
        }
    }
}
