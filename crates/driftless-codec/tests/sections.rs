//! Sections from outside: round trips, exact bytes, and everything that is done to them on the way.

use bytes::Bytes;
use driftless_codec::{
    ALIGNMENT, CodecError, CodecId, Expected, FragmentRecord, FramedBody, FramedSection, HEADER_BYTES,
    Section, SectionStart, SectionView, dense_is_smaller, encode_block16, encode_section, encoded_bytes,
    read_header,
};
use driftless_types::{ChangeSet, Digest, Dtype, Version};
use proptest::prelude::*;

fn start(dtype: Dtype, n: u64) -> SectionStart {
    SectionStart {
        fragment: 0x0403_0201,
        dtype,
        n,
        base: Some(Version(6)),
        version: Version(7),
        base_digest: Digest([1, 2, 3, 4]),
        new_digest: Digest([5, 6, 7, 8]),
    }
}

const fn expected(dtype: Dtype, n: u64) -> Expected {
    Expected { fragment: 0x0403_0201, dtype, elements: n, version: Version(7) }
}

fn encode(dtype: Dtype, n: u64, changes: &ChangeSet) -> Vec<u8> {
    let mut out = Vec::new();
    encode_section(&start(dtype, n), changes, &mut out);
    out
}

fn parse(dtype: Dtype, n: u64, bytes: &[u8]) -> Result<Section, CodecError> {
    Section::parse(&mut Bytes::copy_from_slice(bytes), &expected(dtype, n))
}

fn parse_any(bytes: &[u8]) -> Result<Section, CodecError> {
    Section::parse_any(&mut Bytes::copy_from_slice(bytes))
}

fn sparse(changes: &[(u32, u16)]) -> ChangeSet {
    let (positions, values) = changes.iter().copied().unzip();
    ChangeSet::Sparse { positions, values }
}

#[test]
fn a_sparse_section_is_these_bytes() {
    let bytes = encode(Dtype::Bf16, 131_073, &sparse(&[(2, 0xaabb), (65_535, 0xccdd), (131_072, 0xeeff)]));
    let mut wanted = b"DFS1".to_vec();
    wanted.extend([1, 1, 0, 0, 1, 2, 3, 4, 16, 0, 0, 0]);
    wanted.extend([131_073_u64, 3, 6, 7].map(u64::to_le_bytes).concat());
    wanted.extend([1_u32, 2, 3, 4, 5, 6, 7, 8].map(u32::to_le_bytes).concat());
    wanted.extend(28_u64.to_le_bytes());
    wanted.extend([0_u32, 2, 2, 3].map(u32::to_le_bytes).concat());
    wanted.extend([2, 0, 0xff, 0xff, 0xbb, 0xaa, 0xdd, 0xcc, 0, 0, 0xff, 0xee]);
    assert_eq!(bytes[..wanted.len()], wanted);
    assert_eq!(bytes.len(), wanted.len() + 8 + 4, "a checksum, and four bytes up to a multiple of 8");
    // Of an independent implementation of xxh3-64 over the same 116 bytes.
    assert_eq!(bytes[wanted.len()..][..8], 0x1527_5333_9eb8_906d_u64.to_le_bytes());
}

#[test]
fn dense_sections_are_raw_words() {
    let bytes = encode(Dtype::Bf16, 3, &ChangeSet::All(vec![0x0201, 0x0403, 0x0605]));
    assert_eq!(bytes[4..8], [1, 0, 0, 0]);
    assert_eq!(bytes[12], 0, "lg_block");
    assert_eq!(bytes[HEADER_BYTES..][..8], [1, 2, 3, 4, 5, 6, 0, 0]);
    assert_eq!(bytes.len(), HEADER_BYTES + 8 + 8);
    let bytes = encode(Dtype::Fp32, 1, &ChangeSet::All(vec![0x0201, 0x0403]));
    assert_eq!(bytes[7], 1, "dtype");
    assert_eq!(bytes[HEADER_BYTES..][..4], [1, 2, 3, 4]);
    assert_eq!(bytes.len(), HEADER_BYTES + 4 + 8 + 4);
}

#[test]
fn nothing_changed_has_no_body() {
    let bytes = encode(Dtype::Bf16, 1 << 31, &sparse(&[]));
    assert_eq!(bytes.len(), HEADER_BYTES + 8);
    let section = parse(Dtype::Bf16, 1 << 31, &bytes).unwrap();
    assert_eq!(section.changes(), sparse(&[]));
    assert_eq!((section.header().codec, section.header().nnz), (CodecId::Block16, 0));
}

#[test]
fn empty_fragments_are_legal() {
    for changes in [ChangeSet::All(vec![]), sparse(&[])] {
        let bytes = encode(Dtype::Bf16, 0, &changes);
        assert_eq!(bytes.len(), HEADER_BYTES + 8);
        assert_eq!(parse(Dtype::Bf16, 0, &bytes).unwrap().changes(), ChangeSet::All(vec![]));
    }
}

#[test]
fn the_last_element_of_the_longest_fragment_is_reached() {
    let changes = sparse(&[(0, 1), ((1 << 31) - 1, 2)]);
    let bytes = encode(Dtype::Bf16, 1 << 31, &changes);
    assert_eq!(parse(Dtype::Bf16, 1 << 31, &bytes).unwrap().changes(), changes);
}

#[test]
fn sections_lie_back_to_back() {
    let sets = [sparse(&[(1, 1)]), ChangeSet::All(vec![7; 70_001]), sparse(&[]), sparse(&[(70_000, 9)])];
    let mut out = Vec::new();
    for changes in &sets {
        encode_section(&start(Dtype::Bf16, 70_001), changes, &mut out);
        assert!(out.len().is_multiple_of(ALIGNMENT));
    }
    let mut bytes = Bytes::from(out);
    for changes in sets {
        let section = Section::parse(&mut bytes, &expected(Dtype::Bf16, 70_001)).unwrap();
        assert_eq!(section.changes(), changes);
    }
    assert!(bytes.is_empty());
}

#[test]
fn blocks_are_found_by_number() {
    let bytes = encode(Dtype::Bf16, 200_000, &sparse(&[(65_536, 1), (65_540, 2), (196_608, 3)]));
    let section = parse(Dtype::Bf16, 200_000, &bytes).unwrap();
    let SectionView::Blocks(blocks) = section.view() else { panic!("the section is sparse") };
    assert_eq!(blocks.iter().map(|block| block.len()).collect::<Vec<_>>(), [0, 2, 0, 1]);
    let block = blocks.block(1);
    assert_eq!(block.first(), 65_536);
    assert_eq!(block.positions().zip(block.values()).collect::<Vec<_>>(), [(65_536, 1), (65_540, 2)]);
    assert!(blocks.block(2).is_empty());
}

#[test]
fn the_smaller_codec_is_known_from_counts() {
    let positions: Vec<u32> = (0..100).collect();
    let whole = ChangeSet::Sparse { positions, values: vec![1; 100] };
    assert_eq!(encoded_bytes(Dtype::Bf16, 100, &whole), (CodecId::Dense, 88 + 200 + 8));
    assert_eq!(parse(Dtype::Bf16, 100, &encode(Dtype::Bf16, 100, &whole)).unwrap().changes(), {
        ChangeSet::All(vec![1; 100])
    });
    assert_eq!(encoded_bytes(Dtype::Bf16, 101, &whole), (CodecId::Block16, 88 + 8 + 400 + 8));
    // 200 bytes dense; 8 of directory and 4 for each change.
    assert!(!dense_is_smaller(100, 0));
    assert!(!dense_is_smaller(100, 47));
    assert!(dense_is_smaller(100, 48), "at the same size dense is the simpler one");
}

#[test]
fn the_plan_is_compared_field_by_field() {
    let bytes = encode(Dtype::Bf16, 10, &sparse(&[(1, 1)]));
    let good = expected(Dtype::Bf16, 10);
    let errors = [
        Expected { fragment: 1, ..good },
        Expected { elements: 11, ..good },
        Expected { version: Version(8), ..good },
        Expected { dtype: Dtype::Fp32, ..good },
    ]
    .map(|plan| Section::parse(&mut Bytes::copy_from_slice(&bytes), &plan).unwrap_err().to_string());
    assert_eq!(
        errors,
        [
            "the fragment is 67305985, expected 1",
            "the number of elements is 10, expected 11",
            "the new version is 7, expected 8",
            "the dtype is BF16, expected F32",
        ]
    );
}

#[test]
fn an_error_takes_nothing() {
    let mut encoded = encode(Dtype::Bf16, 10, &sparse(&[(1, 1)]));
    encoded[100] ^= 1;
    let mut bytes = Bytes::from(encoded.clone());
    assert!(Section::parse_any(&mut bytes).is_err());
    assert_eq!(bytes, encoded);
}

#[test]
fn a_missing_base_is_all_ones() {
    let head = SectionStart { base: None, ..start(Dtype::Bf16, 10) };
    let mut bytes = Vec::new();
    encode_section(&head, &sparse(&[(1, 1)]), &mut bytes);
    assert_eq!(bytes[32..40], [0xff; 8]);
    assert_eq!(read_header(&bytes).unwrap().base, None);
}

#[test]
#[should_panic(expected = "rise strictly")]
fn changes_out_of_order_are_not_written() {
    encode(Dtype::Bf16, 10, &sparse(&[(3, 1), (3, 2)]));
}

#[test]
#[should_panic(expected = "lie below 10")]
fn changes_out_of_range_are_not_written() {
    encode(Dtype::Bf16, 10, &sparse(&[(10, 1)]));
}

/// Every flip of one bit and every cut of these bytes is an error, even without a plan.
fn assert_every_damage_is_found(bytes: &[u8]) {
    let mut damaged = bytes.to_vec();
    for bit in 0..8 * bytes.len() {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(parse_any(&damaged).is_err(), "bit {bit} was flipped");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    for length in 0..bytes.len() {
        assert!(parse_any(&bytes[..length]).is_err(), "cut to {length} bytes");
    }
    assert!(parse_any(&damaged).is_ok());
}

#[test]
fn every_small_section_notices_every_damage() {
    for n in 0..=5_u16 {
        for dtype in [Dtype::Bf16, Dtype::Fp32] {
            let words = (0..n).cycle().take(usize::from(n) * dtype.words()).collect();
            assert_every_damage_is_found(&encode(dtype, n.into(), &ChangeSet::All(words)));
        }
        for subset in 0..1_u32 << n {
            let changes: Vec<_> =
                (0..n.into()).filter(|bit| subset >> bit & 1 == 1).map(|bit| (bit, n)).collect();
            assert_every_damage_is_found(&encode(Dtype::Bf16, n.into(), &sparse(&changes)));
        }
    }
}

/// A fragment's length, and some changes in it. Lengths crowd around the ends of blocks.
fn fragments() -> impl Strategy<Value = (u64, ChangeSet)> {
    let n = prop_oneof![1..200_u64, 65_530..65_545_u64, 131_070..131_075_u64, Just(1 << 31)];
    n.prop_flat_map(|n| {
        let last = u32::try_from(n - 1).expect("at most 2^31 elements");
        let position = prop_oneof![0..=last, (0..=last.min(9)).prop_map(move |back| last - back)];
        let changes = prop::collection::btree_map(position, any::<u16>(), 0..60);
        changes.prop_map(move |map| (n, sparse(&map.into_iter().collect::<Vec<_>>())))
    })
}

fn dense_fragments() -> impl Strategy<Value = (Dtype, u64, ChangeSet)> {
    (prop_oneof![Just(Dtype::Bf16), Just(Dtype::Fp32)], 0..100_usize).prop_flat_map(|(dtype, n)| {
        prop::collection::vec(any::<u16>(), n * dtype.words())
            .prop_map(move |words| (dtype, n as u64, ChangeSet::All(words)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn sparse_changes_come_back((n, changes) in fragments()) {
        let bytes = encode(Dtype::Bf16, n, &changes);
        let (codec, size) = encoded_bytes(Dtype::Bf16, n, &changes);
        prop_assert_eq!(bytes.len() as u64, size);
        let section = parse(Dtype::Bf16, n, &bytes).unwrap();
        prop_assert_eq!(section.header(), &read_header(&bytes).unwrap());
        prop_assert_eq!(section.header().codec, codec);
        prop_assert_eq!(section.header().section_bytes(), size);
        match (section.changes(), changes) {
            (ChangeSet::All(all), ChangeSet::Sparse { values, .. }) => prop_assert_eq!(all, values),
            (found, changes) => prop_assert_eq!(found, changes),
        }
    }

    #[test]
    fn dense_elements_come_back((dtype, n, changes) in dense_fragments()) {
        let bytes = encode(dtype, n, &changes);
        prop_assert_eq!((CodecId::Dense, bytes.len() as u64), encoded_bytes(dtype, n, &changes));
        prop_assert_eq!(parse(dtype, n, &bytes).unwrap().changes(), changes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_damage_to_a_sparse_section_is_found((n, changes) in fragments().prop_filter(
        "a directory of 128 kB would take minutes", |(n, _)| *n < 1 << 31,
    )) {
        assert_every_damage_is_found(&encode(Dtype::Bf16, n, &changes));
    }

    #[test]
    fn every_damage_to_a_dense_section_is_found((dtype, n, changes) in dense_fragments()) {
        assert_every_damage_is_found(&encode(dtype, n, &changes));
    }
}

#[test]
fn a_body_that_was_made_elsewhere_becomes_the_same_section() {
    for (n, changes) in [(9, vec![(1, 5)]), (131_073, vec![(2, 7), (65_535, 8), (65_536, 9), (131_072, 10)])]
    {
        let changes = sparse(&changes);
        let bytes = encode(Dtype::Bf16, n, &changes);
        let framed =
            FramedSection::parse(&mut Bytes::copy_from_slice(&bytes), &expected(Dtype::Bf16, n)).unwrap();
        let FramedBody::Blocks(body) = framed.body() else { panic!("{:?}", framed.body()) };
        let nnz = framed.header().nnz;
        let mut out = Vec::new();
        encode_block16(&start(Dtype::Bf16, n), nnz, body, &mut out);
        assert_eq!(out, bytes);
        let record = FragmentRecord::block16(n, nnz, Digest([5, 6, 7, 8]));
        assert_eq!(record, FragmentRecord::announcing(Dtype::Bf16, n, &changes, Digest([5, 6, 7, 8])));
    }
}

#[test]
fn a_frame_is_not_a_section_until_its_changes_are_checked() {
    let mut body = encode(Dtype::Bf16, 9, &sparse(&[(1, 5), (3, 6)]));
    let offsets = HEADER_BYTES + 8..HEADER_BYTES + 12;
    body[offsets].copy_from_slice(&[3, 0, 1, 0]);
    let body = &body[HEADER_BYTES..HEADER_BYTES + 16];
    let mut hostile = Vec::new();
    encode_block16(&start(Dtype::Bf16, 9), 2, body, &mut hostile);
    let mut bytes = Bytes::from(hostile.clone());
    let framed = FramedSection::parse(&mut bytes, &expected(Dtype::Bf16, 9)).unwrap();
    assert!(bytes.is_empty());
    let fault = CodecError::NotRising { block: 0, found: 1, previous: 3 };
    assert_eq!(framed.check().unwrap_err(), fault);
    assert_eq!(parse(Dtype::Bf16, 9, &hostile).unwrap_err(), fault);
}
