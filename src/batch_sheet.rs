//! The rows of a batch payment, from a file of a spreadsheet (CSV, RFC 4180): `recipient,amount,notes`. The command line
//! and the console read it the same way.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use covault_core::{
    amount::{U256, parse_u256},
    batch::{BatchPayload, BatchWireKind, MAX_RECIPIENT_NOTES},
    fault::Fault,
    field,
    networks::{
        Network,
        outflow::{Asset, ChainScope},
    },
    schema::wire,
};

/// Most rows of a file, without the heading.
pub const MAX_ROWS: usize = 254;
/// Most bytes of a file.
pub const MAX_BYTES: usize = 256 << 10;
/// Most problems that are told: a file of another kind has thousands.
const MAX_PROBLEMS: usize = 500;
/// The heading; the last column may be left out.
const COLUMNS: [&str; 3] = ["recipient", "amount", "notes"];

/// What is paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaidAsset {
    pub network: Network,
    /// On EVM.
    pub chain_id: Option<u64>,
    /// Contract (EVM) or type (Sui) of a token; `None`: the coin.
    pub token: Option<String>,
}

/// One payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SheetRow {
    /// Its number in the file, counted from 1 with the heading, as spreadsheets count.
    pub number: usize,
    /// In canonical form where it is an address, else as it stands there.
    pub recipient: String,
    /// As it stands in the file.
    pub amount: String,
    /// In the smallest unit; `None` where it is no amount.
    pub units: Option<U256>,
    /// Text, whatever a spreadsheet would make of it; may be empty.
    pub notes: String,
    /// A spreadsheet would take the notes for a formula.
    pub is_formula: bool,
    /// The first row that pays the same recipient.
    pub again: Option<usize>,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row}, {column}: {what}")]
pub struct SheetProblem {
    /// As [`SheetRow::number`].
    pub row: usize,
    /// The column's name; `file`: the row as a whole.
    pub column: &'static str,
    /// Why.
    pub what: String,
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PaymentSheet {
    pub rows: Vec<SheetRow>,
    /// All that is wrong, by rows. Nothing is paid of a file with any.
    pub problems: Vec<SheetProblem>,
}

impl PaidAsset {
    /// The asset, as amounts of it are written.
    pub fn asset(&self) -> Asset {
        Asset {
            place: ChainScope {
                network: self.network,
                chain_id: self.chain_id,
            },
            token: self.token.clone(),
        }
    }

    /// The batch kind that pays it.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] where there is none.
    pub fn kind(
        &self,
        from: &str,
        recipients: Vec<wire::BatchPaymentRecipient>,
    ) -> Result<BatchWireKind, Fault> {
        let from = from.to_owned();
        Ok(match (self.network, self.chain_id, self.token.clone()) {
            (Network::Evm, None, _) => {
                return Err(Fault::field("chainId", "is required, e.g. 1 for Ethereum"));
            }
            (Network::Evm, Some(chain_id), None) => {
                BatchWireKind::EvmBatchSendNative(wire::EvmBatchSendNative {
                    chain_id,
                    from,
                    recipients,
                })
            }
            (Network::Evm, Some(chain_id), Some(token)) => {
                BatchWireKind::EvmBatchSendErc20(wire::EvmBatchSendErc20 {
                    chain_id,
                    from,
                    token_contract_address: token,
                    recipients,
                })
            }
            (Network::Bitcoin, _, None) => {
                BatchWireKind::BtcBatchSendNative(wire::BtcBatchSendNative { from, recipients })
            }
            (Network::Sui, _, None) => {
                BatchWireKind::SuiBatchSendNative(wire::SuiBatchSendNative { from, recipients })
            }
            (Network::Sui, _, Some(coin_tag)) => {
                BatchWireKind::SuiBatchSendCoin(wire::SuiBatchSendCoin {
                    from,
                    coin_tag,
                    recipients,
                })
            }
            (Network::Bitcoin, _, Some(_)) => {
                return Err(Fault::field("token", "Bitcoin has none"));
            }
            (other, ..) => {
                let problem = format!(
                    "{} has no batch payments: use EVM, Bitcoin or Sui",
                    other.name()
                );
                return Err(Fault::field("network", problem));
            }
        })
    }
}

impl PaymentSheet {
    /// All amounts together, in the smallest unit.
    pub fn total(&self) -> U256 {
        let amounts = self.rows.iter().filter_map(|row| row.units);
        amounts.fold(U256::ZERO, U256::saturating_add)
    }

    /// The rows as the API takes them.
    pub fn recipients(&self) -> Vec<wire::BatchPaymentRecipient> {
        let rows = self.rows.iter().map(|row| wire::BatchPaymentRecipient {
            address: row.recipient.clone(),
            amount: row.units.unwrap_or_default().to_string(),
            notes: (!row.notes.is_empty()).then(|| row.notes.clone()),
        });
        rows.collect()
    }

    fn problem(&mut self, row: usize, column: &'static str, what: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(SheetProblem {
                row,
                column,
                what: what.into(),
            });
        }
    }

    fn of_file(what: &str) -> Self {
        let mut sheet = Self::default();
        sheet.problem(1, "file", what);
        sheet
    }
}

/// Reads a file whose amounts have at most so many decimals: 0 where they are in the smallest unit.
pub fn read(file: &[u8], of: &PaidAsset, decimals: usize) -> PaymentSheet {
    if file.len() > MAX_BYTES {
        return PaymentSheet::of_file("is larger than 256 KiB");
    }
    let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
    let Ok(text) = str::from_utf8(file) else {
        return PaymentSheet::of_file("is not UTF-8: save it as CSV in UTF-8");
    };
    let heading = text.lines().next().unwrap_or_default();
    let separator = if heading.contains(';') { ';' } else { ',' };
    let mut records = match records(text, separator) {
        Ok(records) => records,
        Err(row) => {
            let mut sheet = PaymentSheet::default();
            let what =
                "a quotation mark is not closed, or stands in a cell that has none around it";
            sheet.problem(row, "file", what);
            return sheet;
        }
    };
    records.retain(|(_, cells)| cells.iter().any(|cell| !cell.trim().is_empty()));
    let mut records = records.into_iter();
    let names = records.next().map(|(_, cells)| cells).unwrap_or_default();
    let names = names.iter().map(|name| name.trim().to_lowercase());
    let names: Vec<_> = names.collect();
    let [with_notes, without] = [&COLUMNS[..], &COLUMNS[..2]];
    if names != with_notes && names != without {
        return PaymentSheet::of_file("must begin with the heading recipient,amount,notes");
    }
    let mut sheet = PaymentSheet::default();
    let mut seen = HashMap::new();
    for (number, cells) in records {
        if sheet.rows.len() >= MAX_ROWS {
            sheet.problem(
                number,
                "file",
                format!("a batch pays {MAX_ROWS} rows at most: put the rest into another batch"),
            );
            break;
        }
        if cells.len() > names.len() {
            let what = format!("has {} cells, and the heading {}", cells.len(), names.len());
            sheet.problem(number, "file", what);
        }
        let row = row(&mut sheet, number, &cells, of, decimals);
        if separator == ';' && may_be_thousands(&row.amount) {
            let what = format!(
                "{} may be {} with a point between thousands, or have decimals: write it without the point, or with other \
                 than three digits behind it",
                row.amount,
                row.amount.replace('.', "")
            );
            sheet.problem(number, "amount", what);
        }
        let again = seen.get(&row.recipient).copied();
        seen.entry(row.recipient.clone()).or_insert(number);
        sheet.rows.push(SheetRow { again, ..row });
    }
    if sheet.rows.is_empty() {
        sheet.problem(1, "file", "has no rows below its heading");
    }
    sheet
}

/// Refuses the rows that pay an address, which is in canonical form.
pub fn refuse_recipient(sheet: &mut PaymentSheet, address: &str, why: &str) {
    let rows = sheet.rows.iter().filter(|row| row.recipient == address);
    let numbers: Vec<_> = rows.map(|row| row.number).collect();
    for number in numbers {
        sheet.problem(number, "recipient", why);
    }
}

/// Checks the rows as the service does: what depends on all of them, and on the wallet that pays.
///
/// # Errors
/// The problem by row and column where it is one of a row; else [`covault_core::fault::Class::Invalid`] naming the field.
pub fn check(sheet: &mut PaymentSheet, kind: &BatchWireKind) -> Result<(), Fault> {
    let Err(fault) = BatchPayload::parse(kind) else {
        return Ok(());
    };
    let of_row = fault.path().and_then(|path| {
        let (_, rest) = path.split_once("recipients[")?;
        let (index, field) = rest.split_once("].")?;
        let column = match field {
            "address" => "recipient",
            "amount" => "amount",
            _ => "notes",
        };
        let row = sheet.rows.get(index.parse::<usize>().ok()?)?;
        Some((row.number, column, fault.problem().to_owned()))
    });
    match of_row {
        Some((row, column, what)) => {
            sheet.problem(row, column, what);
            Ok(())
        }
        None => Err(fault),
    }
}

fn row(
    sheet: &mut PaymentSheet,
    number: usize,
    cells: &[String],
    of: &PaidAsset,
    decimals: usize,
) -> SheetRow {
    let cell = |place: usize| cells.get(place).map_or("", |cell| cell.trim());
    let (given, amount, notes) = (cell(0), cell(1), cell(2));
    let recipient = match of.network.rules().parse_address(given) {
        _ if given.is_empty() => {
            sheet.problem(number, "recipient", "is empty");
            given.to_owned()
        }
        Ok(address) => address,
        Err(fault) => {
            sheet.problem(number, "recipient", fault.message());
            given.to_owned()
        }
    };
    let units = match units(amount, decimals) {
        Ok(units) => Some(units),
        Err(what) => {
            sheet.problem(number, "amount", what);
            None
        }
    };
    if let Err(fault) = field::notes("notes", notes, MAX_RECIPIENT_NOTES) {
        let what = fault.message().trim_start_matches("notes: ");
        sheet.problem(number, "notes", what);
    }
    SheetRow {
        number,
        recipient,
        amount: amount.to_owned(),
        units,
        is_formula: is_formula(notes),
        notes: notes.to_owned(),
        again: None,
    }
}

/// Whether a point in an amount may separate thousands. Spreadsheets that write semicolons between cells do so, mostly, where
/// it is written in this way.
fn may_be_thousands(amount: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    amount.split_once('.').is_some_and(|(whole, rest)| {
        let is_group = (1..=3).contains(&whole.len()) && !whole.starts_with('0');
        is_group && rest.len() == 3 && digits(whole) && digits(rest)
    })
}

/// Whether a spreadsheet takes a text for a formula, or what follows blanks and quotation marks in it.
pub fn is_formula(text: &str) -> bool {
    // Some spreadsheets take the wide forms of these for the same.
    let begin = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];
    text.trim_start_matches([' ', '\u{a0}', '"'])
        .starts_with(begin)
}

/// An amount in the smallest unit.
fn units(text: &str, decimals: usize) -> Result<U256, String> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(rest) || text.ends_with('.') {
        return Err(match text.contains(',') {
            true => "has a comma: write a point before decimals, and nothing between thousands",
            false => "must be a number such as 1200 or 0.5: digits, and a point before decimals",
        }
        .to_owned());
    }
    if rest.len() > decimals {
        let has = rest.len();
        return Err(match decimals {
            0 => "must be a whole number: amounts are in the smallest unit".to_owned(),
            _ => format!("has {has} digits behind the point, and the asset has {decimals}"),
        });
    }
    let all = format!("{whole}{rest:0<decimals$}");
    let amount = match all.trim_start_matches('0') {
        "" => return Err("must be more than 0".to_owned()),
        amount => amount,
    };
    parse_u256(amount).map_err(|error| error.to_string())
}

/// The cells of each record, with its number; the number of the record that cannot be read.
fn records(text: &str, separator: char) -> Result<Vec<(usize, Vec<String>)>, usize> {
    let (mut all, mut cells, mut cell) = (Vec::new(), Vec::new(), String::new());
    // Whether a cell began with a quotation mark, and whether that is open.
    let (mut quoted, mut open) = (false, false);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let number = all.len().saturating_add(1);
        match character {
            '"' if open && characters.peek() == Some(&'"') => {
                characters.next();
                cell.push('"');
            }
            '"' if open => open = false,
            _ if open => cell.push(character),
            '"' if cell.is_empty() && !quoted => (quoted, open) = (true, true),
            '"' => return Err(number),
            '\r' if characters.peek() == Some(&'\n') => {}
            '\n' => {
                cells.push(std::mem::take(&mut cell));
                all.push((number, std::mem::take(&mut cells)));
                quoted = false;
            }
            _ if character == separator => {
                cells.push(std::mem::take(&mut cell));
                quoted = false;
            }
            _ if quoted => return Err(number),
            _ => cell.push(character),
        }
    }
    let number = all.len().saturating_add(1);
    if open {
        return Err(number);
    }
    if !cell.is_empty() || !cells.is_empty() || quoted {
        cells.push(cell);
        all.push((number, cells));
    }
    Ok(all)
}
