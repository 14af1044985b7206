//! Round-1 records: 32 bytes, and nothing believed before it was checked.

use bytes::Bytes;
use driftless_codec::{CodecId, FragmentRecord, RECORD_BYTES, Section, SectionStart, encode_section};
use driftless_types::{ChangeSet, Digest, Dtype, Version};

const DIGEST: Digest = Digest([1, 2, 3, 4]);

fn changes() -> ChangeSet {
    ChangeSet::Sparse { positions: vec![1, 2], values: vec![3, 4] }
}

fn record() -> FragmentRecord {
    FragmentRecord::announcing(Dtype::Bf16, 100, &changes(), DIGEST)
}

#[test]
fn a_record_is_these_bytes() {
    let mut wanted = vec![1, 0, 0, 0, 2, 0, 0, 0, 112, 0, 0, 0, 0, 0, 0, 0];
    wanted.extend([1_u32, 2, 3, 4].map(u32::to_le_bytes).concat());
    assert_eq!(record().encode()[..], wanted);
    assert_eq!(FragmentRecord::decode(&record().encode()), Ok(record()));
}

#[test]
fn unknown_codes_are_refused() {
    let refusals = [
        (0, "the codec code is 3, which this version of the format does not define"),
        (1, "the record flags code is 3, which this version of the format does not define"),
        (2, "the reserved part of the record is not zero"),
        (3, "the reserved part of the record is not zero"),
    ];
    for (at, expected) in refusals {
        let mut bytes = record().encode();
        bytes[at] = 3;
        assert_eq!(FragmentRecord::decode(&bytes).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_vector_has_the_length_of_the_plan() {
    let records = [record(), FragmentRecord::unchanged(DIGEST)];
    let bytes: Vec<u8> = records.iter().flat_map(FragmentRecord::encode).collect();
    assert_eq!(FragmentRecord::decode_all(&bytes, 2).unwrap(), records);
    for (length, count) in [(64, 1), (64, 3), (63, 1), (63, 2), (0, 1)] {
        let error = FragmentRecord::decode_all(&bytes[..length], count).unwrap_err();
        let expected = count * RECORD_BYTES;
        assert_eq!(error.to_string(), format!("the record vector has {length} bytes, expected {expected}"));
    }
}

#[test]
fn ex4_without_bytes_there_are_no_changes() {
    assert_eq!(FragmentRecord::unchanged(DIGEST).check(Dtype::Fp32, 100), Ok(()));
    let lie = FragmentRecord { bytes: 0, ..record() };
    let error = lie.check(Dtype::Bf16, 100).unwrap_err();
    assert_eq!(error.to_string(), "the number of changes is 2, expected 0");
}

#[test]
fn ex5_the_plan_bounds_what_is_announced() {
    assert_eq!(record().check(Dtype::Bf16, 100), Ok(()));
    let refusals = [
        (
            FragmentRecord { bytes: 1 << 60, ..record() },
            "the announced size is 1152921504606846976, expected 112",
        ),
        (FragmentRecord { nnz: 101, ..record() }, "101 changes are announced for 100 elements"),
        (FragmentRecord { codec: CodecId::Dense, ..record() }, "the number of changes is 2, expected 100"),
        // Its size does not follow from counts, so the plan could not bound it.
        (
            FragmentRecord { codec: CodecId::Rice, ..record() },
            "the codec rice has no place in a section within a cluster",
        ),
    ];
    for (lie, expected) in refusals {
        assert_eq!(lie.check(Dtype::Bf16, 100).unwrap_err().to_string(), expected);
    }
    let error = record().check(Dtype::Fp32, 100).unwrap_err();
    assert_eq!(error.to_string(), "the codec block16 does not carry F32");
}

#[test]
fn ex4_a_section_is_the_one_that_was_announced() {
    let start = SectionStart {
        fragment: 0,
        dtype: Dtype::Bf16,
        n: 100,
        base: None,
        version: Version(1),
        base_digest: Digest::ZERO,
        new_digest: DIGEST,
    };
    let mut out = Vec::new();
    encode_section(&start, &changes(), &mut out);
    assert_eq!(out.len() as u64, record().bytes);
    let section = Section::parse_any(&mut Bytes::from(out)).unwrap();
    let header = section.header();
    assert_eq!(record().check_section(header), Ok(()));
    let refusals = [
        (FragmentRecord { codec: CodecId::Dense, ..record() }, "the codec is 1, expected 0"),
        (FragmentRecord { nnz: 3, ..record() }, "the number of changes is 2, expected 3"),
        (FragmentRecord { bytes: 120, ..record() }, "the size of the section is 112, expected 120"),
        (
            FragmentRecord { digest: Digest::ZERO, ..record() },
            "the new digest is 01000000020000000300000004000000, expected 00000000000000000000000000000000",
        ),
    ];
    for (other, expected) in refusals {
        assert_eq!(other.check_section(header).unwrap_err().to_string(), expected);
    }
}
