//! Everything, window by window: how the fragments of a pair are cut, what the sender hands over, what the receiver
//! writes. Both ends cut alike, for the cut follows from the plan and the window's size alone (EX-2).
//!
//! A window is a run of dense sections, each of some rows of a fragment. It holds no more than a window of bytes, but
//! at least a row.

use driftless_codec::{CodecId, FragmentRecord, SectionHeader, SectionStart, ValueMode, encode_section};
use driftless_layout::{Box2, Fragment, SourceRun};
use driftless_types::{ChangeSet, Digest, Version, index_of};
use std::ops::Range;

/// Rows of one fragment of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slab {
    /// The fragment's index within the pair.
    pub(crate) fragment: usize,
    /// The rows, from the fragment's first.
    pub(crate) rows: Range<u64>,
}

/// What moves at once.
pub(crate) type Window = Vec<Slab>;

/// Cuts the fragments of a pair into windows.
pub(crate) fn windows(fragments: &[Fragment], window_bytes: u64) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    let mut room = 0;
    for (index, fragment) in fragments.iter().enumerate() {
        let row_bytes = fragment.canonical.cols * fragment.dtype.bytes() as u64;
        let mut row = 0;
        while row < fragment.canonical.rows {
            if room < row_bytes {
                windows.push(Vec::new());
                room = window_bytes.max(row_bytes);
            }
            let rows = (room / row_bytes.max(1)).min(fragment.canonical.rows - row);
            if let Some(window) = windows.last_mut() {
                window.push(Slab { fragment: index, rows: row..row + rows });
            }
            room -= rows * row_bytes;
            row += rows;
        }
    }
    windows
}

/// How many windows a pair has.
pub(crate) fn window_count(fragments: &[Fragment], window_bytes: u64) -> u32 {
    u32::try_from(windows(fragments, window_bytes).len()).unwrap_or(u32::MAX)
}

/// The rows of a fragment as a fragment of their own.
pub(crate) fn rows_of(fragment: &Fragment, rows: &Range<u64>) -> Fragment {
    let Box2 { row, col, cols, .. } = fragment.canonical;
    let clip = |run: &SourceRun| {
        let first = run.box_row.max(rows.start);
        let end = (run.box_row + run.rows).min(rows.end);
        (first < end).then(|| SourceRun {
            src_offset: run.src_offset + (first - run.box_row) * run.src_row_stride,
            box_row: first - rows.start,
            rows: end - first,
            ..*run
        })
    };
    Fragment {
        canonical: Box2::new(row + rows.start, rows.end - rows.start, col, cols),
        dst_offset: fragment.dst_offset + rows.start * fragment.dst_row_stride,
        sources: fragment.sources.iter().filter_map(clip).collect(),
        ..fragment.clone()
    }
}

/// What the section of a whole fragment, or of some of its rows, says of itself.
pub(crate) fn dense_header(fragment: &Fragment, elements: u64, version: Version) -> SectionHeader {
    SectionHeader {
        fragment: fragment.index,
        codec: CodecId::Dense,
        value_mode: ValueMode::Absolute,
        dtype: fragment.dtype,
        lg_block: 0,
        n: elements,
        nnz: elements,
        base: None,
        version,
        base_digest: Digest::ZERO,
        new_digest: Digest::ZERO,
        body_bytes: elements * fragment.dtype.bytes() as u64,
    }
}

/// The record of a fragment of which every element follows.
pub(crate) fn dense_record(fragment: &Fragment, digest: Digest, version: Version) -> FragmentRecord {
    let header = dense_header(fragment, fragment.elements(), version);
    let nnz = u32::try_from(header.nnz).unwrap_or(u32::MAX);
    FragmentRecord { codec: CodecId::Dense, flags: 0, nnz, bytes: header.section_bytes(), digest }
}

/// Bytes of a window on the wire.
pub(crate) fn window_bytes(fragments: &[Fragment], window: &Window) -> u64 {
    let section = |slab: &Slab| {
        let fragment = &fragments[slab.fragment];
        let elements = (slab.rows.end - slab.rows.start) * fragment.canonical.cols;
        dense_header(fragment, elements, Version(0)).section_bytes()
    };
    window.iter().map(section).sum()
}

/// Appends the section of some rows of a fragment, given as [`rows_of`] it.
pub(crate) fn encode_rows(rows: &Fragment, version: Version, words: &ChangeSet, out: &mut Vec<u8>) {
    let header = dense_header(rows, rows.elements(), version);
    let start = SectionStart::new(rows.index, rows.dtype, rows.elements(), version);
    out.reserve(index_of(header.section_bytes()));
    encode_section(&start, words, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use driftless_codec::{Expected, Section};
    use driftless_layout::{Model, ModelConfig, RemapPlan, ServedDtypes};
    use driftless_types::Dtype;

    fn plan() -> RemapPlan {
        let json = r#"{"model_type":"qwen3_moe","vocab_size":512,"hidden_size":32,"num_hidden_layers":1,
            "num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,"intermediate_size":64,
            "num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":16,"norm_topk_prob":true,
            "decoder_sparse_step":1,"mlp_only_layers":[]}"#;
        let config = ModelConfig::from_json(json).unwrap();
        let model = Model::new(config, &ServedDtypes::default()).unwrap();
        RemapPlan::compile(&model, &"megatron:tp=2,dp=2".parse().unwrap(), &["vllm:tp=2".parse().unwrap()])
            .unwrap()
    }

    #[test]
    fn ex5_windows_cover_every_row_once_and_stay_below_their_size() {
        let plan = plan();
        for limit in [1, 100, 4096, 1 << 30] {
            for edge in plan.senders().iter().flat_map(|sender| &sender.edges) {
                let windows = windows(&edge.fragments, limit);
                let mut next = vec![0; edge.fragments.len()];
                for slab in windows.iter().flatten() {
                    assert_eq!(slab.rows.start, next[slab.fragment]);
                    next[slab.fragment] = slab.rows.end;
                }
                let rows: Vec<u64> = edge.fragments.iter().map(|fragment| fragment.canonical.rows).collect();
                assert_eq!(next, rows);
                for window in &windows {
                    let bytes = |slab: &Slab| {
                        let fragment = &edge.fragments[slab.fragment];
                        let of_row = fragment.canonical.cols * fragment.dtype.bytes() as u64;
                        ((slab.rows.end - slab.rows.start) * of_row, of_row)
                    };
                    let total: u64 = window.iter().map(|slab| bytes(slab).0).sum();
                    assert!(total <= limit || total == bytes(&window[0]).1, "{total} bytes in a window");
                }
            }
        }
    }

    #[test]
    fn cm8_rows_of_every_dtype_are_read_as_the_plan_says_or_not_at_all() {
        let plan = plan();
        let fragments = || plan.senders().iter().flat_map(|s| &s.edges).flat_map(|edge| &edge.fragments);
        for dtype in [Dtype::Bf16, Dtype::Fp32] {
            let mut fragment = fragments().find(|fragment| fragment.canonical.rows > 1).unwrap().clone();
            fragment.dtype = dtype;
            let rows = rows_of(&fragment, &(1..fragment.canonical.rows));
            // Every bit pattern that a word can have: infinities, and what is not a number, are bits as well.
            let words: Vec<u16> =
                (0..=u16::MAX).cycle().take(index_of(rows.elements()) * dtype.words()).collect();
            let mut out = Vec::new();
            encode_rows(&rows, Version(3), &ChangeSet::All(words.clone()), &mut out);
            let expected = |dtype| Expected {
                fragment: rows.index,
                dtype,
                elements: rows.elements(),
                version: Version(3),
            };
            let other = if dtype == Dtype::Bf16 { Dtype::Fp32 } else { Dtype::Bf16 };
            assert!(Section::parse(&mut out.clone().into(), &expected(other)).is_err());
            let section = Section::parse(&mut out.into(), &expected(dtype)).unwrap();
            assert_eq!(section.changes(), ChangeSet::All(words));
        }
    }

    #[test]
    fn ex2_both_ends_know_the_size_of_a_window_from_the_plan() {
        let plan = plan();
        let edge = &plan.senders()[0].edges[0];
        for window in windows(&edge.fragments, 512) {
            let mut out = Vec::new();
            for slab in &window {
                let rows = rows_of(&edge.fragments[slab.fragment], &slab.rows);
                let words = vec![0; index_of(rows.elements()) * rows.dtype.words()];
                encode_rows(&rows, Version(3), &ChangeSet::All(words), &mut out);
            }
            assert_eq!(out.len() as u64, window_bytes(&edge.fragments, &window));
        }
    }
}
