//! Messages: what is signed for TON Connect's signData and ton_proof, and for safeSign.
//!
//! A wallet's order is signed by the hash of its cell, whose serialization begins with two
//! descriptor bytes that are never both 0xff. What is signed here is a hash of bytes that begin
//! with 0xffff, or that of a cell that begins with a prefix of its own, so it is no wallet's order.

use sha2::{Digest as _, Sha256};
use tycho_types::{
    cell::{Cell, CellBuilder, CellFamily as _, Store as _},
    error::Error,
};

use super::{
    address::TonAddress,
    cells::{self, store_bytes},
};
use crate::fault::Fault;

/// What no serialized cell begins with.
const NO_CELL: [u8; 2] = [0xff, 0xff];
/// TON Connect, signData of text and binary.
const SIGN_DATA: &[u8] = b"ton-connect/sign-data/";
/// TON Connect, signData of a cell.
const SIGN_DATA_CELL: u32 = 0x7556_9022;
/// TON Connect, ton_proof.
const PROOF: &[u8] = b"ton-connect";
const PROOF_ITEM: &[u8] = b"ton-proof-item-v2/";
/// `safeSign` of @ton/core.
const SAFE_SIGN: &[u8] = b"ton-safe-sign-magic";

/// Bytes of a domain: so many fit in one cell with the byte that ends them.
const DOMAIN_BYTES: usize = 126;

/// A message and the form in which it is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TonMessageForm {
    /// signData of a text.
    Text(String),
    /// signData of bytes.
    Binary(Vec<u8>),
    /// signData of a cell. Contracts can read it.
    Cell {
        /// The TL-B schema of the cell.
        schema: String,
        /// The cell, as a bag of cells.
        cell: Vec<u8>,
    },
    /// ton_proof.
    Proof {
        /// What the application wants signed, mostly a nonce.
        payload: String,
    },
    /// `safeSign` of @ton/core: the hash of a cell. Contracts can read it.
    SafeSign {
        /// The cell, as a bag of cells.
        cell: Vec<u8>,
    },
}

impl TonMessageForm {
    /// Whether it is signed for a domain, and with a time.
    pub fn has_domain(&self) -> bool {
        !matches!(self, TonMessageForm::SafeSign { .. })
    }

    /// What is signed: 32 bytes. `at` is the domain and the time (Unix seconds), where the form
    /// has them.
    pub(super) fn digest(
        &self,
        from: &TonAddress,
        at: Option<(&str, u64)>,
    ) -> Result<[u8; 32], Fault> {
        match (self, at) {
            (TonMessageForm::Text(text), Some(at)) => sign_data(from, at, b"txt", text.as_bytes()),
            (TonMessageForm::Binary(bytes), Some(at)) => sign_data(from, at, b"bin", bytes),
            (TonMessageForm::Cell { schema, cell }, Some(at)) => {
                let payload = cells::read(cell).map_err(Fault::bug)?;
                sign_data_cell(from, at, schema, payload).map_err(Fault::bug)
            }
            (TonMessageForm::Proof { payload }, Some(at)) => proof(from, at, payload),
            (TonMessageForm::SafeSign { cell }, None) => {
                let cell = cells::read(cell).map_err(Fault::bug)?;
                Ok(sha256(&[&NO_CELL, SAFE_SIGN, cell.repr_hash().as_slice()]))
            }
            _ => Err(Fault::bug("unexpected or missing domain")),
        }
    }
}

/// Checks a domain as TON Connect has them: a host name, perhaps with a port.
pub(super) fn is_domain(text: &str) -> bool {
    (1..=DOMAIN_BYTES).contains(&text.len())
        && text.split('.').all(|label| !label.is_empty())
        && !text.contains(|char: char| {
            char.is_whitespace() || char.is_control() || ['/', '\\', '?', '#', '@'].contains(&char)
        })
}

fn sign_data(
    from: &TonAddress,
    (domain, timestamp): (&str, u64),
    kind: &[u8],
    payload: &[u8],
) -> Result<[u8; 32], Fault> {
    Ok(sha256(&[
        &NO_CELL,
        SIGN_DATA,
        &i32::from(from.workchain).to_be_bytes(),
        &from.account,
        &length(domain.as_bytes())?.to_be_bytes(),
        domain.as_bytes(),
        &timestamp.to_be_bytes(),
        kind,
        &length(payload)?.to_be_bytes(),
        payload,
    ]))
}

fn sign_data_cell(
    from: &TonAddress,
    (domain, timestamp): (&str, u64),
    schema: &str,
    payload: Cell,
) -> Result<[u8; 32], Error> {
    // TEP-81: the labels from the last to the first, a zero byte after each.
    let mut name = Vec::new();
    for label in domain.split('.').rev() {
        name.extend_from_slice(label.as_bytes());
        name.push(0);
    }
    let mut domain = CellBuilder::new();
    store_bytes(&mut domain, &name)?;
    let mut builder = CellBuilder::new();
    builder.store_u32(SIGN_DATA_CELL)?;
    builder.store_u32(crc32(schema.as_bytes()))?;
    builder.store_u64(timestamp)?;
    from.std().store_into(&mut builder, Cell::empty_context())?;
    builder.store_reference(domain.build()?)?;
    builder.store_reference(payload)?;
    Ok(builder.build()?.repr_hash().0)
}

fn proof(
    from: &TonAddress,
    (domain, timestamp): (&str, u64),
    payload: &str,
) -> Result<[u8; 32], Fault> {
    // Numbers of the item are little-endian, but for the workchain.
    let item = sha256(&[
        PROOF_ITEM,
        &i32::from(from.workchain).to_be_bytes(),
        &from.account,
        &length(domain.as_bytes())?.to_le_bytes(),
        domain.as_bytes(),
        &timestamp.to_le_bytes(),
        payload.as_bytes(),
    ]);
    Ok(sha256(&[&NO_CELL, PROOF, &item]))
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

fn length(bytes: &[u8]) -> Result<u32, Fault> {
    u32::try_from(bytes.len()).map_err(Fault::bug)
}

/// CRC-32 (IEEE 802.3), by which TON Connect names a schema.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| match crc & 1 {
            0 => crc >> 1,
            _ => (crc >> 1) ^ 0xedb8_8320,
        })
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn crc32__should_be_that_of_ethernet() {
        // The check value of the CRC catalogue.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn domain__should_be_a_host_name() {
        for good in [
            "example.com",
            "localhost:3000",
            "a.b.ton",
            &"d".repeat(126),
            "bücher.ton",
        ] {
            assert!(is_domain(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "a..b",
            ".a",
            "a.",
            "https://a.b",
            "a.b/c",
            "a b",
            "a\u{0}b",
            "a\n",
            "me@a.b",
            "a?b",
            "a#b",
            &"d".repeat(127),
        ] {
            assert!(!is_domain(bad), "{bad}");
        }
    }

    #[test]
    fn digest__should_differ_in_every_part() {
        let from = |account| TonAddress {
            workchain: 0,
            account: [account; 32],
            bounce: false,
        };
        let cell = cells::write(Cell::empty_cell_ref());
        let mut other = CellBuilder::new();
        other.store_bit_one().unwrap();
        let other = cells::write(other.build().unwrap().as_ref());
        let schema = |schema: &str| TonMessageForm::Cell {
            schema: schema.into(),
            cell: cell.clone(),
        };
        let payload = |payload: &str| TonMessageForm::Proof {
            payload: payload.into(),
        };
        let mut seen = std::collections::BTreeSet::new();
        let mut count = 0;
        for form in [
            TonMessageForm::Text("a".into()),
            TonMessageForm::Text("b".into()),
            TonMessageForm::Binary(b"a".to_vec()),
            schema("a"),
            schema("b"),
            TonMessageForm::Cell {
                schema: "a".into(),
                cell: other.clone(),
            },
            payload("a"),
            payload("b"),
        ] {
            for account in [1, 2] {
                for at in [("a.b", 0), ("a.b", 1), ("b.a", 0), ("a.b1", 0)] {
                    seen.insert(form.digest(&from(account), Some(at)).unwrap());
                    count += 1;
                }
            }
            assert!(form.digest(&from(1), None).is_err());
        }
        for cell in [cell.clone(), other] {
            let form = TonMessageForm::SafeSign { cell };
            seen.insert(form.digest(&from(1), None).unwrap());
            count += 1;
            assert!(form.digest(&from(1), Some(("a.b", 0))).is_err());
        }
        assert_eq!(seen.len(), count);
    }
}
