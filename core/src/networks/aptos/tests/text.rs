//! Addresses, types and coins in text.

use sui_sdk_types::{Identifier, StructTag, TypeTag};

use super::*;

#[test]
fn address__should_have_all_digits_or_be_special() {
    let long = format!("0x{}", "0".repeat(63) + "a");
    let parse = |text: &str| APTOS.parse_address(text);
    assert_eq!(parse("0xa").unwrap(), long);
    assert_eq!(parse("0xA").unwrap(), long);
    assert_eq!(parse(&format!("0x{}a", "0".repeat(59))).unwrap(), long);
    assert_eq!(
        parse(&BOB.to_uppercase().replacen("0X", "0x", 1)).unwrap(),
        BOB
    );
    for text in [
        "",
        "0x",
        "a",
        "0X1",
        "0x0a",
        "0x10",
        "0xg",
        &BOB[2..],
        &BOB[..61],
        &format!("{BOB}0"),
        &format!(" {BOB}"),
        "0x742d35Cc6634C0532925a3b844Bc454e4438f44e",
        &format!("0x{}", "\u{e9}".repeat(30)),
    ] {
        refused(parse(text), "must be an Aptos address");
    }
    assert!(APTOS.address(&[0; 31]).is_err());
    // Of small order.
    assert!(APTOS.address(&[0; 32]).is_err());
}

#[test]
fn types__should_have_the_numbers_that_aptos_gives_them() {
    // third_party/move/move-core/types/src/language_storage.rs of aptos-core.
    let numbered = [
        "bool",
        "u8",
        "u64",
        "u128",
        "address",
        "signer",
        "vector<u8>",
        "0x1::a::B",
        "u16",
        "u32",
        "u256",
    ];
    for (number, text) in numbered.into_iter().enumerate() {
        let tag = parse_type(text).unwrap();
        let bytes = bcs::to_bytes(&tag).unwrap();
        assert_eq!(usize::from(bytes[0]), number, "{text}");
        assert_eq!(bcs::from_bytes::<TypeTag>(&bytes).unwrap(), tag);
    }
    let bytes = bcs::to_bytes(&parse_type("0x1::a::B<u8>").unwrap()).unwrap();
    let address = [[0; 31].as_slice(), &[1]].concat();
    let expected = [&[7], address.as_slice(), &[1, b'a', 1, b'B', 1, 1]].concat();
    assert_eq!(bytes, expected);
    // Function types, and the signed integers after them.
    for number in 11..=17 {
        assert!(bcs::from_bytes::<TypeTag>(&[number]).is_err());
    }
}

#[test]
fn types__should_be_read_as_aptos_reads_them() {
    let nested = |levels: usize| "vector<".repeat(levels) + "u8" + &">".repeat(levels);
    for text in [
        "u256",
        "0x1::a::B<u8,bool , vector<0x02::c::D>>",
        &nested(8),
    ] {
        parse_type(text).unwrap();
    }
    let long = format!("0x1::a::B<{}u8>", "u8,".repeat(2000));
    for text in [
        "",
        "i64",
        "U8",
        "u8 ",
        "T0",
        "&signer",
        "0x1::a",
        "a::b::C",
        "0x1::a::B<>",
        "0x1::a::B<u8",
        "0x1::$a::B",
        &nested(9),
        &long,
    ] {
        assert!(parse_type(text).is_err(), "{text}");
    }
    let short = APTOS.parse_token("0x1::aptos_coin::AptosCoin").unwrap();
    assert_eq!(
        short,
        format!("0x{}1::aptos_coin::AptosCoin", "0".repeat(63))
    );
    assert_eq!(APTOS.parse_token(&short).unwrap(), short);
    assert_eq!(APTOS.parse_token("0xa").unwrap(), special_address("a"));
    for (text, problem) in [
        ("", "must be an Aptos address"),
        ("u64", "must be an Aptos address"),
        ("0x1::aptos_coin", "must be a coin type"),
        ("0x1::aptos_coin::AptosCoin<", "must be a coin type"),
        ("vector<0x1::a::B>", "must be a coin type"),
        ("0xzz::a::B", "must be a coin type"),
    ] {
        refused(APTOS.parse_token(text), problem);
    }
}

#[test]
fn coins__should_count_as_the_fungible_assets_that_they_are() {
    let counted = |text: &str| counted_as(&APTOS.parse_token(text).unwrap());
    // LayerZero's coins, with the metadata that mainnet has paired with them.
    let layer_zero = |name: &str| counted(&USDC.replace("USDC", name)).unwrap();
    for (name, metadata) in [
        (
            "USDC",
            "0x2b3be0a97a73c87ff62cbdd36837a9fb5bbd1d7f06a73b7ed62ec15c5326c1b8",
        ),
        (
            "USDT",
            "0xe568e9322107a5c9ba4cbd05a630a5586aa73e744ada246c3efb0f4ce3e295f3",
        ),
        (
            "WETH",
            "0xae02f68520afd221a5cd6fda6f5500afedab8d0a2e19a916d6d8bc2b36e758db",
        ),
    ] {
        assert_eq!(layer_zero(name), metadata);
    }
    assert_eq!(counted("0x1::aptos_coin::AptosCoin"), None);
    assert_eq!(counted("0xa"), None);
    assert_eq!(counted(&special_address("a")), None);
    assert_eq!(counted(BOB).as_deref(), Some(BOB));
    // Named as the chain names types: "0x5::a::B<0x1::c::D, vector<u8>>".
    let name = b"0x5::a::B<0x1::c::D, vector<u8>>";
    let hash = Sha3_256::digest([[0; 31].as_slice(), &[0xa], name, &[0xfe]].concat());
    let generic = counted("0x05::a::B<0x01::c::D,vector<u8>>").unwrap();
    assert_eq!(generic, format!("0x{}", hex::encode(hash)));
    assert!(counted("0x1::aptos_coin::AptosCoin<u8>").is_some());
}

proptest! {
    #[test]
    fn parsers__should_never_panic(text in "(0x)?[0-9a-fA-F]{0,70}(::[a-z<>,: _0-9T]{0,30}){0,3}|.{0,80}") {
        if let Ok(address) = APTOS.parse_address(&text) {
            prop_assert_eq!(APTOS.parse_address(&address).unwrap(), address);
        }
        if let Ok(token) = APTOS.parse_token(&text) {
            prop_assert_eq!(APTOS.parse_token(&token).unwrap(), token);
        }
        let _ = parse_type(&text);
    }

    #[test]
    fn types__should_be_read_as_they_are_printed(tag in type_tag()) {
        prop_assert_eq!(parse_type(&tag.to_string()).unwrap(), tag.clone());
        if let TypeTag::Struct(tag) = tag {
            let coin = AptosCoin::Type(*tag);
            prop_assert_eq!(AptosCoin::parse(&coin.to_string()).unwrap(), coin);
        }
    }
}

pub fn address() -> impl Strategy<Value = Address> {
    prop_oneof![
        any::<[u8; 32]>(),
        (0..16u8).prop_map(|number| {
            let mut bytes = [0; 32];
            bytes[31] = number;
            bytes
        })
    ]
    .prop_map(Address::new)
}

pub fn identifier() -> impl Strategy<Value = Identifier> {
    "[a-zA-Z][a-zA-Z0-9_]{0,12}|_[a-zA-Z0-9_]{1,12}".prop_map(|name| Identifier::new(name).unwrap())
}

pub fn type_tag() -> impl Strategy<Value = TypeTag> {
    let leaf = prop::sample::select(vec![
        TypeTag::Bool,
        TypeTag::U8,
        TypeTag::U16,
        TypeTag::U32,
        TypeTag::U64,
        TypeTag::U128,
        TypeTag::U256,
        TypeTag::Address,
        TypeTag::Signer,
    ]);
    leaf.prop_recursive(4, 12, 3, |inner| {
        let params = prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            inner.prop_map(|tag| TypeTag::Vector(Box::new(tag))),
            (address(), identifier(), identifier(), params).prop_map(
                |(address, module, name, params)| {
                    StructTag::new(address, module, name, params).into()
                }
            ),
        ]
    })
}

#[test]
fn parse_token__should_take_only_types_whose_canonical_form_it_takes() {
    let long = |count: usize| format!("0x1::a::B<{}>", vec!["0x1::a::B"; count].join(","));
    let canonical = NetworkRules::parse_token(&Aptos, &long(20)).unwrap();
    assert_eq!(NetworkRules::parse_token(&Aptos, &canonical), Ok(canonical));
    // Short enough as it is, and not with addresses in full.
    assert!(long(100).len() < 4096);
    assert!(NetworkRules::parse_token(&Aptos, &long(100)).is_err());
}
