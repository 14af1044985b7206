//! Boxes, base words and changes to encode.

use bytes::Bytes;
use driftless_codec::{
    BaseWords, CanonicalBox, CodecError, LogChanges, LogExpected, LogSection, LogSectionPlan,
    LogSectionStart, LogView, StepKnowledge,
};
use driftless_numerics::StepClass;
use driftless_types::{Digest, Dtype, ParamId, Version};

pub(crate) const PARAM: ParamId = ParamId(7);
pub(crate) const BASE: Version = Version(6);
pub(crate) const VERSION: Version = Version(7);

/// The start of a section of `n` elements in one row.
pub(crate) fn start(n: u64) -> LogSectionStart {
    LogSectionStart {
        param: PARAM,
        dtype: Dtype::Bf16,
        area: CanonicalBox::whole(&[n]).expect("a row"),
        base: Some(BASE),
        version: VERSION,
        base_digest: Digest([1, 2, 3, 4]),
        new_digest: Digest([5, 6, 7, 8]),
    }
}

/// What is compared with it.
pub(crate) fn parse(n: u64, bytes: &[u8]) -> Result<LogSection, CodecError> {
    let expected =
        LogExpected { param: PARAM, shape: &[n], dtype: Dtype::Bf16, base: Some(BASE), version: VERSION };
    LogSection::parse(&mut Bytes::copy_from_slice(bytes), &expected)
}

pub(crate) fn parse_any(bytes: &[u8]) -> Result<LogSection, CodecError> {
    LogSection::parse_any(&mut Bytes::copy_from_slice(bytes))
}

/// Some elements with old and new bits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed {
    pub(crate) positions: Vec<u32>,
    pub(crate) old: Vec<u16>,
    pub(crate) new: Vec<u16>,
}

impl Changed {
    pub(crate) fn of(changes: impl IntoIterator<Item = (u32, u16, u16)>) -> Self {
        let mut out = Self::default();
        for (position, old, new) in changes {
            out.positions.push(position);
            out.old.push(old);
            out.new.push(new);
        }
        out
    }

    pub(crate) fn classes(&self) -> Vec<StepClass> {
        self.old.iter().zip(&self.new).map(|(&old, &new)| StepClass::between(old, new)).collect()
    }

    /// The word of the base at a position: that of the change there.
    pub(crate) fn base(&self, position: u32) -> u16 {
        self.old[self.index(position)]
    }

    pub(crate) fn new_at(&self, position: u32) -> u16 {
        self.new[self.index(position)]
    }

    pub(crate) fn index(&self, position: u32) -> usize {
        self.positions.binary_search(&position).expect("only words of changes are asked for")
    }

    pub(crate) fn encode(&self, n: u64, knowledge: StepKnowledge<'_>) -> Vec<u8> {
        let start = start(n);
        let changes = LogChanges::Sparse { positions: &self.positions, values: &self.new, knowledge };
        let plan = LogSectionPlan::new(&start, changes);
        let mut out = Vec::new();
        plan.write(&mut out);
        assert_eq!(out.len() as u64, plan.bytes(), "the size is exact before anything is written");
        out
    }

    pub(crate) fn congruence(&self, n: u64) -> Vec<u8> {
        self.encode(n, StepKnowledge::Classes(&self.classes()))
    }
}

/// Positions and new bits of a sparse section, decoded against these words.
pub(crate) fn decode(
    section: &LogSection,
    words: BaseWords,
    word_at: &dyn Fn(u32) -> u16,
) -> Result<(Vec<u32>, Vec<u16>), CodecError> {
    match section.view() {
        LogView::Sparse(blocks) => {
            let decoded = blocks.decode_all(words, word_at)?;
            assert_eq!(blocks.positions()?, decoded.0, "positions do not wait for values");
            Ok(decoded)
        }
        LogView::All(words) => {
            let values = words.iter().map(|&word| u16::from_le_bytes(word)).collect();
            Ok(((0..).take(words.len()).collect(), values))
        }
    }
}

/// A generator that needs no crate: the same seed gives the same numbers everywhere.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly in (0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}
