#![allow(non_snake_case)]

use std::collections::BTreeMap;

use alloy_dyn_abi::{DynSolValue, JsonAbiExt as _};
use alloy_json_abi::Function;
use proptest::prelude::*;

use super::*;

fn at(byte: u8) -> Address {
    Address::repeat_byte(byte)
}

fn uint(number: u64) -> DynSolValue {
    DynSolValue::Uint(U256::from(number), 256)
}

fn account(byte: u8) -> DynSolValue {
    DynSolValue::Address(at(byte))
}

fn bytes(bytes: &[u8]) -> DynSolValue {
    DynSolValue::Bytes(bytes.to_vec())
}

fn list(values: Vec<DynSolValue>) -> DynSolValue {
    DynSolValue::Array(values)
}

fn tuple(values: Vec<DynSolValue>) -> DynSolValue {
    DynSolValue::Tuple(values)
}

fn call(signature: &str, values: &[DynSolValue]) -> Vec<u8> {
    let function = Function::parse(signature).unwrap();
    function.abi_encode_input(values).unwrap()
}

const TOKEN: u8 = 0x70;
const EVE: u8 = 0xee;

/// What calling the token with the data does, besides calling it: (token, amount, recipient).
fn seen(input: &[u8]) -> Vec<(Option<Address>, U256, Option<Address>)> {
    let mut effects = effects(1, at(TOKEN), U256::ZERO, input).into_iter();
    let first = effects.next().unwrap();
    assert_eq!(
        (first.token, first.to, first.amount),
        (None, Some(at(TOKEN)), U256::ZERO)
    );
    effects
        .map(|effect| (effect.token, effect.amount, effect.to))
        .collect()
}

/// A value of each type in which each number, address and flag is its own.
fn sample(function: &Function, next: &mut u8) -> Vec<DynSolValue> {
    fn of(kind: &alloy_dyn_abi::DynSolType, next: &mut u8) -> DynSolValue {
        use alloy_dyn_abi::DynSolType as Type;
        *next = next.wrapping_add(1);
        match kind {
            Type::Bool => DynSolValue::Bool(true),
            Type::Uint(bits) => DynSolValue::Uint(U256::from(*next), *bits),
            Type::Address => account(*next),
            // An address, as other chains take it.
            Type::FixedBytes(32) => DynSolValue::FixedBytes(at(*next).into_word(), 32),
            Type::FixedBytes(size) => DynSolValue::FixedBytes([*next; 32].into(), *size),
            Type::Bytes => bytes(&[]),
            Type::String => DynSolValue::String("x".into()),
            Type::Array(inner) => list(vec![of(inner, next)]),
            Type::Tuple(inner) => tuple(inner.iter().map(|kind| of(kind, next)).collect()),
            other => panic!("{other:?}"),
        }
    }
    use alloy_dyn_abi::Specifier as _;
    let inputs = function.inputs.iter();
    inputs
        .map(|input| of(&input.resolve().unwrap(), next))
        .collect()
}

#[test]
fn forms__should_be_read_as_their_signatures_say() {
    let all: Vec<_> = TOKENS.iter().chain(PERMIT2).chain(BATCHES).collect();
    assert_eq!(FORMS.len(), all.len(), "two signatures are one");
    for (signature, form) in all {
        let function = Function::parse(signature).unwrap();
        assert_eq!(function.signature(), *signature);
        assert_eq!(selector(signature).unwrap(), function.selector().0);
        let input = function
            .abi_encode_input(&sample(&function, &mut 0))
            .unwrap();
        let shown = seen(&input);
        assert!(
            shown.iter().all(|(.., to)| to.is_some()),
            "{signature}: {shown:?}"
        );
        // No form takes a word that is no address for an address, or the other way round.
        let Pays(token, to, amount) = form else {
            continue;
        };
        let mut words = Vec::new();
        flatten(&function, &mut words);
        assert_eq!(words[*to], "address", "{signature}");
        if let TokenSource::At(place) = token {
            assert_eq!(words[*place], "address", "{signature}");
        }
        match amount {
            At(place) => assert!(words[*place].starts_with("uint"), "{signature}"),
            AllIf(place) => assert_eq!(words[*place], "bool", "{signature}"),
            One | All => {}
        }
    }
}

/// The types of the words at the head of the arguments.
fn flatten(function: &Function, words: &mut Vec<String>) {
    fn add(kind: &alloy_dyn_abi::DynSolType, words: &mut Vec<String>) {
        match kind {
            alloy_dyn_abi::DynSolType::Tuple(inner) => {
                for kind in inner {
                    add(kind, words);
                }
            }
            kind => words.push(kind.to_string()),
        }
    }
    use alloy_dyn_abi::Specifier as _;
    for input in &function.inputs {
        add(&input.resolve().unwrap(), words);
    }
}

#[test]
fn allowances__should_count_as_much_as_they_allow() {
    let token = Some(at(TOKEN));
    let eve = Some(at(EVE));
    let all = DynSolValue::Uint(U256::MAX, 256);
    for signature in [
        "approve(address,uint256)",
        "increaseAllowance(address,uint256)",
        "increaseApproval(address,uint256)",
        "approveDelegation(address,uint256)",
    ] {
        let input = call(signature, &[account(EVE), all.clone()]);
        assert_eq!(seen(&input), [(token, U256::MAX, eve)], "{signature}");
    }
    let operator = |allowed| {
        let values = [account(EVE), DynSolValue::Bool(allowed)];
        call("setApprovalForAll(address,bool)", &values)
    };
    assert_eq!(seen(&operator(true)), [(token, U256::MAX, eve)]);
    assert_eq!(seen(&operator(false)), []);
    // Number 0 of a collection is one of its things.
    let zero = call("approve(address,uint256)", &[account(EVE), uint(0)]);
    assert_eq!(seen(&zero), [(token, U256::ONE, eve)]);
    let from = call(
        "transferFrom(address,address,uint256)",
        &[account(1), account(EVE), uint(7)],
    );
    assert_eq!(seen(&from), [(token, U256::from(7), eve)]);
    // In Permit2 the token is an argument.
    let permit2 = call(
        "approve(address,address,uint160,uint48)",
        &[
            account(1),
            account(EVE),
            DynSolValue::Uint(U256::from(8), 160),
            DynSolValue::Uint(U256::from(9), 48),
        ],
    );
    assert_eq!(seen(&permit2), [(Some(at(1)), U256::from(8), eve)]);
}

#[test]
fn calls__should_be_read_as_contracts_read_them() {
    let token = Some(at(TOKEN));
    let eve = Some(at(EVE));
    let approve = call("approve(address,uint256)", &[account(EVE), uint(0x0100)]);
    // More behind the end; dirt before the address; missing bytes, which are zeros.
    let longer = [approve.as_slice(), &[1, 2, 3]].concat();
    let mut dirty = approve.clone();
    dirty[4] = 7;
    for input in [longer, dirty, approve[..67].to_vec()] {
        assert_eq!(seen(&input), [(token, U256::from(0x0100), eve)]);
    }
    // Without the zeros that pad the last call.
    let batch = call("multicall(bytes[])", &[list(vec![bytes(&approve)])]);
    let unpadded = &batch[..batch.len() - 28];
    assert_eq!(seen(unpadded), seen(&batch));
    assert_eq!(seen(&batch), [(token, U256::from(0x0100), eve)]);
    // A batch that cannot be read may hold anything.
    let unread = [(token, U256::MAX, None)];
    assert_eq!(seen(&[&batch[..4], &[0xff; 64]].concat()), unread);
    // Fallbacks and unknown functions are the contract's own.
    assert_eq!(seen(&[]), []);
    assert_eq!(seen(&[1, 2, 3]), []);
    assert_eq!(seen(&[1, 2, 3, 4, 5]), []);
}

#[test]
fn batches__should_show_every_recipient_and_amount() {
    let two = || list(vec![account(1), account(2)]);
    let amounts = || list(vec![uint(3), uint(4)]);
    let one = |token: Option<u8>, amount: u64, to: u8| CallEffect {
        token: token.map(at),
        amount: U256::from(amount),
        to: Some(at(to)),
    };
    let paid = call("disperseEther(address[],uint256[])", &[two(), amounts()]);
    // One more than it passes on stays with the contract.
    assert_eq!(
        effects(1, at(9), U256::from(8), &paid),
        [one(None, 1, 9), one(None, 3, 1), one(None, 4, 2)]
    );
    let tokens = [account(TOKEN), two(), amounts()];
    assert_eq!(
        effects(
            1,
            at(9),
            U256::ZERO,
            &call("disperseToken(address,address[],uint256[])", &tokens)
        ),
        [
            one(None, 0, 9),
            one(Some(TOKEN), 3, 1),
            one(Some(TOKEN), 4, 2)
        ]
    );
    // Lists of two lengths are nothing that a contract takes.
    let odd = [two(), list(vec![uint(3)])];
    let odd = effects(
        1,
        at(9),
        U256::ZERO,
        &call("disperseEther(address[],uint256[])", &odd),
    );
    assert_eq!(odd.last().unwrap().to, None);

    // A Safe that pays its owner's gas, and who gets the refund.
    let inner = call("transfer(address,uint256)", &[account(EVE), uint(5)]);
    let mut packed = vec![0];
    packed.extend(at(TOKEN));
    packed.extend([0; 32]);
    packed.extend(U256::from(inner.len()).to_be_bytes::<32>());
    packed.extend(&inner);
    packed.extend([0]);
    packed.extend(at(6));
    packed.extend(U256::from(7).to_be_bytes::<32>());
    packed.extend([0; 32]);
    let send = call("multiSend(bytes)", &[bytes(&packed)]);
    let safe = call(
        "execTransaction(address,uint256,bytes,uint8,uint256,uint256,uint256,address,address,bytes)",
        &[
            account(8),
            uint(0),
            bytes(&send),
            DynSolValue::Uint(U256::ONE, 8),
            uint(0),
            uint(0),
            uint(1),
            account(0),
            account(EVE),
            bytes(&[1; 65]),
        ],
    );
    assert_eq!(
        effects(1, at(9), U256::ZERO, &safe),
        [
            one(None, 0, 9),
            one(None, 0, 8),
            one(None, 0, TOKEN),
            one(Some(TOKEN), 5, EVE),
            one(None, 7, 6),
            one(None, 0, EVE),
        ]
    );
    let cut = call("multiSend(bytes)", &[bytes(&packed[..90])]);
    assert_eq!(effects(1, at(9), U256::ZERO, &cut).last().unwrap().to, None);
}

/// Precompiles act for who calls them: what they may move is no matter of the value.
#[test]
fn precompiles__should_count_as_anything() {
    let number = |number: u16| Address::left_padding_from(&number.to_be_bytes());
    let anything = |chain_id, to, input: &[u8]| {
        let effects = effects(chain_id, to, U256::ONE, input);
        let all = |token| CallEffect {
            token,
            amount: U256::MAX,
            to: None,
        };
        assert_eq!(effects[0].to, Some(to));
        effects[1..] == [all(None), all(Some(SOME_TOKEN))]
    };
    let unknown = [1, 2, 3, 4];
    for (chain_id, to) in [
        (1_284, 0x0804),
        (1_284, 0x0401),
        (1, 0x0800),
        (1_776, 0x65),
        (56, 0x0800),
        (324, 0x8006),
        (1_287, 0x0802),
    ] {
        assert!(anything(chain_id, number(to), &unknown), "{chain_id} {to}");
        // One that is called with raw bytes; and a value alone.
        assert!(anything(chain_id, number(to), &[1]), "{chain_id} {to}");
        assert!(!anything(chain_id, number(to), &[]), "{chain_id} {to}");
    }
    // HyperEVM's CoreWriter, which is an account like others elsewhere.
    let core_writer = Address::repeat_byte(0x33);
    assert!(anything(999, core_writer, &unknown) && anything(998, core_writer, &unknown));
    assert!(!anything(1, core_writer, &unknown));
    // Those of Ethereum, the coin, and what takes a value.
    for (chain_id, to) in [
        (1, 0x01),
        (1, 0x11),
        (1, 0x0100),
        (1_284, 0x0802),
        (56, 0x2002),
        (137, 0x1010),
        (324, 0x800a),
        (42_161, 0x64),
    ] {
        assert!(!anything(chain_id, number(to), &unknown), "{chain_id} {to}");
    }
    // Shorter lists, and a batch in a batch that adds a proxy.
    let batch = |to: Address, input: &[u8]| {
        let values = [
            list(vec![DynSolValue::Address(to)]),
            list(vec![]),
            list(if input.is_empty() {
                vec![]
            } else {
                vec![bytes(input)]
            }),
            list(vec![]),
        ];
        call("batchSome(address[],uint256[],bytes[],uint64[])", &values)
    };
    let plain = batch(at(EVE), &[]);
    let seen = effects(1_284, BATCH, U256::ZERO, &plain);
    assert_eq!(
        seen.iter().map(|effect| effect.to).collect::<Vec<_>>(),
        [Some(BATCH), Some(at(EVE))]
    );
    assert!(!adds_proxy(1_284, BATCH, &plain));
    let add = [
        &selector("addProxy(address,uint8,uint32)").unwrap()[..],
        &[0; 96],
    ]
    .concat();
    let remove = selector("removeProxies()").unwrap();
    let mut nested = batch(PROXY, &add);
    for _ in 0..MAX_DEPTH + 2 {
        assert!(adds_proxy(1_284, BATCH, &nested));
        let effects = effects(1_284, BATCH, U256::ZERO, &nested);
        let coins = effects.iter().filter(|effect| effect.token.is_none());
        assert!(coins.into_iter().any(|effect| effect.amount == U256::MAX));
        nested = batch(BATCH, &nested);
    }
    assert!(adds_proxy(1_285, PROXY, &add) && !adds_proxy(1, PROXY, &add));
    assert!(!adds_proxy(1_284, PROXY, &remove));
}

#[test]
fn tokens_for_other_chains__should_show_no_recipient_that_is_longer_than_an_address() {
    let send = |recipient: [u8; 32]| {
        let parameters = vec![
            DynSolValue::Uint(U256::ONE, 32),
            DynSolValue::FixedBytes(recipient.into(), 32),
            uint(9),
            uint(8),
            bytes(&[]),
            bytes(&[]),
            bytes(&[]),
        ];
        let fee = tuple(vec![uint(1), uint(0)]);
        call(
            "send((uint32,bytes32,uint256,uint256,bytes,bytes,bytes),(uint256,uint256),address)",
            &[tuple(parameters), fee, account(3)],
        )
    };
    let token = Some(at(TOKEN));
    let refunded = (None, U256::ZERO, Some(at(3)));
    assert_eq!(
        seen(&send(at(EVE).into_word().0)),
        [(token, U256::from(9), Some(at(EVE))), refunded]
    );
    assert_eq!(
        seen(&send([EVE; 32])),
        [(token, U256::from(9), None), refunded]
    );
    // What another chain knows it as may be any token here.
    let values = [account(TOKEN), account(EVE), uint(7), bytes(&[])];
    let outbound = call("outboundTransfer(address,address,uint256,bytes)", &values);
    assert_eq!(
        seen(&outbound),
        [(Some(SOME_TOKEN), U256::from(7), Some(at(EVE)))]
    );
}

#[test]
fn bombs__should_take_little_and_count_as_anything() {
    // The same bytes named as many times as there is room for, again and again inside.
    let mut bomb = call("transfer(address,uint256)", &[account(1), uint(1)]);
    let mut small = Vec::new();
    for level in 0..6 {
        if level == 3 {
            small = bomb.clone();
        }
        let names = 1000_u64;
        let mut outer = selector("multicall(bytes[])").unwrap().to_vec();
        let word = |number: u64| U256::from(number).to_be_bytes::<32>();
        outer.extend(word(32));
        outer.extend(word(names));
        for _ in 0..names {
            outer.extend(word(names * 32));
        }
        outer.extend(word(bomb.len() as u64));
        outer.extend(&bomb);
        outer.resize(outer.len().next_multiple_of(32) + 4, 0);
        bomb = outer;
    }
    assert!(bomb.len() > MAX_INPUT);
    let token = Some(at(TOKEN));
    let unread = (token, U256::MAX, None);
    assert_eq!(seen(&bomb), [unread]);
    assert!(small.len() <= MAX_INPUT);
    let effects = effects(1, at(TOKEN), U256::ZERO, &small);
    assert!(effects.len() > 1000);
    assert!(effects.len() < 3 * BUDGET / CALL_COST, "{}", effects.len());
    assert!(effects.iter().any(|effect| effect.to.is_none()));
    // Too deep.
    let mut deep = call("transfer(address,uint256)", &[account(1), uint(1)]);
    for _ in 0..MAX_DEPTH - 1 {
        deep = call("multicall(bytes[])", &[list(vec![bytes(&deep)])]);
    }
    assert_eq!(seen(&deep), [(token, U256::ONE, Some(at(1)))]);
    deep = call("multicall(bytes[])", &[list(vec![bytes(&deep)])]);
    assert_eq!(seen(&deep), [unread]);
}

/// Calls in calls, and what they do.
#[derive(Clone, Debug)]
enum Tree {
    Pays(usize, u8, u64),
    Own(Vec<Tree>),
    Others(usize, Vec<(u8, u64, Tree)>),
    Unknown(Vec<u8>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        4 => (0..3_usize, any::<u8>(), any::<u64>())
            .prop_map(|(form, to, amount)| Tree::Pays(form, to, amount)),
        1 => prop::collection::vec(any::<u8>(), 0..3).prop_map(Tree::Unknown),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::Own),
            (
                0..6_usize,
                prop::collection::vec((any::<u8>(), 0..1000_u64, inner), 0..4)
            )
                .prop_map(|(form, calls)| Tree::Others(form, calls)),
        ]
    })
}

/// The data of a call, and what is done, written down on the way.
fn build(tree: &Tree, called: Address, flat: &mut Vec<CallEffect>) -> Vec<u8> {
    match tree {
        Tree::Unknown(input) => input.clone(),
        Tree::Pays(form, to, amount) => {
            flat.push(CallEffect {
                token: Some(called),
                amount: U256::from(*amount).max(U256::ONE),
                to: Some(at(*to)),
            });
            let (to, amount) = (account(*to), uint(*amount));
            match form {
                0 => call("transfer(address,uint256)", &[to, amount]),
                1 => call("approve(address,uint256)", &[to, amount]),
                _ => call(
                    "transferFrom(address,address,uint256)",
                    &[account(0), to, amount],
                ),
            }
        }
        Tree::Own(inner) => {
            let inner = inner
                .iter()
                .map(|tree| bytes(&build(tree, called, flat)))
                .collect();
            call("multicall(uint256,bytes[])", &[uint(1), list(inner)])
        }
        Tree::Others(form, inner) => {
            let pays = matches!(form, 2 | 3 | 5);
            let inner: Vec<_> = inner
                .iter()
                .map(|(to, value, tree)| {
                    let value = if pays { *value } else { 0 };
                    let mut its = Vec::new();
                    let input = build(tree, at(*to), &mut its);
                    let passed_on: U256 = its
                        .iter()
                        .filter(|effect| effect.token.is_none())
                        .map(|effect| effect.amount)
                        .sum();
                    flat.push(CallEffect {
                        token: None,
                        amount: U256::from(value).saturating_sub(passed_on),
                        to: Some(at(*to)),
                    });
                    flat.extend(its);
                    (*to, value, input)
                })
                .collect();
            let all =
                |one: fn(&(u8, u64, Vec<u8>)) -> DynSolValue| list(inner.iter().map(one).collect());
            match form {
                0 => call(
                    "aggregate((address,bytes)[])",
                    &[all(|(to, _, input)| {
                        tuple(vec![account(*to), bytes(input)])
                    })],
                ),
                1 => call(
                    "aggregate3((address,bool,bytes)[])",
                    &[all(|(to, _, input)| {
                        tuple(vec![account(*to), DynSolValue::Bool(true), bytes(input)])
                    })],
                ),
                2 => call(
                    "aggregate3Value((address,bool,uint256,bytes)[])",
                    &[all(|(to, value, input)| {
                        let allow = DynSolValue::Bool(false);
                        tuple(vec![account(*to), allow, uint(*value), bytes(input)])
                    })],
                ),
                3 => call(
                    "executeBatch(address[],uint256[],bytes[])",
                    &[
                        all(|(to, ..)| account(*to)),
                        all(|(_, value, _)| uint(*value)),
                        all(|(.., input)| bytes(input)),
                    ],
                ),
                4 => call(
                    "tryAggregate(bool,(address,bytes)[])",
                    &[
                        DynSolValue::Bool(true),
                        all(|(to, _, input)| tuple(vec![account(*to), bytes(input)])),
                    ],
                ),
                _ => {
                    let mut packed = Vec::new();
                    for (to, value, input) in &inner {
                        packed.push(0);
                        packed.extend(at(*to));
                        packed.extend(U256::from(*value).to_be_bytes::<32>());
                        packed.extend(U256::from(input.len()).to_be_bytes::<32>());
                        packed.extend(input);
                    }
                    call("multiSend(bytes)", &[bytes(&packed)])
                }
            }
        }
    }
}

type Totals = BTreeMap<(Option<Address>, Option<Address>), U256>;

fn totals(effects: &[CallEffect]) -> Totals {
    let mut totals = Totals::new();
    for effect in effects {
        *totals.entry((effect.token, effect.to)).or_default() += effect.amount;
    }
    totals
}

proptest! {
    /// However calls are nested, each recipient gets in the list what it gets in the calls.
    #[test]
    fn nesting__should_never_hide_a_spend(tree in tree(), value in 0..5000_u64) {
        let mut flat = Vec::new();
        let input = build(&tree, at(TOKEN), &mut flat);
        let passed_on: U256 = flat
            .iter()
            .filter(|effect| effect.token.is_none())
            .map(|effect| effect.amount)
            .sum();
        let value = U256::from(value);
        flat.push(CallEffect {
            token: None,
            amount: value.saturating_sub(passed_on),
            to: Some(at(TOKEN)),
        });
        let seen = effects(1, at(TOKEN), value, &input);
        prop_assert!(seen.iter().all(|effect| effect.to.is_some()));
        prop_assert_eq!(totals(&seen), totals(&flat));
    }

    #[test]
    fn calls__should_never_panic(
        form in 0..73_usize,
        mut input in prop::collection::vec(prop_oneof![Just(0_u8), Just(32), any::<u8>()], 0..2000),
    ) {
        let all: Vec<_> = TOKENS.iter().chain(PERMIT2).chain(BATCHES).collect();
        let (signature, _) = all[form % all.len()];
        let head = selector(signature).unwrap();
        input.splice(0..0, head);
        prop_assert!(!effects(1, at(1), U256::MAX, &input).is_empty());
    }
}
