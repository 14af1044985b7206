//! Plans over memory whose rows are apart, against the plan itself and the definition of strides.

use crate::configs::{Sizes, plan};
use crate::cover::index;
use driftless_layout::{
    Box2, DestTensor, Fragment, Piece, RemapPlan, SenderPlan, SourceMemory, SourceTensor, StridedDest,
    Strides,
};
use driftless_types::Shape;
use std::collections::{BTreeMap, BTreeSet};

/// An element: its parameter, row and column. Its absence is padding.
type Image = Vec<Option<(u32, u64, u64)>>;

const LAYOUTS: [(&str, &str); 8] = [
    ("hf", "hf"),
    ("fsdp:world=5", "vllm:tp=2,pp=2"),
    ("megatron:tp=2,pp=2,zero=0", "vllm:tp=4"),
    ("megatron:tp=2,dp=2,ep=2,etp=2", "sglang:tp=4,ep=2"),
    ("megatron:tp=4,dp=3", "vllm:tp=2,ep=2,placement=round-robin"),
    ("deepspeed:world=3,stage=3", "sglang:tp=2,w13=swapped"),
    ("deepspeed:world=3,stage=1", "hf"),
    ("hsdp:world=4,replicas=2,router=fp32", "vllm:tp=8"),
];

/// By definition: the sum of indices times strides.
fn places(strides: &Strides) -> Vec<usize> {
    let mut places = vec![i64::try_from(strides.offset).unwrap()];
    for (&extent, &stride) in strides.shape.extents().iter().zip(&strides.strides) {
        let along = |place: i64| (0..extent).map(move |i| place + i64::try_from(i).unwrap() * stride);
        places = places.into_iter().flat_map(along).collect();
    }
    places.into_iter().map(|place| usize::try_from(place).unwrap()).collect()
}

fn buffer_of(strides: &Strides) -> u64 {
    // Some more at the end, as a view into something larger has.
    places(strides).last().map_or(0, |last| *last as u64 + 1) + 5
}

fn row_of_box(param: u32, area: Box2, row: u64) -> impl Iterator<Item = (u32, u64, u64)> {
    (area.col..area.col_end()).map(move |col| (param, area.row + row, col))
}

fn source_image(tensor: &SourceTensor) -> Image {
    let mut image = vec![None; index(tensor.elements())];
    for piece in &tensor.pieces {
        let elements =
            (0..piece.canonical.rows).flat_map(|row| row_of_box(piece.param.0, piece.canonical, row));
        for (at, element) in (index(piece.src_offset)..).zip(elements) {
            assert_eq!(image[at].replace(element), None, "{}", tensor.name);
        }
    }
    image
}

/// Rows as wide as the pieces, if the range is made of such; else one row.
fn source_strides(nth: u64, tensor: &SourceTensor) -> Strides {
    let width = tensor.pieces.first().map_or(0, |piece| piece.canonical.cols);
    let is_row = |piece: &Piece| piece.canonical.cols == width && piece.src_offset.is_multiple_of(width);
    let offset = nth % 4;
    if width > 0 && tensor.elements().is_multiple_of(width) && tensor.pieces.iter().all(is_row) {
        return Strides::of_rows(Shape::new([tensor.elements() / width, width]), width + nth % 3, offset);
    }
    Strides::of_rows(Shape::new([tensor.elements()]), 0, offset)
}

/// The plan of a sender over strided memory; every third tensor is left as it is.
fn strided_sender(sender: &SenderPlan) -> (SenderPlan, Vec<Option<Strides>>) {
    let strides: Vec<_> = (0..)
        .zip(&sender.tensors)
        .map(|(nth, tensor)| (nth % 3 != 2).then(|| source_strides(nth, tensor)))
        .collect();
    let memory: Vec<_> = strides
        .iter()
        .zip(&sender.tensors)
        .map(|(strides, tensor)| SourceMemory {
            strides: strides.as_ref(),
            buffer_elements: strides.as_ref().map_or_else(|| tensor.elements(), buffer_of),
        })
        .collect();
    (sender.with_strides(&memory).unwrap(), strides)
}

/// What a fragment reads, row by row.
fn read(images: &[Image], fragment: &Fragment) -> Image {
    let mut found = Vec::new();
    for run in &fragment.sources {
        for row in 0..run.rows {
            let start = index(run.src_offset + row * run.src_row_stride);
            found.extend_from_slice(
                &images[run.tensor as usize][start..start + index(fragment.canonical.cols)],
            );
        }
    }
    found
}

/// The elements of each digest cell of a sender.
fn cells(sender: &SenderPlan) -> Vec<BTreeSet<(u32, u64, u64)>> {
    let mut cells = vec![BTreeSet::new(); sender.cells as usize];
    for piece in sender.tensors.iter().flat_map(|tensor| &tensor.pieces) {
        let band = |cuts: &[u64], at: u64| cuts.iter().filter(|&&cut| cut <= at).count();
        for row in 0..piece.canonical.rows {
            for (col, element) in (0..).zip(row_of_box(piece.param.0, piece.canonical, row)) {
                let nth =
                    band(&piece.row_cuts, row) * (piece.col_cuts.len() + 1) + band(&piece.col_cuts, col);
                cells[piece.first_cell as usize + nth].insert(element);
            }
        }
    }
    cells
}

fn check_sender(sender: &SenderPlan) {
    let (strided, strides) = strided_sender(sender);
    let images: Vec<Image> = sender.tensors.iter().map(source_image).collect();
    let moved: Vec<Image> = strided.tensors.iter().map(source_image).collect();
    for (nth, strides) in strides.iter().enumerate() {
        let mut expected = vec![None; moved[nth].len()];
        let Some(strides) = strides else {
            assert_eq!(moved[nth], images[nth]);
            continue;
        };
        for (place, element) in places(strides).into_iter().zip(&images[nth]) {
            expected[place] = *element;
        }
        assert_eq!(moved[nth], expected, "{}", sender.tensors[nth].name);
    }
    let cells = cells(&strided);
    assert_eq!(strided.edges.len(), sender.edges.len());
    for (edge, before) in strided.edges.iter().zip(&sender.edges) {
        assert_eq!((edge.receiver, edge.fragments.len()), (before.receiver, before.fragments.len()));
        for (fragment, before) in edge.fragments.iter().zip(&before.fragments) {
            assert_eq!((fragment.index, fragment.canonical), (before.index, before.canonical));
            let found = read(&moved, fragment);
            assert!(found.iter().all(Option::is_some));
            assert_eq!(found, read(&images, before));
            let mut summed: Vec<_> = fragment.cells.iter().flat_map(|&cell| &cells[cell as usize]).collect();
            summed.sort_unstable();
            let mut elements: Vec<_> = found.iter().flatten().collect();
            elements.sort_unstable();
            assert_eq!(summed, elements, "each element is digested once");
        }
    }
}

fn dest_strides(nth: u64, tensor: &DestTensor) -> Strides {
    let width = *tensor.shape.extents().last().unwrap();
    Strides::of_rows(tensor.shape.clone(), width + nth % 4, nth % 3)
}

fn write(image: &mut Image, fragment: &Fragment) {
    for row in 0..fragment.canonical.rows {
        let start = index(fragment.dst_offset + row * fragment.dst_row_stride);
        for (at, element) in (start..).zip(row_of_box(fragment.param.0, fragment.canonical, row)) {
            assert_eq!(image[at].replace(element), None, "LY-2");
        }
    }
}

fn check_receivers(plan: &RemapPlan) {
    let mut to: BTreeMap<_, Vec<&Fragment>> = BTreeMap::new();
    for edge in plan.senders().iter().flat_map(|sender| &sender.edges) {
        to.entry(edge.receiver).or_default().extend(&edge.fragments);
    }
    for receiver in plan.replicas().iter().flat_map(|replica| &replica.receivers) {
        for (nth, tensor) in (0..).zip(&receiver.tensors) {
            let strides = dest_strides(nth.into(), tensor);
            let buffer = buffer_of(&strides);
            let strided = StridedDest::new(tensor, &strides, buffer).unwrap();
            let mut image = vec![None; index(tensor.shape.elements().unwrap())];
            let (mut moved, mut held) = (vec![None; index(buffer)], vec![None; index(buffer)]);
            for fragment in to[&receiver.id].iter().filter(|fragment| fragment.dst_tensor == nth) {
                write(&mut image, fragment);
                write(&mut moved, &strided.fragment(fragment));
            }
            for held_box in &strided.tensor().boxes {
                for row in 0..held_box.canonical.rows {
                    let start = index(held_box.dst_offset + row * held_box.dst_row_stride);
                    for (at, element) in (start..).zip(row_of_box(held_box.param.0, held_box.canonical, row))
                    {
                        held[at] = Some(element);
                    }
                }
            }
            let mut expected = vec![None; index(buffer)];
            for (place, element) in places(&strides).into_iter().zip(&image) {
                expected[place] = *element;
            }
            assert_eq!(moved, expected, "{}", tensor.name);
            assert_eq!(held, expected, "{}", tensor.name);
        }
    }
}

#[test]
fn ly5_strided_memory_holds_the_same_elements() {
    for (trainer, rollout) in LAYOUTS {
        let plan = plan(&Sizes::moe(), trainer, &[rollout, "vllm:tp=2"]);
        plan.senders().iter().for_each(check_sender);
        check_receivers(&plan);
    }
}

#[test]
fn strides_of_one_sequence_of_rows_are_as_good_as_two_dimensions() {
    let plan = plan(&Sizes::moe(), "hf", &["vllm:tp=2"]);
    let tensors = &plan.replicas()[0].receivers[0].tensors;
    let w13 = tensors.iter().find(|tensor| tensor.name.contains("w13")).unwrap();
    let extents = w13.shape.extents();
    let (rows, width) = (extents[0] * extents[1], extents[2]);
    let deep = Strides::of_rows(w13.shape.clone(), width + 3, 1);
    let flat = Strides::of_rows(Shape::new([rows, width]), width + 3, 1);
    assert_eq!(deep.strides, [8 * 15, 15, 1]);
    let buffer = buffer_of(&deep);
    assert_eq!(StridedDest::new(w13, &deep, buffer).unwrap(), StridedDest::new(w13, &flat, buffer).unwrap());
}

/// What is said of a view of a matrix of 8 rows and 12 columns; `None` if it is taken.
fn refusal(shape: &[u64], strides: &[i64], offset: u64, buffer: u64) -> Option<String> {
    let plan = plan(&Sizes::dense(), "hf", &["vllm:tp=4"]);
    let tensors = &plan.replicas()[0].receivers[0].tensors;
    let tensor = tensors.iter().find(|tensor| tensor.name.ends_with("0.mlp.gate_up_proj.weight")).unwrap();
    assert_eq!(tensor.shape.extents(), [8, 12]);
    let strides = Strides { shape: Shape::new(shape), strides: strides.to_vec(), offset };
    let refused = StridedDest::new(tensor, &strides, buffer).err().map(|error| error.to_string());
    if let Some(text) = &refused {
        assert!(text.starts_with("tensor model.layers.0.mlp.gate_up_proj.weight: found "), "{text}");
    }
    refused
}

#[test]
fn other_strides_are_refused_by_name() {
    assert_eq!(refusal(&[8, 12], &[12, 1], 0, 96), None);
    assert_eq!(refusal(&[8, 12], &[16, 1], 2, 126), None);
    // Of a dimension with one element the stride does not matter.
    assert_eq!(refusal(&[1, 8, 12], &[-7, 16, 1], 2, 126), None);
    assert_eq!(refusal(&[8, 1, 12], &[16, 0, 1], 2, 126), None);
    // Without gaps any shape will do.
    assert_eq!(refusal(&[96], &[1], 0, 96), None);
    type Refused = (&'static [u64], &'static [i64], u64, u64, &'static str);
    let cases: [Refused; 12] = [
        (&[8, 12], &[16, 1], 3, 126, "a buffer of 126 elements"),
        (&[8, 12], &[16, 1], u64::MAX, 126, "a buffer of 126 elements"),
        (&[8, 12], &[i64::MAX, 1], 0, 126, "a buffer of 126 elements"),
        (&[8, 12], &[24, 2], 0, 999, "stride 2 of dimension 1, expected 1"),
        (&[8, 12], &[1, 8], 0, 999, "stride 8 of dimension 1"),
        (&[8, 12], &[-12, 1], 96, 999, "stride -12 of dimension 0"),
        (&[8, 12], &[11, 1], 0, 999, "rows that do not overlap"),
        (&[8, 12], &[0, 1], 0, 999, "rows that do not overlap"),
        (&[2, 4, 12], &[99, 16, 1], 0, 999, "stride 99 of dimension 0, expected rows that are all 16 apart"),
        (&[8, 6], &[12, 1], 0, 999, "shape [8, 6], expected 96 elements"),
        (&[8, 12], &[12], 0, 999, "one for each of 2 dimensions"),
        (&[16, 6], &[8, 1], 0, 999, "rows that are those of its boxes"),
    ];
    for (shape, strides, offset, buffer, named) in cases {
        let text = refusal(shape, strides, offset, buffer).unwrap();
        assert!(text.contains(named), "{named} is not in {text}");
    }
}

#[test]
fn sources_that_are_no_rows_are_refused_by_name() {
    let plan = plan(&Sizes::dense(), "deepspeed:world=3,stage=1", &["hf"]);
    let sender = &plan.senders()[1];
    let starts_mid_row = |tensor: &SourceTensor| {
        tensor.pieces.len() > 1 && !tensor.pieces[0].canonical.cols.is_multiple_of(12)
    };
    let at = sender.tensors.iter().position(starts_mid_row).unwrap();
    let elements = sender.tensors[at].elements();
    let half = Strides::of_rows(Shape::new([elements / 2, 2]), 3, 0);
    let strides = |nth| (nth == at).then_some(&half);
    let memory: Vec<_> = (0..sender.tensors.len())
        .map(|nth| SourceMemory { strides: strides(nth), buffer_elements: 2 * elements })
        .collect();
    let text = sender.with_strides(&memory).unwrap_err().to_string();
    assert!(text.contains(&sender.tensors[at].name) && text.contains("rows that are those"), "{text}");
}
