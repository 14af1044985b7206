//! Sections know their part of a parameter, and are compared with the entry that names them.

use crate::kit::{BASE, Changed, PARAM, VERSION, parse_any};
use bytes::Bytes;
use driftless_codec::{
    CanonicalBox, CodecId, LogChanges, LogExpected, LogSection, LogSectionPlan, LogSectionStart, LogView,
    StepKnowledge,
};
use driftless_types::{Digest, Dtype, ParamId, Version};

fn start(base: Option<Version>) -> LogSectionStart {
    LogSectionStart {
        param: PARAM,
        dtype: Dtype::Bf16,
        area: CanonicalBox::new(&[2, 0], &[3, 50]).expect("a box"),
        base,
        version: VERSION,
        base_digest: Digest::ZERO,
        new_digest: Digest::ZERO,
    }
}

fn write(start: &LogSectionStart, changes: LogChanges<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    LogSectionPlan::new(start, changes).write(&mut out);
    out
}

fn some() -> Vec<u8> {
    let changes =
        LogChanges::Sparse { positions: &[3, 149], values: &[1, 2], knowledge: StepKnowledge::Nothing };
    write(&start(Some(BASE)), changes)
}

const EXPECTED: LogExpected<'static> =
    LogExpected { param: PARAM, shape: &[5, 50], dtype: Dtype::Bf16, base: Some(BASE), version: VERSION };

#[test]
fn a_box_follows_the_header() {
    let bytes = some();
    assert_eq!(bytes[4..16], [1, 1, 0, 0, 7, 0, 0, 0, 16, 0, 0, 0]);
    assert_eq!(bytes[16..24], 150_u64.to_le_bytes());
    let mut wanted = vec![2, 0, 0, 0, 0, 0, 0, 0];
    wanted.extend([2_u64, 0, 3, 50].map(u64::to_le_bytes).concat());
    assert_eq!(bytes[88..128], wanted);
    assert_eq!(bytes.len(), 128 + 8 + 8 + 8);
    let mut rest = Bytes::from(bytes);
    let section = LogSection::parse(&mut rest, &EXPECTED).unwrap();
    assert_eq!((section.bytes(), section.area()), (152, &start(None).area));
    assert!(rest.is_empty());
}

#[test]
fn the_entry_is_compared_field_by_field() {
    let refusals = [
        (LogExpected { param: ParamId(8), ..EXPECTED }, "the fragment is 7, expected 8"),
        (LogExpected { version: Version(8), ..EXPECTED }, "the new version is 7, expected 8"),
        (LogExpected { base: Some(Version(5)), ..EXPECTED }, "the base version is 6, expected 5"),
        (LogExpected { base: None, ..EXPECTED }, "the base version is 6, expected none"),
        (LogExpected { dtype: Dtype::Fp32, ..EXPECTED }, "the dtype is BF16, expected F32"),
        (LogExpected { shape: &[4, 50], ..EXPECTED }, "the box's axis 0 ends at 5, expected at most 4"),
        (LogExpected { shape: &[250], ..EXPECTED }, "the number of axes is 2, expected 1"),
    ];
    for (expected, why) in refusals {
        let error = LogSection::parse(&mut Bytes::from(some()), &expected).unwrap_err();
        assert_eq!(error.to_string(), why);
    }
}

#[test]
fn anchors_have_every_element() {
    let words: Vec<u16> = (0..150).collect();
    let bytes = write(&start(None), LogChanges::All(&words));
    let expected = LogExpected { base: None, ..EXPECTED };
    let section = LogSection::parse(&mut Bytes::from(bytes), &expected).unwrap();
    let LogView::All(found) = section.view() else { panic!("every element is there") };
    assert!(found.iter().map(|&word| u16::from_le_bytes(word)).eq(words));
    // The base of a sparse section is taken away.
    let mut bytes = some();
    bytes[32..40].copy_from_slice(&[0xff; 8]);
    assert_eq!(
        parse_any(&bytes).unwrap_err().to_string(),
        "the codec block16 has no place in a section without a base"
    );
}

#[test]
fn fp32_boxes_are_dense() {
    let start = LogSectionStart { dtype: Dtype::Fp32, ..start(Some(BASE)) };
    let words: Vec<u16> = (0..300).collect();
    let bytes = write(&start, LogChanges::All(&words));
    let section = parse_any(&bytes).unwrap();
    assert_eq!((section.header().codec, section.header().nnz), (CodecId::Dense, 150));
    assert!(matches!(section.view(), LogView::All(found) if found.len() == 300));
}

#[test]
fn a_set_that_names_every_element_is_dense() {
    let changed = Changed::of((0..150).map(|i| (i, 1, 2)));
    let knowledge = StepKnowledge::Old(&changed.old);
    let changes = LogChanges::Sparse { positions: &changed.positions, values: &changed.new, knowledge };
    let start = start(Some(BASE));
    let plan = LogSectionPlan::new(&start, changes);
    assert_eq!(plan.header().codec, CodecId::Dense);
    assert!(!plan.dense_is_smaller(), "it is dense already");
}

#[test]
fn the_number_of_elements_is_the_volume_of_the_box() {
    let mut bytes = some();
    bytes[88 + 8 + 16] = 4;
    assert_eq!(parse_any(&bytes).unwrap_err().to_string(), "the number of elements is 150, expected 200");
}

#[test]
fn sections_lie_back_to_back() {
    let mut out = some();
    let words = vec![9; 150];
    LogSectionPlan::new(&start(Some(BASE)), LogChanges::All(&words)).write(&mut out);
    let mut rest = Bytes::from(out);
    let codecs = [(); 2].map(|()| LogSection::parse(&mut rest, &EXPECTED).unwrap().header().codec);
    assert_eq!(codecs, [CodecId::Block16, CodecId::Dense]);
    assert!(rest.is_empty());
}
