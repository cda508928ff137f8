//! Bags of cells (BoC): read within bounds, written in one form.

use std::collections::BTreeSet;

use tycho_types::{
    boc::{
        Boc,
        de::{BocHeader as Reader, Options},
        ser::BocHeader as Writer,
    },
    cell::{Cell, CellBuilder, CellType, DynCell, HashBytes},
    error::Error,
};

/// The most bytes of an external message (the node's default `ext_msg_limits`), so of anything
/// that goes into one.
const MOST_BYTES: usize = 65_535;
/// The deepest that an external message may be (the same limits: depth must be below 512).
const MOST_DEPTH: u16 = 511;
/// The most cells of a message (the network's default `max_msg_cells`).
pub(super) const MOST_CELLS: usize = 8192;

/// Why bytes are not a bag of cells that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BocError {
    /// Not one, damaged, or followed by something.
    #[error("must be one whole bag of cells (BoC) with one root")]
    Form,
    /// More than a message can be.
    #[error("is too large for a message: at most 65535 bytes, 8192 cells, 511 levels")]
    Size,
    /// Cells that do not belong into a message.
    #[error(
        "has exotic cells that a message cannot contain: only library references and whole Merkle proofs below the root are allowed"
    )]
    Exotic,
}

/// Reads a bag of cells with one root.
///
/// The root is an ordinary cell. Below it library references and Merkle proofs may stand (code
/// and airdrop claims have them), but nothing is cut out of what is not a proof: a pruned branch
/// outside of one would have a signature cover cells that nobody has seen.
///
/// # Errors
/// See [`BocError`].
pub fn read(bytes: &[u8]) -> Result<Cell, BocError> {
    if bytes.len() > MOST_BYTES {
        return Err(BocError::Size);
    }
    // The library does not look at what follows.
    if let Some((_, shorter)) = bytes.split_last()
        && Reader::decode(shorter, &Options::exact(1)).is_ok()
    {
        return Err(BocError::Form);
    }
    let root = Boc::decode(bytes).map_err(|_| BocError::Form)?;
    check(root.as_ref())?;
    Ok(root)
}

/// Checks bounds and kinds of cells.
fn check(root: &DynCell) -> Result<(), BocError> {
    if root.repr_depth() > MOST_DEPTH {
        return Err(BocError::Size);
    }
    if root.is_exotic() || root.level() != 0 {
        return Err(BocError::Exotic);
    }
    let mut seen: BTreeSet<&HashBytes> = BTreeSet::new();
    let mut todo = vec![root];
    while let Some(cell) = todo.pop() {
        if !seen.insert(cell.repr_hash()) {
            continue;
        }
        if seen.len() > MOST_CELLS {
            return Err(BocError::Size);
        }
        match cell.cell_type() {
            // The level of the root is 0, so every pruned branch is in a proof.
            CellType::Ordinary
            | CellType::LibraryReference
            | CellType::MerkleProof
            | CellType::PrunedBranch => {}
            CellType::MerkleUpdate => return Err(BocError::Exotic),
        }
        todo.extend(cell.references());
    }
    Ok(())
}

/// The one form in which cells are written here: one root, CRC-32C, neither index nor hashes.
pub(super) fn write(root: &DynCell) -> Vec<u8> {
    let writer: Writer<'_> = Writer::with_root(root);
    let mut bytes = Vec::new();
    writer
        .with_crc(true)
        .without_hashes(true)
        .encode(&mut bytes);
    bytes
}

/// A text that continues in the next cell when one is full ("snake", TEP-64), behind what is in
/// `start` already.
pub(super) fn snake_cell(mut start: CellBuilder, text: &[u8]) -> Result<Cell, Error> {
    const BYTES: usize = 127;
    let room = usize::from(start.spare_capacity_bits() / 8);
    let (first, rest) = text.split_at(room.min(text.len()));
    let mut next: Option<Cell> = None;
    for part in rest.chunks(BYTES).rev() {
        let mut builder = CellBuilder::new();
        store_bytes(&mut builder, part)?;
        if let Some(next) = next {
            builder.store_reference(next)?;
        }
        next = Some(builder.build()?);
    }
    store_bytes(&mut start, first)?;
    if let Some(next) = next {
        start.store_reference(next)?;
    }
    start.build()
}

pub(super) fn store_bytes(builder: &mut CellBuilder, bytes: &[u8]) -> Result<(), Error> {
    let bits = u16::try_from(bytes.len().saturating_mul(8)).map_err(|_| Error::CellOverflow)?;
    builder.store_raw(bytes, bits)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use proptest::prelude::*;
    use tycho_types::cell::{CellFamily as _, LevelMask};

    use super::*;

    fn cell(data: u32, references: &[&Cell]) -> Cell {
        let mut builder = CellBuilder::new();
        builder.store_u32(data).unwrap();
        for reference in references {
            builder.store_reference((*reference).clone()).unwrap();
        }
        builder.build().unwrap()
    }

    /// `levels` cells, each above the other.
    fn chain(levels: u16) -> Cell {
        (1..levels).fold(Cell::default(), |below, level| {
            cell(level.into(), &[&below])
        })
    }

    fn exotic(data: &[u8], references: &[&Cell]) -> Cell {
        let mut builder = CellBuilder::new();
        builder.set_exotic(true);
        store_bytes(&mut builder, data).unwrap();
        for reference in references {
            builder.store_reference((*reference).clone()).unwrap();
        }
        builder.build().unwrap()
    }

    /// The branch in place of a cell.
    fn pruned(cell: &Cell) -> Cell {
        let mut data = vec![
            CellType::PrunedBranch.to_byte(),
            LevelMask::new(1).to_byte(),
        ];
        data.extend(cell.repr_hash().0);
        data.extend(cell.repr_depth().to_be_bytes());
        exotic(&data, &[])
    }

    fn proof(of: &Cell) -> Cell {
        let mut data = vec![CellType::MerkleProof.to_byte()];
        data.extend(of.hash(0).0);
        data.extend(of.depth(0).to_be_bytes());
        exotic(&data, &[of])
    }

    #[test]
    fn cells__should_come_back_and_be_written_in_one_form() {
        let root = cell(1, &[&cell(2, &[]), &cell(3, &[&cell(2, &[])])]);
        let bytes = write(root.as_ref());
        assert_eq!(read(&bytes).unwrap(), root);
        assert_eq!(write(read(&bytes).unwrap().as_ref()), bytes);
        // Another writer's form.
        let plain = Boc::encode(&root);
        assert_ne!(plain, bytes);
        assert_eq!(write(read(&plain).unwrap().as_ref()), bytes);
    }

    #[test]
    fn cells__should_be_whole_and_alone() {
        let bytes = write(chain(5).as_ref());
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]).unwrap_err(), BocError::Form);
        }
        for more in 1..6 {
            let longer = [bytes.as_slice(), &vec![0; more]].concat();
            assert_eq!(read(&longer).unwrap_err(), BocError::Form);
        }
        for place in 0..bytes.len() {
            let mut other = bytes.clone();
            other[place] ^= 1;
            assert!(read(&other).is_err(), "{place}");
        }
        let mut two = Writer::<'_, std::hash::RandomState>::with_root(Cell::empty_cell_ref());
        let second = chain(2);
        two.add_root(second.as_ref());
        let mut bytes = Vec::new();
        two.encode(&mut bytes);
        assert_eq!(read(&bytes).unwrap_err(), BocError::Form);
    }

    #[test]
    fn cells__should_stay_within_bounds() {
        assert!(read(&write(chain(MOST_DEPTH + 1).as_ref())).is_ok());
        let deep = write(chain(MOST_DEPTH + 2).as_ref());
        assert_eq!(read(&deep).unwrap_err(), BocError::Size);
        assert_eq!(read(&vec![0; MOST_BYTES + 1]).unwrap_err(), BocError::Size);
        // As deep as a header can say, in few bytes.
        let abyss = write(chain(15_000).as_ref());
        assert_eq!(read(&abyss).unwrap_err(), BocError::Size);
        // 4^500 ways to walk, 500 cells.
        let mut wide = Cell::default();
        for level in 0..500 {
            wide = cell(level, &[&wide, &wide, &wide, &wide]);
        }
        assert_eq!(read(&write(wide.as_ref())).unwrap(), wide);
    }

    #[test]
    fn cells__should_be_special_only_in_proofs_and_libraries() {
        let library = CellBuilder::build_library(&HashBytes([7; 32]));
        let hidden = cell(1, &[]);
        let cut = cell(2, &[&pruned(&hidden)]);
        let whole = proof(&cut);
        for good in [cell(0, &[&library]), cell(0, &[&whole])] {
            assert_eq!(read(&write(good.as_ref())).unwrap(), good);
        }
        let mut update = vec![CellType::MerkleUpdate.to_byte()];
        for _ in 0..2 {
            update.extend(hidden.repr_hash().0);
        }
        update.extend([0; 4]);
        let update = exotic(&update, &[&hidden, &hidden]);
        for bad in [
            library,
            whole.clone(),
            pruned(&hidden),
            cut.clone(),
            cell(0, &[&cut]),
            cell(0, &[&whole, &cut]),
            cell(0, &[&update]),
        ] {
            assert_eq!(read(&write(bad.as_ref())).unwrap_err(), BocError::Exotic);
        }
    }

    proptest! {
        #[test]
        fn snake__should_hold_the_text(text: Vec<u8>, before in 0..=4_u16, times in 1..6_usize) {
            let text = text.repeat(times);
            let mut builder = CellBuilder::new();
            builder.store_zeros(before * 8).unwrap();
            let mut next = Some(snake_cell(builder, &text).unwrap());
            let (mut skip, mut back) = (usize::from(before), Vec::<u8>::new());
            while let Some(cell) = next {
                prop_assert_eq!(cell.bit_len() % 8, 0);
                back.extend(&cell.data()[skip..]);
                skip = 0;
                next = cell.reference_cloned(0);
            }
            prop_assert_eq!(back, text);
        }

        #[test]
        fn cells__should_never_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
            let _ = read(&[&[0xb5, 0xee, 0x9c, 0x72], bytes.as_slice()].concat());
        }

        #[test]
        fn cells__should_never_panic_on_damage(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            // Without a checksum, so that damage is seen by what reads the cells.
            let mut bytes = Boc::encode(cell(9, &[&chain(4), &proof(&cell(2, &[&pruned(&chain(2))]))]));
            for (place, change) in changes {
                let place = place.index(bytes.len());
                bytes[place] ^= change;
            }
            let _ = read(&bytes);
        }
    }
}
