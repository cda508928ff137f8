#![allow(non_snake_case)]

use proptest::prelude::*;

use super::*;

const A: &str = "0x00000000000000000000000000000000000000A1";
const B: &str = "0x00000000000000000000000000000000000000b2";
const C: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";

fn ether() -> PaidAsset {
    PaidAsset {
        network: Network::Evm,
        chain_id: Some(1),
        token: None,
    }
}

/// With A, B and C in the place of letters.
fn sheet(file: &str, decimals: usize) -> PaymentSheet {
    let file = file.replace("{a}", A).replace("{b}", B).replace("{c}", C);
    read(file.as_bytes(), &ether(), decimals)
}

fn good(file: &str, decimals: usize) -> Vec<(String, String, String)> {
    let sheet = sheet(file, decimals);
    assert_eq!(sheet.problems, [], "{file:?}");
    let rows = sheet.recipients().into_iter();
    rows.map(|row| (row.address, row.amount, row.notes.unwrap_or_default()))
        .collect()
}

fn told(sheet: &PaymentSheet) -> String {
    let problems = sheet.problems.iter().map(ToString::to_string);
    problems.collect::<Vec<_>>().join("\n")
}

#[test]
fn read__should_take_what_spreadsheets_write() {
    let row = |recipient: &str, amount: &str, notes: &str| {
        let parsed = Network::Evm.rules().parse_address(recipient).unwrap();
        (parsed, amount.to_owned(), notes.to_owned())
    };
    let two = [row(A, "1200", "rent"), row(B, "7", "")];
    for file in [
        "recipient,amount,notes\n{a},1200,rent\n{b},7,\n",
        "recipient,amount,notes\r\n{a},1200,rent\r\n{b},7,\r\n",
        "\u{feff}recipient;amount;notes\r\n{a};1200;rent\r\n{b};7",
        "Recipient, Amount, Notes\n {a} , 1200 ,rent\n\n,,\n\"{b}\",\"7\"\n",
    ] {
        assert_eq!(good(file, 0), two, "{file:?}");
    }
    let decimal = good("recipient,amount\n{a},0.5\n{b},12\n", 6);
    assert_eq!(decimal, [row(A, "500000", ""), row(B, "12000000", "")]);
    let file = "recipient,amount,notes\n{a},1,\"=HYPERLINK(\"\"x\"\", 1)\"\n";
    assert_eq!(good(file, 0), [row(A, "1", "=HYPERLINK(\"x\", 1)")]);
    assert!(sheet(file, 0).rows[0].is_formula);
    let lines = good(
        "recipient;amount;notes\n{a};1;\"two\nlines, one; cell\"\n",
        0,
    );
    assert_eq!(lines[0].2, "two\nlines, one; cell");
}

#[test]
fn read__should_refuse_what_may_be_thousands_in_a_file_with_semicolons() {
    let semicolons = |amount: &str| told(&sheet(&format!("recipient;amount\n{{a}};{amount}"), 6));
    for amount in ["1.200", "12.000", "999.999"] {
        let whole = amount.replace('.', "");
        let said = semicolons(amount);
        let expected = format!("row 2, amount: {amount} may be {whole} with a point");
        assert!(said.starts_with(&expected), "{said}");
        let commas = sheet(&format!("recipient,amount\n{{a}},{amount}"), 6);
        assert_eq!(told(&commas), "");
    }
    for amount in ["1200", "1.2", "1.20", "1.2000", "0.125", "1234.567"] {
        assert_eq!(semicolons(amount), "", "{amount}");
    }
    assert!(semicolons("1.200.000").contains("must be a number"));
}

#[test]
fn read__should_mark_who_is_paid_twice_however_the_address_is_written() {
    let lower = C.to_lowercase();
    let again = sheet(
        &format!("recipient,amount\n{{c}},1\n{{b}},1\n{lower},2\n"),
        0,
    );
    let marks: Vec<_> = again.rows.iter().map(|row| row.again).collect();
    assert_eq!(marks, [None, None, Some(2)]);
    assert_eq!(again.total(), U256::from(4));
}

#[test]
fn read__should_name_row_and_column_of_all_that_is_wrong() {
    let rows = |rows: &str| format!("recipient,amount,notes\n{rows}");
    let bad = sheet(&rows("{a},1\n,2\n{b},\n0xc,0.5\n{c},0.0\n{a},5,x"), 1);
    assert_eq!(
        told(&bad)
            .lines()
            .map(|line| line.split(": ").next().unwrap())
            .collect::<Vec<_>>(),
        [
            "row 3, recipient",
            "row 4, amount",
            "row 5, recipient",
            "row 6, amount"
        ]
    );
    // The rows are there all the same, to be shown with what is wrong.
    assert_eq!(bad.rows.len(), 6);
    assert_eq!(bad.rows[5].again, Some(2));
    for amount in [
        "-1", "+1", "1e3", "1 000", "1.", ".5", "1.2.3", "0x1", "=1", "\u{661}", "",
    ] {
        let text = told(&sheet(&rows(&format!("{{a}},{amount}")), 2));
        assert!(
            text.starts_with("row 2, amount: must be a number"),
            "{amount}: {text}"
        );
    }
    let one = |row: &str, decimals: usize| told(&sheet(&rows(row), decimals));
    assert!(one("{a},\"1,5\"", 2).starts_with("row 2, amount: has a comma"));
    assert_eq!(one("{a},0.00", 2), "row 2, amount: must be more than 0");
    assert_eq!(
        one("{a},0.5", 0),
        "row 2, amount: must be a whole number: amounts are in the smallest unit"
    );
    assert_eq!(
        one("{a},0.123", 2),
        "row 2, amount: has 3 digits behind the point, and the asset has 2"
    );
    let huge = "9".repeat(78);
    assert!(one(&format!("{{a}},{huge}"), 0).starts_with("row 2, amount: "));
    assert_eq!(
        one("{a},1,2,3", 0),
        "row 2, file: has 4 cells, and the heading 3"
    );
    assert_eq!(
        one(&format!("{{a}},1,{}", "x".repeat(501)), 0),
        "row 2, notes: has more than 500 characters"
    );
    for quotes in ["{a},\"1", "{a},\"1\"2", "{a},1\"2"] {
        assert!(
            one(quotes, 0).starts_with("row 2, file: a quotation mark"),
            "{quotes}"
        );
    }
    assert!(told(&sheet("{a},1\n", 0)).contains("must begin with the heading"));
    assert!(told(&sheet("", 0)).contains("must begin with the heading"));
    assert!(one("", 0).contains("has no rows"));
    assert!(told(&read(b"recipient,amount\n\xff,1", &ether(), 0)).contains("is not UTF-8"));
    let large = vec![b'x'; MAX_BYTES + 1];
    assert!(told(&read(&large, &ether(), 0)).contains("larger than 256 KiB"));
    let many = "{a},1\n".repeat(MAX_ROWS + 1);
    assert_eq!(
        one(&many, 0),
        "row 256, file: a batch pays 254 rows at most: put the rest into another batch"
    );
    assert_eq!(one(&"{a},1\n".repeat(MAX_ROWS), 0), "");
}

#[test]
fn check__should_name_the_row_of_what_only_the_network_refuses() {
    let token = PaidAsset {
        token: Some(B.to_owned()),
        ..ether()
    };
    let file = format!("recipient,amount\n\n{A},1\n{B},2\n");
    let mut sheet = read(file.as_bytes(), &token, 0);
    assert_eq!(sheet.problems, []);
    let kind = token.kind(C, sheet.recipients()).unwrap();
    check(&mut sheet, &kind).unwrap();
    assert_eq!(
        told(&sheet),
        "row 4, recipient: must not be the token's own contract"
    );
    let kind = token
        .kind("0x12", sheet.recipients()[..1].to_vec())
        .unwrap();
    let fault = check(&mut sheet, &kind).unwrap_err();
    assert!(fault.path().unwrap().ends_with(".from"), "{fault}");
    for (asset, expected) in [
        (
            PaidAsset {
                chain_id: None,
                ..ether()
            },
            "chainId: is required",
        ),
        (
            PaidAsset {
                network: Network::Bitcoin,
                chain_id: None,
                token: Some("x".into()),
            },
            "token: Bitcoin has none",
        ),
        (
            PaidAsset {
                network: Network::Tron,
                chain_id: None,
                token: None,
            },
            "network: ",
        ),
    ] {
        let fault = asset.kind(A, Vec::new()).unwrap_err();
        assert!(fault.message().starts_with(expected), "{fault}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn read__should_never_fall_over(file in proptest::collection::vec(any::<u8>(), 0..400), decimals in 0..80_usize) {
        let mut with_heading = b"recipient,amount,notes\n".to_vec();
        with_heading.extend(&file);
        for file in [file, with_heading] {
            let sheet = read(&file, &ether(), decimals);
            prop_assert!(!sheet.rows.is_empty() || !sheet.problems.is_empty());
        }
    }

    #[test]
    fn read__should_read_what_was_written(
        rows in proptest::collection::vec((any::<[u8; 20]>(), 1..u64::MAX, "[a-zA-Z0-9 ,;\"=+@äö-]{0,20}"), 1..30),
        semicolons in any::<bool>(),
        crlf in any::<bool>(),
        decimals in 0..20_usize,
    ) {
        let (separator, end) = (if semicolons { ";" } else { "," }, if crlf { "\r\n" } else { "\n" });
        let mut file = ["recipient", "amount", "notes"].join(separator) + end;
        for (address, amount, notes) in &rows {
            let amount = crate::units::in_decimals(U256::from(*amount), decimals);
            let cells = [format!("0x{}", hex::encode(address)), amount, notes.replace('"', "\"\"")];
            let cells = cells.map(|cell| format!("\"{cell}\""));
            file += &(cells.join(separator) + end);
        }
        let sheet = read(file.as_bytes(), &ether(), decimals);
        prop_assert_eq!(&sheet.problems, &[]);
        prop_assert_eq!(sheet.rows.len(), rows.len());
        for (read, (address, amount, notes)) in sheet.rows.iter().zip(&rows) {
            prop_assert_eq!(read.recipient.to_lowercase(), format!("0x{}", hex::encode(address)));
            prop_assert_eq!(read.units, Some(U256::from(*amount)));
            prop_assert_eq!(read.notes.as_str(), notes.trim());
        }
    }
}
