//! Writing sections of a log: the smallest codec among those that what is known of the changes allows.

use crate::CanonicalBox;
use crate::delta::rice::{self, BlockChanges, BlockPlan};
use crate::delta::{block16, dense};
use crate::envelope::seal;
use crate::header::{
    ALIGNMENT, CHECKSUM_BYTES, CodecId, HEADER_BYTES, MAX_ELEMENTS, SectionHeader, ValueMode,
};
use driftless_numerics::StepClass;
use driftless_types::{Digest, Dtype, ParamId, Version, index_of};

/// What a section of a log says beside the changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSectionStart {
    /// The parameter.
    pub param: ParamId,
    /// The dtype in which it is served.
    pub dtype: Dtype,
    /// The writer's own box of it, at most [`MAX_ELEMENTS`] elements.
    pub area: CanonicalBox,
    /// The base version of the entry; `None` in an anchor.
    pub base: Option<Version>,
    /// The version of the entry.
    pub version: Version,
    /// Digest of the box's bits at the base, zero if not known.
    pub base_digest: Digest,
    /// Digest of the box's bits at the new version, zero if not known.
    pub new_digest: Digest,
}

/// What a writer knows of how far each change moved since exactly the base: it decides which values may be written.
///
/// After several steps, or for a base that lags, nothing is known: bounds do not add up.
#[derive(Clone, Copy, Debug)]
pub enum StepKnowledge<'a> {
    /// Nothing: absolute values.
    Nothing,
    /// A proven bound for each change: absolute values or congruence.
    Classes(&'a [StepClass]),
    /// The bits at the base of each change, and that no receiver will apply the section twice or to a mix of base and
    /// new: absolute values or signs.
    Old(&'a [u16]),
}

impl StepKnowledge<'_> {
    const fn modes(self) -> &'static [ValueMode] {
        match self {
            Self::Nothing => &[],
            Self::Classes(_) => &[ValueMode::Congruence],
            // All sparse blocks of a section share one mode beside absolute, and a sign is never longer.
            Self::Old(_) => &[ValueMode::Sign],
        }
    }

    pub(crate) fn class(self, index: usize) -> StepClass {
        match self {
            Self::Classes(classes) => classes[index],
            Self::Nothing | Self::Old(_) => StepClass::Far,
        }
    }

    pub(crate) fn old(self, index: usize) -> Option<u16> {
        match self {
            Self::Old(old) => Some(old[index]),
            Self::Nothing | Self::Classes(_) => None,
        }
    }

    fn len(self) -> Option<usize> {
        match self {
            Self::Nothing => None,
            Self::Classes(classes) => Some(classes.len()),
            Self::Old(old) => Some(old.len()),
        }
    }

    fn slice(self, from: usize, to: usize) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::Classes(classes) => Self::Classes(&classes[from..to]),
            Self::Old(old) => Self::Old(&old[from..to]),
        }
    }
}

/// The elements of a box that may differ from the base.
#[derive(Clone, Copy, Debug)]
pub enum LogChanges<'a> {
    /// Every element, in order: 16-bit words, as many per element as the dtype says.
    All(&'a [u16]),
    /// Some elements of a BF16 box.
    Sparse {
        /// Positions, row-major in the box, strictly rising.
        positions: &'a [u32],
        /// The bits at the new version.
        values: &'a [u16],
        /// How far they moved.
        knowledge: StepKnowledge<'a>,
    },
}

/// A section that is ready to be written: its codec and its exact size are known, and nothing is written yet.
#[derive(Debug)]
pub struct LogSectionPlan<'a> {
    header: SectionHeader,
    area: &'a CanonicalBox,
    body: Body<'a>,
}

#[derive(Debug)]
enum Body<'a> {
    Dense { elements: &'a [u16] },
    Block16 { positions: &'a [u32], values: &'a [u16] },
    Rice { blocks: RiceBody<'a> },
}

impl<'a> LogSectionPlan<'a> {
    /// Chooses the smallest codec: `rice` or `block16` for some elements, `dense` for all.
    ///
    /// # Panics
    /// If the changes are none of this box: as for [`crate::encoded_bytes`], as many classes or old bits as positions,
    /// and a base wherever some elements are left out.
    #[must_use]
    pub fn new(start: &'a LogSectionStart, changes: LogChanges<'a>) -> Self {
        let n = start.area.volume();
        assert!(n <= MAX_ELEMENTS, "a box of {n} elements, expected at most {MAX_ELEMENTS}");
        let (positions, values, knowledge) = match changes {
            LogChanges::All(elements) => return Self::of_all(start, n, elements),
            LogChanges::Sparse { positions, values, knowledge } => (positions, values, knowledge),
        };
        assert_eq!(start.dtype, Dtype::Bf16, "sparse changes of a box");
        assert!(start.base.is_some(), "an anchor has every element");
        assert_eq!(positions.len(), values.len(), "one value for each position");
        assert!(knowledge.len().is_none_or(|len| len == positions.len()), "one bound for each position");
        let rises = positions.is_sorted_by(|a, b| a < b);
        assert!(
            rises && positions.last().is_none_or(|&last| u64::from(last) < n),
            "positions rise below {n}"
        );
        if positions.len() as u64 == n {
            return Self::of_all(start, n, values);
        }
        Self::of_some(start, n, positions, values, knowledge)
    }

    fn of_all(start: &'a LogSectionStart, n: u64, elements: &'a [u16]) -> Self {
        assert_eq!(elements.len(), index_of(n) * start.dtype.words(), "words of a whole box");
        let header = SectionHeader {
            nnz: n,
            body_bytes: dense::body_bytes(start.dtype, n),
            ..empty_header(start, CodecId::Dense, 0)
        };
        Self { header, area: &start.area, body: Body::Dense { elements } }
    }

    fn of_some(
        start: &'a LogSectionStart,
        n: u64,
        positions: &'a [u32],
        values: &'a [u16],
        knowledge: StepKnowledge<'a>,
    ) -> Self {
        let nnz = positions.len() as u64;
        let blocks = RiceBody::new(n, positions, values, knowledge);
        let absolute = block16::body_bytes(n, nnz);
        // At the same size the one that needs no base.
        if absolute <= blocks.bytes() {
            let header = SectionHeader {
                nnz,
                body_bytes: absolute,
                ..empty_header(start, CodecId::Block16, block16::LG_BLOCK)
            };
            return Self { header, area: &start.area, body: Body::Block16 { positions, values } };
        }
        let header = SectionHeader {
            nnz,
            value_mode: blocks.mode(),
            body_bytes: blocks.bytes(),
            ..empty_header(start, CodecId::Rice, blocks.lg_block)
        };
        Self { header, area: &start.area, body: Body::Rice { blocks } }
    }

    /// The header as it will be written.
    #[must_use]
    pub const fn header(&self) -> &SectionHeader {
        &self.header
    }

    /// Exactly the bytes that [`Self::write`] appends.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        section_bytes(self.area, self.header.body_bytes)
    }

    /// Whether the box is not smaller like this than with every element. The caller then gathers them all and plans
    /// [`LogChanges::All`]: a sparse set has no values for the rest.
    #[must_use]
    pub fn dense_is_smaller(&self) -> bool {
        self.header.codec != CodecId::Dense
            && dense::body_bytes(self.header.dtype, self.header.n) <= self.header.body_bytes
    }

    /// Appends the section, zero-padded so that the next may follow.
    ///
    /// # Panics
    /// If `out` does not end at a multiple of [`ALIGNMENT`].
    pub fn write(&self, out: &mut Vec<u8>) {
        assert!(out.len().is_multiple_of(ALIGNMENT), "a section begins at a multiple of {ALIGNMENT}");
        let first = out.len();
        out.reserve(index_of(self.bytes()));
        self.header.write(out);
        self.area.write(out);
        match &self.body {
            Body::Dense { elements } => dense::write(elements, out),
            Body::Block16 { positions, values } => block16::write(self.header.n, positions, values, out),
            Body::Rice { blocks } => blocks.write(out),
        }
        seal(first, out);
        debug_assert_eq!((out.len() - first) as u64, self.bytes());
    }
}

/// Bytes of a section with this box whose directory and blocks take `body` bytes.
pub(super) const fn section_bytes(area: &CanonicalBox, body: u64) -> u64 {
    let used = HEADER_BYTES as u64 + area.bytes() as u64 + body + CHECKSUM_BYTES as u64;
    used.next_multiple_of(ALIGNMENT as u64)
}

/// A header without changes.
fn empty_header(start: &LogSectionStart, codec: CodecId, lg_block: u8) -> SectionHeader {
    SectionHeader {
        fragment: start.param.0,
        codec,
        value_mode: ValueMode::Absolute,
        dtype: start.dtype,
        lg_block,
        n: start.area.volume(),
        nnz: 0,
        base: start.base,
        version: start.version,
        base_digest: start.base_digest,
        new_digest: start.new_digest,
        body_bytes: 0,
    }
}

/// A `rice` body whose blocks are planned.
#[derive(Debug)]
struct RiceBody<'a> {
    n: u64,
    positions: &'a [u32],
    values: &'a [u16],
    knowledge: StepKnowledge<'a>,
    lg_block: u8,
    /// Those that are not empty, in order.
    plans: Vec<BlockPlan>,
}

impl<'a> RiceBody<'a> {
    fn new(n: u64, positions: &'a [u32], values: &'a [u16], knowledge: StepKnowledge<'a>) -> Self {
        let lg_block = rice::lg_block(n, positions.len() as u64);
        let mut body = Self { n, positions, values, knowledge, lg_block, plans: Vec::new() };
        body.plans = body.blocks().map(|(_, changes)| BlockPlan::new(changes, knowledge.modes())).collect();
        body
    }

    /// The blocks that are not empty, with their numbers.
    fn blocks(&self) -> impl Iterator<Item = (u32, BlockChanges<'a>)> {
        let (values, knowledge, lg_block) = (self.values, self.knowledge, self.lg_block);
        let mut from = 0;
        self.positions.chunk_by(move |a, b| a >> lg_block == b >> lg_block).map(move |positions| {
            let to = from + positions.len();
            let (values, knowledge) = (&values[from..to], knowledge.slice(from, to));
            from = to;
            (positions[0] >> lg_block, BlockChanges { positions, values, knowledge, lg_block })
        })
    }

    fn bytes(&self) -> u64 {
        if self.plans.is_empty() {
            return 0;
        }
        let units: u64 = self.plans.iter().map(|plan| u64::from(plan.units)).sum();
        rice::directory_bytes(self.n, self.lg_block) + rice::UNIT_BYTES * units
    }

    /// The one mode of its blocks beside absolute.
    fn mode(&self) -> ValueMode {
        let modes = self.plans.iter().map(BlockPlan::mode);
        modes.max().unwrap_or(ValueMode::Absolute)
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.write_directory(out);
        for ((_, changes), plan) in self.blocks().zip(&self.plans) {
            plan.write(changes, out);
        }
    }

    fn write_directory(&self, out: &mut Vec<u8>) {
        let mut planned = self.blocks().map(|(number, _)| number).zip(&self.plans).peekable();
        // At most 33 bits per change: 2^31 of them stay below 2^32 units.
        let mut end = 0_u32;
        out.extend(end.to_le_bytes());
        for block in 0..rice::block_count(self.n, self.lg_block) {
            if let Some((_, plan)) = planned.next_if(|&(number, _)| u64::from(number) == block) {
                end += plan.units;
            }
            out.extend(end.to_le_bytes());
        }
    }
}
