//! What says which elements of a piece may have changed.

use crate::cpu::kernels::{BLOCK_ELEMENTS, Kernels, Mask, Prefetch, Stepped};
use crate::fit::Part;
use crate::{Bitset, ChangeSource, DeviceError, PieceDiff, PieceRule};
use driftless_numerics::{Rule, StepClass};

/// [`ChangeSource`] on the host.
pub(super) enum HostSource<'a> {
    Inversion { master: &'a [f32], exp_avg: &'a [f32], exp_avg_sq: &'a [f32], rules: &'a [PieceRule] },
    Snapshot { master: &'a [f32], previous: &'a mut [u16], diffs: &'a [PieceDiff] },
    PreCopy { master: &'a [f32], model: &'a [u16], diffs: &'a [PieceDiff] },
    InStep { master: &'a [f32], changed: &'a Bitset, diffs: &'a [PieceDiff] },
}

impl<'a> HostSource<'a> {
    pub(super) fn of(source: ChangeSource<'a>) -> Result<Self, DeviceError> {
        Ok(match source {
            ChangeSource::Inversion { master, exp_avg, exp_avg_sq, rules } => Self::Inversion {
                master: master.on_host()?,
                exp_avg: exp_avg.on_host()?,
                exp_avg_sq: exp_avg_sq.on_host()?,
                rules,
            },
            ChangeSource::Snapshot { master, previous, diffs } => {
                Self::Snapshot { master: master.on_host()?, previous: previous.on_host()?, diffs }
            }
            ChangeSource::PreCopy { master, model, diffs } => {
                Self::PreCopy { master: master.on_host()?, model: model.on_host()?, diffs }
            }
            ChangeSource::InStep { master, changed, diffs } => {
                Self::InStep { master: master.on_host()?, changed: changed.on_host()?, diffs }
            }
        })
    }
}

/// The judge of one piece. Slices hold the elements of the piece alone.
pub(super) enum Judge<'a> {
    Rule {
        rule: &'a Rule,
        exp_avg: &'a [f32],
        exp_avg_sq: &'a [f32],
    },
    /// By comparison with older bits, which are brought up to date.
    Update {
        previous: &'a mut [u16],
    },
    /// By comparison with older bits, which are somebody else's.
    Compare {
        previous: &'a [u16],
    },
    /// By bits that were written in the step, from `first` on.
    Marked {
        changed: &'a Bitset,
        first: usize,
    },
    /// Nobody: the piece goes whole, and older bits are brought up to date.
    Replace {
        previous: &'a mut [u16],
    },
    /// Nobody: the piece goes whole.
    Whole,
    /// Nobody: nothing was touched.
    Nothing,
}

/// What a judge found in a block.
#[derive(Default)]
pub(super) struct Verdict {
    pub(super) mask: Mask,
    pub(super) exceeded: Option<f32>,
}

impl<'a> Judge<'a> {
    /// The masters of the whole tensor, and what judges its piece number `index`.
    pub(super) fn of(source: &'a mut HostSource<'_>, index: usize, part: &Part<'_>) -> (&'a [f32], Self) {
        let range = part.source.clone();
        match source {
            HostSource::Inversion { master, exp_avg, exp_avg_sq, rules } => {
                let judge = match &rules[index] {
                    PieceRule::Rule(rule) => {
                        // A rule that reads no second moment is content with anything.
                        let (first, second): (&[f32], &[f32]) = (exp_avg, exp_avg_sq);
                        let second = if second.is_empty() { first } else { second };
                        Self::Rule { rule, exp_avg: &first[range.clone()], exp_avg_sq: &second[range] }
                    }
                    PieceRule::Dense => Self::Whole,
                    PieceRule::Untouched => Self::Nothing,
                };
                (master, judge)
            }
            HostSource::Snapshot { master, previous, diffs } => match diffs[index] {
                PieceDiff::Compare => (master, Self::Update { previous: &mut previous[range] }),
                PieceDiff::Dense => (master, Self::Replace { previous: &mut previous[range] }),
            },
            HostSource::PreCopy { master, model, diffs } => match diffs[index] {
                PieceDiff::Compare => (master, Self::Compare { previous: &model[range] }),
                PieceDiff::Dense => (master, Self::Whole),
            },
            HostSource::InStep { master, changed, diffs } => match diffs[index] {
                PieceDiff::Compare => (master, Self::Marked { changed, first: range.start }),
                PieceDiff::Dense => (master, Self::Whole),
            },
        }
    }

    /// Whether the cast has to ask for the masters of the next block.
    pub(super) const fn prefetch(&self) -> Prefetch {
        if matches!(self, Self::Rule { .. }) { Prefetch::Elsewhere } else { Prefetch::Here }
    }

    /// Whether the piece is sent whole.
    pub(super) const fn goes_whole(&self) -> bool {
        matches!(self, Self::Whole | Self::Replace { .. })
    }

    /// Judges the elements from `start` on, whose new bits are `bits`.
    pub(super) fn block(&mut self, kernels: &Kernels, start: usize, x: &[f32], bits: &[u16]) -> Verdict {
        let range = start..start + x.len();
        let mut verdict = Verdict::default();
        match self {
            Self::Rule { rule, exp_avg, exp_avg_sq } => {
                let (m, v) = (&exp_avg[range.clone()], &exp_avg_sq[range]);
                let block = Stepped { master: x, exp_avg: m, exp_avg_sq: v };
                if !(kernels.invert)(rule, block, &mut verdict.mask) {
                    verdict.exceeded = worst_update(rule, m, v);
                }
            }
            Self::Update { previous } => {
                (kernels.compare)(bits, &mut previous[range], &mut verdict.mask);
            }
            Self::Compare { previous } => {
                (kernels.differ)(bits, &previous[range], &mut verdict.mask);
            }
            Self::Marked { changed, first } => {
                changed.copy_bits(*first + start, x.len(), &mut verdict.mask);
            }
            Self::Replace { previous } => previous[range].copy_from_slice(bits),
            Self::Whole | Self::Nothing => {}
        }
        verdict
    }

    /// The bits before the step of the `len` elements from `start` on, where they are known: to be asked before the
    /// block is judged.
    pub(super) fn old_bits(&self, start: usize, len: usize) -> Option<[u16; BLOCK_ELEMENTS]> {
        let known: &[u16] = match self {
            Self::Update { previous } => previous,
            Self::Compare { previous } => previous,
            _ => return None,
        };
        let mut old = [0; BLOCK_ELEMENTS];
        old[..len].copy_from_slice(&known[start..start + len]);
        Some(old)
    }

    /// How far element number `k` of the piece has moved at most; it is `x` now, served as `new`.
    pub(super) fn class(&self, k: usize, x: f32, old: Option<u16>, new: u16) -> StepClass {
        match (self, old) {
            (Self::Rule { rule, exp_avg, exp_avg_sq }, _) => rule.step_class(x, exp_avg[k], exp_avg_sq[k]),
            (_, Some(old)) => StepClass::between(old, new),
            _ => StepClass::Far,
        }
    }
}

/// The largest update beyond the bound; a slow path, for a gate that fails.
#[cold]
fn worst_update(rule: &Rule, m: &[f32], v: &[f32]) -> Option<f32> {
    let updates = m.iter().zip(v).filter(|&(&m, &v)| !rule.update_within_bound(m, v));
    updates.map(|(&m, &v)| rule.update(m, v).abs()).reduce(f32::max)
}
