//! Sections with a right checksum by somebody who means harm: what a checksum cannot find.

use bytes::Bytes;
use driftless_codec::{CodecError, HEADER_BYTES, Section, SectionStart, encode_section};
use driftless_types::{ChangeSet, Digest, Dtype, Version};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

fn encode(dtype: Dtype, n: u64, changes: &ChangeSet) -> Vec<u8> {
    let digest = Digest::ZERO;
    let version = Version(1);
    let start =
        SectionStart { fragment: 0, dtype, n, base: None, version, base_digest: digest, new_digest: digest };
    let mut out = Vec::new();
    encode_section(&start, changes, &mut out);
    out
}

/// Blocks of 2, 0 and 1 changes in 131,075 elements: the directory is at 88, the changes begin at 104.
fn victim() -> Vec<u8> {
    let changes = ChangeSet::Sparse { positions: vec![5, 9, 131_074], values: vec![1, 2, 3] };
    encode(Dtype::Bf16, 131_075, &changes)
}

const DIRECTORY: usize = HEADER_BYTES;
const BLOCKS: usize = DIRECTORY + 16;

/// Gives bytes whose header names a body of `body` bytes the checksum that belongs to them.
fn reseal(bytes: &mut [u8], body: usize) {
    let end = HEADER_BYTES + body;
    let checksum = xxh3_64(&bytes[..end]);
    bytes[end..end + 8].copy_from_slice(&checksum.to_le_bytes());
}

fn parse(bytes: &[u8]) -> Result<Section, CodecError> {
    Section::parse_any(&mut Bytes::copy_from_slice(bytes))
}

/// Why the victim is refused after these bytes were written over it.
fn refusal(at: usize, with: &[u8]) -> String {
    let mut bytes = victim();
    bytes[at..at + with.len()].copy_from_slice(with);
    reseal(&mut bytes, 28);
    parse(&bytes).expect_err("the section is not one").to_string()
}

#[test]
fn headers_are_checked_field_by_field() {
    let all_ones = [0xff; 8];
    let refusals = [
        (0, &b"DFS2"[..], "the magic bytes are [44, 46, 53, 32], expected [44, 46, 53, 31]"),
        (4, &[2], "the format version code is 2, which this version of the format does not define"),
        (5, &[2], "the codec rice has no place in a section within a cluster"),
        (5, &[3], "the codec code is 3, which this version of the format does not define"),
        (6, &[1], "the codec block16 carries absolute values, found congruence"),
        (6, &[2], "the codec block16 carries absolute values, found sign"),
        (6, &[3], "the value mode code is 3, which this version of the format does not define"),
        (7, &[1], "the codec block16 does not carry F32"),
        (7, &[2], "the dtype code is 2, which this version of the format does not define"),
        (5, &[0], "the number of changes is 3, expected 131075"),
        (12, &[20], "the binary logarithm of the block size is 20, expected 16"),
        (15, &[1], "the reserved part of the header is not zero"),
        (16, &all_ones, "the fragment has 18446744073709551615 elements, expected at most 2147483648"),
        (24, &all_ones, "18446744073709551615 changes are announced for 131075 elements"),
        (24, &[4], "the size of directory and blocks is 28, expected 32"),
        (24, &[0], "the size of directory and blocks is 28, expected 0"),
        (80, &all_ones, "the size of directory and blocks is 18446744073709551615, expected 28"),
    ];
    for (at, with, expected) in refusals {
        assert_eq!(refusal(at, with), expected);
    }
}

#[test]
fn dense_says_that_it_carries_everything() {
    let mut bytes = encode(Dtype::Bf16, 10, &ChangeSet::All(vec![0; 10]));
    bytes[24] = 9;
    reseal(&mut bytes, 20);
    assert_eq!(parse(&bytes).unwrap_err().to_string(), "the number of changes is 9, expected 10");
}

#[test]
fn directories_start_at_zero_rise_and_end_at_nnz() {
    let offset = |index: usize| DIRECTORY + 4 * index;
    assert_eq!(refusal(offset(0), &[1]), "directory offset 0 is 1, expected 0 to 0");
    assert_eq!(refusal(offset(1), &[4]), "directory offset 1 is 4, expected 0 to 3");
    assert_eq!(refusal(offset(2), &[1]), "directory offset 2 is 1, expected 2 to 3");
    assert_eq!(refusal(offset(2), &[0xff; 4]), "directory offset 2 is 4294967295, expected 2 to 3");
    assert_eq!(refusal(offset(3), &[2]), "directory offset 3 is 2, expected 3 to 3");
}

#[test]
fn a_block_has_no_more_changes_than_elements() {
    let changes = ChangeSet::Sparse { positions: (0..10).collect(), values: vec![1; 10] };
    let mut bytes = encode(Dtype::Bf16, 65_537, &changes);
    // All but one of them go to the last block, which has one element.
    bytes[DIRECTORY + 4] = 1;
    reseal(&mut bytes, 52);
    assert_eq!(parse(&bytes).unwrap_err().to_string(), "directory offset 2 is 10, expected 10 to 2");
}

#[test]
fn positions_rise_strictly_and_lie_in_their_block() {
    assert_eq!(refusal(BLOCKS + 2, &[5]), "position 5 of block 0 does not come after 5");
    assert_eq!(refusal(BLOCKS, &[10]), "position 9 of block 0 does not come after 10");
    assert_eq!(refusal(BLOCKS + 8, &[3]), "position 3 of block 2 lies outside of its 3 elements");
}

#[test]
fn padding_is_zero() {
    let mut bytes = victim();
    *bytes.last_mut().unwrap() = 1;
    assert_eq!(parse(&bytes).unwrap_err().to_string(), "the padding after the checksum is not zero");
    let mut bytes = encode(Dtype::Bf16, 3, &ChangeSet::All(vec![1, 2, 3]));
    bytes[HEADER_BYTES + 7] = 1;
    reseal(&mut bytes, 8);
    assert_eq!(parse(&bytes).unwrap_err().to_string(), "the padding of the elements is not zero");
}

#[test]
fn a_huge_section_of_few_bytes_is_cut_short() {
    let mut bytes = encode(Dtype::Bf16, 1 << 31, &ChangeSet::Sparse { positions: vec![], values: vec![] });
    bytes[5] = 0;
    bytes[12] = 0;
    bytes[24..32].copy_from_slice(&(1_u64 << 31).to_le_bytes());
    bytes[80..88].copy_from_slice(&(1_u64 << 32).to_le_bytes());
    let error = parse(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "a section is cut short: 96 bytes found, 4294967392 expected");
}

/// What was accepted is a change set, whoever made it.
fn assert_well_formed(section: &Section) {
    let header = section.header().clone();
    match section.changes() {
        ChangeSet::All(words) => {
            assert_eq!(words.len() as u64, header.n * header.dtype.words() as u64);
        }
        ChangeSet::Sparse { positions, values } => {
            assert_eq!((positions.len(), header.nnz), (values.len(), values.len() as u64));
            assert!(positions.is_sorted_by(|a, b| a < b));
            assert!(positions.iter().all(|&position| u64::from(position) < header.n));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn whatever_is_accepted_is_a_change_set(
        damage in prop::collection::vec((0..116_usize, prop_oneof![0..6_u8, any::<u8>()]), 1..4),
    ) {
        let mut bytes = victim();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        reseal(&mut bytes, 28);
        if let Ok(section) = parse(&bytes) {
            assert_well_formed(&section);
        }
    }

    #[test]
    fn no_bytes_at_all_make_a_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        known in 0..=8_usize,
    ) {
        let known = known.min(bytes.len());
        bytes[..known].copy_from_slice(&victim()[..known]);
        if let Ok(section) = parse(&bytes) {
            assert_well_formed(&section);
        }
    }
}
