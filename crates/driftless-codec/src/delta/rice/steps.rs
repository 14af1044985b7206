//! Values of a `rice` block: codes of new bits, and new bits from a code and the base.
//!
//! A step is the difference of two places on the line of BF16 patterns ([`driftless_numerics::bf16::key`]).

use super::block::ListName;
use crate::{StepKnowledge, ValueMode};
use driftless_numerics::StepClass;
use driftless_numerics::bf16::{key, unkey};

/// The steps that list B holds in mode sign: four bits beyond two steps.
const SIGN_B_STEPS: std::ops::RangeInclusive<u16> = 2..=17;

/// What a receiver's words are, beside what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseWords {
    /// Exactly those of the section's base version.
    Exact,
    /// Each is that of the base or that of the new version, as an interrupted apply of this very section leaves them.
    Mixed,
}

/// Where a change goes, with the code of its value there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coded {
    pub(crate) list: ListName,
    pub(crate) code: u16,
}

/// Where change `index` with these new bits goes in a block of this mode.
pub(crate) fn encode(mode: ValueMode, knowledge: StepKnowledge<'_>, index: usize, new: u16) -> Coded {
    match mode {
        ValueMode::Absolute => Coded { list: ListName::A, code: new },
        ValueMode::Congruence => congruence(knowledge.class(index), new),
        ValueMode::Sign => knowledge.old(index).map_or_else(|| escape(new), |old| sign(old, new)),
    }
}

const fn escape(new: u16) -> Coded {
    Coded { list: ListName::Escapes, code: new }
}

const fn congruence(class: StepClass, new: u16) -> Coded {
    match class {
        StepClass::Unit => Coded { list: ListName::A, code: key(new) & 3 },
        StepClass::Near => Coded { list: ListName::B, code: key(new) & 63 },
        StepClass::Far => escape(new),
    }
}

fn sign(old: u16, new: u16) -> Coded {
    let (from, to) = (key(old), key(new));
    let is_down = u16::from(to < from);
    match to.abs_diff(from) {
        1 => Coded { list: ListName::A, code: is_down },
        steps if SIGN_B_STEPS.contains(&steps) => {
            Coded { list: ListName::B, code: is_down | (steps - SIGN_B_STEPS.start()) << 1 }
        }
        _ => escape(new),
    }
}

/// The new bits of a change; `None` if no word of the base gives this code.
pub(crate) fn decode(mode: ValueMode, coded: Coded, base: impl FnOnce() -> u16) -> Option<u16> {
    let Coded { list, code } = coded;
    match (mode, list) {
        (ValueMode::Absolute, _) | (_, ListName::Escapes) => Some(code),
        (ValueMode::Congruence, ListName::A) => nearest(code, 2, base()),
        (ValueMode::Congruence, ListName::B) => nearest(code, 6, base()),
        (ValueMode::Sign, ListName::A) => stepped(code, 1, base()),
        (ValueMode::Sign, ListName::B) => stepped(code & 1, SIGN_B_STEPS.start() + (code >> 1), base()),
    }
}

/// The word with this code, modulo 2^bits, that lies nearest to the base's.
fn nearest(code: u16, bits: u32, base: u16) -> Option<u16> {
    let (modulus, half) = (1_u16 << bits, 1_u16 << (bits - 1));
    let ahead = code.wrapping_sub(key(base)) & (modulus - 1);
    if ahead == half {
        // As far up as down: no sender bounds a step so loosely.
        return None;
    }
    let place =
        if ahead < half { key(base).checked_add(ahead) } else { key(base).checked_sub(modulus - ahead) };
    place.map(unkey)
}

fn stepped(is_down: u16, steps: u16, base: u16) -> Option<u16> {
    let place = if is_down == 1 { key(base).checked_sub(steps) } else { key(base).checked_add(steps) };
    place.map(unkey)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASES: [u16; 9] = [0, 0x8000, 1, 0x3f80, 0xbf80, 0x7f7f, 0xffff, 0x7fff, 0xff80];

    /// All places within `steps` of a base that are on the line.
    fn around(base: u16, steps: i32) -> impl Iterator<Item = u16> {
        let place = i32::from(key(base));
        (place - steps..=place + steps).filter_map(|place| u16::try_from(place).ok()).map(unkey)
    }

    #[test]
    fn congruence_decodes_from_base_and_from_new() {
        for base in BASES {
            for (class, steps) in [(StepClass::Unit, 1), (StepClass::Near, 31)] {
                for new in around(base, steps) {
                    let coded = congruence(class, new);
                    assert_eq!(decode(ValueMode::Congruence, coded, || base), Some(new));
                    assert_eq!(decode(ValueMode::Congruence, coded, || new), Some(new), "applied twice");
                }
            }
        }
    }

    #[test]
    fn a_step_of_half_the_modulus_is_a_wrong_base() {
        for base in BASES {
            for (class, steps) in [(StepClass::Unit, 2_u16), (StepClass::Near, 32)] {
                let far = around(base, steps.into()).filter(|&new| key(new).abs_diff(key(base)) == steps);
                for new in far {
                    assert_eq!(decode(ValueMode::Congruence, congruence(class, new), || base), None);
                }
            }
        }
    }

    #[test]
    fn results_past_the_ends_of_the_line_are_a_wrong_base() {
        let a = |code| Coded { list: ListName::A, code };
        // The lowest place is that of 0xffff, the highest that of 0x7fff.
        assert_eq!(decode(ValueMode::Congruence, a(3), || 0xffff), None);
        assert_eq!(decode(ValueMode::Congruence, a(0), || 0x7fff), None);
        assert_eq!(decode(ValueMode::Sign, a(1), || 0xffff), None);
        assert_eq!(decode(ValueMode::Sign, a(0), || 0x7fff), None);
    }

    #[test]
    fn signs_hold_up_to_seventeen_steps() {
        for base in BASES {
            for new in around(base, 20) {
                let coded = sign(base, new);
                let steps = key(new).abs_diff(key(base));
                assert_eq!(coded.list == ListName::Escapes, steps == 0 || steps > 17, "{steps} steps");
                assert_eq!(decode(ValueMode::Sign, coded, || base), Some(new));
            }
        }
    }
}
