//! A detection by the kernels, as a host would plan it: pieces into parts, parts into launches.

use crate::abi::{
    DETECT_COLLECT, DETECT_DIGEST, DETECT_DRAIN, DETECT_HALF_AWAY, DETECT_LIST, DETECT_UPDATE, DetectArgs,
    Divisor, FillArgs, PART_FP32, PART_REPLACE, PART_WHOLE, Part, PutArgs,
};
use crate::shim::{Grid, launch};
use driftless_device::{
    Bitset, ChangeSource, Changes, Classes, DetectOptions, Detected, Pending, PieceDiff, PieceRule,
};
use driftless_layout::{ParamMeta, Piece, SourceTensor};
use driftless_numerics::{Cast, DigestKeys, MasterAudit, Rule, RuleScalars, StepClass};
use driftless_types::{Digest, Dtype};
use std::ptr::{null, null_mut};

/// Elements that a thread has of a tile.
const THREAD_ELEMENTS: u32 = 32;
/// Tiles begin at multiples of this.
const ALIGNMENT: u32 = 128;
const UNWRITTEN: (u32, u16, u8) = (0xdead_beef, 0xbeef, 0xab);

/// The kernel of a part, and its rule.
#[derive(Clone, Debug, PartialEq)]
struct Kind {
    kernel: String,
    rule: Option<RuleScalars>,
}

/// A source tensor as the kernels see it.
struct Planned {
    parts: Vec<Part>,
    kinds: Vec<Kind>,
    cuts: Vec<u32>,
    cells: usize,
    tiles: u32,
}

impl Planned {
    fn new(tensor: &SourceTensor, params: &[ParamMeta], source: &ChangeSource<'_>, threads: u32) -> Self {
        let mut planned = Self { parts: Vec::new(), kinds: Vec::new(), cuts: Vec::new(), cells: 0, tiles: 0 };
        let first_cell = tensor.pieces.first().map_or(0, |piece| piece.first_cell);
        for (index, piece) in tensor.pieces.iter().enumerate() {
            let meta = &params[piece.param.0 as usize];
            let (kernel, flags) = kernel_of(source, index, meta.dtype);
            let rule = rule_of(source, index).filter(|_| kernel != "rest").map(Rule::lowered);
            let kind = Kind { kernel: format!("driftless_detect_{kernel}"), rule };
            planned.cells += (piece.row_cuts.len() + 1) * (piece.col_cuts.len() + 1);
            for mut part in bands(piece, meta.cols(), &mut planned.cuts) {
                part.piece = index as u32;
                part.flags = flags;
                part.first_cell += piece.first_cell - first_cell;
                part.first_tile = planned.tiles;
                let base = part.start & !(ALIGNMENT - 1);
                planned.tiles += (part.start + part.count - base).div_ceil(threads * THREAD_ELEMENTS);
                planned.parts.push(part);
                planned.kinds.push(kind.clone());
            }
        }
        planned
    }

    /// Consecutive parts of one kind, and their tiles.
    fn launches(&self) -> Vec<(&[Part], &Kind, std::ops::Range<u32>)> {
        let mut launches = Vec::new();
        let mut first = 0;
        for run in self.kinds.chunk_by(|a, b| a == b) {
            let end = first + run.len();
            let last_tile = self.parts.get(end).map_or(self.tiles, |part| part.first_tile);
            launches.push((&self.parts[first..end], &run[0], self.parts[first].first_tile..last_tile));
            first = end;
        }
        launches
    }
}

/// The row bands of a piece; those of a single row cut further, one part per column band.
fn bands(piece: &Piece, param_cols: u64, cuts: &mut Vec<u32>) -> Vec<Part> {
    let area = &piece.canonical;
    let (rows, cols) = (edges(&piece.row_cuts, area.rows), edges(&piece.col_cuts, area.cols));
    let bands_of_cols = piece.col_cuts.len() as u32 + 1;
    let mut parts = Vec::new();
    for (band, rows) in (0..).zip(rows.windows(2)) {
        let row_count = rows[1] - rows[0];
        let origin = (area.row + rows[0]) * param_cols + area.col;
        let start = piece.src_offset + rows[0] * area.cols;
        let part = |start: u64, origin: u64, count: u64, cols: u64, cell: u32| Part {
            origin,
            row_stride: param_cols,
            start: start as u32,
            count: count as u32,
            first_tile: 0,
            param: piece.param.0,
            first_cell: cell,
            first_cut: 0,
            cut_count: 0,
            piece: 0,
            flags: 0,
            unused: 0,
            cols: Divisor::new(cols),
        };
        let cell = band * bands_of_cols;
        if row_count == 1 {
            for (col_band, cols) in (0..).zip(cols.windows(2)) {
                let count = cols[1] - cols[0];
                parts.push(part(start + cols[0], origin + cols[0], count, count, cell + col_band));
            }
        } else if area.cols == param_cols && piece.col_cuts.is_empty() {
            parts.push(part(start, origin, row_count * area.cols, row_count * area.cols, cell));
        } else {
            let mut narrow = part(start, origin, row_count * area.cols, area.cols, cell);
            (narrow.first_cut, narrow.cut_count) = (cuts.len() as u32, piece.col_cuts.len() as u32);
            cuts.extend(piece.col_cuts.iter().map(|&cut| cut as u32));
            parts.push(narrow);
        }
    }
    parts.retain(|part| part.count > 0);
    parts
}

fn edges(cuts: &[u64], extent: u64) -> Vec<u64> {
    std::iter::once(0).chain(cuts.iter().copied()).chain([extent]).collect()
}

fn rule_of<'a>(source: &ChangeSource<'a>, piece: usize) -> Option<&'a Rule> {
    match source {
        ChangeSource::Inversion { rules, .. } => match &rules[piece] {
            PieceRule::Rule(rule) => Some(rule),
            _ => None,
        },
        _ => None,
    }
}

fn kernel_of(source: &ChangeSource<'_>, piece: usize, dtype: Dtype) -> (&'static str, u32) {
    if dtype == Dtype::Fp32 {
        return ("rest", PART_FP32 | PART_WHOLE);
    }
    let by_diff = |diffs: &[PieceDiff], kernel, dense| match diffs[piece] {
        PieceDiff::Compare => (kernel, 0),
        PieceDiff::Dense => ("rest", PART_WHOLE | dense),
    };
    match source {
        ChangeSource::Inversion { rules, .. } => match &rules[piece] {
            PieceRule::Rule(rule) => (rule.form(), 0),
            PieceRule::Dense => ("rest", PART_WHOLE),
            PieceRule::Untouched => ("rest", 0),
        },
        ChangeSource::Snapshot { diffs, .. } => by_diff(diffs, "compare", PART_REPLACE),
        ChangeSource::PreCopy { diffs, .. } => by_diff(diffs, "compare", 0),
        ChangeSource::InStep { diffs, .. } => by_diff(diffs, "marked", 0),
    }
}

/// The pointers of a source.
struct Memory {
    master: *const f32,
    exp_avg: *const f32,
    exp_avg_sq: *const f32,
    previous: *mut u16,
    changed: *const u64,
}

impl Memory {
    /// Where it lies: nothing is written but a snapshot, which is lent for writing.
    fn of(source: &mut ChangeSource<'_>) -> Self {
        let mut memory = Self {
            master: null(),
            exp_avg: null(),
            exp_avg_sq: null(),
            previous: null_mut(),
            changed: null(),
        };
        let floats = |elements: &driftless_device::Elements<'_, f32>| {
            elements.on_host().expect("tests lend host memory").as_ptr()
        };
        match source {
            ChangeSource::Inversion { master, exp_avg, exp_avg_sq, .. } => {
                memory.master = floats(master);
                memory.exp_avg = floats(exp_avg);
                memory.exp_avg_sq = floats(exp_avg_sq);
            }
            ChangeSource::Snapshot { master, previous, .. } => {
                memory.master = floats(master);
                memory.previous = match previous {
                    driftless_device::ElementsMut::Host(words) => words.as_mut_ptr(),
                    driftless_device::ElementsMut::Device(_) => panic!("tests lend host memory"),
                };
            }
            ChangeSource::PreCopy { master, model, .. } => {
                memory.master = floats(master);
                memory.previous = model.on_host().expect("tests lend host memory").as_ptr().cast_mut();
            }
            ChangeSource::InStep { master, changed, .. } => {
                memory.master = floats(master);
                memory.changed = changed.on_host().expect("tests lend host memory").words().as_ptr();
            }
        }
        memory
    }
}

/// What a pass writes, some of it filled with what nobody would write.
struct Output {
    tile_state: Vec<u64>,
    tickets: Vec<u32>,
    count: u64,
    indices: Vec<u32>,
    values: Vec<u16>,
    classes: Vec<u8>,
    cells: Vec<u32>,
    exceeded: Vec<u32>,
    unfit: Vec<u32>,
}

impl Output {
    fn new(planned: &Planned, pieces: usize, launches: usize, capacity: usize) -> Self {
        Self {
            tile_state: vec![0; planned.tiles as usize],
            tickets: vec![0; launches],
            count: 0,
            indices: vec![UNWRITTEN.0; capacity + 1],
            values: vec![UNWRITTEN.1; capacity + 1],
            classes: vec![UNWRITTEN.2; capacity + 1],
            cells: vec![0; 4 * planned.cells],
            exceeded: vec![0; pieces],
            unfit: vec![0; pieces],
        }
    }

    /// The list, checked to end where it should.
    fn list(mut self, capacity: usize) -> (Self, usize) {
        let written = capacity.min(self.count as usize);
        let rest = self.indices[written..].iter().zip(&self.values[written..]);
        let is_untouched = rest.zip(&self.classes[written..]).all(|((&i, &v), &c)| (i, v, c) == UNWRITTEN);
        assert!(is_untouched, "nothing is written beyond the list");
        self.indices.truncate(written);
        self.values.truncate(written);
        self.classes.truncate(written);
        (self, written)
    }
}

/// Detects with the kernels; room for `capacity` changes. Gives the number of all marked elements too.
pub(crate) fn detect_within(
    capacity: usize,
    grid: Grid,
    tensor: &SourceTensor,
    params: &[ParamMeta],
    mut source: ChangeSource<'_>,
    options: DetectOptions<'_>,
    keys: &DigestKeys,
) -> (Detected, usize) {
    let planned = Planned::new(tensor, params, &source, grid.threads);
    let launches = planned.launches();
    let mut output = Output::new(&planned, tensor.pieces.len(), launches.len(), capacity);
    let is_snapshot = matches!(source, ChangeSource::Snapshot { .. });
    let (memory, table) = (Memory::of(&mut source), keys.table());
    let DetectOptions { cast, classes, pending } = options;
    let (mut pending, mut flags) = match pending {
        Pending::Absent => (None, DETECT_LIST | DETECT_DIGEST),
        Pending::Drain(set) => (Some(set), DETECT_LIST | DETECT_DIGEST | DETECT_DRAIN),
        Pending::Collect(set) if is_snapshot => (Some(set), DETECT_COLLECT | DETECT_UPDATE),
        Pending::Collect(set) => (Some(set), DETECT_COLLECT),
    };
    let mut pending = pending.take().map(|set| set.on_host().expect("tests lend host memory"));
    flags |= if cast == Cast::HalfAway { DETECT_HALF_AWAY } else { 0 };
    for (number, (parts, kind, tiles)) in launches.into_iter().enumerate() {
        let args = DetectArgs {
            master: memory.master,
            exp_avg: memory.exp_avg,
            exp_avg_sq: memory.exp_avg_sq,
            previous: memory.previous,
            changed: memory.changed,
            pending: pending.as_mut().map_or(null_mut(), |set| set.words_mut().as_mut_ptr()),
            parts: parts.as_ptr(),
            cuts: planned.cuts.as_ptr(),
            table: &raw const table,
            tile_state: output.tile_state.as_mut_ptr(),
            ticket: &raw mut output.tickets[number],
            count: &raw mut output.count,
            indices: output.indices.as_mut_ptr(),
            values: output.values.as_mut_ptr(),
            classes: if classes == Classes::Listed { output.classes.as_mut_ptr() } else { null_mut() },
            cells: output.cells.as_mut_ptr(),
            exceeded: output.exceeded.as_mut_ptr(),
            unfit: output.unfit.as_mut_ptr(),
            capacity: capacity as u64,
            part_count: parts.len() as u32,
            first_tile: tiles.start,
            tile_count: tiles.end - tiles.start,
            tensor_tiles: planned.tiles,
            flags,
            unused: 0,
            rule: kind.rule.unwrap_or(RuleScalars::NONE),
        };
        launch(&kind.kernel, grid, &args);
    }
    let count = output.count as usize;
    let (output, written) = output.list(capacity);
    if is_snapshot && flags & DETECT_LIST != 0 && count <= capacity {
        let (indices, values) = (output.indices.as_ptr(), output.values.as_ptr());
        launch(
            "driftless_put",
            grid,
            &PutArgs { words: memory.previous, indices, values, count: written as u64 },
        );
    }
    if let Some(set) = pending {
        settle(grid, set, flags, &planned.parts, &output.exceeded);
    }
    (found(tensor, params, output, classes), count)
}

/// Detects with the kernels, with room for everything.
pub(crate) fn detect(
    grid: Grid,
    tensor: &SourceTensor,
    params: &[ParamMeta],
    source: ChangeSource<'_>,
    options: DetectOptions<'_>,
    keys: &DigestKeys,
) -> Detected {
    detect_within(tensor.elements() as usize, grid, tensor, params, source, options, keys).0
}

/// What the host does with a set when the pass was good.
fn settle(grid: Grid, set: &mut Bitset, flags: u32, parts: &[Part], exceeded: &[u32]) {
    if flags & DETECT_DRAIN != 0 {
        set.clear();
        return;
    }
    let goes_whole = |part: &&Part| {
        part.flags & PART_FP32 == 0 && (part.flags & PART_WHOLE != 0 || exceeded[part.piece as usize] != 0)
    };
    for part in parts.iter().filter(goes_whole) {
        let bits = set.words_mut().as_mut_ptr();
        let (first, count) = (u64::from(part.start), u64::from(part.count));
        launch("driftless_fill_bits", grid, &FillArgs { bits, first, count });
    }
}

fn found(tensor: &SourceTensor, params: &[ParamMeta], output: Output, classes: Classes) -> Detected {
    let exceeded = |&code: &u32| match code {
        0 => None,
        1 => Some(f32::NAN),
        code => Some(f32::from_bits(code - 2)),
    };
    let audit = |(piece, &unfit): (&Piece, &u32)| match (params[piece.param.0 as usize].dtype, unfit) {
        (Dtype::Fp32, _) => MasterAudit::Unknown,
        (_, 0) => MasterAudit::Fit,
        _ => MasterAudit::Unfit,
    };
    let class = |&class: &u8| [StepClass::Unit, StepClass::Near, StepClass::Far][usize::from(class)];
    let classes = (classes == Classes::Listed).then(|| output.classes.iter().map(class).collect());
    Detected {
        changes: Changes { indices: output.indices, values: output.values, classes }.into(),
        first_cell: tensor.pieces.first().map_or(0, |piece| piece.first_cell),
        cells: output.cells.as_chunks::<4>().0.iter().map(|&lanes| Digest(lanes)).collect(),
        bound_exceeded: output.exceeded.iter().map(exceeded).collect(),
        audits: tensor.pieces.iter().zip(&output.unfit).map(audit).collect(),
    }
}
