//! Tensors whose rows are apart in memory: boxes and runs are rewritten once, when the memory is attached.
//!
//! - **LY-5 (strides are a view).** A binding with strides changes where elements lie and nothing else: canonical boxes,
//!   fragments and their numbers stay, and so do the digests of their bits. Padding is covered by no box.
//!
//! The plan, and with it its digest, knows nothing of strides: they are a matter of one process's memory.

use crate::error::LayoutError;
use crate::geometry::Box2;
use crate::plan::{DestBox, DestTensor, Edge, Fragment, Piece, SenderPlan, SourceRun, SourceTensor};
use driftless_types::{Shape, index_of};

/// How a tensor lies in a buffer, in elements, as a framework says it of a view.
///
/// Elements of a row must follow each other, rows may be further apart than they are long, and all dimensions but the
/// last must be one sequence of equally distant rows. Everything else is refused by the tensor's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strides {
    /// The extents; those of a source tensor are of the owned range.
    pub shape: Shape,
    /// The distance of neighbors in each dimension.
    pub strides: Vec<i64>,
    /// Where the first element lies in the buffer.
    pub offset: u64,
}

impl Strides {
    /// A tensor whose rows, its last dimension, are `row_stride` apart, the first at `offset`.
    #[must_use]
    pub fn of_rows(shape: Shape, row_stride: u64, offset: u64) -> Self {
        let extents = shape.extents();
        let mut strides = vec![1; extents.len()];
        let mut next = i64::try_from(row_stride).unwrap_or(i64::MAX);
        for (stride, extent) in strides.iter_mut().zip(extents).rev().skip(1) {
            *stride = next;
            next = next.saturating_mul(i64::try_from(*extent).unwrap_or(i64::MAX));
        }
        Self { shape, strides, offset }
    }
}

/// Equally distant rows: what is left of [`Strides`] once they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    width: u64,
    row_stride: u64,
    offset: u64,
}

impl Rows {
    /// Checks the strides of tensor `name`, which has `elements`, in a buffer that holds `buffer`.
    fn new(name: &str, strides: &Strides, elements: u64, buffer: u64) -> Result<Self, LayoutError> {
        let refuse = |found: String, expected: String| refused(name, found, expected);
        let extents = strides.shape.extents();
        if strides.shape.elements() != Some(elements) {
            return Err(refuse(format!("shape {}", strides.shape), format!("{elements} elements")));
        }
        if strides.strides.len() != extents.len() {
            let found = format!("strides {:?}", strides.strides);
            return Err(refuse(found, format!("one for each of {} dimensions", extents.len())));
        }
        let [.., width] = *extents else {
            return Err(refuse("no dimension".into(), "at least one".into()));
        };
        let row_stride = row_stride(name, extents, &strides.strides)?;
        let rows = Self { width, row_stride, offset: strides.offset };
        match rows.end(elements) {
            Some(end) if end <= buffer => Ok(rows),
            _ => Err(refuse(
                format!("a buffer of {buffer} elements"),
                format!("room for the last row of {} with strides {:?}", strides.shape, strides.strides),
            )),
        }
    }

    /// One past the last element in the buffer; `None` beyond all buffers.
    fn end(&self, elements: u64) -> Option<u64> {
        let Some(last) = elements.checked_sub(1) else { return Some(self.offset) };
        let start = (last / self.width).checked_mul(self.row_stride)?.checked_add(self.offset)?;
        start.checked_add(last % self.width + 1)
    }

    /// Where an element lies in the buffer.
    const fn place(&self, element: u64) -> u64 {
        self.offset + element / self.width * self.row_stride + element % self.width
    }

    /// Where rows of `cols` elements, the first at element `offset` and `stride` apart, lie in the buffer: their new
    /// offset and stride. `None` if one of them crosses from one row of the tensor into the next, or if they are not
    /// whole rows of it apart.
    fn place_rows(&self, offset: u64, stride: u64, rows: u64, cols: u64) -> Option<(u64, u64)> {
        if rows == 0 || cols == 0 {
            return Some((self.offset, cols));
        }
        if offset % self.width + cols > self.width {
            // Rows without gaps between them are one sequence: nothing is crossed.
            return (self.row_stride == self.width).then_some((self.offset + offset, stride));
        }
        if rows == 1 {
            return Some((self.place(offset), cols));
        }
        if stride.is_multiple_of(self.width) {
            return Some((self.place(offset), stride / self.width * self.row_stride));
        }
        (self.row_stride == self.width).then_some((self.offset + offset, stride))
    }
}

/// The distance of rows, if all dimensions but the last are one sequence of them.
fn row_stride(name: &str, extents: &[u64], strides: &[i64]) -> Result<u64, LayoutError> {
    let refuse = |dimension: usize, expected: String| {
        refused(name, format!("stride {} of dimension {dimension}", strides[dimension]), expected)
    };
    let last = extents.len() - 1;
    // The stride of a dimension with one element is never used, and might be anything.
    if extents[last] > 1 && strides[last] != 1 {
        return Err(refuse(last, "1: elements of a row follow each other".into()));
    }
    let mut found = None;
    for dimension in (0..last).rev().filter(|&dimension| extents[dimension] > 1) {
        let stride = u64::try_from(strides[dimension]);
        let stride = stride.map_err(|_| refuse(dimension, "a distance of 0 or more".into()))?;
        match found {
            None if stride < extents[last] => {
                let expected = format!("at least {}: rows that do not overlap", extents[last]);
                return Err(refuse(dimension, expected));
            }
            None => found = Some((stride, stride.checked_mul(extents[dimension]))),
            Some((_, Some(next))) if stride == next => {
                found = found.map(|(row, next)| (row, next.and_then(|n| n.checked_mul(extents[dimension]))));
            }
            Some((row, _)) => {
                return Err(refuse(dimension, format!("rows that are all {row} apart")));
            }
        }
    }
    Ok(found.map_or(extents[last], |(row, _)| row))
}

fn refused(name: &str, found: String, expected: String) -> LayoutError {
    LayoutError::Strides { tensor: name.to_owned(), found, expected }
}

/// A receiver's tensor as it lies in a buffer with strides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedDest {
    tensor: DestTensor,
    rows: Rows,
}

impl StridedDest {
    /// Rewrites the boxes of `tensor` for a buffer of `buffer_elements`.
    ///
    /// # Errors
    /// [`LayoutError::Strides`] naming the tensor, if the strides are of a kind that is not supported, do not fit the
    /// tensor, or leave the buffer.
    pub fn new(tensor: &DestTensor, strides: &Strides, buffer_elements: u64) -> Result<Self, LayoutError> {
        let elements = tensor.shape.elements().unwrap_or(u64::MAX);
        let rows = Rows::new(&tensor.name, strides, elements, buffer_elements)?;
        let place = |held: &DestBox| {
            let (height, cols) = (held.canonical.rows, held.canonical.cols);
            let placed = rows.place_rows(held.dst_offset, held.dst_row_stride, height, cols);
            let (dst_offset, dst_row_stride) = placed.ok_or_else(|| crossing(&tensor.name, strides))?;
            Ok(DestBox { dst_offset, dst_row_stride, ..*held })
        };
        let boxes = tensor.boxes.iter().map(place).collect::<Result<_, LayoutError>>()?;
        Ok(Self { tensor: DestTensor { boxes, ..tensor.clone() }, rows })
    }

    /// The tensor, with offsets and row strides of the buffer (LY-5).
    #[must_use]
    pub const fn tensor(&self) -> &DestTensor {
        &self.tensor
    }

    /// Where a fragment of this tensor goes, with the offset and the row stride of the buffer. Its sources and digest
    /// cells are left out: a receiver has no use for them.
    ///
    /// # Panics
    /// If the fragment is of another tensor, whose rows are not those of this one.
    #[must_use]
    pub fn fragment(&self, fragment: &Fragment) -> Fragment {
        let (height, cols) = (fragment.canonical.rows, fragment.canonical.cols);
        let placed = self.rows.place_rows(fragment.dst_offset, fragment.dst_row_stride, height, cols);
        // LY-5: a fragment is part of a box, and all boxes were placed.
        let (dst_offset, dst_row_stride) =
            placed.expect("a part of a box crosses no row that the box does not");
        Fragment { dst_offset, dst_row_stride, sources: Vec::new(), cells: Vec::new(), ..*fragment }
    }
}

fn crossing(name: &str, strides: &Strides) -> LayoutError {
    let found = format!("shape {} with strides {:?}", strides.shape, strides.strides);
    refused(name, found, "rows that are those of its boxes".into())
}

/// The memory of one source tensor, as far as the layout is concerned.
#[derive(Clone, Copy, Debug)]
pub struct SourceMemory<'a> {
    /// How the owned range lies in the buffer; `None`: without gaps, from the start.
    pub strides: Option<&'a Strides>,
    /// How many elements the buffer holds.
    pub buffer_elements: u64,
}

impl SenderPlan {
    /// The plan of this sender over buffers with strides, one entry per tensor.
    ///
    /// A piece of a tensor with strides becomes one piece per row, for pieces are contiguous; digest cells multiply
    /// accordingly, and every fragment lists those that make up its bits. Fragments, their order and their numbers stay.
    ///
    /// # Errors
    /// [`LayoutError::Strides`] naming the tensor, if the strides are of a kind that is not supported, do not fit the
    /// tensor, or leave the buffer; [`LayoutError::TooLarge`] if digest cells outgrow their numbers.
    ///
    /// # Panics
    /// If there are not as many entries as tensors.
    pub fn with_strides(&self, memory: &[SourceMemory<'_>]) -> Result<Self, LayoutError> {
        assert_eq!(memory.len(), self.tensors.len(), "one entry per tensor of {}", self.name);
        let mut cells = CellMap::default();
        let mut tensors = Vec::with_capacity(self.tensors.len());
        let mut rows_of = Vec::with_capacity(self.tensors.len());
        for (tensor, memory) in self.tensors.iter().zip(memory) {
            let rows = memory.strides.map(|strides| {
                let rows = Rows::new(&tensor.name, strides, tensor.elements(), memory.buffer_elements)?;
                Ok((rows, strides))
            });
            let rows = rows.transpose()?;
            tensors.push(match &rows {
                None => contiguous(tensor, &mut cells)?,
                Some((rows, strides)) => strided(tensor, rows, strides, memory.buffer_elements, &mut cells)?,
            });
            rows_of.push(rows.map(|(rows, _)| rows));
        }
        let mut edges = Vec::with_capacity(self.edges.len());
        for edge in &self.edges {
            let fragments = edge.fragments.iter().map(|fragment| Fragment {
                sources: fragment.sources.iter().map(|run| placed(run, fragment, &rows_of)).collect(),
                cells: fragment.cells.iter().flat_map(|&cell| cells.of(cell)).collect(),
                ..fragment.clone()
            });
            edges.push(Edge { receiver: edge.receiver, fragments: fragments.collect() });
        }
        Ok(Self { id: self.id, name: self.name.clone(), tensors, edges, cells: cells.count })
    }
}

/// Which cells a cell of the plan became: `rows` of them, `step` apart.
#[derive(Clone, Copy, Debug)]
struct Cells {
    first: u32,
    rows: u32,
    step: u32,
}

/// New cells by old ones.
#[derive(Debug, Default)]
struct CellMap {
    new: Vec<Cells>,
    count: u32,
}

impl CellMap {
    /// Takes the next `rows * bands` numbers, for so many rows of one row band of a piece with so many column bands.
    fn add_rows(&mut self, rows: u64, bands: usize) -> Result<Cells, LayoutError> {
        let found = u64::from(self.count) + rows * bands as u64;
        let too_large =
            |_| LayoutError::TooLarge { what: "digest cells of a sender", found, limit: u32::MAX.into() };
        let end = u32::try_from(found).map_err(too_large)?;
        // Both are parts of what has just been found to fit.
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let (rows, step) = (narrow(rows), narrow(bands as u64));
        let first = std::mem::replace(&mut self.count, end);
        self.new.extend((0..step).map(|band| Cells { first: first + band, rows, step }));
        Ok(Cells { first, rows, step })
    }

    fn of(&self, old: u32) -> impl Iterator<Item = u32> {
        let Cells { first, rows, step } = self.new[index_of(old.into())];
        (0..rows).map(move |row| first + row * step)
    }
}

/// A tensor as it is; its cells get new numbers.
fn contiguous(tensor: &SourceTensor, cells: &mut CellMap) -> Result<SourceTensor, LayoutError> {
    let mut tensor = tensor.clone();
    for piece in &mut tensor.pieces {
        piece.first_cell = cells.count;
        for _ in 0..=piece.row_cuts.len() {
            cells.add_rows(1, piece.col_cuts.len() + 1)?;
        }
    }
    Ok(tensor)
}

/// A tensor whose pieces are cut into rows, in a buffer that is wholly its range.
fn strided(
    tensor: &SourceTensor,
    rows: &Rows,
    strides: &Strides,
    buffer_elements: u64,
    cells: &mut CellMap,
) -> Result<SourceTensor, LayoutError> {
    let mut pieces = Vec::new();
    for piece in &tensor.pieces {
        let (height, cols) = (piece.canonical.rows, piece.canonical.cols);
        let placed = rows.place_rows(piece.src_offset, cols, height, cols);
        let (offset, stride) = placed.ok_or_else(|| crossing(&tensor.name, strides))?;
        let ends = piece.row_cuts.iter().copied().chain([height]);
        let mut start = 0;
        for end in ends {
            let Cells { first, step, .. } = cells.add_rows(end - start, piece.col_cuts.len() + 1)?;
            pieces.extend((0u32..).zip(start..end).map(|(nth, row)| Piece {
                src_offset: offset + row * stride,
                canonical: Box2 { row: piece.canonical.row + row, rows: 1, ..piece.canonical },
                row_cuts: Vec::new(),
                col_cuts: piece.col_cuts.clone(),
                first_cell: first + nth * step,
                param: piece.param,
            }));
            start = end;
        }
    }
    Ok(SourceTensor { name: tensor.name.clone(), range: 0..buffer_elements, pieces })
}

/// Where a run lies in the buffer of its tensor.
fn placed(run: &SourceRun, fragment: &Fragment, rows_of: &[Option<Rows>]) -> SourceRun {
    let Some(rows) = rows_of[index_of(run.tensor.into())] else { return *run };
    let placed = rows.place_rows(run.src_offset, run.src_row_stride, run.rows, fragment.canonical.cols);
    // LY-5: a run is part of a piece, and all pieces were placed.
    let (src_offset, src_row_stride) =
        placed.expect("a part of a piece crosses no row that the piece does not");
    SourceRun { src_offset, src_row_stride, ..*run }
}
