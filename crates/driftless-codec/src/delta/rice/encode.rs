//! Writing blocks: what a block takes in a mode is known from counts and one sum of quotients per list.

use super::UNIT_BYTES;
use super::bits::PlaneWriter;
use super::block::{BlockHeader, ListName, escape_position_bytes};
use super::gaps::GapCode;
use super::steps::encode;
use crate::{StepKnowledge, ValueMode};

/// The changes of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockChanges<'a> {
    /// Positions in the box, strictly rising, all in one block.
    pub(crate) positions: &'a [u32],
    /// The new bits.
    pub(crate) values: &'a [u16],
    /// What is known of how far they moved.
    pub(crate) knowledge: StepKnowledge<'a>,
    /// Binary logarithm of the block's elements.
    pub(crate) lg_block: u8,
}

/// How a block is going to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlan {
    header: BlockHeader,
    /// Its length in units of four bytes, padding included.
    pub(crate) units: u32,
}

impl BlockPlan {
    pub(crate) const fn mode(&self) -> ValueMode {
        self.header.mode
    }

    /// The smallest way among absolute values and those modes that are allowed.
    pub(crate) fn new(changes: BlockChanges<'_>, allowed: &[ValueMode]) -> Self {
        let absolute = Self::of(&Lists::new(changes, ValueMode::Absolute), changes.lg_block)
            .expect("a list of all changes fits every block");
        let plans = allowed.iter().filter_map(|&mode| Self::of(&Lists::new(changes, mode), changes.lg_block));
        // The first of the smallest: absolute values, where nothing is won by the others.
        plans.fold(absolute, |best, plan| if plan.units < best.units { plan } else { best })
    }

    /// `None` if list B or the escapes hold more than a block can say.
    fn of(lists: &Lists, lg_block: u8) -> Option<Self> {
        let header = BlockHeader {
            mode: lists.mode,
            a: GapCode::of(&lists.a.positions),
            b: GapCode::of(&lists.b.positions),
            escapes: u16::try_from(lists.escapes.positions.len()).ok()?,
        };
        u16::try_from(header.b.count).ok()?;
        let units = header.bytes(lg_block).div_ceil(UNIT_BYTES);
        Some(Self { header, units: u32::try_from(units).expect("a block has at most 2^20 elements") })
    }

    /// Appends the block that was planned from these changes.
    pub(crate) fn write(&self, changes: BlockChanges<'_>, out: &mut Vec<u8>) {
        let lists = Lists::new(changes, self.header.mode);
        let first = out.len();
        self.header.write(out);
        let codes = [(&lists.a, self.header.a), (&lists.b, self.header.b)];
        for ((list, code), width) in codes.into_iter().zip(self.header.value_bits()) {
            code.write(&list.positions, out);
            let mut plane = PlaneWriter::new(out);
            list.codes.iter().for_each(|&code| plane.put(code.into(), width));
            plane.finish();
        }
        write_escapes(&lists.escapes, changes.lg_block, out);
        debug_assert_eq!((out.len() - first) as u64, self.header.bytes(changes.lg_block));
        out.resize(first + 4 * usize::try_from(self.units).expect("a block fits memory"), 0);
    }
}

fn write_escapes(escapes: &List, lg_block: u8, out: &mut Vec<u8>) {
    let width = usize::try_from(escape_position_bytes(lg_block)).expect("at most 4");
    for position in &escapes.positions {
        out.extend(&position.to_le_bytes()[..width]);
    }
    for value in &escapes.codes {
        out.extend(value.to_le_bytes());
    }
}

/// Positions within a block and the codes of their values.
#[derive(Debug, Default)]
struct List {
    positions: Vec<u32>,
    codes: Vec<u16>,
}

#[derive(Debug)]
struct Lists {
    mode: ValueMode,
    a: List,
    b: List,
    escapes: List,
}

impl Lists {
    fn new(changes: BlockChanges<'_>, mode: ValueMode) -> Self {
        let mut lists = Self { mode, a: List::default(), b: List::default(), escapes: List::default() };
        let mask = (1_u32 << changes.lg_block) - 1;
        for (index, (&position, &new)) in changes.positions.iter().zip(changes.values).enumerate() {
            let coded = encode(mode, changes.knowledge, index, new);
            let list = match coded.list {
                ListName::A => &mut lists.a,
                ListName::B => &mut lists.b,
                ListName::Escapes => &mut lists.escapes,
            };
            list.positions.push(position & mask);
            list.codes.push(coded.code);
        }
        lists
    }
}
