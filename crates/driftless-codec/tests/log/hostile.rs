//! Sections with a right checksum by somebody who means harm.

use crate::kit::{Changed, decode, parse_any, start};
use bytes::Bytes;
use driftless_codec::{BaseWords, CodecError, LogChanges, LogSection, LogSectionPlan, StepKnowledge};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

/// After the header and a box of one axis.
const DIRECTORY: usize = 88 + 24;
/// After a directory of two blocks.
const BLOCK: usize = DIRECTORY + 12;

const fn step(i: u32) -> u16 {
    match i % 30 {
        7 => 20,
        8 => 400,
        _ => 1,
    }
}

fn changed() -> Changed {
    Changed::of((0..1200).map(|i| (50 * i, 0x3c00, 0x3c00 + step(i))))
}

/// 66,000 elements; the first block has 1,120 changes in list A, 40 in list B and 40 escapes, the second has none.
fn victim() -> Vec<u8> {
    changed().congruence(66_000)
}

fn field(bytes: &[u8], at: usize, width: usize) -> usize {
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[at..at + width]);
    usize::try_from(u64::from_le_bytes(word)).expect("a length")
}

/// Gives bytes whose header names a body, and has a box of one axis, the checksum that belongs to them.
fn reseal(bytes: &mut [u8]) {
    let end = DIRECTORY.saturating_add(field(bytes, 80, 8));
    if end.saturating_add(8) > bytes.len() {
        return;
    }
    let checksum = xxh3_64(&bytes[..end]);
    bytes[end..end + 8].copy_from_slice(&checksum.to_le_bytes());
}

fn parse_resealed(at: usize, with: &[u8]) -> Result<LogSection, CodecError> {
    let mut bytes = victim();
    bytes[at..at + with.len()].copy_from_slice(with);
    reseal(&mut bytes);
    parse_any(&bytes)
}

/// Why the victim is refused after these bytes were written over it.
fn refusal(at: usize, with: &[u8]) -> String {
    parse_resealed(at, with).expect_err("the section is not one").to_string()
}

/// Where the parts of the victim's block begin: its six planes, then positions and values of the escapes, and its end.
fn parts(bytes: &[u8]) -> [usize; 9] {
    let at = |offset: usize, width: usize| field(bytes, BLOCK + offset, width);
    let (a, ka, b, kb, ua, ub) = (at(0, 3), at(3, 1), at(4, 2), at(6, 1), at(10, 3), at(13, 3));
    let [a_low, b_low] = [(a * ka).div_ceil(8), (b * kb).div_ceil(8)];
    let escapes = 2 * at(8, 2);
    let lengths = [16, a_low, ua, (2 * a).div_ceil(8), b_low, ub, (6 * b).div_ceil(8), escapes, escapes];
    let mut start = BLOCK;
    lengths.map(|length| {
        start += length;
        start
    })
}

#[test]
fn the_victim_is_what_it_says() {
    let bytes = victim();
    assert_eq!((bytes[5], bytes[6], bytes[12]), (2, 1, 16), "rice, congruence, blocks of 2^16");
    assert_eq!([0, 4, 8].map(|at| field(&bytes, BLOCK + at, 2)), [1120, 40, 40], "A, B and escapes");
    let end = parts(&bytes)[8].next_multiple_of(4);
    assert_eq!(end, DIRECTORY + field(&bytes, 80, 8));
    assert!(parse_any(&bytes).is_ok());
}

#[test]
fn headers_are_checked_field_by_field() {
    let all_ones = [0xff; 8];
    let body = field(&victim(), 80, 8);
    let refusals = [
        (5, &[1][..], "the codec block16 carries absolute values, found congruence".to_owned()),
        (6, &[0], "block 0 is damaged: its mode is 1, expected absolute or the section's absolute".into()),
        (6, &[2], "block 0 is damaged: its mode is 1, expected absolute or the section's sign".into()),
        (7, &[1], "the codec rice does not carry F32".into()),
        (12, &[17], "the block size code is 17, which this version of the format does not define".into()),
        (13, &[1], "the reserved part of the header is not zero".into()),
        (16, &all_ones, "the fragment has 18446744073709551615 elements, expected at most 2147483648".into()),
        (24, &all_ones, "18446744073709551615 changes are announced for 66000 elements".into()),
        (24, &[0, 0], format!("the size of directory and blocks is {body}, expected 0 to 0 in units of 4")),
        (24, &[0xaf, 4], "the number of changes is 1199, expected 1200".into()),
        (32, &all_ones, "values of mode congruence need a base version, found none".into()),
        (
            80,
            &all_ones,
            "the size of directory and blocks is 18446744073709551615, expected 12 to 17179869192 in units of 4"
                .into(),
        ),
        (88, &[9], "the number of axes of a box is 9, expected at most 8".into()),
        (89, &[1], "the reserved part of the box is not zero".into()),
        (104, &[0; 8], "the box's axis 0 begins at 0 and has 0 elements, which no box can have".into()),
    ];
    for (at, with, expected) in refusals {
        assert_eq!(refusal(at, with), expected);
    }
}

#[test]
fn directories_begin_at_zero_and_end_with_the_body() {
    let units = (u32::try_from(field(&victim(), 80, 8)).unwrap() - 12) / 4;
    assert_eq!(refusal(DIRECTORY, &[1]), "directory offset 0 is 1, expected 0 to 0");
    let found = (units + 1).to_le_bytes();
    assert_eq!(
        refusal(DIRECTORY + 4, &found),
        format!("directory offset 1 is {}, expected 0 to {units}", units + 1)
    );
    let found = (units - 1).to_le_bytes();
    assert_eq!(
        refusal(DIRECTORY + 8, &found),
        format!("directory offset 2 is {}, expected {units} to {units}", units - 1)
    );
    // The rest of the first block goes to the second one.
    assert!(refusal(DIRECTORY + 4, &found).starts_with("block 0 is damaged: it has "));
    assert_eq!(refusal(DIRECTORY + 4, &[1, 0]), "block 0 is damaged: it has 4 bytes, expected 16");
}

#[test]
fn block_headers_are_checked() {
    let refused = |at: usize, with: &[u8]| {
        let text = refusal(BLOCK + at, with);
        text.strip_prefix("block 0 is damaged: ").expect("the block's fault").to_owned()
    };
    assert_eq!(refused(3, &[21]), "list A has 21 low bits, expected at most 20");
    assert_eq!(refused(6, &[255]), "list B has 255 low bits, expected at most 20");
    assert_eq!(refused(7, &[3]), "its mode is 3, expected absolute or the section's congruence");
    assert_eq!(refused(7, &[0]), "list B is not empty where values are absolute");
    assert_eq!(refused(0, &[0xff; 3]), "it has 16777295 changes, expected 1 to 65536");
    assert!(refused(0, &[1]).starts_with("it has "), "fewer in list A: the length does not follow");
    assert!(refused(10, &[0xff; 6]).starts_with("it has "), "unary planes past the end");
    assert!(refused(8, &[0xff; 2]).starts_with("it has "), "more escapes");
}

/// Why one block of 60,000 elements is refused after these bytes were written over it at an offset from one of its parts.
fn plane_refusal(part: usize, offset: isize, with: &[u8]) -> String {
    // 39 changes in list B and 33 escapes: their planes have spare bits.
    let step = |i: u32| {
        if i % 31 == 7 {
            20
        } else if i % 37 == 8 {
            400
        } else {
            1
        }
    };
    let mut bytes = Changed::of((0..1200).map(|i| (50 * i, 0x3c00, 0x3c00 + step(i)))).congruence(60_000);
    // One block less is one offset less.
    let parts = parts(&[&[0; 4], &bytes[..]].concat()).map(|at| at - 4);
    assert_eq!(parts[8] % 4, 2, "{}", parts[8]);
    let at = parts[part].checked_add_signed(offset).expect("in the block");
    bytes[at..at + with.len()].copy_from_slice(with);
    reseal(&mut bytes);
    let text = parse_any(&bytes).expect_err("the section is not one").to_string();
    text.strip_prefix("block 0 is damaged: ").expect("the block's fault").to_owned()
}

// The parts that are damaged, by their number.
const A_UNARY: usize = 1;
const A_VALUES: usize = 2;
const B_UNARY: usize = 4;
const POSITIONS: usize = 6;
const ESCAPES_END: usize = 8;

#[test]
fn planes_are_checked() {
    assert!(plane_refusal(A_UNARY, 0, &[0]).starts_with("list A has 11"), "fewer quotients");
    assert!(plane_refusal(A_VALUES, -1, &[0]).starts_with("list A has 11"), "no last quotient");
    assert!(plane_refusal(B_UNARY, 0, &[0xff]).starts_with("list B has 4"), "more quotients");
    assert_eq!(plane_refusal(POSITIONS, -1, &[0xff]), "the padding of list B is not zero");
    assert_eq!(plane_refusal(B_UNARY, -1, &[0xff]), "the padding of list B is not zero");
    assert_eq!(plane_refusal(ESCAPES_END, 0, &[1]), "the padding of the escapes is not zero");
}

#[test]
fn positions_rise_over_all_lists_and_lie_in_their_block() {
    // The first escapes are those of 8 and of 45, at 400 and 2,250.
    let second = |position: u16| plane_refusal(POSITIONS, 2, &position.to_le_bytes());
    assert_eq!(second(400), "position 400 does not come after 400");
    assert_eq!(second(399), "position 399 does not come after 400");
    assert_eq!(second(450), "position 450 does not come after 450", "it is in list A too");
    assert_eq!(second(350), "position 350 does not come after 400");
    assert_eq!(second(60_000), "position 60000 of the escapes lies outside of its 60000 elements");
    // Large low parts in a list whose last position is 59,950.
    let text = plane_refusal(A_UNARY, -16, &[0xff; 15]);
    assert!(text.contains("list A lies outside of its 60000 elements"), "{text}");
}

/// A header that promises as much as it can, and a body of a few bytes.
#[test]
fn a_bomb_takes_no_memory() {
    let n = 1 << 31;
    let changed = Changed::of((0..1000).map(|i| (2_000_000 * i, 0x3c00, 0x3c01)));
    let bytes = changed.congruence(n);
    assert_eq!(bytes[12], 20, "blocks of 2^20");
    for (nnz, body) in [(n, 8196 + 16 * 1000), (n, 8196 + 4 * u64::from(u32::MAX)), (1, 8196)] {
        let mut bomb = bytes.clone();
        bomb[24..32].copy_from_slice(&nnz.to_le_bytes());
        bomb[80..88].copy_from_slice(&body.to_le_bytes());
        reseal(&mut bomb);
        assert!(parse_any(&bomb).is_err(), "{nnz} changes in {body} bytes");
    }
    // Each block says that all of its 2^20 elements changed.
    let mut bomb = bytes;
    let block = DIRECTORY + 8196;
    bomb[block..block + 4].copy_from_slice(&[0, 0, 16, 20]);
    reseal(&mut bomb);
    let text = parse_any(&bomb).unwrap_err().to_string();
    assert_eq!(text, "block 0 is damaged: it has 20 bytes, expected 4718612");
}

#[test]
fn a_section_without_changes_has_no_body() {
    let mut bytes = victim();
    let start = start(66_000);
    let nothing = LogChanges::Sparse { positions: &[], values: &[], knowledge: StepKnowledge::Nothing };
    bytes.clear();
    LogSectionPlan::new(&start, nothing).write(&mut bytes);
    bytes[5] = 2;
    reseal(&mut bytes);
    let section = parse_any(&bytes).unwrap();
    assert_eq!(decode(&section, BaseWords::Exact, &|_| 0), Ok((vec![], vec![])));
    bytes[6] = 1;
    reseal(&mut bytes);
    assert_eq!(parse_any(&bytes).unwrap_err().to_string(), "the value mode is 1, expected 0");
}

/// What was accepted is a change set, whoever made it, and decodes or is refused on any base.
fn assert_well_formed(section: &LogSection) {
    let header = section.header().clone();
    for words in [BaseWords::Exact, BaseWords::Mixed] {
        for word in [0, 0x3c00, 0xffff] {
            let Ok((positions, values)) = decode(section, words, &|_| word) else { continue };
            assert_eq!((positions.len() as u64, values.len() as u64), (header.nnz, header.nnz));
            assert!(positions.is_sorted_by(|a, b| a < b));
            assert!(positions.iter().all(|&position| u64::from(position) < header.n));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn whatever_is_accepted_is_a_change_set(
        damage in prop::collection::vec((0..1600_usize, prop_oneof![0..6_u8, any::<u8>()]), 1..4),
        front in prop::collection::vec((0..BLOCK + 16, any::<u8>()), 0..2),
    ) {
        let mut bytes = victim();
        for (at, byte) in damage.into_iter().chain(front) {
            bytes[at] = byte;
        }
        reseal(&mut bytes);
        if let Ok(section) = parse_any(&bytes) {
            assert_well_formed(&section);
        }
    }

    #[test]
    fn no_bytes_at_all_make_a_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..400),
        known in 0..=BLOCK + 16,
    ) {
        let known = known.min(bytes.len());
        bytes[..known].copy_from_slice(&victim()[..known]);
        let _ = LogSection::front(&bytes);
        if let Ok(section) = LogSection::parse_any(&mut Bytes::from(bytes)) {
            assert_well_formed(&section);
        }
    }
}
